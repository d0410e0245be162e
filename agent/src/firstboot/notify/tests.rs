use super::*;

#[test]
fn the_notice_stays_until_all_is_well() {
    let scratch = std::env::temp_dir().join(format!("berth-tell-{}", std::process::id()));
    let root = HostRoot::new(&scratch);
    fs::create_dir_all(root.path("/run/systemd/journal")).unwrap();
    let journal = UnixDatagram::bind(root.path(JOURNAL)).unwrap();
    let verdict = Verdict::invalid_config("line 1: x");
    locally(&root, None, &verdict);
    for path in [ISSUE, MOTD] {
        let path = root.path(path);
        assert!(fs::read_to_string(&path).unwrap().contains("(InvalidConfig)"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    }
    let mut record = [0; 4096];
    let length = journal.recv(&mut record).unwrap();
    let record = String::from_utf8_lossy(&record[..length]).into_owned();
    let id = format!("MESSAGE_ID={}\n", messages::MESSAGE_ID);
    assert!(
        record.starts_with(&id) && record.contains("\nBERTH_OUTCOME=InvalidConfig\n"),
        "{record}"
    );
    let fine = Verdict {
        outcome: berth_api::firstboot::FirstbootOutcome::Allowed,
        ..verdict
    };
    locally(&root, None, &fine);
    assert!(!root.path(ISSUE).exists() && !root.path(MOTD).exists());
    fs::remove_dir_all(&scratch).unwrap();
}

/// Starts an API server for one request and writes a kubeconfig for it. The thread returns the text of the request.
pub(crate) fn api_server(kubeconfig: &Path) -> std::thread::JoinHandle<String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let content = serde_json::json!({
        "clusters": [{ "name": "c", "cluster": { "server": server } }],
        "users": [{ "name": "u", "user": { "token": "t" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "c",
    });
    fs::write(kubeconfig, content.to_string()).unwrap();
    berth_shell::install_crypto();
    std::thread::spawn(move || answer(&listener))
}

fn answer(listener: &std::net::TcpListener) -> String {
    use std::io::{Read, Write};
    let (mut stream, _) = listener.accept().unwrap();
    let mut text = String::new();
    let mut piece = [0; 4096];
    loop {
        let length = stream.read(&mut piece).unwrap();
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
        if let Some((_, body)) = text.split_once("\r\n\r\n")
            && (length == 0 || serde_json::from_str::<serde_json::Value>(body).is_ok())
        {
            let answer = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).unwrap();
            return text;
        }
    }
}

#[test]
fn a_silent_journal_or_console_does_not_block() {
    let scratch = std::env::temp_dir().join(format!("berth-deaf-{}", std::process::id()));
    let root = HostRoot::new(&scratch);
    fs::create_dir_all(root.path("/run/systemd/journal")).unwrap();
    let deaf = UnixDatagram::bind(root.path(JOURNAL)).unwrap();
    nix::unistd::mkfifo(&root.path(GETTY), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let fill = UnixDatagram::unbound().unwrap();
    fill.set_nonblocking(true).unwrap();
    while fill.send_to(b"x", root.path(JOURNAL)).is_ok() {}
    let begin = std::time::Instant::now();
    locally(&root, None, &Verdict::invalid_config("line 1: x"));
    let took = begin.elapsed();
    assert!(took < JOURNAL_TIMEOUT * 3, "{took:?}");
    assert!(root.path(ISSUE).exists(), "reported in the other ways");
    drop(deaf);
    fs::remove_dir_all(&scratch).unwrap();
}

#[test]
fn a_fifo_as_kubeconfig_does_not_block() {
    let fifo = std::env::temp_dir().join(format!("berth-fifo-{}.kubeconfig", std::process::id()));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = cluster(&fifo, "worker-7", &Verdict::invalid_config("x")).unwrap_err();
    assert!(error.to_string().contains("is not a file"), "{error:#}");
    fs::remove_file(&fifo).unwrap();
}

#[test]
fn an_event_needs_no_node() {
    let kubeconfig = std::env::temp_dir().join(format!("berth-tell-{}.kubeconfig", std::process::id()));
    let asked = api_server(&kubeconfig);
    cluster(&kubeconfig, "worker-7", &Verdict::invalid_config("line 1: x")).unwrap();
    let asked = asked.join().unwrap();
    for part in [
        "POST /apis/events.k8s.io/v1/namespaces/default/events",
        r#""reason":"FirstBootInvalidConfig""#,
        r#""name":"worker-7""#,
        "line 1: x",
    ] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    fs::remove_file(&kubeconfig).unwrap();
}
