//! `exclude` and `include`: takes a node out of its pool, and puts it back.

use berth_api::berth::HoldPhase;
use berth_api::pool::BootcNodePool;
use berth_api::{NodeName, keys};
use berth_core::controller::plan::failures::{excluded_name, is_of};
use jiff::Timestamp;
use kube::ResourceExt;

use super::holder::{Claims, Held, failure_words, named};
use super::plan::{Change, NoPlan, Plan};
use crate::mark::Mark;
use crate::members::{Member, Roster, is_excluded};
use crate::nodes::silence;
use crate::snapshot::Snapshot;
use crate::world::World;

/// Plans to exclude a node.
pub fn exclude(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let roster = Roster::of(snapshot, now);
    let member = roster.node(node).ok_or_else(|| NoPlan::NoNode(node.to_owned()))?;
    let excluded = is_excluded(member.node);
    let pool = roster.pool_of(node).and_then(|name| snapshot.pool(name.as_str()));
    let claims = Claims::of(snapshot, member);
    let key = keys::LABEL_EXCLUDE;
    let mut plan = Plan::default();
    if excluded {
        plan.head = format!("Node {node} is already excluded; nothing to do.");
    } else {
        let from = pool.map_or_else(
            || " (in no pool)".to_owned(),
            |p| format!(" from pool {}", p.name_any()),
        );
        plan.head = format!("Exclude node {node}{from}: adds label {key}.");
        plan.changes = vec![Change::label(member, Mark::Excluded, true)];
        plan.facts
            .extend(pool.map(|pool| room_without(snapshot, &roster, pool, member, &claims, now)));
        plan.facts
            .extend(pool.and_then(|pool| resumed(snapshot, &roster, pool, member, now)));
    }
    for held in &claims.held {
        holding(&mut plan, snapshot, &roster, member, held, now);
    }
    plan.facts.extend(
        claims
            .offered
            .iter()
            .map(|name| format!("The node is offered berth {name}; the controller withdraws the offer.")),
    );
    plan.warnings.extend(claims.unreadable);
    plan.facts.push(format!(
        "Nothing changes on the host. To put the node back into its pool: kubectl berth include {node}"
    ));
    Ok(plan)
}

/// Describes the end of the pool's halt, if only the failures of this node halt its rollout.
fn resumed(
    snapshot: &Snapshot,
    roster: &Roster<'_>,
    pool: &BootcNodePool,
    member: &Member<'_>,
    now: Timestamp,
) -> Option<String> {
    let name = pool.name_any();
    let without = World::of(&snapshot.labelled(&member.name, Mark::Excluded, true), now);
    let ends = roster.world.is_halted(&name, now) && !without.is_halted(&name, now);
    ends.then(|| {
        format!("The failure that the node reported no longer counts, so the halted rollout of pool {name} continues.")
    })
}

/// Describes the pool's size and capacity, now and after the node is excluded.
fn room_without(
    snapshot: &Snapshot,
    roster: &Roster<'_>,
    pool: &BootcNodePool,
    member: &Member<'_>,
    claims: &Claims<'_>,
    now: Timestamp,
) -> String {
    let name = pool.name_any();
    let before = roster.world.room(&name);
    let without = World::of(&snapshot.labelled(&member.name, Mark::Excluded, true), now);
    let mut after = without.room(&name);
    after.forget(&member.name);
    let count = roster.members(&name).len();
    let rest = without.membership.members(&name.as_str().into()).len();
    let (k, free) = (after.capacity, after.free());
    let once = claims
        .held
        .first()
        .map_or_else(String::new, |h| format!(" after berth {} is closed", h.berth.name()));
    let used = before
        .users
        .get(&member.name)
        .map_or_else(String::new, |why| format!(" ({why})"));
    format!(
        "Pool {name}: {count} nodes, capacity {}, {} free{used}; without {node}: {rest} nodes, capacity {k}, \
         {free} free{once}.",
        before.capacity,
        before.free(),
        node = member.name,
    )
}

