//! logind: lists shutdown inhibitors, reports a shutdown in progress, and reboots.
//!
//! The agent never uses systemd's own `Reboot`, which does not stop services first. The staged deployment would then
//! be lost, because it is finalized by a service when that service stops.

use berth_api::foreign::bounded;

use super::bus::{Bus, BusError, LOGIND};
use super::error::HostError;

/// An inhibitor that blocks a shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inhibitor {
    /// Name of the program, as given by the program itself.
    pub who: String,
    /// Reason, as given by the program itself.
    pub why: String,
    /// Process ID on the host.
    pub pid: u32,
}

impl std::fmt::Display for Inhibitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (process {}): {}", self.who, self.pid, self.why)
    }
}

/// An inhibitor in logind's list: what, who, why, mode, user ID, process ID.
type Listed = (String, String, String, String, u32, u32);

pub(super) async fn inhibitors(bus: &Bus) -> Result<Vec<Inhibitor>, BusError> {
    let listed: Vec<Listed> = bus.call(LOGIND, "ListInhibitors", &()).await?;
    Ok(blocking(listed))
}

/// Longest text of an inhibitor, in characters. Any user of the host can write these texts.
const MAX_TEXT: usize = 200;

/// Keeps only inhibitors that make logind refuse a shutdown. A delaying inhibitor only makes logind wait.
fn blocking(listed: Vec<Listed>) -> Vec<Inhibitor> {
    let blocking = listed.into_iter().filter(is_blocking);
    blocking
        .map(|(_, who, why, _, _, pid)| Inhibitor {
            who: bounded(&who, MAX_TEXT),
            why: bounded(&why, MAX_TEXT),
            pid,
        })
        .collect()
}

fn is_blocking((what, _, _, mode, ..): &Listed) -> bool {
    what.split(':').any(|w| w == "shutdown") && (mode == "block" || mode == "block-weak")
}

pub(super) async fn shutting_down(bus: &Bus) -> Result<bool, BusError> {
    match bus.property::<bool>(LOGIND, "PreparingForShutdown").await {
        // During a shutdown, the bus does not start logind.
        Err(error) if error.is(".ShuttingDown") => Ok(true),
        answer => answer,
    }
}

pub(super) async fn shutdown_scheduled(bus: &Bus) -> Result<bool, BusError> {
    match bus.property::<zbus::OwnedVariant>(LOGIND, "ScheduledShutdown").await {
        Ok(value) => {
            Ok(<(String, u64)>::try_from(zbus::Variant::from(value)).is_ok_and(|(kind, _)| is_real_shutdown(&kind)))
        }
        // Older releases of logind lack this property.
        Err(BusError::Refused { .. } | BusError::Malformed { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_real_shutdown(kind: &str) -> bool {
    !kind.is_empty() && !kind.starts_with("dry-")
}

/// Flag of `RebootWithFlags`: inhibitors also block the reboot request of a root caller, such as the agent. This
/// matters for an inhibitor that appears after the agent's own check.
const CHECK_INHIBITORS: u64 = 1;

/// Flag of `RebootWithFlags`: restart only the userspace.
const SOFT: u64 = 4;

pub(super) async fn reboot(bus: &Bus) -> Result<(), HostError> {
    let asked: Result<(), BusError> = bus.call_once(LOGIND, "RebootWithFlags", &CHECK_INHIBITORS).await;
    accepted(match asked {
        // systemd before 247 lacks this method or the flag.
        Err(error) if error.is(".UnknownMethod") || error.is(".InvalidArgs") => {
            bus.call_once(LOGIND, "Reboot", &false).await
        }
        asked => asked,
    })
}

pub(super) async fn soft_reboot(bus: &Bus) -> Result<(), HostError> {
    let flags = CHECK_INHIBITORS | SOFT;
    accepted(bus.call_once(LOGIND, "RebootWithFlags", &flags).await)
}

fn accepted(asked: Result<(), BusError>) -> Result<(), HostError> {
    match asked {
        // The shutdown also stops the bus, sometimes before the reply arrives.
        Ok(()) | Err(BusError::Lost { .. }) => Ok(()),
        Err(error) if error.is(".OperationInProgress") => Ok(()),
        Err(error @ BusError::Refused { .. }) => Err(HostError::RebootRefused(error.to_string())),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_a_shutdown_count() {
        fn listed(what: &str, mode: &str) -> (String, String, String, String, u32, u32) {
            (what.to_owned(), "w".to_owned(), "y".to_owned(), mode.to_owned(), 0, 7)
        }
        for (what, mode, blocks) in [
            ("shutdown", "block", true),
            ("sleep:shutdown:idle", "block-weak", true),
            ("shutdown", "delay", false),
            ("sleep", "block", false),
            ("handle-power-key", "block", false),
        ] {
            assert_eq!(
                blocking(vec![listed(what, mode)]).len(),
                usize::from(blocks),
                "{what} {mode}"
            );
        }
    }

    #[test]
    fn the_texts_of_an_inhibitor_are_one_line() {
        let (who, why) = ("a\n\u{1b}[2Jb\u{202e}".to_owned(), "x".repeat(1000));
        let found = blocking(vec![("shutdown".to_owned(), who, why, "block".to_owned(), 0, 7)]);
        assert_eq!(found[0].who, "a [2Jb");
        assert_eq!(found[0].why.len(), MAX_TEXT);
    }

    #[test]
    fn a_scheduled_dry_run_does_not_count() {
        for (kind, real) in [("", false), ("dry-reboot", false), ("reboot", true), ("poweroff", true)] {
            assert_eq!(is_real_shutdown(kind), real, "{kind}");
        }
    }
}
