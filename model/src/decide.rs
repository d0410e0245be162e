//! Runs the agent's released decision code, and caches the results per view of the world.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::berth::{self, Outcome};
use berth_api::condition::{self, CommonReason};
use berth_api::node::{BootcNodeStatus, Phase};
use berth_core::agent::facts::AgentFacts;
use berth_core::agent::knowledge::{DrainProgress, Ending, Event, Knowledge};
use berth_core::agent::reason::Reason;
use berth_core::agent::report::{Machine, Subject, report};
use berth_core::agent::rollback_guard::{self, Duty};
use berth_core::agent::step::{Step, WaitReason, step};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent_view::AgentView;
use crate::hash::{self, Fast};
use crate::mind::{self, Mind, Observation};
use crate::rich;
use crate::state::{Berth, Image, NO_NUMBER, NONE, Number, State, Work};
use crate::world::World;

/// A step, with the model's numbers instead of names. The released code computes the berth of a `Put`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Wait(WaitReason),
    Look,
    ReadNode,
    /// Test whether the API server rejects forbidden writes.
    TryGuard,
    /// Do nothing: the step would first write the agent's memory file, but the disk is read-only.
    Forgets,
    Pull(Image),
    /// Do nothing, although the node may start a pull.
    Idle,
    Cancel(Image),
    Lock,
    Unlock,
    Unstage,
    Rollback,
    Reboot,
    Drain,
    Cordon,
    /// Restore the Node at the end of a turn.
    Restore,
    /// Restore a Node that is cordoned without a berth.
    Uncordon,
    Put(Put, Number, Berth),
    /// The step asked for a transition that the protocol does not allow.
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    Take,
    Commit,
    /// Write the berth unchanged, so that older writes in flight fail.
    Fence,
    Uncommit,
    Relicense,
    /// Begin to give the berth back.
    Release(Outcome),
    /// Close the berth.
    GiveBack,
}

/// An agent's work on the rollback guard before a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmallDuty {
    None,
    /// Arm the guard: target and previous image.
    Arm(Image, Image),
    Disarm,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub act: Act,
    pub prepared: bool,
    pub released: bool,
    /// The reported work, reduced to the cases that matter for permits to pull.
    pub work: Work,
    /// `lastTurn` of the report.
    pub turn: Image,
    /// The agent's work on the rollback guard before the step.
    pub duty: SmallDuty,
    /// True if the agent removes the file of a rollback guard that fired in an earlier boot, because the agent's
    /// memory has the rollback by now.
    pub forgets_guard: bool,
    /// Knowledge after the facts were gathered.
    pub gathered: Mind,
    /// Knowledge at the start of the step.
    pub begun: Mind,
    /// Knowledge after the step succeeded. For a drain: when no pods are left.
    pub done: Mind,
    /// Knowledge after the step was skipped, because the rollback guard has fired.
    pub skipped: Mind,
    /// Knowledge after the step failed, was rejected or had no known result. For a drain: while pods are left.
    pub failed: Mind,
}

#[derive(Debug, Default)]
pub struct Steps {
    /// Decisions, by the view's hash.
    known: HashMap<u64, Decision, Fast>,
    /// Knowledge, by the hash of view and observation.
    observed: HashMap<u64, Mind, Fast>,
}

/// Returns the berth with the node's real number instead of 0, its number in an [`AgentView`].
fn theirs(berth: Berth, node: usize) -> Berth {
    let node = Number::try_from(node).unwrap_or(NO_NUMBER);
    match berth {
        Berth::Offered(o) => Berth::Offered(crate::state::Offer { node, ..o }),
        Berth::Held(h) => Berth::Held(crate::state::Held { node, ..h }),
        Berth::Closed(c) if c.last == 0 => Berth::Closed(crate::state::Closed { last: node, ..c }),
        other => other,
    }
}

impl Steps {
    pub fn next(&mut self, world: &World, state: &State, node: usize) -> Decision {
        let (view, slots) = AgentView::of(world, state, node);
        let decision = *self.known.entry(hash::of(&view)).or_insert_with(|| decide(&view));
        match decision.act {
            Act::Put(put, at, berth) => {
                let slot = slots.get(usize::from(at)).and_then(|s| Number::try_from(*s).ok());
                Decision {
                    act: Act::Put(put, slot.unwrap_or(NO_NUMBER), theirs(berth, node)),
                    ..decision
                }
            }
            _ => decision,
        }
    }

    pub fn observe(&mut self, world: &World, state: &State, node: usize, observation: Observation) -> Mind {
        let (view, _) = AgentView::of(world, state, node);
        let key = hash::of(&(&view, observation));
        *self
            .observed
            .entry(key)
            .or_insert_with(|| mind::observe(&view, observation))
    }
}

fn after(knowledge: &Knowledge, event: Event<'_>, view: &AgentView) -> Knowledge {
    let mut knowledge = knowledge.clone();
    knowledge.after(event, &mind::now_on(&view.host));
    knowledge
}

