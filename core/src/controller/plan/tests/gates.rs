//! Reasons that keep berths closed (waves, failures, windows, API servers), and zones, which only order members.

use berth_api::BootId;
use berth_api::berth::{ClosedReason, Outcome};
use berth_api::pool::WaveState;

use super::*;

#[test]
fn a_later_wave_waits_for_the_earlier_one() {
    let mut f = facts(2, names(&["n1", "n2", "n3"]), vec![seen(closed(0)), seen(closed(1))]);
    f.waves = vec![wave("canary", 60, 0), wave(REST, 0, 0), wave(CONTROL_PLANE, 0, 0)];
    f.members[0].place.wave = 2;
    f.members[1].place.wave = 1;
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n3"], "the canary");
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::Wave);
    let said = plan.wait_words(BlockReason::Wave, &[&"n1".into(), &"n2".into()]);
    assert_eq!(said, "waits for an earlier wave (n3)");
    f.members[2].agent.booted = Some(digest(2));
    let plan = now(&f);
    assert!(plan.writes.is_empty());
    assert_eq!(plan.waiting[&"n2".into()], BlockReason::Soaking);
    assert!(plan.unproven.is_empty());
    let states: Vec<_> = plan
        .waves
        .iter()
        .map(|w| (w.name.as_str(), w.updated, w.state))
        .collect();
    let rest = [
        ("rest", 0, WaveState::Waiting),
        ("control-plane", 0, WaveState::Waiting),
    ];
    assert_eq!(states, [&[("canary", 1, WaveState::Soaking)], &rest[..]].concat());
    f.waves[0].soaked = Duration::from_secs(60);
    assert_eq!(words(&now(&f)), ["p-0 Offer n2"]);
    f.members[2].node.ready = false;
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "a canary that is down again stops the rest");
    assert_eq!(plan.unproven, ["n3".into()]);
    assert_eq!(plan.waves[0].soaked_seconds, 60, "no second soak");
    f.members[2].node.ready = true;
    f.members[1].agent.booted = Some(digest(2));
    assert_eq!(words(&now(&f)), ["p-0 Offer n1"], "control plane nodes last");
}

#[test]
fn a_leaving_node_counts_and_is_offered_nothing() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    f.members[0].leaving = true;
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n2"]);
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::Leaving);
    f.members[0].node.ready = false;
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "n1 uses up the capacity: {plan:?}");
    f.members[0].node.ready = true;
    f.members[1].place.wave = 1;
    assert!(now(&f).writes.is_empty(), "n1 is an unproven canary");
    f.members[0].agent.booted = Some(digest(2));
    assert_eq!(words(&now(&f)), ["p-0 Offer n2"]);
    f.berths[0] = seen(offered(0, "n1"));
    assert!(words(&now(&f))[0].starts_with("p-0 Withdrawn"));
    f.berths[0] = seen(taken(0, "n1"));
    assert_eq!(words(&now(&f)), ["p-0 Revoke(\"LeftPool\", Node) n1"]);
    f.berths[0] = seen(committed(0, "n1"));
    assert!(now(&f).writes.is_empty());
}

#[test]
fn outdated_facts_neither_offer_nor_revoke() {
    let berths = vec![seen(closed(0)), seen(offered(1, "n1")), seen(taken(2, "n2"))];
    let mut f = facts(3, names(&["n1", "n2", "n3"]), berths);
    assert_eq!(words(&now(&f)), ["p-0 Offer n3"]);
    f.outdated = true;
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "{plan:?}");
    assert_eq!(plan.waiting[&"n3".into()], BlockReason::Outdated);
}

#[test]
fn an_abandoned_node_counts_but_blocks_no_wave() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    (f.members[0].leaving, f.members[0].abandoned) = (true, true);
    f.members[1].place.wave = 1;
    assert_eq!(words(&now(&f)), ["p-0 Offer n2"], "n1 is available");
    f.members[0].node.ready = false;
    let plan = now(&f);
    assert!(plan.writes.is_empty());
    assert_eq!(plan.waiting[&"n2".into()], BlockReason::Capacity);
    assert_eq!(plan.used_by[0].words(), "n1 (not Ready)");
    (f.capacity, f.published) = (2, 2);
    f.berths.push(seen(closed(1)));
    assert_eq!(words(&now(&f)), ["p-0 Offer n2"], "no wave waits for n1");
    f.members[1].agent.booted = Some(digest(2));
    assert!(!f.has_left(), "no pool waits for n1");
    f.members[0].abandoned = false;
    assert!(f.has_left());
}

