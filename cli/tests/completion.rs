//! Completion as bash does it, with names from a cluster that answers, one that does not, and none.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod server;

use server::{Server, kubeconfig, list};

/// A list with two names, as a client asks for it that wants no more.
fn named(names: [&str; 2]) -> Value {
    let one = |name: &str| json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": name}});
    list(&names.map(one))
}

/// Words that bash offers for the last of these, and all that was written to standard error.
fn offered(kubeconfig: &Path, words: &[&str]) -> (Vec<String>, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_kubectl-berth"));
    let path = std::env::var("PATH").unwrap_or_default();
    let script = r#"
        source <(kubectl-berth completion bash) || exit 1
        COMP_WORDS=(kubectl-berth "$@"); COMP_CWORD=$#
        _kubectl_berth
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let said = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .args(words)
        .env("PATH", format!("{}:{path}", program.parent().unwrap().display()))
        .env("KUBECONFIG", kubeconfig)
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    let lines = String::from_utf8(said.stdout).unwrap();
    let words = lines.lines().filter(|line| !line.is_empty()).map(str::to_owned);
    (words.collect(), String::from_utf8(said.stderr).unwrap())
}

#[test]
fn bash_offers_commands_flags_and_the_clusters_names() {
    let server = Server::start(BTreeMap::from([
        ("/api/v1/nodes", named(["east-1", "east-2"])),
        ("/apis/berth.dev/v1alpha1/bootcnodepools", named(["infra", "workers"])),
    ]));
    let file = server.kubeconfig("names");
    let table: [(&[&str], &[&str]); 5] = [
        (&["unh"], &["unhold"]),
        (&["status", ""], &["infra", "workers"]),
        (&["pause", "w"], &["workers"]),
        (&["explain", "east-"], &["east-1", "east-2"]),
        (&["status", "workers", "--prev"], &["--preview"]),
    ];
    for (words, expected) in table {
        let (found, complaints) = offered(&file, words);
        assert_eq!(found, expected, "{words:?}");
        assert_eq!(complaints, "", "{words:?}");
    }
}

#[test]
fn a_cluster_that_is_away_or_silent_offers_nothing_and_holds_up_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = kubeconfig("silent", listener.local_addr().unwrap().port());
    let away = kubeconfig("away", 1);
    for file in [silent, away, PathBuf::from("/nonexistent")] {
        let start = Instant::now();
        assert_eq!(
            offered(&file, &["status", ""]),
            (vec![], String::new()),
            "{}",
            file.display()
        );
        // The deadline is two seconds; the rest is for a machine that is busy.
        assert!(start.elapsed() < Duration::from_secs(20), "{}", file.display());
    }
}
