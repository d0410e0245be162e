//! The condition `Waiting` of a BootcNode: why its node waits, if the reason does not concern the whole pool. Pure.
//!
//! No decision depends on this condition. A reason that concerns the whole pool (pause, window, halt) is in the pool's
//! conditions and leaves `Waiting` unchanged. A pause also appears in the nodes' insights, because the controller
//! publishes it in their specs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::condition::{self, CommonReason, Verdict, Word, one_line};
use berth_api::membership::Membership;
use berth_api::platform::{Choice, Platform, Variant};
use berth_api::pool::{Target, WaveState};
use berth_api::{NodeName, PoolName, keys};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::Moment;
use crate::controller::plan::{BlockReason, Plan};
use crate::controller::pool::Pool;
use crate::controller::quorum::Cause;
use crate::controller::snapshot::Snapshot;
use crate::controller::throttle::Throttle;
use crate::controller::view::NodeView;

/// How long a new condition must be stable before it is written.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);

const HELD: &str = "is held back by an admin; to release it: kubectl berth unhold";

/// New state of the condition `Waiting` of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting<'a> {
    /// Keep the condition as it is: the reason to wait is unknown, or concerns the whole pool.
    Unjudged,
    /// Set the condition to False: the node does not wait, or its reason is not reported by this condition.
    No,
    /// Set the condition to True with this reason and message.
    Yes(Word, Cow<'a, str>),
}

