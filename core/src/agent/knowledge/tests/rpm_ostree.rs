use berth_api::backend::BackendRule;
use berth_api::node::{BootcNode, BootcNodeSpec};

use super::*;
use crate::agent::step::step;

/// Returns the state of a host with a staged, unlocked deployment that has packages Berth did not request.
fn armed() -> Os {
    Os::Bootc(Box::new(Deployments {
        booted: deployment(2, false),
        staged: Some(deployment(2, false)),
        staged_layers: true,
        ..Deployments::default()
    }))
}

/// Performs the agent's decisions until it waits. Each lock fails. Returns the number of lock attempts and the length
/// of the wait.
fn until_it_rests(knowledge: &mut Knowledge, seconds: u64) -> (u32, Duration) {
    for tries in 0..10 {
        knowledge.after(look(armed()), &at(seconds));
        knowledge.cluster.node = ClusterNode::Is(NodeFacts {
            unschedulable: false,
            ..node().get().unwrap().clone()
        });
        match step(&knowledge.facts(&at(seconds))) {
            Step::Wait(WaitReason::Unlockable, Some(pause)) => {
                knowledge.after(Event::Rests(WaitReason::Unlockable), &at(seconds));
                return (tries, pause);
            }
            next if next == lock() => {
                done(knowledge, &next, failed(Reason::LockFailed, "error: no"), seconds);
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("it is tried without end")
}

#[test]
fn locks_of_unlockable_packages_back_off() {
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &at(0));
    knowledge.after(Event::Berths(vec![]), &at(0));
    knowledge.after(Event::Guard(Ok(crate::agent::facts::Guard::Refuses)), &at(0));
    ask_for(&mut knowledge, image());
    if let Desired::Member(member) = &mut knowledge.desired {
        member.node_uid = "u1".into();
    }
    let mut now = 1;
    for (tries, pause) in [(3, 30), (1, 60), (1, 120), (1, 240), (1, 480), (1, 600), (1, 600)] {
        let expected = (tries, Duration::from_secs(pause));
        assert_eq!(until_it_rests(&mut knowledge, now), expected);
        assert_eq!(
            until_it_rests(&mut knowledge, now + pause - 1).0,
            0,
            "whatever wakes the agent"
        );
        now += pause;
    }
    let mut gone = armed();
    if let Os::Bootc(known) = &mut gone {
        known.staged = None;
    }
    knowledge.after(look(gone), &at(now));
    assert_eq!(knowledge.failures.lock, None);
}

#[test]
fn another_backend_has_the_host_reread() {
    fn asks(backend: BackendRule) -> Event<'static> {
        let spec = BootcNodeSpec {
            pool_name: "p".into(),
            image: Some(image()),
            backend,
            ..Default::default()
        };
        Event::Published {
            desired: Desired::of(Some(&BootcNode {
                spec,
                ..Default::default()
            })),
            uid: Some("u1".into()),
            status: None,
            is_unread: false,
        }
    }
    let mut knowledge = knowing(&offered());
    for (backend, looked) in [
        (BackendRule::Auto, true),
        (BackendRule::RpmOstree, false),
        (BackendRule::RpmOstree, true),
        (BackendRule::Bootc, false),
    ] {
        knowledge.after(asks(backend), &at(1));
        assert_eq!(
            (knowledge.host.os != Os::Unknown, knowledge.host.fresh),
            (looked, looked),
            "{backend:?}"
        );
        knowledge.after(look(armed()), &at(1));
    }
    let mut in_turn = knowing(&taken());
    in_turn.after(asks(BackendRule::RpmOstree), &at(1));
    assert!(
        in_turn.host.os != Os::Unknown && !in_turn.host.fresh,
        "a turn ends as it began"
    );
}

/// Work of another program may delay the unlock or the reboot. The delay does not count as a failed unlock or a refused
/// reboot, but the agent waits only for a limited time.
#[test]
fn a_busy_host_is_unlocked_and_rebooted_later() {
    let busy = failed(Reason::HostBusy, "Transaction in progress: upgrade");
    for step in [Step::Unlock, Step::Reboot] {
        let mut knowledge = knowing(&committed());
        for times in 1..=9 {
            done(&mut knowledge, &step, busy.clone(), times);
            let turn = &knowledge.turn;
            assert_eq!(
                (&turn.reboot.blocked, turn.reboot.asked),
                (&None, None),
                "{step:?} {times}"
            );
        }
        let shown = knowledge.facts(&at(9)).trouble.unwrap();
        assert_eq!((shown.reason, shown.attempts), (Reason::HostBusy, 9));
        // The step succeeds in between, so the ten minutes start again.
        done(&mut knowledge, &step, Ending::Done, 10);
        done(&mut knowledge, &step, busy.clone(), 602);
        assert_eq!(knowledge.turn.reboot.blocked, None);
        done(&mut knowledge, &step, busy.clone(), 1201);
        assert_eq!(knowledge.turn.reboot.blocked, None);
        done(&mut knowledge, &step, busy.clone(), 1202);
        let why = knowledge.turn.reboot.blocked.unwrap().0;
        assert!(why.contains("for 10 min: Transaction in progress: upgrade"), "{why}");
    }
}
