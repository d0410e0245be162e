//! The report of a test run, `scripts/steps.sh`: its counts, the tests that are run again, and the causes of failures.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::programs::workspace_root;

use crate::said::Said;

/// Runs a script with the functions of `scripts/steps.sh`. The script may call `lines FILE`, which prints prepared
/// output of nextest: FILE.1 at the first call, FILE.2 at the next.
fn run(script: &str, files: &[(&str, &str)], strict: bool) -> Result<Said> {
    const LINES: &str = r#"
        lines() {
            echo >>"$1.calls"
            local file
            file=$1.$(wc -l <"$1.calls")
            cat "$file"
            ! grep -q 'FAIL\|TIMEOUT' "$file"
        }
    "#;
    let directory = tempfile::tempdir()?;
    for (name, text) in files {
        fs::write(directory.path().join(name), text)?;
    }
    let root = workspace_root();
    let scripts = root.join("scripts");
    let script = format!(
        "set -euo pipefail; . {0}/need.sh; . {0}/steps.sh; {LINES} begin=$EPOCHREALTIME; cd {1}; {script}; finish $begin",
        scripts.display(),
        directory.path().display()
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .env("XDG_CACHE_HOME", directory.path())
        .env("STRICT", if strict { "1" } else { "" })
        .output()?;
    let mut said = Said::of(&output);
    said.out += &std::mem::take(&mut said.err);
    // The kept output is deleted with the directory.
    for file in fs::read_dir(directory.path().join("berth/flaky")).into_iter().flatten() {
        said.out += &format!("kept: {}", fs::read_to_string(file?.path())?);
    }
    Ok(said)
}

const FIRST: &str = "        PASS [   0.010s] berth-tests::scenarios gates::good
        FAIL [   1.500s] berth-tests::scenarios gates::bad
── stdout ──
the first words
        PASS [   0.020s] berth-tests::scenarios gates::other
the words of another
     Summary [   2.000s] 3 tests run: 2 passed, 1 failed
";

#[test]
fn a_scenario_that_passes_alone_is_flaky() -> Result<()> {
    let again =
        "        PASS [   1.000s] berth-tests::scenarios gates::bad\n     Summary [   1.000s] 1 test run: 1 passed\n";
    let files = [("a.1", FIRST), ("a.2", again)];
    let script = "retried_step scenarios 'binary(scenarios)' lines a";
    let said = run(script, &files, false)?.well(&[
        "\n3 passed, 0 failed\n",
        "FLAKY: gates::bad: /",
        // The run prints the output of the failed test.
        "    | the first words\n",
    ])?;
    let kept = said.out.split("kept: ").nth(1).unwrap_or_default();
    // The file has the output of that test alone.
    ensure!(kept.contains("the first words") && !kept.contains("another"), "{kept}");
    run(script, &files, true)?.fails(&[]).context("STRICT=1 makes it fail")
}

#[test]
fn two_failures_fail() -> Result<()> {
    let again = "     TIMEOUT [ 600.001s] berth-tests::scenarios gates::bad\n";
    let files = [("a.1", FIRST), ("a.2", again)];
    let said = run("retried_step scenarios 'binary(scenarios)' lines a", &files, false)?;
    ensure!(!said.out.contains("FLAKY"), "{said:?}");
    said.fails(&[
        "\n2 passed, 1 failed\n",
        "once more, alone: gates::bad: berth-tests::scenarios gates::bad\n",
    ])
}

#[test]
fn many_failures_are_no_flakes() -> Result<()> {
    let mut first: String = (1..=9)
        .map(|n| format!("        FAIL [   1.500s] berth-tests::scenarios gates::bad{n}\n"))
        .collect();
    first += "     Summary [   2.000s] 9 tests run: 0 passed, 9 failed\n";
    let said = run(
        "retried_step scenarios 'binary(scenarios)' lines a",
        &[("a.1", &first)],
        false,
    )?;
    ensure!(!said.out.contains("once more"), "{said:?}");
    said.fails(&["\n0 passed, 9 failed\n"])
}

/// A killed run counts as failed, because some of its tests have no result.
#[test]
fn a_run_that_was_broken_off_fails() -> Result<()> {
    let again =
        "        PASS [   1.000s] berth-tests::scenarios gates::bad\n     Summary [   1.000s] 1 test run: 1 passed\n";
    let killed = FIRST.replace("     Summary [   2.000s] 3 tests run: 2 passed, 1 failed\n", "Killed\n");
    let canceled = FIRST.replace("3 tests run", "3/300 tests run");
    for first in [killed, canceled] {
        let files = [("a.1", first.as_str()), ("a.2", again)];
        let said = run("retried_step scenarios 'binary(scenarios)' lines a", &files, false)?;
        ensure!(!said.out.contains("FLAKY"), "{said:?}");
        ensure!(!said.out.contains("once more"), "{said:?}");
        said.fails(&["\n2 passed, 1 failed\n"])?;
    }
    Ok(())
}

#[test]
fn unit_tests_are_not_run_again() -> Result<()> {
    run("step 'unit tests' lines a", &[("a.1", FIRST)], false)?.fails(&[
        "\n2 passed, 1 failed\n",
        "  unit tests: berth-tests::scenarios gates::bad\n",
    ])
}

/// A step that does not compile has no failed test.
#[test]
fn a_step_that_fails_without_a_test_is_a_failure() -> Result<()> {
    let script = "step build lines a || true; step 'unit tests' lines b";
    let files = [
        ("a.1", "error: FAIL to compile\n"),
        ("b.1", "        PASS [   0.010s] berth-core a::b\n"),
    ];
    run(script, &files, false)?.fails(&[
        "\n1 passed, 1 failed\n",
        "    | error: FAIL to compile\n",
        "Failed:\n  build\n",
    ])?;
    // The step is listed beside a failed test.
    let script = "step build lines a || true; step 'unit tests' lines b";
    run(script, &[("a.1", "FAIL\n"), ("b.1", FIRST)], false)?.fails(&[
        "\n2 passed, 2 failed\n",
        "Failed:\n  unit tests: berth-tests::scenarios gates::bad\n  build\n",
    ])
}

#[test]
fn steps_run_beside_others_and_count() -> Result<()> {
    let script = "beside model lines a; step 'unit tests' lines b; join_beside";
    let good = "        PASS [   0.010s] berth-core a::b\n";
    let files = [("a.1", "bug one: found\n"), ("b.1", good)];
    run(script, &files, false)?.well(&["    bug one: found\n"])?;
    let files = [("a.1", "BROKEN: FAIL of the model\n"), ("b.1", good)];
    let said = run(script, &files, false)?;
    said.fails(&["    | BROKEN: FAIL of the model\n"])?;
    let table = said.out.split("SECONDS\n").nth(1).unwrap_or_default();
    ensure!(
        table
            .lines()
            .any(|line| line.starts_with("model ") && line.ends_with("FAILED")),
        "{said:?}"
    );
    Ok(())
}

/// Steps that run beside others must not outlive the script, however it ends.
#[test]
fn nothing_outlives_the_script() -> Result<()> {
    let script = "forever() { sleep 1000; }; beside model forever; sleep 0.2; echo group ${background[0]}; exit 3";
    let said = run(script, &[], false)?;
    said.fails(&[])?;
    let group = said
        .out
        .split("group ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let group: i32 = group.unwrap_or_default().parse()?;
    let begun = Instant::now();
    while !is_gone(group) && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(is_gone(group), "the group {group} still runs");
    Ok(())
}

/// True if each process of the group has ended. An ended process may wait for process 1 to collect its exit status.
fn is_gone(group: i32) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    !stats.into_iter().any(|stat| runs_in(&stat, group))
}

/// True if `stat`, the file of that name in `/proc/PID`, shows a process of the group that has not ended.
fn runs_in(stat: &str, group: i32) -> bool {
    // The name before the last parenthesis may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let fields: Vec<&str> = fields.split_whitespace().take(3).collect();
    matches!(fields[..], [state, _, own] if state != "Z" && own == group.to_string())
}

/// The rows of `make flaky`, worst first.
#[test]
fn the_table_of_flakes_counts_runs_and_failures() -> Result<()> {
    let script =
        ". \"${root}/scripts/flaky.sh\"; step 'round 1 of 2' lines a; step 'round 2 of 2' lines a; flaky_table";
    let second = "        PASS [   3.000s] berth-tests::scenarios gates::good\n        PASS [   2.000s] berth-tests::scenarios gates::bad\n";
    let said = run(script, &[("a.1", FIRST), ("a.2", second)], false)?;
    said.fails(&[])?;
    let rows: Vec<Vec<&str>> = said
        .out
        .lines()
        .skip_while(|line| !line.starts_with("TEST "))
        .skip(1)
        .take(3)
        .map(|line| line.split_whitespace().skip(1).collect())
        .collect();
    let expected = [
        ["gates::bad", "2", "1", "2.0"],
        ["gates::good", "2", "0", "3.0"],
        ["gates::other", "1", "0", "0.0"],
    ];
    ensure!(rows == expected, "{rows:?}\n{said:?}");
    Ok(())
}
