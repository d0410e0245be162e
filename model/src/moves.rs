//! Lists all moves from a state, and describes moves in text.

use std::fmt::{self, Display};

use crate::agent::{self, Delivery};
use crate::controller::{self, ControllerMove};
use crate::decide::{Act, Put, Steps};
use crate::events::{self, Event};
use crate::judge;
use crate::planner::Plans;
use crate::rich;
use crate::state::{Berth, NO_NUMBER, NONE, Number, Phase, Request, State, Write};
use crate::world::{Broken, World};

/// Caches of the results of Berth's own functions.
#[derive(Debug, Default)]
pub struct Memo {
    /// Decisions of agents.
    pub steps: Steps,
    /// Passes of controllers.
    pub plans: Plans,
}

/// A move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// The agent of a node acts. If the last value is true, the agent only reads now, and acts later.
    Agent(Number, Act, Delivery, bool),
    /// A controller acts.
    Controller(u8, ControllerMove),
    /// An event on a node, or on no node (`NO_NUMBER`).
    Event(Number, Event),
}

/// A move with its result.
#[derive(Debug, Clone)]
pub struct Successor {
    /// The move.
    pub by: Move,
    /// The state after the move, not in canonical form.
    pub to: State,
    /// Rule that the move breaks, if any.
    pub broken: Option<Broken>,
}

/// Lists all moves from a state.
pub fn successors(world: &World, state: &State, memo: &mut Memo) -> Vec<Successor> {
    let mut successors = vec![];
    for node in (0..world.nodes).filter(|node| state.nodes[*node].labels.liar.is_none()) {
        agent::moves(
            world,
            state,
            node,
            &mut memo.steps,
            &mut |act, delivery, reads, (to, broken)| {
                successors.push(Successor {
                    by: Move::Agent(node as Number, act, delivery, reads),
                    to,
                    broken,
                });
            },
        );
    }
    for who in 0..state.controllers.len() {
        controller::moves(world, state, who, &mut memo.plans, &mut |doing, (to, broken)| {
            successors.push(Successor {
                by: Move::Controller(who as u8, doing),
                to,
                broken,
            });
        });
    }
    events::events(world, state, &mut |node, event, to, broken| {
        let node = node.and_then(|n| Number::try_from(n).ok()).unwrap_or(NO_NUMBER);
        successors.push(Successor {
            by: Move::Event(node, event),
            to,
            broken,
        });
    });
    for way in &mut successors {
        way.broken = way.broken.or_else(|| judge::state(world, &way.to));
    }
    successors
}

/// Describes a state in a few lines.
pub fn picture(world: &World, state: &State) -> Vec<String> {
    let text = MoveText {
        by: &Move::Event(NO_NUMBER, Event::Created),
        names: &[],
        world,
    };
    let mut lines = vec![];
    for (number, node) in state.nodes.iter().enumerate().take(world.nodes) {
        let (object, host) = (&node.object, &node.host);
        let ready = if object.ready { "Ready" } else { "NotReady" };
        let cordon = if object.unschedulable { ", cordoned" } else { "" };
        let wants = node.spec.map_or_else(
            || "nothing".to_owned(),
            |s| format!("image {} in pool {}", s.image, rich::pool(s.pool)),
        );
        let lock = if host.locked { " locked" } else { "" };
        lines.push(format!(
            "{}: {ready}{cordon}, runs image {}, staged {}{lock}, should run {wants}, record {:?}",
            text.name(number as Number),
            host.booted,
            host.staged,
            object.cordon,
        ));
    }
    for (slot, lease) in state.slots.iter().enumerate().filter(|(_, l)| l.is != Berth::Missing) {
        lines.push(format!("{}: {}", text.slot(slot as Number), text.berth(&lease.is)));
    }
    lines
}

/// Text of a move, with the names that the nodes had at the start.
#[derive(Debug)]
pub struct MoveText<'a> {
    /// The move.
    pub by: &'a Move,
    /// The number that each node had at the start, indexed by its current number. Empty if nodes keep their numbers.
    pub names: &'a [Number],
    /// The world.
    pub world: &'a World,
}

