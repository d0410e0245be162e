//! Random choice of faults.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_model::random::Random;

use super::fault::{Fault, Kind, Rescue, Vanish, WEIGHTS, Who};

/// `maxUnavailable` of a rollout, until an admin changes it.
pub const CAPACITY: usize = 3;
/// Number of controllers.
pub const CONTROLLERS: usize = 2;
/// Upper limit for the start of a fault, in milliseconds after the start of the rollout.
pub(super) const LAST_BEGIN: u64 = 4_000;
/// Longest outage of the API server, in milliseconds.
const LONGEST_OUTAGE: u64 = 5_000;

/// A fault and its time since the start of the rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// Time of the fault since the start of the rollout.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
}

pub(super) struct Draw {
    pub(super) random: Random,
    pub(super) nodes: usize,
    pub(super) patience: bool,
    /// Nodes that already have a violent fault.
    pub(super) disrupted: BTreeSet<usize>,
}

impl Draw {
    pub(super) fn node(&mut self) -> usize {
        self.random.below(self.nodes) + 1
    }

    pub(super) fn duration(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        Duration::from_millis(self.random.within(range))
    }

    /// Nodes that an admin cordons before the rollout, and the time until they are uncordoned. Two of three rollouts
    /// have no such node. In the others, either a single node stays cordoned, or up to six nodes (possibly more than
    /// the capacity) are uncordoned later.
    pub(super) fn cordoned(&mut self) -> (Vec<usize>, Option<Duration>) {
        if !self.random.one_in(3) {
            return (vec![], None);
        }
        let stays = self.random.one_in(2);
        let count = if stays { 1 } else { self.random.within(1..=6) };
        let nodes: BTreeSet<usize> = (0..count).map(|_| self.node()).collect();
        let until = (!stays).then(|| self.duration(2_000..=5_000));
        (nodes.into_iter().collect(), until)
    }

    fn kind(&mut self) -> Kind {
        let sum = WEIGHTS.iter().map(|(_, weight)| weight).sum::<u64>();
        let mut at = self.random.within(1..=sum);
        for (kind, weight) in WEIGHTS {
            if at <= *weight {
                return *kind;
            }
            at -= *weight;
        }
        Kind::KillAgent
    }

    pub(super) fn timed(&mut self) -> Option<Timed> {
        let kind = self.kind();
        let at = self.duration(0..=LAST_BEGIN);
        let fault = self.fault(kind);
        // The fault is always drawn, even if it is then dropped, so that the rest of the plan does not depend on the
        // drop.
        (!kind.is_violent() || self.disrupted.insert(fault.node().unwrap_or(0))).then_some(Timed { at, fault })
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        match kind {
            Kind::KillAgent => Fault::KillAgent(self.node()),
            Kind::SecondAgent => Fault::SecondAgent(self.node(), self.duration(1_000..=3_000)),
            Kind::RestartBus => Fault::RestartBus(self.node()),
            Kind::KillController => Fault::KillController(self.controller(), self.duration(200..=2_000)),
            Kind::StopController => Fault::StopController(self.controller(), self.duration(200..=2_000)),
            Kind::FreezeController => Fault::FreezeController(self.controller(), self.duration(500..=5_000)),
            Kind::Outage => Fault::Outage(self.who(), self.duration(300..=LONGEST_OUTAGE)),
            Kind::Stall => Fault::Stall(self.who(), self.duration(300..=LONGEST_OUTAGE)),
            Kind::Latency => Fault::Latency(self.who(), self.duration(20..=400), self.duration(1_000..=4_000)),
            Kind::Pause => Fault::Pause(self.duration(100..=2_000)),
            Kind::Resize => Fault::Resize(
                self.random.within(1..=5),
                self.random.within(1..=5),
                self.duration(200..=2_000),
            ),
            Kind::Cordon => Fault::Cordon(self.node(), self.duration(300..=3_000)),
            Kind::Label => Fault::Label(self.node()),
            Kind::DeleteBootcNode => Fault::DeleteBootcNode(self.node()),
            Kind::Retarget => Fault::Retarget(self.duration(300..=2_500)),
            Kind::LostReboot => self.lost_reboot(),
            Kind::PowerCut => Fault::PowerCut(self.node()),
            Kind::Vanish => {
                let how = self.vanish();
                Fault::Vanish(self.node(), how, self.duration(200..=3_000))
            }
            Kind::Move => Fault::Move(self.node(), self.stay()),
            Kind::BadImage => Fault::BadImage(self.duration(500..=3_000)),
            Kind::FailFinalization => Fault::FailFinalization(self.node()),
            Kind::RefuseBerths => Fault::RefuseBerths(self.duration(300..=3_000)),
        }
    }

    /// How long a node stays in another pool. `None`, with a probability of 1/3, means until the end of the rollout.
    pub(super) fn stay(&mut self) -> Option<Duration> {
        let lasts = self.duration(300..=3_000);
        (!self.random.one_in(3)).then_some(lasts)
    }

    pub(super) fn vanish(&mut self) -> Vanish {
        if self.random.one_in(2) {
            return Vanish::PowerLoss;
        }
        Vanish::Stopped
    }

    fn controller(&mut self) -> usize {
        self.random.below(CONTROLLERS)
    }

    fn who(&mut self) -> Who {
        match self.random.within(0..=7) {
            0..=2 => Who::Everybody,
            3 | 4 => Who::Agent(self.node()),
            5 => Who::Controllers,
            6 => Who::Leader,
            _ => Who::Controller(self.controller()),
        }
    }

    fn lost_reboot(&mut self) -> Fault {
        let node = self.node();
        let rescue = match self.random.within(0..=29) {
            0..=9 => Rescue::Reboot,
            10..=19 => Rescue::PowerCut,
            29 if self.patience => Rescue::Nothing,
            _ => Rescue::AgentKill,
        };
        Fault::LostReboot(node, rescue, self.duration(200..=2_000))
    }
}