/// Adds facts and warnings about the berth that the node holds.
fn holding(
    plan: &mut Plan,
    snapshot: &Snapshot,
    roster: &Roster<'_>,
    member: &Member<'_>,
    held: &Held<'_>,
    now: Timestamp,
) {
    let pool = snapshot.pool(held.berth.pool.as_str());
    let name = &member.name;
    plan.facts
        .push(format!("The node holds {}.", held.words(member, pool, now)));
    let has_committed = held.holding.phase == HoldPhase::Committed;
    if !member.is_ready() {
        plan.facts
            .push("The Node is NotReady, so the controller closes the berth (closed:excluded).".to_owned());
        if has_committed {
            let recorded = excluded_name(&NodeName::from(name.as_str()));
            let failure = failure_words(pool, roster, member, (&held.holding.target, &recorded));
            plan.facts.push(format!("The update was not proven, so {failure}."));
        }
        return;
    }
    let outcome = if has_committed {
        format!(
            "The Node is Ready, so its agent gives the berth back after the committed reboot, without waiting for proof. If {} \
             has booted and is not proven, it counts as failed on {name}.",
            named(&held.holding.target, member, pool)
        )
    } else {
        "The Node is Ready, so its agent uncordons the node and gives the berth back; the update does not count as failed."
            .to_owned()
    };
    plan.facts.push(outcome);
    plan.facts
        .push("The controller closes the berth only if the Node is NotReady.".to_owned());
    if let Some(age) = silence(&member.status(), now) {
        plan.warnings.push(format!(
            "The Node is Ready, but its agent has been silent for {age}: the node keeps the berth until the agent runs \
             again. If the agent does not come back: kubectl berth release {name}"
        ));
    }
}

/// Plans to include a node again.
pub fn include(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let roster = Roster::of(snapshot, now);
    let member = roster.node(node).ok_or_else(|| NoPlan::NoNode(node.to_owned()))?;
    if !is_excluded(member.node) {
        let head = format!("Node {node} is not excluded; nothing to do.");
        return Ok(Plan {
            head,
            ..Plan::default()
        });
    }
    let name = NodeName::from(node);
    let head = format!("Include node {node}: removes label {}.", keys::LABEL_EXCLUDE);
    let mut plan = Plan {
        head,
        changes: vec![Change::label(member, Mark::Excluded, false)],
        ..Plan::default()
    };
    let world = World::of(&snapshot.labelled(node, Mark::Excluded, false), now);
    let pool = world.membership.pool_of(&name);
    let pool = pool.and_then(|pool| snapshot.pool(pool.as_str()));
    match (pool, world.membership.conflicts.get(&name)) {
        (_, Some(conflict)) => plan.warnings.push(conflict.message()),
        (None, None) => plan
            .facts
            .push("No pool selects the node, so Berth does not update it.".to_owned()),
        (Some(pool), None) => joins(&mut plan, &roster, &world, pool, member),
    }
    Ok(plan)
}

fn joins(plan: &mut Plan, roster: &Roster<'_>, world: &World, pool: &BootcNodePool, member: &Member<'_>) {
    let name = pool.name_any();
    let node = NodeName::from(member.name.as_str());
    let before = roster.members(&name).len();
    let count = world.membership.members(&name.as_str().into()).len();
    let after = world.room(&name);
    let (k, free) = (after.capacity, after.free());
    let uses = after
        .users
        .get(&member.name)
        .map_or_else(String::new, |why| format!("; capacity in use: {why}"));
    plan.facts.push(format!(
        "Pool {name}: {count} nodes instead of {before}, capacity {k}, {free} free{uses}."
    ));
    let target = pool.status.as_ref().and_then(|s| s.target.as_ref());
    let Some(wanted) = member.wanted(target) else { return };
    let recorded = pool
        .status
        .iter()
        .flat_map(|s| &s.failures)
        .filter(|f| f.digest == *wanted);
    let failed = member.status().failed_digests.contains(wanted)
        || recorded.into_iter().any(|f| f.nodes.iter().any(|n| is_of(n, &node)));
    let image = named(wanted, member, Some(pool));
    plan.facts.push(if failed {
        format!("{image} failed on this node and is not retried. To retry the image: kubectl berth retry {name}")
    } else if member.is_up_to_date(target) {
        format!("The node already runs {image}.")
    } else {
        format!("The node is updated to {image} in its turn.")
    });
}

impl Change {
    pub(super) fn label(member: &Member<'_>, mark: Mark, on: bool) -> Self {
        Self::Label {
            node: member.name.clone(),
            uid: member.node.uid.to_string(),
            mark,
            on,
        }
    }
}
