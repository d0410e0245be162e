//! The shipped [`berth_core::agent::step::step`], asked once for each view of the world that differs.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::berth::{self, Outcome};
use berth_api::condition;
use berth_api::node::{BootcNodeStatus, Deployment, DesiredImage, Failure, Staging, Turn};
use berth_core::agent::facts::{
    ClusterNode, Deployments, Desired, DrainFacts, Facts, HostFacts, Member, Os as HostOs, Past, PullFacts,
    Reboot as HostReboot,
};
use berth_core::agent::node::{CordonRecord, NodeFacts};
use berth_core::agent::report::{Subject, report};
use berth_core::agent::step::{REBOOT_AGAIN, REBOOT_GRACE, Step, WaitReason, step};
use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::rich;
use crate::state::{Berth, Cordon, Host, Image, Lease, NONE, Object, Os, Reboot, SLOTS, Seen, Spec, State};

/// All that a decision depends on. The node itself is number 0, so that what one decides serves for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    spec: Option<Spec>,
    os: Option<Os>,
    fresh: bool,
    node: Option<Option<Object>>,
    host: Host,
    berths: [Berth; SLOTS],
    fenced: bool,
    restored: bool,
    drained: bool,
    late: bool,
    overdue: bool,
    reboot: Reboot,
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
    /// Begin to pull.
    Pull(Image),
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
    Put(Put, u8, Berth),
    /// The shipped transition refused what the shipped step asked for.
    Refused,
}

/// Which transition of a berth.
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

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The step.
    pub act: Act,
    /// The report says `UpdatePrepared`.
    pub prepared: bool,
    /// The report's `lastTurn`.
    pub turn: Image,
    /// The agent's memory on the host, after it has gathered.
    pub host: Host,
}

/// The decisions made so far.
#[derive(Debug, Default)]
pub struct Steps {
    known: HashMap<View, Decision, crate::hash::Fast>,
}

