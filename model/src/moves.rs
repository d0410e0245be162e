//! All ways on from a state.

use std::fmt::{self, Display};

use crate::agent::{self, How};
use crate::controller::{self, Doing};
use crate::decide::{Act, Put, Steps};
use crate::judge;
use crate::nature::{self, Event};
use crate::planner::Plans;
use crate::rich;
use crate::state::{Berth, NOBODY, NONE, No, Phase, Request, State, Write};
use crate::world::{Broken, World};

/// Memo of the shipped functions' answers.
#[derive(Debug, Default)]
pub struct Memo {
    /// Answers of the agent's.
    pub steps: Steps,
    /// Answers of the controller's.
    pub plans: Plans,
}

/// One move, as a history shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// The agent of a node acts. `true`: it only reads, and acts later.
    Agent(No, Act, How, bool),
    /// A controller acts.
    Controller(u8, Doing),
    /// Something happens, to a node or not.
    Event(No, Event),
}

/// One way on.
#[derive(Debug, Clone)]
pub struct Way {
    /// The move.
    pub by: Move,
    /// The state after it, not canonical.
    pub to: State,
    /// The rule that it breaks.
    pub broken: Option<Broken>,
}

/// All ways on from a state.
pub fn ways(world: &World, state: &State, memo: &mut Memo) -> Vec<Way> {
    let mut ways = vec![];
    for node in 0..world.nodes {
        agent::moves(
            world,
            state,
            node,
            &mut memo.steps,
            &mut |act, how, reads, (to, broken)| {
                ways.push(Way {
                    by: Move::Agent(node as No, act, how, reads),
                    to,
                    broken,
                });
            },
        );
    }
    for who in 0..state.controllers.len() {
        controller::moves(world, state, who, &mut memo.plans, &mut |doing, (to, broken)| {
            ways.push(Way {
                by: Move::Controller(who as u8, doing),
                to,
                broken,
            });
        });
    }
    nature::events(world, state, &mut |node, event, to, broken| {
        let node = node.and_then(|n| No::try_from(n).ok()).unwrap_or(NOBODY);
        ways.push(Way {
            by: Move::Event(node, event),
            to,
            broken,
        });
    });
    for way in &mut ways {
        way.broken = way.broken.or_else(|| judge::state(world, &way.to));
    }
    ways
}

/// A state for people, in a few lines.
pub fn picture(world: &World, state: &State) -> Vec<String> {
    let told = Told {
        by: &Move::Event(NOBODY, Event::Created),
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
            told.name(number as No),
            host.booted,
            host.staged,
            object.cordon,
        ));
    }
    for (slot, lease) in state.slots.iter().enumerate().filter(|(_, l)| l.is != Berth::Missing) {
        lines.push(format!("{}: {}", told.slot(slot as No), told.berth(&lease.is)));
    }
    lines
}

/// A move for people: nodes by the names that they had at the start.
#[derive(Debug)]
pub struct Told<'a> {
    /// The move.
    pub by: &'a Move,
    /// The names of the nodes now; nothing where they keep their numbers.
    pub names: &'a [No],
    /// The world.
    pub world: &'a World,
}

impl Told<'_> {
    fn name(&self, node: No) -> String {
        let name = self.names.get(usize::from(node)).unwrap_or(&node);
        name.checked_add(1)
            .map_or_else(|| "nobody".to_owned(), |n| format!("n{n}"))
    }

    fn slot(&self, slot: No) -> String {
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
            Write::Publish { node, spec: Some(s) } if s.pool == NONE => format!("{} may go", self.name(*node)),
            Write::Publish { node, spec: Some(s) } => {
                format!(
                    "{} shall run image {} (pool {})",
                    self.name(*node),
                    s.image,
                    rich::pool(s.pool)
                )
            }
            Write::Publish { node, spec: None } => format!("BootcNode of {} deleted", self.name(*node)),
            Write::Pool {
                pool,
                target,
                total,
                failures,
                ..
            } => {
                let failed = failures.iter().map(|f| f.len()).sum::<usize>();
                let pool = rich::pool(*pool);
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

fn how(how: How) -> &'static str {
    match how {
        How::Done => "",
        How::Lost => "   (the answer is lost)",
        How::Late => "   (still on its way; the sender gives up)",
        How::Killed => "   (still on its way; the sender dies)",
    }
}

impl Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            Move::Agent(node, act, _, true) => {
                write!(f, "{} agent: reads, to {} later", self.name(*node), self.act(*act))
            }
            Move::Agent(node, act, h, false) => write!(f, "{} agent: {}{}", self.name(*node), self.act(*act), how(*h)),
            Move::Controller(who, Doing::Send(write, h)) => {
                write!(f, "controller {}: {}{}", who + 1, self.write(write), how(*h))
            }
            Move::Controller(who, doing) => write!(f, "controller {}: {doing:?}", who + 1),
            Move::Event(NOBODY, event) => write!(f, "world: {}", self.event(event)),
            Move::Event(node, event) => write!(f, "{}: {}", self.name(*node), self.event(event)),
        }
    }
}
