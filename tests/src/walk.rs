//! History of each node through its updates, from a watch of its BootcNode.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use berth_api::insight::{MAX_MESSAGE, NodeInsight};
use berth_api::node::BootcNode;
use berth_core::insight::phase;
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use tokio::task::JoinHandle;

use crate::locked::locked;

/// Insights of all nodes since the start of the watch. Consecutive insights of the same phase count once.
#[derive(Debug)]
pub struct Walks {
    seen: Arc<Mutex<BTreeMap<String, Vec<NodeInsight>>>>,
    task: JoinHandle<()>,
}

impl Drop for Walks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Walks {
    /// Starts the watch.
    pub fn of(nodes: Api<BootcNode>) -> Self {
        let seen = Arc::new(Mutex::new(BTreeMap::<String, Vec<NodeInsight>>::new()));
        let all = seen.clone();
        let task = tokio::spawn(async move {
            let mut objects = pin!(
                watcher(nodes, watcher::Config::default())
                    .default_backoff()
                    .applied_objects()
            );
            while let Some(object) = objects.next().await {
                let Ok(object) = object else { continue };
                let name = object.name_any();
                let Some(insight) = object.status.and_then(|s| s.insight) else {
                    continue;
                };
                let mut all = locked(&all);
                let walk = all.entry(name).or_default();
                if walk.last().is_none_or(|last| phase(last) != phase(&insight)) {
                    walk.push(insight);
                }
            }
        });
        Self { seen, task }
    }

    /// Fails unless each of these nodes went through these phases in this order, and each insight is valid. Other
    /// phases may come in between.
    pub fn ensure(&self, nodes: &[&str], phases: &[&str]) -> Result<()> {
        let seen = locked(&self.seen);
        for node in nodes {
            let walk = seen.get(*node).with_context(|| format!("{node} reported no insight"))?;
            let reasons: Vec<&str> = walk.iter().map(phase).collect();
            let mut rest = reasons.iter();
            let went = phases.iter().all(|wanted| rest.any(|seen| seen == wanted));
            ensure!(went, "{node} should go through {phases:?} but went through {reasons:?}");
            for insight in walk {
                let fits = insight.message.chars().count() <= MAX_MESSAGE && insight.name == *node;
                ensure!(fits && insight.conditions.len() == 3, "{node}: {insight:?}");
            }
        }
        Ok(())
    }
}
