//! Plan of the faults in a rollout: a pure function of the seed and the rollout's number.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use berth_model::random::Random;

use super::draw::{CAPACITY, Draw, Timed};
use super::fault::{Fault, Kind, seconds};
use super::liar::{self, Liar, Liars};
use super::scene::Scene;

/// Order of the two pools. An admin moves a node to the spare pool before the rollout, so that both pools have members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// True if the spare pool goes first; otherwise last.
    pub spare_first: bool,
    /// Number of the node in the spare pool.
    pub node: usize,
}

/// All faults of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Number of the rollout.
    pub rollout: u64,
    /// Seed of the rollout.
    pub seed: u64,
    /// Nodes that an admin cordoned before the rollout, and when they are uncordoned; with `None` they stay cordoned to the end.
    pub cordoned: (Vec<usize>, Option<Duration>),
    /// `maxUnavailable` of the fleet, which limits both pools together.
    pub fleet: Option<usize>,
    /// Order of the two pools, if there is one.
    pub order: Option<Order>,
    /// Faults, sorted by time.
    pub faults: Vec<Timed>,
    /// Faults that wait for a certain moment.
    pub scene: Option<Scene>,
    /// A node whose credentials an attacker uses.
    pub liar: Option<Liar>,
}

/// When nodes are uncordoned whose cordon must not last.
const UNCORDONED_AFTER: Duration = Duration::from_secs(5);

/// Returns the seed of a rollout in a run.
pub fn seed_of(run: u64, rollout: u64) -> u64 {
    Random::new(run ^ rollout.wrapping_mul(0xd134_2543_de82_ef95)).bits()
}

impl Plan {
    /// Plan of a rollout with this many nodes. Without `patience`, a host with a lost reboot always gets help, because
    /// its agent would need a minute to notice and another minute to retry.
    pub fn new(run: u64, rollout: u64, nodes: usize, patience: bool) -> Self {
        let seed = seed_of(run, rollout);
        let mut draw = Draw {
            random: Random::new(seed),
            nodes,
            patience,
            disrupted: BTreeSet::new(),
        };
        let mut cordoned = draw.cordoned();
        let scene = (!draw.random.one_in(3)).then(|| draw.scene());
        let (scene, besides) = scene.unzip();
        draw.disrupted.extend(scene.as_ref().map(|scene| scene.node));
        let besides = besides.unwrap_or_default().into_iter().map(|fault| Timed {
            at: Duration::ZERO,
            fault,
        });
        let count = draw.random.within(if scene.is_some() { 0..=4 } else { 2..=6 });
        let mut faults: Vec<Timed> = besides.chain((0..count).filter_map(|_| draw.timed())).collect();
        faults.sort_by_key(|timed| timed.at);
        // A separate random source, so that each seed still gives the same faults as before there was a limit.
        let mut of_fleet = Random::new(seed ^ 0xf1ee_7000);
        let fleet = of_fleet.one_in(3).then(|| 2 + of_fleet.below(CAPACITY));
        let mut of_order = Random::new(seed ^ 0x0bde_7000);
        let order = of_order.one_in(3).then(|| Order {
            spare_first: of_order.one_in(2),
            node: of_order.below(nodes) + 1,
        });
        let plan = Self {
            rollout,
            seed,
            cordoned: (vec![], None),
            fleet,
            order,
            faults,
            scene,
            liar: None,
        };
        let spare = plan.moved_to_the_end();
        if spare.len() > 1 && cordoned.0.iter().any(|node| spare.contains(node)) {
            // The spare pool has a capacity of 1: a member that stays cordoned would keep the others waiting.
            cordoned.1.get_or_insert(UNCORDONED_AFTER);
        }
        Self { cordoned, ..plan }
    }

    /// Adds a liar, if the seed gives this rollout one. If some kinds are given, the liar has only these.
    #[must_use]
    pub fn with_liar(mut self, nodes: usize, liars: Liars, only: Option<&BTreeSet<liar::Kind>>) -> Self {
        if Liar::is_due(self.seed, liars) {
            self.liar = Liar::drawn(self.seed, self.undisturbed(nodes));
        }
        if let (Some(liar), Some(only)) = (&mut self.liar, only) {
            liar.repertoire.clone_from(only);
        }
        self
    }

