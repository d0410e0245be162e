//! `hold` and `unhold`: holds a node back, and releases it.

use berth_api::pool::BootcNodePool;
use berth_core::controller::forecast::forecast;
use jiff::Timestamp;
use kube::ResourceExt;

use super::holder::Claims;
use super::plan::{Change, NoPlan, Plan};
use crate::mark::Mark;
use crate::members::{Roster, is_excluded, is_held_back};
use crate::snapshot::Snapshot;
use crate::text::clean;
use crate::world::World;

/// Plans to hold a node back.
pub fn hold(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let roster = Roster::of(snapshot, now);
    let member = roster.node(node).ok_or_else(|| NoPlan::NoNode(node.to_owned()))?;
    let (key, undo) = (
        Mark::HeldBack.key(),
        format!("To release the node: kubectl berth unhold {node}"),
    );
    if is_held_back(member.node) {
        return Ok(Plan {
            head: format!("Node {node} is already held back; nothing to do."),
            facts: vec![undo],
            ..Plan::default()
        });
    }
    let pool = roster.pool_of(node).and_then(|name| snapshot.pool(name.as_str()));
    let of = pool.map_or_else(String::new, |pool| format!(" (pool {})", pool.name_any()));
    let mut plan = Plan {
        head: format!("Hold back node {node}{of}: adds label {key}."),
        changes: vec![Change::label(member, Mark::HeldBack, true)],
        ..Plan::default()
    };
    plan.facts.push(match (pool, is_excluded(member.node)) {
        (_, true) => "The node is excluded, so the label has no effect until the node is included again.".to_owned(),
        (None, false) => "No pool selects the node, so the label has no effect until a pool selects it.".to_owned(),
        (Some(_), false) => {
            "The node stays a member of its pool, with the same effect on the pool's capacity, and stages its image. Berth \
             offers the node no berth, and neither drains nor reboots it."
                .to_owned()
        }
    });
    let claims = Claims::of(snapshot, member);
    for held in &claims.held {
        let of = snapshot.pool(held.berth.pool.as_str());
        plan.facts.push(format!(
            "The node holds {}. This turn continues to its end.",
            held.words(member, of, now)
        ));
    }
    let offered = claims.offered.iter();
    plan.facts.extend(offered.map(|name| {
        format!("The node is offered berth {name}; the controller withdraws the offer unless the agent takes it first.")
    }));
    plan.warnings.extend(claims.unreadable);
    let waiting = pool.filter(|_| !is_excluded(member.node));
    plan.warnings.extend(
        waiting
            .into_iter()
            .flat_map(|pool| waiting_for(snapshot, pool, node, now)),
    );
    plan.facts.push(undo);
    Ok(plan)
}

/// Returns warnings about other nodes that wait while this node is held back: nodes of later waves, and nodes of pools
/// that are updated after this pool.
fn waiting_for(snapshot: &Snapshot, pool: &BootcNodePool, node: &str, now: Timestamp) -> Vec<String> {
    let world = World::of(&snapshot.labelled(node, Mark::HeldBack, true), now);
    let name = pool.name_any();
    let Some(facts) = world.facts(&name) else {
        return vec![];
    };
    let mut warnings = Vec::new();
    let forecast = forecast(facts, now);
    let own = facts.members.iter().find(|member| member.name.as_str() == node);
    if let Some(own) = own.filter(|own| forecast.stuck.contains(&own.name)) {
        let wave = facts
            .waves
            .get(own.place.wave)
            .map_or_else(String::new, |wave| clean(&wave.name));
        warnings.push(format!(
            "Until this node is updated, wave {wave} is not proven and no node of a later wave is offered a berth"
        ));
    }
    let waits = own.is_some_and(|own| own.agent.booted.is_none() || own.agent.booted != own.desired);
    let after = snapshot.pools.iter().filter(|other| other.spec.after().contains(&name));
    let after: Vec<_> = after.map(|other| clean(&other.name_any())).collect();
    if waits && !after.is_empty() {
        warnings.push(format!(
            "These pools wait until {name} is updated: {}",
            after.join(", ")
        ));
    }
    warnings
}

/// Plans to release a node that is held back.
pub fn unhold(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let roster = Roster::of(snapshot, now);
    let member = roster.node(node).ok_or_else(|| NoPlan::NoNode(node.to_owned()))?;
    if !is_held_back(member.node) {
        let head = format!("Node {node} is not held back; nothing to do.");
        return Ok(Plan {
            head,
            ..Plan::default()
        });
    }
    let pool = roster.pool_of(node).and_then(|name| snapshot.pool(name.as_str()));
    let target = pool
        .and_then(|pool| pool.status.as_ref())
        .and_then(|s| s.target.as_ref());
    let fact = match pool {
        _ if is_excluded(member.node) => {
            format!("The node stays excluded. To include the node: kubectl berth include {node}")
        }
        None => "No pool selects the node, so Berth does not update it.".to_owned(),
        Some(_) if member.is_up_to_date(target) => "The node already runs its pool's image.".to_owned(),
        Some(_) => "The node is offered a berth in its turn.".to_owned(),
    };
    Ok(Plan {
        head: format!(
            "Release the hold on node {node}: removes label {}.",
            Mark::HeldBack.key()
        ),
        facts: vec![fact],
        changes: vec![Change::label(member, Mark::HeldBack, false)],
        ..Plan::default()
    })
}
