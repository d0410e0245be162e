//! The agent's knowledge and its next step, as they ship, asked once for each view of the world that differs.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::berth::{self, Outcome};
use berth_api::condition::{self, Why};
use berth_api::node::{BootcNodeStatus, DesiredImage, Phase, Staging};
use berth_core::agent::facts::{AgentFacts, Desired, Member};
use berth_core::agent::knowledge::{Ending, Event, Knowledge};
use berth_core::agent::reason::Reason;
use berth_core::agent::report::{Subject, report};
use berth_core::agent::step::{Step, WaitReason, step};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::hash::{self, Fast};
use crate::mind::{self, Mind, Told};
use crate::rich;
use crate::state::{Agent, Berth, Host, Image, Lease, Memory, NOBODY, NONE, No, Seen, Spec, State, Work};
use crate::world::World;

/// All that a decision depends on. The node itself is number 0, so that what one decides serves for all.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct View {
    /// Published spec.
    pub spec: Option<Spec>,
    /// Knowledge of the agent.
    pub agent: Agent,
    /// The memory on the host, and what the agent asks of the host in every pass.
    pub host: Host,
    /// Its own berths, with their pools; the first is number 0, and so on.
    pub berths: Vec<(u8, Berth)>,
}

/// A step, in the model's numbers. Berths are what the shipped transitions made of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing to do.
    Wait(WaitReason),
    /// Read the host.
    Look,
    /// Read the Node.
    ReadNode,
    /// Try what the API server must refuse.
    TryGuard,
    /// Do nothing: the step needs the memory on the host, which could not be written.
    Forgets,
    /// Begin to pull.
    Pull(Image),
    /// Do nothing, although the node may begin to pull.
    Idle,
    /// Stop a pull.
    Cancel(Image),
    /// Lock what is staged.
    Lock,
    /// Unlock it.
    Unlock,
    /// Remove it.
    Unstage,
    /// Reboot.
    Reboot,
    /// Make a pass of the drain.
    Drain,
    /// Cordon the Node.
    Cordon,
    /// Restore it, in a turn.
    Restore,
    /// Restore it: a cordon that no berth covers.
    Uncordon,
    /// Write a berth.
    Put(Put, No, Berth),
    /// The shipped transition refused what the shipped step asked for.
    Refused,
}

/// A transition of a berth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// Take an offer.
    Take,
    /// Commit.
    Commit,
    /// Write it as it is.
    Fence,
    /// Take the commit back.
    Uncommit,
    /// Go on to another digest.
    Relicense,
    /// Begin to give back.
    Release(Outcome),
    /// Give back.
    GiveBack,
}

/// A decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The step.
    pub act: Act,
    /// The report says `UpdatePrepared`.
    pub prepared: bool,
    /// The report says that the node is released.
    pub released: bool,
    /// What the report says that a permit to pull depends on.
    pub work: Work,
    /// The report's `lastTurn`.
    pub turn: Image,
    /// Knowledge of the agent when it has gathered,
    pub gathered: Mind,
    /// when it begins with the step,
    pub begun: Mind,
    /// when the step is done: for a drain, when nothing is left,
    pub done: Mind,
    /// and when it is not: it failed, was refused, its fate is unknown, or something is left to drain.
    pub failed: Mind,
}

/// The decisions made so far, and what was told between them.
#[derive(Debug, Default)]
pub struct Steps {
    /// The decision on each view, by the view's fingerprint.
    known: HashMap<u64, Decision, Fast>,
    told: HashMap<u64, Mind, Fast>,
}

impl View {
    /// Everything that the agent of a node may decide on, and the numbers of its berths.
    fn of(world: &World, state: &State, node: usize) -> (Self, Vec<usize>) {
        let here = &state.nodes[node];
        let (mut slots, mut berths) = (vec![], vec![]);
        for (slot, lease) in state.slots.iter().enumerate() {
            let berth = mine(lease, node);
            if berth != Berth::Missing {
                slots.push(slot);
                berths.push((world.pool_of(slot), berth));
            }
        }
        let mut agent = here.agent;
        if let Seen::Is(_, current) = &mut agent.node {
            // Only the API server knows.
            *current = false;
        }
        // What the agent does not see, or sees only in what it has read.
        let host = Host {
            booted: 0,
            previous: 0,
            staged: 0,
            locked: false,
            blocked: false,
            no_lock: false,
            no_unstage: false,
            unusable: false,
            no_note: false,
            queued: false,
            disk: here.host.disk.map(|_| Memory::default()),
            ..here.host
        };
        let view = Self {
            spec: here.spec,
            agent,
            host,
            berths,
        };
        (view, slots)
    }
}

