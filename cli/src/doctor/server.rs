//! Checks of the API server and the control plane.

use berth_api::waves::is_control_plane;
use berth_core::controller::quorum::Meanwhile;
use berth_core::controller::view::NodeView;
use berth_core::text::few;

use super::check::{Check, Topic};
use super::facts::{Answer, Facts};
use super::guard::is_tested_by_agents;
use super::roster::Member;
use super::seen::Unseen;
use crate::text::{clean, count};

/// Oldest supported minor version of Kubernetes 1.
const OLDEST: u32 = 33;
/// Admission plugin that limits a kubelet to its own Node.
const PLUGIN: &str = "NodeRestriction";
/// Flag of an API server that names its additional plugins.
const FLAG: &str = "--enable-admission-plugins";

/// Checks the version of the API server.
pub(crate) fn version(facts: &Facts) -> Check {
    let version = match &facts.server {
        Ok(version) => clean(version),
        Err(unseen) => return unseen.check(Topic::Server),
    };
    match is_supported(&version) {
        Some(true) => Check::ok(Topic::Server, &format!("Kubernetes {version}")),
        Some(false) => Check::broken(Topic::Server, &format!("Kubernetes {version} is older than 1.{OLDEST}"))
            .because("its tokens name no node in a way that admission policies can read, so no node would take a berth")
            .remedy(&format!("upgrade the cluster to Kubernetes 1.{OLDEST} or newer")),
        None => Check::warning(
            Topic::Server,
            &format!("the API server's version {version:?} is not one of Kubernetes"),
        )
        .remedy(&format!(
            "make sure that the API server is Kubernetes 1.{OLDEST} or newer"
        )),
    }
}

/// True if the version is new enough; `None` if the text is not a version.
fn is_supported(version: &str) -> Option<bool> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '+']);
    let major: u32 = numbers.next()?.parse().ok()?;
    let minor: u32 = numbers.next()?.parse().ok()?;
    Some((major, minor) >= (1, OLDEST))
}

/// Checks that the API server serves admission policies.
pub(crate) fn policies(facts: &Facts) -> Check {
    match &facts.has_policies {
        Ok(true) => Check::ok(Topic::PolicyApi, "the API server serves ValidatingAdmissionPolicies"),
        Ok(false) => Check::broken(
            Topic::PolicyApi,
            "the API server does not serve ValidatingAdmissionPolicies (admissionregistration.k8s.io/v1)",
        )
        .because("without them an agent could write the objects of other nodes, so no node takes a berth")
        .remedy("upgrade the API server, or turn this API on (--runtime-config)"),
        Err(unseen) => unseen.check(Topic::PolicyApi),
    }
}