#[test]
fn a_pool_without_waves_says_nothing_of_any() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![]);
    assert!(now(&f).waves.is_empty());
    f.members[1].place.wave = 1;
    assert_eq!(now(&f).waves.len(), 2, "a control plane node comes after the rest");
}

#[test]
fn the_last_wave_need_not_soak() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    f.waves = vec![wave("canary", 60, 0), wave(REST, 60, 0), wave(CONTROL_PLANE, 60, 0)];
    f.members.iter_mut().for_each(|m| m.agent.booted = Some(digest(2)));
    for (wave_of, expected) in [
        ([0, 0], vec![("canary", 2, WaveState::Done)]),
        (
            [0, 1],
            vec![("canary", 1, WaveState::Soaking), ("rest", 1, WaveState::Waiting)],
        ),
        // The status also shows a wave of the spec that has no members.
        (
            [1, 1],
            vec![("canary", 0, WaveState::Done), ("rest", 2, WaveState::Done)],
        ),
    ] {
        (f.members[0].place.wave, f.members[1].place.wave) = (wave_of[0], wave_of[1]);
        let waves = now(&f).waves;
        let waves: Vec<_> = waves.iter().map(|w| (w.name.as_str(), w.total, w.state)).collect();
        assert_eq!(waves, expected);
    }
}

#[test]
fn a_broken_node_of_a_later_wave_is_repaired() {
    let mut f = facts(1, names(&["n1", "n9"]), vec![seen(closed(0))]);
    f.members[1].place.wave = 1;
    f.members[1].node.unschedulable = true;
    assert!(now(&f).writes.is_empty(), "a cordon is not a reason");
    f.members[1].node.ready = false;
    assert_eq!(words(&now(&f)), ["p-0 Offer n9"]);
    f.berths = vec![seen(taken(0, "n9"))];
    assert!(now(&f).writes.is_empty());
    f.berths = vec![seen(closed(0)), seen(closed(1))];
    (f.capacity, f.published) = (2, 2);
    assert_eq!(words(&now(&f)), ["p-0 Offer n1"], "the canary can be offered a berth");
}

#[test]
fn a_held_node_counts_and_is_offered_nothing() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    f.members[0].node.held_back = true;
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n2"]);
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::HeldBack);
    f.gate = gate(GateReason::Paused);
    assert_eq!(
        now(&f).waiting[&"n1".into()],
        BlockReason::HeldBack,
        "behind a gate as well"
    );
    f.gate = None;
    f.members[0].node.ready = false;
    assert!(now(&f).writes.is_empty(), "n1 uses up the capacity");
    f.members[0].node.ready = true;
    f.members[1].place.wave = 1;
    assert!(now(&f).writes.is_empty(), "n1 is an unproven canary");
    f.members[0].agent.booted = Some(digest(2));
    assert_eq!(
        now(&f).waiting[&"n1".into()],
        BlockReason::UpToDate,
        "n1 runs the target"
    );
}

#[test]
fn a_hold_withdraws_an_offer_but_no_turn() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(offered(0, "n1"))]);
    f.members[0].node.held_back = true;
    let withdrawn = WriteReason::Withdrawn("the node is held back by an admin", Origin::Node);
    let plan = now(&f);
    assert!(matches!(plan.writes.first(), Some(BerthWrite::Update { why, .. }) if *why == withdrawn));
    for berth in [taken(0, "n1"), committed(0, "n1")] {
        f.berths = vec![seen(berth)];
        let plan = now(&f);
        assert!(plan.writes.is_empty(), "{plan:?}");
        assert_eq!(plan.waiting[&"n1".into()], BlockReason::HasBerth);
    }
}

#[test]
fn an_unproven_wave_asks_later_holders_back() {
    let mut f = facts(2, names(&["n1", "n2"]), vec![seen(taken(0, "n2")), seen(closed(1))]);
    f.members[1].place.wave = 1;
    f.members[0].agent.booted = Some(digest(2));
    f.members[0].published.observed = false;
    assert!(now(&f).writes.is_empty(), "new drain settings are not a reason");
    f.members[0].node.ready = false;
    assert_eq!(words(&now(&f)), ["p-0 Revoke(\"WaveWaiting\", Pool) n2"]);
}

