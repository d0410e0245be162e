//! The steps of the removal, and their description for the admin. Pure.

use std::collections::BTreeSet;

use super::facts::{Controller, Facts};
use super::objects::Manager;
use crate::text::count;

/// Page with what stays, and with the commands for hosts that this command cannot reach.
pub(super) const PAGE: &str = "docs/install/removal.md";
/// Maximum number of objects that a line lists.
const LISTED: usize = 12;

/// A step of the removal. Each step does nothing where it has been done before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Delete the pools, and wait until controller and agents have released all nodes.
    Release,
    /// Delete the pools and BootcNodes although the controller cannot release the nodes.
    Abandon,
    /// Remove Berth from the hosts of the DaemonSet.
    CleanHosts,
    /// Remove Berth's traces from Nodes.
    CleanNodes,
    /// Delete Leases and the objects that install Berth.
    Delete,
    /// Delete Leases, and leave the rest to Helm.
    LeaveToHelm,
}

impl Step {
    /// Returns the step's title.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Release | Self::Abandon => "pools",
            Self::CleanHosts => "hosts",
            Self::CleanNodes => "Nodes",
            Self::Delete | Self::LeaveToHelm => "objects",
        }
    }
}

/// Returns the steps that these facts need, in order. Without any trace of Berth there are none.
pub(super) fn steps(facts: &Facts) -> Vec<Step> {
    let mut steps = vec![];
    let has_members = !facts.pools.is_empty() || !facts.nodes.is_empty();
    if has_members {
        steps.push(match facts.controller {
            Controller::Absent => Step::Abandon,
            Controller::Down | Controller::Runs => Step::Release,
        });
    }
    if !facts.agents.is_empty() {
        steps.push(Step::CleanHosts);
    }
    // The agents of released nodes leave an annotation on their Nodes.
    if has_members || !facts.traces.is_empty() {
        steps.push(Step::CleanNodes);
    }
    if !releases(facts).is_empty() {
        steps.push(Step::LeaveToHelm);
    } else if !facts.objects.is_empty() || !facts.leases.is_empty() || facts.are_hosts_clean {
        steps.push(Step::Delete);
    }
    steps
}

/// Returns the Helm releases that installed Berth, as name and namespace.
pub(super) fn releases(facts: &Facts) -> BTreeSet<(String, String)> {
    let managers = facts.objects.iter().filter_map(|object| object.manager.as_ref());
    let releases = managers.filter_map(|manager| match manager {
        Manager::Helm(name, namespace) => Some((name.clone(), namespace.clone())),
        Manager::GitOps(_) => None,
    });
    releases.collect()
}

/// Returns the commands that uninstall the Helm releases.
pub(super) fn helm_commands(facts: &Facts) -> String {
    let releases = releases(facts);
    let commands = releases
        .iter()
        .map(|(name, namespace)| format!("helm uninstall {name} --namespace {namespace}"));
    commands.collect::<Vec<_>>().join("; ")
}

/// True if no pod of a DaemonSet reaches the hosts, and they are not recorded as clean.
fn unreached(facts: &Facts) -> bool {
    facts.agents.is_empty() && !facts.are_hosts_clean && !facts.objects.is_empty()
}

/// Returns the description of the removal.
pub(super) fn render(facts: &Facts, steps: &[Step], left: &BTreeSet<String>) -> String {
    let mut text = "Remove Berth from this cluster and its hosts:\n".to_owned();
    for (at, step) in steps.iter().enumerate() {
        text += &format!("  {}. {}\n", at + 1, describe(facts, *step));
        if *step == Step::Delete {
            text += &objects(facts);
        }
    }
    for fact in stays() {
        text += &format!("  {fact}\n");
    }
    for warning in warnings(facts, left) {
        text += &format!("  ! {warning}\n");
    }
    text
}

