//! `status --watch` with a simulated API server: its output after a change, while the server is down, and at the end.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

mod server;

use std::time::Duration;

use kubectl_berth::Detail;
use kubectl_berth::watch::{Watching, watch};
use server::kept::Kept;
use server::watched::{AWAY, BACK, DRAINS, FORBIDDEN, MISSING, client, items};
use tokio::sync::{oneshot, watch as steps};

fn watching(pool: Option<&str>, colours: Option<bool>) -> Watching {
    Watching {
        namespace: "berth-system".to_owned(),
        pool: pool.map(str::to_owned),
        detail: Detail::default(),
        limit: Duration::from_secs(2),
        colours,
    }
}

/// Runs a watch through these steps: each must print its text before the next begins. Returns the whole output and the
/// result of the watch.
async fn story(watching: Watching, at: u8, says: &[(u8, &str)]) -> (String, anyhow::Result<()>) {
    let (step, seen) = steps::channel(at);
    let client = client(seen, items);
    let out = Kept::default();
    let (end, ended) = oneshot::channel::<()>();
    let watched = watch(&client, &watching, out.clone(), async { drop(ended.await) });
    let script = async {
        for (next, text) in says {
            step.send(*next).unwrap();
            out.says(text).await;
        }
        if !says.is_empty() {
            end.send(()).unwrap();
        } else {
            std::future::pending::<()>().await;
        }
    };
    let mut watched = std::pin::pin!(watched);
    let done = tokio::select! {
        done = &mut watched => done,
        () = script => watched.await,
    };
    (out.text(), done)
}

#[tokio::test]
async fn lines_follow_the_watches_through_an_outage() {
    let says = [
        (
            0,
            "pool workers: Pending, 0% (0/1): 1 Available, 0 Progressing, 0 Draining\n",
        ),
        (DRAINS, "node n1: Progressing, Draining, v1\n"),
        (AWAY, " old ("),
        (BACK, "up to date again\n"),
    ];
    let (text, done) = story(watching(Some("workers"), None), 0, &says).await;
    done.unwrap();
    assert!(!text.contains('\x1b'), "{text}");
    assert_eq!(text.matches(" old (").count(), 1, "{text}");
}

#[tokio::test]
async fn a_terminal_is_drawn_again_and_given_back() {
    let says = [(0, "Outdated"), (DRAINS, "1 Draining"), (AWAY, "! the data is ")];
    let (text, done) = story(watching(None, Some(true)), 0, &says).await;
    done.unwrap();
    assert!(text.starts_with("\x1b[?25l"), "the cursor is hidden: {text:?}");
    assert!(text.ends_with("\x1b[?25h"), "and shown again: {text:?}");
    assert!(text.contains("\x1b[36mProgressing\x1b[0m"), "{text:?}");
}

#[tokio::test]
async fn a_missing_server_or_pool_ends_the_watch() {
    let (text, done) = story(watching(None, Some(false)), AWAY, &[]).await;
    let error = format!("{:#}", done.unwrap_err());
    assert!(
        error.contains("did not return all objects within 2 s") && error.contains("connection refused"),
        "{error}"
    );
    assert_eq!(text, "", "nothing is drawn");
    let (_, done) = story(watching(Some("infra"), None), 0, &[]).await;
    assert_eq!(
        done.unwrap_err().to_string(),
        "there is no pool \"infra\"; existing pools: workers"
    );
}

#[tokio::test]
async fn a_cluster_without_berth_or_access_ends_the_watch() {
    for (step, words) in [
        (MISSING, "Berth is not installed in this cluster"),
        (FORBIDDEN, "is forbidden"),
    ] {
        let begun = std::time::Instant::now();
        let watching = Watching {
            limit: Duration::from_secs(60),
            ..watching(None, Some(false))
        };
        let (text, done) = story(watching, step, &[]).await;
        let error = format!("{:#}", done.unwrap_err());
        assert!(error.contains(words), "{error}");
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "the watch does not wait for another answer"
        );
        assert_eq!(text, "", "nothing is drawn");
    }
}
