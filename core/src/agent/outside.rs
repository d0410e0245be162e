//! Boots that Berth did not intend. Either the target of a berth fell back: the host left it for another image. Or
//! another image booted while the node held no berth. Boot counting, greenboot, the firmware or a person may be the
//! cause.
//!
//! The agent stores such a boot on the host before it decides anything. If a target fell back or the host rolled back,
//! the image that the host left counts as failed on this node (I8). The node then takes no berth for it. The agent
//! never reboots the host in response: every reboot needs a berth.

use berth_api::berth::{HoldPhase, Holding};
use berth_api::condition::CommonReason;
use berth_api::digest::Digest;
use berth_api::names::BootId;
use berth_api::node::timeline::TurnOutcome;
use berth_api::seeded::Bug;

use crate::agent::facts::{AgentFacts, Deployments, FellBack, LastBooted, Os, OutsideBoot, Past};
use crate::finding::Finding;

impl Past {
    /// Records, once per boot, that the host fell back: it booted another image in place of a committed berth's target.
    /// The target then counts as failed. Nothing is recorded if the target has not run and may never have been
    /// finalized; the turn is then repeated. `finalization_failed`: the last shutdown could not finalize the staged
    /// image.
    pub fn falls_back(&mut self, holding: &Holding, boot_id: &BootId, os: &Os, finalization_failed: bool) {
        let target = &holding.target;
        let is_new_boot = holding.phase == HoldPhase::Committed && holding.boot_id != *boot_id;
        let Some(known) = os.deployments().filter(|_| is_new_boot) else {
            return;
        };
        if known.booted.digest.as_ref().is_none_or(|booted| booted == target) {
            return;
        }
        let is_undone = self.undone.as_ref().is_some_and(|undone| undone.digest == *target);
        let is_recorded = self.fell_back.as_ref().is_some_and(|fell| fell.boot_id == *boot_id);
        if is_undone || is_recorded || Bug::FellBackTriedAgain.is_awake() {
            return;
        }
        let ran = self.tried.as_ref() == Some(target);
        let is_finalized = !finalization_failed && self.is_newly_deployed(target, known);
        if ran || is_finalized {
            self.fell_back = Some(FellBack {
                digest: target.clone(),
                boot_id: boot_id.clone(),
                ran,
            });
            self.digest_failed(target);
        }
    }

    /// True if the deployments prove that the shutdown after the commit finalized the target. The target must be the
    /// rollback deployment now. In addition, the next boot must take it, or the host must have had no deployment of it
    /// at the commit.
    fn is_newly_deployed(&self, target: &Digest, known: &Deployments) -> bool {
        let is_new = known.rollback_queued || self.target_deployed == Some(false);
        is_new && digest_of_rollback(known) == Some(target)
    }

    /// Records which image a member booted without a berth. If the image has changed since the last read, records an
    /// outside boot. Three boots do not count: a boot of the desired image, a boot that the last turn licensed, and a
    /// boot that undoes an earlier outside boot.
    pub fn boots_without_berth(&mut self, known: &Deployments, desired: Option<&Digest>) {
        let Some(booted) = &known.booted.digest else { return };
        let last = self.last_booted.replace(LastBooted::of(booted, known));
        if desired == Some(booted) {
            self.outside_boot = None;
            return;
        }
        let Some(last) = last.filter(|last| last.digest != *booted) else {
            return;
        };
        let before = self.outside_boot.take();
        if before.is_some_and(|outside| outside.left == *booted) || self.was_licensed(booted) {
            return;
        }
        let is_swapped = last.previous.as_ref() == Some(booted) && digest_of_rollback(known) == Some(&last.digest);
        let outside = OutsideBoot {
            digest: booted.clone(),
            left: last.digest,
            // If the image that the host went back to has failed here, this was not a rollback to a better image.
            is_rollback: is_swapped && !self.failed_digests.contains(booted),
        };
        if outside.is_rollback && !Bug::RollbackForgotten.is_awake() {
            self.digest_failed(&outside.left);
        }
        self.outside_boot = Some(outside);
    }

    /// True if the last turn licensed a boot of this digest, and the agent itself did not end that turn. The turn is
    /// then still open, or another program closed its berth.
    fn was_licensed(&self, digest: &Digest) -> bool {
        let turn = self.turns.first().filter(|turn| turn.to == *digest);
        turn.is_some_and(|turn| matches!(turn.outcome, None | Some(TurnOutcome::TakenAway)))
    }

