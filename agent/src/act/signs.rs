//! Writes the lifecycle conditions and autoscaler annotations of this agent's Node. With these, tools other than Berth
//! can see a turn; no step of Berth depends on them. A write can block the agent until it times out. So the agent
//! writes none between the unlock and the reboot, and none right before it gives the berth back. While the node is
//! idle, the agent removes leftovers.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::berth::Berth;
use berth_core::agent::facts::{AgentFacts, ClusterNode};
use berth_core::agent::knowledge::Event;
use berth_core::agent::maintenance::wanted;
use berth_core::agent::node::NodeFacts;
use tokio::time::timeout;

use crate::node::cordon;
use crate::node::lifecycle;
use crate::run::Agent;
use crate::timers::Pause;

/// Timeout of a write. The agent's next step waits for the write.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Agent {
    /// Updates the Node's lifecycle conditions. Also removes the annotations against autoscalers that an ended cordon
    /// has left. Returns true if it tried a write, even if the write failed.
    pub(crate) async fn show_signs(&mut self, facts: &AgentFacts) -> bool {
        let (Some(node), Some((wanted, berth))) = (facts.cluster_node.get(), wanted(facts)) else {
            return false;
        };
        let changes = node.signs.lifecycle.changes(wanted);
        let is_nothing_left = changes.is_empty() && !node.has_left_guards();
        let is_early = self.timers.signs.is_early(&changes, Instant::now()) && !node.has_left_guards();
        if is_nothing_left || is_early || !self.timers.signs.is_over() {
            return false;
        }
        let message = berth.map_or_else(|| planned(facts), message);
        let name = self.node.clone();
        let write = async {
            let client = self.api.kubelet.get().await?;
            let mut after = node.clone();
            if !changes.is_empty() {
                after = lifecycle::write(client, name.as_str(), &after, &changes, &message).await?;
            }
            if after.has_left_guards() {
                after = cordon::take_guards_off(client, name.as_str(), &after).await?;
            }
            anyhow::Ok(after)
        };
        match in_time(write).await {
            Ok(after) => {
                self.timers.signs = Pause::default();
                self.learn(Event::NodeRead(ClusterNode::Is(after)));
            }
            Err(error) => self.signs_not_written(&error),
        }
        true
    }

    /// Removes Berth's lifecycle conditions from a Node whose berth was given back.
    pub(crate) async fn take_signs_off(&mut self, node: &NodeFacts) {
        let name = self.node.clone();
        let write = async {
            let client = self.api.kubelet.get().await?;
            anyhow::Ok(lifecycle::take_off(client, name.as_str(), node).await?)
        };
        match in_time(write).await {
            Ok(()) => self.timers.signs = Pause::default(),
            Err(error) => self.signs_not_written(&error),
        }
    }

    fn signs_not_written(&mut self, error: &anyhow::Error) {
        if self.timers.signs.after(error) {
            self.learn(Event::Unreadable);
        }
        let error = format!("{error:#}");
        tracing::warn!(error, "cannot write the Node's lifecycle conditions; retrying");
    }
}

async fn in_time<T>(write: impl Future<Output = Result<T>>) -> Result<T> {
    timeout(TIMEOUT, write)
        .await
        .context("the API server did not answer in time")?
}

fn message(berth: &Berth) -> String {
    let name = berth.name();
    match berth.holding() {
        Some(holding) => format!("berth {name}: updating to {}", holding.target),
        None => format!("berth {name}"),
    }
}

fn planned(facts: &AgentFacts) -> String {
    let digest = facts.desired.digest().map(ToString::to_string).unwrap_or_default();
    format!("{digest} is staged; the node will be drained and rebooted when the controller offers the node a berth")
}
