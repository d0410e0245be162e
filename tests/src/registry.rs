//! A real image registry for one test, over plain HTTP, and further servers for its content with TLS, name and password
//! ("doors").

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::controlplane::pki::Pair;
use crate::images::RegistryClient;
use crate::locked::locked;
use crate::ports::Port;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::tools::{Tool, Tools};

/// A running registry. Dropping it ends it and removes its content.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    process: Mutex<Option<Process>>,
    program: PathBuf,
    data: PathBuf,
    _port: Port,
    directory: Scratch,
}

/// User `berth` with the password `secret`, in htpasswd format.
pub const HTPASSWD: &str = "berth:$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n";
/// User and password of [`HTPASSWD`], as `auth` of an auth file.
pub const AUTH: &str = "YmVydGg6c2VjcmV0";

/// Requirements of an additional server of a registry for its clients.
#[derive(Debug, Default)]
pub struct Guard<'a> {
    /// TLS with this certificate.
    pub tls: Option<&'a Pair>,
    /// A line of htpasswd (bcrypt) with the accepted name and password.
    pub htpasswd: Option<&'a str>,
}

impl Registry {
    /// Starts a registry on a free port of this address (loopback or a bridge's) and waits until it answers.
    pub async fn start(bind: IpAddr) -> Result<Self> {
        Self::launch(bind, None, &Guard::default()).await
    }

    /// Starts another server for the same content, on the same address and another port.
    pub async fn door(&self, guard: &Guard<'_>) -> Result<Self> {
        Self::launch(self.address.ip(), Some(self.data()), guard).await
    }

    async fn launch(bind: IpAddr, data: Option<PathBuf>, guard: &Guard<'_>) -> Result<Self> {
        let tools = tokio::task::spawn_blocking(|| Tools::ensure(&[Tool::Registry])).await??;
        let port = Port::reserve()?;
        let directory = Scratch::new("berth-registry-")?;
        let address = SocketAddr::from((bind, port.number()));
        let data = data.unwrap_or_else(|| directory.path().join("data"));
        let mut config = serde_json::json!({
            "version": "0.1",
            "log": {"level": "warn"},
            "storage": {
                "filesystem": {"rootdirectory": data},
                "delete": {"enabled": true},
                "maintenance": {"uploadpurging": {"enabled": false}},
            },
            // A fixed secret, so that an upload survives a restart.
            "http": {"addr": address.to_string(), "secret": "berth-tests"},
        });
        if let Some(pair) = guard.tls {
            let (certificate, key) = pair.write(directory.path(), "tls")?;
            config["http"]["tls"] = serde_json::json!({"certificate": certificate, "key": key});
        }
        if let Some(line) = guard.htpasswd {
            let path = directory.path().join("htpasswd");
            fs::write(&path, line)?;
            config["auth"] = serde_json::json!({"htpasswd": {"realm": "berth-tests", "path": path}});
        }
        fs::write(directory.path().join("config.yml"), config.to_string())?;
        let this = Self {
            address,
            process: Mutex::default(),
            program: tools.path(Tool::Registry)?.to_owned(),
            data,
            _port: port,
            directory,
        };
        this.restart().await?;
        Ok(this)
    }

    /// Starts a registry on loopback.
    pub async fn start_local() -> Result<Self> {
        Self::start(Ipv4Addr::LOCALHOST.into()).await
    }

    /// Starts the registry again, with the same port and content.
    pub async fn restart(&self) -> Result<()> {
        self.stop()?;
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg(self.directory.path().join("config.yml"))
            // Otherwise it would look for a collector of traces.
            .env("OTEL_TRACES_EXPORTER", "none");
        let process = Process::start("registry", &command, &self.log())?;
        *locked(&self.process) = Some(process);
        let started = Instant::now();
        while tokio::net::TcpStream::connect(self.address).await.is_err() {
            self.check(started)?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn check(&self, started: Instant) -> Result<()> {
        let mut process = locked(&self.process);
        let process = process.as_mut().context("the registry was stopped")?;
        process.check()?;
        if started.elapsed() > Duration::from_secs(30) {
            bail!("the registry does not answer; {}", process.log_tail());
        }
        Ok(())
    }

    /// Stops the registry; its clients get connection errors until [`Self::restart`].
    pub fn stop(&self) -> Result<()> {
        drop(locked(&self.process).take());
        Ok(())
    }

    /// `http://address:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `address:port`, the first part of an image reference.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    /// Returns a client for pushing and reading.
    pub fn client(&self) -> RegistryClient {
        RegistryClient::new(&self.url())
    }

    /// Path of its log, with a line for every answered request.
    pub fn log(&self) -> PathBuf {
        self.directory.path().join("registry.log")
    }

    /// Directory of its content (`data/docker/registry/v2/…`).
    pub fn data(&self) -> PathBuf {
        self.data.clone()
    }
}
