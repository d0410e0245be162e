//! Requests of the doctor to an API server, and its exit status.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

mod server;

use server::{Server, kubeconfig, list};

/// Starts a cluster with one Node, one pool with a pull secret, and one BootcNode. Everything else is missing.
fn cluster() -> Server {
    let pool = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": {"name": "workers", "uid": "u"},
        "spec": {"nodeSelector": {}, "image": {"ref": "quay.io/example/os:1", "pullSecret": "pull"}},
    });
    let bootc = json!({"metadata": {"name": "n1"}, "spec": {"poolName": "workers"}});
    let table = json!({
        "columnDefinitions": [{"name": "Name"}, {"name": "Type"}, {"name": "Data"}],
        "rows": [{"cells": ["pull", "Opaque", 1]}],
    });
    let crd = json!({
        "spec": {"versions": [{"name": "v1alpha1", "served": true, "schema": {"openAPIV3Schema": {}}}]},
    });
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let policy = json!({"metadata": {"name": "berth-node-labels"}, "spec": {}});
    let budget = json!({
        "metadata": {"namespace": "shop", "name": "db", "generation": 1},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": 0, "expectedPods": 1, "desiredHealthy": 1, "currentHealthy": 1},
    });
    let pod = json!({"metadata": {"namespace": "shop", "labels": {"app": "db"}}, "spec": {"nodeName": "n1"}});
    let crd_paths = ["bootcnodepools", "bootcnodes", "bootcfleets"].map(|name| format!("{crds}/{name}.berth.dev"));
    let mut answers = BTreeMap::from([
        ("/version", json!({"gitVersion": "v1.36.1"})),
        ("/apis/berth.dev/v1alpha1/bootcnodepools", list(&[pool])),
        ("/apis/berth.dev/v1alpha1/bootcnodes", list(&[bootc])),
        ("/apis/coordination.k8s.io/v1/namespaces/berth-system/leases", list(&[])),
        ("/api/v1/nodes", list(&[json!({"metadata": {"name": "n1"}})])),
        ("/api/v1/namespaces/berth-system/secrets/pull", table),
        ("/api/v1/namespaces/berth-system/pods", list(&[])),
        ("/api/v1/namespaces/kube-system/pods", list(&[])),
        ("/api/v1/namespaces/shop/pods", list(&[pod])),
        ("/apis/policy/v1/poddisruptionbudgets", list(&[budget])),
        ("/apis/apps/v1/deployments", list(&[])),
        ("/apis/apps/v1/statefulsets", list(&[])),
        (
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/berth-node-labels",
            policy,
        ),
    ]);
    for path in crd_paths {
        answers.insert(path.leak(), crd.clone());
    }
    Server::start(answers)
}

fn doctor(kubeconfig: &std::path::Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kubectl-berth"))
        .arg("doctor")
        .args(arguments)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn every_write_is_a_dry_run() {
    let server = cluster();
    let said = doctor(&server.kubeconfig("doctor"), &["-o", "json"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    let messages: Vec<&str> = report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|c| c["message"].as_str())
        .collect();
    for expected in [
        "Secret berth-system/pull has the type Opaque, not kubernetes.io/dockerconfigjson",
        "budget shop/db never lets a node go: maxUnavailable is 0 (of 1 pod)",
        "no agent reports on node n1, a member of pool workers",
        // This server accepts every write.
        "a dry-run write was accepted that the policy berth-node-labels must refuse",
        "the admission plugin NodeRestriction is off",
    ] {
        assert!(messages.contains(&expected), "no {expected:?} in {messages:#?}");
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 3, "{asked:?}");
    for (method, target, _) in asked {
        assert_eq!(method, "PATCH");
        assert!(target.ends_with("?dryRun=All"), "{target}");
    }
}

#[test]
fn fix_prints_commands_and_nothing_else() {
    let server = cluster();
    let file = server.kubeconfig("doctor-fix");
    let said = doctor(&file, &["--fix", "--context", "c"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(said.stderr.is_empty() && text.lines().count() > 2, "{text}");
    let kubectl = format!("kubectl --kubeconfig {} --context c ", file.display());
    for line in text.lines() {
        assert!(line.starts_with(&kubectl), "{line}");
    }
    let patch =
        r#"-n shop patch poddisruptionbudget db --type=merge -p '{"spec":{"minAvailable":null,"maxUnavailable":1}}'"#;
    assert!(text.contains(patch), "{text}");
}

#[test]
fn an_api_server_that_does_not_answer_is_not_well() {
    let said = doctor(&kubeconfig("doctor-away", 1), &[]);
    assert_eq!(said.status.code(), Some(2), "{said:?}");
    assert!(said.stdout.is_empty() && !said.stderr.is_empty(), "{said:?}");
}
