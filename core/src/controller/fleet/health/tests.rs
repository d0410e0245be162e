use berth_api::condition::find;
use berth_api::firstboot::FirstbootOutcome;
use berth_api::fleet::HeldMachine;
use berth_api::pool::NodeCounts;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pool(updated: u32, is: &str, reason: CommonReason) -> BootcNodePoolStatus {
    let nodes = NodeCounts {
        total: 3,
        updated,
        ..NodeCounts::default()
    };
    let mut status = BootcNodePoolStatus {
        nodes,
        ..BootcNodePoolStatus::default()
    };
    let ready = if is == condition::pool::READY {
        Verdict::yes(reason, "")
    } else {
        Verdict::no(reason, "")
    };
    condition::set(&mut status.conditions, condition::pool::READY, ready, None, at(0));
    if is != condition::pool::READY && !is.is_empty() {
        condition::set(&mut status.conditions, is, Verdict::yes(reason, ""), None, at(0));
    }
    status
}

fn state<'a>(name: &'a str, status: &'a BootcNodePoolStatus) -> PoolState<'a> {
    PoolState {
        name,
        status,
        trouble: None,
        is_asked: true,
    }
}

fn agent(node: &str, quiet: u64) -> Agent<'_> {
    Agent {
        node,
        quiet: Duration::from_secs(quiet),
        rebooting: false,
        unguarded: false,
        firstboot: None,
    }
}

fn facts<'a>(old: &'a BootcFleetStatus, pools: &'a [PoolState<'a>], agents: &'a [Agent<'a>]) -> FleetStatusFacts<'a> {
    FleetStatusFacts {
        generation: Some(1),
        old,
        paused: false,
        pools,
        agents,
        machines: Machines::default(),
        events_unread: None,
        unreadable: &[],
        unreadable_pools: 0,
        deaf: false,
        listened: Duration::from_secs(1000),
        silent_after: SILENT_AFTER,
    }
}

/// Returns a condition as `status reason: message`.
fn said(status: &BootcFleetStatus, type_: &str) -> String {
    let c = find(&status.conditions, type_).unwrap();
    format!("{} {}: {}", c.status, c.reason, c.message)
}

#[test]
fn one_object_answers_whether_nodes_are_updated() {
    let old = BootcFleetStatus::default();
    let done = pool(3, "Ready", CommonReason::AllUpdated);
    let going = pool(1, "Reconciling", CommonReason::Draining);
    let stalled = pool(0, "Stalled", CommonReason::TooManyFailures);
    let paused = pool(2, "", CommonReason::PausedByAdmin);
    for (pools, expected) in [
        (vec![], "False NoPools: there is no BootcNodePool"),
        (vec![state("a", &done)], "False AllUpdated: 3 of 3 nodes updated"),
        (
            vec![state("a", &done), state("b", &going), state("c", &stalled)],
            "True Progressing: 4 of 9 nodes updated; in progress: b: 1 of 3 (Draining)",
        ),
        (
            vec![state("a", &done), state("c", &stalled)],
            "False Stalled: 3 of 6 nodes updated; waiting for a person: c: 0 of 3 (TooManyFailures)",
        ),
        (
            vec![state("a", &done), state("d", &paused)],
            "False Waiting: 5 of 6 nodes updated; waiting: d (PausedByAdmin)",
        ),
    ] {
        let status = status(&facts(&old, &pools, &[]), at(1));
        assert_eq!(said(&status, types::UPDATING), expected);
    }
}

/// Returns the status of an updated pool with one more condition, set at second 60.
fn updated_with(type_: &str, verdict: Verdict) -> BootcNodePoolStatus {
    let mut status = pool(3, "Ready", CommonReason::AllUpdated);
    condition::set(&mut status.conditions, type_, verdict, None, at(60));
    status
}

