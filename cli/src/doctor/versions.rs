//! Compares the versions of the plugin, the controller and the agents.

use std::collections::BTreeMap;

use berth_core::text::few;
use k8s_openapi::api::apps::v1::Deployment;

use super::check::{Check, Topic};
use super::commands::VERSION;
use super::facts::Facts;
use super::roster::Member;
use super::seen::Unseen;
use crate::text::clean;

/// Relation of this plugin's version to the controller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skew {
    /// The version of the controller is not known.
    Unknown,
    /// Both have the same version.
    Same,
    /// The controller has another version.
    Other,
}

impl Skew {
    pub(crate) fn of(facts: &Facts) -> Self {
        match controller(facts) {
            None => Self::Unknown,
            Some(version) if version == VERSION => Self::Same,
            Some(_) => Self::Other,
        }
    }

    pub(crate) fn is_other_version(self) -> bool {
        self == Self::Other
    }
}

/// Returns the version of the controller, from the tag of its image; `None` if the tag is not a version.
fn controller(facts: &Facts) -> Option<String> {
    let deployment = facts.deployment.as_ref().ok()?.as_ref()?;
    version_of(&image(deployment)?)
}

fn image(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let container = pod.containers.iter().find(|container| container.name == "controller");
    container.or(pod.containers.first())?.image.clone()
}

/// Returns the version in the tag of an image reference: `0.1.0` for `…:0.1.0`, `…:v0.1.0` and `…:0.1.0@sha256:…`.
fn version_of(image: &str) -> Option<String> {
    let image = image.split('@').next()?;
    let (_, tag) = image.rsplit_once(':')?;
    let version = tag.strip_prefix('v').unwrap_or(tag);
    let numbers: Vec<&str> = version.split(['-', '+']).next()?.split('.').collect();
    let is_version = numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok());
    is_version.then(|| version.to_owned())
}

/// Checks that all programs have one version.
pub(crate) fn check(facts: &Facts, members: &[Member<'_>]) -> Vec<Check> {
    let mut agents: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for member in members {
        if let Some(version) = member.status().and_then(|status| status.agent_version.as_deref()) {
            agents.entry(version).or_default().push(member.name.clone());
        }
    }
    if let Err(unseen) = &facts.deployment {
        let what = "version of the controller".to_owned();
        return vec![Unseen { what, ..unseen.clone() }.check(Topic::Versions)];
    }
    let controller = controller(facts);
    let mut words = vec![format!("plugin {VERSION}")];
    words.push(match &controller {
        Some(version) => format!("controller {}", clean(version)),
        None if facts.deployment == Ok(None) => "controller not known (it has no Deployment)".to_owned(),
        None => "controller not known (the tag of its image is not a version)".to_owned(),
    });
    words.extend(
        agents
            .iter()
            .map(|(version, nodes)| of_agents(version, nodes, agents.len())),
    );
    let words = words.join(", ");
    let is_one = agents.len() < 2
        && controller
            .iter()
            .all(|version| agents.keys().all(|agent| agent == version));
    if !is_one {
        let remedy = "if no upgrade of Berth is under way, finish it: docs/runbooks/BerthAgentVersionSkew.md";
        let rollout = facts.commands.kubectl();
        let remedy = format!(
            "{remedy}; {rollout} -n {} rollout status daemonset/berth-agent",
            facts.namespace
        );
        return vec![
            Check::warning(Topic::Versions, &format!("versions differ: {words}"))
                .because("the programs work together, but without the features that one of them lacks")
                .remedy(&remedy),
        ];
    }
    let found = match controller.as_deref() {
        None => Check::note(Topic::Versions, &words),
        Some(VERSION) => Check::ok(Topic::Versions, &words),
        Some(_) => Check::warning(Topic::Versions, &format!("this plugin has another version: {words}"))
            .remedy("install the plugin of the controller's version"),
    };
    vec![found]
}

fn of_agents(version: &str, nodes: &[String], versions: usize) -> String {
    let version = clean(version);
    match versions {
        1 => format!("agents {version}"),
        _ => format!("agents {version} on {}", few(nodes.iter().map(|node| clean(node)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_from_a_tag() {
        for (image, version) in [
            ("ghcr.io/berth-dev/berth-controller:0.1.0", Some("0.1.0")),
            ("localhost:5000/berth-controller:v0.2.1-rc.1", Some("0.2.1-rc.1")),
            ("r.example/c:0.1.0@sha256:00", Some("0.1.0")),
            ("berth-controller:dev", None),
            ("localhost:5000/berth-controller", None),
            ("berth-controller@sha256:00", None),
        ] {
            assert_eq!(version_of(image).as_deref(), version, "{image}");
        }
    }
}