impl View {
    /// What the agent of a node knows now.
    pub fn of(state: &State, node: usize, split: usize) -> Self {
        let _ = split;
        let here = &state.nodes[node];
        let agent = &here.agent;
        let mut berths = [Berth::Missing; SLOTS];
        for (berth, lease) in berths.iter_mut().zip(&state.slots) {
            *berth = mine(lease, node);
        }
        Self {
            spec: here.spec,
            os: agent.os,
            fresh: agent.fresh,
            node: match agent.node {
                Seen::Unread => None,
                Seen::Gone => Some(None),
                Seen::Is(object, _) => Some(Some(object)),
            },
            // What the agent does not see, or sees only in what it has read.
            host: Host {
                booted: 0,
                previous: 0,
                staged: 0,
                locked: false,
                blocked: false,
                ..here.host
            },
            berths,
            fenced: agent.fenced,
            restored: agent.restored,
            drained: agent.drained,
            late: agent.late,
            overdue: agent.overdue,
            reboot: agent.reboot,
        }
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
    let node = u8::try_from(node).unwrap_or(NONE);
    match berth {
        Berth::Offered(o) => Berth::Offered(crate::state::Offer { node, ..o }),
        Berth::Held(h) => Berth::Held(crate::state::Held { node, ..h }),
        Berth::Closed(c) if c.last == 0 => Berth::Closed(crate::state::Closed { last: node, ..c }),
        other => other,
    }
}

impl Steps {
    /// The next step of a node's agent.
    pub fn next(&mut self, state: &State, node: usize, split: usize) -> Decision {
        let view = View::of(state, node, split);
        let decision = *self.known.entry(view).or_insert_with(|| decide(&view, split));
        match decision.act {
            Act::Put(put, slot, berth) => Decision {
                act: Act::Put(put, slot, theirs(berth, node)),
                ..decision
            },
            _ => decision,
        }
    }
}

fn decide(view: &View, split: usize) -> Decision {
    let mut facts = facts(view, split);
    recall(&mut facts);
    let next = step(&facts);
    let act = act(&facts, &next, split);
    let subject = Subject {
        generation: Some(1),
        step: &next,
        bootc_version: None,
        heartbeat: Time::from(rich::NOW),
    };
    let told = report(&facts, &subject, &BootcNodeStatus::default());
    Decision {
        act,
        prepared: condition::is_true(&told.conditions, condition::node::UPDATE_PREPARED),
        turn: told.last_turn.map_or(0, |t| rich::image(Some(&t.digest))),
        host: remembered(view.host, &facts.past),
    }
}

/// As the agent's `gather` does before each decision, with the shipped memory.
fn recall(facts: &mut Facts) {
    let token = match &facts.desired {
        Desired::Member(member) => member.retry_token.clone(),
        _ => None,
    };
    facts.past.retry(token.as_deref());
    let holding = facts.berths.iter().flatten().find_map(|b| b.holding()).cloned();
    if let Some(digest) = facts.desired.digest().cloned() {
        facts.past.desire(&digest);
        if facts.host.os.booted() == Some(&digest) && holding.is_none() {
            facts.past.proven(&digest);
        } else if facts
            .host
            .os
            .staged()
            .is_some_and(|s| s.locked && s.digest.as_ref() == Some(&digest))
        {
            facts.past.succeeded(&digest);
        }
    }
    if let Some(holding) = holding {
        facts.past.runs(&holding, facts.host.os.booted());
    }
}

fn act(facts: &Facts, next: &Step, split: usize) -> Act {
    let boot = || rich::boot(0);
    let slot = |b: &berth::Berth| crate::world::slot(b, split);
    let put = |put: Put, before: &berth::Berth, after: Result<berth::Berth, berth::Refused>| match after {
        Ok(after) => Act::Put(put, slot(before), rich::small(&after)),
        Err(_) => Act::Refused,
    };
    match next {
        Step::Wait(why, _) => Act::Wait(*why),
        Step::LookAtHost => Act::Look,
        Step::ReadNode => Act::ReadNode,
        Step::StartPull(image) => Act::Pull(rich::image(Some(&image.digest))),
        Step::CancelPull(digest) => Act::Cancel(rich::image(Some(digest))),
        Step::Lock => Act::Lock,
        Step::Unlock => Act::Unlock,
        Step::Unstage => Act::Unstage,
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

fn facts(view: &View, split: usize) -> Facts {
    let berths = view.berths.iter().enumerate().filter_map(|(slot, berth)| {
        let lease = Lease { epoch: 0, is: *berth };
        rich::berth(crate::world::place(slot, split), &lease, rich::OWN_EPOCH)
    });
    Facts {
        node: rich::name(0),
        now: rich::NOW,
        desired: desired(view.spec),
        host: host(view),
        cluster_node: match view.node {
            None => ClusterNode::Unread,
            Some(None) => ClusterNode::Gone,
            Some(Some(object)) => ClusterNode::Is(node(&object)),
        },
        berths: Some(berths.collect()),
        fenced: view.fenced,
        restored: view.restored,
        drain: DrainFacts {
            done: view.drained,
            elapsed: if view.late {
                Duration::from_secs(1 << 20)
            } else {
                Duration::ZERO
            },
            ..DrainFacts::default()
        },
        proving_for: if view.overdue {
            Duration::from_secs(1 << 20)
        } else {
            Duration::ZERO
        },
        past: past(&view.host),
        trouble: None,
    }
}

fn desired(spec: Option<Spec>) -> Desired {
    let Some(spec) = spec else { return Desired::Unknown };
    if spec.pool == NONE {
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
        }),
        staging: Staging::Allowed,
        drain: berth_api::pool::Drain::default(),
        retry_token: (spec.token != 0).then(|| spec.token.to_string()),
        reboot_timeout: Duration::from_secs(900),
    }))
}