    /// Records which image a node booted while it holds a berth. No boot under a berth counts as an outside boot.
    pub fn boots_with_berth(&mut self, known: &Deployments) {
        let Some(booted) = &known.booted.digest else { return };
        if self.last_booted.as_ref().is_some_and(|last| last.digest != *booted) {
            self.outside_boot = None;
        }
        self.last_booted = Some(LastBooted::of(booted, known));
    }

    /// Forgets the booted image of a node that left its pool or is excluded. An admin may change the image of such a
    /// node, and Berth does not report the change.
    pub fn forget_boot(&mut self) {
        (self.last_booted, self.outside_boot) = (None, None);
    }
}

impl LastBooted {
    fn of(booted: &Digest, known: &Deployments) -> Self {
        Self {
            digest: booted.clone(),
            previous: digest_of_rollback(known).cloned(),
        }
    }
}

fn digest_of_rollback(known: &Deployments) -> Option<&Digest> {
    known.rollback.as_ref()?.digest.as_ref()
}

/// Returns the message for a turn if the host fell back from its target in the current boot. `None` if the host did not
/// fall back, or if an admin has requested a retry since.
pub(crate) fn fell_back(facts: &AgentFacts, target: &Digest) -> Option<String> {
    let fell = facts.past.fell_back.as_ref()?;
    let is_this = fell.digest == *target && fell.boot_id == facts.host.boot_id;
    if !is_this || !facts.past.failed_digests.contains(target) {
        return None;
    }
    let what = if fell.ran {
        "ran but was not proven, and the host booted the previous image again"
    } else {
        "was finalized, but the host booted the previous image again"
    };
    Some(format!(
        "{target} {what}; Berth did not request the boot of the previous image"
    ))
}

/// True if the host fell back from this image, or rolled the image back without a berth.
pub(crate) fn was_left(past: &Past, digest: &Digest) -> bool {
    let fell_back = past.fell_back.as_ref().is_some_and(|fell| fell.digest == *digest);
    let outside = past.outside_boot.as_ref().filter(|outside| outside.is_rollback);
    fell_back || outside.is_some_and(|outside| outside.left == *digest)
}

/// True if the next boot takes an image that the host has already fallen back from or rolled back: see [`was_left`].
pub(crate) fn is_left_first(facts: &AgentFacts) -> bool {
    let queued = facts.host.os.queued_digest();
    queued.is_some_and(|digest| was_left(&facts.past, digest))
}

/// Returns the finding that the host rolled back without a berth; `None` if it did not.
pub(crate) fn rolled_back(facts: &AgentFacts) -> Option<Finding> {
    let outside = facts.past.outside_boot.as_ref().filter(|outside| outside.is_rollback)?;
    // An admin has asked for a retry since, so the image no longer counts as failed.
    if !facts.past.failed_digests.contains(&outside.left) {
        return None;
    }
    let message = format!(
        "the host rolled back to {} without a berth, so {} counts as failed on this node and is not tried again{}",
        outside.digest,
        outside.left,
        next_boot(facts)
    );
    Some(facts.degraded(CommonReason::RolledBackExternally, message))
}

/// Returns the finding that the host booted another image without a berth, other than by a rollback; `None` if it did
/// not.
pub(crate) fn unexpected(facts: &AgentFacts) -> Option<Finding> {
    let outside = facts
        .past
        .outside_boot
        .as_ref()
        .filter(|outside| !outside.is_rollback)?;
    let message = format!(
        "the host booted {} without a berth; it ran {} before",
        outside.digest, outside.left
    );
    Some(facts.degraded(CommonReason::BootedUnexpectedImage, message))
}

/// Returns a clause with the command that keeps the current image. Returns an empty text unless the next boot takes an
/// image that the host fell back from or rolled back.
pub(crate) fn next_boot(facts: &AgentFacts) -> String {
    let known = facts.host.os.deployments().filter(|_| is_left_first(facts));
    known.map_or_else(String::new, |known| {
        let tool = known.backend.name.tool();
        format!("; the next boot would take the failed image again. To keep the current image, run `{tool} rollback` on the host")
    })
}

#[cfg(test)]
mod tests;
