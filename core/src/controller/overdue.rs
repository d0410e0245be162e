//! Holders of berths that have been silent for too long. Pure. Silence starts with the agent's last report or berth
//! write that this process has seen. This process's monotonic clock measures the silence; no wall clock is used.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::berth::{HoldPhase, Holding};
use berth_api::{NodeUid, keys};

use crate::Moment;
use crate::controller::proof::is_unproven;
use crate::controller::view::{BootcNodeView, LeaseView, NodeView};

/// How long a holder may go without a report.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// `rollout.rebootTimeout`
    pub reboot: Duration,
    /// Maximum time between two reports of a running agent.
    pub silence: Duration,
}

impl Timeouts {
    /// Returns how long a holder may be silent. A Ready holder without a commit may be silent for at least `silence`,
    /// because its agent may report nothing between two heartbeats.
    pub fn allowed(self, phase: &HoldPhase, ready: bool) -> Duration {
        let reboots = *phase == HoldPhase::Committed || !ready;
        if reboots {
            self.reboot
        } else {
            self.reboot.max(self.silence)
        }
    }

    /// True if `quiet`, the time since the holder was last heard, is too long.
    pub fn passed(self, phase: &HoldPhase, ready: bool, quiet: Duration) -> bool {
        quiet >= self.allowed(phase, ready)
    }
}

/// A node that holds a berth.
#[derive(Debug, Clone, Copy)]
pub struct Holder<'a> {
    /// Node of the holder.
    pub node: &'a NodeView,
    /// BootcNode of the holder, if there is one.
    pub host: Option<&'a BootcNodeView>,
    /// State of the held berth.
    pub holding: &'a Holding,
    /// Time when this process last saw the agent write its BootcNode's status or its berth. `None` if this process has
    /// seen no such write.
    pub heard: Option<Moment>,
    /// True if `heard` is recent enough to show that the agent runs.
    pub lively: bool,
    /// How long the holder may be silent.
    pub timeouts: Timeouts,
}

impl Holder<'_> {
    /// True if the holder has been silent for too long and its agent reports no problem.
    fn is_overdue(&self, now: Moment) -> bool {
        let quiet = self.heard.map(|heard| now.since(heard));
        let passed = quiet.is_some_and(|quiet| self.timeouts.passed(&self.holding.phase, self.node.ready, quiet));
        passed && !knows_better(self.node, self.host, self.holding, self.lively)
    }
}

/// True if a holder's agent runs again and reports a problem, or its BootcNode cannot be read. The controller then shows
/// this problem instead of `RebootTimedOut`.
pub fn knows_better(node: &NodeView, host: Option<&BootcNodeView>, holding: &Holding, lively: bool) -> bool {
    let report = host.and_then(BootcNodeView::report);
    let back = lively && (node.ready || report.is_some_and(|report| is_unproven(holding, report)));
    let says = match host.map(|host| &host.content) {
        Some(Ok(content)) => content.trouble_reason().is_some(),
        Some(Err(_)) => true,
        None => false,
    };
    back && says
}

/// Returns the message of the condition `RebootTimedOut` for a holder that has been silent for too long. The message
/// has a duration instead of a start time, because the reader's clock may differ.
pub fn message(node: &NodeView, lease: &LeaseView, phase: &HoldPhase, allowed: Duration) -> String {
    let what = match phase {
        HoldPhase::Committed => "has not come back from its reboot",
        HoldPhase::Taken | HoldPhase::Releasing(_) => "is silent during its turn",
    };
    format!(
        "node {} {what}: no report from its agent for {} s; the node keeps berth {} until it is back: repair the \
         node, delete its Node, or label the Node {}",
        node.name,
        allowed.as_secs(),
        lease.name(),
        keys::LABEL_EXCLUDE
    )
}

/// Holders that this process considers lost, because they have been silent for too long. Each has the time of its last
/// report.
///
/// A new leader has not listened for long enough to notice a silent holder. Instead, it relies on the condition
/// `RebootTimedOut`, which an earlier leader set on the BootcNode of each lost holder. Such a holder stays lost until
/// its agent reports again.
#[derive(Debug, Default)]
pub struct Overdue(BTreeMap<NodeUid, Option<Moment>>);

