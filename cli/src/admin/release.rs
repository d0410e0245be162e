//! `release`: closes the berths of a node that its agent cannot prove. The admin takes the responsibility for the
//! node's state.

use berth_api::berth::{ClosedReason, HoldPhase};
use jiff::Timestamp;

use super::holder::{Claims, Held, boot_of, failure_words, named};
use super::plan::{Change, NoPlan, Plan};
use crate::members::{Member, Roster, is_excluded};
use crate::nodes::silence;
use crate::snapshot::Snapshot;

/// Plans to release a node.
pub fn release(snapshot: &Snapshot, node: &str, now: Timestamp) -> Result<Plan, NoPlan> {
    let roster = Roster::of(snapshot, now);
    let member = roster.node(node).ok_or_else(|| NoPlan::NoNode(node.to_owned()))?;
    let claims = Claims::of(snapshot, member);
    let mut plan = Plan::default();
    if claims.held.is_empty() {
        plan.head = format!("Node {node} holds no berth; nothing to release.");
        plan.facts.extend(claims.offered.iter().map(|name| {
            format!(
                "The node is offered berth {name}; the controller withdraws the offer if the agent does not take it."
            )
        }));
        plan.facts.extend(claims.former.iter().map(|held| {
            let name = held.berth.name();
            format!("A former Node with this name holds berth {name}; the controller closes the berth (closed:gone).")
        }));
        plan.warnings.extend(claims.unreadable);
        return Ok(plan);
    }
    let names: Vec<_> = claims.held.iter().map(|h| h.berth.name()).collect();
    let berths = if names.len() == 1 { "berth" } else { "berths" };
    plan.head = format!(
        "Release node {node}: closes {berths} {} on your authority (closed:admin).",
        names.join(", ")
    );
    plan.facts.push(format!("{}.", standing(member)));
    for held in &claims.held {
        closing(&mut plan, snapshot, &roster, member, held, now);
    }
    plan.facts.push(format!(
        "Node {node} loses its license to reboot: Berth does not reboot it again, and may offer its berth to another node."
    ));
    let agent = if member.is_cordoned() {
        "If Berth cordoned the node, its agent uncordons the node; any other cordon stays."
    } else {
        "The node is not cordoned."
    };
    plan.facts.push(agent.to_owned());
    plan.facts
        .push(format!("An event on Node {node} records who released the node."));
    plan.warnings.extend(claims.unreadable);
    against(&mut plan, member, &claims.held, now);
    Ok(plan)
}

fn standing(member: &Member<'_>) -> String {
    let ready = if member.is_ready() { "Ready" } else { "NotReady" };
    let cordoned = if member.is_cordoned() { " and cordoned" } else { "" };
    let boot = boot_of(member).map_or_else(String::new, |boot| format!(" in boot {boot}"));
    let booted = member.status().booted.and_then(|b| b.digest);
    let runs = booted.map_or_else(
        || "the node's agent has not reported the running image".to_owned(),
        |d| format!("the node runs {}", named(&d, member, None)),
    );
    format!("The Node is {ready}{cordoned}{boot}; {runs}")
}

/// Adds the change that closes the berth, and sentences about its effect.
fn closing(
    plan: &mut Plan,
    snapshot: &Snapshot,
    roster: &Roster<'_>,
    member: &Member<'_>,
    held: &Held<'_>,
    now: Timestamp,
) {
    // `ended` does not fail for a held berth.
    let Ok(closed) = held.berth.ended(ClosedReason::Admin) else {
        return;
    };
    let pool = snapshot.pool(held.berth.pool.as_str());
    plan.facts
        .push(format!("The node holds {}.", held.words(member, pool, now)));
    let target = &held.holding.target;
    plan.facts.push(match held.holding.phase {
        HoldPhase::Committed => format!(
            "The update was not proven, so {}.",
            failure_words(pool, roster, member, (target, &member.name.as_str().into()))
        ),
        HoldPhase::Taken => "The node has not committed, so this update does not count as failed.".to_owned(),
        HoldPhase::Releasing(outcome) => format!(
            "The node is giving this berth back; the outcome stays {}.",
            outcome.as_str()
        ),
    });
    let note = format!(
        "berth {} was closed by an admin while {} held it for {} ({:?})",
        held.berth.name(),
        member.name,
        named(target, member, pool),
        held.holding.phase
    );
    plan.changes.push(Change::Close {
        lease: Box::new(held.lease.clone()),
        closed: Box::new(closed),
        node: member.name.clone(),
        uid: member.node.uid.to_string(),
        note,
    });
}

/// Adds warnings: reasons not to release the node.
fn against(plan: &mut Plan, member: &Member<'_>, held: &[Held<'_>], now: Timestamp) {
    let name = &member.name;
    let status = member.status();
    let silent = silence(&status, now);
    if !member.is_ready() {
        let already = if is_excluded(member.node) {
            " (already excluded: the controller closes the berth)"
        } else {
            ""
        };
        plan.warnings.push(format!(
            "The Node is NotReady, so you cannot vouch for the node, and the node uses up capacity even without its \
             berth. Use instead: kubectl berth exclude {name}{already}"
        ));
    }
    if held.iter().any(|h| h.may_be_rebooting(member)) {
        plan.warnings.push(format!(
            "The node has committed and not rebooted yet, so a reboot may be pending, and this command cannot cancel it. \
             Check on the host that no reboot is pending (systemctl list-jobs, shutdown --show), or wait until {name} has \
             rebooted"
        ));
    }
    if silent.is_none() && held.iter().any(|h| h.is_provable(member)) {
        plan.warnings.push(
            "The node has rebooted, is Ready and runs an image that its agent can prove. Wait for the agent: it gives \
             the berth back without a failure"
                .to_owned(),
        );
    }
    if silent.is_none() && held.iter().any(|h| h.holding.phase != HoldPhase::Committed) {
        plan.warnings.push("The node's agent is alive and has not committed. Wait for the agent: it gives the berth back when drain.timeout ends, or earlier".to_owned());
    }
    if let Some(age) = silent {
        plan.warnings.push(format!(
            "The node's agent has been silent for {age} and cannot uncordon {name} until the agent runs again"
        ));
    }
}
