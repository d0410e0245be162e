//! Tests of the readings that each event keeps or invalidates.

use std::time::Duration;

use berth_api::berth::{Berth, Offer, Outcome};
use berth_api::digest::Digest;
use berth_api::names::PoolName;
use berth_api::node::{BootcNodeStatus, Deployment, DesiredImage};
use jiff::{SignedDuration, Timestamp};

use super::*;
use crate::agent::facts::{ClusterNode, Deployments, Desired, Os, Past, PullFacts, Reboot};
use crate::agent::host_policy::Rules;
use crate::agent::node::NodeFacts;
use crate::agent::reason::Reason;
use crate::agent::step::{Step, WaitReason};
use crate::agent::storage::{StagingLock, Storage};
use crate::{Moment, Now};

mod boots;
mod guard;
mod host;
mod pulls;
mod record;
mod rpm_ostree;
mod turn;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn at(seconds: u64) -> Now {
    Now {
        wall: Timestamp::from_second(1_000_000).unwrap() + SignedDuration::from_secs(seconds as i64),
        clock: Moment::after(Duration::from_secs(seconds)),
        chance: 0.0,
    }
}

fn deployment(n: u8, locked: bool) -> Deployment {
    Deployment {
        digest: Some(digest(n)),
        locked,
        ..Deployment::default()
    }
}

fn lock() -> Step {
    Step::Lock(Storage::Ostree.ostree_lock().unwrap())
}

fn pull() -> Step {
    Step::StartPull(image(), StagingLock::of(Storage::Ostree, false).unwrap())
}

fn os(staged: Option<Deployment>) -> Os {
    Os::Bootc(Box::new(Deployments {
        booted: deployment(1, false),
        staged,
        ..Deployments::default()
    }))
}

fn node() -> ClusterNode {
    ClusterNode::Is(NodeFacts {
        uid: "u1".into(),
        resource_version: "1".into(),
        unschedulable: true,
        ready: true,
        boot_id: Some("b1".into()),
        cordon: None,
        excluded: false,
        control_plane: false,
        not_ready_taint: None,
        ready_reported: None,
        conditions: Default::default(),
        signs: Default::default(),
    })
}

fn offered() -> Berth {
    let offer = Offer {
        node: "n1".into(),
        uid: "u1".into(),
        target: digest(2),
        open_until: None,
    };
    Berth::new(PoolName::from("p"), 0, 1).offered(offer).unwrap()
}

fn taken() -> Berth {
    let (node, uid) = ("n1".into(), "u1".into());
    offered().taken(&node, &uid, Some(digest(1)), "b1".into()).unwrap()
}

fn committed() -> Berth {
    taken().committed("b1".into()).unwrap()
}

fn releasing() -> Berth {
    taken().releasing(Outcome::DrainTimeout, "b1".into()).unwrap()
}

/// Returns an agent's knowledge in a turn whose drain is done. All readings are fresh.
fn knowing(berth: &Berth) -> Knowledge {
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    knowledge.after(Event::Berths(vec![berth.clone()]), &at(0));
    knowledge.host.os = os(Some(deployment(2, true)));
    knowledge.cluster.node = node();
    (knowledge.host.fresh, knowledge.cluster.fenced) = (true, true);
    knowledge.turn.drain.last_pass.done = true;
    knowledge.turn.drain.since = Some(Since::now(&at(0)));
    knowledge
}

fn done(knowledge: &mut Knowledge, step: &Step, ending: Ending, seconds: u64) {
    knowledge.after(Event::Begins(step), &at(seconds));
    knowledge.after(Event::Ends(step, ending), &at(seconds));
}

fn ask_for(knowledge: &mut Knowledge, image: DesiredImage) {
    let desired = Desired::of(Some(&berth_api::node::BootcNode {
        spec: berth_api::node::BootcNodeSpec {
            pool_name: "p".into(),
            node_uid: "u1".into(),
            image: Some(image),
            ..Default::default()
        },
        ..Default::default()
    }));
    let event = Event::Published {
        desired,
        uid: Some("u1".into()),
        status: None,
        is_unread: false,
    };
    knowledge.after(event, &at(1));
}

fn image() -> DesiredImage {
    DesiredImage {
        reference: berth_api::Written::default(),
        digest: digest(2),
        index_digest: digest(2),
        version: None,
        signature: berth_api::pool::SignatureRule::AsBooted,
    }
}