#[test]
fn a_stuck_holder_of_a_later_wave_continues() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(committed(0, "n2"))]);
    f.members[1].place.wave = 1;
    for m in &mut f.members {
        (m.desired, m.published.digest, m.agent.staged) = (Some(digest(3)), Some(digest(3)), Some(digest(3)));
    }
    f.members[1].agent.booted = Some(digest(2));
    f.members[1].node.ready = false;
    let plan = now(&f);
    assert_eq!(
        plan.waiting[&"n1".into()],
        BlockReason::Capacity,
        "n1 needs the berth of n2"
    );
    assert!(plan.writes.is_empty(), "the holder continues: {plan:?}");
    f.berths = vec![seen(committed(0, "n2").revoked(Some("WaveWaiting".into())).unwrap())];
    assert_eq!(words(&now(&f)), ["p-0 Unrevoke n2"]);
    f.members[1].place.control_plane = Some(asked_back());
    f.berths = vec![seen(committed(0, "n2"))];
    assert_eq!(words(&now(&f)), ["p-0 Revoke(\"NoOtherAPIServer\", Pool) n2"]);
}

#[test]
fn the_zone_with_the_fewest_nodes_down_goes_first() {
    let mut f = facts(
        3,
        names(&["a1", "a2", "a3", "b1", "b2"]),
        (0..3).map(|i| seen(closed(i))).collect(),
    );
    for m in &mut f.members {
        m.place.zone = m.name.as_str()[..1].to_owned();
    }
    assert_eq!(words(&now(&f)), ["p-0 Offer a1", "p-1 Offer b1", "p-2 Offer a2"]);
    f.berths[0] = seen(committed(0, "a1"));
    assert_eq!(words(&now(&f)), ["p-1 Offer b1", "p-2 Offer a2"]);
}

#[test]
fn a_failed_digest_halts_the_rollout() {
    let mut f = facts(
        2,
        names(&["n1", "n2", "n3"]),
        vec![seen(closed(0)), seen(taken(1, "n2"))],
    );
    f.max_failures = 1;
    f.failures = [(digest(2), ["n1".into()].into())].into();
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-1 Revoke(\"RolloutHalted\", Pool) n2"]);
    assert_eq!(plan.waiting[&"n3".into()], BlockReason::Halted);
    assert_eq!(plan.failures[&digest(2)], [NodeName::from("n1")].into());
    assert!(
        plan.halt.as_ref().unwrap().message.contains("failed on n1"),
        "{:?}",
        plan.halt
    );
    f.max_failures = 2;
    assert_eq!(words(&now(&f)), ["p-0 Offer n3"]);
    f.failures = [(digest(2), ["n1".into(), "gone".into()].into())].into();
    assert_eq!(
        now(&f).gate.unwrap().reason,
        GateReason::RolloutHalted,
        "failures of deleted nodes count"
    );
    for m in &mut f.members {
        (m.desired, m.published.digest, m.agent.staged) = (Some(digest(3)), Some(digest(3)), Some(digest(3)));
    }
    assert_eq!(now(&f).halt, None);
}

#[test]
fn a_failure_is_recorded_before_its_berth_opens() {
    let failed = committed(0, "n1")
        .releasing(Outcome::Failed, BootId::from("b1"))
        .unwrap()
        .given_back()
        .unwrap();
    let BerthState::Closed(c) = &failed.state else { panic!() };
    assert_eq!((c.reason, &c.last_target), (ClosedReason::Failed, &Some(digest(2))));
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(failed.clone())]);
    let plan = now(&f);
    assert!(plan.writes.is_empty(), "{plan:?}");
    assert_eq!(plan.failures[&digest(2)].len(), 1);
    f.failures = plan.failures;
    assert_eq!(words(&now(&f)), ["p-0 Recorded", "p-0 Offer n2"]);
    let above = facts(0, vec![], vec![seen(failed.clone())]);
    assert!(now(&above).writes.is_empty(), "the close reason stays");
    let mut shrunk = facts(0, vec![], vec![seen(failed.closed(ClosedReason::Shrunk).unwrap())]);
    assert!(now(&shrunk).writes.is_empty());
    shrunk.failures = f.failures;
    assert_eq!(words(&now(&shrunk)), ["p-0 Recorded"]);
}

#[test]
fn a_full_record_keeps_no_berth_closed() {
    let failed = committed(0, "n1").ended(ClosedReason::Excluded).unwrap();
    let mut f = facts(1, names(&["n2"]), vec![seen(failed)]);
    for (others, writes) in [
        // The list of failed nodes has room for n1, so the berth stays closed until n1 is recorded.
        (MAX_NAMED - 1, &[][..]),
        (MAX_NAMED, &["p-0 Recorded", "p-0 Offer n2"]),
    ] {
        let names = (0..others).map(|n| NodeName::new(format!("old{n}")));
        f.failures = [(digest(2), names.collect())].into();
        assert_eq!(words(&now(&f)), writes);
    }
}

