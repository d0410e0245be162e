//! The condition `Waiting` of a BootcNode: why a node waits, when that is about this node alone. Pure.
//!
//! It is for people, and no decision reads it. A reason that concerns the whole pool (a pause, a window, a halt) stands
//! on the pool; it changes nothing here, so that a pause of five thousand nodes writes to none of them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::condition::{self, Verdict, Why, Word, one_line};
use berth_api::membership::Membership;
use berth_api::pool::{Target, WaveState};
use berth_api::{NodeName, Platform, PoolName};

use crate::Moment;
use crate::controller::facts::Pool;
use crate::controller::plan::{BlockReason, Plan};
use crate::controller::quorum::Cause;
use crate::controller::snapshot::Snapshot;
use crate::controller::view::{BootcNodeView, NodeView};

/// For how long a node must have had something else to say: what changes back at once is never written.
const SETTLE: Duration = Duration::from_secs(1);
/// So many are written at a time,
const BATCH: usize = 10;
/// and no more before this has passed: fifty a second.
const INTERVAL: Duration = Duration::from_millis(200);

/// The answer to why one node waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting<'a> {
    /// Not known, or not about this node: the condition stays as it is.
    Unjudged,
    /// Nothing about this node keeps it waiting.
    No,
    /// This keeps it waiting: reason and message.
    Yes(Word, Cow<'a, str>),
}

/// What the members of one pool are told, put into words once for all of them.
#[derive(Debug)]
struct Words<'a> {
    plan: &'a Plan,
    target: Option<&'a Target>,
    proven: String,
    soaked: String,
}

impl<'a> Words<'a> {
    fn of(plan: &'a Plan, target: Option<&'a Target>) -> Self {
        let mut waves = plan.waves.iter();
        let active = waves.find(|w| matches!(w.state, WaveState::Active | WaveState::Soaking));
        let name = active.map_or("an earlier one", |w| w.name.as_str());
        Self {
            plan,
            target,
            proven: format!("waits until wave {name} is proven"),
            soaked: format!("waits until wave {name} has soaked"),
        }
    }

    /// `None`: the plan offers it a berth, or does not know it.
    fn waiting(&self, wait: Option<BlockReason>, platform: &Platform) -> Waiting<'_> {
        let own = |reason: Word, wait: BlockReason| Waiting::Yes(reason, wait.words().into());
        let Some(wait) = wait else { return Waiting::No };
        match wait {
            BlockReason::Wave => Waiting::Yes(Why::WaveWaiting.into(), self.proven.as_str().into()),
            BlockReason::Soaking => Waiting::Yes(Why::WaveSoaking.into(), self.soaked.as_str().into()),
            BlockReason::FailedBefore => own(Why::FailedBefore.into(), wait),
            BlockReason::ControlPlane(Cause::Unfenced) => Waiting::Unjudged,
            BlockReason::ControlPlane(cause) => own(cause.into(), wait),
            BlockReason::NoClock => own(Why::ClockNotSynchronized.into(), wait),
            BlockReason::TooLate => own(Why::WindowTooShort.into(), wait),
            BlockReason::NoImage => match self.target {
                Some(target) => Waiting::Yes(Why::NoSuchPlatform.into(), no_such_platform(target, platform).into()),
                None => Waiting::Unjudged,
            },
            // A matter of the whole pool, or of a leader that is about to begin.
            BlockReason::Gate
            | BlockReason::Order
            | BlockReason::Halted
            | BlockReason::Unresolved
            | BlockReason::Outdated
            | BlockReason::Fencing => Waiting::Unjudged,
            // Its turn will come, or its agent says itself what is missing.
            BlockReason::UpToDate
            | BlockReason::NotPublished
            | BlockReason::OtherNode
            | BlockReason::NotObserved
            | BlockReason::NotStaged
            | BlockReason::NotPrepared
            | BlockReason::Leaving
            | BlockReason::Silent
            | BlockReason::HasBerth
            | BlockReason::Capacity
            | BlockReason::FleetCapacity
            | BlockReason::NoBerth => Waiting::No,
        }
    }
}

