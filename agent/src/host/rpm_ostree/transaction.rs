//! A transaction of rpm-ostree's daemon, joined over the transaction's own socket.
//!
//! After `Start`, the transaction continues without clients. A client that joins a running transaction must also call
//! `Start`. The daemon then sends that client the signal of the end.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use berth_api::foreign::{bounded, is_printable};
use futures::StreamExt;
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream};

use crate::host::bus::{BusError, translate};
use crate::host::error::HostError;
use crate::host::root::HostRoot;

const INTERFACE: &str = "org.projectatomic.rpmostree1.Transaction";
const PATH: &str = "/";
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Signal {
    /// Text of a message, of a task that begins, or of a progress report.
    Said(String),
    Download {
        /// Bytes downloaded so far.
        bytes: u64,
        per_second: u64,
    },
    Finished {
        success: bool,
        /// The daemon's message if the transaction failed.
        words: String,
    },
    Other,
}

#[derive(Debug)]
pub(super) struct Transaction {
    connection: Connection,
    signals: MessageStream,
}

impl Transaction {
    /// Connects to the address that the daemon returned. The address contains a path on the host. The agent misses
    /// signals that the daemon sent before the connection.
    pub(super) async fn join(address: &str, root: &HostRoot) -> Result<Self, HostError> {
        let (here, socket) = under(root, address).ok_or_else(|| {
            let shown = bounded(address, 200);
            HostError::tool_failed(&format!(
                "rpm-ostreed returned {shown:?}, which is not a socket path on the host"
            ))
        })?;
        if let Some(dir) = socket.parent().filter(|dir| !dir.exists()) {
            return Err(HostError::tool_failed(&format!(
                "{} is missing, so rpm-ostreed's socket cannot be reached: mount the host's /run there, as the agent's \
                 DaemonSet in the release does",
                dir.display()
            )));
        }
        let connect = Builder::address(here.as_str()).p2p().method_timeout(TIMEOUT).build();
        let connection = tokio::time::timeout(TIMEOUT, connect)
            .await
            .map_err(|_| {
                let seconds = TIMEOUT.as_secs();
                HostError::Timeout(format!("rpm-ostreed did not answer at {here} within {seconds} s"))
            })?
            .map_err(|error| {
                HostError::tool_failed(&format!(
                    "cannot connect to the transaction of rpm-ostreed at {here}: {error}"
                ))
            })?;
        let signals = MessageStream::from(&connection);
        Ok(Self { connection, signals })
    }

    /// Starts the transaction, unless it has already been started.
    pub(super) async fn start(&self) -> Result<(), BusError> {
        self.call("Start").await.map(drop)
    }

    /// Asks the daemon to cancel the transaction. The transaction then fails, unless it has already succeeded.
    pub(super) async fn cancel(&self) -> Result<(), BusError> {
        self.call("Cancel").await.map(drop)
    }

    pub(super) async fn title(&self) -> Result<String, BusError> {
        let get = self.connection.call_method(
            None::<&str>,
            PATH,
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &(INTERFACE, "Title"),
        );
        let reply = get.await.map_err(|error| translate("Get(Title)", error))?;
        let value: zbus::OwnedVariant = reply.body().deserialize().map_err(malformed_title)?;
        String::try_from(value).map_err(malformed_title)
    }

    async fn call(&self, method: &str) -> Result<Message, BusError> {
        let call = self
            .connection
            .call_method(None::<&str>, PATH, Some(INTERFACE), method, &());
        call.await.map_err(|error| translate(method, error))
    }

    /// Returns the next signal; `None` if the daemon closed the connection or ended.
    pub(super) async fn next(&mut self) -> Option<Signal> {
        loop {
            let message = self.signals.next().await?.ok()?;
            if message.message_type() == Type::Signal {
                return Some(read(&message));
            }
        }
    }

    /// Waits for the end of the transaction, at most for this time. `None` if the daemon exits or does not report the
    /// end.
    pub(super) async fn end(&mut self, within: Duration) -> Option<Result<(), String>> {
        let end = async {
            loop {
                if let Signal::Finished { success, words } = self.next().await? {
                    return Some(if success { Ok(()) } else { Err(words) });
                }
            }
        };
        tokio::time::timeout(within, end).await.ok().flatten()
    }
}

type Download = (
    (u64, u64),
    (u32, u32),
    (u32, u32, u32),
    (u32, u32, u32, u64),
    (u32, u32),
    (u64, u64),
);

fn malformed_title(why: impl fmt::Display) -> BusError {
    BusError::Malformed {
        method: "Get(Title)".to_owned(),
        why: why.to_string(),
    }
}

