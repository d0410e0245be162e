//! A client of the daemon that does the same as the command `rpm-ostree`, for tests where an admin uses it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use tokio::time::sleep;
use zbus::{Connection, MessageStream, OwnedObjectPath, OwnedVariant, Variant, proxy};

use super::names::SOCKET;

#[allow(missing_docs)]
mod proxies {
    use super::*;

    #[proxy(
        interface = "org.projectatomic.rpmostree1.Sysroot",
        default_service = "org.projectatomic.rpmostree1",
        default_path = "/org/projectatomic/rpmostree1/Sysroot"
    )]
    pub trait Sysroot {
        fn register_client(&self, options: HashMap<&str, Variant<'_>>) -> zbus::Result<()>;
        fn reload(&self) -> zbus::Result<()>;
        #[zbus(name = "GetOS")]
        fn get_os(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn booted(&self) -> zbus::Result<OwnedObjectPath>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn deployments(&self) -> zbus::Result<Vec<HashMap<String, OwnedVariant>>>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn active_transaction(&self) -> zbus::Result<(String, String, String)>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn active_transaction_path(&self) -> zbus::Result<String>;
    }

    #[proxy(
        interface = "org.projectatomic.rpmostree1.OS",
        default_service = "org.projectatomic.rpmostree1"
    )]
    pub trait Os {
        fn rebase(&self, options: HashMap<&str, Variant<'_>>, refspec: &str, packages: &[&str])
        -> zbus::Result<String>;
        fn deploy(&self, revision: &str, options: HashMap<&str, Variant<'_>>) -> zbus::Result<String>;
        fn pkg_change(
            &self,
            options: HashMap<&str, Variant<'_>>,
            added: &[&str],
            removed: &[&str],
        ) -> zbus::Result<String>;
        fn finalize_deployment(&self, options: HashMap<&str, Variant<'_>>) -> zbus::Result<String>;
        fn cleanup(&self, elements: &[&str]) -> zbus::Result<String>;
        fn rollback(&self, options: HashMap<&str, Variant<'_>>) -> zbus::Result<String>;
    }

    #[proxy(
        interface = "org.projectatomic.rpmostree1.Transaction",
        default_service = "org.projectatomic.rpmostree1",
        default_path = "/"
    )]
    pub trait Transaction {
        fn start(&self) -> zbus::Result<bool>;
        fn cancel(&self) -> zbus::Result<()>;
        #[zbus(property(emits_changed_signal = "false"))]
        fn title(&self) -> zbus::Result<String>;
    }
}

pub use proxies::{OsProxy, SysrootProxy, TransactionProxy};

/// How long a client retries while another transaction runs, and the retry interval.
const BUSY_RETRY_MAX: Duration = Duration::from_secs(10);
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// True if another transaction runs.
fn is_busy(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::MethodError(_, Some(words), _) if words.starts_with("Transaction in progress"))
}

/// A connection to the bus of a host with rpm-ostree.
#[derive(Debug)]
pub struct Client {
    conn: Connection,
    run: PathBuf,
}

/// End of a transaction, with its earlier signals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// True if the transaction succeeded.
    pub ok: bool,
    /// Error message; empty if it succeeded.
    pub words: String,
    /// Names of the signals before the end.
    pub heard: Vec<String>,
}

impl Client {
    /// Connects to the bus at this address, of a host whose `/run` is this directory.
    pub async fn connect(bus: &str, run: &Path) -> Result<Self> {
        let conn = zbus::connection::Builder::address(bus).build().await;
        Ok(Self {
            conn: conn.context("cannot connect to the bus of the host")?,
            run: run.to_owned(),
        })
    }

    /// Proxy of the object with the deployments.
    pub async fn sysroot(&self) -> Result<SysrootProxy<'_>> {
        SysrootProxy::new(&self.conn)
            .await
            .context("cannot create the proxy of the sysroot")
    }

    /// Proxy of the booted operating system.
    pub async fn os(&self) -> Result<OsProxy<'_>> {
        let path = self.sysroot().await?.booted().await.context("Booted")?;
        OsProxy::builder(&self.conn)
            .path(path)
            .build()
            .await
            .context("cannot create the proxy of the operating system")
    }

    /// Joins a transaction through the socket in this client's `/run`. Checks only the form of the address.
    pub async fn join(&self, address: &str) -> Result<Connection> {
        ensure!(
            address == format!("unix:path=/run/{SOCKET}"),
            "{address} is not the address of a transaction"
        );
        let here = format!("unix:path={}", self.run.join(SOCKET).display());
        let builder = zbus::connection::Builder::address(here.as_str()).p2p();
        builder.build().await.context("cannot join the transaction")
    }

    /// Starts or joins the transaction at this address, and follows it to its end.
    pub async fn follow(&self, address: &str) -> Result<Ended> {
        let peer = self.join(address).await?;
        let mut stream = MessageStream::from(&peer);
        let transaction = TransactionProxy::new(&peer).await?;
        transaction.start().await.context("Start")?;
        let mut heard = vec![];
        while let Some(message) = stream.next().await {
            let message = message.context("the daemon died")?;
            let header = message.header();
            let Some(member) = header
                .member()
                .filter(|_| header.message_type() == zbus::message::Type::Signal)
            else {
                continue;
            };
            if member.as_str() == "Finished" {
                let (ok, words) = message.body().deserialize()?;
                return Ok(Ended { ok, words, heard });
            }
            heard.push(member.to_string());
        }
        bail!("the daemon died")
    }

    /// Registers this connection, as the command does, so that the daemon does not exit while idle.
    async fn register(&self) -> Result<()> {
        let begin = tokio::time::Instant::now();
        let sysroot = self.sysroot().await?;
        loop {
            let options = HashMap::from([("id", Variant::from("cli"))]);
            match sysroot.register_client(options).await {
                // The daemon may exit at this call; the bus restarts it.
                Err(error) if begin.elapsed() < BUSY_RETRY_MAX => {
                    tracing::debug!(%error, "registering again");
                    sleep(BUSY_RETRY_INTERVAL).await;
                }
                answer => return answer.context("RegisterClient"),
            }
        }
    }

    /// Runs `rpm-ostree install`.
    pub async fn install(&self, packages: &[&str]) -> Result<()> {
        let line = format!("install {}", packages.join(" "));
        self.register().await?;
        let begin = tokio::time::Instant::now();
        let address = loop {
            let options = HashMap::from([("initiating-command-line", Variant::from(line.as_str()))]);
            match self.os().await?.pkg_change(options, packages, &[]).await {
                // Clients of the last transaction disconnect a moment after its end.
                Err(error) if is_busy(&error) && begin.elapsed() < BUSY_RETRY_MAX => sleep(BUSY_RETRY_INTERVAL).await,
                address => break address?,
            }
        };
        let ended = self.follow(&address).await?;
        ensure!(ended.ok, "install failed: {}", ended.words);
        Ok(())
    }
}