fn no_such_platform(target: &Target, platform: &Platform) -> String {
    let there: Vec<_> = target.platforms.iter().map(ToString::to_string).collect();
    format!(
        "{} has no image for {platform}; it has: {}",
        target.image,
        there.join(", ")
    )
}

/// Every BootcNode whose condition `Waiting` should say something else than it does, with what it should say.
///
/// A pool without a plan says nothing about its members: a leader that has not planned yet changes nothing.
pub fn wanted(
    snapshot: &Snapshot,
    pools: &[Pool],
    membership: &Membership,
    plans: &BTreeMap<PoolName, Plan>,
) -> BTreeMap<NodeName, Verdict> {
    let words: BTreeMap<&PoolName, Words<'_>> = pools
        .iter()
        .filter_map(|pool| Some((&pool.name, Words::of(plans.get(&pool.name)?, pool.target()))))
        .collect();
    let waiting = |node: &NodeView| match (membership.conflicts.get(&node.name), membership.pool_of(&node.name)) {
        (Some(conflict), _) => Waiting::Yes(Why::NodeConflict.into(), conflict.message().into()),
        (None, None) => Waiting::No,
        (None, Some(pool)) => words.get(pool).map_or(Waiting::Unjudged, |words| {
            words.waiting(words.plan.waiting.get(&node.name).copied(), &node.platform)
        }),
    };
    let verdict = |(name, host): (&String, &crate::controller::snapshot::Entry<BootcNodeView>)| {
        let node = snapshot.nodes.get(name)?.view.as_ref();
        let content = host.view.content.as_ref().ok()?;
        let told = condition::find_true(&content.told, condition::node::WAITING);
        let verdict = match (waiting(node), told) {
            (Waiting::Unjudged, _) | (Waiting::No, None) => return None,
            (Waiting::No, Some(_)) => Verdict::no(Why::NotWaiting, ""),
            (Waiting::Yes(reason, message), Some(told))
                if told.reason == reason && (told.message == *message || told.message == one_line(&message)) =>
            {
                return None;
            }
            (Waiting::Yes(reason, message), _) => Verdict::yes(reason, message),
        };
        Some((node.name.clone(), verdict))
    };
    snapshot.hosts.iter().filter_map(verdict).collect()
}

/// The nodes that are to be told something, in the order in which that came up, and at a bounded rate.
#[derive(Debug, Default)]
pub struct Desk {
    pending: BTreeMap<NodeName, Pending>,
    /// Nobody is told anything before that.
    next: Option<Moment>,
}

#[derive(Debug)]
struct Pending {
    verdict: Verdict,
    /// Since when it should say so, or when it was last tried.
    since: Moment,
}

impl Desk {
    /// Takes in what should be told, and picks those whose turn it is. Whoever is picked goes behind all others until the
    /// watch shows what was written.
    pub fn pick(&mut self, wanted: BTreeMap<NodeName, Verdict>, now: Moment) -> Vec<(NodeName, Verdict)> {
        let mut before = std::mem::take(&mut self.pending);
        let pending = |(name, verdict): (NodeName, Verdict)| {
            let same = |p: &Pending| p.verdict.status == verdict.status && p.verdict.reason == verdict.reason;
            let since = before.remove(&name).filter(same).map_or(now, |p| p.since);
            (name, Pending { verdict, since })
        };
        self.pending = wanted.into_iter().map(pending).collect();
        if self.next.is_some_and(|next| now < next) {
            return vec![];
        }
        let ripe = |p: &Pending| now.since(p.since) >= SETTLE;
        let mut picked: Vec<(Moment, &NodeName)> = self
            .pending
            .iter()
            .filter(|(_, p)| ripe(p))
            .map(|(name, p)| (p.since, name))
            .collect();
        picked.sort();
        let picked: Vec<NodeName> = picked.into_iter().take(BATCH).map(|(_, name)| name.clone()).collect();
        if !picked.is_empty() {
            self.next = Some(now + INTERVAL);
        }
        let mut take = |name: NodeName| {
            let pending = self.pending.get_mut(&name)?;
            pending.since = now;
            let verdict = pending.verdict.clone();
            Some((name, verdict))
        };
        picked.into_iter().filter_map(&mut take).collect()
    }

