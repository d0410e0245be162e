//! Tests of the judge with made-up audit logs. The rules are the same, but all evidence about hosts is from the log.

use super::*;
use crate::audit::Record;
use crate::log::{Log, Unfit};
use crate::turns::{Proof, Verdict};
use crate::verdict::{Report, Terms};

const NAMESPACE: &str = "berth-system";

/// Returns the record's line in the log.
fn line(record: &Record, number: usize) -> Value {
    let group = match record.resource.as_str() {
        "leases" => "coordination.k8s.io",
        "nodes" | "pods" => "",
        _ => "berth.dev",
    };
    let namespace = if record.resource == "leases" { NAMESPACE } else { "" };
    json!({
        "kind": "Event", "auditID": format!("id-{number}"), "stage": record.stage, "requestURI": "/",
        "verb": record.verb, "user": { "username": record.user }, "userAgent": record.user_agent,
        "objectRef": {
            "apiGroup": group, "resource": record.resource, "subresource": record.subresource,
            "namespace": namespace, "name": record.name,
        },
        "responseStatus": { "code": record.code, "message": record.message },
        "requestObject": record.request, "responseObject": record.response,
        "requestReceivedTimestamp": record.received, "stageTimestamp": record.at,
    })
}

impl World {
    /// Adds a status of n1's agent and one of its kubelet, both with this boot ID.
    fn told(&mut self, boot: &str, n: u8) -> &mut Self {
        self.agent_says(boot, n).kubelet_says(boot, "True")
    }

    fn agent_says(&mut self, boot: &str, n: u8) -> &mut Self {
        let status = json!({ "bootID": boot, "booted": { "digest": digest(n).to_string() } });
        let object = json!({ "metadata": { "name": "n1" }, "status": status });
        self.write(AGENT, "patch", "bootcnodes/status", "n1", json!({}), object)
    }

    fn kubelet_says(&mut self, boot: &str, ready: &str) -> &mut Self {
        let conditions = json!([{ "type": "Ready", "status": ready }]);
        let status = json!({ "nodeInfo": { "bootID": boot }, "conditions": conditions });
        let object = json!({ "metadata": { "name": "n1" }, "status": status });
        self.write("kubelet", "patch", "nodes/status", "n1", json!({}), object);
        if let Some(last) = self.audit.last_mut() {
            last.user = "system:node:n1".to_owned();
        }
        self
    }

    /// Returns a world with one whole turn of n1, as a log shows it.
    fn logged() -> Self {
        let mut world = Self::default();
        world.capacity(1).joined().pass(60).berth(CONTROLLER, new(0)).turn();
        world
    }

    /// Returns a world with a whole turn of n1, then a whole turn of n2.
    fn two_turns() -> Self {
        let mut world = Self::default();
        world.capacity(1).joined();
        let from = world.audit.len();
        world.joined().renamed(from);
        world.pass(60).berth(CONTROLLER, new(0)).turn().pass(60);
        let from = world.audit.len();
        world.turn().renamed(from);
        world
    }

    /// Changes the records from index `from` onwards: n1 becomes n2, and its boots b1 and b2 become c1 and c2.
    fn renamed(&mut self, from: usize) {
        for record in &mut self.audit[from..] {
            record.user = record.user.replace("node:n1", "node:n2");
            record.name = record.name.replace("n1", "n2");
            for body in [&mut record.request, &mut record.response].into_iter().flatten() {
                let mut renamed = body.to_string();
                for (from, to) in [("n1\"", "n2\""), ("\"b1\"", "\"c1\""), ("\"b2\"", "\"c2\"")] {
                    renamed = renamed.replace(from, to);
                }
                *body = serde_json::from_str(&renamed).unwrap();
            }
        }
    }

    /// Adds n1, which runs image 1, with image 2 published for it.
    fn joined(&mut self) -> &mut Self {
        self.node(ADMIN, "create", "n1", false, false)
            .wants("n1", "workers", 2)
            .told("b1", 1)
    }

