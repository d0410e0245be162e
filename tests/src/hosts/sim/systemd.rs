//! `org.freedesktop.systemd1` on the bus of a simulated host.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::oneshot;
use tokio::time::timeout;
use zbus::fdo::DBusProxy;
use zbus::message::Header;
use zbus::object_server::ResponseDispatchNotifier;
use zbus::{Connection, ObjectPath, ObjectServer, OwnedObjectPath, OwnedVariant, Variant, interface};

use super::guard;
use super::rpm_ostree::RpmOstree;
use super::transient::Transient;
use super::units::{Notice, Unit, Units};
use crate::named_error::NamedError;
use crate::rpmostreed::UNIT as UNIT_OF_RPM_OSTREE;

const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const VERSION: &str = "257";
/// greenboot's unit that sets GRUB's boot counter.
pub(super) const BOOT_COUNTER: &str = "greenboot-set-rollback-trigger.service";
/// How long a job waits for the reply to its caller. The job then runs even without the reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Entry of `ListUnitsByNames` for a unit.
type Listed = (
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
);
type Properties = Vec<(String, OwnedVariant)>;

/// Serves the units on this connection and takes systemd's name. The service ends with the connection.
pub(super) async fn serve(
    conn: &Connection,
    units: &Units,
    rpm_ostree: &RpmOstree,
) -> zbus::Result<tokio::task::AbortHandle> {
    let watch = tokio::spawn(watch_clients(clients_that_leave(conn).await?, units.clone()));
    for name in units.names() {
        publish(conn.object_server(), units, &name).await?;
    }
    let manager = Manager {
        units: units.clone(),
        rpm_ostree: rpm_ostree.clone(),
    };
    conn.object_server().at(MANAGER_PATH, manager).await?;
    units.set_bus(Some(conn.clone()));
    conn.request_name("org.freedesktop.systemd1").await?;
    Ok(watch.abort_handle())
}

async fn clients_that_leave(conn: &Connection) -> zbus::Result<zbus::fdo::NameOwnerChangedStream> {
    DBusProxy::new(conn).await?.receive_name_owner_changed().await
}

/// Removes the references of clients that left the bus.
async fn watch_clients(mut changes: zbus::fdo::NameOwnerChangedStream, units: Units) {
    while let Some(change) = changes.next().await {
        let Ok(args) = change.args() else { continue };
        if args.new_owner().is_none() {
            units.forget_client(args.name().as_str());
        }
    }
}

/// Publishes the object of a unit. The object stays after the unit is unloaded: systemd also answers for unloaded
/// units, because the object path contains the unit's name.
async fn publish(server: &ObjectServer, units: &Units, name: &str) -> zbus::Result<OwnedObjectPath> {
    let path = unit_path(name);
    let (units, name) = (units.clone(), name.to_owned());
    let unit = UnitFace {
        units: units.clone(),
        name: name.clone(),
    };
    server.at(&path, unit).await?;
    server.at(&path, ServiceFace { units, name }).await?;
    Ok(path.into())
}

fn unit_path(name: &str) -> ObjectPath<'static> {
    let mut label = String::new();
    for (i, byte) in name.bytes().enumerate() {
        // A path element must not start with a digit.
        if byte.is_ascii_alphabetic() || (byte.is_ascii_digit() && i > 0) {
            label.push(char::from(byte));
        } else {
            label.push_str(&format!("_{byte:02x}"));
        }
    }
    ObjectPath::from_string_unchecked(format!("{MANAGER_PATH}/unit/{label}"))
}

fn job_path(job: Option<u32>) -> OwnedObjectPath {
    let path = job.map_or("/".to_owned(), |id| format!("{MANAGER_PATH}/job/{id}"));
    ObjectPath::from_string_unchecked(path).into()
}

fn caller(header: &Header<'_>) -> Result<String, NamedError> {
    let sender = header
        .sender()
        .ok_or_else(|| NamedError::invalid("the call has no sender"))?;
    Ok(sender.to_string())
}