fn describe(facts: &Facts, step: Step) -> String {
    let members = count(facts.nodes.len(), "node");
    match step {
        Step::Release => format!(
            "pools: deletes {}, and waits until controller and agents have given back {members}: uncordoned if Berth \
             cordoned them, staged images removed",
            listed("pool", facts.pools.keys())
        ),
        Step::Abandon => format!(
            "pools: deletes {} and the BootcNodes of {members}, without waiting for the agents",
            listed("pool", facts.pools.keys())
        ),
        Step::CleanHosts => "hosts: replaces the agents by pods that remove Berth's units and files from their hosts, \
                             and waits until all have succeeded"
            .to_owned(),
        Step::CleanNodes => {
            "Nodes: removes Berth's cordons, labels, taints, annotations and conditions, and those that \
                             admins set for Berth"
                .to_owned()
        }
        Step::Delete => {
            let space = facts.objects.iter().any(|object| object.kind == "Namespace");
            let all = if space {
                ", the namespace with everything in it"
            } else {
                ""
            };
            format!(
                "objects: deletes the berths and {}{all}",
                count(facts.objects.len(), "object")
            )
        }
        Step::LeaveToHelm => format!(
            "objects: deletes the berths; Helm deletes the rest, when you run: {}",
            helm_commands(facts)
        ),
    }
}

/// Returns a line for each kind of object, with the names of all objects.
fn objects(facts: &Facts) -> String {
    let mut kinds: Vec<(&str, Vec<String>)> = vec![];
    for object in &facts.objects {
        let elsewhere = !object.namespace.is_empty() && object.namespace != facts.namespace;
        let name = if elsewhere {
            format!("{} (namespace {})", object.name, object.namespace)
        } else {
            object.name.clone()
        };
        match kinds.last_mut() {
            Some((kind, names)) if *kind == object.kind => names.push(name),
            _ => kinds.push((&object.kind, vec![name])),
        }
    }
    let lines = kinds
        .iter()
        .map(|(kind, names)| format!("     {kind}: {}\n", names.join(", ")));
    lines.collect()
}

/// Returns the number of things, and the names of the first ones.
fn listed(noun: &str, names: impl ExactSizeIterator<Item = impl ToString>) -> String {
    let all = names.len();
    let names: Vec<String> = names.take(LISTED).map(|name| name.to_string()).collect();
    let more = if all > names.len() { ", …" } else { "" };
    match all {
        0 => format!("no {noun}"),
        _ => format!("{} ({}{more})", count(all, noun), names.join(", ")),
    }
}

/// Returns what stays on every host.
fn stays() -> [String; 1] {
    [format!(
        "Stays: the OS images of the hosts, each pinned to its last digest; what an image contains under /usr; \
         /etc/berth/allowed-registries and /etc/berth/health.d. {PAGE} has the commands."
    )]
}

fn warnings(facts: &Facts, left: &BTreeSet<String>) -> Vec<String> {
    let mut warnings = vec![];
    let has_members = !facts.pools.is_empty() || !facts.nodes.is_empty();
    if has_members && facts.controller == Controller::Absent {
        warnings.push(format!(
            "The controller is gone, so no agent gives its node back. Hosts keep staged images{}. To let the agents \
             clean up, install Berth again first.",
            staged(facts)
        ));
    }
    if has_members && facts.controller == Controller::Down {
        warnings.push(format!(
            "No pod of the controller is available, and nodes are given back only when it runs. See: kubectl -n {} get \
             pods",
            facts.namespace
        ));
    }
    if unreached(facts) {
        warnings.push(format!(
            "There is no DaemonSet of agents, so nothing is removed from hosts. On each host: berth-agent remove, or the \
             commands in {PAGE}."
        ));
    }
    for node in left {
        warnings.push(format!(
            "Node {node} is not waited for: its host keeps Berth's units and files, and maybe a staged image. On the \
             host: berth-agent remove, and bootc status."
        ));
    }
    for program in programs(facts) {
        warnings.push(format!(
            "{program} applies some of these objects, and would create them again. Remove Berth from its repository first."
        ));
    }
    warnings.extend(facts.notes.iter().cloned());
    warnings
}

fn staged(facts: &Facts) -> String {
    let nodes = facts.nodes.iter().filter(|(_, node)| node.has_staged);
    let names: Vec<&str> = nodes.map(|(name, _)| name.as_str()).collect();
    match names.as_slice() {
        [] => String::new(),
        names => format!(" ({})", names.join(", ")),
    }
}