    /// Adds a turn of n1 under the existing berth.
    fn turn(&mut self) -> &mut Self {
        self.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
            .next(AGENT, take)
            .node(AGENT, "patch", "n1", true, true)
            .next(AGENT, |b| b.committed(BootId::from("b1")).unwrap())
            .pass(60)
            .told("b2", 2)
            .next(AGENT, |b| b.releasing(Outcome::Updated, BootId::from("b2")).unwrap())
            .node(AGENT, "patch", "n1", false, false)
            .next(AGENT, |b| b.given_back().unwrap())
    }

    /// Returns the records as a log. `forge` may change or drop each line.
    fn log(&self, forge: impl Fn(Value) -> Option<Value>) -> Log {
        let mut log = Log::default();
        for (number, record) in self.audit.iter().enumerate() {
            if let Some(event) = forge(line(record, number)) {
                log.take("audit.log", number as u64 + 1, event.to_string().as_bytes(), NAMESPACE);
            }
        }
        log
    }

    fn report(&self, forge: impl Fn(Value) -> Option<Value>) -> Report {
        self.log(forge).judge(&terms()).unwrap()
    }
}

fn terms() -> Terms {
    Terms {
        namespace: NAMESPACE.to_owned(),
        fleet: Some(5),
        lag: SignedDuration::from_secs(10),
    }
}

fn said(report: &Report) -> Vec<String> {
    report.violations.iter().map(ToString::to_string).collect()
}

fn is_of(event: &Value, resource: &str, subresource: &str) -> bool {
    event["objectRef"]["resource"] == resource && event["objectRef"]["subresource"] == subresource
}

fn is_commit(event: &Value) -> bool {
    event["responseObject"]["metadata"]["annotations"]["berth.dev/phase"] == "Committed"
}

/// Asserts that a violation begins with `rule` and contains `what`, that every violation names its line, and that a
/// turn is marked as violated.
fn blamed(report: &Report, rule: &str, what: &str) {
    let said = said(report);
    assert!(
        said.iter().any(|v| v.starts_with(rule) && v.contains(what)),
        "{rule} … {what}: {said:#?}"
    );
    let lines_known = report.violations.iter().all(|v| !v.audit_ids.is_empty());
    assert!(lines_known, "{:#?}", report.violations);
    let broken = report
        .turns
        .iter()
        .any(|t| matches!(&t.verdict, Verdict::Violated { .. }));
    assert!(broken, "{:#?}", report.turns);
}

#[test]
fn a_correct_turn_is_proven_by_the_log() {
    let report = World::logged().report(Some);
    assert_eq!(said(&report), Vec::<String>::new());
    let [turn] = report.turns.as_slice() else {
        panic!("{:#?}", report.turns)
    };
    assert_eq!((turn.node.as_str(), turn.berth.as_str()), ("n1", "workers-0"));
    assert_eq!(turn.from, Some(digest(1).to_string()));
    assert_eq!(turn.to, digest(2).to_string());
    assert_eq!(turn.committed_boot.as_deref(), Some("b1"));
    assert_eq!(turn.final_boot.as_deref(), Some("b2"));
    assert_eq!((&turn.outcome, &turn.verdict), (&Some("Updated"), &Verdict::Kept));
    assert!(
        matches!(&turn.proof, Proof::Booted { digest: of, .. } if *of == turn.to),
        "{turn:#?}"
    );
    assert_eq!(report.not_judged.len(), 1, "the pods: {:#?}", report.not_judged);
    assert_eq!(report.others, vec![]);
}

