//! Servers that are away, and a page that recovers.

use anyhow::{Result, ensure};
use berth_tests::cluster::Cluster;
use serde_json::json;

use super::fleet::{DATABASE, ZONE_LABEL};
use super::pictures;
use super::viewer::{Viewer, tile};

/// Lines of the console while the dashboard's program does not answer: the browser itself reports the failed requests.
const LOST: [&str; 3] = [
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
    "net::ERR_EMPTY_RESPONSE",
];

pub async fn an_api_server_that_is_away_is_reported(cluster: &Cluster, viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    browser.is_quiet().await?;
    cluster.control_plane.stop_apiserver().await?;
    viewer.until_connection("stale").await?;
    browser
        .until("the page says how old its data is, and why", async || {
            let text = browser.text("#away").await?;
            Ok(text.contains("s ago") && !text.contains(" 0s ago") && text.contains("cannot read"))
        })
        .await?;
    pictures::take(viewer, "api-server-away").await?;
    viewer.go(&format!("#/node/{}", DATABASE[0])).await?;
    browser
        .until_text("#away-in-drawer", "You see the cluster as it was")
        .await?;
    viewer.go("#/nodes").await?;
    ensure!(browser.shows(&tile(DATABASE[0])).await?, "the last data stays");
    cluster.control_plane.start_apiserver().await?;
    viewer.until_connection("live").await?;
    // The watches work again, too.
    let labels = json!({ "metadata": { "labels": { ZONE_LABEL: "zone-z" } } });
    cluster.patch_node(DATABASE[0], labels).await?;
    browser
        .until_text("[data-of-pool='database'] .zone-name", "zone-z")
        .await?;
    // The drawer of this node was open, so its tile has the focus again, and the line about it has its age.
    let first = browser.text("#peek").await?;
    ensure!(
        first.starts_with("database-a1 · "),
        "the line is about the node with the focus: {first}"
    );
    browser
        .until("the age of the node grows", async || {
            Ok(browser.text("#peek").await? != first)
        })
        .await?;
    browser.is_quiet().await
}

pub async fn a_program_that_ended_is_reported(viewer: &mut Viewer) -> Result<()> {
    viewer.dashboard.interrupt().await?;
    viewer.until_connection("lost").await?;
    viewer.browser.until_text("#away", "does not answer").await?;
    ensure!(viewer.browser.shows(&tile(DATABASE[0])).await?, "the last data stays");
    viewer.browser.is_quiet_but_for(&LOST).await
}
