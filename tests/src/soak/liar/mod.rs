//! A liar: a program that has stolen the credentials of one node, and writes whatever the API server lets it write.
//!
//! The seed of a rollout determines which node lies, how fast, for how long, and each lie. A [`Lie`] is a kind and a
//! source of random numbers; [`Lie::requests`] turns it into requests, from what the liar can read in the cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use berth_model::random::Random;

use super::fault::seconds;
use super::plan::Plan;

mod berths;
pub mod credentials;
mod forbidden;
mod lie;
mod node;
mod others;
pub mod request;
mod status;
pub mod tally;
mod values;
pub mod work;

pub use lie::Lie;

/// Separates the liar's random numbers from those of the faults, so that a seed keeps its faults.
const STREAM: u64 = 0x11a2_7000;
/// One rollout of this many has a liar, unless all have one.
const ONE_IN: usize = 6;
/// Pauses between two lies, one of which is drawn for a rollout.
const PACES: [u64; 4] = [50, 100, 250, 1_000];

/// Rollouts that have a liar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Liars {
    /// No rollout.
    #[value(alias = "0")]
    None,
    /// One rollout in six, drawn from the seed.
    Some,
    /// Every rollout.
    #[value(alias = "1")]
    All,
}

/// Declares the kinds of lies, each with its name and its weight.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident $name:literal $weight:literal)*) => {
        /// Kinds of lies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Name of the kind, for options and statistics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            fn weight(self) -> u64 {
                match self {
                    $(Self::$kind => $weight,)*
                }
            }
        }
    };
}

kinds! {
    /// A sign of life of the agent, and nothing else.
    Heartbeat "heartbeat" 10
    /// The status of a node that has staged its image and waits for a berth.
    Prepared "prepared" 25
    /// The status of a node that runs its image.
    Updated "updated" 6
    /// A pull that never ends.
    Pulling "pulling" 6
    /// Digests that failed on the node, often the target.
    FailedDigests "failed-digests" 6
    /// Any fields of the status.
    Status "status" 10
    /// Any conditions, with any reason and message.
    Conditions "conditions" 8
    /// Times of extreme years in the status.
    Times "times" 4
    /// Any boot image.
    BootImage "boot-image" 4
    /// Any record of the first boot.
    FirstBoot "first-boot" 2
    /// Any timeline, turns, deployments, failures, blockers and insight.
    Record "record" 5
    /// A status with the longest strings and lists that the CRD allows.
    Bulk "bulk" 1
    /// Takes an offer.
    Take "take" 12
    /// A move of a held berth that the protocol allows, at random.
    Move "move" 20
    /// The same with a `renewTime` of an extreme year.
    BerthTimes "berth-times" 3
    /// A write that the API server must refuse.
    Forbidden "forbidden" 8
    /// Labels of the Node: pool, zone, platform.
    Labels "labels" 6
    /// Annotations of the Node, those of Berth's cordon included.
    Annotations "annotations" 5
    /// Cordons or uncordons the Node.
    Cordon "cordon" 4
    /// Conditions of the Node: Ready, pressure, network.
    Ready "ready" 6
    /// Times of extreme years in the Node's status and its Lease.
    NodeTimes "node-times" 3
    /// Boot ID and platform of the Node.
    NodeInfo "node-info" 4
    /// Addresses of the Node, such as a server's.
    Addresses "addresses" 4
    /// A Node's status of nearly a megabyte.
    NodeBulk "node-bulk" 1
    /// Renews the kubelet's Lease.
    NodeLease "node-lease" 2
    /// Creates a mirror pod on the node.
    MirrorPod "mirror-pod" 2
    /// Deletes a pod of the node.
    DeletePod "delete-pod" 1
    /// An event, such as a machine that is held back on its first boot.
    Event "event" 3
    /// An event with times of extreme years.
    EventTimes "event-times" 1
}

impl Kind {
    /// Returns the kinds with these names, separated by commas. A name after `-` removes the kind; a list that begins
    /// so begins with all kinds.
    pub fn named(list: &str) -> Result<BTreeSet<Self>, String> {
        let mut kinds = BTreeSet::new();
        if list.trim_start().starts_with('-') {
            kinds.extend(Self::ALL);
        }
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, is_removed) = word.strip_prefix('-').map_or((word, false), |name| (name, true));
            let kind = Self::ALL.iter().find(|kind| kind.name() == name).ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
                format!("there is no lie {name}; known lies: {}", known.join(", "))
            })?;
            if is_removed {
                kinds.remove(kind);
            } else {
                kinds.insert(*kind);
            }
        }
        Ok(kinds)
    }
}

/// Names of kinds, separated by commas.
fn names(kinds: &BTreeSet<Kind>) -> String {
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    names.join(",")
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
    /// Kinds of lies that it tells.
    pub repertoire: BTreeSet<Kind>,
    /// Numbers of three other nodes that carry the control plane's label, or none.
    pub servers: Vec<usize>,
    /// Seed of the lies.
    pub seed: u64,
}

impl Liar {
    /// Draws the liar of a rollout; `None` if every node has a fault of its own.
    pub(super) fn drawn(plan: &Plan, nodes: usize) -> Option<Self> {
        let mut random = Random::new(plan.seed ^ STREAM);
        // Drawn first, so that `Liars::All` gives a rollout the same liar.
        let _ = random.one_in(ONE_IN);
        let mut free = plan.undisturbed(nodes);
        random.shuffle(&mut free);
        let has_agent = random.one_in(3);
        let pace = PACES[random.below(PACES.len())];
        let ends = random.within(5_000..=20_000);
        let lasts = random.one_in(2).then(|| Duration::from_millis(ends));
        let tells_all = random.one_in(3);
        let drawn: Vec<_> = Kind::ALL.iter().filter(|_| random.one_in(2)).copied().collect();
        let repertoire = if tells_all { Kind::ALL.to_vec() } else { drawn };
        let has_servers = random.one_in(4);
        let seed = random.bits();
        let mut free = free.into_iter();
        let node = free.next()?;
        let servers: Vec<_> = free.take(3).collect();
        Some(Self {
            node,
            has_agent,
            pace: Duration::from_millis(pace),
            lasts,
            repertoire: repertoire.into_iter().collect(),
            servers: if has_servers && servers.len() == 3 {
                servers
            } else {
                vec![]
            },
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
            "node{} lies {agent} every {} ms {until}: ",
            self.node,
            self.pace.as_millis()
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
            let struck: Vec<_> = plan.all_faults().filter_map(|fault| fault.node()).collect();
            for node in liar.servers.iter().chain([&liar.node]) {
                assert!(!struck.contains(node) && !plan.cordoned.0.contains(node), "{plan}");
                assert!((1..=HOSTS).contains(node), "{plan}");
            }
            assert!(!liar.servers.contains(&liar.node));
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
    }

    #[test]
    fn lies_are_selected_by_name() {
        assert_eq!(
            Kind::named("take, move").unwrap(),
            BTreeSet::from([Kind::Take, Kind::Move])
        );
        let most = Kind::named("-times,-node-times").unwrap();
        assert_eq!(most.len(), Kind::ALL.len() - 2);
        assert!(Kind::named("tale").unwrap_err().contains("there is no lie tale"));
        let only = Kind::named("take").ok();
        let plan = Plan::new(42, 1, HOSTS, true).with_liar(HOSTS, Liars::All, only.as_ref());
        assert!(plan.to_string().contains(": take"), "{plan}");
    }
}
