//! The first step: deletes the pools, and waits until their nodes are given back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::json;
use tokio::time::Instant;

use super::context::{Context, INTERVAL};
use super::facts::{Owned, api, bootc_nodes, pools};
use super::progress::Progress;
use super::requests::{Failed, Format};
use crate::text::count;

/// An agent that reports nothing for this time is named. Agents report every two minutes.
const SILENT: Duration = Duration::from_secs(300);
/// Maximum number of nodes that a line names.
const NAMED: usize = 5;

/// Last report of each node's agent, and when it was first seen here. No clock of another machine is needed.
#[derive(Debug, Default)]
struct Heard(BTreeMap<String, (String, Instant)>);

impl Heard {
    /// Records the reports of these nodes.
    fn hear(&mut self, nodes: &BTreeMap<String, Owned>, now: Instant) {
        for (name, node) in nodes {
            let known = self.0.get(name).is_some_and(|(report, _)| *report == node.heartbeat);
            if !known {
                self.0.insert(name.clone(), (node.heartbeat.clone(), now));
            }
        }
    }

    fn is_silent(&self, name: &str, now: Instant) -> bool {
        let since = self.0.get(name).map(|(_, since)| *since);
        since.is_some_and(|since| now.duration_since(since) >= SILENT)
    }
}

/// Deletes the pools, and waits until controller and agents have given back all nodes, except those to leave.
pub(super) async fn release(context: &Context, progress: &mut Progress<'_>) -> Result<()> {
    let (give_up, mut heard) = (context.deadline(), Heard::default());
    let left = &context.options.leave;
    let mut deleted = BTreeMap::new();
    loop {
        let (pools, nodes) = (pools(&context.server).await?, bootc_nodes(&context.server).await?);
        delete_pools(context, &pools, &mut deleted).await?;
        heard.hear(&nodes, Instant::now());
        let waiting: BTreeMap<&str, &Owned> = nodes
            .iter()
            .filter(|(name, _)| !left.contains(*name))
            .map(|(name, node)| (name.as_str(), node))
            .collect();
        if waiting.is_empty() && (pools.is_empty() || !left.is_empty()) {
            break;
        }
        let silent: BTreeSet<&str> = waiting
            .keys()
            .copied()
            .filter(|name| heard.is_silent(name, Instant::now()))
            .collect();
        progress.show(&words(&pools, &waiting, &silent))?;
        if Instant::now() >= give_up {
            bail!("{}", timed_out(&context.limit(), &pools, &waiting, &silent));
        }
        tokio::time::sleep(INTERVAL).await;
    }
    abandon(context, progress).await
}

/// Deletes pools that are not being deleted yet. Fails if a deleted pool is there again.
async fn delete_pools(
    context: &Context,
    pools: &BTreeMap<String, Owned>,
    deleted: &mut BTreeMap<String, String>,
) -> Result<()> {
    for (name, pool) in pools.iter().filter(|(_, pool)| !pool.is_deleting) {
        if deleted.get(name).is_some_and(|uid| *uid != pool.uid) {
            bail!(
                "pool {name} was deleted, and another program has created it again; stop that program (such as Flux or \
                 Argo CD), or remove the pool from its repository, and run the command again"
            );
        }
        let path = format!("{}/{name}", api("bootcnodepools"));
        let done = context.server.delete(&path, &pool.uid).await;
        done.map_err(|error| error.while_doing(format!("delete pool {name}")))?;
        deleted.insert(name.clone(), pool.uid.clone());
    }
    Ok(())
}

fn words(pools: &BTreeMap<String, Owned>, waiting: &BTreeMap<&str, &Owned>, silent: &BTreeSet<&str>) -> String {
    if waiting.is_empty() {
        return format!(
            "all nodes are given back; waiting for the end of {}",
            count(pools.len(), "pool")
        );
    }
    let mut named = vec![];
    // Silent nodes first: they need the admin.
    let (first, rest): (Vec<_>, Vec<_>) = waiting.iter().partition(|(name, _)| silent.contains(**name));
    for (name, node) in first.iter().chain(&rest).take(NAMED) {
        named.push(match (silent.contains(*name), node.phase.as_str()) {
            (true, _) => format!("{name} (its agent is silent)"),
            (false, "") => (*name).to_string(),
            (false, phase) => format!("{name} ({phase})"),
        });
    }
    let more = if waiting.len() > NAMED { ", …" } else { "" };
    format!(
        "waiting for {}: {}{more}",
        count(waiting.len(), "node"),
        named.join(", ")
    )
}

