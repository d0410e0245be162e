//! Relays the clients of one socket to another one, until standard input ends.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use anyhow::{Context, Result};

/// Listens at the path `listen`, and connects each client to the path `connect`.
pub(crate) fn serve(listen: &str, connect: &str) -> Result<()> {
    let listener = UnixListener::bind(listen).with_context(|| format!("listening at {listen}"))?;
    let connect = connect.to_owned();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Dropping the client refuses the connection.
            if let Ok(server) = UnixStream::connect(&connect) {
                thread::spawn(move || relay(client, server));
            }
        }
    });
    io::stdin()
        .read_to_end(&mut vec![])
        .map(drop)
        .context("reading standard input")
}

fn relay(client: UnixStream, server: UnixStream) {
    let copies = client.try_clone().and_then(|c| Ok((c, server.try_clone()?)));
    let Ok((from_client, to_server)) = copies else { return };
    let forward = thread::spawn(move || copy(from_client, to_server));
    copy(server, client);
    // An error means that the thread panicked, so it has ended as well.
    let _ = forward.join();
}

fn copy(mut from: UnixStream, mut to: UnixStream) {
    // An error means that one side has closed.
    let _ = io::copy(&mut from, &mut to);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