/// Sends signals to the subscribers. An error means that the bus is gone, with all subscribers.
async fn send_signals(units: &Units, notices: Vec<Notice>) {
    let Some(conn) = units.bus().filter(|_| units.has_subscribers()) else {
        return;
    };
    for notice in notices {
        let sent = match &notice {
            Notice::Changed(name) => changed(&conn, name, &units.get(name)).await,
            Notice::JobNew(id, name) => {
                let body = (*id, job_path(Some(*id)), name.as_str());
                conn.emit_signal(None::<&str>, MANAGER_PATH, MANAGER, "JobNew", &body)
                    .await
            }
            Notice::JobRemoved(id, name, result) => {
                let body = (*id, job_path(Some(*id)), name.as_str(), *result);
                conn.emit_signal(None::<&str>, MANAGER_PATH, MANAGER, "JobRemoved", &body)
                    .await
            }
        };
        if let Err(error) = sent {
            tracing::debug!(%error, ?notice, "signal not sent");
        }
    }
}

async fn changed(conn: &Connection, name: &str, unit: &Unit) -> zbus::Result<()> {
    let of_unit = HashMap::from([
        ("ActiveState", Variant::from(unit.active)),
        ("SubState", Variant::from(unit.sub)),
    ]);
    let of_service = HashMap::from([
        ("Result", Variant::from(unit.result)),
        ("ExecMainCode", Variant::from(unit.main_code)),
        ("ExecMainStatus", Variant::from(unit.main_status)),
    ]);
    for (interface, properties) in [(SERVICE, of_service), (UNIT, of_unit)] {
        let body = (interface, properties, Vec::<&str>::new());
        let path = unit_path(name);
        conn.emit_signal(
            None::<&str>,
            path,
            "org.freedesktop.DBus.Properties",
            "PropertiesChanged",
            &body,
        )
        .await?;
    }
    Ok(())
}

/// True if the name matches the pattern, which has at most one `*`.
fn matches_pattern(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end),
        None => name == pattern,
    }
}

struct Manager {
    units: Units,
    rpm_ostree: RpmOstree,
}

impl Manager {
    /// Removes the references of a client that has left the bus since its call.
    async fn drop_if_gone(&self, conn: &Connection, client: &str) -> Result<(), NamedError> {
        let name = zbus::names::BusName::try_from(client)?;
        let bus = DBusProxy::new(conn).await?;
        if !bus.name_has_owner(name).await.map_err(zbus::Error::from)? {
            self.units.forget_client(client);
        }
        Ok(())
    }
}