#[test]
fn pools_without_new_images_are_named() {
    let old = BootcFleetStatus::default();
    let well = updated_with(condition::pool::FEED_FAILING, Verdict::no(CommonReason::AsExpected, ""));
    let dead = updated_with(
        condition::pool::FEED_FAILING,
        Verdict::yes(Word::stored("Unauthorized"), "words"),
    );
    let unresolved = updated_with(
        condition::pool::IMAGE_RESOLVED,
        Verdict::no(CommonReason::InvalidReference, "words"),
    );
    for (pools, expected) in [
        (vec![], "Unknown NoPools: there is no BootcNodePool"),
        (vec![state("a", &well)], "True AsExpected: "),
        (
            vec![state("a", &well), state("b", &dead), state("c", &unresolved)],
            "False FeedsFailing: 2 of 3 pools get no new image: b (Unauthorized since 1970-01-01T00:01:00Z), \
             c (InvalidReference since 1970-01-01T00:01:00Z); see their conditions ImageResolved and FeedFailing",
        ),
    ] {
        let status = status(&facts(&old, &pools, &[]), at(1000));
        assert_eq!(said(&status, types::FEEDS_HEALTHY), expected);
    }
}

#[test]
fn a_new_leader_remembers_silent_agents() {
    let old = BootcFleetStatus::default();
    let (lively, dead) = (agent("n1", 20), agent("n2", 270));
    let away = Agent {
        rebooting: true,
        ..agent("n3", 900)
    };
    let all = [lively, dead, away];
    let first = status(&facts(&old, &[], &all), at(1));
    assert_eq!(
        said(&first, types::AGENTS_HEALTHY),
        "False AgentsSilent: 1 of 3 agents silent for 270 s: n2"
    );
    let anew = [lively, agent("n2", 10), away];
    let young = FleetStatusFacts {
        listened: Duration::from_secs(10),
        ..facts(&first, &[], &anew)
    };
    assert_eq!(status(&young, at(2)), first, "a new leader has not listened yet");
    assert_eq!(
        said(&status(&facts(&first, &[], &anew), at(3)), types::AGENTS_HEALTHY),
        "True AsExpected: "
    );
    let deaf = FleetStatusFacts {
        deaf: true,
        ..facts(&old, &[], &all)
    };
    assert!(
        find(&status(&deaf, at(1)).conditions, types::AGENTS_HEALTHY).is_none(),
        "a report may have been missed"
    );
    assert!(said(&status(&facts(&old, &[], &[]), at(1)), types::AGENTS_HEALTHY).starts_with("Unknown NoNodes"));
}

fn query_failure(reason: &str) -> QueryFailure {
    QueryFailure {
        reason: Word::stored(reason),
        message: "no route".into(),
        since: at(0),
        attempts: 1,
        next: None,
    }
}

#[test]
fn failing_registries_and_objects_are_named() {
    let old = BootcFleetStatus::default();
    let quiet = pool(3, "Ready", CommonReason::AllUpdated);
    let failure = query_failure("RegistryUnavailable");
    let pools = [PoolState {
        trouble: Some(&failure),
        ..state("workers", &quiet)
    }];
    let unguarded = [Agent {
        unguarded: true,
        ..agent("n1", 0)
    }];
    let unreadable = ["Lease x: no phase".to_owned()];
    let away = status(
        &FleetStatusFacts {
            unreadable: &unreadable,
            ..facts(&old, &pools, &unguarded)
        },
        at(1),
    );
    assert_eq!(
        said(&away, types::REGISTRY_REACHABLE),
        "False RegistryAway: the registries of these pools cannot be queried; the pools keep their current images: \
         workers: no route"
    );
    assert!(said(&away, types::GUARDED).starts_with("False Unguarded: these nodes take no berth: n1; "));
    assert_eq!(
        said(&away, types::CONTROLLER_HEALTHY),
        "False UnreadableObjects: cannot be read: Lease x: no phase"
    );
    let unasked = [PoolState {
        is_asked: false,
        ..state("workers", &quiet)
    }];
    for (what, old, listened, expected) in [
        ("a new leader has yet to ask", &away, 10, "False RegistryAway"),
        (
            "a new leader has queried the registry",
            &away,
            FIRST_ANSWERS_TIMEOUT.as_secs(),
            "True AsExpected",
        ),
        ("no former leader has reported an outage", &old, 10, "True AsExpected"),
    ] {
        let facts = FleetStatusFacts {
            listened: Duration::from_secs(listened),
            ..facts(old, &unasked, &[])
        };
        let said = said(&status(&facts, at(2)), types::REGISTRY_REACHABLE);
        assert!(said.starts_with(expected), "{what}: {said}");
    }
}