/// The berth as the node of that number sees it, which is number 0 to itself.
fn mine(lease: &Lease, node: usize) -> Berth {
    match lease.is {
        Berth::Offered(o) if usize::from(o.node) == node => Berth::Offered(crate::state::Offer { node: 0, ..o }),
        Berth::Held(h) if usize::from(h.node) == node => Berth::Held(crate::state::Held { node: 0, ..h }),
        _ => Berth::Missing,
    }
}

/// A berth that a node wrote, with its own number.
fn theirs(berth: Berth, node: usize) -> Berth {
    let node = No::try_from(node).unwrap_or(NOBODY);
    match berth {
        Berth::Offered(o) => Berth::Offered(crate::state::Offer { node, ..o }),
        Berth::Held(h) => Berth::Held(crate::state::Held { node, ..h }),
        Berth::Closed(c) if c.last == 0 => Berth::Closed(crate::state::Closed { last: node, ..c }),
        other => other,
    }
}

impl Steps {
    /// The next step of a node's agent.
    pub fn next(&mut self, world: &World, state: &State, node: usize) -> Decision {
        let (view, slots) = View::of(world, state, node);
        let decision = *self.known.entry(hash::of(&view)).or_insert_with(|| decide(&view));
        match decision.act {
            Act::Put(put, at, berth) => {
                let slot = slots.get(usize::from(at)).and_then(|s| No::try_from(*s).ok());
                Decision {
                    act: Act::Put(put, slot.unwrap_or(NOBODY), theirs(berth, node)),
                    ..decision
                }
            }
            _ => decision,
        }
    }

    /// Knowledge of a node's agent after it was told something.
    pub fn told(&mut self, world: &World, state: &State, node: usize, told: Told) -> Mind {
        let (view, _) = View::of(world, state, node);
        let key = hash::of(&(&view, told));
        *self.told.entry(key).or_insert_with(|| mind::told(&view, told))
    }
}

fn decide(view: &View) -> Decision {
    let now = mind::now_on(&view.host);
    let mut knowledge = mind::knowledge(view);
    mind::gather(&mut knowledge, view);
    let gathered = mind::mind(&knowledge, view);
    let facts = knowledge.facts(&now);
    let next = step(&facts);
    let subject = Subject {
        generation: Some(1),
        step: &next,
        bootc_version: None,
        platform_variant: None,
        boot_image: None,
        firstboot: None,
        heartbeat: Time::from(rich::NOW),
        conditions: &[],
    };
    let told = report(&facts, &subject, &BootcNodeStatus::default());
    let after = |knowledge: &Knowledge, event: Event<'_>| {
        let mut knowledge = knowledge.clone();
        knowledge.after(event, &now);
        knowledge
    };
    // A step that needs the memory fails when that cannot be written.
    let is_forgotten = next.needs_memory() && view.host.read_only;
    let (begun, done, failed) = if let Step::Wait(why, _) = &next {
        let rests = after(&knowledge, Event::Rests(*why));
        (knowledge, rests.clone(), rests)
    } else {
        let mut begun = after(&knowledge, Event::Begins(&next));
        if is_forgotten {
            begun = after(&begun, Event::Memory(Some(mind::READ_ONLY.to_owned())));
        }
        let done = after(&begun, Event::Ends(&next, done(&next)));
        let failed = after(&begun, Event::Ends(&next, failed(&next)));
        (begun, done, failed)
    };
    Decision {
        act: if is_forgotten { Act::Forgets } else { act(&facts, &next) },
        prepared: condition::is_true(&told.conditions, condition::node::UPDATE_PREPARED),
        released: condition::is_true(&told.conditions, condition::node::RELEASED),
        work: work(&told),
        turn: told.last_turn.map_or(0, |t| rich::image(Some(&t.digest))),
        gathered,
        begun: mind::mind(&begun, view),
        done: mind::mind(&done, view),
        failed: mind::mind(&failed, view),
    }
}