/// Messages for the members of one pool, formatted once.
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
        let name = active.map_or("(an earlier one)", |w| w.name.as_str());
        Self {
            plan,
            target,
            proven: format!("waits until all nodes of wave {name} are updated and Ready"),
            soaked: format!("waits until the soak time of wave {name} is over"),
        }
    }

    /// Returns the new state of a node's condition. `wait`: why the node waits; `None` if the plan gives no reason.
    fn waiting(&self, node: &NodeName, wait: Option<BlockReason>, platform: Platform<'_>) -> Waiting<'_> {
        let Some(wait) = wait else { return Waiting::No };
        match wait {
            BlockReason::Wave => Waiting::Yes(CommonReason::WaveWaiting.into(), self.proven.as_str().into()),
            BlockReason::Soaking => Waiting::Yes(CommonReason::WaveSoaking.into(), self.soaked.as_str().into()),
            BlockReason::HeldBack => Waiting::Yes(CommonReason::Held.into(), HELD.into()),
            BlockReason::FailedBefore => Waiting::Yes(CommonReason::FailedBefore.into(), wait.words().into()),
            // These causes affect every control plane node, and only for a short time after a leader starts.
            BlockReason::ControlPlane(Cause::Unfenced | Cause::NotListed) => Waiting::Unjudged,
            BlockReason::ControlPlane(cause) => Waiting::Yes(cause.into(), self.plan.wait_words(wait, &[node]).into()),
            BlockReason::NoClock => Waiting::Yes(CommonReason::ClockNotSynchronized.into(), wait.words().into()),
            BlockReason::TooLate => Waiting::Yes(CommonReason::WindowTooShort.into(), wait.words().into()),
            BlockReason::NoImage => match self.target {
                Some(target) => without_image(target, platform),
                None => Waiting::Unjudged,
            },
            // These reasons concern the whole pool or the controller.
            BlockReason::Gate
            | BlockReason::Order
            | BlockReason::Halted
            | BlockReason::Unresolved
            | BlockReason::Outdated
            | BlockReason::Fencing => Waiting::Unjudged,
            // These waits end without an admin, or the agent reports their cause.
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

fn without_image(target: &Target, platform: Platform<'_>) -> Waiting<'static> {
    let (image, there) = (&target.image, target.shown_platforms());
    let label = keys::LABEL_VARIANT;
    let (reason, message) = match target.choose(platform) {
        // The agent reported the platform after the plan was made.
        Choice::Image(_) => return Waiting::No,
        Choice::NoSuchPlatform => {
            let message = format!("{image} has no image for {platform}, only for {there}");
            (CommonReason::NoSuchPlatform, message)
        }
        Choice::VariantUnknown if platform.variant == Variant::NotReported => {
            let message = format!("{image} supports {there}; waiting for the node's agent to report the node's CPU");
            (CommonReason::CpuLevelUnknown, message)
        }
        Choice::VariantUnknown => {
            let message = format!(
                "{image} supports {there}, and it is unknown which of them the node's CPU runs; update the agent, \
                 or label the node with {label}"
            );
            (CommonReason::CpuLevelUnknown, message)
        }
    };
    Waiting::Yes(reason.into(), message.into())
}

/// Returns the new condition `Waiting` of each BootcNode whose current condition is out of date, by node name.
///
/// Leaves out the members of a pool without a plan, so that a new leader changes nothing before its first plan.
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
    let mut wanted = BTreeMap::new();
    for (name, host) in snapshot.bootc_nodes.iter() {
        let (Some(node), Some(content)) = (snapshot.nodes.get(name), host.view.readable()) else {
            continue;
        };
        let node = node.view.as_ref();
        let conflict = membership.conflicts.get(&node.name);
        let waiting = match (conflict, membership.pool_of(&node.name)) {
            (Some(conflict), _) => Waiting::Yes(CommonReason::NodeConflict.into(), conflict.message().into()),
            (None, None) => Waiting::No,
            (None, Some(pool)) => words.get(pool).map_or(Waiting::Unjudged, |words| {
                let wait = words.plan.waiting.get(&node.name).copied();
                words.waiting(&node.name, wait, node.platform(Some(&host.view)))
            }),
        };
        let told = condition::find_true(&content.told, condition::node::WAITING);
        if let Some(verdict) = changed(node, waiting, told) {
            wanted.insert(node.name.clone(), verdict);
        }
    }
    wanted
}

/// Returns the node's new condition `Waiting`; `None` if the condition stays unchanged. `now`: the current condition,
/// if it is True.
fn changed(node: &NodeView, waiting: Waiting<'_>, now: Option<&Condition>) -> Option<Verdict> {
    match (waiting, now) {
        // While a gate is closed, the plan does not show whether the node also waits for a reason of its own. So the
        // condition stays. Only `Held` ends, as soon as an admin has released the hold.
        (Waiting::Unjudged, Some(now))
            if now.reason == CommonReason::Held.as_str() && !node.labels.contains_key(keys::LABEL_HOLD) =>
        {
            Some(Verdict::no(CommonReason::NotWaiting, ""))
        }
        (Waiting::Unjudged, _) | (Waiting::No, None) => None,
        (Waiting::No, Some(_)) => Some(Verdict::no(CommonReason::NotWaiting, "")),
        (Waiting::Yes(reason, message), Some(now))
            if now.reason == reason && (now.message == *message || now.message == one_line(&message)) =>
        {
            None
        }
        (Waiting::Yes(reason, message), _) => Some(Verdict::yes(reason, message)),
    }
}

/// Conditions that are still to be written. The oldest are written first, at a limited rate.
#[derive(Debug, Default)]
pub struct WriteQueue {
    pending: BTreeMap<NodeName, Pending>,
    throttle: Throttle,
}

#[derive(Debug)]
struct Pending {
    verdict: Verdict,
    /// Time of the last attempt to write the condition. Before the first attempt, the time when the write became
    /// necessary.
    since: Moment,
}

impl WriteQueue {
    /// Records the conditions to write (`wanted`) and returns the next batch. A node in the batch goes to the end of
    /// the queue, so that a failed write does not delay other nodes.
    pub fn pick(&mut self, wanted: BTreeMap<NodeName, Verdict>, now: Moment) -> Vec<(NodeName, Verdict)> {
        let mut before = std::mem::take(&mut self.pending);
        for (name, verdict) in wanted {
            let same = before
                .remove(&name)
                .filter(|p| p.verdict.status == verdict.status && p.verdict.reason == verdict.reason);
            let since = same.map_or(now, |p| p.since);
            self.pending.insert(name, Pending { verdict, since });
        }
        let pending = self.pending.iter_mut();
        let mut settled: Vec<_> = pending.filter(|(_, p)| now.since(p.since) >= SETTLE_TIMEOUT).collect();
        settled.sort_by_key(|(_, p)| p.since);
        let mut batch = vec![];
        for (name, pending) in self.throttle.take(settled.into_iter(), now) {
            pending.since = now;
            batch.push((name.clone(), pending.verdict.clone()));
        }
        batch
    }

    /// Returns when the next batch is due; `None` if no write is pending.
    pub fn due(&self) -> Option<Moment> {
        let first = self.pending.values().map(|p| p.since + SETTLE_TIMEOUT).min()?;
        Some(self.throttle.next().map_or(first, |next| first.max(next)))
    }
}

#[cfg(test)]
mod tests;
