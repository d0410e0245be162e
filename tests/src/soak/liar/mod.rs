//! A liar: a program that has stolen the credentials of one node, and writes whatever the API server lets it write.
//!
//! The seed of a rollout determines which node lies, how fast, for how long, and each lie. A [`Lie`] is a kind and a
//! source of random numbers; [`Lie::requests`] turns it into requests, from what the liar can read in the cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use berth_model::random::Random;

use super::fault::seconds;

mod berths;
pub mod credentials;
mod forbidden;
mod kind;
mod lie;
mod node;
mod others;
pub mod request;
mod status;
pub mod tally;
mod values;
pub mod work;

pub use kind::Kind;
use kind::names;
pub use lie::Lie;

/// Separates the liar's random numbers from the numbers of the faults, so that a seed keeps its faults.
const STREAM: u64 = 0x11a2_7000;
/// Number of rollouts for each liar, unless all rollouts have one.
const ONE_IN: usize = 6;
/// Pauses between two lies. Each rollout draws one of them.
const PACES: [u64; 3] = [50, 100, 250];

/// Number of control plane nodes, if there are any.
const SERVERS: usize = 3;

/// Rollouts that have a liar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Liars {
    /// No rollout.
    #[value(alias = "0")]
    None,
    /// A sixth of the rollouts, drawn from the seed.
    Some,
    /// Every rollout.
    #[value(alias = "1")]
    All,
}

/// Use that a liar makes of a berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Habit {
    /// Any use, among lies of all kinds. Few of them let the node be offered a berth.
    Any,
    /// Takes each berth and gives it back at once.
    Returns,
    /// Takes a berth and keeps it.
    Holds,
    /// Takes each berth and moves it at random.
    Moves,
}

impl Habit {
    fn drawn(random: &mut Random) -> Self {
        match random.within(0..=3) {
            0 => Self::Returns,
            1 => Self::Holds,
            2 => Self::Moves,
            _ => Self::Any,
        }
    }

    /// Draws the kinds of lies of a liar with this habit.
    fn repertoire(self, random: &mut Random) -> BTreeSet<Kind> {
        let tells_all = random.one_in(3);
        let mut kinds = BTreeSet::new();
        for kind in Kind::ALL {
            // A habit needs few other lies, which may keep the node from being offered a berth.
            let is_drawn = if self == Self::Any {
                random.one_in(2)
            } else {
                random.one_in(4)
            };
            if is_drawn || (tells_all && self == Self::Any) {
                kinds.insert(*kind);
            }
        }
        if self != Self::Any {
            kinds.extend([Kind::Prepared, Kind::Take]);
            kinds.retain(|kind| !matches!(kind, Kind::Move | Kind::BerthTimes | Kind::Return));
        }
        match self {
            Self::Returns => kinds.extend([Kind::Return]),
            Self::Moves => kinds.extend([Kind::Move, Kind::BerthTimes]),
            Self::Any | Self::Holds => {}
        }
        kinds
    }
}

impl fmt::Display for Habit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "",
            Self::Returns => ", gives each berth back",
            Self::Holds => ", keeps its berth",
            Self::Moves => ", moves its berths",
        })
    }
}

/// The liar of a rollout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Liar {
    /// Number of the node whose credentials are stolen.
    pub node: usize,
    /// True if the node's agent runs beside the liar; false if the agent is stopped.
    pub has_agent: bool,
    /// Pause between two lies.
    pub pace: Duration,
    /// Time of the last lie after the start of the rollout. `None`: the liar continues until the rollout is judged.
    pub lasts: Option<Duration>,
    /// Use that it makes of a berth.
    pub habit: Habit,
    /// Kinds of its lies.
    pub repertoire: BTreeSet<Kind>,
    /// Numbers of the three nodes that carry the control plane's label, or none. The liar may be one of them.
    pub servers: Vec<usize>,
    /// Seed of the lies.
    pub seed: u64,
}

impl Liar {
    /// Draws the liar of a rollout with this seed, among the nodes without a fault; `None` if there is no such node.
    pub(super) fn drawn(seed: u64, mut free: Vec<usize>) -> Option<Self> {
        let mut random = Random::new(seed ^ STREAM);
        // Drawn first, so that `Liars::All` gives a rollout the same liar.
        let _ = random.one_in(ONE_IN);
        random.shuffle(&mut free);
        let has_agent = random.one_in(3);
        let pace = PACES[random.below(PACES.len())];
        let ends = random.within(5_000..=20_000);
        let lasts = random.one_in(2).then(|| Duration::from_millis(ends));
        let habit = Habit::drawn(&mut random);
        let repertoire = habit.repertoire(&mut random);
        let has_servers = random.one_in(4);
        let is_server = random.one_in(2);
        let seed = random.bits();
        let node = *free.first()?;
        let servers = free.into_iter().skip(usize::from(!is_server)).take(SERVERS);
        let servers: Vec<_> = servers.filter(|_| has_servers).collect();
        Some(Self {
            node,
            has_agent,
            pace: Duration::from_millis(pace),
            lasts,
            habit,
            repertoire,
            servers: if servers.len() == SERVERS { servers } else { vec![] },
            seed,
        })
    }

