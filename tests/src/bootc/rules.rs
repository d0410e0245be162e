//! Decides which change a bootc command causes on a host.

use super::cli::{Switch, Verb};
use super::document::{Host, ImageReference};

/// Error of every command but `status` on a host that bootc did not install.
pub const NOT_BOOTED: &str = "Initializing storage: System not booted via bootc";

/// Change of a host by a command. `words` is the output of a command that succeeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// No change.
    Nothing {
        /// Output of the command.
        words: &'static str,
    },
    /// Fetches an image and stages it; the output is its [`announcement`].
    Stage {
        /// The image.
        target: ImageReference,
        /// True if the staged image is locked.
        lock: bool,
    },
    /// Removes the lock of the staged image.
    Unlock {
        /// Output of the command.
        words: &'static str,
    },
    /// Removes the staged image and changes the boot order.
    Reorder {
        /// True if the booted deployment goes first again; false if the rollback deployment does.
        back: bool,
        /// Output of the command.
        words: &'static str,
    },
}

/// Returns the change that a command causes on a host with this status.
pub fn decide(verb: &Verb, host: &Host) -> Result<Change, &'static str> {
    match verb {
        Verb::Status(_) => Ok(Change::Nothing { words: "" }),
        Verb::Switch(switch) => match &switch.target {
            Some(target) => Ok(switched(switch, target, host)),
            None => unlocked(host),
        },
        Verb::Upgrade(_) => unlocked(host),
        Verb::Rollback => match &host.status.rollback {
            None => Err("Rollback (ostree): No rollback available"),
            Some(rollback) if rollback.image.is_none() => {
                Err("Rollback (ostree): Rollback is not container image based")
            }
            Some(_) if host.status.rollback_queued => Ok(Change::Reorder {
                back: true,
                words: "notice: Reverting queued rollback state\nNext boot: current deployment",
            }),
            Some(_) => Ok(Change::Reorder {
                back: false,
                words: "Next boot: rollback deployment",
            }),
        },
    }
}

/// Returns the change by `--from-downloaded`, which `upgrade` and newer releases' `switch` have.
fn unlocked(host: &Host) -> Result<Change, &'static str> {
    match &host.status.staged {
        None => Err("No staged deployment found"),
        Some(staged) if staged.download_only => Ok(Change::Unlock {
            words: "Staged deployment will now be applied on reboot",
        }),
        Some(_) => Ok(Change::Nothing {
            words: "Staged deployment is already set to apply on reboot",
        }),
    }
}

fn switched(switch: &Switch, target: &str, host: &Host) -> Change {
    let target = ImageReference::registry(target, switch.enforce_container_sigpolicy);
    if host.spec.image.as_ref() == Some(&target) {
        return Change::Nothing {
            words: "Image specification is unchanged.",
        };
    }
    Change::Stage {
        target,
        lock: switch.download_only,
    }
}

/// Output of a command that has staged an image.
pub fn announcement(target: &ImageReference, lock: bool, version: Option<&str>, digest: &str) -> String {
    let title = if lock {
        "Staged but not queued for next boot"
    } else {
        "Queued for next boot"
    };
    let version = version.map_or_else(String::new, |version| format!("\n  Version: {version}"));
    format!("{title}: {}{version}\n  Digest: {digest}", target.skopeo())
}

/// Content of `/run/reboot-required` after an image was staged, locked or not.
pub fn reboot_required(digest: &str) -> String {
    format!("bootc: Reboot required for image: {digest}\n")
}
