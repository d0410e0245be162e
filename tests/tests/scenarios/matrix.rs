//! The matrix of docs/security.md: what each identity of a node, the controller, and callers without rights may do on
//! a real API server with Node and RBAC authorization, NodeRestriction, and the shipped manifests. Each attempt has an
//! expected answer, and the page prints the table. All writes are dry runs, so no attempt changes another one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of a test fail like the test"
)]

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::programs::workspace_root;

mod attempts;
mod callers;
mod objects;

use attempts::{Attempt, attempts};
use callers::{Answer, Caller, Session};
use objects::Objects;

const BEGIN: &str = "<!-- matrix: begin -->\n";
const END: &str = "<!-- matrix: end -->";

#[tokio::test]
async fn each_identity_may_do_what_the_matrix_lists() -> Result<()> {
    let control_plane = ControlPlane::start(Options::simulated_nodes()).await?;
    let objects = Objects::create(&control_plane).await?;
    let sessions = Session::all(&control_plane, &objects).await?;
    let attempts = attempts(&objects);
    wait_for_policies(&sessions, &attempts).await?;
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for attempt in &attempts {
        for session in &sessions {
            let expected = session.caller == Caller::Admin || attempt.allowed.contains(&session.caller);
            let (what, who) = (&attempt.what, session.caller);
            match session.answer(attempt).await {
                Answer::Allowed if expected => {}
                Answer::Refused(_) if !expected => refused += 1,
                Answer::Allowed => wrong.push(format!("{what}, {who:?}: allowed, and must be refused")),
                Answer::Refused(words) => wrong.push(format!("{what}, {who:?}: refused: {words}")),
                Answer::Failed(words) => wrong.push(format!("{what}, {who:?}: neither allowed nor refused: {words}")),
            }
        }
    }
    let count = attempts.len() * (sessions.len() - 1);
    println!("{count} attempts of {} callers, {refused} refused", sessions.len() - 1);
    assert!(count > 300 && refused > 300, "{count} attempts, {refused} refused");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    compare_page(&page(&attempts))
}

/// Waits until the policies take effect: the API server compiles them a moment after they are stored.
async fn wait_for_policies(sessions: &[Session], attempts: &[Attempt]) -> Result<()> {
    let started = Instant::now();
    for caller in [Caller::AgentInPod, Caller::Kubelet, Caller::AgentAsNode] {
        let session = sessions.iter().find(|session| session.caller == caller).unwrap();
        for attempt in attempts.iter().filter(|attempt| attempt.needs_policy) {
            while !attempt.allowed.contains(&caller) && matches!(session.answer(attempt).await, Answer::Allowed) {
                let words = format!("no policy refuses {caller:?}: {}", attempt.what);
                anyhow::ensure!(started.elapsed() < Duration::from_secs(60), words);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    Ok(())
}

/// Prints the table of the page: a row for each attempt, a column for each caller.
fn page(attempts: &[Attempt]) -> String {
    let columns = Caller::IN_PAGE;
    let mut text = String::from("| attempt |");
    for caller in columns {
        write!(text, " {} |", caller.title()).unwrap();
    }
    text.push_str("\n| --- |");
    text.push_str(&" --- |".repeat(columns.len()));
    text.push('\n');
    for attempt in attempts {
        write!(text, "| {} |", attempt.what).unwrap();
        for caller in columns {
            text.push_str(if attempt.allowed.contains(&caller) {
                " yes |"
            } else {
                " – |"
            });
        }
        text.push('\n');
    }
    text
}

/// Compares the table of docs/security.md. With `BERTH_BLESS`, writes it.
fn compare_page(table: &str) -> Result<()> {
    let path = workspace_root().join("docs/security.md");
    let page = std::fs::read_to_string(&path)?;
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("docs/security.md has the begin of the matrix");
    let (stands, after) = rest
        .split_once(END)
        .expect("docs/security.md has the end of the matrix");
    if std::env::var_os("BERTH_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}"))?;
        return Ok(());
    }
    assert_eq!(
        stands, table,
        "docs/security.md is not current; write it with BERTH_BLESS=1"
    );
    Ok(())
}