#[test]
fn an_unreadable_pool_leaves_updating_unknown() {
    let old = BootcFleetStatus::default();
    let none = FleetStatusFacts {
        unreadable_pools: 1,
        ..facts(&old, &[], &[])
    };
    let updating = said(&status(&none, at(1)), types::UPDATING);
    assert!(
        updating.starts_with("Unknown UnreadableObjects: 1 pools cannot be read"),
        "{updating}"
    );
}

#[test]
fn an_absent_image_is_not_an_outage() {
    let old = BootcFleetStatus::default();
    let quiet = pool(3, "Ready", CommonReason::AllUpdated);
    let absent = query_failure("ImageNotFound");
    let pools = [PoolState {
        trouble: Some(&absent),
        ..state("workers", &quiet)
    }];
    let well = status(&facts(&old, &pools, &[agent("n1", 0)]), at(1));
    assert_eq!(said(&well, types::REGISTRY_REACHABLE), "True AsExpected: ");
    assert!(said(&well, types::GUARDED).starts_with("True AsExpected"));
}

#[test]
fn many_pools_are_counted_and_partly_listed() {
    let old = BootcFleetStatus::default();
    let names: Vec<String> = (0..MAX_POOLS + 1).map(|n| format!("p{n:03}")).collect();
    let one = pool(2, "Reconciling", CommonReason::Staging);
    let pools: Vec<_> = names.iter().map(|name| state(name, &one)).collect();
    let first = status(&facts(&old, &pools, &[]), at(1));
    assert_eq!(
        (first.pools.len(), first.nodes.total),
        (MAX_POOLS, 3 * (MAX_POOLS as u32 + 1))
    );
    assert_eq!(
        status(&facts(&first, &pools, &[]), at(2)),
        first,
        "the second status is equal, so it is not written"
    );
}

#[test]
fn a_paused_fleet_is_reported_with_its_generation() {
    let old = BootcFleetStatus::default();
    let first = status(
        &FleetStatusFacts {
            paused: true,
            ..facts(&old, &[], &[])
        },
        at(1),
    );
    assert!(said(&first, types::PAUSED).starts_with("True Paused"));
    let second = status(
        &FleetStatusFacts {
            generation: Some(2),
            ..facts(&first, &[], &[])
        },
        at(2),
    );
    assert!(said(&second, types::PAUSED).starts_with("False NotPaused"));
    assert_eq!(second.observed_generation, Some(2));
}

#[test]
fn failed_first_boots_are_counted_and_named() {
    let old = BootcFleetStatus::default();
    let allowed = Some((FirstbootOutcome::Allowed, false));
    let away = Some((FirstbootOutcome::RegistryAway, false));
    let overridden = Some((FirstbootOutcome::Overridden, true));
    for (boots, expected) in [
        (vec![], "Unknown NoNodes: no pool has a node"),
        (
            vec![("n1", allowed), ("n2", None)],
            "True AsExpected: 1 of 2 nodes were checked on their first boot",
        ),
        (
            vec![("n1", allowed), ("n2", away), ("n3", None)],
            "False FirstBootFailed: 1 of 2 first-boot checks failed: n2 (RegistryAway); see status.firstboot of \
             each node",
        ),
        (
            vec![("n1", allowed), ("n2", overridden)],
            "False FirstBootFailed: 1 of 2 first-boot checks failed: n2 (held back at first, then Overridden); \
             see status.firstboot of each node",
        ),
    ] {
        let mut agents = vec![];
        for (node, boot) in boots {
            agents.push(Agent {
                firstboot: boot.map(|(outcome, held)| FirstBoot { outcome, held }),
                ..agent(node, 0)
            });
        }
        let status = status(&facts(&old, &[], &agents), at(1));
        assert_eq!(said(&status, types::BOOTSTRAP_HEALTHY), expected);
    }
}