impl MoveText<'_> {
    fn name(&self, node: Number) -> String {
        let name = self.names.get(usize::from(node)).unwrap_or(&node);
        name.checked_add(1)
            .map_or_else(|| "no node".to_owned(), |n| format!("n{n}"))
    }

    fn slot(&self, slot: Number) -> String {
        crate::watch::name(self.world, slot.into())
    }

    fn berth(&self, berth: &Berth) -> String {
        match berth {
            Berth::Missing => "deleted".to_owned(),
            Berth::Closed(c) => format!("closed:{}", c.reason.as_str()),
            Berth::Offered(o) => format!("offered to {} for image {}", self.name(o.node), o.target),
            Berth::Held(h) => {
                let phase = match h.phase {
                    Phase::Taken => "Taken".to_owned(),
                    Phase::Committed => "Committed".to_owned(),
                    Phase::Releasing(outcome) => format!("Releasing {}", outcome.as_str()),
                };
                let revoke = rich::word(h.revoke).map_or_else(String::new, |r| format!(", revoked: {r}"));
                format!("held by {}: {phase}{revoke}", self.name(h.node))
            }
        }
    }

    fn act(&self, act: Act) -> String {
        let Act::Put(put, slot, _) = act else {
            return format!("{act:?}");
        };
        let slot = self.slot(slot);
        match put {
            Put::Release(outcome) => format!("Release({slot}, {})", outcome.as_str()),
            put => format!("{put:?}({slot})"),
        }
    }

    fn write(&self, write: &Write) -> String {
        match write {
            Write::Berth { slot, lease, .. } => {
                format!("{} {} (epoch {})", self.slot(*slot), self.berth(&lease.is), lease.epoch)
            }
            Write::Publish { node, spec: Some(s) } if s.pool == NONE => format!("{} is released", self.name(*node)),
            Write::Publish { node, spec: Some(s) } => {
                format!(
                    "{} should run image {} (pool {})",
                    self.name(*node),
                    s.image,
                    rich::pool(s.pool)
                )
            }
            Write::Publish { node, spec: None } => format!("BootcNode of {} deleted", self.name(*node)),
            Write::Pool { pool, status } => {
                let failed = status.failures.iter().map(|f| f.len()).sum::<usize>();
                let (pool, target, total) = (rich::pool(*pool), status.target, status.published);
                format!("pool {pool} status: image {target}, capacity {total}, {failed} failures")
            }
        }
    }

    fn event(&self, event: &Event) -> String {
        match event {
            Event::Lands(Request::Berth { slot, lease, node }) => {
                format!(
                    "late PUT of {} lands: {} {}",
                    self.name(*node),
                    self.slot(*slot),
                    self.berth(&lease.is)
                )
            }
            Event::Lands(Request::Node { node, cordon, .. }) => {
                format!("late PATCH of {} lands: cordon {cordon:?}", self.name(*node))
            }
            Event::Lands(Request::Controller(write)) => format!("late write lands: {}", self.write(write)),
            Event::Moves(pool) => format!("the admin moves it to pool {}", rich::pool(*pool)),
            other => format!("{other:?}"),
        }
    }
}

fn delivery(delivery: Delivery) -> &'static str {
    match delivery {
        Delivery::Done => "",
        Delivery::Lost => "   (the answer is lost)",
        Delivery::Late => "   (in flight; the sender gives up)",
        Delivery::Killed => "   (in flight; the sender dies)",
    }
}

impl Display for MoveText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Move::Agent(node, act, _, true) => {
                write!(
                    f,
                    "{} agent: reads now, does {} later",
                    self.name(*node),
                    self.act(*act)
                )
            }
            Move::Agent(node, act, h, false) => {
                write!(f, "{} agent: {}{}", self.name(*node), self.act(*act), delivery(*h))
            }
            Move::Controller(who, ControllerMove::Send(write, h)) => {
                write!(f, "controller {}: {}{}", who + 1, self.write(write), delivery(*h))
            }
            Move::Controller(who, doing) => write!(f, "controller {}: {doing:?}", who + 1),
            Move::Event(NO_NUMBER, event) => write!(f, "world: {}", self.event(event)),
            Move::Event(node, event) => write!(f, "{}: {}", self.name(*node), self.event(event)),
        }
    }
}