fn failed(reason: Reason, message: &str) -> Ending {
    Ending::Failed {
        reason,
        message: message.to_owned(),
    }
}

fn pull_failed(reason: Reason, message: &str) -> PullReading {
    PullReading::Failed {
        digest: digest(2),
        failure: HostFailure {
            reason,
            message: message.to_owned(),
        },
    }
}

fn succeeded(n: u8) -> PullReading {
    PullReading::Succeeded {
        digest: digest(n),
        policy: None,
    }
}

fn look(os: Os) -> Event<'static> {
    Event::Looked(Look {
        os,
        rivals: vec![],
        finalization_failed: false,
    })
}

fn look_at(staged: Option<Deployment>) -> Event<'static> {
    look(os(staged))
}

fn waiting() -> Ending {
    Ending::Drain(DrainProgress::Waiting {
        blockers: vec![],
        next: Duration::from_secs(5),
    })
}

fn drained() -> Ending {
    Ending::Drain(DrainProgress::Done { left_behind: vec![] })
}

/// Each case ends with one letter per reading that stays valid: deployments known (k) and fresh (r), Node read (n),
/// drain done (d), berth fenced (f).
#[test]
fn a_step_invalidates_readings_that_it_may_change() {
    let lost = failed(Reason::StepFailed, "no answer");
    let relicense = Step::Relicense(committed(), digest(3));
    let release = Step::Release(taken(), Outcome::Revoked, String::new());
    let cases = [
        (taken(), pull(), Ending::Done, "--ndf"),
        (taken(), Step::CancelPull(digest(2)), Ending::Done, "--ndf"),
        (taken(), lock(), Ending::Done, "---df"),
        (committed(), Step::Unlock, Ending::Done, "---df"),
        (taken(), Step::Unstage(deployment(2, true)), Ending::Done, "---df"),
        (committed(), Step::Reboot, Ending::Done, "k-ndf"),
        (committed(), Step::Reboot, Ending::Refused("no".into()), "k-ndf"),
        (offered(), Step::Take(offered()), Ending::Done, "kr--f"),
        (offered(), Step::Take(offered()), lost.clone(), "kr---"),
        (taken(), Step::Cordon(taken()), Ending::Done, "k---f"),
        (taken(), Step::Drain, waiting(), "kr--f"),
        (taken(), Step::Drain, drained(), "k--df"),
        (taken(), Step::Commit(taken()), Ending::Done, "kr-df"),
        (taken(), Step::Commit(taken()), lost.clone(), "kr-d-"),
        (committed(), Step::Fence(committed()), Ending::Done, "kr-df"),
        (committed(), Step::Uncommit(committed()), lost.clone(), "kr-d-"),
        (committed(), relicense, Ending::Done, "kr-df"),
        (taken(), release, Ending::Done, "kr-df"),
        (releasing(), Step::Restore(releasing()), Ending::Done, "kr-df"),
        (releasing(), Step::GiveBack(releasing()), Ending::Done, "kr--f"),
        (taken(), Step::Uncordon, Ending::Done, "kr-df"),
        (taken(), Step::LookAtHost, lost, "kr-df"),
    ];
    for (berth, step, ending, expected) in cases {
        let mut knowledge = knowing(&berth);
        done(&mut knowledge, &step, ending.clone(), 1);
        let mut shown = String::new();
        for (letter, is_valid) in [
            ('k', knowledge.host.os != Os::Unknown),
            ('r', knowledge.host.fresh),
            ('n', knowledge.cluster.node != ClusterNode::Unread),
            ('d', knowledge.turn.drain.last_pass.done),
            ('f', knowledge.cluster.fenced),
        ] {
            shown.push(if is_valid { letter } else { '-' });
        }
        assert_eq!(shown, expected, "{step:?} {ending:?}");
    }
}

#[test]
fn a_break_of_ready_restarts_the_soak() {
    let mut knowledge = knowing(&taken());
    for (second, ready, expected) in [(1, true, 0), (4, true, 3), (5, false, 0), (6, true, 0), (9, true, 3)] {
        let mut node = knowledge
            .cluster
            .node
            .get()
            .cloned()
            .unwrap_or_else(|| panic!("no Node"));
        (node.ready, node.boot_id) = (ready, Some(knowledge.host.boot_id().clone()));
        knowledge.after(Event::NodeRead(ClusterNode::Is(node)), &at(second));
        assert_eq!(
            knowledge.facts(&at(second)).ready_for,
            Duration::from_secs(expected),
            "second {second}"
        );
    }
}

