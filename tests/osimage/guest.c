// What runs in the pods of test hosts: the sandbox ("pause") and a trivial application, in one static file without a libc's help at run time.
//
//   guest                  waits for SIGTERM or SIGINT and ends
//   guest serve PORT [S]   answers every HTTP request with "ok"; after SIGTERM it goes on for S seconds (default 0)
//   guest ignore           takes no notice of SIGTERM: what drains have to cope with
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static volatile sig_atomic_t grace = 0;

static void end(int signal) {
    (void)signal;
    if (grace == 0) _exit(0);
    alarm(grace);
}

static void now(int signal) {
    (void)signal;
    _exit(0);
}

static int serve(int port) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) return 1;
    for (;;) {
        char request[1024];
        int client = accept(listener, 0, 0);
        if (client < 0) continue;
        if (read(client, request, sizeof request) > 0 && write(client, answer, sizeof answer - 1) < 0) {
            // The client is gone; the next one matters.
        }
        close(client);
    }
}

int main(int count, char **words) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    if (count > 1 && !strcmp(words[1], "ignore")) {
        for (;;) pause();
    }
    if (count > 3) grace = atoi(words[3]);
    signal(SIGALRM, now);
    signal(SIGTERM, end);
    signal(SIGINT, end);
    if (count > 2 && !strcmp(words[1], "serve")) return serve(atoi(words[2]));
    for (;;) pause();
}