#[test]
fn each_forgery_of_a_log_is_found() {
    let world = World::logged();
    let other_boot = world.report(|mut event| {
        if is_commit(&event) {
            event["responseObject"]["metadata"]["annotations"]["berth.dev/boot-id"] = json!("b9");
        }
        Some(event)
    });
    blamed(&other_boot, "I2", "without a committed berth");
    let another_image = world.report(|mut event| {
        if event["responseObject"]["status"]["bootID"] == "b2" {
            event["responseObject"]["status"]["booted"]["digest"] = json!(digest(3).to_string());
        }
        Some(event)
    });
    blamed(&another_image, "I2", "but booted sha256:0303");
    blamed(
        &another_image,
        "I5",
        "which is neither the target nor the previous image",
    );
    let unrestored = world.report(|event| {
        let restores = is_of(&event, "nodes", "") && event["responseObject"]["spec"]["unschedulable"] == false;
        (!restores || event["verb"] == "create").then_some(event)
    });
    blamed(
        &unrestored,
        "I4",
        "the agent gave the berth back without writing its Node first",
    );
    let never_ready = world.report(|mut event| {
        if event["responseObject"]["status"]["nodeInfo"]["bootID"] == "b2" {
            event["responseObject"]["status"]["conditions"][0]["status"] = json!("False");
        }
        Some(event)
    });
    blamed(&never_ready, "I5", "the Node was not Ready in this boot");
    let uncordoned = world.report(|mut event| {
        if event["responseObject"]["spec"]["unschedulable"] == true {
            event["responseObject"]["spec"]["unschedulable"] = json!(false);
        }
        Some(event)
    });
    blamed(&uncordoned, "I1", "its Node had been schedulable since");
    let outgrown = world.report(|mut event| {
        if is_of(&event, "bootcnodepools", "status") {
            event["responseObject"]["status"]["berths"]["total"] = json!(0);
        }
        Some(event)
    });
    blamed(&outgrown, "I1", "hold a berth of pool workers, whose capacity is 0");
}

#[test]
fn missing_evidence_is_not_judged() {
    let world = World::logged();
    fn missing(report: &Report, words: &str) {
        assert_eq!(said(report), Vec::<String>::new());
        let told = report.not_judged.iter().any(|w| w.contains(words));
        assert!(told, "{words}: {:#?}", report.not_judged);
    }
    fn without(world: &World, resource: &'static str, subresource: &'static str) -> Report {
        world.report(move |event| (!is_of(&event, resource, subresource)).then_some(event))
    }
    let no_commit = world.report(|event| (!is_commit(&event)).then_some(event));
    missing(&no_commit, "workers-0: the log lacks writes before");
    assert_eq!(no_commit.turns[0].verdict, Verdict::NotJudged);
    let no_agents = without(&world, "bootcnodes", "status");
    missing(&no_agents, "no bodies of BootcNode statuses");
    assert_eq!(
        no_agents.turns[0].verdict,
        Verdict::NotJudged,
        "the booted image is unknown"
    );
    let no_kubelets = without(&world, "nodes", "status");
    missing(&no_kubelets, "no bodies of Node statuses");
    assert_eq!(
        no_kubelets.turns[0].verdict,
        Verdict::NotJudged,
        "it is unknown whether it was Ready"
    );
    for (resource, subresource, words) in [
        ("nodes", "", "no bodies of Node writes"),
        ("bootcnodes", "", "no bodies of BootcNode writes"),
        ("bootcnodepools", "status", "no bodies of BootcNodePool statuses"),
    ] {
        let report = without(&world, resource, subresource);
        missing(&report, words);
        assert_eq!(report.turns[0].verdict, Verdict::NotJudged, "{resource}");
    }
    let mut lines = world.audit.iter().enumerate();
    let commit = lines.rposition(|(n, record)| is_commit(&line(record, n))).unwrap();
    let late = World {
        audit: world
            .audit
            .iter()
            .enumerate()
            .filter(|(n, r)| *n >= commit || r.resource != "leases")
            .map(|(_, r)| r.clone())
            .collect(),
        ..World::default()
    };
    assert_eq!(
        late.report(Some).turns[0].verdict,
        Verdict::NotJudged,
        "it begins with the commit"
    );
    let unlimited = world.log(Some).judge(&Terms { fleet: None, ..terms() }).unwrap();
    missing(&unlimited, "--fleet-limit");
}

