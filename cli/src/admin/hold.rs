//! Holding a node back, and letting it go.

use berth_api::pool::BootcNodePool;
use berth_core::controller::forecast::forecast;
use jiff::Timestamp;
use kube::ResourceExt;

use super::holder::Claims;
use super::{Change, Mark, NoPlan, Plan};
use crate::Snapshot;
use crate::members::{Roster, is_excluded, is_held_back};
use crate::text::clean;
use crate::world::World;

/// Plans to hold a node back.
///
/// # Errors
/// When there is no such Node.
pub fn hold(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let roster = Roster::of(snapshot, now);
    let member = roster.node(node).ok_or_else(|| NoPlan::NoNode(node.to_owned()))?;
    let (key, undo) = (
        Mark::HeldBack.key(),
        format!("To let it go: kubectl berth unhold {node}"),
    );
    if is_held_back(member.node) {
        return Ok(Plan {
            head: format!("Node {node} is held back already; nothing to do."),
            facts: vec![undo],
            ..Plan::default()
        });
    }
    let pool = roster.pool_of(node).and_then(|name| snapshot.pool(name.as_str()));
    let of = pool.map_or_else(String::new, |pool| format!(" of pool {}", pool.name_any()));
    let mut plan = Plan {
        head: format!("Hold node {node}{of} back: puts the label {key} on it."),
        changes: vec![Change::label(member, Mark::HeldBack, true)],
        ..Plan::default()
    };
    plan.facts.push(match (pool, is_excluded(member.node)) {
        (_, true) => "It is excluded: no pool has it. The label counts once it is included again.".to_owned(),
        (None, false) => "No pool selects it: the label counts once one does.".to_owned(),
        (Some(_), false) => {
            "It stays a member, counts as before and stages its image; it is offered no berth, so Berth neither drains nor \
             reboots it."
                .to_owned()
        }
    });
    let claims = Claims::of(snapshot, member);
    for held in &claims.held {
        let of = snapshot.pool(held.berth.pool.as_str());
        plan.facts.push(format!(
            "It holds {}. That turn goes on to its end.",
            held.words(member, of, now)
        ));
    }
    let offered = claims.offered.iter();
    plan.facts.extend(offered.map(|name| {
        format!("It is offered berth {name}; the controller withdraws that, unless its agent takes it before.")
    }));
    plan.warnings.extend(claims.unreadable);
    let waiting = pool.filter(|_| !is_excluded(member.node));
    plan.warnings
        .extend(waiting.into_iter().flat_map(|pool| kept(snapshot, pool, node, now)));
    plan.facts.push(undo);
    Ok(plan)
}

/// Says who waits for the node while it is held back: later waves of its pool, and the pools that go after that.
fn kept(snapshot: &Snapshot, pool: &BootcNodePool, node: &str, now: Timestamp) -> Vec<String> {
    let world = World::of(&snapshot.labelled(node, Mark::HeldBack, true), now);
    let name = pool.name_any();
    let Some(facts) = world.pool(&name).map(|pool| world.facts(pool)) else {
        return vec![];
    };
    let mut kept = Vec::new();
    let forecast = forecast(&facts, now);
    let own = facts.members.iter().find(|member| member.name.as_str() == node);
    if let Some(own) = own.filter(|own| forecast.stuck.contains(&own.name)) {
        let wave = facts
            .waves
            .get(own.wave)
            .map_or_else(String::new, |wave| clean(&wave.name));
        kept.push(format!(
            "Wave {wave} is not proven before it is updated: no node of a later wave is offered a berth until then"
        ));
    }
    let waits = own.is_some_and(|own| own.booted.is_none() || own.booted != own.desired);
    let after = |other: &&BootcNodePool| other.spec.after().contains(&name);
    let after: Vec<_> = snapshot
        .pools
        .iter()
        .filter(after)
        .map(|other| clean(&other.name_any()))
        .collect();
    if waits && !after.is_empty() {
        kept.push(format!(
            "These pools go after {name}, and wait until it is updated: {}",
            after.join(", ")
        ));
    }
    kept
}

/// Plans to let a node go that is held back.
///
/// # Errors
/// When there is no such Node.
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
        _ if is_excluded(member.node) => format!("It stays excluded; kubectl berth include {node} takes that back."),
        None => "No pool selects it: nothing is asked of it.".to_owned(),
        Some(_) if member.up_to_date(target) => "It runs the image of its pool already.".to_owned(),
        Some(_) => "It is offered a berth in its turn.".to_owned(),
    };
    Ok(Plan {
        head: format!("Let node {node} go: takes the label {} off it.", Mark::HeldBack.key()),
        facts: vec![fact],
        changes: vec![Change::label(member, Mark::HeldBack, false)],
        ..Plan::default()
    })
}