    /// Nodes without a fault of their own, which are in the pool of the soak.
    pub(super) fn undisturbed(&self, nodes: usize) -> Vec<usize> {
        let of_scene = self.scene.iter().map(|scene| scene.node);
        let mut disturbed: BTreeSet<usize> = self.all_faults().filter_map(Fault::node).chain(of_scene).collect();
        disturbed.extend(&self.cordoned.0);
        disturbed.extend(self.order.map(|order| order.node));
        (1..=nodes).filter(|node| !disturbed.contains(node)).collect()
    }

    /// Number of nodes that may fail without a lie: a violent fault may end a turn without a proof.
    pub(super) fn may_fail(&self) -> usize {
        let violent = self.all_faults().filter(|fault| fault.kind().is_violent());
        let of_scene = self.scene.iter().map(|scene| scene.node);
        let nodes: BTreeSet<_> = violent.filter_map(Fault::node).chain(of_scene).collect();
        nodes.len()
    }

    /// A plan without faults.
    pub fn quiet(run: u64, rollout: u64) -> Self {
        Self {
            rollout,
            seed: seed_of(run, rollout),
            cordoned: (vec![], None),
            fleet: None,
            order: None,
            faults: vec![],
            scene: None,
            liar: None,
        }
    }

    /// Returns all faults, including the faults of the scene.
    pub fn all_faults(&self) -> impl Iterator<Item = &Fault> {
        let of_scene = self
            .scene
            .iter()
            .flat_map(|scene| scene.faults.iter().map(|(_, fault)| fault));
        self.faults.iter().map(|timed| &timed.fault).chain(of_scene)
    }

    /// Longest delay of a request or change due to these faults, plus a margin.
    pub fn lag(&self) -> jiff::SignedDuration {
        let has_delay = self.all_faults().any(|fault| {
            matches!(
                fault.kind(),
                Kind::Outage | Kind::Stall | Kind::Latency | Kind::FreezeController
            )
        });
        let is_slow = self.scene.as_ref().is_some_and(|scene| !scene.slow.is_empty());
        // Several of these faults may follow each other.
        jiff::SignedDuration::from_secs(if is_slow || has_delay { 12 } else { 3 })
    }

    /// Nodes that may still be in the spare pool at the end.
    pub fn moved_to_the_end(&self) -> BTreeSet<usize> {
        let moved = self.all_faults().filter_map(|f| match f {
            Fault::Move(node, None) => Some(*node),
            _ => None,
        });
        moved.chain(self.order.map(|order| order.node)).collect()
    }

