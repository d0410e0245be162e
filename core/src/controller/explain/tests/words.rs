//! Tests of the messages about changes.

use super::changes::{first, used_up_by};
use super::*;
use crate::controller::plan::tests::gate;
use crate::controller::quorum::Cause;
use crate::controller::usage::UseKind;

#[test]
fn each_change_has_words_for_people() {
    let mut case = first(|facts, _| facts.fleet = Some(used_up_by("b1", UseKind::Holds)));
    let rows = [
        (Change::TurnEnds("n2".into()), "n2 has ended its turn"),
        (Change::Prepared, "staged and locked"),
        (Change::Soaked(Duration::from_secs(40)), "is over (40s left)"),
        (
            Change::WavesProven(vec!["canary".into(), "more".into()]),
            "soak time is over: canary, more",
        ),
        (Change::Heard, "agent reports again"),
        (Change::Clock, "clock of the node"),
        (Change::ControllerClock, "clock of the controller's machine"),
        (Change::Unhold, "kubectl berth unhold n1"),
        (Change::Resume, "kubectl berth resume p"),
        (Change::ResumeFleet, "kubectl berth resume --all"),
        (Change::FleetReadable, "repair or delete it"),
        (Change::Recovers("n2".into()), "n2 is Ready and schedulable"),
        (Change::Excluded("n2".into()), "kubectl berth exclude n2"),
        (Change::Retry, "kubectl berth retry p"),
        (Change::Window, "a window is open"),
        (Change::MaxFailures(2), "rollout.maxFailures is 2 instead of 100"),
        (
            Change::MaxUnavailable(2),
            "rollout.maxUnavailable is 2 instead of 1; up to 2 nodes may be down at once",
        ),
        (
            Change::FleetLimit(3),
            "maxUnavailable of BootcFleet cluster is 3 instead of 1; up to 3 nodes",
        ),
    ];
    for (change, expected) in rows {
        let words = change.words(&case);
        assert!(words.contains(expected), "{change:?}: {words}");
    }
    let one = Change::MaxUnavailable(1).words(&case);
    assert!(one.ends_with("; 1 node may be down"), "{one}");
    for (reason, expected) in [
        (GateReason::EarlierPool, "the pools in rollout.after are updated"),
        (GateReason::OrderCycle, "names existing pools and has no cycle"),
        (GateReason::UnknownPool, "names existing pools and has no cycle"),
    ] {
        case.facts.order = gate(reason);
        let words = Change::EarlierPools.words(&case);
        assert!(words.contains(expected), "{reason:?}: {words}");
    }
    for (cause, expected) in [
        (Cause::OtherAtWork, "has ended its turn"),
        (Cause::OtherUnavailable, "Ready and schedulable"),
        (Cause::NoMajority, "a majority without this node"),
        (Cause::NoOtherServer, "another API server answers"),
        (Cause::NotKnown, "queried for /readyz"),
        (Cause::NotListed, "has listed the API servers"),
        (Cause::Unfenced, "taken over all berths"),
    ] {
        let words = Change::ControlPlane(cause).words(&case);
        assert!(words.contains(expected), "{cause:?}: {words}");
    }
}

#[test]
fn a_change_of_the_spec_names_its_setting() {
    let rows = [
        (Change::Resume, Some(("rollout.paused", "false"))),
        (Change::MaxFailures(2), Some(("rollout.maxFailures", "2"))),
        (Change::MaxUnavailable(3), Some(("rollout.maxUnavailable", "3"))),
        (Change::FleetLimit(4), None),
        (Change::Retry, None),
    ];
    for (change, expected) in rows {
        let expected = expected.map(|(path, value)| (path, value.to_owned()));
        assert_eq!(change.setting(), expected, "{change:?}");
    }
}