/// Checks that a kubelet can write its own Node only. A dry run shows it; otherwise the agents' dry runs or the flags of
/// the API servers do.
pub(crate) fn restriction(facts: &Facts, members: &[Member<'_>]) -> Check {
    let topic = Topic::NodeRestriction;
    match &facts.restriction_probe {
        Ok(Answer::Refused) => return Check::ok(topic, "a kubelet's dry-run write to another Node is refused"),
        Ok(Answer::Accepted) => return off("a kubelet's dry-run write to another Node was accepted"),
        _ => {}
    }
    if is_tested_by_agents(facts, members) {
        return Check::ok(topic, "the agents' dry-run writes to other Nodes are refused");
    }
    match from_flags(facts) {
        Some(true) => Check::ok(
            topic,
            &format!("the API servers run with the admission plugin {PLUGIN}"),
        ),
        Some(false) => off("the flags of an API server do not name it"),
        None => unseen_restriction(facts),
    }
}

fn off(cause: &str) -> Check {
    Check::broken(Topic::NodeRestriction, &format!("the admission plugin {PLUGIN} is off"))
        .because(&format!(
            "{cause}; a compromised node could write other Nodes, so no node takes a berth"
        ))
        .remedy(&format!("add {PLUGIN} to {FLAG} of each API server"))
}

fn unseen_restriction(facts: &Facts) -> Check {
    match &facts.restriction_probe {
        Err(unseen) => unseen.check(Topic::NodeRestriction),
        Ok(Answer::RefusedOtherwise(words)) => Check::note(
            Topic::NodeRestriction,
            "a kubelet's dry-run write to another Node is refused, but not by NodeRestriction",
        )
        .because(words),
        Ok(_) => Check::note(
            Topic::NodeRestriction,
            "the cluster has no Node to test the admission plugin NodeRestriction with",
        ),
    }
}

/// True if all API servers that run as pods name the plugin in their flags; `None` if there are no such pods.
fn from_flags(facts: &Facts) -> Option<bool> {
    let servers = facts.api_servers.as_ref().ok().filter(|servers| !servers.is_empty())?;
    Some(
        servers
            .iter()
            .all(|arguments| plugins(arguments).any(|plugin| plugin == PLUGIN)),
    )
}

/// Returns the additional plugins in a command line: `--flag=a,b` or `--flag a,b`.
fn plugins(arguments: &[String]) -> impl Iterator<Item = &str> {
    let values = arguments.iter().enumerate().filter_map(|(i, argument)| {
        let rest = argument.strip_prefix(FLAG)?;
        match rest.strip_prefix('=') {
            Some(value) => Some(value),
            None if rest.is_empty() => arguments.get(i + 1).map(String::as_str),
            None => None,
        }
    });
    values.flat_map(|value| value.split(','))
}

/// Checks the size of the control plane.
pub(crate) fn control_plane(facts: &Facts) -> Check {
    let topic = Topic::ControlPlane;
    let snapshot = match &facts.snapshot {
        Ok(snapshot) => snapshot,
        Err(unseen) => return size_unseen(unseen),
    };
    if let Some(error) = &snapshot.nodes_unread {
        return size_unseen(&Unseen {
            what: String::new(),
            why: error.clone(),
            permission: Some("list nodes".to_owned()),
        });
    }
    let servers = snapshot.nodes.iter().filter(|node| is_control_plane(&node.view.labels));
    let servers: Vec<&NodeView> = servers.map(|node| node.view.as_ref()).collect();
    let down: Vec<&NodeView> = servers.iter().copied().filter(|node| !is_up(node)).collect();
    if !down.is_empty() {
        let names = few(down.iter().map(|node| clean(node.name.as_str())));
        let message = format!(
            "{} of {} control plane nodes are not Ready or are cordoned: {names}",
            down.len(),
            servers.len()
        );
        return Check::warning(topic, &message)
            .because("no other control plane node is offered a berth until they are back")
            .remedy("repair them, or delete the Nodes of machines that are gone (first their etcd members)");
    }
    let words = format!("{} with the label of the control plane", count(servers.len(), "node"));
    match Meanwhile::of(servers.len()) {
        _ if servers.is_empty() => Check::note(topic, &words)
            .because("right for a managed control plane; else Berth knows control plane nodes only by the addresses of API servers")
            .remedy("if control plane nodes are in the cluster, label them: docs/rollouts.md#control-plane-nodes"),
        None => Check::ok(topic, &format!("{words}: updated one at a time, so a majority stays up")),
        Some(Meanwhile::Everything) => Check::note(topic, &words)
            .because(&format!("{}; Berth updates it all the same", Meanwhile::Everything.words()))
            .remedy("for updates without an outage of the API, use three control plane nodes"),
        Some(Meanwhile::Majority) => Check::warning(topic, &words)
            .because(&format!("each is {}; Berth updates them one after the other", Meanwhile::Majority.words()))
            .remedy("use three control plane nodes, or one"),
    }
}

fn size_unseen(unseen: &Unseen) -> Check {
    let what = "number of control plane nodes".to_owned();
    Unseen { what, ..unseen.clone() }.check(Topic::ControlPlane)
}

fn is_up(node: &NodeView) -> bool {
    node.ready && !node.unschedulable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_read_from_flags() {
        for (arguments, expected) in [
            (
                &["kube-apiserver", "--enable-admission-plugins=A,NodeRestriction"][..],
                vec!["A", "NodeRestriction"],
            ),
            (
                &["--enable-admission-plugins", "NodeRestriction"],
                vec!["NodeRestriction"],
            ),
            (&["--enable-admission-plugins-not", "NodeRestriction"], vec![]),
            (&["--enable-admission-plugins"], vec![]),
        ] {
            let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            assert_eq!(plugins(&arguments).collect::<Vec<_>>(), expected, "{arguments:?}");
        }
    }

    #[test]
    fn versions_of_kubernetes_are_compared() {
        for (version, supported) in [
            ("v1.33.0", Some(true)),
            ("v1.32.9", Some(false)),
            ("v1.36.1+k3s1", Some(true)),
            ("v1.33.4-eks-3abbec1", Some(true)),
            ("v2.0.0", Some(true)),
            ("v0.9", Some(false)),
            ("fake", None),
            ("", None),
        ] {
            assert_eq!(is_supported(version), supported, "{version:?}");
        }
    }
}