#[test]
fn events_that_cannot_be_listed_are_told() {
    let old = BootcFleetStatus::default();
    let unread = FleetStatusFacts {
        events_unread: Some("events is forbidden".to_owned()),
        ..facts(&old, &[], &[])
    };
    let without_agents = said(&status(&unread, at(100)), types::BOOTSTRAP_HEALTHY);
    assert!(
        without_agents.starts_with("Unknown EventsUnreadable:") && without_agents.contains("events is forbidden"),
        "{without_agents}"
    );
    let agents = [failed_pivot()];
    let unread = FleetStatusFacts {
        agents: &agents,
        ..unread
    };
    let known = said(&status(&unread, at(100)), types::BOOTSTRAP_HEALTHY);
    assert!(known.starts_with("False FirstBootFailed"), "{known}");
}

fn failed_pivot() -> Agent<'static> {
    Agent {
        firstboot: Some(FirstBoot {
            outcome: FirstbootOutcome::PivotFailed,
            held: false,
        }),
        ..agent("n1", 10)
    }
}

#[test]
fn held_machines_are_named_before_joined_ones() {
    let old = BootcFleetStatus::default();
    let machine = HeldMachine {
        name: "worker-7".to_owned(),
        message: "worker-7: installed from 9.0.1, older than the minimum 9.2".to_owned(),
        last_time: at(50).into(),
    };
    let held = FleetStatusFacts {
        machines: Machines {
            held: vec![machine.clone()],
            joined: vec![],
        },
        ..facts(&old, &[], &[])
    };
    let words = "1 machine is held back on first boot and did not join: worker-7: installed from 9.0.1, older than the \
                 minimum 9.2; to dismiss one: kubectl berth dismiss MACHINE";
    let none = status(&held, at(100));
    assert_eq!(
        said(&none, types::BOOTSTRAP_HEALTHY),
        format!("False MachinesHeld: {words}")
    );
    assert_eq!(none.held_machines, std::slice::from_ref(&machine));
    let agents = [failed_pivot()];
    let held = FleetStatusFacts {
        agents: &agents,
        ..held
    };
    let both = said(&status(&held, at(100)), types::BOOTSTRAP_HEALTHY);
    assert!(both.contains(words) && both.contains("n1 (PivotFailed)"), "{both}");
}

#[test]
fn an_agent_may_be_silent_for_a_share() {
    for (keeps_from_berths, named_after) in [(900, 270), (3600, 1080), (100, 100)] {
        let found = super::silent_after(Duration::from_secs(keeps_from_berths));
        assert_eq!(found, Duration::from_secs(named_after), "{keeps_from_berths}");
    }
}

#[test]
fn a_leader_hears_silence_after_its_time() {
    let old = BootcFleetStatus::default();
    let dead = [agent("n1", 270)];
    let silent = status(&facts(&old, &[], &dead), at(1));
    let lively = [agent("n1", 10)];
    for (listened, expected) in [(269, "False AgentsSilent"), (270, "True AsExpected: ")] {
        let facts = FleetStatusFacts {
            listened: Duration::from_secs(listened),
            ..facts(&silent, &[], &lively)
        };
        let said = said(&status(&facts, at(2)), types::AGENTS_HEALTHY);
        assert!(said.starts_with(expected), "{said}");
    }
}
