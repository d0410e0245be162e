//! A node's drawer, compared with the program's text.

use anyhow::{Context, Result, ensure};
use berth_tests::browser::Key;
use berth_tests::cluster::{Cluster, LONG};
use serde_json::json;

use super::viewer::Viewer;
use crate::said::berth;

const NODE: &str = "node1";
const SETTING: &str = "rollout.paused=false";
const WRONG: &str = "rollout.maxUnavailabel=3";
/// Line of the console for a wrong setting: the browser itself reports each refused request.
pub const REFUSED: [&str; 1] = ["the server responded with a status of 400"];

/// Creates a paused pool, whose two nodes wait.
pub async fn two_nodes_wait(cluster: &Cluster) -> Result<()> {
    let image = cluster.publish("2.0.0").await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "paused": true });
    cluster.pool("workers", &image.reference, rollout).await?;
    cluster
        .until("all nodes have staged", LONG, || async {
            Ok(cluster.pool_status("workers").await?.nodes.staged == 2)
        })
        .await
}

pub async fn explains_as_the_program_does(cluster: &Cluster, viewer: &Viewer) -> Result<()> {
    viewer.browser.click(&super::viewer::tile(NODE)).await?;
    viewer.browser.until_attribute("#drawer", "data-node", NODE).await?;
    until_same(cluster, viewer, "#explain", &["explain", NODE], "paused").await?;
    ensure!(
        viewer.browser.address().await?.ends_with("#/node/node1"),
        "the address has the node"
    );
    viewer.browser.until_text("#drawer .story", "Node node1").await
}

pub async fn tries_settings_as_the_program_does(cluster: &Cluster, viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    browser.write("#what-if", SETTING).await?;
    browser.press(Key::Enter).await?;
    browser.until_text("#what-if-result h4", SETTING).await?;
    until_same(
        cluster,
        viewer,
        "#what-if-result pre",
        &["explain", NODE, "--what-if", SETTING],
        NODE,
    )
    .await?;
    let real = browser.text("#explain").await?;
    ensure!(
        real != browser.text("#what-if-result pre").await?,
        "the setting changes the answer: {real}"
    );
    let command = browser.attribute("#what-if-result [data-copy]", "data-copy").await?;
    let command = command.context("no command to make the setting")?;
    ensure!(
        command.contains(" patch bootcnodepool workers --type merge --patch "),
        "{command}"
    );

    browser.is_quiet().await?;
    browser.write("#what-if", WRONG).await?;
    browser.press(Key::Enter).await?;
    browser.until_text("#what-if-result", "maxUnavailabel").await?;
    browser.until_shown("#what-if-result.error").await?;
    let said = berth(cluster, &["explain", NODE, "--what-if", WRONG]).await?;
    said.fails(&["maxUnavailabel"])?;
    let shown = browser.text("#what-if-result").await?;
    let words = said.err.lines().next().unwrap_or_default();
    // The program's line begins with its own name.
    let words = words.split_once(": ").map_or(words, |(_, rest)| rest);
    let end = words.rsplit(": ").next().unwrap_or(words);
    ensure!(shown.contains(end), "the page says {shown:?}, the program {words:?}");
    Ok(())
}

/// Waits until an element has the text that the program prints. Both have times, so they are read again if they differ.
async fn until_same(cluster: &Cluster, viewer: &Viewer, element: &str, arguments: &[&str], words: &str) -> Result<()> {
    let mut both = (String::new(), String::new());
    let result = viewer
        .browser
        .until(&format!("{element} has the text of {arguments:?}"), async || {
            let printed = berth(cluster, arguments).await?.well(&[words])?.out;
            let shown = viewer.browser.text(element).await?;
            let is_same = shown == printed;
            both = (shown, printed);
            Ok(is_same)
        })
        .await;
    ensure!(
        result.is_ok(),
        "{result:?}\nthe page:\n{}\nthe program:\n{}",
        both.0,
        both.1
    );
    Ok(())
}