impl Overdue {
    /// Returns the UIDs of the holders that are lost.
    pub fn judge<'a>(&mut self, holders: impl Iterator<Item = Holder<'a>>, now: Moment) -> BTreeSet<NodeUid> {
        let (mut lost, mut known) = (BTreeSet::new(), BTreeMap::new());
        for holder in holders {
            let uid = &holder.node.uid;
            let said = holder.host.is_some_and(BootcNodeView::has_timed_out);
            let overdue = holder.is_overdue(now);
            let before = self.0.get(uid).copied().filter(|_| !overdue);
            let Some(then) = before.or((overdue || said).then_some(holder.heard)) else {
                continue;
            };
            let silent = holder.heard <= then;
            if silent {
                lost.insert(uid.clone());
            }
            // A node that reported again stays in `known` while its BootcNode has `RebootTimedOut`. Otherwise a
            // lagging watch, which still shows the condition, would make the node lost again.
            if silent || said {
                known.insert(uid.clone(), then);
            }
        }
        self.0 = known;
        lost
    }
}

#[cfg(test)]
mod tests {
    use berth_api::berth::Outcome;
    use berth_api::condition;

    use super::*;
    use crate::controller::plan::tests::committed;
    use crate::controller::view::BootcNodeContent;

    #[test]
    fn every_silent_holder_is_overdue_and_no_other() {
        let seconds = Duration::from_secs;
        let timeouts = Timeouts {
            reboot: seconds(90),
            silence: seconds(900),
        };
        let releasing = HoldPhase::Releasing(Outcome::Updated);
        for phase in [HoldPhase::Taken, HoldPhase::Committed, releasing.clone()] {
            assert!(timeouts.passed(&phase, false, seconds(90)), "{phase:?}");
            assert!(!timeouts.passed(&phase, false, seconds(89)), "{phase:?}");
            assert!(timeouts.passed(&phase, true, seconds(900)), "{phase:?}");
        }
        assert!(
            timeouts.passed(&HoldPhase::Committed, true, seconds(90)),
            "the reboot takes too long"
        );
        assert!(!timeouts.passed(&HoldPhase::Taken, true, seconds(899)), "a long drain");
        assert!(!timeouts.passed(&releasing, true, seconds(899)));
    }

    fn node() -> NodeView {
        let node = serde_json::from_value(serde_json::json!({"metadata": {"name": "n1", "uid": "u1"}})).unwrap();
        NodeView::of(&node)
    }

    fn host(said: bool) -> BootcNodeView {
        let object = serde_json::json!({"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": []}});
        let mut host = BootcNodeView::of(serde_json::from_value(object).unwrap());
        if let Ok(BootcNodeContent { told, .. }) = &mut host.content {
            let verdict = if said {
                condition::Verdict::yes(condition::CommonReason::RebootTimedOut, "")
            } else {
                condition::Verdict::no(condition::CommonReason::NoBerth, "")
            };
            condition::set(
                told,
                condition::node::REBOOT_TIMED_OUT,
                verdict,
                None,
                jiff::Timestamp::UNIX_EPOCH,
            );
        }
        host
    }

    #[test]
    fn a_lost_holder_stays_lost_until_heard_of() {
        let node = node();
        let timeouts = Timeouts {
            reboot: Duration::from_secs(90),
            silence: Duration::from_secs(900),
        };
        let berth = committed(0, "n1");
        let (mut first, mut second) = (Overdue::default(), Overdue::default());
        for (overdue, said, heard, now, is_lost) in [
            (1, false, 0, 89, false),
            (1, false, 0, 90, true),
            (1, true, 0, 91, true),
            // A new leader starts. The earlier leader considered the holder lost.
            (2, true, 100, 101, true),
            (2, true, 100, 102, true),
            // The agent has reported, but the watch still shows `RebootTimedOut`.
            (2, true, 103, 104, false),
            (2, true, 103, 105, false),
            (2, false, 103, 106, false),
            // The holder is lost again.
            (2, false, 103, 193, true),
            (2, false, 194, 195, false),
        ] {
            let overdue = if overdue == 1 { &mut first } else { &mut second };
            let host = host(said);
            let holder = Holder {
                node: &node,
                host: Some(&host),
                holding: berth.holding().unwrap(),
                heard: Some(Moment::after(Duration::from_secs(heard))),
                lively: false,
                timeouts,
            };
            let lost = overdue.judge([holder].into_iter(), Moment::after(Duration::from_secs(now)));
            assert_eq!(!lost.is_empty(), is_lost, "{now}");
        }
    }
}