#[test]
fn a_rest_in_a_turn_invalidates_readings() {
    for (why, expected) in [
        (WaitReason::NoBerth, (false, false, true, true)),
        (WaitReason::Rebooting, (false, false, true, true)),
        (WaitReason::Draining, (true, false, true, true)),
        (WaitReason::NotReady, (true, false, true, true)),
        (WaitReason::Unhealthy, (true, false, true, true)),
        (WaitReason::Revoked, (false, false, false, false)),
        (WaitReason::WindowClosed, (false, false, false, false)),
        (WaitReason::Inhibited, (false, false, false, false)),
    ] {
        let mut knowledge = knowing(&taken());
        let number = knowledge.turn.drain.number;
        knowledge.after(Event::Rests(why), &at(1));
        let node = knowledge.cluster.node != ClusterNode::Unread;
        let kept = knowledge.turn.drain.since.is_some();
        assert_eq!(
            (knowledge.host.fresh, node, knowledge.turn.drain.last_pass.done, kept),
            expected,
            "{why:?}"
        );
        assert_eq!(
            knowledge.turn.drain.number == number,
            kept,
            "{why:?}: pods are listed again"
        );
    }
    let mut idle = knowing(&offered());
    idle.after(Event::Rests(WaitReason::Updated), &at(1));
    assert_eq!(idle.cluster.node, node());
}

#[test]
fn a_heartbeat_and_a_look_invalidate_each_other() {
    let mut knowledge = knowing(&taken());
    knowledge.after(Event::Heartbeat, &at(1));
    assert!(
        knowledge.host.os != Os::Unknown && !knowledge.host.fresh,
        "in a turn it is only looked at again"
    );
    let look = Look {
        os: os(Some(deployment(2, true))),
        rivals: vec![],
        finalization_failed: false,
    };
    knowledge.cluster.node = node();
    knowledge.after(Event::Looked(look), &at(2));
    assert!(knowledge.host.fresh);
    assert_eq!(
        knowledge.cluster.node,
        ClusterNode::Unread,
        "the Node is read after the host"
    );
    let mut idle = knowing(&offered());
    idle.after(Event::Heartbeat, &at(1));
    assert_eq!((idle.host.os, idle.cluster.node), (Os::Unknown, ClusterNode::Unread));
}

/// Sends a heartbeat at this second, and then a reading of the Node. Returns true if the heartbeat made the agent read
/// the Node again.
fn rereads(knowledge: &mut Knowledge, seconds: u64) -> bool {
    let asks_for_berths = knowledge.rereads_cluster(&at(seconds));
    knowledge.after(Event::Heartbeat, &at(seconds));
    assert_eq!(knowledge.host.os, Os::Unknown, "the host is looked at each time");
    let is_unread = knowledge.cluster.node == ClusterNode::Unread;
    assert_eq!(is_unread, asks_for_berths, "both are read, or neither");
    knowledge.after(Event::NodeRead(node()), &at(seconds));
    is_unread
}

#[test]
fn a_node_at_rest_rarely_rereads_the_cluster() {
    let mut knowledge = knowing(&offered());
    knowledge.after(Event::Berths(vec![]), &at(0));
    assert!(rereads(&mut knowledge, 0) && rereads(&mut knowledge, 120), "it waits");
    knowledge.after(Event::Rests(WaitReason::Updated), &at(130));
    assert!(rereads(&mut knowledge, 240), "a late write of the turn is seen");
    knowledge.after(Event::Rests(WaitReason::Updated), &at(241));
    assert!(!rereads(&mut knowledge, 360) && !rereads(&mut knowledge, 1560));
    assert!(
        rereads(&mut knowledge, 1600),
        "with no luck, after three quarters of the time"
    );
    assert!(!rereads(&mut knowledge, 1720));
    done(&mut knowledge, &Step::Uncordon, Ending::Done, 1730);
    assert!(rereads(&mut knowledge, 1840));
    knowledge.after(Event::Rests(WaitReason::Updated), &at(1841));
    assert!(rereads(&mut knowledge, 1960) && !rereads(&mut knowledge, 2080));
    ask_for(&mut knowledge, image());
    assert_eq!(knowledge.cluster.node, ClusterNode::Unread, "it was read long ago");
    assert!(rereads(&mut knowledge, 2200));
}