fn decide(view: &AgentView) -> Decision {
    let now = mind::now_on(&view.host);
    let mut knowledge = mind::knowledge(view);
    mind::gather(&mut knowledge, view);
    let gathered = mind::mind(&knowledge, view);
    let forgets_guard = knowledge.may_forget_fired_guard();
    let facts = knowledge.facts(&now);
    let next = step(&facts);
    let duty = match rollback_guard::duty(&facts, &next) {
        Duty::None => SmallDuty::None,
        Duty::Arm(order) => SmallDuty::Arm(rich::image(Some(&order.target)), rich::image(Some(&order.previous))),
        Duty::Disarm => SmallDuty::Disarm,
    };
    let subject = Subject {
        generation: Some(1),
        step: &next,
        machine: &Machine::default(),
        heartbeat: Time::from(rich::NOW),
        conditions: &[],
    };
    let reported = report(&facts, &subject, &BootcNodeStatus::default());
    // A step that needs the memory fails if the memory cannot be written.
    let is_forgotten = next.needs_memory() && view.host.read_only;
    let (begun, done, skipped, failed) = if let Step::Wait(why, _) = &next {
        let rests = after(&knowledge, Event::Rests(*why), view);
        (knowledge, rests.clone(), rests.clone(), rests)
    } else {
        let mut begun = after(&knowledge, Event::Begins(&next), view);
        if is_forgotten {
            begun = after(&begun, Event::Memory(Some(mind::READ_ONLY.to_owned())), view);
        }
        let done = after(&begun, Event::Ends(&next, done(&next)), view);
        let skipped = after(&begun, Event::Ends(&next, Ending::NotNeeded), view);
        let failed = after(&begun, Event::Ends(&next, failed(&next)), view);
        (begun, done, skipped, failed)
    };
    Decision {
        act: if is_forgotten { Act::Forgets } else { act(&facts, &next) },
        prepared: condition::is_true(&reported.conditions, condition::node::UPDATE_PREPARED),
        released: condition::is_true(&reported.conditions, condition::node::RELEASED),
        work: work(&reported),
        turn: reported.last_turn.map_or(0, |t| rich::image(Some(&t.digest))),
        duty,
        forgets_guard,
        gathered,
        begun: mind::mind(&begun, view),
        done: mind::mind(&done, view),
        skipped: mind::mind(&skipped, view),
        failed: mind::mind(&failed, view),
    }
}

/// Returns the work in a report, reduced to the cases that matter for permits to pull.
fn work(reported: &BootcNodeStatus) -> Work {
    let pulled = condition::find(&reported.conditions, condition::node::IMAGE_PULLED);
    let reason = pulled.map(|pulled| &*pulled.reason);
    if reason == Some(CommonReason::Pulling.as_str()) {
        Work::Pulls
    } else if reported.phase == Some(Phase::Proving) {
        Work::Proves
    } else if reason == Some(CommonReason::Blocked.as_str()) {
        Work::Blocked
    } else {
        Work::Other
    }
}

fn done(step: &Step) -> Ending {
    match step {
        Step::Drain => drained(true),
        _ => Ending::Done,
    }
}

fn failed(step: &Step) -> Ending {
    match step {
        Step::Drain => drained(false),
        Step::Reboot => Ending::Refused("refused".to_owned()),
        _ => Ending::Failed {
            reason: Reason::StepFailed,
            message: String::new(),
        },
    }
}

fn drained(done: bool) -> Ending {
    Ending::Drain(if done {
        DrainProgress::Done { left_behind: vec![] }
    } else {
        DrainProgress::Waiting {
            blockers: vec![],
            next: Duration::ZERO,
        }
    })
}

fn act(facts: &AgentFacts, next: &Step) -> Act {
    let boot = rich::boot(0);
    let (put, before, after) = match next {
        Step::Wait(why, _) => return Act::Wait(*why),
        Step::LookAtHost => return Act::Look,
        Step::ReadNode => return Act::ReadNode,
        Step::TryGuard => return Act::TryGuard,
        Step::StartPull(image, _) => return Act::Pull(rich::image(Some(&image.digest))),
        Step::CancelPull(digest) => return Act::Cancel(rich::image(Some(digest))),
        Step::Lock(_) => return Act::Lock,
        Step::Unlock => return Act::Unlock,
        Step::Unstage(_) => return Act::Unstage,
        Step::Reboot => return Act::Reboot,
        Step::Rollback(..) => return Act::Rollback,
        Step::Drain => return Act::Drain,
        Step::Cordon(_) => return Act::Cordon,
        Step::Restore(_) => return Act::Restore,
        Step::Uncordon => return Act::Uncordon,
        Step::Take(b) => (Put::Take, b, taken(facts, b)),
        Step::Commit(b) => (Put::Commit, b, b.committed(boot)),
        Step::Fence(b) => (Put::Fence, b, Ok(b.clone())),
        Step::Uncommit(b) => (Put::Uncommit, b, b.uncommitted()),
        Step::Relicense(b, digest) => (Put::Relicense, b, b.relicensed(digest.clone(), boot)),
        Step::Release(b, outcome, _) => (Put::Release(*outcome), b, b.releasing(*outcome, boot)),
        Step::GiveBack(b) => (Put::GiveBack, b, b.given_back()),
    };
    let slot = Number::try_from(before.index).unwrap_or(NO_NUMBER);
    after.map_or(Act::Refused, |after| Act::Put(put, slot, rich::small(&after)))
}

/// Returns the berth after the agent took it. The UID is from the last read Node, as in the agent.
fn taken(facts: &AgentFacts, berth: &berth::Berth) -> Result<berth::Berth, berth::Refused> {
    let uid = facts.cluster_node.get().map(|node| node.uid.clone());
    let uid = uid.unwrap_or_else(|| rich::uid(0, NONE));
    berth.taken(&facts.node, &uid, facts.host.os.booted().cloned(), rich::boot(0))
}
