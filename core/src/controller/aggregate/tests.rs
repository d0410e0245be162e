use std::collections::BTreeMap;
use std::sync::LazyLock;

use berth_api::berth::{Berth, Holding, Offer};
use berth_api::condition::Word;
use berth_api::node::BootcNodeSpec;
use berth_api::platform::Machine;
use berth_api::pool::{BerthCounts, BootcNodePoolSpec, PlatformDigest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

mod platforms;
mod references;
mod schema;
mod states;
mod turns;

use super::*;
use crate::controller::gate::{Gate, GateReason};
use crate::controller::image::Answers;
use crate::controller::implausible::{Contradiction, Implausible};
use crate::controller::plan::{BlockReason, FleetUse, Plan};
use crate::controller::unwritable::{Obstacle, Unwritable};
use crate::controller::usage::{CapacityUse, UseKind};
use crate::controller::view::{BadTurn, BootcNodeContent, KubeletReport, NodeView, Report};
use crate::finding::{self, Finding, Subject};

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

static V2: LazyLock<BootcNodePoolSpec> = LazyLock::new(|| spec("quay.io/os:v2"));
static V3: LazyLock<BootcNodePoolSpec> = LazyLock::new(|| spec("quay.io/os:v3"));

fn spec(reference: &str) -> BootcNodePoolSpec {
    let spec = serde_json::json!({ "nodeSelector": {}, "image": { "ref": reference } });
    serde_json::from_value(spec).unwrap()
}

fn target() -> Target {
    Target {
        image: "quay.io/os:v2".into(),
        digest: digest(2),
        version: Some("v2".into()),
        metadata: None,
        platforms: vec![PlatformDigest {
            architecture: "amd64".into(),
            variant: None,
            digest: digest(2),
        }],
        publish_time: None,
    }
}

pub(super) fn node(name: &str) -> NodeView {
    NodeView {
        name: name.into(),
        uid: "u".into(),
        labels: BTreeMap::new(),
        ready: true,
        unschedulable: false,
        our_cordon: false,
        created: 0,
        machine: Machine::new("amd64", &BTreeMap::new()),
        addresses: vec![],
        kubelet: KubeletReport::default(),
        error: None,
    }
}

pub(super) fn host(report: Report) -> BootcNodeView {
    BootcNodeView {
        uid: "h".into(),
        generation: Some(1),
        deleting: false,
        finalizers: vec![],
        owner: None,
        pool_label: None,
        content: Ok(BootcNodeContent {
            spec: BootcNodeSpec {
                staging: Staging::Allowed,
                ..BootcNodeSpec::default()
            },
            report,
            status_error: None,
            heartbeat: None,
            told: vec![],
        }),
    }
}
/// Returns a member that holds no berth.
pub(super) fn member<'a>(node: &'a NodeView, host: &'a BootcNodeView) -> MemberView<'a> {
    MemberView {
        node,
        host: Some(host),
        holding: None,
        overdue: false,
        heard: true,
        implausible: None,
    }
}

fn booted(n: u8) -> Report {
    let mut report = Report::default();
    report.images.booted = Some(digest(n));
    report
}

fn holding(committed: bool) -> Holding {
    let offer = Offer {
        node: "n1".into(),
        uid: "u".into(),
        target: digest(2),
        open_until: None,
    };
    let taken = Berth::new("p".into(), 0, 1)
        .offered(offer)
        .unwrap()
        .taken(&"n1".into(), &"u".into(), None, "b".into())
        .unwrap();
    let berth = if committed {
        taken.committed("b".into()).unwrap()
    } else {
        taken
    };
    berth.holding().unwrap().clone()
}

fn answered(image: &Target) -> Answers {
    let found = image::Found {
        image: image.clone(),
        age: Duration::ZERO,
    };
    let named = image::Answer {
        found: Some(found),
        trouble: None,
    };
    Answers {
        named,
        ..Answers::default()
    }
}

struct Case {
    members: Vec<(NodeView, Option<BootcNodeView>, Option<Holding>)>,
    plan: Plan,
    paused: bool,
    refused: Option<&'static str>,
    resolved: bool,
    news: Option<Target>,
    overdue: bool,
    heard: bool,
    /// Finding about the last member, if its reports cannot be true.
    implausible: Option<Implausible>,
    /// Number of members, counted from the end, that have left the pool.
    away: usize,
    failures: Vec<DigestFailures>,
    token: Option<&'static str>,
    unwritable: Vec<Unwritable>,
}

fn case(members: Vec<(NodeView, Option<BootcNodeView>, Option<Holding>)>) -> Case {
    Case {
        members,
        plan: Plan::default(),
        paused: false,
        refused: None,
        resolved: true,
        news: None,
        overdue: false,
        heard: true,
        implausible: None,
        away: 0,
        failures: vec![],
        token: None,
        unwritable: vec![],
    }
}

fn unwritable(why: Obstacle) -> Unwritable {
    Unwritable {
        pool: "p".into(),
        lease: "p-0".to_owned(),
        why,
    }
}

fn of_empty_pool<'a>(old: &'a BootcNodePoolStatus, answers: &'a Answers, plan: &'a Plan) -> PoolStatusFacts<'a> {
    PoolStatusFacts {
        generation: None,
        old,
        pool: "p",
        spec: &V2,
        polled: Polled {
            answers,
            polled: true,
            available_seen: Duration::ZERO,
            poll_request: None,
        },
        refused: None,
        gates: None,
        excluded: &[],
        deleting: false,
        bad_selector: None,
        members: &[],
        away: &[],
        conflicts: vec![],
        plan,
        unreadable: vec![],
        unwritable: vec![],
    }
}

