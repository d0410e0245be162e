//! An admin in front of the dashboard.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use berth_tests::browser::Browser;
use berth_tests::controlplane::ControlPlane;
use berth_tests::dashboard::Dashboard;
use berth_tests::programs;

/// Records the phases that each tile shows, so that a test misses none.
const RECORD: &str = r"
const seen = new Map();
const note = (tile) => {
    const phases = seen.get(tile.dataset.node) ?? [];
    if (phases.at(-1) !== tile.dataset.phase) phases.push(tile.dataset.phase);
    seen.set(tile.dataset.node, phases);
};
const all = () => document.querySelectorAll('[data-node][data-phase]').forEach(note);
new MutationObserver(all).observe(document.body, {
    attributes: true, attributeFilter: ['data-phase'], childList: true, subtree: true,
});
all();
window.berthSeen = seen;
return null;
";
const RECORDED: &str = "return Object.fromEntries(window.berthSeen);";

pub struct Viewer {
    pub browser: Browser,
    pub dashboard: Dashboard,
}

impl Viewer {
    /// Starts the dashboard and a browser, and waits until the page is live. `arguments` may name a pool.
    pub async fn of(plane: &ControlPlane, arguments: &[&str]) -> Result<Self> {
        let program = tokio::task::spawn_blocking(programs::kubectl).await??;
        let config = plane.kubeconfig_for("tom", &["system:masters"])?;
        let dashboard = Dashboard::start(&program, &config.path, arguments).await?;
        let browser = Browser::start().await?;
        browser.open(dashboard.address()).await?;
        let viewer = Self { browser, dashboard };
        viewer.until_connection("live").await?;
        Ok(viewer)
    }

    /// Waits until the page shows this state of the connection.
    pub async fn until_connection(&self, state: &str) -> Result<()> {
        self.browser.until_attribute("#connection", "data-state", state).await
    }

    /// Goes to a view, such as `#/health`.
    pub async fn go(&self, view: &str) -> Result<()> {
        self.browser.go(view).await
    }

    /// Phase of a node's tile.
    pub async fn phase(&self, node: &str) -> Result<String> {
        let phase = self.browser.attribute(&tile(node), "data-phase").await?;
        phase.with_context(|| format!("no tile of {node}"))
    }

    /// Starts to record the phases of all tiles.
    pub async fn record(&self) -> Result<()> {
        self.browser.run(RECORD, &[]).await
    }

    /// The phases that each tile has shown, in order.
    pub async fn recorded(&self) -> Result<BTreeMap<String, Vec<String>>> {
        self.browser.run(RECORDED, &[]).await
    }
}

/// Selector of a node's tile.
pub fn tile(node: &str) -> String {
    format!("#tiles [data-node='{node}']")
}
