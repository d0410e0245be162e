//! Troubles and their remedies, as the page shows them.

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Cluster, LONG};
use berth_tests::hosts::sim::Unhealthy;
use serde_json::{Value, json};

use super::fleet::{DATABASE, EDGE, block, pool_of};
use super::pictures;
use super::viewer::{Viewer, tile};
use crate::said::berth;

/// Findings in a part of the page: level, text, and commands to copy.
const FINDINGS: &str = r"
return [...document.querySelectorAll(arguments[0] + ' [data-finding]')].map((found) => ({
    message: found.dataset.finding, text: found.textContent,
    commands: [...found.querySelectorAll('[data-copy]')].map((button) => button.dataset.copy),
    runbook: found.querySelector('a[href^=https]')?.href ?? '',
}));
";

pub async fn a_halted_rollout_has_a_remedy(cluster: &Cluster, viewer: &Viewer) -> Result<()> {
    let bad = cluster.publish("2.1.0").await?;
    for host in &cluster.fleet.hosts {
        host.settings(|s| s.unhealthy = [(bad.digest.to_string(), Unhealthy::FailedUnit)].into());
    }
    cluster
        .patch_pool("edge", json!({ "health": { "deadline": "3s" } }))
        .await?;
    pool_of(cluster, "edge", &bad, json!({ "maxUnavailable": 1 })).await?;
    cluster
        .until_says("edge", ("RolloutHalted", "True", "TooManyFailures", ""), LONG)
        .await?;
    viewer
        .browser
        .until_attribute("[data-pool='edge']", "data-assessment", "Degraded")
        .await?;
    viewer.go("#/health").await?;
    let found = until_found(viewer, "#health", "rollout of pool edge is halted").await?;
    says_what_the_program_says(cluster, &found).await?;
    let commands = found["commands"].as_array().context("no commands")?;
    let retries = commands.iter().filter_map(Value::as_str);
    ensure!(
        retries.clone().any(|command| command.contains("retry edge")),
        "a command to copy: {found:#}"
    );
    ensure!(
        found["runbook"].as_str().is_some_and(|page| page.contains("docs/")),
        "a runbook: {found:#}"
    );
    pictures::take(viewer, "halted").await?;
    copies(viewer, "retry edge").await?;
    viewer.go("#/nodes").await?;
    for node in EDGE {
        viewer
            .browser
            .until_attribute(&tile(node), "data-phase", "Pending")
            .await?;
    }
    Ok(())
}

/// Clicks the copy button of a command, and waits until the page confirms it.
async fn copies(viewer: &Viewer, command: &str) -> Result<()> {
    let button = format!("#health [data-copy*='{command}']");
    let rights = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    viewer.browser.devtools("Browser.grantPermissions", rights).await?;
    viewer.browser.click(&button).await?;
    viewer.browser.until_text(&button, "Copied").await
}

/// The pod blocks the drain until the end of the test.
pub async fn a_blocked_drain_has_a_remedy(cluster: &Cluster, viewer: &Viewer) -> Result<()> {
    let [node] = DATABASE;
    block(cluster, node).await?;
    let image = cluster.publish("3.0.0").await?;
    cluster
        .patch_pool("database", json!({ "drain": { "timeout": "2s", "onTimeout": "Hold" } }))
        .await?;
    pool_of(cluster, "database", &image, json!({ "maxUnavailable": 1 })).await?;
    cluster
        .until_node_says(node, ("NodeDegraded", "True", "DrainTimeout", "report-"), LONG)
        .await?;
    viewer.go(&format!("#/node/{node}")).await?;
    viewer.browser.until_attribute("#drawer", "data-node", node).await?;
    let found = until_found(viewer, "#drawer", "database-a1 is degraded (DrainTimeout)").await?;
    says_what_the_program_says(cluster, &found).await?;
    viewer.browser.until_text("#drawer", "What blocks the drain").await?;
    viewer
        .browser
        .until_text("#drawer .blockers", "default/report-database-a1")
        .await?;
    pictures::take(viewer, "blocked-drain").await?;
    viewer.go("#/nodes").await?;
    Ok(())
}

/// Waits until a part of the page has a finding with these words, and returns it.
async fn until_found(viewer: &Viewer, part: &str, words: &str) -> Result<Value> {
    let mut found = Value::Null;
    viewer
        .browser
        .until(&format!("{part} has the finding: {words}"), async || {
            let all: Vec<Value> = viewer.browser.run(FINDINGS, &[part]).await?;
            let fits = |one: &Value| one["message"].as_str().is_some_and(|message| message.contains(words));
            found = all.into_iter().find(fits).unwrap_or_default();
            Ok(!found.is_null())
        })
        .await?;
    Ok(found)
}

/// Fails unless the finding has each step of the remedy that the program prints.
async fn says_what_the_program_says(cluster: &Cluster, found: &Value) -> Result<()> {
    let said = berth(cluster, &["status", "--output=json"]).await?.well(&[])?;
    let status: Value = serde_json::from_str(&said.out)?;
    let health = status["health"].as_array().context("no health")?;
    let same = health.iter().find(|one| one["message"] == found["message"]);
    let same = same.with_context(|| format!("status does not have {found:#}"))?;
    let shown = plain(found["text"].as_str().unwrap_or_default());
    let steps = same["remedy"].as_array().context("no remedy")?;
    ensure!(!steps.is_empty(), "no steps: {same:#}");
    for step in steps.iter().filter_map(Value::as_str) {
        ensure!(shown.contains(&plain(step)), "{step:?} is missing in {shown}");
    }
    Ok(())
}

/// A text without differences of capitals and spaces: the page shows steps as sentences.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}