#[test]
fn measurements_with_the_target_come_first() {
    for (updated, others, median) in [
        // Without updated members, all members count.
        (&[][..], &[9, 9, 9][..], 9),
        (&[2, 2], &[9, 9, 9], 9),
        (&[2, 3, 2], &[9, 9, 9, 9], 2),
        (&[9, 8, 9], &[1, 1, 1, 1], 9),
    ] {
        let mut members = vec![];
        for (image, minutes) in [(2, updated), (1, others)] {
            for minutes in minutes {
                let mut report = booted(image);
                report.measured.reboot = Some(Duration::from_secs(minutes * 60));
                report.measured.drain = Some(Duration::from_secs(*minutes));
                report.measured.staging = Some(Duration::from_secs(minutes * 10));
                members.push(up(&format!("n{}", members.len()), report));
            }
        }
        let durations = case(members).status().phase_durations;
        assert_eq!(durations.staging_seconds, Some(median * 10));
        assert_eq!(durations.reboot_seconds, Some(median * 60));
        assert_eq!(durations.drain_seconds, Some(median));
    }
}

#[test]
fn a_single_slow_reboot_makes_no_median() {
    for (minutes, median) in [
        (&[24 * 60][..], None),
        (&[24 * 60, 2], None),
        (&[24 * 60, 2, 3], Some(180)),
        // Each reboot is capped at rebootTimeout.
        (&[24 * 60, 24 * 60, 3], Some(900)),
    ] {
        let mut members = vec![];
        for (n, minutes) in minutes.iter().enumerate() {
            let mut report = Report::default();
            report.measured.reboot = Some(Duration::from_secs(minutes * 60));
            members.push(up(&format!("n{n}"), report));
        }
        let durations = case(members).status().phase_durations;
        assert_eq!(durations.reboot_seconds, median, "{minutes:?}");
    }
}

#[test]
fn a_lease_that_lost_its_label_is_named() {
    let mut case = case(vec![]);
    case.unwritable = vec![unwritable(Obstacle::NoLabel)];
    let says = case.says("Degraded");
    assert!(says.starts_with("True NameTaken Lease p-0 "), "{says}");
    assert!(says.contains("berth.dev/pool=p"), "{says}");
}

#[test]
fn an_unwritable_lease_is_named_with_the_error() {
    let mut case = case(vec![]);
    case.unwritable = vec![unwritable(Obstacle::Refused("webhook x denied the request".to_owned()))];
    let says = case.says("Degraded");
    let expected = "True WriteRefused the API server refuses to write Lease p-0, which counts as a used berth until it \
                    can be written: webhook x denied the request";
    assert_eq!(says, expected);
    assert_eq!(case.condition("Stalled").status, "True");
}