#[test]
fn a_new_node_inherits_no_failure() {
    let failed = committed(0, "n1").ended(ClosedReason::Gone).unwrap();
    let mut f = facts(2, names(&["n1"]), vec![seen(failed), seen(closed(1))]);
    f.members[0].uid = uid("new");
    f.members[0].published.uid = uid("new");
    let plan = now(&f);
    assert_eq!(plan.failures[&digest(2)], ["n1 (deleted)".into()].into());
    assert_eq!(words(&plan), ["p-1 Offer n1"]);
}

#[test]
fn a_node_that_only_reports_a_failure_halts_no_other() {
    let mut f = facts(2, names(&["n1", "n2", "n3"]), vec![seen(closed(0)), seen(closed(1))]);
    f.max_failures = 1;
    f.members[0].agent.failed = vec![digest(2)];
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n2", "p-1 Offer n3"]);
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::FailedBefore);
    assert!(plan.failures.is_empty(), "nothing to record: {plan:?}");
    // A node that was offered the digest may have booted it, and may report the failure of a later boot.
    f.members[0].offers = 1;
    assert!(now(&f).halt.is_some());
    f.members[0].offers = 0;
    // A report counts if the node has committed a berth to the digest: it may have booted it.
    let releasing = committed(0, "n1")
        .releasing(Outcome::Failed, BootId::from("b1"))
        .unwrap();
    let other = {
        let other = committed(0, "n1").relicensed(digest(3), BootId::from("b2"));
        other.unwrap()
    };
    for (berth, halts) in [
        (offered(0, "n1"), false),
        (taken(0, "n1"), false),
        (committed(0, "n1"), true),
        (releasing, true),
        (committed(0, "n2"), false),
        (other, false),
    ] {
        f.berths[0] = seen(berth.clone());
        assert_eq!(now(&f).halt.is_some(), halts, "{berth:?}");
    }
}

#[test]
fn an_admin_outvotes_an_excluded_node() {
    let mut f = facts(1, names(&["n2", "n3"]), vec![seen(closed(0))]);
    f.max_failures = 1;
    f.failures = [(digest(2), ["n1".into()].into())].into();
    assert!(now(&f).halt.is_some());
    f.excluded = ["n1".into()].into();
    let plan = now(&f);
    assert_eq!((words(&plan), plan.halt), (vec!["p-0 Offer n2".to_owned()], None));
    assert_eq!(plan.failures, f.failures, "the record stays");
    // The controller closed the berth after the commit. The image may be why the node did not come back.
    for name in ["n1 (excluded)", "n1 (deleted)"] {
        f.failures = [(digest(2), [name.into()].into())].into();
        assert!(now(&f).halt.is_some(), "{name}");
    }
    // The failure is not recorded yet: only the closed berth shows it.
    f.failures.clear();
    for (failed, halts) in [
        (committed(0, "n1").ended(ClosedReason::Excluded).unwrap(), true),
        (
            committed(0, "n1")
                .releasing(Outcome::Failed, BootId::from("b1"))
                .and_then(|berth| berth.given_back())
                .unwrap(),
            false,
        ),
    ] {
        f.berths[0] = seen(failed);
        assert_eq!(now(&f).halt.is_some(), halts);
    }
}

#[test]
fn a_node_counts_once_under_all_its_names() {
    let mut f = facts(1, names(&["n2"]), vec![seen(closed(0))]);
    f.max_failures = 2;
    f.failures = [(
        digest(2),
        ["n1".into(), "n1 (deleted)".into(), "n1 (excluded)".into()].into(),
    )]
    .into();
    assert_eq!(now(&f).halt, None);
    f.failures.entry(digest(2)).or_default().insert("n3 (deleted)".into());
    let message = now(&f).halt.unwrap().message;
    assert!(message.contains("failed on n1, n3 (deleted), and"), "{message}");
    for command in ["kubectl berth retry p", "kubectl berth exclude NODE"] {
        assert!(message.contains(command), "{message}");
    }
}

#[test]
fn a_node_that_is_included_again_does_not_retry() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    f.failures = [(digest(2), ["n1 (excluded)".into()].into())].into();
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n2"]);
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::FailedBefore);
}

#[test]
fn a_lost_excluded_node_is_closed() {
    for (berth, failed) in [(taken(0, "n1"), false), (committed(0, "n1"), true)] {
        let mut f = facts(1, names(&["n2"]), vec![seen(berth)]);
        f.lost.insert(uid("n1"));
        let plan = now(&f);
        assert_eq!(words(&plan)[0], "p-0 Excluded", "{plan:?}");
        assert_eq!(words(&plan).len(), if failed { 1 } else { 2 });
    }
}

