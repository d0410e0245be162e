//! rpm-ostree's daemon on the system bus: the calls of `org.projectatomic.rpmostree1` that the agent needs.
//!
//! The daemon exits when it is idle, sometimes between a call and its reply, and its start can take longer than the bus
//! waits. So the agent starts it through systemd before each query, repeats a query without an answer, and caches no
//! answer. When a client disconnects, the daemon cancels the client's transactions that were not started. So the agent
//! has a separate connection to the daemon and keeps it open.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use berth_api::foreign::bounded;
use futures::future::BoxFuture;
use zbus::{OwnedObjectPath, Variant};

use super::deployments::Entry;
use crate::host::bus::{Bus, BusError, Changes, RPM_OSTREED, Target};
use crate::host::error::HostError;
use crate::host::failure::{self, Failure, Reason};
use crate::host::units::{self, StartError};

const SERVICE: &str = "org.projectatomic.rpmostree1";
const SYSROOT: Target<'static> = Target {
    service: SERVICE,
    path: "/org/projectatomic/rpmostree1/Sysroot",
    interface: "org.projectatomic.rpmostree1.Sysroot",
};
const OS_INTERFACE: &str = "org.projectatomic.rpmostree1.OS";

/// Timeout of a call, long enough for a newly started daemon to read all deployments.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of a query, including all attempts and the daemon's start.
const TIMEOUT: Duration = Duration::from_secs(60);
const START_TIMEOUT: Duration = Duration::from_secs(45);
const TRIES: u32 = 5;
/// Longest name that the daemon sends, such as a transaction's, in characters.
const MAX_NAME: usize = 64;
/// First delay before a query is repeated, doubled with each attempt.
const RETRY_MIN: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Active {
    pub(super) method: String,
    pub(super) address: String,
}

/// Connections to the daemon, and to systemd, which starts the daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    systemd: Arc<Bus>,
    own: Bus,
}

type Options<'a> = HashMap<&'a str, Variant<'a>>;

type Reply<'a, T> = BoxFuture<'a, Result<T, BusError>>;

impl Daemon {
    pub(super) fn new(systemd: Arc<Bus>) -> Self {
        let own = Bus::quiet(systemd.address(), CALL_TIMEOUT, Changes::new());
        Self { systemd, own }
    }

    pub(super) async fn exists(&self) -> Result<bool, HostError> {
        Ok(units::is_loaded(&self.systemd, RPM_OSTREED).await?)
    }

    /// Disconnects from the bus; rpm-ostreed then cancels a transaction that was created but not started.
    pub(super) async fn disconnect(&self) {
        self.own.drop_connection().await;
    }

    /// Returns the deployments in boot order.
    pub(super) async fn deployments(&self) -> Result<Vec<Entry>, HostError> {
        self.query("Deployments", || {
            Box::pin(async {
                self.reload().await?;
                self.own.property(SYSROOT, "Deployments").await
            })
        })
        .await
    }

    pub(super) async fn active(&self) -> Result<Option<Active>, HostError> {
        self.query("ActiveTransaction", || {
            Box::pin(async {
                let address: String = self.own.property(SYSROOT, "ActiveTransactionPath").await?;
                let (method, ..): (String, String, String) = self.own.property(SYSROOT, "ActiveTransaction").await?;
                let method = bounded(&method, MAX_NAME);
                Ok((!address.is_empty()).then_some(Active { method, address }))
            })
        })
        .await
    }

    /// Returns rpm-ostree's own update policy: `none`, `check`, `stage` or `apply`.
    pub(super) async fn policy(&self) -> Result<String, HostError> {
        let policy: String = self
            .query("AutomaticUpdatePolicy", || {
                Box::pin(self.own.property(SYSROOT, "AutomaticUpdatePolicy"))
            })
            .await?;
        Ok(bounded(&policy, MAX_NAME))
    }

    /// Creates a transaction that pulls an image and stages it locked, and keeps the layered packages. Returns the
    /// transaction's address. If the transaction already runs, returns the same address again.
    pub(super) async fn rebase(&self, refspec: &str, title: &str) -> Result<String, HostError> {
        self.query("Rebase", || {
            Box::pin(async {
                self.reload().await?;
                self.call_os("Rebase", &(staging(title), refspec, Vec::<&str>::new()))
                    .await
            })
        })
        .await
    }

    /// Creates a transaction that removes the staged deployment. Returns its address.
    pub(super) async fn remove_staged(&self) -> Result<String, HostError> {
        self.query("Cleanup", || {
            Box::pin(async { self.call_os("Cleanup", &vec!["pending-deploy"]).await })
        })
        .await
    }

    /// Creates a transaction that makes the rollback deployment boot next. Returns its address.
    pub(super) async fn rollback(&self) -> Result<String, HostError> {
        self.activate().await?;
        self.call_os("Rollback", &Options::new()).await.map_err(explain)
    }

    /// Creates a transaction that unlocks the staged deployment of this digest and reboots. Returns its address. The
    /// call is not repeated after a lost reply, because the host may be shutting down.
    pub(super) async fn finalize(&self, digest: &str) -> Result<String, HostError> {
        self.activate().await?;
        let options: Options<'_> = HashMap::from([("checksum", Variant::new(digest))]);
        self.call_os("FinalizeDeployment", &options).await.map_err(explain)
    }

    /// Starts the daemon through systemd. If the daemon does not start, returns a tool error: systemd still answers, so
    /// the host does not count as unreachable.
    async fn activate(&self) -> Result<(), HostError> {
        match units::activate(&self.systemd, RPM_OSTREED, START_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(StartError::Silent(error)) => Err(HostError::Bus(error)),
            Err(error @ StartError::NotStarted(_)) => {
                let why = error.to_string();
                Err(HostError::tool_failed(&why))
            }
        }
    }

