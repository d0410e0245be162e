//! Simulates a controller pass: the facts after the writes of a plan, if agents and admins write nothing meanwhile.

use crate::controller::plan::{BerthWrite, Plan, PoolFacts, SeenBerth};
use crate::controller::usage::UseKind;

/// Returns the facts after the writes of the plan; `None` if the plan changes nothing.
pub(super) fn settled(facts: &PoolFacts, plan: &Plan) -> Option<PoolFacts> {
    let published = plan.counts.total as usize;
    if plan.writes.is_empty() && published == facts.published && plan.failures == facts.failures {
        return None;
    }
    let mut next = PoolFacts {
        published,
        failures: plan.failures.clone(),
        ..facts.clone()
    };

    for write in &plan.writes {
        match write {
            BerthWrite::Create(berth) => next.berths.push(SeenBerth::new(berth.name(), Ok(berth.clone()))),
            BerthWrite::Update { lease, berth, .. } => {
                let seen = next.berths.iter_mut().find(|seen| seen.lease == *lease);
                if let Some(seen) = seen {
                    *seen = SeenBerth::new(lease.clone(), Ok(berth.clone()));
                }
            }
            BerthWrite::Delete { lease } => next.berths.retain(|seen| seen.lease != *lease),
        }
    }
    follow(facts, &mut next);
    Some(next)
}

/// Updates the use of the fleet's limit in `after`. Adds the difference between the pool's own use in `before` and its
/// own use in `after`.
pub(in crate::controller) fn follow(before: &PoolFacts, after: &mut PoolFacts) {
    let (was, is) = (Own::of(before), Own::of(after));
    let Some(fleet) = after.fleet.as_mut() else { return };
    fleet.held_or_offered = changed(fleet.held_or_offered, was.held_or_offered, is.held_or_offered);
    fleet.unavailable = changed(fleet.unavailable, was.unavailable, is.unavailable);
    fleet.all = changed(fleet.all, was.all, is.all);
    fleet.may_stay = changed(fleet.may_stay, is.held, was.held);
}

fn changed(number: usize, was: usize, is: usize) -> usize {
    (number + is).saturating_sub(was)
}

struct Own {
    held: usize,
    held_or_offered: usize,
    unavailable: usize,
    all: usize,
}

impl Own {
    fn of(facts: &PoolFacts) -> Self {
        let uses = facts.uses();
        let (mut held, mut offered) = (0, 0);
        for user in &uses {
            match user.how {
                UseKind::Holds | UseKind::Elsewhere | UseKind::Unreadable | UseKind::Refused => held += 1,
                UseKind::IsOffered => offered += 1,
                UseKind::NotReady | UseKind::CordonedByUs | UseKind::CordonedByOthers => {}
            }
        }
        Self {
            held,
            held_or_offered: held + offered,
            unavailable: facts
                .members
                .iter()
                .filter(|member| member.node.is_unavailable())
                .count(),
            all: uses.len(),
        }
    }
}