#[test]
fn a_missing_file_causes_no_violation() {
    let world = World::two_turns();
    let whole = world.report(Some);
    assert_eq!(said(&whole), Vec::<String>::new());
    let verdicts: Vec<_> = whole.turns.iter().map(|t| (t.node.as_str(), &t.verdict)).collect();
    assert_eq!(verdicts, [("n1", &Verdict::Kept), ("n2", &Verdict::Kept)]);
    let berths: Vec<usize> = (0..world.audit.len())
        .filter(|n| world.audit[*n].resource == "leases")
        .collect();
    // Cut out each range of lines that contains a write of the berth. Writes of the berth remain before and after the
    // range.
    let (first, last) = (berths[0], berths[berths.len() - 1]);
    for from in first + 1..=last {
        for until in from + 1..=last {
            let cut = from..until;
            if !berths.iter().any(|n| cut.contains(n)) {
                continue;
            }
            let mut part = World::default();
            let kept = world.audit.iter().enumerate().filter(|(n, _)| !cut.contains(n));
            part.audit = kept.map(|(_, record)| record.clone()).collect();
            let report = part.report(Some);
            assert_eq!(said(&report), Vec::<String>::new(), "without {cut:?}");
            let told = report
                .not_judged
                .iter()
                .any(|w| w.contains("the log lacks writes before"));
            assert!(told, "without {cut:?}: {:#?}", report.not_judged);
        }
    }
}

#[test]
fn a_gap_may_hide_writes_of_others() {
    // An admin cordons n2 before the gap, and perhaps uncordons it within the gap.
    let mut world = World::default();
    world.capacity(1).joined();
    let from = world.audit.len();
    world.joined().node(ADMIN, "patch", "n1", true, false).renamed(from);
    world.pass(60).berth(CONTROLLER, new(0)).next(CONTROLLER, Berth::clone);
    let missing = world.audit.len() - 1;
    world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    fn accused(world: &World) -> bool {
        said(&world.report(Some))
            .iter()
            .any(|v| v.contains("berths and cordoned nodes"))
    }
    assert!(accused(&world));
    world.audit.remove(missing);
    assert_eq!(said(&world.report(Some)), Vec::<String>::new());
    // An admin cordons n1 before the gap, and perhaps uncordons it within the gap. Then the agent uncordons it.
    let mut world = World::default();
    world
        .capacity(1)
        .joined()
        .node(ADMIN, "patch", "n1", true, false)
        .pass(60);
    world.berth(CONTROLLER, new(0)).next(CONTROLLER, Berth::clone);
    let missing = world.audit.len() - 1;
    world
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .next(AGENT, take)
        .node(AGENT, "patch", "n1", false, false);
    blamed(&world.report(Some), "I4", "although an admin had cordoned it");
    world.audit.remove(missing);
    assert_eq!(said(&world.report(Some)), Vec::<String>::new());
}

#[test]
fn clock_differences_cause_no_violation() {
    fn early(seconds: i64) -> Vec<String> {
        let mut world = World::logged();
        let cordon = world
            .audit
            .iter_mut()
            .find(|r| r.is_of("nodes") && r.unschedulable() == Some(true))
            .unwrap();
        cordon.received -= SignedDuration::from_secs(seconds);
        said(&world.report(Some))
    }
    // The cordon came after the take, but its server's clock is late: its time is a few seconds before the take.
    assert_eq!(early(8), Vec::<String>::new());
    assert!(
        early(40)
            .iter()
            .any(|v| v.contains("cordoned its Node at") && v.contains("without a berth"))
    );
}

#[test]
fn an_invalid_time_is_a_bad_line() {
    let mut world = World::logged();
    for time in [
        "-009999-01-02T01:59:59Z",
        "1969-12-31T23:59:59Z",
        "9999-12-30T22:00:00Z",
    ] {
        world.audit[3].received = time.parse().unwrap();
        let mut log = world.log(Some);
        assert_eq!(log.bad_lines(), (1, &["audit.log:4".to_owned()][..]), "{time}");
        log.judge(&terms()).unwrap();
    }
}

#[test]
fn hosts_missing_from_the_log_block_no_pool() {
    let mut world = World::default();
    world
        .capacity(1)
        .pool("workers", &["first"])
        .joined()
        .wants("n9", "first", 5);
    world.node(ADMIN, "create", "n9", false, false).pass(60);
    world.berth(CONTROLLER, new(0)).turn();
    assert_eq!(said(&world.report(Some)), Vec::<String>::new());
}