impl Case {
    fn status(&self) -> BootcNodePoolStatus {
        let mut members: Vec<MemberView<'_>> = self
            .members
            .iter()
            .map(|(node, host, holding)| MemberView {
                node,
                host: host.as_ref(),
                holding: holding.as_ref(),
                overdue: self.overdue && holding.is_some(),
                heard: self.heard,
                implausible: None,
            })
            .collect();
        if let Some(last) = members.last_mut() {
            last.implausible = self.implausible.as_ref();
        }
        let (members, away) = members.split_at(members.len() - self.away);
        let old = BootcNodePoolStatus {
            target: self.resolved.then(target),
            failures: self.failures.clone(),
            retry_token: self.token.map(str::to_owned),
            ..BootcNodePoolStatus::default()
        };
        let answers = self.news.as_ref().map(answered).unwrap_or_default();
        let mut spec = self.news.as_ref().map_or(V2.clone(), |news| spec(news.image.as_str()));
        spec.rollout.get_or_insert_default().paused = self.paused;
        let facts = PoolStatusFacts {
            generation: Some(3),
            spec: &spec,
            refused: self.refused,
            members,
            away,
            unwritable: self.unwritable.iter().collect(),
            ..of_empty_pool(&old, &answers, &self.plan)
        };
        status(&facts, Timestamp::UNIX_EPOCH)
    }

    fn condition(&self, type_: &str) -> Condition {
        condition::find(&self.status().conditions, type_).unwrap().clone()
    }

    fn says(&self, type_: &str) -> String {
        let c = self.condition(type_);
        format!("{} {} {}", c.status, c.reason, c.message)
    }
}

fn degraded_by(node: &str, reason: &str, message: &str) -> Finding {
    let node = Subject::Node(node.into(), "p".into());
    finding::node::degraded(node, Word::stored(reason), message)
}

fn up(name: &str, report: Report) -> (NodeView, Option<BootcNodeView>, Option<Holding>) {
    (node(name), Some(host(report)), None)
}

#[test]
fn every_member_is_counted_where_it_is() {
    let mut staged = booted(1);
    staged.images.staged = Some(digest(2));
    staged.images.locked = true;
    let staging = Report {
        phase: Some(Phase::Staging),
        ..booted(1)
    };
    let mut down = node("n6");
    down.ready = false;
    let degraded = Report {
        degraded: Some(degraded_by("n7", "DiskFull", "no space")),
        ..booted(1)
    };
    let case = case(vec![
        up("n1", booted(2)),
        up("n2", staged),
        up("n3", staging),
        (node("n4"), Some(host(booted(1))), Some(holding(false))),
        (node("n5"), Some(host(booted(2))), Some(holding(true))),
        (down, None, None),
        up("n7", degraded),
    ]);
    let expected = NodeCounts {
        total: 7,
        updated: 1,
        staging: 1,
        staged: 1,
        draining: 1,
        rebooting: 1,
        pending: 2,
        excluded: 0,
        degraded: 1,
        unavailable: 1,
    };
    assert_eq!(case.status().nodes, expected);
    assert_eq!(
        case.says("Progressing"),
        "True Rebooting 1 of 7 updated; rebooting: n5; draining: n4; staging: n3"
    );
    assert_eq!(
        case.says("Degraded"),
        "True NodesDegraded 1 degraded: n7: DiskFull: no space"
    );
}

#[test]
fn a_node_that_cannot_be_decoded_is_named() {
    let mut bad = node("n1");
    (bad.ready, bad.error) = (false, Some("status.conditions: too late".into()));
    let case = case(vec![(bad, Some(host(booted(2))), None), up("n2", booted(2))]);
    let said = case.says(condition::pool::DEGRADED);
    assert!(said.starts_with("True NodesDegraded") && said.contains("n1"), "{said}");
    let nodes = case.status().nodes;
    assert_eq!((nodes.total, nodes.unavailable, nodes.degraded), (2, 1, 1));
}

#[test]
fn a_pools_trouble_hides_no_node() {
    let degraded = Report {
        degraded: Some(degraded_by("n1", "DiskFull", "no space")),
        ..booted(1)
    };
    let mut case = case(vec![up("n1", degraded)]);
    case.plan.order = Some(Gate {
        reason: GateReason::UnknownPool,
        message: "no such pool".to_owned(),
    });
    let both = "True UnknownPool no such pool; 1 degraded: n1: DiskFull: no space";
    assert_eq!(case.says("Degraded"), both);
    case.plan.order = case.plan.order.map(|order| Gate {
        reason: GateReason::EarlierPool,
        ..order
    });
    assert!(
        case.says("Degraded").starts_with("True NodesDegraded 1 "),
        "waiting is not a trouble"
    );
    case.unwritable = vec![unwritable(Obstacle::NoLabel)];
    let says = case.says("Degraded");
    assert!(
        says.starts_with("True NameTaken ") && says.ends_with("; 1 degraded: n1: DiskFull: no space"),
        "{says}"
    );
}

