//! Checks that this crate is pure: no dependency does I/O, waits or reads a clock.

use std::process::Command;

/// Crates that do I/O, wait, parse a command line or read a clock.
const FORBIDDEN: &[&str] = &[
    "tokio",
    "kube-client",
    "kube-runtime",
    "hyper",
    "zbus",
    "clap",
    "fastrand",
    "rand",
    "getrandom",
    "nix",
    "rustix",
];

#[test]
fn no_dependency_does_io_or_waits() {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["tree", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--features", "controller", "--target", "x86_64-unknown-linux-gnu"])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree: {words}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let built_with: Vec<_> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(built_with.contains(&"berth-api"), "{built_with:?}");
    let found: Vec<_> = built_with.iter().filter(|name| FORBIDDEN.contains(name)).collect();
    assert!(found.is_empty(), "berth-core must stay pure, but depends on {found:?}");
}