    /// Makes the daemon read its state again. The daemon replies after it has read the deployments.
    async fn reload(&self) -> Result<(), BusError> {
        self.own.call_once(SYSROOT, "Reload", &()).await
    }

    async fn call_os<B>(&self, method: &str, body: &B) -> Result<String, BusError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let path: OwnedObjectPath = self.own.property(SYSROOT, "Booted").await?;
        let os = Target {
            service: SERVICE,
            path: path.as_str(),
            interface: OS_INTERFACE,
        };
        self.own.call_once(os, method, body).await
    }

    /// Starts the daemon if needed, and sends a query. Repeats both if the daemon exits before it answers.
    async fn query<'a, T>(
        &self,
        what: &str,
        question: impl Fn() -> Reply<'a, T> + Send + Sync,
    ) -> Result<T, HostError> {
        let tries = async {
            let mut pause = RETRY_MIN;
            for left in (0..TRIES).rev() {
                self.activate().await?;
                match question().await {
                    Err(error) if left > 0 && is_idle_exit(&error) => {
                        tracing::debug!(what, %error, "rpm-ostreed exited before it answered; repeating the query");
                        tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
                        pause = pause.saturating_mul(2);
                    }
                    answer => return answer.map_err(explain),
                }
            }
            Err(no_answer(what))
        };
        tokio::time::timeout(TIMEOUT, tries)
            .await
            .unwrap_or_else(|_| Err(no_answer(what)))
    }
}

/// Returns the options of a call that stages an image. Every option is set, because the daemon's methods have different
/// defaults.
fn staging(title: &str) -> Options<'_> {
    HashMap::from([
        ("lock-finalization", Variant::new(true)),
        ("allow-downgrade", Variant::new(true)),
        ("initiating-command-line", Variant::new(title)),
    ])
}

/// True if the daemon may have just exited because it was idle.
fn is_idle_exit(error: &BusError) -> bool {
    let gone = ["ServiceUnknown", "NameHasNoOwner", "Spawn.ChildExited", "UnknownObject"];
    matches!(error, BusError::Lost { .. }) || gone.iter().any(|name| error.is(&format!(".Error.{name}")))
}

fn no_answer(what: &str) -> HostError {
    let seconds = TIMEOUT.as_secs();
    HostError::Timeout(format!(
        "rpm-ostreed did not answer the query {what} within {seconds} s"
    ))
}

/// Converts the error of a call to the daemon, and keeps the daemon's message.
pub(super) fn explain(error: BusError) -> HostError {
    match error {
        BusError::Refused { name, message } => {
            let is_busy = name.ends_with(".UpdateInProgress")
                // GIO's error code for "busy", which has no D-Bus name of its own.
                || name.ends_with("g_2dio_2derror_2dquark.Code26")
                || message.contains("Transaction in progress");
            if is_busy {
                return HostError::Busy(failure::message(&message));
            }
            let reason = failure::recognise(&message).unwrap_or(Reason::HostToolFailed);
            HostError::Tool(Failure::new(reason, &message))
        }
        // Without the bus, the whole host counts as unreachable.
        error @ BusError::Unreachable(_) => HostError::Bus(error),
        // Not repeated, because the next reply would be malformed too.
        error @ BusError::Malformed { .. } => {
            let why = format!("rpm-ostreed: {error}");
            HostError::tool_failed(&why)
        }
        error @ BusError::Lost { .. } => HostError::Timeout(format!("rpm-ostreed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(name: &str, message: &str) -> BusError {
        BusError::Refused {
            name: name.to_owned(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn only_another_transaction_is_busy() {
        let gio = "org.gtk.GDBus.UnmappedGError.Quark._g_2dio_2derror_2dquark.Code";
        for (name, message, expected) in [
            (format!("{gio}26"), "Transaction in progress: upgrade", Reason::HostBusy),
            (format!("{gio}0"), "Transaction in progress: (null)", Reason::HostBusy),
            (
                "org.projectatomic.rpmostreed.Error.UpdateInProgress".to_owned(),
                "busy",
                Reason::HostBusy,
            ),
            (format!("{gio}0"), "No space left on device", Reason::DiskFull),
            (format!("{gio}1"), "something else", Reason::HostToolFailed),
        ] {
            let error = explain(refused(&name, message));
            assert_eq!(error.reason(), expected, "{name}");
            assert!(error.to_string().contains(message), "{error}");
        }
        let (method, why) = ("Get(Deployments)".to_owned(), "no array".to_owned());
        let nonsense = explain(BusError::Malformed { method, why });
        assert_eq!(nonsense.reason(), Reason::HostToolFailed);
    }

    #[test]
    fn all_options_of_staging_are_explicit() {
        let options = staging("berth: pull");
        assert_eq!(options.get("lock-finalization"), Some(&Variant::Bool(true)));
        assert_eq!(options.get("allow-downgrade"), Some(&Variant::Bool(true)));
        assert_eq!(
            options.get("initiating-command-line"),
            Some(&Variant::new("berth: pull"))
        );
        assert_eq!(options.len(), 3, "{options:?}");
    }

    #[test]
    fn only_an_idle_exit_is_asked_again() {
        let lost = BusError::Lost {
            method: "Reload".to_owned(),
            why: "NoReply".to_owned(),
        };
        assert!(is_idle_exit(&lost));
        assert!(is_idle_exit(&refused("org.freedesktop.DBus.Error.ServiceUnknown", "")));
        assert!(!is_idle_exit(&refused("org.freedesktop.DBus.Error.AccessDenied", "")));
        assert!(!is_idle_exit(&refused("org.freedesktop.systemd1.NoSuchUnit", "")));
    }
}