#[test]
fn a_fleet_that_stays_unfenced_names_the_pools() {
    let mut case = case(vec![up("n1", booted(1))]);
    case.plan.waiting = [("n1".into(), BlockReason::Fencing)].into();
    case.plan.fleet = Some(FleetUse {
        unfenced: true,
        ..FleetUse::default()
    });
    assert_eq!(
        case.says("Progressing"),
        "False Waiting waits until the new leading controller has taken over all berths: n1"
    );
    case.plan.fleet.as_mut().unwrap().unreadable = vec!["b".into(), "c".into()];
    let says = case.says("Progressing");
    assert!(
        says.starts_with("False Fencing ") && says.contains("cannot be read: b, c; repair"),
        "{says}"
    );
}

#[test]
fn done_is_done() {
    let case = case(vec![up("n1", booted(2)), up("n2", booted(2))]);
    assert_eq!(case.says("Updated"), "True AllUpdated 2 of 2 nodes run v2");
    assert_eq!(case.says("Progressing"), "False Updated all 2 nodes run v2");
    assert_eq!(case.condition("Degraded").status, "False");
    assert_eq!(case.condition("Paused").status, "False");
    assert!(
        case.says("ImageResolved")
            .starts_with("True Resolved quay.io/os:v2 was resolved to sha256:")
    );
    assert_eq!(case.status().observed_generation, Some(3));
}

#[test]
fn progressing_names_the_waiting_nodes() {
    let mut case = case(vec![up("n1", booted(1)), up("n7", booted(1))]);
    case.plan = Plan {
        waiting: [("n1".into(), BlockReason::Capacity)].into(),
        used_by: vec![CapacityUse {
            who: "n7".into(),
            how: UseKind::CordonedByOthers,
        }],
        counts: BerthCounts {
            total: 1,
            closed: 1,
            ..BerthCounts::default()
        },
        ..Plan::default()
    };
    assert_eq!(
        case.says("Progressing"),
        "False Waiting rollout.maxUnavailable is used up, 1 of 1: n7 (cordoned by someone else)"
    );
    case.plan.waiting = [
        ("n1".into(), BlockReason::NotStaged),
        ("n7".into(), BlockReason::Silent),
        ("n9".into(), BlockReason::UpToDate),
    ]
    .into();
    assert_eq!(
        case.says("Progressing"),
        "False Waiting has not staged its image: n1; has a silent agent: n7"
    );
    case.paused = true;
    case.plan.gate = Some(Gate {
        reason: GateReason::Paused,
        message: "because".into(),
    });
    assert_eq!(case.says("Progressing"), "False Paused because");
    assert_eq!(case.condition("Paused").status, "True");
    case.resolved = false;
    assert!(case.says("Progressing").starts_with("False ImageNotResolved"));
    assert!(case.says("ImageResolved").starts_with("Unknown Resolving"));
    assert!(case.says("Updated").starts_with("False ImageNotResolved"));
}

#[test]
fn a_forbidden_registry_keeps_the_target() {
    let mut case = case(vec![up("n1", booted(1)), up("n2", booted(2))]);
    case.refused = Some("not allowed");
    assert_eq!(case.says("ImageResolved"), "False RegistryNotAllowed not allowed");
    assert!(case.says("Updated").starts_with("False ImageNotResolved"));
    assert_eq!(
        case.says("Progressing"),
        "False ImageNotResolved no node updates to quay.io/os:v2; see ImageResolved"
    );
    assert_eq!(case.status().target, Some(target()));
}

