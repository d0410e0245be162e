//! Fixtures; the tests are in the submodules.

use std::time::Duration;

use berth_api::berth::{BerthState, Offer};
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName, NodeUid, PoolName};
use berth_api::node::{Deployment, DesiredImage, DrainBlocker, Staging, Turn};
use berth_api::pool::{Drain, OnTimeout, RivalUpdaters};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

mod any_facts;
mod boots;
mod conditions;
mod hands_off;
mod order;
mod proof;
mod properties;
mod reports;
mod rivals;
mod rules;
mod signs;
mod troubles;
mod turns;
mod undo;

use super::action::{HOST_LOOK_INTERVAL, LOOK_INTERVAL, READY_LOOK_INTERVAL};
use super::*;
use crate::agent::facts::{
    Deployments, DrainFacts, Guard, GuardFacts, HostFacts, HostHealth, LockFailure, Member, Past, PullFacts, Reboot,
    RollbackGuard, SoftReboots, Unreachable,
};
use crate::agent::host_policy::Rules;
use crate::agent::host_policy::registries::Registries;
use crate::agent::node::{CordonRecord, NodeFacts};
use crate::agent::reason::Reason;
use crate::agent::storage::{StagingLock, Storage};

const HOUR: Duration = Duration::from_secs(3600);

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn deployment(n: u8, locked: bool) -> Deployment {
    Deployment {
        digest: Some(digest(n)),
        locked,
        ..Deployment::default()
    }
}

fn image(n: u8) -> DesiredImage {
    DesiredImage {
        reference: format!("registry.example/os@{}", digest(n)).into(),
        digest: digest(n),
        index_digest: digest(n),
        version: None,
        signature: berth_api::pool::SignatureRule::AsBooted,
    }
}

fn lock() -> Step {
    Step::Lock(Storage::Ostree.ostree_lock().unwrap())
}

/// Returns the step that pulls image `n` on an ostree host. bootc stages the image unlocked, so Berth sets ostree's
/// lock.
fn pull(n: u8) -> Step {
    Step::StartPull(image(n), StagingLock::of(Storage::Ostree, false).unwrap())
}

fn member(n: u8) -> Member {
    Member {
        pool: PoolName::from("workers"),
        node_uid: NodeUid::from("u1"),
        image: Some(image(n)),
        staging: Staging::Allowed,
        drain: Drain {
            timeout: Some("1h".into()),
            ..Drain::default()
        },
        health: berth_api::pool::Health {
            deadline: Some("1h".into()),
            ..berth_api::pool::Health::default()
        },
        backend: berth_api::backend::BackendRule::Auto,
        rivals: RivalUpdaters::Wait,
        tolerated: vec![],
        retry_token: None,
        reboot_timeout: HOUR,
        reboot_policy: Default::default(),
        paused: false,
        estimates: berth_api::pool::PhaseDurations::default(),
    }
}