#[test]
fn a_holder_is_never_at_rest() {
    let mut knowledge = knowing(&taken());
    knowledge.after(Event::Rests(WaitReason::Updated), &at(1));
    assert!(!knowledge.is_at_rest());
    knowledge.after(Event::Berths(vec![]), &at(2));
    knowledge.after(Event::Rests(WaitReason::Updated), &at(3));
    assert!(knowledge.is_at_rest());
}

#[test]
fn agents_that_rest_together_read_the_cluster_apart() {
    for (chance, expected) in [(0.0, 1350), (0.5, 1800), (1.0, 2250)] {
        let mut knowledge = knowing(&offered());
        knowledge.after(Event::Rests(WaitReason::Updated), &at(0));
        knowledge.after(Event::Heartbeat, &Now { chance, ..at(0) });
        let first = (1..4000).find(|seconds| knowledge.rereads_cluster(&at(*seconds)));
        assert_eq!(first, Some(expected), "{chance}");
    }
}

/// Returns the time `seconds`, but with the wall clock at `wall`.
fn set_to(wall: u64, seconds: u64) -> Now {
    Now {
        wall: at(wall).wall,
        ..at(seconds)
    }
}

#[test]
fn drain_and_proof_times_survive_a_restart() {
    let mut first = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    first.after(Event::Berths(vec![offered()]), &at(0));
    first.after(Event::Begins(&Step::Take(offered())), &at(10));
    first.after(Event::Berths(vec![taken()]), &at(10));
    assert_eq!(first.turn.drain.elapsed(&at(70)), Duration::from_secs(60));
    // The agent process dies, and the next one continues the count. Meanwhile the wall clock is set far ahead or far
    // back.
    for wall in [100, 1_000_000, 0] {
        let text = serde_json::to_string(&first.past).unwrap();
        let past: Past = serde_json::from_str(&text).unwrap();
        let mut second = Knowledge::new("n1".into(), "b1".into(), past, &set_to(wall, 100));
        second.after(Event::Berths(vec![taken()]), &set_to(wall, 100));
        assert_eq!(
            second.turn.drain.elapsed(&set_to(wall, 130)),
            Duration::from_secs(120),
            "{wall}"
        );
    }
    // A drain that began under another boot does not count.
    let mut other = Knowledge::new("n1".into(), "b9".into(), first.past.clone(), &at(100));
    other.after(Event::Berths(vec![taken()]), &at(100));
    assert_eq!(other.turn.drain.elapsed(&at(130)), Duration::ZERO);
    other.after(Event::Begins(&Step::Drain), &at(140));
    assert_eq!(other.turn.drain.elapsed(&at(150)), Duration::from_secs(10));

    let mut rebooted = Knowledge::new("n1".into(), "b2".into(), Past::default(), &at(0));
    rebooted.after(Event::Berths(vec![committed()]), &at(3));
    assert_eq!(rebooted.facts(&at(63)).proving_for.as_secs(), 60);
    let jumped = set_to(1_000_000, 103);
    let mut again = Knowledge::new("n1".into(), "b2".into(), rebooted.past.clone(), &jumped);
    again.after(Event::Berths(vec![committed()]), &jumped);
    assert_eq!(again.facts(&set_to(1_000_000, 113)).proving_for.as_secs(), 110);
    let mut third = Knowledge::new("n1".into(), "b3".into(), rebooted.past, &at(200));
    third.after(Event::Berths(vec![committed()]), &at(200));
    let proving_for = third.facts(&at(201)).proving_for;
    assert_eq!(
        proving_for.as_secs(),
        1,
        "another boot is proven from its own beginning"
    );
}

#[test]
fn an_uncommitted_turn_drains_again() {
    let mut knowledge = knowing(&taken());
    done(&mut knowledge, &Step::Commit(taken()), Ending::Done, 40);
    knowledge.after(Event::Berths(vec![committed()]), &at(40));
    assert_eq!(knowledge.past.timeline.measured().drain, Some(40));
    let mut next = Knowledge::new("n1".into(), "b1".into(), knowledge.past, &at(7200));
    next.after(Event::Berths(vec![taken()]), &at(7200));
    assert_eq!(next.turn.drain.elapsed(&at(7200)), Duration::ZERO);
}

