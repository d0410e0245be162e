//! Drawing faults.

use std::collections::BTreeSet;
use std::time::Duration;

use super::fault::{Fault, Kind, Rescue, Vanish, Who};
use super::random::Random;

/// Number of nodes that may be unavailable in a rollout, unless an admin edits that.
pub const CAPACITY: usize = 3;
/// Number of controllers.
pub const CONTROLLERS: usize = 2;
/// The last moment at which a fault begins.
pub(super) const LAST_BEGIN: u64 = 4_000;
/// The longest outage of the API server.
const LONGEST_OUTAGE: u64 = 5_000;

/// A fault and when it begins, counted from the begin of the rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// Time of the fault.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
}

/// Weight of each kind of fault in the draw, in parts of the sum.
pub(super) const WEIGHTS: [(Kind, u64); 22] = [
    (Kind::KillAgent, 20),
    (Kind::SecondAgent, 4),
    (Kind::RestartBus, 4),
    (Kind::KillController, 7),
    (Kind::StopController, 4),
    (Kind::FreezeController, 4),
    (Kind::Outage, 8),
    (Kind::Stall, 5),
    (Kind::Latency, 8),
    (Kind::Pause, 5),
    (Kind::Resize, 6),
    (Kind::Cordon, 8),
    (Kind::Label, 6),
    (Kind::DeleteBootcNode, 3),
    (Kind::Retarget, 3),
    (Kind::LostReboot, 8),
    (Kind::PowerCut, 4),
    (Kind::Vanish, 7),
    (Kind::Move, 5),
    (Kind::BadImage, 4),
    (Kind::FailFinalization, 4),
    (Kind::RefuseBerths, 4),
];

/// Random source that draws a plan.
pub(super) struct Draw {
    pub(super) random: Random,
    pub(super) nodes: usize,
    pub(super) patience: bool,
    /// Nodes that a violent fault strikes already.
    pub(super) hurt: BTreeSet<usize>,
}

impl Draw {
    pub(super) fn node(&mut self) -> usize {
        self.random.index(self.nodes) + 1
    }

    pub(super) fn lasting(&mut self, range: std::ops::RangeInclusive<u64>) -> Duration {
        self.random.millis(range)
    }

    /// One in three rollouts begins with nodes that an admin has cordoned: as many as the capacity or more, until
    /// somebody uncordons them, or a single one that stays so.
    pub(super) fn cordoned(&mut self) -> (Vec<usize>, Option<Duration>) {
        if !self.random.once_in(3) {
            return (vec![], None);
        }
        let stays = self.random.once_in(2);
        let count = if stays { 1 } else { self.random.within(1..=6) };
        let nodes: BTreeSet<usize> = (0..count).map(|_| self.node()).collect();
        let until = (!stays).then(|| self.lasting(2_000..=5_000));
        (nodes.into_iter().collect(), until)
    }

    fn kind(&mut self) -> Kind {
        let sum = WEIGHTS.iter().map(|(_, weight)| weight).sum::<u64>();
        let mut at = self.random.within(1..=sum);
        for (kind, weight) in WEIGHTS {
            if at <= weight {
                return kind;
            }
            at -= weight;
        }
        Kind::KillAgent
    }

    pub(super) fn timed(&mut self) -> Option<Timed> {
        let kind = self.kind();
        let at = self.random.millis(0..=LAST_BEGIN);
        let fault = self.fault(kind);
        // Everything is drawn before it is dropped, so that the rest of the plan does not depend on it.
        (!kind.is_violent() || self.hurt.insert(fault.node().unwrap_or(0))).then_some(Timed { at, fault })
    }

    fn fault(&mut self, kind: Kind) -> Fault {
        match kind {
            Kind::KillAgent => Fault::KillAgent(self.node()),
            Kind::SecondAgent => Fault::SecondAgent(self.node(), self.lasting(1_000..=3_000)),
            Kind::RestartBus => Fault::RestartBus(self.node()),
            Kind::KillController => Fault::KillController(self.controller(), self.lasting(200..=2_000)),
            Kind::StopController => Fault::StopController(self.controller(), self.lasting(200..=2_000)),
            Kind::FreezeController => Fault::FreezeController(self.controller(), self.lasting(500..=5_000)),
            Kind::Outage => Fault::Outage(self.who(), self.lasting(300..=LONGEST_OUTAGE)),
            Kind::Stall => Fault::Stall(self.who(), self.lasting(300..=LONGEST_OUTAGE)),
            Kind::Latency => Fault::Latency(self.who(), self.lasting(20..=400), self.lasting(1_000..=4_000)),
            Kind::Pause => Fault::Pause(self.lasting(100..=2_000)),
            Kind::Resize => Fault::Resize(
                self.random.within(1..=5),
                self.random.within(1..=5),
                self.lasting(200..=2_000),
            ),
            Kind::Cordon => Fault::Cordon(self.node(), self.lasting(300..=3_000)),
            Kind::Label => Fault::Label(self.node()),
            Kind::DeleteBootcNode => Fault::DeleteBootcNode(self.node()),
            Kind::Retarget => Fault::Retarget(self.lasting(300..=2_500)),
            Kind::LostReboot => self.lost_reboot(),
            Kind::PowerCut => Fault::PowerCut(self.node()),
            Kind::Vanish => {
                let how = if self.random.once_in(2) {
                    Vanish::PowerLoss
                } else {
                    Vanish::Stopped
                };
                Fault::Vanish(self.node(), how, self.lasting(200..=3_000))
            }
            Kind::Move => Fault::Move(self.node(), self.stay()),
            Kind::BadImage => Fault::BadImage(self.lasting(500..=3_000)),
            Kind::FailFinalization => Fault::FailFinalization(self.node()),
            Kind::RefuseBerths => Fault::RefuseBerths(self.lasting(300..=3_000)),
        }
    }

    /// Time for which a node stays in another pool; one in three stays there.
    pub(super) fn stay(&mut self) -> Option<Duration> {
        let lasts = self.lasting(300..=3_000);
        (!self.random.once_in(3)).then_some(lasts)
    }

    fn controller(&mut self) -> usize {
        self.random.index(CONTROLLERS)
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
        Fault::LostReboot(node, rescue, self.lasting(200..=2_000))
    }
}