#[test]
fn new_failures_are_recorded_before_old_ones() {
    fn failures(digests: &[Digest]) -> Vec<DigestFailures> {
        let failures = digests.iter().map(|digest| DigestFailures {
            digest: digest.clone(),
            nodes: vec!["n1".into()],
            count: 1,
        });
        failures.collect()
    }
    let mut case = case(vec![]);
    case.failures = failures(&[10, 11, 12, 13, 14, 15, 16, 17].map(digest));
    case.plan.failures = (10..18)
        .chain([40])
        .map(|n| (digest(n), ["n1".into()].into()))
        .collect();
    let first = failures(&[40, 10, 11, 12, 13, 14, 15, 16].map(digest));
    assert_eq!(
        case.status().failures,
        first,
        "a berth waits until the failure is recorded, whatever the current target is"
    );
    case.failures = first.clone();
    case.plan.failures.remove(&digest(17));
    assert_eq!(case.status().failures, first, "recorded failures stay");
    case.plan.failures.insert(digest(2), ["n1".into()].into());
    assert_eq!(
        case.status().failures[..2],
        failures(&[2, 40].map(digest)),
        "failures of the target come first"
    );
}

#[test]
fn a_removed_retry_token_stays_obeyed() {
    let mut case = case(vec![]);
    case.token = Some("a");
    assert_eq!(case.status().retry_token.as_deref(), Some("a"));
}

#[test]
fn only_a_locked_image_is_staged() {
    for (n, locked, expected) in [(2, true, (1, 0)), (2, false, (0, 1)), (3, true, (0, 1))] {
        let mut report = booted(1);
        report.images.staged = Some(digest(n));
        report.images.locked = locked;
        let nodes = case(vec![up("n1", report)]).status().nodes;
        assert_eq!((nodes.staged, nodes.pending), expected, "{n} {locked}");
    }
}

#[test]
fn waves_start_over_with_another_target() {
    let wave = berth_api::pool::WaveStatus {
        name: "rest".to_owned(),
        total: 1,
        updated: 0,
        state: berth_api::pool::WaveState::Active,
        soaked_seconds: 0,
    };
    let mut case = case(vec![up("n1", booted(1))]);
    case.plan.waves = vec![wave];
    assert_eq!(case.status().waves, case.plan.waves);
    case.news = Some(Target {
        image: "quay.io/os:v3".into(),
        digest: digest(3),
        ..target()
    });
    assert!(case.status().waves.is_empty());
}

#[test]
fn only_active_nodes_are_named() {
    let case = case(vec![
        (node("n1"), Some(host(booted(1))), Some(holding(false))),
        up("n2", booted(1)),
    ]);
    assert_eq!(case.says("Progressing"), "True Draining 0 of 2 updated; draining: n1");
}

#[test]
fn an_open_offer_is_named() {
    let mut case = case(vec![up("n1", booted(1)), up("n2", booted(1))]);
    case.plan.used_by = [("n1", UseKind::IsOffered), ("n2", UseKind::CordonedByOthers)]
        .map(|(who, how)| CapacityUse { who: who.into(), how })
        .into();
    case.plan.counts.offered = 1;
    assert_eq!(case.says("Progressing"), "True Offered a berth is offered to n1");
}

#[test]
fn a_pool_is_paused_by_its_fleet() {
    let mut case = case(vec![up("n1", booted(1))]);
    for (reason, expected) in [
        (GateReason::FleetPaused, ("True", "PausedByFleet")),
        (GateReason::OutsideWindows, ("False", "NotPaused")),
    ] {
        let message = "because".to_owned();
        case.plan.gate = Some(Gate { reason, message });
        let condition = case.condition("Paused");
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), expected);
    }
}

/// A node that may be compromised is named first. The other problems of the pool, and those that the node itself
/// reports, cannot hide it.
#[test]
fn implausible_reports_are_named_before_all_other_problems() {
    let broken = |name: &str| Report {
        degraded: Some(degraded_by(name, "DiskFull", "no space")),
        ..booted(1)
    };
    let names = ["n1", "n2", "n3", "n4", "n5"];
    let mut case = case(names.map(|name| up(name, broken(name))).to_vec());
    case.implausible = Some(Implausible {
        reason: Contradiction::BootIdDiffers,
        message: "other boot ID".to_owned(),
    });
    let says = case.says("Degraded");
    let expected = "True BootIdDiffers 5 degraded: n5: BootIdDiffers: other boot ID; n1: DiskFull: no space; ";
    assert!(says.starts_with(expected), "{says}");
    // The node has left the pool and keeps its berth.
    case.away = 1;
    let says = case.says("Degraded");
    assert!(says.starts_with("True BootIdDiffers 5 degraded: n5: "), "{says}");
}
