//! A client of a simulated host that uses its bus as the agent does.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::hosts::sim::SimHost;
use futures::StreamExt;
use serde_json::Value;
use tokio::time::timeout;
use zbus::{Connection, OwnedObjectPath, Variant, proxy};

#[proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, &[(&str, Variant<'_>)])],
    ) -> zbus::Result<OwnedObjectPath>;
    fn get_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn unref_unit(&self, name: &str) -> zbus::Result<()>;
    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;
    #[allow(clippy::type_complexity)]
    fn list_units_by_names(
        &self,
        names: &[&str],
    ) -> zbus::Result<
        Vec<(
            String,
            String,
            String,
            String,
            String,
            String,
            OwnedObjectPath,
            u32,
            String,
            OwnedObjectPath,
        )>,
    >;
    #[zbus(property)]
    fn version(&self) -> zbus::Result<String>;
    #[zbus(signal)]
    fn job_removed(&self, id: u32, job: OwnedObjectPath, unit: String, result: String) -> zbus::Result<()>;
}

#[proxy(
    interface = "org.freedesktop.systemd1.Unit",
    default_service = "org.freedesktop.systemd1"
)]
pub trait Unit {
    #[zbus(property)]
    fn active_state(&self) -> zbus::Result<String>;
}

#[proxy(
    interface = "org.freedesktop.systemd1.Service",
    default_service = "org.freedesktop.systemd1"
)]
pub trait Service {
    #[zbus(property)]
    fn result(&self) -> zbus::Result<String>;
    #[zbus(property)]
    fn exec_main_status(&self) -> zbus::Result<i32>;
}

#[proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
pub trait Login {
    #[allow(clippy::type_complexity)]
    fn list_inhibitors(&self) -> zbus::Result<Vec<(String, String, String, String, u32, u32)>>;
    fn reboot_with_flags(&self, flags: u64) -> zbus::Result<()>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;
    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

pub const LOCK: &[&str] = &["/usr/bin/ostree", "admin", "lock-finalization"];

pub fn exec(command: &[&str]) -> Variant<'static> {
    let argv: Vec<String> = command.iter().map(|s| (*s).to_owned()).collect();
    Variant::new(vec![(command[0].to_owned(), argv, false)])
}

pub struct Client {
    pub conn: Connection,
    pub manager: ManagerProxy<'static>,
    pub login: LoginProxy<'static>,
    root: PathBuf,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    pub job: String,
    pub active: String,
    pub result: String,
    pub status: i32,
}

impl Client {
    pub async fn connect(host: &SimHost) -> Result<Self> {
        let conn = zbus::connection::Builder::address(host.bus_address().as_str())
            .build()
            .await?;
        let manager = ManagerProxy::new(&conn).await?;
        manager.subscribe().await?;
        Ok(Self {
            login: LoginProxy::new(&conn).await?,
            manager,
            conn,
            root: host.root().to_owned(),
        })
    }

    pub async fn start(
        &self,
        name: &str,
        command: &[&str],
        post: &[&str],
        more: &[(&str, Variant<'_>)],
    ) -> zbus::Result<OwnedObjectPath> {
        let (out, err) = (format!("/run/berth/{name}.out"), format!("/run/berth/{name}.err"));
        let mut properties = vec![
            ("Description", Variant::new("a test")),
            ("Type", Variant::new("oneshot")),
            ("ExecStart", exec(command)),
            ("AddRef", Variant::new(true)),
            ("StandardOutputFileToTruncate", Variant::new(out)),
            ("StandardErrorFileToTruncate", Variant::new(err)),
            ("IOWeight", Variant::new(10u64)),
        ];
        if !post.is_empty() {
            properties.push(("ExecStartPost", exec(post)));
        }
        for (name, value) in more {
            properties.push((name, value.try_clone()?));
        }
        self.manager.start_transient_unit(name, "fail", &properties, &[]).await
    }

    /// Runs a unit to its end, reads its result, and unloads it.
    pub async fn run(&self, name: &str, command: &[&str], post: &[&str]) -> Result<Ended> {
        let mut removed = self.manager.receive_job_removed().await?;
        let job = self.start(name, command, post, &[]).await?;
        let job = wait_for(&mut removed, &job).await?;
        let path = self.manager.get_unit(name).await?;
        let unit = UnitProxy::builder(&self.conn).path(path.clone()).build().await?;
        let service = ServiceProxy::builder(&self.conn).path(path).build().await?;
        let ended = Ended {
            job,
            active: unit.active_state().await?,
            result: service.result().await?,
            status: service.exec_main_status().await?,
        };
        self.manager.reset_failed_unit(name).await?;
        // A reference would keep the name in use.
        self.manager.unref_unit(name).await?;
        Ok(ended)
    }

    pub async fn status(&self) -> Result<Value> {
        let command = ["/usr/bin/bootc", "status", "--format=json", "--format-version=1"];
        let ended = self.run("berth-status.service", &command, &[]).await?;
        ensure!(ended.job == "done", "status: {ended:?}");
        Ok(serde_json::from_str(&self.read("berth-status.service.out")?)?)
    }

    pub fn read(&self, name: &str) -> Result<String> {
        Ok(std::fs::read_to_string(self.root.join("run/berth").join(name))?)
    }
}

pub async fn wait_for(removed: &mut JobRemovedStream, job: &OwnedObjectPath) -> Result<String> {
    loop {
        let signal = timeout(Duration::from_secs(30), removed.next())
            .await?
            .context("the bus went away")?;
        let args = signal.args()?;
        if args.job() == job {
            return Ok(args.result().clone());
        }
    }
}

pub fn error_name(error: &zbus::Error) -> &str {
    match error {
        zbus::Error::MethodError(name, ..) => name.as_str(),
        _ => "",
    }
}