#[test]
fn hundreds_of_turns_are_judged_in_a_moment() {
    const TURNS: usize = 300;
    let mut world = World::default();
    world.capacity(1).joined().pass(60).berth(CONTROLLER, new(0));
    for turn in 0..TURNS {
        let from = world.audit.len();
        world.turn();
        let (before, after) = (format!("\"b{}\"", turn + 1), format!("\"b{}\"", turn + 2));
        for record in &mut world.audit[from..] {
            for body in [&mut record.request, &mut record.response].into_iter().flatten() {
                let text = body
                    .to_string()
                    .replace("\"b2\"", "\"after\"")
                    .replace("\"b1\"", &before);
                *body = serde_json::from_str(&text.replace("\"after\"", &after)).unwrap();
            }
        }
    }
    let mut log = world.log(Some);
    let begun = std::time::Instant::now();
    let report = log.judge(&terms()).unwrap();
    println!("{TURNS} turns were judged in {:?}", begun.elapsed());
    assert_eq!(report.turns.len(), TURNS);
}

#[test]
fn a_partial_turn_causes_no_violation() {
    let world = World::logged();
    for (from, until) in (0..world.audit.len()).flat_map(|n| [(n, world.audit.len()), (0, n)]) {
        let part = World {
            audit: world.audit[from..until].to_vec(),
            ..World::default()
        };
        match part.log(Some).judge(&terms()) {
            Ok(report) => assert_eq!(said(&report), Vec::<String>::new(), "lines {from} to {until}"),
            Err(error) => assert!(matches!(error, Unfit::Nothing(..)), "{error}"),
        }
    }
}

#[test]
fn reboots_of_others_are_only_listed() {
    let mut world = World::logged();
    world.told("b3", 2);
    let report = world.report(Some);
    assert_eq!(said(&report), Vec::<String>::new());
    let others: Vec<_> = report.others.iter().map(|r| (r.node.as_str(), r.other_image)).collect();
    assert_eq!(others, [("n1", false)]);
    // If a member runs another image, Berth updated it without a licence.
    world.told("b4", 3);
    let report = world.report(Some);
    let said = said(&report);
    assert!(
        said.iter()
            .any(|v| v.starts_with("I2") && v.contains("boot b3, without")),
        "{said:#?}"
    );
}

#[test]
fn a_log_without_berths_or_bodies_is_refused() {
    let world = World::logged();
    fn refused(world: &World, forge: fn(Value) -> Option<Value>) -> Unfit {
        world.log(forge).judge(&terms()).unwrap_err()
    }
    let bare = refused(&world, |mut event| {
        event["responseObject"] = Value::Null;
        Some(event)
    });
    assert!(
        matches!(bare, Unfit::Bare(6, _)) && bare.to_string().contains("level Metadata"),
        "{bare}"
    );
    let others = refused(&world, |event| (!is_of(&event, "leases", "")).then_some(event));
    assert!(matches!(others, Unfit::Nothing(..)), "{others}");
    let mut foreign = Log::default();
    foreign.take("a", 1, b"hello", NAMESPACE);
    assert_eq!(foreign.judge(&terms()).unwrap_err(), Unfit::Foreign(1));
}

#[test]
fn repeated_and_broken_lines_change_nothing() {
    let world = World::logged();
    let mut log = world.log(Some);
    for (number, record) in world.audit.iter().enumerate() {
        let text = line(record, number).to_string();
        log.take("audit-old.log", number as u64 + 1, text.as_bytes(), NAMESPACE);
    }
    log.take("audit-old.log", 77, b"{\"kind\": \"Ev", NAMESPACE);
    let report = log.judge(&terms()).unwrap();
    assert_eq!(said(&report), Vec::<String>::new());
    assert_eq!(report.turns.len(), 1);
    let told = report
        .not_judged
        .iter()
        .any(|w| w == "lines that are not audit events (1): audit-old.log:77");
    assert!(told, "{:#?}", report.not_judged);
}

#[test]
fn heartbeats_do_not_grow_the_kept_log() {
    let mut world = World::logged();
    let before = world.log(Some).kept().len();
    for _ in 0..500 {
        let renewed = json!({ "metadata": { "name": "berth-controller" }, "spec": { "holderIdentity": "a" } });
        world
            .told("b2", 2)
            .capacity(1)
            .write(CONTROLLER, "update", "leases", "berth-controller", json!({}), renewed);
    }
    let log = world.log(Some);
    assert_eq!((log.kept().len(), log.leases_of_others()), (before, 500));
    assert_eq!(log.ids(), before, "only IDs of kept records are kept");
}
