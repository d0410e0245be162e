use berth_api::insight::{NodeInsight, ScopeType};
use berth_api::node::BootcNodeStatus;
use berth_api::pool::PhaseDurations;

use super::subject::Subject;
use crate::agent::facts::{AgentFacts, Desired};
use crate::insight::{self, Unavailable, held, insight};

pub(super) fn of(
    facts: &AgentFacts,
    subject: &Subject<'_>,
    status: &BootcNodeStatus,
    before: &BootcNodeStatus,
) -> Option<NodeInsight> {
    let Desired::Member(member) = &facts.desired else {
        return None;
    };
    let before = before.insight.as_ref();
    let node = facts.cluster_node.get();
    let control_plane = match node {
        Some(node) => node.control_plane,
        None => before.is_some_and(|b| b.scope_type == ScopeType::ControlPlane),
    };
    let unavailable = node.map(|node| {
        let reasons = [
            (!node.ready, Unavailable::NotReady),
            (node.unschedulable, Unavailable::Unschedulable),
        ];
        let true_ones = reasons.into_iter().filter(|(is, _)| *is);
        true_ones.map(|(_, reason)| reason).collect()
    });
    let known = insight::Inputs {
        node: facts.node.as_str(),
        pool: member.pool.as_str(),
        scope: if control_plane {
            ScopeType::ControlPlane
        } else {
            ScopeType::WorkerPool
        },
        desired: facts.desired.digest(),
        status,
        unavailable,
        held: held(node.is_some_and(|node| node.excluded), member.paused),
        told: subject.conditions,
        silent: None,
        medians: own_first(status, member.estimates),
    };
    insight(&known, before, facts.now)
}

/// Returns the durations that this node has measured. For each missing duration, uses the pool's median.
fn own_first(status: &BootcNodeStatus, medians: PhaseDurations) -> PhaseDurations {
    let own = status.measured();
    let own = PhaseDurations {
        staging_seconds: own.staging,
        drain_seconds: own.drain,
        reboot_seconds: own.reboot,
    };
    own.or(medians)
}