#[test]
fn an_offer_must_fit_into_the_window() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(closed(0))]);
    f.closes = Some(at(50 + 100));
    let minute = Duration::from_secs(60);
    f.members[0].estimate = Estimate {
        drain: minute,
        reboot: minute,
    };
    f.members[1].estimate = Estimate {
        drain: Duration::from_secs(10),
        reboot: minute,
    };
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer n2"]);
    assert_eq!(plan.waiting[&"n1".into()], BlockReason::TooLate);
    let BerthWrite::Update { berth, .. } = &plan.writes[0] else {
        panic!()
    };
    assert_eq!(
        berth.offer().unwrap().open_until,
        Some(at(50 + 40)),
        "the reboot must end before the window"
    );
    f.closes = Some(at(50 + 70));
    assert_eq!(
        now(&f).waiting[&"n2".into()],
        BlockReason::TooLate,
        "the reboot would end with the window"
    );
    f.closes = Some(at(50 + 71));
    assert_eq!(words(&now(&f)), ["p-0 Offer n2"]);
    f.closes = Some(at(50 + 100));
    f.members[1].estimate.reboot = minute / 2;
    f.berths = vec![seen(
        berth.taken(&"n2".into(), &uid("n2"), None, BootId::from("b")).unwrap(),
    )];
    assert!(now(&f).writes.is_empty(), "a better estimate is not written");
    f.closes = Some(at(50 + 40 + 30 + 59));
    assert!(now(&f).writes.is_empty(), "a change below a minute is not written");
    f.closes = Some(at(50 + 40 + 30 + 60));
    assert_eq!(words(&now(&f)), ["p-0 Window n2"]);
    f.closes = Some(at(50 + 1000));
    assert_eq!(words(&now(&f)), ["p-0 Window n2"], "a longer window is written");
    f.closes = None;
    assert_eq!(words(&now(&f)), ["p-0 Window n2"]);
    f.gate = gate(GateReason::OutsideWindows);
    assert_eq!(words(&now(&f)), ["p-0 Revoke(\"OutsideWindows\", Pool) n2"]);
    f.gate = None;
    f.closes = Some(at(50 + 100));
    f.berths = vec![seen(closed(0))];
    f.members[1].agent.clock_synchronized = false;
    assert_eq!(now(&f).waiting[&"n2".into()], BlockReason::NoClock);
}

#[test]
fn a_control_plane_node_waits_for_another_api_server() {
    let mut f = facts(1, names(&["n1", "n2"]), vec![seen(taken(0, "n1"))]);
    f.members[0].place.control_plane = Some(asked_back());
    f.members[1].place.control_plane = Some(asked_back());
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Revoke(\"NoOtherAPIServer\", Pool) n1"]);
    assert_eq!(
        plan.waiting[&"n2".into()],
        BlockReason::ControlPlane(Cause::NoOtherServer)
    );
}

#[test]
fn unknown_servers_withhold_offers_but_revoke_none() {
    let unknown = Some(Verdict {
        withhold: Some(Cause::NotKnown),
        ..Verdict::default()
    });
    for (berth, holder) in [
        (taken(0, "n1"), "n1"),
        (offered(0, "n1"), "n1"),
        (committed(0, "n1"), "n1"),
    ] {
        let mut f = facts(2, names(&["n1", "n2"]), vec![seen(berth), seen(closed(1))]);
        f.members.iter_mut().for_each(|m| m.place.control_plane = unknown);
        let plan = now(&f);
        assert!(plan.writes.is_empty(), "{holder} keeps its berth: {plan:?}");
        assert_eq!(plan.waiting[&"n2".into()], BlockReason::ControlPlane(Cause::NotKnown));
    }
}

#[test]
fn one_control_plane_node_is_offered_a_berth() {
    let berths = (0..4).map(|i| seen(closed(i))).collect();
    let mut f = facts(4, names(&["c1", "c2", "n1"]), berths);
    f.members[0].place.control_plane = Some(Verdict::default());
    f.members[1].place.control_plane = Some(Verdict::default());
    let plan = now(&f);
    assert_eq!(words(&plan), ["p-0 Offer c1", "p-1 Offer n1"]);
    assert_eq!(
        plan.waiting[&"c2".into()],
        BlockReason::ControlPlane(Cause::OtherAtWork)
    );
    f.members[0].agent.heard = false;
    assert_eq!(
        words(&now(&f)),
        ["p-0 Offer c2", "p-1 Offer n1"],
        "a node without an offer blocks no other"
    );
}