fn programs(facts: &Facts) -> BTreeSet<&'static str> {
    let managers = facts.objects.iter().filter_map(|object| object.manager.as_ref());
    let programs = managers.filter_map(|manager| match manager {
        Manager::GitOps(program) => Some(*program),
        Manager::Helm(..) => None,
    });
    programs.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::uninstall::facts::Owned;
    use crate::uninstall::node::traces;
    use crate::uninstall::objects::Object;

    fn object(kind: &str, manager: Option<Manager>) -> Object {
        Object {
            kind: kind.to_owned(),
            name: "berth".to_owned(),
            manager,
            ..Object::default()
        }
    }

    fn installed() -> Facts {
        Facts {
            namespace: "berth-system".to_owned(),
            pools: [("workers".to_owned(), Owned::default())].into(),
            nodes: [("n1".to_owned(), Owned::default())].into(),
            controller: Controller::Runs,
            agents: vec![Value::Null],
            objects: vec![object("Deployment", None), object("Namespace", None)],
            ..Facts::default()
        }
    }

    fn text(facts: &Facts) -> String {
        render(facts, &steps(facts), &BTreeSet::new())
    }

    #[test]
    fn an_installation_is_removed_from_inside_out() {
        let facts = installed();
        assert_eq!(
            steps(&facts),
            [Step::Release, Step::CleanHosts, Step::CleanNodes, Step::Delete]
        );
        let text = text(&facts);
        assert!(!text.contains('!'), "{text}");
        for words in [
            "1. pools: deletes 1 pool (workers), and waits",
            "given back 1 node",
            "4. objects: deletes the berths and 2 objects, the namespace with everything in it",
            "\n     Deployment: berth\n     Namespace: berth\n",
            "Stays: the OS images",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    /// A run that was interrupted anywhere is continued by another one.
    #[test]
    fn what_is_done_is_not_done_again() {
        let mut facts = installed();
        facts.pools.clear();
        facts.nodes.clear();
        let released = json!({ "metadata": { "name": "n1", "annotations": { "berth.dev/released": "1" } } });
        facts.traces.extend(traces(&released));
        assert_eq!(steps(&facts), [Step::CleanHosts, Step::CleanNodes, Step::Delete]);
        facts.traces.clear();
        assert_eq!(steps(&facts), [Step::CleanHosts, Step::Delete]);
        facts.agents.clear();
        facts.are_hosts_clean = true;
        facts.controller = Controller::Absent;
        assert_eq!(steps(&facts), [Step::Delete]);
        assert!(!text(&facts).contains("There is no DaemonSet"), "its hosts are clean");
        facts.objects.clear();
        facts.are_hosts_clean = false;
        assert_eq!(steps(&facts), []);
        assert!(facts.is_empty());
    }

    #[test]
    fn if_the_programs_went_first_the_hosts_are_named() {
        let mut facts = installed();
        facts.controller = Controller::Absent;
        facts.agents.clear();
        facts.objects = vec![object("CustomResourceDefinition", None)];
        let staged = Owned {
            has_staged: true,
            ..Owned::default()
        };
        facts.nodes.insert("n2".to_owned(), staged);
        assert_eq!(steps(&facts), [Step::Abandon, Step::CleanNodes, Step::Delete]);
        let text = text(&facts);
        for words in [
            "Hosts keep staged images (n2)",
            "install Berth again first",
            "On each host: berth-agent remove",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_controller_that_is_down_is_named_before_the_wait() {
        let mut facts = installed();
        facts.controller = Controller::Down;
        assert_eq!(steps(&facts)[0], Step::Release);
        assert!(text(&facts).contains("kubectl -n berth-system get pods"));
    }

    #[test]
    fn helm_and_gitops_are_named() {
        let mut facts = installed();
        let helm = Manager::Helm("berth".to_owned(), "berth-system".to_owned());
        facts.objects.push(object("ClusterRole", Some(helm)));
        assert_eq!(steps(&facts).last(), Some(&Step::LeaveToHelm));
        assert!(text(&facts).contains("helm uninstall berth --namespace berth-system"));
        facts.objects = vec![object("ClusterRole", Some(Manager::GitOps("Flux")))];
        assert_eq!(steps(&facts).last(), Some(&Step::Delete));
        assert!(text(&facts).contains("Flux applies some of these objects"));
    }

    #[test]
    fn a_node_that_is_left_is_named() {
        let facts = installed();
        let left = BTreeSet::from(["n1".to_owned()]);
        let text = render(&facts, &steps(&facts), &left);
        assert!(text.contains("Node n1 is not waited for"), "{text}");
    }
}
