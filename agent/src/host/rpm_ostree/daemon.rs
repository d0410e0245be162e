//! rpm-ostree's daemon on the system bus: the few calls of `org.projectatomic.rpmostree1` that the agent makes.
//!
//! The daemon ends by itself when it is idle, at times between a call and its reply, and takes longer to start than a bus waits.
//! So it is started by systemd before each question, a question without an answer is asked again a few times, and nothing that
//! it said is kept. It cancels a transaction that nobody has started when the caller leaves the bus: the connection is the
//! agent's own for this, and stays open.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use zbus::{OwnedObjectPath, Variant};

use super::deployments::Entry;
use crate::host::HostError;
use crate::host::bus::{Bus, BusError, Changes, RPM_OSTREED, Target};
use crate::host::failure::{self, Failure, Reason};
use crate::host::units::{self, StartError};

const SERVICE: &str = "org.projectatomic.rpmostree1";
const SYSROOT: Target<'static> = Target {
    service: SERVICE,
    path: "/org/projectatomic/rpmostree1/Sysroot",
    interface: "org.projectatomic.rpmostree1.Sysroot",
};
const OS_INTERFACE: &str = "org.projectatomic.rpmostree1.OS";

/// Every call is answered within this time, or counts as lost. The daemon reads all deployments first.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Every question has an answer within this time, all tries and the daemon's start included.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time within which the daemon is started.
const START_DEADLINE: Duration = Duration::from_secs(45);
/// Tries of one question.
const TRIES: u32 = 5;
/// Pause after the first try. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The transaction that runs now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Active {
    /// Method of the daemon by which it began.
    pub(super) method: String,
    /// Address of its socket.
    pub(super) address: String,
}

/// The daemon of one host.
#[derive(Debug)]
pub(super) struct Daemon {
    systemd: Arc<Bus>,
    own: Bus,
}

/// Options of a call, by name.
type Options<'a> = HashMap<&'a str, Variant<'a>>;

/// Reply to one try of a question.
type Reply<'a, T> = BoxFuture<'a, Result<T, BusError>>;

impl Daemon {
    pub(super) fn new(systemd: Arc<Bus>) -> Self {
        let own = Bus::quiet(systemd.address(), CALL_DEADLINE, Changes::new());
        Self { systemd, own }
    }

    /// Says whether the host has it.
    pub(super) async fn exists(&self) -> Result<bool, HostError> {
        Ok(units::is_loaded(&self.systemd, RPM_OSTREED).await?)
    }

    /// Leaves the bus: what was begun and not started is then canceled.
    pub(super) async fn hang_up(&self) {
        self.own.drop_connection().await;
    }