/// What a report says that a permit to pull depends on.
fn work(told: &BootcNodeStatus) -> Work {
    let pulled = condition::find(&told.conditions, condition::node::IMAGE_PULLED);
    let is_pulled = |reason: Why| pulled.is_some_and(|pulled| pulled.reason == reason.as_str());
    if is_pulled(Why::Pulling) {
        Work::Pulls
    } else if told.phase == Some(Phase::Proving) {
        Work::Proves
    } else if is_pulled(Why::Blocked) {
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
    Ending::Drain {
        done,
        blockers: vec![],
        left_behind: vec![],
        next: Duration::ZERO,
    }
}

fn act(facts: &AgentFacts, next: &Step) -> Act {
    let boot = || rich::boot(0);
    let slot = |b: &berth::Berth| No::try_from(b.index).unwrap_or(NOBODY);
    let put = |put: Put, before: &berth::Berth, after: Result<berth::Berth, berth::Refused>| match after {
        Ok(after) => Act::Put(put, slot(before), rich::small(&after)),
        Err(_) => Act::Refused,
    };
    match next {
        Step::Wait(why, _) => Act::Wait(*why),
        Step::LookAtHost => Act::Look,
        Step::ReadNode => Act::ReadNode,
        Step::TryGuard => Act::TryGuard,
        Step::StartPull(image, _) => Act::Pull(rich::image(Some(&image.digest))),
        Step::CancelPull(digest) => Act::Cancel(rich::image(Some(digest))),
        Step::Lock(_) => Act::Lock,
        Step::Unlock => Act::Unlock,
        Step::Unstage(_) => Act::Unstage,
        Step::Reboot => Act::Reboot,
        Step::Drain => Act::Drain,
        Step::Cordon(_) => Act::Cordon,
        Step::Restore(_) => Act::Restore,
        Step::Uncordon => Act::Uncordon,
        // As in the agent's own `take`: the UID of the Node that was read.
        Step::Take(b) => {
            let uid = facts
                .cluster_node
                .get()
                .map(|n| n.uid.clone())
                .unwrap_or_else(|| rich::uid(0, NONE));
            put(
                Put::Take,
                b,
                b.taken(&facts.node, &uid, facts.host.os.booted().cloned(), boot()),
            )
        }
        Step::Commit(b) => put(Put::Commit, b, b.committed(boot())),
        Step::Fence(b) => put(Put::Fence, b, Ok(b.clone())),
        Step::Uncommit(b) => put(Put::Uncommit, b, b.uncommitted()),
        Step::Relicense(b, digest) => put(Put::Relicense, b, b.relicensed(digest.clone(), boot())),
        Step::Release(b, outcome, _) => put(Put::Release(*outcome), b, b.releasing(*outcome, boot())),
        Step::GiveBack(b) => put(Put::GiveBack, b, b.given_back()),
    }
}

/// Wish of a BootcNode.
pub fn desired(spec: Option<Spec>) -> Desired {
    let Some(spec) = spec else { return Desired::Unknown };
    if spec.deleting || spec.pool == NONE {
        return Desired::Release;
    }
    Desired::Member(Box::new(Member {
        pool: rich::pool(spec.pool),
        node_uid: rich::uid(0, spec.uid),
        image: (spec.image != 0).then(|| DesiredImage {
            reference: String::new(),
            digest: rich::digest(spec.image),
            index_digest: rich::digest(spec.image),
            version: None,
            signature: berth_api::pool::SignatureRule::AsBooted,
        }),
        staging: if spec.may_pull { Staging::Allowed } else { Staging::Held },
        drain: berth_api::pool::Drain::default(),
        backend: berth_api::backend::BackendRule::Auto,
        rivals: berth_api::pool::RivalUpdaters::Wait,
        tolerated: vec![],
        retry_token: (spec.token != 0).then(|| spec.token.to_string()),
        reboot_timeout: Duration::from_secs(900),
        paused: false,
        estimates: berth_api::pool::PhaseDurations::default(),
    }))
}
