//! `pause` and `resume`, for one pool or all pools.

use berth_api::berth::{BerthState, HoldPhase};
use berth_api::text::names;
use kube::ResourceExt;

use super::plan::{Change, NoPlan, Plan, pool_of};
use crate::snapshot::Snapshot;
use crate::text::clean;

/// Maximum number of nodes named in a line.
const NAMED: usize = 10;

/// The pool, or all pools, to pause or resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseTarget<'a> {
    /// The pool with this name.
    Pool(&'a str),
    /// All pools, through the BootcFleet.
    Fleet,
}

impl PauseTarget<'_> {
    fn includes(self, pool: &str) -> bool {
        match self {
            Self::Pool(name) => name == pool,
            Self::Fleet => true,
        }
    }
}

/// Plans a pause.
pub fn pause(snapshot: &Snapshot, target: PauseTarget<'_>) -> Result<Plan, NoPlan> {
    let mut plan = change(snapshot, target, true)?;
    if plan.is_empty() {
        return Ok(plan);
    }
    plan.facts.push(match target {
        PauseTarget::Pool(_) => "No node is offered a berth; images are still staged.".to_owned(),
        PauseTarget::Fleet => "No node of any pool is offered a berth or begins to pull an image.".to_owned(),
    });
    plan.facts.extend(at_work(snapshot, target));
    plan.facts
        .push(format!("To resume: kubectl berth resume {}", word(target)));
    Ok(plan)
}

/// Plans to resume one pool or all pools.
pub fn resume(snapshot: &Snapshot, target: PauseTarget<'_>) -> Result<Plan, NoPlan> {
    let mut plan = change(snapshot, target, false)?;
    match target {
        PauseTarget::Pool(_) if is_fleet_paused(snapshot) => plan.warnings.push(
            "This pool stays paused while the fleet is paused. To resume the fleet: kubectl berth resume --all"
                .to_owned(),
        ),
        PauseTarget::Pool(_) => {}
        PauseTarget::Fleet => {
            let paused = snapshot.pools.iter().filter(|pool| pool.spec.is_paused());
            let mut paused: Vec<_> = paused.map(|pool| clean(&pool.name_any())).collect();
            paused.sort();
            let message = format!(
                "These pools stay paused, because rollout.paused of each is true: {}",
                paused.join(", ")
            );
            plan.warnings.extend(Some(message).filter(|_| !paused.is_empty()));
        }
    }
    Ok(plan)
}

/// Returns a plan with the change. If there is nothing to do, the plan has no change. The caller adds facts and
/// warnings.
fn change(snapshot: &Snapshot, target: PauseTarget<'_>, paused: bool) -> Result<Plan, NoPlan> {
    let (is_paused, what, change, field) = match target {
        PauseTarget::Pool(name) => {
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
        PauseTarget::Fleet => {
            if let Some(error) = &snapshot.fleet_unread {
                return Err(NoPlan::NoFleet(clean(error)));
            }
            let uid = snapshot.fleet.as_ref().and_then(ResourceExt::uid);
            let field = match uid {
                Some(_) => "paused of BootcFleet cluster",
                None => "paused of BootcFleet cluster (created if missing)",
            };
            let change = Change::PauseFleet { uid, paused };
            (is_fleet_paused(snapshot), "the fleet".to_owned(), change, field)
        }
    };
    let head = match (is_paused == paused, paused) {
        (true, true) => format!("{} is already paused; nothing to do.", capitalized(&what)),
        (true, false) => format!("{} is not paused; nothing to do.", capitalized(&what)),
        (false, true) => format!("Pause {what}: sets {field} to true."),
        (false, false) => format!("Resume {what}: sets {field} to false."),
    };
    let mut plan = Plan {
        head,
        ..Plan::default()
    };
    if is_paused != paused {
        plan.changes.push(change);
    }
    Ok(plan)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn is_fleet_paused(snapshot: &Snapshot) -> bool {
    snapshot.fleet.as_ref().is_some_and(|fleet| fleet.spec.paused)
}

/// Returns the argument of the command that undoes the pause, `kubectl berth resume`.
fn word(target: PauseTarget<'_>) -> String {
    match target {
        PauseTarget::Pool(name) => clean(name),
        PauseTarget::Fleet => "--all".to_owned(),
    }
}

/// Describes what happens to the nodes that hold berths.
fn at_work(snapshot: &Snapshot, target: PauseTarget<'_>) -> Vec<String> {
    let (mut back, mut on) = (vec![], vec![]);
    for berth in snapshot.leases.iter().filter_map(|lease| lease.berth().ok()) {
        match &berth.state {
            BerthState::Held(holding) if target.includes(berth.pool.as_str()) => match holding.phase {
                HoldPhase::Taken => back.push(clean(holding.node.as_str())),
                HoldPhase::Committed => on.push(clean(holding.node.as_str())),
                // The turn is over except for the last write.
                HoldPhase::Releasing(_) => {}
            },
            _ => {}
        }
    }
    let back = line(
        back,
        "Nodes that have not committed give their berths back and are uncordoned",
    );
    let on = line(on, "Nodes that have committed finish their turns");
    back.into_iter().chain(on).collect()
}

/// Returns a line that names the nodes; `None` if there are no nodes.
fn line(mut nodes: Vec<String>, words: &str) -> Option<String> {
    nodes.sort();
    (!nodes.is_empty()).then(|| format!("{words}: {}", names(nodes.iter().take(NAMED), nodes.len())))
}
