//! Completion in bash, zsh and fish: with a cluster, with an API server that does not respond, and without a cluster.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod server;

use server::{Server, kubeconfig, list};

/// Returns a list with the metadata of two objects.
fn named(names: [&str; 2]) -> Value {
    let one = |name: &str| json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": name}});
    list(&names.map(one))
}

/// Runs a shell with the program on its PATH. Returns its standard output and standard error.
fn run(shell: &str, arguments: &[&str], kubeconfig: &Path) -> (String, String) {
    let program = Path::new(env!("CARGO_BIN_EXE_kubectl-berth"));
    let path = std::env::var("PATH").unwrap_or_default();
    let said = Command::new(shell)
        .args(arguments)
        .env("PATH", format!("{}:{path}", program.parent().unwrap().display()))
        .env("KUBECONFIG", kubeconfig)
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .output()
        .unwrap_or_else(|error| panic!("{shell} cannot be run ({error}); install Debian's package {shell}"));
    assert!(said.status.success(), "{said:?}");
    (
        String::from_utf8(said.stdout).unwrap(),
        String::from_utf8(said.stderr).unwrap(),
    )
}

/// Returns bash's completions of the last word, and bash's standard error.
fn offered(kubeconfig: &Path, words: &[&str]) -> (Vec<String>, String) {
    let script = r#"
        source <(kubectl-berth completion bash) || exit 1
        COMP_WORDS=(kubectl-berth "$@"); COMP_CWORD=$#
        _kubectl_berth
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let arguments: Vec<&str> = ["--norc", "-c", script, "bash"].iter().chain(words).copied().collect();
    let (lines, complaints) = run("bash", &arguments, kubeconfig);
    let words = lines.lines().filter(|line| !line.is_empty()).map(str::to_owned);
    (words.collect(), complaints)
}

/// A cluster with two Nodes and two pools.
fn cluster() -> Server {
    Server::start(BTreeMap::from([
        ("/api/v1/nodes", named(["east-1", "east-2"])),
        ("/apis/berth.dev/v1alpha1/bootcnodepools", named(["infra", "workers"])),
    ]))
}

#[test]
fn bash_offers_commands_flags_and_the_clusters_names() {
    let server = cluster();
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

/// Runs an interactive zsh on its own terminal and prints the line after each press of the tab key.
const ZSH: &str = r#"
    zmodload zsh/zpty || exit 1
    out=$1 presses=$2 line=$3
    zpty shell zsh -f -i
    zpty -w shell 'PROMPT= RPROMPT=; autoload -Uz compinit; '$4
    zpty -w shell "show() { print -r -- \"\$BUFFER|\" >> ${(q)out} }; zle -N show; bindkey '^T' show; bindkey '^I' menu-complete"
    keys=$line
    repeat $presses keys+=$'\t\C-t'
    zpty -n -w shell $keys
    integer tries=0
    until [[ -f $out && $(wc -l < $out) -ge $presses ]] || (( ++tries > 300 )); do
        zpty -r -t shell screen
        sleep 0.1
    done
    zpty -d shell
    cat -- $out
"#;

/// Registers the completion that the program prints.
const SOURCED: &str = "compinit -D -u; source <(kubectl-berth completion zsh)";

/// Returns the line of an interactive zsh after each press of the tab key. `setup` makes zsh find the completion.
fn offered_by_zsh(kubeconfig: &Path, setup: &str, line: &str, presses: usize) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("lines");
    let presses = presses.to_string();
    let arguments = ["-f", "-c", ZSH, "zsh", out.to_str().unwrap(), &presses, line, setup];
    let (lines, _) = run("zsh", &arguments, kubeconfig);
    let lines = lines.lines().filter_map(|line| line.strip_suffix('|'));
    lines.map(str::to_owned).collect()
}

/// The packages install the script as a file of zsh's fpath. zsh runs it for the first completion of a shell.
#[test]
fn zsh_completes_with_a_file_of_its_path() {
    let server = cluster();
    let file = server.kubeconfig("fpath");
    let directory = tempfile::tempdir().unwrap();
    let script = include_str!("../src/completion/zsh.sh");
    std::fs::write(directory.path().join("_kubectl-berth"), script).unwrap();
    let setup = format!("fpath=({} $fpath); compinit -D -u", directory.path().display());
    let found = offered_by_zsh(&file, &setup, "kubectl-berth status ", 2);
    assert_eq!(found, ["kubectl-berth status infra", "kubectl-berth status workers"]);
}

#[test]
fn zsh_offers_the_same() {
    let server = cluster();
    let file = server.kubeconfig("zsh");
    let table: [(&str, &[&str]); 6] = [
        ("kubectl-berth unh", &["kubectl-berth unhold "]),
        (
            "kubectl-berth status ",
            &["kubectl-berth status infra", "kubectl-berth status workers"],
        ),
        ("kubectl-berth pause w", &["kubectl-berth pause workers "]),
        (
            "kubectl-berth explain east-",
            &["kubectl-berth explain east-1", "kubectl-berth explain east-2"],
        ),
        (
            "kubectl-berth status workers --prev",
            &["kubectl-berth status workers --preview "],
        ),
        // zsh adds no space here, because the value must follow.
        (
            "kubectl-berth explain east-1 --what-if rollout.pau",
            &["kubectl-berth explain east-1 --what-if rollout.paused="],
        ),
    ];
    for (line, expected) in table {
        assert_eq!(
            offered_by_zsh(&file, SOURCED, line, expected.len()),
            expected,
            "{line:?}"
        );
    }
}

#[test]
fn fish_offers_the_same() {
    let server = cluster();
    let file = server.kubeconfig("fish");
    let table: [(&str, &[&str]); 6] = [
        ("kubectl-berth unh", &["unhold"]),
        ("kubectl-berth status ", &["infra", "workers"]),
        ("kubectl-berth pause w", &["workers"]),
        ("kubectl-berth explain east-", &["east-1", "east-2"]),
        ("kubectl-berth status workers --prev", &["--preview"]),
        (
            "kubectl-berth explain east-1 --what-if rollout.pau",
            &["rollout.paused="],
        ),
    ];
    let script = "kubectl-berth completion fish | source; or exit 1; complete -C $argv[1]";
    for (line, expected) in table {
        let (lines, complaints) = run("fish", &["--no-config", "-c", script, line], &file);
        // fish prints each candidate, a tab, and a description.
        let found: Vec<_> = lines.lines().filter_map(|line| line.split('\t').next()).collect();
        assert_eq!((found.as_slice(), complaints.as_str()), (expected, ""), "{line:?}");
    }
}

#[test]
fn a_cluster_that_does_not_answer_offers_nothing_in_time() {
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
        // The program's deadline is two seconds. The test allows more time, since the machine may be busy.
        assert!(start.elapsed() < Duration::from_secs(20), "{}", file.display());
    }
}
