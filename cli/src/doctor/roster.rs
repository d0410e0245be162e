//! Members of the pools, with the reports of their agents.

use std::collections::BTreeMap;

use berth_api::PoolName;
use berth_api::decode::Decoded;
use berth_api::node::{BootcNode, BootcNodeStatus};
use berth_api::pool::BootcNodePool;
use berth_core::controller::view::NodeView;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use crate::members::Roster;
use crate::snapshot::Snapshot;

/// Seconds that the agent of a new member may take for its first report. By the local clock and the API server's.
const GRACE: i64 = 60;

/// A member of a pool.
#[derive(Debug, Clone)]
pub(crate) struct Member<'a> {
    pub(crate) name: String,
    pub(crate) pool: &'a BootcNodePool,
    bootc: Option<&'a Decoded<BootcNode>>,
    /// True if the node, its BootcNode or its pool was created a short time ago.
    pub(crate) is_new: bool,
}

impl<'a> Member<'a> {
    /// Returns the report of the node's agent; `None` if the agent has not reported yet.
    pub(crate) fn status(&self) -> Option<&'a BootcNodeStatus> {
        let bootc = self.bootc?;
        let status = bootc.status.as_ref().filter(|status| status.agent_version.is_some());
        // A status that cannot be read is a report too; another check names it.
        status.or(bootc.status.as_ref().filter(|_| bootc.error().is_some()))
    }

    pub(crate) fn pool_name(&self) -> String {
        self.pool.name_any()
    }
}

/// Returns the members of all pools, sorted by pool and name.
pub(crate) fn members(snapshot: &Snapshot, now: Timestamp) -> Vec<Member<'_>> {
    let roster = Roster::of(snapshot, now);
    let by_name = Objects {
        nodes: snapshot
            .nodes
            .iter()
            .map(|node| (node.name(), node.view.as_ref()))
            .collect(),
        bootcs: snapshot
            .bootc_nodes
            .iter()
            .map(|bootc| (bootc.name_any(), bootc))
            .collect(),
    };
    let mut found = vec![];
    for pool in &snapshot.pools {
        let name = PoolName::new(pool.name_any());
        let names = roster.world.membership.members(&name);
        found.extend(names.filter_map(|name| by_name.member(pool, name.as_str(), now)));
    }
    found.sort_by_key(|member| (member.pool_name(), member.name.clone()));
    found
}

struct Objects<'a> {
    nodes: BTreeMap<&'a str, &'a NodeView>,
    bootcs: BTreeMap<String, &'a Decoded<BootcNode>>,
}

impl<'a> Objects<'a> {
    fn member(&self, pool: &'a BootcNodePool, name: &str, now: Timestamp) -> Option<Member<'a>> {
        let node = *self.nodes.get(name)?;
        let bootc = self.bootcs.get(name).copied();
        let times = [
            created(&pool.metadata),
            Some(node.created),
            bootc.and_then(|bootc| created(&bootc.metadata)),
        ];
        Some(Member {
            name: name.to_owned(),
            pool,
            bootc,
            is_new: times.into_iter().flatten().any(|time| now.as_second() - time < GRACE),
        })
    }
}

/// Returns the creation time of an object, in seconds since 1970.
fn created(metadata: &ObjectMeta) -> Option<i64> {
    metadata.creation_timestamp.as_ref().map(|time| time.0.as_second())
}
