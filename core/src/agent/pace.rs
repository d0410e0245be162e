//! Decides whether the agent writes a new status at once, or only after the new state has lasted for a second. Pure.

use std::time::Duration;

use berth_api::condition::{self, node as types};
use berth_api::node::BootcNodeStatus;

use crate::agent::step::{Step, WaitReason};

/// How long a state that may end soon must last before the agent writes a status that shows it. If the state ends
/// earlier, the next status still has the times when it began and ended.
pub const SETTLE: Duration = Duration::from_secs(1);

/// True if the new state may end within a second. Examples are a pull of layers that the host already has, and a Node
/// that becomes Ready soon after a boot. `status` shows the new state. `known` is the status that was written last.
pub fn may_pass(next: &Step, status: &BootcNodeStatus, known: &BootcNodeStatus) -> bool {
    let passes = matches!(
        next,
        Step::Wait(WaitReason::Pulling | WaitReason::NotReady | WaitReason::Unhealthy, _)
    );
    let is_first = known.conditions.is_empty();
    let is_new = reason_of_updated(status) != reason_of_updated(known);
    let is_trouble = is_degraded(status) || is_degraded(known) || status.failure != known.failure;
    passes && is_new && !is_first && !is_trouble
}

fn is_degraded(status: &BootcNodeStatus) -> bool {
    condition::is_true(&status.conditions, types::NODE_DEGRADED)
}

/// Returns the reason of the condition `Updated`, which shows what the node is doing.
fn reason_of_updated(status: &BootcNodeStatus) -> Option<&str> {
    condition::find(&status.conditions, types::UPDATED).map(|condition| condition.reason.as_str())
}

#[cfg(test)]
mod tests {
    use berth_api::condition::{CommonReason, Verdict};
    use jiff::Timestamp;

    use super::*;

    fn status(updated: CommonReason, degraded: bool) -> BootcNodeStatus {
        let mut status = BootcNodeStatus::default();
        let verdict = Verdict::no(updated, "");
        condition::set(
            &mut status.conditions,
            types::UPDATED,
            verdict,
            None,
            Timestamp::UNIX_EPOCH,
        );
        let verdict = if degraded {
            Verdict::yes(CommonReason::Failed, "why")
        } else {
            Verdict::no(CommonReason::AsExpected, "")
        };
        let type_ = types::NODE_DEGRADED;
        condition::set(&mut status.conditions, type_, verdict, None, Timestamp::UNIX_EPOCH);
        status
    }

    fn wait(why: WaitReason) -> Step {
        Step::Wait(why, None)
    }

    #[test]
    fn only_a_new_short_lived_state_may_pass() {
        let (pulls, proves) = (wait(WaitReason::Pulling), wait(WaitReason::NotReady));
        let updated = status(CommonReason::Waiting, false);
        let staging = status(CommonReason::Staging, false);
        let proving = status(CommonReason::Proving, false);
        let rebooting = status(CommonReason::Rebooting, false);
        for (next, now, known, expected) in [
            (&pulls, &staging, &updated, true),
            (&proves, &proving, &rebooting, true),
            (&pulls, &staging, &staging, false),
            (&pulls, &staging, &BootcNodeStatus::default(), false),
            (&pulls, &status(CommonReason::Staging, true), &updated, false),
            (&pulls, &staging, &status(CommonReason::Waiting, true), false),
            (&wait(WaitReason::NoBerth), &updated, &staging, false),
            (&wait(WaitReason::Draining), &rebooting, &staging, false),
            (&Step::Reboot, &rebooting, &staging, false),
            (&wait(WaitReason::Updated), &updated, &rebooting, false),
        ] {
            assert_eq!(may_pass(next, now, known), expected, "{next:?} {now:?} after {known:?}");
        }
    }
}