    /// When somebody's turn comes next.
    pub fn due(&self) -> Option<Moment> {
        let first = self.pending.values().map(|p| p.since + SETTLE).min()?;
        Some(self.next.map_or(first, |next| first.max(next)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::membership::Conflict;
    use berth_api::pool::{BootcNodePool, BootcNodePoolStatus, PlatformDigest, WaveStatus};
    use serde_json::json;

    use super::*;
    use crate::controller::snapshot::Entry;

    fn target() -> Target {
        let digest: berth_api::Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        Target {
            image: "r/os:1".into(),
            digest: digest.clone(),
            version: None,
            metadata: None,
            platforms: vec![PlatformDigest {
                architecture: "amd64".into(),
                variant: None,
                digest,
            }],
            publish_time: None,
        }
    }

    fn arm64() -> Platform {
        Platform::new("arm64", &BTreeMap::new())
    }

    fn wave(name: &str, state: WaveState) -> WaveStatus {
        WaveStatus {
            name: name.into(),
            total: 1,
            updated: 0,
            state,
            soaked_seconds: 0,
        }
    }

    /// Reason and message; no reason for a node that does not wait, nothing where nothing is to be changed.
    type Said = Option<(&'static str, &'static str)>;

    #[test]
    fn only_what_is_about_the_node_itself_is_said_on_it() {
        let plan = Plan {
            waves: vec![
                wave("a", WaveState::Done),
                wave("b", WaveState::Soaking),
                wave("c", WaveState::Waiting),
            ],
            ..Plan::default()
        };
        let target = target();
        let words = Words::of(&plan, Some(&target));
        let table: [(&[BlockReason], Said); 9] = [
            (
                &[BlockReason::Wave],
                Some(("WaveWaiting", "waits until wave b is proven")),
            ),
            (
                &[BlockReason::Soaking],
                Some(("WaveSoaking", "waits until wave b has soaked")),
            ),
            (
                &[BlockReason::FailedBefore],
                Some(("FailedBefore", "failed with this image before")),
            ),
            (
                &[BlockReason::ControlPlane(Cause::NoOtherServer)],
                Some(("NoOtherAPIServer", "waits until another API server answers /readyz")),
            ),
            (
                &[BlockReason::NoClock],
                Some(("ClockNotSynchronized", "waits because its clock is not synchronised")),
            ),
            (
                &[BlockReason::TooLate],
                Some((
                    "WindowTooShort",
                    "waits for the next window: its drain and reboot would outlast this one",
                )),
            ),
            (
                &[BlockReason::NoImage],
                Some(("NoSuchPlatform", "r/os:1 has no image for arm64; it has: amd64")),
            ),
            (
                &[
                    BlockReason::Gate,
                    BlockReason::Halted,
                    BlockReason::Unresolved,
                    BlockReason::Fencing,
                    BlockReason::ControlPlane(Cause::Unfenced),
                ],
                None,
            ),
            (
                &[
                    BlockReason::UpToDate,
                    BlockReason::NotPublished,
                    BlockReason::OtherNode,
                    BlockReason::NotObserved,
                    BlockReason::NotStaged,
                    BlockReason::NotPrepared,
                    BlockReason::Silent,
                    BlockReason::HasBerth,
                    BlockReason::Capacity,
                    BlockReason::NoBerth,
                ],
                Some(("", "")),
            ),
        ];
        for (waits, said) in table {
            for wait in waits {
                let expected = match said {
                    None => Waiting::Unjudged,
                    Some(("", _)) => Waiting::No,
                    Some((reason, message)) => Waiting::Yes(Word::stored(reason), message.into()),
                };
                assert_eq!(words.waiting(Some(*wait), &arm64()), expected, "{wait:?}");
            }
        }
        assert_eq!(words.waiting(None, &arm64()), Waiting::No, "it is offered a berth");
        let unresolved = Words::of(&plan, None);
        assert_eq!(
            unresolved.waiting(Some(BlockReason::NoImage), &arm64()),
            Waiting::Unjudged
        );
    }

    /// One node of pool `a`, and what its condition says.
    fn snapshot(told: Option<(&str, &str, &str)>) -> Snapshot {
        let conditions: Vec<_> = told
            .into_iter()
            .map(|(status, reason, message)| {
                json!({"type": "Waiting", "status": status, "reason": reason, "message": message,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let node = json!({"metadata": {"name": "n1", "uid": "u1"}});
        let host = json!({"metadata": {"name": "n1"}, "spec": {}, "status": {"conditions": conditions}});
        let host = BootcNodeView::of(kube::core::DeserializeGuard(Ok(serde_json::from_value(host).unwrap())));
        let mut snapshot = Snapshot::default();
        Arc::make_mut(&mut snapshot.nodes).insert(
            "n1".into(),
            Entry::new(NodeView::of(&serde_json::from_value(node).unwrap())),
        );
        Arc::make_mut(&mut snapshot.hosts).insert("n1".into(), Entry::new(host));
        snapshot
    }

    fn pool() -> Pool {
        let mut object = BootcNodePool::new("a", berth_api::pool::BootcNodePoolSpec::default());
        object.status = Some(BootcNodePoolStatus {
            target: Some(target()),
            ..BootcNodePoolStatus::default()
        });
        Pool {
            name: "a".into(),
            object: Some(object),
            deleting: false,
            bad_selector: None,
            refused: None,
        }
    }

    #[test]
    fn a_condition_is_written_when_it_should_say_something_else() {
        let proven = "waits until wave b is proven";
        let plan = |wait| Plan {
            waves: vec![wave("b", WaveState::Active)],
            waiting: [("n1".into(), wait)].into(),
            ..Plan::default()
        };
        let mut membership = Membership::default();
        membership.join("n1".into(), "a".into());
        let said = |told, plans: &BTreeMap<PoolName, Plan>, membership: &Membership| {
            let mut wanted = wanted(&snapshot(told), &[pool()], membership, plans);
            let verdict = wanted.remove(&NodeName::from("n1"));
            verdict.map(|v| (v.status, v.reason.into_string(), v.message))
        };
        let planned = |told, wait| said(told, &[("a".into(), plan(wait))].into(), &membership);
        let wave_waiting = Some(("True", "WaveWaiting", proven));
        let yes = |reason: &str, message: &str| Some((Some(true), reason.to_owned(), message.to_owned()));
        let no = Some((Some(false), "NotWaiting".to_owned(), String::new()));
        assert_eq!(planned(None, BlockReason::Wave), yes("WaveWaiting", proven));
        assert_eq!(planned(wave_waiting, BlockReason::Wave), None, "it says so");
        assert_eq!(
            planned(Some(("True", "WaveWaiting", "another wave")), BlockReason::Wave),
            yes("WaveWaiting", proven)
        );
        assert_eq!(
            planned(Some(("False", "NotWaiting", "")), BlockReason::Wave),
            yes("WaveWaiting", proven)
        );
        assert_eq!(planned(wave_waiting, BlockReason::Capacity), no);
        assert_eq!(planned(None, BlockReason::Capacity), None, "nothing was said");
        assert_eq!(planned(Some(("False", "NotWaiting", "")), BlockReason::Capacity), None);
        for wait in [BlockReason::Gate, BlockReason::Halted, BlockReason::Fencing] {
            assert_eq!(planned(wave_waiting, wait), None, "{wait:?}");
            assert_eq!(planned(None, wait), None, "{wait:?}");
        }
        assert_eq!(
            said(wave_waiting, &BTreeMap::new(), &membership),
            None,
            "nobody has planned yet"
        );
        let nowhere = Membership::default();
        assert_eq!(said(wave_waiting, &BTreeMap::new(), &nowhere), no, "it is in no pool");
        let mut torn = Membership::default();
        let conflict = Conflict {
            node: "n1".into(),
            pools: vec!["a".into(), "b".into()],
            stays_in: None,
        };
        let words = conflict.message();
        torn.conflicts.insert("n1".into(), conflict);
        assert_eq!(said(None, &BTreeMap::new(), &torn), yes("NodeConflict", &words));
        assert_eq!(
            said(Some(("True", "NodeConflict", &words)), &BTreeMap::new(), &torn),
            None
        );
    }

    #[test]
    fn a_thousand_nodes_are_told_one_after_the_other() {
        let mut desk = Desk::default();
        let start = Moment::default();
        let at = |millis| start + Duration::from_millis(millis);
        let name = |n: usize| NodeName::new(format!("n{n:04}"));
        let wanted = |names: &[usize]| -> BTreeMap<NodeName, Verdict> {
            names
                .iter()
                .map(|n| (name(*n), Verdict::yes(Why::WaveWaiting, "m")))
                .collect()
        };
        let mut left: Vec<usize> = (0..1000).collect();
        assert!(desk.pick(wanted(&left), at(0)).is_empty(), "it may change back at once");
        assert_eq!(desk.due(), Some(at(1000)));
        let (mut now, mut passes) = (1000, 0);
        while !left.is_empty() {
            // A pass that comes early finds nobody.
            assert!(passes == 0 || desk.pick(wanted(&left), at(now - 1)).is_empty());
            let picked = desk.pick(wanted(&left), at(now));
            assert_eq!(picked.len(), 10);
            left.retain(|n| picked.iter().all(|(picked, _)| *picked != name(*n)));
            (now, passes) = (now + 200, passes + 1);
        }
        assert_eq!(passes, 100);
        assert!(desk.pick(BTreeMap::new(), at(now)).is_empty() && desk.due().is_none());
    }

    #[test]
    fn a_node_whose_write_fails_holds_up_nobody() {
        let mut desk = Desk::default();
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        let wanted = || -> BTreeMap<NodeName, Verdict> {
            let name = |n: usize| (NodeName::new(format!("n{n:02}")), Verdict::yes(Why::WaveWaiting, "m"));
            (0..15).map(name).collect()
        };
        let mut picks = |seconds| -> Vec<String> {
            let picked = desk.pick(wanted(), at(seconds));
            picked.into_iter().map(|(name, _)| name.to_string()).collect()
        };
        assert!(picks(0).is_empty());
        let (first, second) = (picks(1), picks(2));
        assert_eq!(first[0], "n00");
        assert_eq!(
            second[..5],
            ["n10", "n11", "n12", "n13", "n14"],
            "the others come first"
        );
        assert_eq!(second[5], "n00");
    }

    #[test]
    fn what_changes_back_is_never_told() {
        let mut desk = Desk::default();
        let at = |millis| Moment::default() + Duration::from_millis(millis);
        let wants = |reason: Why| [(NodeName::from("n"), Verdict::yes(reason, ""))].into();
        assert!(desk.pick(wants(Why::WaveWaiting), at(0)).is_empty());
        assert!(desk.pick(BTreeMap::new(), at(500)).is_empty());
        assert!(desk.pick(wants(Why::WaveWaiting), at(900)).is_empty());
        assert!(
            desk.pick(wants(Why::WaveSoaking), at(1900)).is_empty(),
            "it is another reason"
        );
        assert_eq!(desk.pick(wants(Why::WaveSoaking), at(2900)).len(), 1);
    }
}
