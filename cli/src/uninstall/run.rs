//! Runs the steps.

use std::io::Write;

use anyhow::{Result, bail, ensure};
use kube::Client;

use super::context::{Context, Options};
use super::facts::Facts;
use super::plan::{self, PAGE, Step, render, steps};
use super::progress::Progress;
use super::requests::Server;
use super::{clean, delete, hosts, release};
use crate::text::clean as clean_text;

/// A removal that has been planned.
pub struct Removal {
    context: Context,
    facts: Facts,
    steps: Vec<Step>,
}

impl std::fmt::Debug for Removal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Removal")
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl Removal {
    /// Reads the cluster and plans the removal. Fails if an object cannot be read that a step needs, or if a node to
    /// leave does not exist.
    pub async fn plan(client: Client, options: Options) -> Result<Self> {
        let server = Server::new(client, options.request_timeout);
        let facts = Facts::read(&server, &options.namespace).await?;
        for node in &options.leave {
            let found = server.get(&format!("/api/v1/nodes/{node}")).await;
            let found = found.map_err(|error| error.while_doing(format!("read Node {node}")))?;
            ensure!(
                found.is_some() || facts.nodes.contains_key(node),
                "there is no Node {:?} to leave; the removal does not wait for a deleted Node",
                clean_text(node)
            );
        }
        Ok(Self {
            steps: steps(&facts),
            context: Context { server, options },
            facts,
        })
    }

    /// True if there is nothing to remove.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the description of the removal.
    pub fn render(&self) -> String {
        if self.is_empty() {
            return "There is nothing of Berth in this cluster; nothing to do.\n".to_owned();
        }
        render(&self.facts, &self.steps, &self.context.options.leave)
    }

    /// Carries out the steps, and returns the text for the end. `width`: of the terminal that `out` is.
    pub async fn run(&self, out: &mut dyn Write, width: Option<usize>) -> Result<String> {
        let mut progress = Progress::new(out, width);
        for (at, step) in self.steps.iter().enumerate() {
            progress.begin(at + 1, self.steps.len(), step.title());
            let done = self.step(*step, &mut progress).await;
            progress.break_line()?;
            done?;
        }
        self.ended().await
    }

    async fn step(&self, step: Step, progress: &mut Progress<'_>) -> Result<()> {
        match step {
            Step::Release => release::release(&self.context, progress).await,
            Step::Abandon => release::abandon(&self.context, progress).await,
            Step::CleanHosts => hosts::clean(&self.context, progress).await,
            Step::CleanNodes => clean::clean(&self.context, progress).await,
            Step::Delete => delete::delete(&self.context, progress).await,
            Step::LeaveToHelm => delete::delete_leases(&self.context, progress).await,
        }
    }

    /// Checks that nothing is left, and returns the text for the end.
    async fn ended(&self) -> Result<String> {
        if self.steps.last() == Some(&Step::LeaveToHelm) {
            let commands = plan::helm_commands(&self.facts);
            return Ok(format!(
                "Nodes and hosts are clean. To remove the rest, run: {commands}\nThen run this command again: it removes \
                 what Helm leaves.\n"
            ));
        }
        let left = Facts::read(&self.context.server, &self.context.options.namespace).await?;
        if !left.is_empty() {
            let names: Vec<String> = left.objects.iter().map(|object| object.words()).collect();
            let nodes: Vec<&str> = left.traces.iter().map(|node| node.name.as_str()).collect();
            bail!(
                "something is left, or another program has created it again: objects: {}; Leases: {}; Nodes: {}; run the \
                 command again",
                or_none(&names.join(", ")),
                or_none(&left.leases.into_keys().collect::<Vec<_>>().join(", ")),
                or_none(&nodes.join(", "))
            );
        }
        Ok(format!(
            "Berth is removed from this cluster. The hosts still follow the digests that Berth gave them: see {PAGE}.\n"
        ))
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}
