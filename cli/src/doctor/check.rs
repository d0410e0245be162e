//! A check of the doctor: its result, cause and remedy.

use serde::Serialize;

use crate::text::clean;

/// Result of a check, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Worth knowing; needs no action.
    Note,
    /// Slows updates down, or makes them riskier.
    Warning,
    /// The check could not be made.
    Unknown,
    /// An admin has to act.
    Broken,
}

impl Outcome {
    /// All results, the worst first.
    pub const ALL: [Self; 5] = [Self::Broken, Self::Unknown, Self::Warning, Self::Note, Self::Ok];

    /// Returns the result in one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Broken => "broken",
        }
    }
}

/// Part of the cluster that checks are about, in the order of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The API servers and the control plane.
    Cluster,
    /// Berth's objects and its controller.
    Installation,
    /// Agents and hosts.
    Nodes,
    /// Registries and credentials.
    Images,
    /// Pods that have to move in an update.
    Workloads,
    /// All other health findings of the pools.
    Rollouts,
}

impl Group {
    /// Returns the heading of the group.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Installation => "Installation",
            Self::Nodes => "Agents and hosts",
            Self::Images => "Images",
            Self::Workloads => "Workloads",
            Self::Rollouts => "Rollouts",
        }
    }
}

/// Defines `Topic` with one variant per line: group, name.
macro_rules! topics {
    ($($topic:ident: $group:ident, $name:literal;)*) => {
        /// Subject of a check.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Topic { $(#[doc = $name] $topic,)* }

        impl Topic {
            /// All subjects, in the order of the output.
            pub const ALL: &[Self] = &[$(Self::$topic,)*];

            /// Returns the part of the cluster that the subject belongs to.
            pub const fn group(self) -> Group {
                match self { $(Self::$topic => Group::$group,)* }
            }

            /// Returns the name of the subject, for programs and for `docs/doctor.md`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$topic => $name,)* }
            }
        }
    };
}

topics! {
    Server: Cluster, "server";
    PolicyApi: Cluster, "policy-api";
    NodeRestriction: Cluster, "node-restriction";
    ControlPlane: Cluster, "control-plane";
    Crds: Installation, "crds";
    Policies: Installation, "policies";
    Guard: Installation, "guard";
    Controller: Installation, "controller";
    Versions: Installation, "versions";
    Objects: Installation, "objects";
    Agents: Nodes, "agents";
    RollbackGuard: Nodes, "rollback-guard";
    FirstBoot: Nodes, "first-boot";
    Rivals: Nodes, "rivals";
    Clocks: Nodes, "clocks";
    Registry: Images, "registry";
    PullSecrets: Images, "pull-secrets";
    Budgets: Workloads, "budgets";
    SingleReplicas: Workloads, "single-replicas";
    Health: Rollouts, "health";
}

/// A check with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// Part of the cluster that the check is about.
    pub group: Group,
    /// Name of the check's subject. Several checks may have the same subject.
    pub name: &'static str,
    /// Result.
    pub result: Outcome,
    /// Result in one line.
    pub message: String,
    /// Cause or effect, in one line; empty if the message has it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
    /// Steps for the admin.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remedy: Vec<String>,
    /// Commands that carry out the remedy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
    #[serde(skip)]
    pub(crate) topic: Topic,
}

impl Check {
    pub(crate) fn new(topic: Topic, result: Outcome, message: &str) -> Self {
        Self {
            group: topic.group(),
            name: topic.name(),
            result,
            message: clean(message),
            cause: String::new(),
            remedy: vec![],
            commands: vec![],
            topic,
        }
    }

    pub(crate) fn ok(topic: Topic, message: &str) -> Self {
        Self::new(topic, Outcome::Ok, message)
    }

    pub(crate) fn note(topic: Topic, message: &str) -> Self {
        Self::new(topic, Outcome::Note, message)
    }

    pub(crate) fn warning(topic: Topic, message: &str) -> Self {
        Self::new(topic, Outcome::Warning, message)
    }

    pub(crate) fn broken(topic: Topic, message: &str) -> Self {
        Self::new(topic, Outcome::Broken, message)
    }

    /// Adds the cause or the effect.
    pub(crate) fn because(mut self, cause: &str) -> Self {
        self.cause = clean(cause);
        self
    }

    /// Adds a step for the admin.
    pub(crate) fn remedy(mut self, step: &str) -> Self {
        self.remedy.push(clean(step));
        self
    }

    /// Adds commands. Control characters are removed, so that a command is one line.
    pub(crate) fn commands(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.commands
            .extend(commands.into_iter().map(|command| clean(&command)));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has a row for each check, in the order of the output, below the heading of its group.
    #[test]
    fn the_page_has_every_check() {
        const PAGE: &str = include_str!("../../../docs/doctor.md");
        let (_, checks) = PAGE.split_once("\n## Checks\n").unwrap();
        let mut listed = vec![];
        for section in checks.split("\n### ").skip(1) {
            let heading = section.lines().next().unwrap();
            let rows = section
                .lines()
                .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            let text = section
                .lines()
                .filter_map(|line| line.strip_prefix('`')?.split('`').next());
            listed.extend(rows.chain(text).map(|name| (heading, name)));
        }
        let known = Topic::ALL.iter().map(|topic| (topic.group().heading(), topic.name()));
        assert_eq!(listed, known.collect::<Vec<_>>());
    }
}
