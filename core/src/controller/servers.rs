//! Whether a control plane node may go down: only while the cluster has another API server that answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use berth_api::waves::is_control_plane;
use berth_api::{NodeUid, keys};

use crate::Moment;
use crate::controller::view::NodeView;

/// How long an answer counts. A server that has not said so since then is not ready.
const FRESH: Duration = Duration::from_secs(15);

/// What the servers have said.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    /// The servers were listed at least once since they were asked for.
    pub listed: bool,
    /// Each server of the latest list, and when it last said that it is ready.
    pub servers: BTreeMap<SocketAddr, Option<Moment>>,
}

impl Answers {
    /// Whether the server has said lately that it is ready.
    pub fn is_ready(&self, server: &SocketAddr, now: Moment) -> bool {
        let said = self.servers.get(server).copied().flatten();
        said.is_some_and(|at| now.since(at) < FRESH)
    }
}

fn addresses(node: &NodeView) -> impl Iterator<Item = IpAddr> {
    node.addresses.iter().filter_map(|a| a.parse().ok())
}

/// Whether a control plane node runs the only API server that is there, while the cluster has more than one. Pure.
///
/// A server leaves the list when it stops, so the list alone does not tell how many there are: every other control
/// plane node that is not excluded is taken to have one. A node at whose address none is listed runs none, unless
/// there are servers at addresses that no node has; then one of these may be its own.
///
/// `busy`: nodes that are about to go down themselves, so that a server there does not count however well it answers.
pub fn alone<'a>(
    node: &NodeView,
    nodes: impl Iterator<Item = &'a NodeView>,
    answers: &Answers,
    busy: impl Fn(&NodeUid) -> bool,
    now: Moment,
) -> bool {
    if !answers.listed {
        return true;
    }
    let own: BTreeSet<IpAddr> = addresses(node).collect();
    let mut placed = own.clone();
    let (mut other_members, mut going) = (false, BTreeSet::new());
    for other in nodes.filter(|other| other.uid != node.uid) {
        placed.extend(addresses(other));
        if busy(&other.uid) {
            going.extend(addresses(other));
        }
        other_members |= is_control_plane(&other.labels) && !other.labels.contains_key(keys::LABEL_EXCLUDE);
    }
    let runs_one = answers.servers.keys().any(|s| own.contains(&s.ip()));
    if !runs_one && !is_control_plane(&node.labels) {
        return false;
    }
    let others = || answers.servers.keys().filter(|s| !own.contains(&s.ip()));
    let counts = |s: &&SocketAddr| !going.contains(&s.ip()) && answers.is_ready(s, now);
    let ready = |wanted: bool| {
        others()
            .filter(|s| placed.contains(&s.ip()) == wanted)
            .filter(counts)
            .count()
    };
    let (on_nodes, nowhere) = (ready(true), ready(false));
    if runs_one {
        return (others().next().is_some() || other_members) && on_nodes + nowhere == 0;
    }
    let unplaced = others().filter(|s| !placed.contains(&s.ip())).count();
    unplaced > 0 && answers.servers.len() > 1 && on_nodes + nowhere.saturating_sub(1) == 0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, address: &str, labels: &[&str]) -> NodeView {
        let labels: BTreeMap<_, _> = labels.iter().map(|l| ((*l).to_owned(), String::new())).collect();
        let object = json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "status": {"addresses": [
                {"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address},
            ]},
        });
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

    /// Two control plane nodes, and a third node.
    fn cluster() -> Vec<NodeView> {
        let control = |name, address| node(name, address, &[CONTROL_PLANE]);
        vec![
            control("a", "10.0.0.1"),
            control("b", "10.0.0.2"),
            node("c", "10.0.0.3", &[]),
        ]
    }

    /// Servers, each with how many seconds ago it said that it is ready.
    fn judge(nodes: &[NodeView], servers: &[(&str, Option<u64>)]) -> Vec<bool> {
        let now = Moment::default() + Duration::from_secs(3600);
        let servers = servers.iter().map(|(server, age)| {
            (
                server.parse().unwrap(),
                age.map(|age| Moment::after(Duration::from_secs(3600 - age))),
            )
        });
        let answers = Answers {
            listed: true,
            servers: servers.collect(),
        };
        nodes
            .iter()
            .map(|node| alone(node, nodes.iter(), &answers, |_| false, now))
            .collect()
    }

    const A: &str = "10.0.0.1:6443";
    const B: &str = "10.0.0.2:6443";

    #[test]
    fn a_server_waits_for_another_that_answers() {
        assert_eq!(judge(&cluster(), &[(A, Some(1)), (B, Some(1))]), [false, false, false]);
        assert_eq!(judge(&cluster(), &[(A, Some(1)), (B, Some(14))]), [false, false, false]);
        assert_eq!(judge(&cluster(), &[(A, Some(1)), (B, Some(15))]), [true, false, false]);
        assert_eq!(judge(&cluster(), &[(A, Some(1)), (B, None)]), [true, false, false]);
        assert_eq!(judge(&cluster(), &[(A, None), (B, None)]), [true, true, false]);
    }

    #[test]
    fn a_server_that_has_left_the_list_is_missed_by_its_node() {
        assert_eq!(judge(&cluster(), &[(A, Some(1))]), [true, false, false]);
        let mut excluded = cluster();
        excluded[1].labels.insert(keys::LABEL_EXCLUDE.to_owned(), String::new());
        assert_eq!(judge(&excluded, &[(A, Some(1))]), [false, false, false]);
    }

    #[test]
    fn a_server_on_a_node_that_is_about_to_go_down_does_not_count() {
        let (nodes, now) = (cluster(), Moment::default());
        let servers = [A, B].map(|server| (server.parse().unwrap(), Some(now)));
        let answers = Answers {
            listed: true,
            servers: servers.into(),
        };
        let with = |busy: &str| alone(&nodes[0], nodes.iter(), &answers, |uid| uid.as_str() == busy, now);
        assert!(with("b") && !with("a") && !with("c"));
    }

    #[test]
    fn the_only_server_there_is_waits_for_nobody() {
        let single = [node("a", "10.0.0.1", &[CONTROL_PLANE]), node("c", "10.0.0.3", &[])];
        assert_eq!(judge(&single, &[(A, Some(1))]), [false, false]);
        assert_eq!(judge(&single, &[(A, None)]), [false, false]);
        assert_eq!(judge(&cluster(), &[]), [false, false, false], "nobody lists any");
    }

    #[test]
    fn one_that_may_be_its_own_does_not_count_for_a_node() {
        let (x, y) = ("192.0.2.1:6443", "192.0.2.2:6443");
        assert_eq!(judge(&cluster(), &[(x, Some(1)), (y, Some(1))]), [false, false, false]);
        assert_eq!(judge(&cluster(), &[(x, Some(1)), (y, None)]), [true, true, false]);
        assert_eq!(
            judge(&cluster(), &[(x, Some(1))]),
            [false, false, false],
            "one address for all of them"
        );
        assert_eq!(judge(&cluster(), &[(A, Some(1)), (x, Some(1))]), [false, false, false]);
        assert_eq!(judge(&cluster(), &[(A, None), (x, Some(1))]), [false, true, false]);
    }

    #[test]
    fn nobody_goes_before_the_servers_are_known() {
        let nodes = cluster();
        assert!(alone(
            &nodes[0],
            nodes.iter(),
            &Answers::default(),
            |_| false,
            Moment::default()
        ));
    }
}
