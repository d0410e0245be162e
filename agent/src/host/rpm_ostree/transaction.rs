//! A transaction of rpm-ostree's daemon, joined over its own socket, without a bus between.
//!
//! The work goes on without its clients once one of them has called `Start`. Whoever joins late and calls it too is told the
//! end as well.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use zbus::connection::Builder;
use zbus::message::Type;
use zbus::{Connection, Message, MessageStream};

use crate::host::HostError;
use crate::host::bus::{BusError, translate};
use crate::host::failure::{Failure, Reason};
use crate::host::root::HostRoot;

const INTERFACE: &str = "org.projectatomic.rpmostree1.Transaction";
const PATH: &str = "/";
/// Time within which the daemon answers on the socket.
const DEADLINE: Duration = Duration::from_secs(10);

/// Something that a transaction has told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Signal {
    /// Words: of a message, or a task that begins.
    Said(String),
    /// Bytes that came over the network.
    Download {
        /// Bytes so far.
        bytes: u64,
        /// Bytes per second.
        per_second: u64,
    },
    /// The end.
    Finished {
        /// The transaction went well.
        success: bool,
        /// The daemon's own words, when it did not.
        words: String,
    },
    /// Something else.
    Other,
}

/// A connection to the transaction.
#[derive(Debug)]
pub(super) struct Transaction {
    connection: Connection,
    signals: MessageStream,
}

impl Transaction {
    /// Connects to the address that the daemon gave, whose path is one of the host's. What it tells is heard from now on.
    ///
    /// # Errors
    /// When nobody answers at that address.
    pub(super) async fn join(address: &str, root: &HostRoot) -> Result<Self, HostError> {
        let failed = |why: String| HostError::Tool(Failure::new(Reason::HostToolFailed, &why));
        let (here, socket) = under(root, address).ok_or_else(|| {
            failed(format!(
                "rpm-ostreed gave {address:?}, which names no socket of the host"
            ))
        })?;
        if let Some(dir) = socket.parent().filter(|dir| !dir.exists()) {
            return Err(failed(format!(
                "{} is not there, and with it no socket of rpm-ostreed: mount the host's /run there, as the agent's \
                 DaemonSet in the release does",
                dir.display()
            )));
        }
        let connect = Builder::address(here.as_str()).p2p().method_timeout(DEADLINE).build();
        let connection = tokio::time::timeout(DEADLINE, connect)
            .await
            .map_err(|_| {
                let seconds = DEADLINE.as_secs();
                HostError::Timeout(format!("rpm-ostreed did not answer at {here} within {seconds} s"))
            })?
            .map_err(|error| {
                failed(format!(
                    "cannot connect to the transaction of rpm-ostreed at {here}: {error}"
                ))
            })?;
        let signals = MessageStream::from(&connection);
        Ok(Self { connection, signals })
    }

    /// Starts the work, unless somebody has.
    pub(super) async fn start(&self) -> Result<(), BusError> {
        self.call("Start").await.map(drop)
    }

    /// Asks for the end of the work. It is told as a failure.
    pub(super) async fn cancel(&self) -> Result<(), BusError> {
        self.call("Cancel").await.map(drop)
    }

    /// The words by which whoever began it has described it.
    pub(super) async fn title(&self) -> Result<String, BusError> {
        let get = self.connection.call_method(
            None::<&str>,
            PATH,
            Some("org.freedesktop.DBus.Properties"),
            "Get",
            &(INTERFACE, "Title"),
        );
        let reply = get.await.map_err(|error| translate("Get(Title)", error))?;
        let malformed = |why: String| BusError::Malformed {
            method: "Get(Title)".to_owned(),
            why,
        };
        let value: zbus::OwnedVariant = reply
            .body()
            .deserialize()
            .map_err(|error| malformed(error.to_string()))?;
        String::try_from(value).map_err(|error| malformed(error.to_string()))
    }

    async fn call(&self, method: &str) -> Result<Message, BusError> {
        let call = self
            .connection
            .call_method(None::<&str>, PATH, Some(INTERFACE), method, &());
        call.await.map_err(|error| translate(method, error))
    }

    /// The next signal; `None` when the daemon has closed the connection, or is gone.
    pub(super) async fn next(&mut self) -> Option<Signal> {
        loop {
            let message = self.signals.next().await?.ok()?;
            if message.message_type() == Type::Signal {
                return Some(read(&message));
            }
        }
    }

    /// Waits for the end, no longer than this. `None`: the daemon is gone, or says nothing.
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
        // An end is an end, whatever it says.
        "Finished" => match body.deserialize::<(bool, String)>() {
            Ok((success, words)) => Signal::Finished { success, words },
            Err(error) => Signal::Finished {
                success: false,
                words: format!("rpm-ostree told the end in a way that makes no sense: {error}"),
            },
        },
        _ => Signal::Other,
    }
}

/// The address with its path under the host's root, and that path: a pod sees the host's `/run` elsewhere.
fn under(root: &HostRoot, address: &str) -> Option<(String, PathBuf)> {
    let mut found = None;
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

    #[test]
    fn the_socket_is_looked_for_under_the_hosts_root() {
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
    fn what_a_download_tells_is_read_and_nonsense_is_no_news() {
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
        assert!(!success && words.contains("makes no sense"), "{words}");
    }

    #[tokio::test]
    async fn a_run_that_is_not_mounted_is_named() {
        let root = HostRoot::new("/nowhere/of/berth");
        let address = "unix:path=/run/rpm-ostree-transaction.sock,guid=0011";
        let error = Transaction::join(address, &root).await.unwrap_err();
        assert!(error.to_string().contains("mount the host's /run"), "{error}");
        assert_eq!(error.reason(), Reason::HostToolFailed);
    }
}