/// Returns a host policy that allows no image of the tests' registry.
fn forbidding() -> Rules {
    Rules {
        registries: Registries::new(&["quay.io".to_owned()], None),
        ..Rules::default()
    }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn later(seconds: i64) -> Time {
    Time::from(now() + SignedDuration::from_secs(seconds))
}

/// Returns the facts of a node without problems that runs image 1, should run image 2, and has image 2 staged and
/// locked.
fn facts() -> AgentFacts {
    let deployments = Deployments {
        booted: deployment(1, false),
        staged: Some(deployment(2, true)),
        ..Deployments::default()
    };
    AgentFacts {
        node: NodeName::from("n1"),
        now: now(),
        desired: Desired::Member(Box::new(member(2))),
        host: HostFacts {
            boot_id: BootId::from("b1"),
            os: Os::Bootc(Box::new(deployments)),
            fresh: true,
            disarmed: false,
            lock_failure: None,
            pull: None,
            inhibitors: vec![],
            shutting_down: false,
            shutdown_scheduled: false,
            unreachable: None,
            memory_error: None,
            rules: Rules::default(),
            rivals: vec![],
            finalization_failed: false,
            reboot: Reboot::NotAsked,
            clock_synchronized: Some(true),
            health: Some(HostHealth::default()),
            rollback_guard: RollbackGuard::Disarmed,
            soft_reboots: SoftReboots::default(),
        },
        cluster_node: ClusterNode::Is(node()),
        berths: Some(vec![]),
        fenced: true,
        restored: false,
        drain: DrainFacts::default(),
        proving_for: Duration::ZERO,
        ready_for: Duration::ZERO,
        check_readings: vec![],
        guard: GuardFacts {
            answer: Guard::Refuses,
            next_try: HOUR,
            silence: None,
        },
        past: Past::default(),
        trouble: None,
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        uid: NodeUid::from("u1"),
        resource_version: "1".into(),
        unschedulable: false,
        ready: true,
        boot_id: Some(BootId::from("b1")),
        cordon: None,
        excluded: false,
        control_plane: false,
        not_ready_taint: None,
        ready_reported: None,
        conditions: Default::default(),
        signs: Default::default(),
    }
}

fn cordoned() -> ClusterNode {
    let cordon = Some(CordonRecord {
        berth: "workers-0".into(),
        unschedulable: false,
    });
    ClusterNode::Is(NodeFacts {
        unschedulable: true,
        cordon,
        ..node()
    })
}

type Change = fn(&mut AgentFacts);

fn change(mut facts: AgentFacts, change: impl FnOnce(&mut AgentFacts)) -> AgentFacts {
    change(&mut facts);
    facts
}

fn node_of(facts: &mut AgentFacts, change: impl FnOnce(&mut NodeFacts)) {
    if let ClusterNode::Is(node) = &mut facts.cluster_node {
        change(node);
    }
}

fn deployments_of(facts: &mut AgentFacts, change: impl FnOnce(&mut Deployments)) {
    if let Os::Bootc(deployments) = &mut facts.host.os {
        change(deployments);
    }
}

fn publish(facts: &mut AgentFacts, change: impl FnOnce(&mut Member)) {
    if let Desired::Member(member) = &mut facts.desired {
        change(member);
    }
}

fn release(facts: &AgentFacts) -> (Outcome, String) {
    match step(facts) {
        Step::Release(_, outcome, message) => (outcome, message),
        other => panic!("{other:?}"),
    }
}

fn unusable() -> Os {
    Os::Unusable {
        reason: Reason::StatusFailed,
        message: "no answer".to_owned(),
    }
}

fn os(facts: &mut AgentFacts, booted: u8, staged: Option<Deployment>) {
    facts.host.os = Os::Bootc(Box::new(Deployments {
        booted: deployment(booted, false),
        staged,
        ..Deployments::default()
    }));
}

fn offered(target: u8, uid: &str) -> Berth {
    let open_until = now() + SignedDuration::from_secs(60);
    let offer = Offer {
        node: NodeName::from("n1"),
        uid: NodeUid::from(uid),
        target: digest(target),
        open_until: Some(open_until),
    };
    Berth::new(PoolName::from("workers"), 0, 1).offered(offer).unwrap()
}

fn taken() -> Berth {
    let (node, uid) = (NodeName::from("n1"), NodeUid::from("u1"));
    offered(2, "u1")
        .taken(&node, &uid, Some(digest(1)), BootId::from("b1"))
        .unwrap()
}

fn committed() -> Berth {
    taken().committed(BootId::from("b1")).unwrap()
}

fn with(berth: &Berth) -> AgentFacts {
    AgentFacts {
        berths: Some(vec![berth.clone()]),
        cluster_node: cordoned(),
        ..facts()
    }
}

/// Returns the facts of a node after its reboot: it runs the image `booted` in boot b2.
fn rebooted(berth: &Berth, booted: u8) -> AgentFacts {
    let mut facts = with(berth);
    facts.host.boot_id = BootId::from("b2");
    os(&mut facts, booted, None);
    node_of(&mut facts, |node| node.boot_id = Some(BootId::from("b2")));
    facts
}

/// Returns the facts of a node after its reboot into `booted`, in boot b2. The Node is not Ready. The pool now wants
/// image 3, which is staged and locked.
fn stuck(berth: &Berth, booted: u8) -> AgentFacts {
    let mut facts = rebooted(berth, booted);
    os(&mut facts, booted, Some(deployment(3, true)));
    facts.desired = Desired::Member(Box::new(member(3)));
    facts.drain.done = true;
    ready(&mut facts, false);
    facts
}

fn ready(facts: &mut AgentFacts, ready: bool) {
    node_of(facts, |node| node.ready = ready);
}

/// Returns a berth that was committed again for image 3, in the unproven boot b2.
fn relicensed() -> Berth {
    committed().relicensed(digest(3), BootId::from("b2")).unwrap()
}
