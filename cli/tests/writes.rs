//! Requests that admin commands send: each writes one object, by its UID, and only the planned change.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

mod server;

use server::{Asked, Server, list};

/// Starts a cluster with one pool, one node with these labels, and this BootcFleet.
fn cluster(labels: &Value, paused: bool, fleet: Option<Value>) -> Server {
    let pool = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool",
        "metadata": {"name": "workers", "uid": "uid-workers"},
        "spec": {"nodeSelector": {"matchLabels": {}}, "image": {"ref": "quay.io/example/os:1"}, "rollout": {"paused": paused}},
    });
    let node = json!({"metadata": {"name": "n1", "uid": "uid-n1", "labels": labels}});
    let mut answers = BTreeMap::from([
        ("/apis/berth.dev/v1alpha1/bootcnodepools", list(&[pool])),
        ("/apis/berth.dev/v1alpha1/bootcnodes", list(&[])),
        ("/apis/coordination.k8s.io/v1/namespaces/berth-system/leases", list(&[])),
        ("/api/v1/nodes", list(&[node])),
    ]);
    answers.extend(fleet.map(|fleet| ("/apis/berth.dev/v1alpha1/bootcfleets/cluster", fleet)));
    Server::start(answers)
}

fn fleet(paused: bool) -> Option<Value> {
    Some(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet",
        "metadata": {"name": "cluster", "uid": "uid-fleet"},
        "spec": {"paused": paused},
    }))
}