    /// The deployments as they are now, in boot order.
    pub(super) async fn deployments(&self) -> Result<Vec<Entry>, HostError> {
        let question = || -> Reply<'_, Vec<Entry>> {
            Box::pin(async {
                self.reload().await?;
                self.own.property(SYSROOT, "Deployments").await
            })
        };
        self.ask("Deployments", question).await
    }

    /// The transaction that runs now, if one does.
    pub(super) async fn active(&self) -> Result<Option<Active>, HostError> {
        let question = || -> Reply<'_, Option<Active>> {
            Box::pin(async {
                let address: String = self.own.property(SYSROOT, "ActiveTransactionPath").await?;
                let (method, ..): (String, String, String) = self.own.property(SYSROOT, "ActiveTransaction").await?;
                Ok((!address.is_empty()).then_some(Active { method, address }))
            })
        };
        self.ask("ActiveTransaction", question).await
    }

    /// Updates that the daemon does by itself: `none`, `check`, `stage`, `apply`.
    pub(super) async fn policy(&self) -> Result<String, HostError> {
        let question = || -> Reply<'_, String> { Box::pin(self.own.property(SYSROOT, "AutomaticUpdatePolicy")) };
        self.ask("AutomaticUpdatePolicy", question).await
    }

    /// Begins to pull and stage an image, locked from the first instant, with the packages that are layered now. Answers the
    /// address of the transaction. The same call beside one that runs joins that.
    pub(super) async fn rebase(&self, refspec: &str, title: &str) -> Result<String, HostError> {
        let question = || -> Reply<'_, String> {
            Box::pin(async {
                self.reload().await?;
                self.change("Rebase", &(staging(title), refspec, Vec::<&str>::new()))
                    .await
            })
        };
        self.ask("Rebase", question).await
    }

    /// Begins to remove what is staged.
    pub(super) async fn remove_staged(&self) -> Result<String, HostError> {
        let question =
            || -> Reply<'_, String> { Box::pin(async { self.change("Cleanup", &vec!["pending-deploy"]).await }) };
        self.ask("Cleanup", question).await
    }

    /// Begins to unlock what is staged, which must be of this digest, and to reboot. Asked once: its answer may be lost in the
    /// shutdown.
    pub(super) async fn finalize(&self, digest: &str) -> Result<String, HostError> {
        self.activate().await?;
        let options: Options<'_> = HashMap::from([("checksum", Variant::new(digest))]);
        self.change("FinalizeDeployment", &options).await.map_err(explain)
    }

    /// Has systemd start it. That it cannot be started is its own trouble, and no silence of the whole host.
    async fn activate(&self) -> Result<(), HostError> {
        match units::activate(&self.systemd, RPM_OSTREED, START_DEADLINE).await {
            Ok(()) => Ok(()),
            Err(StartError::Silent(error)) => Err(HostError::Bus(error)),
            Err(error @ StartError::NotStarted(_)) => {
                let why = error.to_string();
                Err(HostError::Tool(Failure::new(Reason::HostToolFailed, &why)))
            }
        }
    }

    /// Reads everything anew. Also how the daemon is waited for until it knows its deployments.
    async fn reload(&self) -> Result<(), BusError> {
        self.own.call_once(SYSROOT, "Reload", &()).await
    }

    /// Calls a method of the operating system that runs.
    async fn change<B>(&self, method: &str, body: &B) -> Result<String, BusError>
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

    /// Asks a question that may be repeated, with the daemon started before.
    async fn ask<'a, T>(&self, what: &str, question: impl Fn() -> Reply<'a, T> + Send + Sync) -> Result<T, HostError> {
        let late = || {
            HostError::Timeout(format!(
                "rpm-ostreed did not answer {what} within {} s",
                DEADLINE.as_secs()
            ))
        };
        let tries = async {
            let mut pause = FIRST_PAUSE;
            for left in (0..TRIES).rev() {
                self.activate().await?;
                match question().await {
                    Err(error) if left > 0 && is_idle_exit(&error) => {
                        tracing::debug!(what, %error, "asking rpm-ostreed again");
                        tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())).await;
                        pause = pause.saturating_mul(2);
                    }
                    answer => return answer.map_err(explain),
                }
            }
            Err(late())
        };
        tokio::time::timeout(DEADLINE, tries)
            .await
            .unwrap_or_else(|_| Err(late()))
    }
}

/// Options of a call that stages. Nothing is left to what the daemon takes for granted: that differs between its methods.
fn staging(title: &str) -> Options<'_> {
    HashMap::from([
        ("lock-finalization", Variant::new(true)),
        ("allow-downgrade", Variant::new(true)),
        ("initiating-command-line", Variant::new(title)),
    ])
}

/// Says whether the daemon may just have ended because it was idle.
fn is_idle_exit(error: &BusError) -> bool {
    let gone = ["ServiceUnknown", "NameHasNoOwner", "Spawn.ChildExited", "UnknownObject"];
    matches!(error, BusError::Lost { .. }) || gone.iter().any(|name| error.is(&format!(".Error.{name}")))
}

/// The error of a call, in the daemon's own words.
pub(super) fn explain(error: BusError) -> HostError {
    match error {
        BusError::Refused { name, message } => {
            let is_busy = name.ends_with(".UpdateInProgress")
                // The number of GIO's error for "busy", which the wire does not name.
                || name.ends_with("g_2dio_2derror_2dquark.Code26")
                || message.contains("Transaction in progress");
            match is_busy {
                true => HostError::Busy(failure::message(&message)),
                false => {
                    let reason = failure::recognise(&message).unwrap_or(Reason::HostToolFailed);
                    HostError::Tool(Failure::new(reason, &message))
                }
            }
        }
        // The bus itself, and with it all of the host.
        error @ BusError::Unreachable(_) => HostError::Bus(error),
        // Asking again brings the same.
        error @ BusError::Malformed { .. } => {
            let why = format!("rpm-ostreed: {error}");
            HostError::Tool(Failure::new(Reason::HostToolFailed, &why))
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
    fn a_transaction_of_somebody_else_is_waited_for_and_other_errors_keep_their_words() {
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
    fn what_is_staged_is_locked_and_may_be_older_whatever_the_daemon_takes_for_granted() {
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