fn timed_out(
    limit: &str,
    pools: &BTreeMap<String, Owned>,
    waiting: &BTreeMap<&str, &Owned>,
    silent: &BTreeSet<&str>,
) -> String {
    if waiting.is_empty() {
        let names: Vec<&str> = pools.keys().map(String::as_str).collect();
        let finalizers: BTreeSet<&str> = pools
            .values()
            .flat_map(|pool| &pool.other_finalizers)
            .map(String::as_str)
            .collect();
        return format!(
            "the pools {} are still there after {limit}, although their nodes are given back; finalizers of other \
             programs: {}; see the controller's log, and run the command again",
            names.join(", "),
            finalizers.into_iter().collect::<Vec<_>>().join(", ")
        );
    }
    let mut text = format!("not given back within {limit}: {}", words(pools, waiting, silent));
    if let Some(name) = silent.iter().next() {
        text += &format!(
            "; to make a silent agent answer, start its host. If the host is lost: kubectl delete node {name}, or kubectl \
             berth exclude {name}"
        );
    }
    let Some(name) = waiting.keys().next() else { return text };
    text += &format!(
        "; what a node is doing: kubectl berth node {name}. Run the command again to wait longer, or continue without a node, \
         whose host then keeps Berth's files: kubectl berth uninstall --leave {name}"
    );
    text
}

/// Removes the remaining pools and BootcNodes, without waiting for controller and agents.
pub(super) async fn abandon(context: &Context, progress: &mut Progress<'_>) -> Result<()> {
    let give_up = context.deadline();
    loop {
        let mut count_left = 0;
        for (plural, objects) in [
            ("bootcnodes", bootc_nodes(&context.server).await?),
            ("bootcnodepools", pools(&context.server).await?),
        ] {
            count_left += objects.len();
            for (name, object) in &objects {
                drop_object(context, plural, name, object).await?;
            }
        }
        if count_left == 0 {
            return Ok(progress.end("done: no pool is left")?);
        }
        progress.show(&format!(
            "removing {} that no agent gives back",
            count(count_left, "object")
        ))?;
        if Instant::now() >= give_up {
            bail!(
                "pools or BootcNodes are still there after {}: kubectl get bootcnodepools,bootcnodes -o yaml shows their \
                 finalizers; run the command again",
                context.limit()
            );
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Deletes a pool or a BootcNode, and removes Berth's finalizer.
async fn drop_object(context: &Context, plural: &str, name: &str, object: &Owned) -> Result<()> {
    let path = format!("{}/{name}", api(plural));
    if !object.is_deleting {
        let done = context.server.delete(&path, &object.uid).await;
        return done.map_err(|error| error.while_doing(format!("delete {name} of {plural}")));
    }
    if !object.has_finalizer {
        return Ok(());
    }
    let patch = json!({ "metadata": {
        "uid": object.uid, "resourceVersion": object.version, "finalizers": object.other_finalizers,
    } });
    match context.server.patch(&path, Format::Merge, &patch).await {
        // The next look reads it again.
        Ok(()) | Err(Failed::Conflict(_)) => Ok(()),
        Err(error) => Err(error.while_doing(format!("remove the finalizer of {name} of {plural}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(phase: &str, heartbeat: &str) -> Owned {
        Owned {
            phase: phase.to_owned(),
            heartbeat: heartbeat.to_owned(),
            ..Owned::default()
        }
    }

    #[tokio::test]
    async fn an_agent_without_a_new_report_is_silent() {
        let start = Instant::now();
        let mut heard = Heard::default();
        let mut nodes = BTreeMap::from([("n1".to_owned(), node("", "1")), ("n2".to_owned(), node("", "1"))]);
        heard.hear(&nodes, start);
        assert!(!heard.is_silent("n1", start));
        nodes.insert("n2".to_owned(), node("", "2"));
        heard.hear(&nodes, start + SILENT / 2);
        heard.hear(&nodes, start + SILENT);
        assert!(heard.is_silent("n1", start + SILENT));
        assert!(!heard.is_silent("n2", start + SILENT));
    }

    #[test]
    fn a_silent_node_is_named_first_with_its_remedies() {
        let nodes = [node("Draining", "1"), node("", "1")];
        let waiting = BTreeMap::from([("a", &nodes[0]), ("b", &nodes[1])]);
        let silent = BTreeSet::from(["b"]);
        let pools = BTreeMap::new();
        assert_eq!(
            words(&pools, &waiting, &silent),
            "waiting for 2 nodes: b (its agent is silent), a (Draining)"
        );
        let text = timed_out("15m", &pools, &waiting, &silent);
        for words in [
            "kubectl delete node b",
            "kubectl berth exclude b",
            "--leave a",
            "kubectl berth node a",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