#[test]
fn a_turn_is_counted_once_and_then_forgotten() {
    let mut knowledge = knowing(&releasing());
    knowledge.turn.reboot.blocked = Some(("x".into(), Moment::default()));
    knowledge.after(Event::Begins(&Step::GiveBack(releasing())), &at(1));
    assert_eq!(knowledge.past.last_turn.as_ref().map(|t| t.attempts), Some(1));
    let lost = failed(Reason::StepFailed, "no answer");
    knowledge.after(Event::Ends(&Step::GiveBack(releasing()), lost), &at(1));
    done(&mut knowledge, &Step::GiveBack(releasing()), Ending::Done, 2);
    assert_eq!(knowledge.past.last_turn.as_ref().map(|t| t.attempts), Some(1));
    assert_eq!(
        (knowledge.turn.reboot.blocked, knowledge.turn.drain.since),
        (None, None)
    );
}

#[test]
fn three_failed_unlocks_are_reported_and_end_the_turn() {
    let mut knowledge = knowing(&committed());
    for times in 1..=3 {
        assert!(knowledge.turn.reboot.blocked.is_none());
        let failed = failed(Reason::HostToolFailed, "error: no");
        done(&mut knowledge, &Step::Unlock, failed, times);
        assert_eq!(knowledge.facts(&at(times)).trouble.is_some(), times == 3);
    }
    let why = knowledge.turn.reboot.blocked.clone().unwrap().0;
    assert_eq!(why, "the staged image cannot be unlocked: error: no");
    done(&mut knowledge, &lock(), Ending::Done, 4);
    assert!(
        knowledge.failures.trouble().is_some(),
        "another step says nothing of it"
    );
    assert!(knowledge.turn.repeats(&lock()));
    knowledge.after(Event::Rests(WaitReason::Rebooting), &at(5));
    assert!(knowledge.failures.trouble().is_none() && !knowledge.turn.repeats(&lock()));
}

#[test]
fn an_uncommit_remembers_a_reboot_that_did_not_begin() {
    let mut knowledge = knowing(&committed());
    done(&mut knowledge, &Step::Reboot, Ending::Done, 1);
    assert_eq!(
        knowledge.facts(&at(61)).host.reboot,
        Reboot::Asked(Duration::from_secs(60))
    );
    done(&mut knowledge, &Step::Uncommit(committed()), Ending::Done, 62);
    assert!(matches!(knowledge.facts(&at(63)).host.reboot, Reboot::Blocked { .. }));
    done(&mut knowledge, &Step::Reboot, Ending::Refused("busy".into()), 64);
    assert!(matches!(knowledge.facts(&at(64)).host.reboot, Reboot::Blocked { why, .. } if why == "busy"));
}

#[test]
fn a_recreated_node_is_reread() {
    let mut knowledge = knowing(&offered());
    let status = BootcNodeStatus {
        failed_digests: vec![digest(9)],
        ..BootcNodeStatus::default()
    };
    for (second, uid, status, reread) in [
        (1, "u1", Some(&status), true),
        (2, "u1", None, false),
        (3, "u2", None, true),
    ] {
        let published = Event::Published {
            desired: Desired::Unknown,
            uid: Some(uid.into()),
            status,
            is_unread: false,
        };
        knowledge.after(published, &at(second));
        assert_eq!(knowledge.past.failed_digests, [digest(9)]);
        assert_eq!(knowledge.cluster.node == ClusterNode::Unread, reread, "{second}");
        knowledge.cluster.node = node();
    }
}

/// If this process did not write the phase of the berth, another agent process did. That process may also have changed
/// the host.
#[test]
fn a_berth_moved_by_another_process_invalidates_the_look() {
    let mut knowledge = knowing(&taken());
    knowledge.after(Event::Berths(vec![taken()]), &at(1));
    assert!(
        knowledge.host.fresh && knowledge.cluster.fenced,
        "nothing has happened to it"
    );
    knowledge.after(Event::Berths(vec![committed()]), &at(2));
    assert!(!knowledge.host.fresh && !knowledge.cluster.fenced);
    let mut own = knowing(&taken());
    own.after(Event::Begins(&Step::Commit(taken())), &at(1));
    own.after(Event::Berths(vec![committed()]), &at(1));
    own.after(Event::Ends(&Step::Commit(taken()), Ending::Done), &at(1));
    assert!(own.host.fresh && own.cluster.fenced, "its own write");
}
