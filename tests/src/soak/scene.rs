//! Faults at a certain moment: cases that random timing hits once in a thousand rollouts occur often.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use berth_api::berth::{Berth, BerthState, HoldPhase, lease};
use futures::TryStreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::runtime::watcher;

use super::fault::{Fault, Who, seconds};

/// A moment in a node's turn, as its berth shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// A berth is offered to the node.
    Offered,
    /// The node has taken its berth.
    Taken,
    /// The node is about to reboot.
    Committed,
    /// The node has begun to give its berth back.
    Releasing,
    /// The node has given its berth back.
    Released,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Offered => "is offered a berth",
            Self::Taken => "has taken its berth",
            Self::Committed => "is committed",
            Self::Releasing => "gives back",
            Self::Released => "has given back",
        })
    }
}

impl Moment {
    /// All moments except the last, which is no longer part of the turn.
    pub(super) const OF_TURN: [Self; 4] = [Self::Offered, Self::Taken, Self::Committed, Self::Releasing];

    /// True if the berth shows this moment of the node's turn. `begun` is true after an earlier moment of the turn was
    /// seen.
    fn is(self, berth: &Berth, node: &str, begun: bool) -> bool {
        match &berth.state {
            BerthState::Offered(offer) => self == Self::Offered && offer.node.as_str() == node,
            BerthState::Held(h) if h.node.as_str() == node => match h.phase {
                HoldPhase::Taken => self == Self::Taken,
                HoldPhase::Committed => self == Self::Committed,
                HoldPhase::Releasing(_) => self == Self::Releasing,
            },
            BerthState::Held(_) => false,
            BerthState::Closed(closed) => {
                self == Self::Released && begun && closed.last_node.as_ref().is_some_and(|n| n.as_str() == node)
            }
        }
    }
}

/// Faults that start at a moment of a node's turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scene {
    /// Number of the node, from 1.
    pub node: usize,
    /// The moment.
    pub moment: Moment,
    /// Additional latency between programs and the API server, from the start of the rollout to the end of the scene.
    /// The latency makes the moment last longer.
    pub slow: Vec<(Who, Duration)>,
    /// The faults, with their times after the moment.
    pub faults: Vec<(Duration, Fault)>,
}

impl Scene {
    /// A scene without latency.
    pub(super) fn new(node: usize, moment: Moment, faults: Vec<(Duration, Fault)>) -> Self {
        Self {
            node,
            moment,
            slow: vec![],
            faults,
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "when node{} {}:", self.node, self.moment)?;
        for (who, latency) in &self.slow {
            write!(f, " ({who} {} ms slower before)", latency.as_millis())?;
        }
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(at, fault)| format!(" {fault} +{}", seconds(at)))
            .collect();
        f.write_str(&faults.join(","))
    }
}

/// Waits for a moment of the node's turn. The caller needs a timeout, because the moment may never come.
pub(super) async fn comes(berths: Api<Lease>, node: &str, moment: Moment) -> Result<()> {
    let mut begun = false;
    let mut events = std::pin::pin!(watcher(berths, watcher::Config::default()));
    loop {
        let lease = match events.try_next().await {
            Ok(Some(watcher::Event::Apply(lease) | watcher::Event::InitApply(lease))) => lease,
            Ok(_) => continue,
            Err(error) => {
                tracing::debug!(%error, "soak: restarting the watch of berths");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // The controllers' leader election Lease is not a berth.
        let Ok(berth) = lease::read(&lease) else { continue };
        if moment.is(&berth, node, begun) {
            return Ok(());
        }
        begun |= berth.node().is_some_and(|(name, _)| name.as_str() == node);
    }
}