fn berth(server: &Server, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-berth"))
        .args(arguments)
        .arg("--kubeconfig")
        .arg(server.kubeconfig(&arguments.join("-").replace(['.', '=', '/'], "")))
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Runs a command that must succeed. Returns its last line and its only write, without the field manager.
fn wrote(server: &Server, arguments: &[&str]) -> (String, Option<Asked>) {
    let said = berth(server, arguments);
    assert!(said.status.success(), "{arguments:?}: {said:?}");
    let text = String::from_utf8(said.stdout).unwrap();
    let asked = server.asked();
    assert!(asked.len() < 2, "{asked:?}");
    let write = asked.into_iter().next().map(|(method, target, body)| {
        let target = target.replace("?&", "?").replace("fieldManager=kubectl-berth", "");
        (method, target.trim_end_matches(['?', '&']).to_owned(), body)
    });
    (text.lines().last().unwrap_or_default().to_owned(), write)
}

#[test]
fn hold_and_unhold_write_one_label() {
    let node = "/api/v1/nodes/n1";
    let label = |value: Value| json!({"metadata": {"uid": "uid-n1", "labels": {"berth.dev/hold": value}}});
    let patch = |body| Some(("PATCH".to_owned(), node.to_owned(), body));
    let free = || cluster(&json!({}), false, None);
    assert_eq!(
        wrote(&free(), &["hold", "n1", "--yes"]),
        ("Node n1 is held back.".to_owned(), patch(label(json!("true"))))
    );
    let held = || cluster(&json!({"berth.dev/hold": "true"}), false, None);
    assert_eq!(
        wrote(&held(), &["unhold", "n1", "--yes"]),
        ("Node n1 is no longer held back.".to_owned(), patch(label(Value::Null)))
    );
    for (server, arguments) in [(held(), ["hold", "n1", "--yes"]), (free(), ["unhold", "n1", "--yes"])] {
        assert_eq!(wrote(&server, &arguments).1, None, "there is nothing to do");
    }
    assert_eq!(wrote(&free(), &["hold", "n1", "--dry-run"]).1, None);
}

#[test]
fn pause_and_resume_write_one_field() {
    let pools = "/apis/berth.dev/v1alpha1/bootcnodepools/workers";
    let fleets = "/apis/berth.dev/v1alpha1/bootcfleets";
    let none = || json!({});
    let of_pool = |paused: bool| {
        let body = json!({"metadata": {"uid": "uid-workers"}, "spec": {"rollout": {"paused": paused}}});
        Some(("PATCH".to_owned(), pools.to_owned(), body))
    };
    let of_fleet = |paused: bool| {
        let body = json!({"metadata": {"uid": "uid-fleet"}, "spec": {"paused": paused}});
        Some(("PATCH".to_owned(), format!("{fleets}/cluster"), body))
    };
    let pause = wrote(&cluster(&none(), false, None), &["pause", "workers", "--yes"]);
    assert_eq!(pause, ("Pool workers is paused.".to_owned(), of_pool(true)));
    let resume = wrote(&cluster(&none(), true, None), &["resume", "workers", "--yes"]);
    assert_eq!(resume, ("Pool workers is resumed.".to_owned(), of_pool(false)));
    let all = wrote(&cluster(&none(), false, fleet(false)), &["pause", "--all", "--yes"]);
    assert_eq!(all, ("All pools are paused.".to_owned(), of_fleet(true)));
    let all = wrote(&cluster(&none(), false, fleet(true)), &["resume", "--all", "--yes"]);
    assert_eq!(all, ("The fleet is resumed.".to_owned(), of_fleet(false)));
    let (_, created) = wrote(&cluster(&none(), false, None), &["pause", "--all", "--yes"]);
    let (method, target, body) = created.unwrap();
    assert_eq!((method.as_str(), target.as_str()), ("POST", fleets));
    assert_eq!(body["metadata"]["name"], json!("cluster"));
    assert_eq!(body["spec"], json!({"paused": true}));
    for (paused, arguments) in [
        (true, ["pause", "workers", "--yes"]),
        (false, ["resume", "workers", "--yes"]),
    ] {
        assert_eq!(
            wrote(&cluster(&none(), paused, None), &arguments).1,
            None,
            "there is nothing to do"
        );
    }
}

#[test]
fn an_unreadable_fleet_is_an_error_or_a_warning() {
    let unread = || Some(json!({"metadata": {"name": "cluster"}, "spec": {"paused": "perhaps"}}));
    for arguments in [["pause", "--all", "--yes"], ["resume", "--all", "--yes"]] {
        let server = cluster(&json!({}), false, unread());
        let said = berth(&server, &arguments);
        let error = String::from_utf8(said.stderr).unwrap();
        assert!(
            !said.status.success() && error.contains("cannot read BootcFleet cluster"),
            "{error}"
        );
        assert_eq!(server.asked(), vec![], "{arguments:?}");
    }
    let server = cluster(&json!({}), true, unread());
    let said = berth(&server, &["resume", "workers", "--yes"]);
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.status.success()
            && text.contains("! cannot read BootcFleet cluster, so the fleet may be paused or have a limit"),
        "{text}"
    );
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn what_if_asks_the_api_server_and_changes_nothing() {
    let server = cluster(&json!({}), true, None);
    let arguments = ["status", "workers", "--preview", "--what-if", "rollout.paused=false"];
    let (_, asked) = wrote(&server, &arguments);
    let (method, target, body) = asked.unwrap();
    assert_eq!(method, "PATCH");
    assert!(
        target.contains("/bootcnodepools/workers?") && target.contains("dryRun=All"),
        "{target}"
    );
    assert_eq!(body, json!({"spec": {"rollout": {"paused": false}}}));
    let unknown = berth(&server, &["explain", "n1", "--what-if", "rollout.pausd=false"]);
    let error = String::from_utf8(unknown.stderr).unwrap();
    assert!(
        !unknown.status.success() && error.contains("similar fields: rollout.paused"),
        "{error}"
    );
    assert_eq!(
        server.asked().len(),
        1,
        "a field that does not exist is not asked about"
    );
}

#[test]
fn a_poll_of_all_pools_reports_failures() {
    let server = cluster(&json!({}), false, None);
    let said = berth(&server, &["poll", "--all", "--timeout", "1s"]);
    let error = String::from_utf8(said.stderr).unwrap();
    assert!(!said.status.success() && error.contains("pool workers: "), "{error}");
    let asked = server.asked();
    let requests = asked
        .iter()
        .filter(|(_, _, body)| body["metadata"]["annotations"].is_object());
    assert_eq!(requests.count(), 1, "{asked:?}");
}

#[test]
fn a_history_of_all_pools_has_each() {
    let server = cluster(&json!({}), false, None);
    let of_one = berth(&server, &["history", "workers"]);
    let of_all = berth(&server, &["history", "--all"]);
    assert!(of_all.status.success(), "{of_all:?}");
    assert_eq!((of_all.stdout, server.asked()), (of_one.stdout, vec![]));
}

#[test]
fn dismiss_writes_one_annotation_of_the_fleet() {
    let held = || {
        let mut fleet = fleet(false).unwrap();
        fleet["status"] = json!({"heldMachines": [
            {"name": "m7", "message": "m7: too old", "lastTime": "2026-01-01T00:00:00Z"},
        ]});
        cluster(&json!({}), false, Some(fleet))
    };
    let (said, write) = wrote(&held(), &["dismiss", "m7", "--yes"]);
    let annotations = json!({"berth.dev/dismissed-machines": "m7@2026-01-01T00:00:00Z"});
    let body = json!({"metadata": {"uid": "uid-fleet", "annotations": annotations}});
    let target = "/apis/berth.dev/v1alpha1/bootcfleets/cluster".to_owned();
    assert_eq!(said, "Machine m7 is dismissed.");
    assert_eq!(write, Some(("PATCH".to_owned(), target, body)));
    assert_eq!(wrote(&held(), &["dismiss", "m7", "--dry-run"]).1, None);
}