#[interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    async fn subscribe(&self, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        if self.units.subscribe(&caller(&header)?) {
            return Ok(());
        }
        Err(NamedError::systemd(
            "AlreadySubscribed",
            "Client is already subscribed.",
        ))
    }

    async fn unsubscribe(&self, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        if self.units.unsubscribe(&caller(&header)?) {
            return Ok(());
        }
        Err(NamedError::systemd("NotSubscribed", "Client is not subscribed."))
    }

    async fn start_transient_unit(
        &self,
        name: String,
        mode: String,
        properties: Properties,
        _aux: Vec<(String, Properties)>,
        #[zbus(header)] header: Header<'_>,
        #[zbus(connection)] conn: &Connection,
    ) -> Result<ResponseDispatchNotifier<OwnedObjectPath>, NamedError> {
        check_start(&name, &mode)?;
        let spec = Transient::parse(properties)?;
        let client = caller(&header)?;
        let job = self.units.enqueue(&name, &spec, &client)?;
        // A queued job runs even if the bus goes away before the caller gets the reply.
        let (replied, is_replied) = oneshot::channel::<()>();
        let (units, unit) = (self.units.clone(), name.clone());
        tokio::spawn(async move {
            let _ = timeout(REPLY_TIMEOUT, is_replied).await;
            let sender = units.clone();
            units.run(&unit, job, spec, move |notices| async move {
                send_signals(&sender, notices).await
            });
        });
        publish(conn.object_server(), &self.units, &name).await?;
        self.drop_if_gone(conn, &client).await?;
        let (response, sent) = ResponseDispatchNotifier::new(job_path(Some(job)));
        let units = self.units.clone();
        tokio::spawn(async move {
            send_signals(
                &units,
                vec![Notice::JobNew(job, name.clone()), Notice::Changed(name.clone())],
            )
            .await;
            // The caller must get the reply before the end of the job is signaled.
            sent.await;
            let _ = replied.send(());
        });
        Ok(response)
    }

    /// Starts one of the host's own units. Only rpm-ostreed can be started.
    async fn start_unit(
        &self,
        name: String,
        mode: String,
    ) -> Result<ResponseDispatchNotifier<OwnedObjectPath>, NamedError> {
        check_mode(&mode)?;
        if !self.units.loaded(&name).is_ok_and(|unit| unit.is_fixed()) {
            return Err(NamedError::systemd("NoSuchUnit", format!("Unit {name} not found.")));
        }
        let job = self.units.new_job();
        let (response, sent) = ResponseDispatchNotifier::new(job_path(Some(job)));
        let (units, rpm_ostree) = (self.units.clone(), self.rpm_ostree.clone());
        tokio::spawn(async move {
            send_signals(&units, vec![Notice::JobNew(job, name.clone())]).await;
            let runs = name != UNIT_OF_RPM_OSTREE || rpm_ostree.start().await;
            sent.await;
            let result = if runs { "done" } else { "failed" };
            let notices = vec![Notice::Changed(name.clone()), Notice::JobRemoved(job, name, result)];
            send_signals(&units, notices).await;
        });
        Ok(response)
    }

    async fn reload(&self) {
        guard::reload(&self.units);
    }

    async fn enable_unit_files(
        &self,
        names: Vec<String>,
        _runtime: bool,
        _force: bool,
    ) -> Result<(bool, Vec<(String, String, String)>), NamedError> {
        for name in names {
            let enabled = guard::enable(self.units.root(), &name);
            enabled.map_err(|error| NamedError::systemd("NoSuchUnit", error.to_string()))?;
            self.units.fix(&name, Some(("inactive", "dead")));
        }
        Ok((true, vec![]))
    }

    async fn get_unit(
        &self,
        name: String,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> Result<OwnedObjectPath, NamedError> {
        self.units.loaded(&name)?;
        Ok(publish(server, &self.units, &name).await?)
    }

    async fn stop_unit(&self, name: String, mode: String) -> Result<OwnedObjectPath, NamedError> {
        check_mode(&mode)?;
        let (job, notices) = self.units.stop(&name)?;
        send_signals(&self.units, notices).await;
        self.units.collect();
        Ok(job_path(Some(job)))
    }

    async fn reset_failed_unit(&self, name: String) -> Result<(), NamedError> {
        let notices = self.units.reset_failed(&name)?;
        send_signals(&self.units, notices).await;
        Ok(())
    }

    async fn ref_unit(&self, name: String, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        self.units.add_ref(&name, &caller(&header)?)
    }

    async fn unref_unit(&self, name: String, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        self.units.drop_ref(&name, &caller(&header)?)
    }

    async fn list_units_by_names(
        &self,
        names: Vec<String>,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> Result<Vec<Listed>, NamedError> {
        let mut listed = Vec::new();
        for name in names {
            let unit = self.units.get(&name);
            let path = publish(server, &self.units, &name).await?;
            listed.push((
                name,
                unit.description,
                load_state(unit.loaded),
                unit.active.to_owned(),
                unit.sub.to_owned(),
                String::new(),
                path,
                unit.job.unwrap_or_default(),
                unit.job.map(|_| "start".to_owned()).unwrap_or_default(),
                job_path(unit.job),
            ));
        }
        Ok(listed)
    }

    /// Lists the units in these active states or sub-states whose names match one of these patterns. Without states, or
    /// without patterns, all units match. A pattern has at most one `*`.
    async fn list_units_by_patterns(
        &self,
        states: Vec<String>,
        patterns: Vec<String>,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> Result<Vec<Listed>, NamedError> {
        let mut names = self.units.names();
        names.retain(|name| {
            let unit = self.units.get(name);
            let is_in_state = states.is_empty() || states.iter().any(|state| state == unit.active || state == unit.sub);
            is_in_state && (patterns.is_empty() || patterns.iter().any(|pattern| matches_pattern(name, pattern)))
        });
        self.list_units_by_names(names, server).await
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn system_state(&self) -> String {
        "running".to_owned()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn version(&self) -> String {
        VERSION.to_owned()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn soft_reboots_count(&self) -> u32 {
        self.units.soft_reboots()
    }

    /// Every simulated host has a hardware watchdog, which systemd feeds every 30 seconds.
    #[zbus(property(emits_changed_signal = "false"), name = "RuntimeWatchdogUSec")]
    async fn runtime_watchdog(&self) -> u64 {
        30_000_000
    }
}

fn load_state(loaded: bool) -> String {
    if loaded { "loaded" } else { "not-found" }.to_owned()
}

fn check_mode(mode: &str) -> Result<(), NamedError> {
    if ["fail", "replace"].contains(&mode) {
        return Ok(());
    }
    Err(NamedError::invalid(format!("Job mode {mode} invalid")))
}

fn check_start(name: &str, mode: &str) -> Result<(), NamedError> {
    check_mode(mode)?;
    let is_allowed = name.chars().all(|c| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c));
    if is_allowed && name.ends_with(".service") && name.len() < 256 {
        return Ok(());
    }
    Err(NamedError::invalid(format!("Unit name {name} is not valid.")))
}

struct UnitFace {
    units: Units,
    name: String,
}

#[interface(name = "org.freedesktop.systemd1.Unit")]
impl UnitFace {
    async fn r#ref(&self, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        self.units.add_ref(&self.name, &caller(&header)?)
    }

    async fn unref(&self, #[zbus(header)] header: Header<'_>) -> Result<(), NamedError> {
        self.units.drop_ref(&self.name, &caller(&header)?)
    }

    async fn reset_failed(&self) -> Result<(), NamedError> {
        let notices = self.units.reset_failed(&self.name)?;
        send_signals(&self.units, notices).await;
        Ok(())
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn id(&self) -> String {
        self.name.clone()
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn description(&self) -> String {
        self.units.get(&self.name).description
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn load_state(&self) -> String {
        load_state(self.units.get(&self.name).loaded)
    }

    #[zbus(property)]
    async fn active_state(&self) -> String {
        self.units.get(&self.name).active.to_owned()
    }

    #[zbus(property)]
    async fn sub_state(&self) -> String {
        self.units.get(&self.name).sub.to_owned()
    }

    /// Units that require this unit. greenboot's unit, which marks a boot as good, requires `boot-complete.target`.
    /// ostree's finalization requires [`BOOT_COUNTER`].
    #[zbus(property(emits_changed_signal = "const"))]
    async fn required_by(&self) -> Vec<&'static str> {
        match self.name.as_str() {
            "boot-complete.target" => vec!["greenboot-set-success.service"],
            BOOT_COUNTER => vec!["ostree-finalize-staged.service"],
            _ => vec![],
        }
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn wanted_by(&self) -> Vec<&'static str> {
        if guard::enabled(self.units.root()) == Some(self.name.as_str()) {
            return vec!["multi-user.target"];
        }
        vec![]
    }

    /// `basic.target` becomes active at the start of each userspace.
    #[zbus(property(emits_changed_signal = "false"))]
    async fn active_enter_timestamp(&self) -> u64 {
        if self.name == "basic.target" {
            return self.units.began();
        }
        0
    }

    #[zbus(property(emits_changed_signal = "const"))]
    async fn fragment_path(&self) -> String {
        guard::fragment(self.units.root(), &self.name)
    }

    #[zbus(property(emits_changed_signal = "false"))]
    async fn job(&self) -> (u32, OwnedObjectPath) {
        let job = self.units.get(&self.name).job;
        (job.unwrap_or_default(), job_path(job))
    }
}

struct ServiceFace {
    units: Units,
    name: String,
}

#[interface(name = "org.freedesktop.systemd1.Service")]
impl ServiceFace {
    #[zbus(property)]
    async fn result(&self) -> String {
        self.units.get(&self.name).result.to_owned()
    }

    #[zbus(property)]
    async fn exec_main_code(&self) -> i32 {
        self.units.get(&self.name).main_code
    }

    #[zbus(property)]
    async fn exec_main_status(&self) -> i32 {
        self.units.get(&self.name).main_status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_paths_are_escaped_like_those_of_systemd() {
        let path = unit_path("berth-pull-0123.service");
        assert_eq!(
            path.as_str(),
            "/org/freedesktop/systemd1/unit/berth_2dpull_2d0123_2eservice"
        );
        assert_eq!(
            unit_path("0.service").as_str(),
            "/org/freedesktop/systemd1/unit/_30_2eservice"
        );
    }

    #[test]
    fn only_services_can_be_started() {
        assert!(check_start("berth-status.service", "fail").is_ok());
        assert!(check_start("berth-status.timer", "fail").is_err());
        assert!(check_start("a b.service", "fail").is_err());
        assert!(check_start("a.service", "sometimes").is_err());
    }
}
