//! Pausing one pool or all of them, and letting them go on.

use berth_api::berth::{BerthState, HoldPhase, lease};
use berth_api::text::names;
use kube::ResourceExt;

use super::{Change, NoPlan, Plan, pool_of};
use crate::Snapshot;
use crate::text::clean;

/// Nodes at work that a line names.
const NAMED: usize = 10;

/// Whole that is paused at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole<'a> {
    /// The pool of that name.
    Pool(&'a str),
    /// All pools, by the BootcFleet.
    Fleet,
}

/// Plans a pause.
///
/// # Errors
/// When there is no such pool, or the BootcFleet could not be read and is what is to be changed.
pub fn pause(snapshot: &Snapshot, whole: Whole<'_>) -> Result<Plan, NoPlan> {
    let mut plan = change(snapshot, whole, true)?;
    if plan.is_empty() {
        return Ok(plan);
    }
    plan.facts.push(match whole {
        Whole::Pool(_) => "No node is offered a berth; images are staged all the same.".to_owned(),
        Whole::Fleet => "No node of any pool is offered a berth, and none begins to pull an image.".to_owned(),
    });
    plan.facts.extend(at_work(snapshot, whole));
    plan.facts
        .push(format!("To let it go on: kubectl berth resume {}", word(whole)));
    Ok(plan)
}

/// Plans to let a pool, or all of them, go on.
///
/// # Errors
/// When there is no such pool, or the BootcFleet could not be read and is what is to be changed.
pub fn resume(snapshot: &Snapshot, whole: Whole<'_>) -> Result<Plan, NoPlan> {
    let mut plan = change(snapshot, whole, false)?;
    match whole {
        Whole::Pool(_) if is_fleet_paused(snapshot) => plan
            .warnings
            .push("The fleet is paused, and this pool with it: kubectl berth resume --all".to_owned()),
        Whole::Pool(_) => {}
        Whole::Fleet => {
            let paused = snapshot.pools.iter().filter(|pool| pool.spec.is_paused());
            let mut paused: Vec<_> = paused.map(|pool| clean(&pool.name_any())).collect();
            paused.sort();
            let message = format!("Pools that are paused by themselves stay so: {}", paused.join(", "));
            plan.warnings.extend(Some(message).filter(|_| !paused.is_empty()));
        }
    }
    Ok(plan)
}

/// The change alone, unless it is so already.
fn change(snapshot: &Snapshot, whole: Whole<'_>, paused: bool) -> Result<Plan, NoPlan> {
    let (is_paused, what, change, field) = match whole {
        Whole::Pool(name) => {
            let pool = pool_of(snapshot, name)?;
            let uid = pool.uid().unwrap_or_default();
            let pool_name = name.to_owned();
            let change = Change::Pause {
                pool: pool_name,
                uid,
                paused,
            };
            (
                pool.spec.is_paused(),
                format!("pool {name}"),
                change,
                "rollout.paused of the pool",
            )
        }
        Whole::Fleet => {
            if let Some(error) = &snapshot.fleet_unread {
                return Err(NoPlan::NoFleet(clean(error)));
            }
            let uid = snapshot.fleet.as_ref().and_then(ResourceExt::uid);
            let field = match uid {
                Some(_) => "paused of BootcFleet cluster",
                None => "paused of BootcFleet cluster, which is created,",
            };
            let change = Change::PauseFleet { uid, paused };
            (is_fleet_paused(snapshot), "the fleet".to_owned(), change, field)
        }
    };
    let mut plan = Plan::default();
    let capital = |text: &str| {
        let mut letters = text.chars();
        letters
            .next()
            .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    };
    plan.head = match (is_paused == paused, paused) {
        (true, true) => format!("{} is paused already; nothing to do.", capital(&what)),
        (true, false) => format!("{} is not paused; nothing to do.", capital(&what)),
        (false, true) => format!("Pause {what}: sets {field} to true."),
        (false, false) => format!("Let {what} go on: sets {field} to false."),
    };
    if is_paused != paused {
        plan.changes.push(change);
    }
    Ok(plan)
}

fn is_fleet_paused(snapshot: &Snapshot) -> bool {
    snapshot.fleet.as_ref().is_some_and(|fleet| fleet.spec.paused)
}

/// Argument of the command that takes it back.
fn word(whole: Whole<'_>) -> String {
    match whole {
        Whole::Pool(name) => clean(name),
        Whole::Fleet => "--all".to_owned(),
    }
}

/// Says what becomes of the nodes that are at work.
fn at_work(snapshot: &Snapshot, whole: Whole<'_>) -> Vec<String> {
    let is_of = |pool: &str| match whole {
        Whole::Pool(name) => name == pool,
        Whole::Fleet => true,
    };
    let (mut back, mut on) = (vec![], vec![]);
    for berth in snapshot.leases.iter().filter_map(|lease| lease::read(lease).ok()) {
        match &berth.state {
            BerthState::Held(holding) if is_of(berth.pool.as_str()) => match holding.phase {
                HoldPhase::Taken => back.push(clean(holding.node.as_str())),
                HoldPhase::Committed => on.push(clean(holding.node.as_str())),
                // Its turn is over but for the last write.
                HoldPhase::Releasing(_) => {}
            },
            _ => {}
        }
    }
    let line = |mut nodes: Vec<String>, words: &str| {
        nodes.sort();
        (!nodes.is_empty()).then(|| format!("{words}: {}", names(nodes.iter().take(NAMED), nodes.len())))
    };
    let back = line(
        back,
        "Not committed yet, so their berths are given back and they are uncordoned",
    );
    let on = line(on, "Committed, so they finish their turns");
    back.into_iter().chain(on).collect()
}