    /// True if a rollout of this seed has a liar.
    pub(super) fn is_due(seed: u64, liars: Liars) -> bool {
        match liars {
            Liars::None => false,
            Liars::Some => Random::new(seed ^ STREAM).one_in(ONE_IN),
            Liars::All => true,
        }
    }

    /// Name of the liar's node.
    pub fn name(&self) -> String {
        format!("node{}", self.node)
    }
}

impl fmt::Display for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let agent = if self.has_agent {
            "beside its agent"
        } else {
            "without an agent"
        };
        let until = self
            .lasts
            .map_or("to the end".to_owned(), |lasts| format!("for {}", seconds(&lasts)));
        write!(
            f,
            "node{} lies {agent} every {} ms {until}{}: ",
            self.node,
            self.pace.as_millis(),
            self.habit
        )?;
        if self.repertoire.len() == Kind::ALL.len() {
            f.write_str("everything")?;
        } else {
            f.write_str(&names(&self.repertoire))?;
        }
        if !self.servers.is_empty() {
            let servers: Vec<_> = self.servers.iter().map(|node| format!("node{node}")).collect();
            write!(f, "; control plane: {}", servers.join(" "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::plan::Plan;
    use crate::soak::run::HOSTS;

    fn liars(liars: Liars) -> Vec<Option<Liar>> {
        let plans = (0..600).map(|rollout| Plan::new(42, rollout, HOSTS, true).with_liar(HOSTS, liars, None));
        plans.map(|plan| plan.liar).collect()
    }

    #[test]
    fn the_seed_determines_who_lies() {
        assert_eq!(liars(Liars::Some), liars(Liars::Some));
        assert!(liars(Liars::None).iter().all(Option::is_none));
        let (some, all) = (liars(Liars::Some), liars(Liars::All));
        let count = some.iter().flatten().count();
        assert!((60..=140).contains(&count), "{count}");
        for (some, all) in some.iter().zip(&all) {
            assert!(some.is_none() || some == all, "{some:?} {all:?}");
        }
    }

    #[test]
    fn a_liar_changes_no_fault_and_has_none_itself() {
        for rollout in 0..600 {
            let quiet = Plan::new(42, rollout, HOSTS, true);
            let plan = quiet.clone().with_liar(HOSTS, Liars::All, None);
            let Some(liar) = plan.liar.clone() else { continue };
            assert_eq!(
                Plan {
                    liar: None,
                    ..plan.clone()
                },
                quiet
            );
            let mut struck: Vec<_> = plan.all_faults().filter_map(|fault| fault.node()).collect();
            struck.extend(plan.order.map(|order| order.node));
            for node in liar.servers.iter().chain([&liar.node]) {
                assert!(!struck.contains(node) && !plan.cordoned.0.contains(node), "{plan}");
                assert!((1..=HOSTS).contains(node), "{plan}");
            }
            assert!(liar.servers.is_empty() || liar.servers.len() == SERVERS, "{plan}");
        }
    }

    #[test]
    fn every_kind_and_every_way_is_drawn() {
        let drawn = liars(Liars::All);
        let drawn: Vec<_> = drawn.iter().flatten().collect();
        assert!(drawn.len() > 500, "{}", drawn.len());
        let kinds: BTreeSet<_> = drawn.iter().flat_map(|liar| liar.repertoire.iter()).collect();
        assert_eq!(kinds.len(), Kind::ALL.len());
        let ways: BTreeSet<_> = drawn
            .iter()
            .map(|liar| (liar.has_agent, liar.lasts.is_some(), liar.servers.is_empty(), liar.pace))
            .collect();
        assert_eq!(ways.len(), 2 * 2 * 2 * PACES.len());
        let habits: BTreeSet<_> = drawn
            .iter()
            .map(|liar| (liar.habit, liar.servers.contains(&liar.node)))
            .collect();
        assert_eq!(habits.len(), 4 * 2);
        for liar in drawn.iter().filter(|liar| liar.habit != Habit::Any) {
            let returns = liar.repertoire.contains(&Kind::Return);
            assert_eq!(returns, liar.habit == Habit::Returns, "{liar}");
            let moves = liar.repertoire.contains(&Kind::Move);
            assert_eq!(moves, liar.habit == Habit::Moves, "{liar}");
            assert!(liar.repertoire.contains(&Kind::Take), "{liar}");
        }
    }

    #[test]
    fn selected_lies_replace_the_drawn_ones() {
        let only = Kind::named("take").ok();
        let plan = Plan::new(42, 1, HOSTS, true).with_liar(HOSTS, Liars::All, only.as_ref());
        assert!(plan.to_string().contains(": take"), "{plan}");
    }
}
