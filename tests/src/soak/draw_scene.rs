//! Random choice of scenes.

use std::time::Duration;

use super::draw::{CAPACITY, Draw};
use super::fault::{Fault, Rescue, Who};
use super::scene::{Moment, Scene};

impl Draw {
    /// Returns a scene for a node, and additional faults that begin with the rollout.
    pub(super) fn scene(&mut self) -> (Scene, Vec<Fault>) {
        let node = self.node();
        let moment = Moment::OF_TURN[self.random.below(Moment::OF_TURN.len())];
        let soon = self.duration(0..=150);
        let faults = match self.random.within(1..=11) {
            1 => return (self.gate_closes(node), vec![]),
            2 => return (self.capacity_shrinks(node), vec![]),
            3 => return (self.node_is_replaced(node), vec![]),
            4 => return self.gate_closes_over_a_lost_reboot(node),
            5 => return (self.leader_is_late(node), vec![]),
            11 => return self.shrinks_below_what_is_held(node),
            6 => vec![(soon, Fault::KillAgent(node))],
            7 => vec![(soon, Fault::Move(node, self.stay()))],
            8 => vec![(soon, Fault::PowerCut(node))],
            9 => {
                let retarget = Fault::Retarget(self.duration(300..=2_000));
                vec![(Duration::ZERO, Fault::KillAgent(node)), (soon, retarget)]
            }
            _ => vec![(soon, Fault::Outage(Who::Leader, self.duration(300..=5_000)))],
        };
        (Scene::new(node, moment, faults), vec![])
    }

    /// The node takes an offer while the controller withdraws it.
    fn gate_closes(&mut self, node: usize) -> Scene {
        let slow = vec![(Who::Agent(node), self.duration(150..=400))];
        let lasts = self.duration(300..=1_500);
        let fault = match self.random.within(1..=3) {
            1 => Fault::Pause(lasts),
            2 => Fault::Resize(1, self.random.within(1..=4), lasts),
            _ => Fault::Retarget(lasts),
        };
        Scene {
            slow,
            ..Scene::new(node, Moment::Offered, vec![(Duration::ZERO, fault)])
        }
    }

    /// An admin reduces the capacity after an offer. The controllers cannot withdraw the offer, so the node takes it.
    fn capacity_shrinks(&mut self, node: usize) -> Scene {
        let slow = vec![(Who::Agent(node), self.duration(100..=250))];
        let refuse = Fault::RefuseBerths(self.duration(2_000..=3_000));
        let shrink = Fault::Resize(1, CAPACITY as u64, self.duration(1_500..=2_500));
        let faults = vec![(Duration::ZERO, refuse), (Duration::from_millis(100), shrink)];
        Scene {
            slow,
            ..Scene::new(node, Moment::Offered, faults)
        }
    }

    /// An admin reduces the capacity below the number of held berths. Other waiting nodes are already unavailable, so
    /// they are first in the queue.
    fn shrinks_below_what_is_held(&mut self, node: usize) -> (Scene, Vec<Fault>) {
        let lasts = self.duration(700..=1_500);
        let fault = Fault::Resize(5, 1, lasts);
        let scene = Scene::new(node, Moment::Offered, vec![(Duration::ZERO, fault)]);
        let lasts = self.duration(3_000..=5_000);
        let others = (1..=self.nodes).filter(|other| *other != node).take(8);
        let cordons = others.chain([node]).map(|other| Fault::Cordon(other, lasts));
        (scene, cordons.collect())
    }

    /// The holder's Node is deleted and re-created with the same name before a controller can notice.
    fn node_is_replaced(&mut self, node: usize) -> Scene {
        let moment = if self.random.one_in(2) {
            Moment::Taken
        } else {
            Moment::Committed
        };
        let how = self.vanish();
        let blind = Fault::Outage(Who::Controllers, self.duration(2_500..=5_000));
        let vanish = Fault::Vanish(node, how, self.duration(100..=1_000));
        Scene::new(node, moment, vec![(Duration::ZERO, blind), (Duration::ZERO, vanish)])
    }

    /// The pool is paused or its image changes while the node is committed. The node stays committed for a while,
    /// because its reboot request is accepted but not executed.
    fn gate_closes_over_a_lost_reboot(&mut self, node: usize) -> (Scene, Vec<Fault>) {
        let lasts = self.duration(300..=1_500);
        let fault = if self.random.one_in(3) {
            Fault::Retarget(lasts)
        } else {
            Fault::Pause(lasts)
        };
        let rescue = if self.random.one_in(2) {
            Rescue::AgentKill
        } else {
            Rescue::Reboot
        };
        let lost = Fault::LostReboot(node, rescue, self.duration(1_000..=2_500));
        let scene = Scene::new(node, Moment::Committed, vec![(Duration::ZERO, fault)]);
        (scene, vec![lost])
    }

    /// Delays the writes of a leader until another controller leads and the capacity has changed.
    fn leader_is_late(&mut self, node: usize) -> Scene {
        let latency = self.duration(100..=300);
        let stall = Fault::Stall(Who::Leader, self.duration(4_000..=5_000));
        let shrink = Fault::Resize(1, CAPACITY as u64, self.duration(1_500..=2_500));
        let slow = vec![(Who::Controllers, latency)];
        let faults = vec![(self.duration(0..=600), stall), (Duration::from_millis(700), shrink)];
        Scene {
            slow,
            ..Scene::new(node, Moment::Released, faults)
        }
    }
}