    /// Nodes that are still cordoned at the end: cordoned by an admin before the rollout, and neither uncordoned by a fault nor
    /// replaced by a new Node.
    pub fn cordoned_to_the_end(&self) -> Vec<usize> {
        let (mut nodes, until) = self.cordoned.clone();
        if until.is_some() {
            return vec![];
        }
        for fault in self.all_faults() {
            if let Fault::Cordon(undone, _) | Fault::Vanish(undone, ..) = fault {
                nodes.retain(|node| node != undone);
            }
        }
        nodes
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rollout {} seed {:#018x} faults:", self.rollout, self.seed)?;
        if let Some(fleet) = self.fleet {
            write!(f, " fleet limited to {fleet},")?;
        }
        if let Some(Order { spare_first, node }) = self.order {
            let place = if spare_first { "first" } else { "last" };
            write!(f, " node{node} in another pool that goes {place},")?;
        }
        let (cordoned, until) = &self.cordoned;
        if !cordoned.is_empty() {
            let names: Vec<_> = cordoned.iter().map(|node| format!("node{node}")).collect();
            let until = until.map_or("to the end".to_owned(), |until| format!("until {}", seconds(&until)));
            write!(f, " {} cordoned {until},", names.join(" "))?;
        }
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|t| format!("{} @{}", t.fault, seconds(&t.at)))
            .collect();
        let faults = if faults.is_empty() {
            "none".to_owned()
        } else {
            faults.join(", ")
        };
        write!(f, " {faults}")?;
        if let Some(scene) = &self.scene {
            write!(f, "; {scene}")?;
        }
        match &self.liar {
            Some(liar) => write!(f, "; {liar}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::draw::LAST_BEGIN;
    use super::super::fault::{Rescue, WEIGHTS};
    use super::*;

    fn plans(count: u64) -> Vec<Plan> {
        (0..count).map(|n| Plan::new(42, n, 12, true)).collect()
    }

    #[test]
    fn the_seed_determines_the_plan() {
        assert_eq!(Plan::new(42, 17, 12, true), Plan::new(42, 17, 12, true));
        assert_ne!(Plan::new(42, 17, 12, true).faults, Plan::new(42, 18, 12, true).faults);
        assert_ne!(Plan::new(42, 17, 12, true).faults, Plan::new(43, 17, 12, true).faults);
        // Old reports are replayed by their seeds, so never change the faults of a seed without need.
        let known = Plan::new(1, 0, 12, true).to_string();
        assert!(known.starts_with("rollout 0 seed 0x"), "{known}");
    }

    #[test]
    fn a_long_run_has_every_kind_of_fault() {
        let kinds: BTreeSet<Kind> = plans(200)
            .iter()
            .flat_map(|p| p.faults.iter().map(|t| t.fault.kind()))
            .collect();
        assert_eq!(kinds.len(), WEIGHTS.len(), "{kinds:?}");
    }

    #[test]
    fn some_rollouts_have_a_fleet_limit() {
        let limits: BTreeSet<_> = plans(200).iter().map(|plan| plan.fleet).collect();
        assert_eq!(limits, [None, Some(2), Some(3), Some(4)].into());
    }

    #[test]
    fn some_rollouts_have_an_order_of_pools() {
        let plans = plans(200);
        let orders: BTreeSet<_> = plans
            .iter()
            .map(|plan| plan.order.map(|order| order.spare_first))
            .collect();
        assert_eq!(orders, [None, Some(false), Some(true)].into());
        let mut nodes = plans.iter().filter_map(|plan| plan.order.map(|order| order.node));
        assert!(nodes.all(|node| (1..=12).contains(&node)));
    }

    #[test]
    fn plans_keep_their_bounds() {
        for plan in plans(1000) {
            assert!(plan.faults.len() <= 15 && plan.faults.is_sorted_by_key(|t| t.at));
            assert!(plan.faults.iter().all(|t| t.at <= Duration::from_millis(LAST_BEGIN)));
            let violent = plan
                .faults
                .iter()
                .filter(|t| t.fault.kind().is_violent())
                .filter_map(|t| t.fault.node());
            let violent: Vec<_> = violent.collect();
            assert_eq!(
                violent.iter().collect::<BTreeSet<_>>().len(),
                violent.len(),
                "one for each node: {plan}"
            );
            let least = plan.fleet.map_or(CAPACITY, |fleet| fleet.min(CAPACITY));
            assert!(
                plan.cordoned_to_the_end().len() < least,
                "the cordoned nodes must leave capacity: {plan}"
            );
            for timed in &plan.faults {
                assert!(timed.fault.node().is_none_or(|n| (1..=12).contains(&n)), "{plan}");
                if let Fault::Outage(_, lasts) | Fault::Stall(_, lasts) = timed.fault {
                    assert!(lasts <= Duration::from_secs(5));
                }
            }
        }
    }

    #[test]
    fn a_cordoned_node_never_fills_the_spare_pool() {
        for plan in plans(2_000) {
            let spare = plan.moved_to_the_end();
            let is_cordoned = plan.cordoned_to_the_end().iter().any(|node| spare.contains(node));
            assert!(!is_cordoned || spare.len() == 1, "{plan}");
        }
    }

    #[test]
    fn without_patience_a_lost_reboot_gets_help() {
        for patience in [true, false] {
            let plans: Vec<_> = (0..1000).map(|n| Plan::new(42, n, 12, patience)).collect();
            let mut faults = plans.iter().flat_map(|plan| &plan.faults);
            let lets_be = faults.any(|t| matches!(t.fault, Fault::LostReboot(_, Rescue::Nothing, _)));
            assert_eq!(lets_be, patience);
        }
    }
}