fn host(view: &View) -> HostFacts {
    let deployment = |image: Image, locked: bool| Deployment {
        digest: rich::some_digest(image),
        locked,
        ..Deployment::default()
    };
    let os = view.os.map_or(HostOs::Unknown, |os| {
        HostOs::Bootc(Box::new(Deployments {
            booted: deployment(os.booted, false),
            staged: (os.staged != 0).then(|| deployment(os.staged, os.locked)),
            rollback: None,
        }))
    });
    HostFacts {
        boot_id: rich::boot(0),
        os,
        fresh: view.fresh,
        pull: (view.host.pull != 0).then(|| PullFacts {
            digest: rich::digest(view.host.pull),
            progress: None,
        }),
        inhibitors: if view.host.inhibited {
            vec!["somebody".to_owned()]
        } else {
            vec![]
        },
        shutting_down: view.host.down,
        shutdown_scheduled: false,
        rivals: vec![],
        finalization_failed: view.host.unfinalized,
        reboot: match view.reboot {
            Reboot::No => HostReboot::NotAsked,
            Reboot::Asked => HostReboot::Asked(Duration::ZERO),
            Reboot::Late => HostReboot::Asked(REBOOT_GRACE),
            Reboot::Long => HostReboot::Asked(REBOOT_GRACE + REBOOT_AGAIN),
            Reboot::Blocked => HostReboot::Blocked {
                why: "refused".to_owned(),
                ago: Duration::ZERO,
            },
            Reboot::BlockedLong => HostReboot::Blocked {
                why: "refused".to_owned(),
                ago: REBOOT_AGAIN,
            },
        },
        clock_synchronized: Some(true),
    }
}

fn node(object: &Object) -> NodeFacts {
    let record = |unschedulable| CordonRecord {
        berth: String::new(),
        unschedulable,
    };
    NodeFacts {
        uid: rich::uid(0, object.uid),
        resource_version: String::new(),
        unschedulable: object.unschedulable,
        ready: object.ready,
        boot_id: Some(rich::boot(object.boot)),
        cordon: match object.cordon {
            Cordon::No => None,
            Cordon::OverSchedulable => Some(record(false)),
            Cordon::OverCordoned => Some(record(true)),
        },
        excluded: object.excluded,
    }
}

/// The agent's memory.
pub fn past(host: &Host) -> Past {
    let later = Time::from(rich::NOW + SignedDuration::from_secs(60));
    let at = |waits: bool| if waits { later.clone() } else { Time::from(rich::NOW) };
    let failed = (1..4).filter(|i| host.failed & (1 << i) != 0).map(rich::digest);
    Past {
        failure: host.pull_backoff.then(|| Failure {
            reason: String::new(),
            message: String::new(),
            digest: rich::some_digest(host.ours),
            attempts: 1,
            next_try_time: at(true),
        }),
        last_turn: (host.turn != 0).then(|| Turn {
            outcome: Outcome::NotApplied.as_str().to_owned(),
            message: String::new(),
            digest: rich::digest(host.turn),
            attempts: 1,
            next_try_time: at(host.backoff),
        }),
        failed_digests: failed.collect(),
        staged_by_us: rich::some_digest(host.ours),
        not_applied: (host.not_applied.1 > 0).then(|| (rich::digest(host.not_applied.0), host.not_applied.1.into())),
        tried: rich::some_digest(host.tried),
        unproven_boot: host.relicensed.then(|| rich::boot(0)),
        retry_token: (host.token != 0).then(|| host.token.to_string()),
        ..Past::default()
    }
}

/// The host with this memory.
pub fn remembered(host: Host, past: &Past) -> Host {
    Host {
        pull_backoff: past.failure.is_some(),
        turn: past.last_turn.as_ref().map_or(0, |t| rich::image(Some(&t.digest))),
        backoff: past.last_turn.as_ref().is_some_and(|t| t.next_try_time.0 > rich::NOW),
        failed: past
            .failed_digests
            .iter()
            .fold(0, |bits, d| bits | 1 << rich::image(Some(d))),
        ours: rich::image(past.staged_by_us.as_ref()),
        not_applied: past
            .not_applied
            .as_ref()
            .map_or((0, 0), |(d, n)| (rich::image(Some(d)), (*n).min(9) as u8)),
        tried: rich::image(past.tried.as_ref()),
        relicensed: past.unproven_boot == Some(rich::boot(0)),
        token: past.retry_token.as_ref().and_then(|t| t.parse().ok()).unwrap_or(0),
        ..host
    }
}