fn read(message: &Message) -> Signal {
    let header = message.header();
    let (Some(interface), Some(member)) = (header.interface(), header.member()) else {
        return Signal::Other;
    };
    if interface.as_str() != INTERFACE {
        return Signal::Other;
    }
    let body = message.body();
    match member.as_str() {
        "Message" | "TaskBegin" => body.deserialize::<String>().map_or(Signal::Other, Signal::Said),
        "PercentProgress" => {
            let said = body.deserialize::<(String, u32)>();
            said.map_or(Signal::Other, |(text, _)| Signal::Said(text))
        }
        "DownloadProgress" => match body.deserialize::<Download>() {
            Ok((.., (bytes, per_second))) => Signal::Download { bytes, per_second },
            Err(_) => Signal::Other,
        },
        // Even a malformed `Finished` shows that the transaction ended.
        "Finished" => match body.deserialize::<(bool, String)>() {
            Ok((success, words)) => Signal::Finished { success, words },
            Err(error) => Signal::Finished {
                success: false,
                words: format!("rpm-ostreed reported the end of the transaction in an unknown format: {error}"),
            },
        },
        _ => Signal::Other,
    }
}

/// Returns the address and the path of its socket as the agent sees them: in a pod, the host's `/run` has another path.
/// `None` if the address has no valid path. A list of addresses (`;`) or an escaped character (`%`) is not valid, since
/// the connection would go elsewhere.
pub(super) fn under(root: &HostRoot, address: &str) -> Option<(String, PathBuf)> {
    let mut found = None;
    if address.contains([';', '%']) || !is_printable(address) {
        return None;
    }
    let rest = address.strip_prefix("unix:")?;
    let parts = rest.split(',').map(|part| match part.strip_prefix("path=") {
        Some(path) if path.starts_with('/') && !path.split('/').any(|p| p == "..") => {
            let path = root.path(path);
            let part = format!("path={}", path.display());
            found = Some(path);
            Some(part)
        }
        Some(_) => None,
        None => Some(part.to_owned()),
    });
    let parts: Option<Vec<String>> = parts.collect();
    let address = format!("unix:{}", parts?.join(","));
    found.map(|path| (address, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::failure::Reason;

    #[test]
    fn the_socket_is_under_the_hosts_root() {
        let root = HostRoot::new("/host");
        for (address, expected) in [
            (
                "unix:path=/run/rpm-ostree-transaction.sock,guid=0011",
                Some("unix:path=/host/run/rpm-ostree-transaction.sock,guid=0011"),
            ),
            ("unix:path=/run/x.sock", Some("unix:path=/host/run/x.sock")),
            ("unix:path=/run/../etc/x", None),
            ("unix:path=run/x", None),
            ("unix:abstract=/tmp/x", None),
            ("tcp:host=example.org", None),
            ("unix:path=/run/x;tcp:host=example.org", None),
            ("unix:path=/run/%2e%2e/etc/x", None),
            ("unix:path=/run/x\ny", None),
            ("", None),
        ] {
            let found = under(&root, address).map(|(address, _)| address);
            assert_eq!(found.as_deref(), expected, "{address}");
        }
        let service = under(&HostRoot::new("/"), "unix:path=/run/x.sock");
        let expected = ("unix:path=/run/x.sock".to_owned(), PathBuf::from("/run/x.sock"));
        assert_eq!(service, Some(expected));
    }

    fn signal<B: serde::Serialize + zbus::DynamicType>(member: &str, body: &B) -> Message {
        Message::signal(PATH, INTERFACE, member).build(body).unwrap()
    }

    #[test]
    fn malformed_signals_are_ignored() {
        let progress = (
            (1_u64, 2_u64),
            (3_u32, 4_u32),
            (5_u32, 6_u32, 7_u32),
            (8_u32, 9_u32, 10_u32, 11_u64),
            (12_u32, 13_u32),
            (5_000_000_000_u64, 1_500_000_u64),
        );
        let expected = Signal::Download {
            bytes: 5_000_000_000,
            per_second: 1_500_000,
        };
        assert_eq!(read(&signal("DownloadProgress", &progress)), expected);
        assert_eq!(read(&signal("DownloadProgress", &("half", 50_u32))), Signal::Other);
        let said = Signal::Said("Fetching layer".to_owned());
        assert_eq!(read(&signal("PercentProgress", &("Fetching layer", 50_u32))), said);
        assert_eq!(read(&signal("Message", &7_u32)), Signal::Other);
        let Signal::Finished { success, words } = read(&signal("Finished", &7_u32)) else {
            panic!("an end is an end");
        };
        assert!(!success && words.contains("unknown format"), "{words}");
    }

    #[tokio::test]
    async fn a_missing_mount_of_run_is_reported() {
        let root = HostRoot::new("/nowhere/of/berth");
        let address = "unix:path=/run/rpm-ostree-transaction.sock,guid=0011";
        let error = Transaction::join(address, &root).await.unwrap_err();
        assert!(error.to_string().contains("mount the host's /run"), "{error}");
        assert_eq!(error.reason(), Reason::HostToolFailed);
    }
}
