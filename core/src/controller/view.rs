//! Small projections of watched objects. Only the projections are kept in memory, so that a cluster of thousands of
//! nodes fits into a few tens of megabytes.

use std::collections::BTreeMap;

use berth_api::berth::{Berth, BerthState, Holding};
use berth_api::condition::{self, CommonReason};
use berth_api::decode::Decoded;
use berth_api::fleet::BootcFleet;
use berth_api::node::{BootcNode, BootcNodeSpec, BootcNodeStatus};
use berth_api::platform::{Machine, Platform, Variant};
use berth_api::pool::BootcNodePool;
use berth_api::{NodeName, NodeUid, PoolName, keys};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta};

use crate::controller::usage::UseKind;
use crate::finding::{self, Finding, Subject};

mod report;

pub use report::{BadTurn, BootImageNote, Failing, FirstBoot, Host, Images, Measured, Pull, Report};

/// How soon the controller must handle a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The change can wait, so that one pass handles several changes together.
    Later,
    /// The change must be handled as soon as the pause between two passes is over.
    Soon,
    /// The change must be handled immediately.
    Now,
}

/// A projection that can be compared with an earlier projection of the same object.
pub trait View: PartialEq {
    /// True if the change from the earlier projection `other` to `self` may change a plan.
    fn differs(&self, other: &Self) -> bool;

    /// Returns the urgency of the change from `other` to `self`; `None` if the change does not matter.
    fn urgency(&self, other: &Self) -> Option<Urgency> {
        self.differs(other).then_some(Urgency::Soon)
    }

    /// True if an agent has written since `other`: a report, or a renewal of its berth.
    fn has_spoken(&self, other: &Self) -> bool {
        self.differs(other)
    }
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Name of the Node.
    pub name: NodeName,
    /// UID of the Node.
    pub uid: NodeUid,
    /// Labels of the Node.
    pub labels: BTreeMap<String, String>,
    /// True if the kubelet reports Ready. False if the Node cannot be decoded.
    pub ready: bool,
    /// `spec.unschedulable`: true if the node is cordoned, by Berth or others.
    pub unschedulable: bool,
    /// True if the Node has Berth's cordon annotation.
    pub our_cordon: bool,
    /// Creation time by the API server's clock, in seconds since 1970.
    pub created: i64,
    /// Platform of the machine as the Node reports it. The agent's report may add details.
    pub machine: Machine,
    /// `InternalIP` addresses of the Node.
    pub addresses: Vec<String>,
    /// Boot ID and heartbeat of the kubelet.
    pub kubelet: KubeletReport,
    /// Why the Node cannot be decoded completely.
    pub error: Option<Box<str>>,
}

/// Parts of a Node's status that only show whether the node's reports agree. No decision depends on them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeletReport {
    /// Boot ID of the kernel that the kubelet runs on.
    pub boot_id: Option<Box<str>>,
    /// Time of the kubelet's last report, by the node's clock.
    pub heartbeat: Option<Timestamp>,
}

impl KubeletReport {
    fn of(status: Option<&NodeStatus>) -> Self {
        let boot_id = status.and_then(|s| Some(s.node_info.as_ref()?.boot_id.as_str()));
        let conditions = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
        let mut ready = conditions.filter(|c| c.type_ == "Ready");
        Self {
            boot_id: boot_id.filter(|id| !id.is_empty()).map(Box::from),
            heartbeat: ready.find_map(|c| Some(c.last_heartbeat_time.as_ref()?.0)),
        }
    }
}

/// A BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub struct BootcNodeView {
    /// UID of the BootcNode, which is not the Node's.
    pub uid: String,
    /// Generation of the spec.
    pub generation: Option<i64>,
    /// True if the BootcNode is being deleted.
    pub deleting: bool,
    /// Finalizers of the BootcNode.
    pub finalizers: Vec<String>,
    /// UID of the Node that owns the BootcNode.
    pub owner: Option<String>,
    /// Pool label of the BootcNode.
    pub pool_label: Option<String>,
    /// Content of the BootcNode, or why its spec cannot be decoded.
    pub content: Result<BootcNodeContent, String>,
}

/// Spec and pruned status of a BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub struct BootcNodeContent {
    /// Spec, as the controller published it.
    pub spec: BootcNodeSpec,
    /// Report of the agent; empty if the status cannot be decoded.
    pub report: Report,
    /// Why the status cannot be decoded.
    pub status_error: Option<Box<str>>,
    /// Time of the agent's last heartbeat, by the node's clock.
    pub heartbeat: Option<Timestamp>,
    /// Conditions that the controller, not the agent, writes to the BootcNode's status.
    pub told: Vec<Condition>,
}

impl BootcNodeContent {
    fn of(
        metadata: &ObjectMeta,
        spec: BootcNodeSpec,
        mut status: BootcNodeStatus,
        status_error: Option<String>,
    ) -> Self {
        let heartbeat = status.heartbeat_time.as_ref().map(|t| t.0);
        let told = status
            .conditions
            .extract_if(.., |c| condition::node::OF_CONTROLLER.contains(&c.type_.as_str()));
        let told = told.map(report::bounded).collect();
        let name = metadata.name.as_deref().unwrap_or_default();
        let node = Subject::Node(name.into(), spec.pool_name.as_str().into());
        Self {
            spec,
            report: Report::of(&node, status),
            status_error: status_error.map(Box::from),
            heartbeat,
            told,
        }
    }

    /// Returns the problem of this node: the status cannot be decoded, or else the problem that the agent reports.
    pub fn trouble(&self, node: &NodeName) -> Option<Finding> {
        match &self.status_error {
            Some(error) => {
                let subject = Subject::Node(node.clone(), self.spec.pool_name.as_str().into());
                Some(finding::node::unreadable_status(subject, error))
            }
            None => self.report.degraded.clone(),
        }
    }

    /// Returns the reason of [`Self::trouble`]; empty without a problem.
    pub fn trouble_reason(&self) -> Option<&str> {
        match &self.status_error {
            Some(_) => Some(CommonReason::UnreadableObjects.as_str()),
            None => self.report.degraded.as_ref().map(|found| &*found.reason),
        }
    }

    /// True if the controller has set the condition `RebootTimedOut` to True.
    fn has_timed_out(&self) -> bool {
        condition::is_true(&self.told, condition::node::REBOOT_TIMED_OUT)
    }
}

/// A berth's Lease.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseView {
    /// The Lease, without fields that are not needed to write it back.
    pub lease: Lease,
    /// Pool in the Lease's label.
    pub pool: PoolName,
    /// The berth, or why it cannot be read.
    pub berth: Result<Berth, String>,
}

/// A pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolView {
    /// Name of the pool.
    pub name: PoolName,
    /// The pruned BootcNodePool, or why it cannot be read.
    pub object: Result<BootcNodePool, String>,
}

/// The BootcFleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetView {
    /// The pruned BootcFleet, or why it cannot be read.
    pub object: Result<BootcFleet, String>,
}

impl NodeView {
    pub(super) fn down(&self) -> Option<UseKind> {
        UseKind::down(self.ready, self.unschedulable, self.our_cordon)
    }

    /// Returns the node's platform. `host`: the node's BootcNode. The report in it may add the CPU's variant.
    pub fn platform<'a>(&'a self, host: Option<&'a BootcNodeView>) -> Platform<'a> {
        let report = host.and_then(BootcNodeView::report);
        // A report with another Node UID is from an earlier machine with the same name.
        let report = report.filter(|report| report.node_uid.as_deref() == Some(self.uid.as_str()));
        let has_reported = report.is_some_and(|report| report.agent_version.is_some());
        let variant = report.and_then(|report| report.host.platform_variant.as_deref());
        self.machine.platform(Variant::reported(has_reported, variant))
    }
}

impl View for NodeView {
    fn differs(&self, other: &Self) -> bool {
        // A heartbeat of the kubelet alone changes no plan.
        let mut other = other.clone();
        other.kubelet.heartbeat = self.kubelet.heartbeat;
        *self != other
    }

    /// True if the kubelet has written its status.
    fn has_spoken(&self, other: &Self) -> bool {
        self.kubelet != other.kubelet
    }
}

impl View for BootcNodeView {
    fn differs(&self, other: &Self) -> bool {
        let content = match (&self.content, &other.content) {
            // The condition `Waiting` does not affect plans.
            (Ok(a), Ok(b)) => {
                (&a.spec, &a.report, a.has_timed_out()) != (&b.spec, &b.report, b.has_timed_out())
                    || a.status_error != b.status_error
            }
            (a, b) => a != b,
        };
        content
            || (&self.uid, self.generation, self.deleting) != (&other.uid, other.generation, other.deleting)
            || self.finalizers != other.finalizers
            || (&self.owner, &self.pool_label) != (&other.owner, &other.pool_label)
    }

    fn has_spoken(&self, other: &Self) -> bool {
        match (&self.content, &other.content) {
            (Ok(a), Ok(b)) => (&a.report, a.heartbeat, &a.status_error) != (&b.report, b.heartbeat, &b.status_error),
            (a, b) => a != b,
        }
    }
}

impl View for LeaseView {
    fn differs(&self, other: &Self) -> bool {
        self.berth != other.berth || self.lease.metadata.uid != other.lease.metadata.uid
    }

    /// A berth that was closed is urgent, because all nodes in the queue wait for it. Other changes can wait.
    fn urgency(&self, other: &Self) -> Option<Urgency> {
        let given_back = self.is_closed() && !other.is_closed();
        self.differs(other)
            .then_some(if given_back { Urgency::Now } else { Urgency::Later })
    }

    /// True if the holder has written. A new epoch or a new request to give the berth back, both written by the
    /// controller, do not count.
    fn has_spoken(&self, other: &Self) -> bool {
        let berth = match (&self.berth, &other.berth) {
            (Ok(a), Ok(b)) => holders_part(a) != holders_part(b),
            (a, b) => a != b,
        };
        berth || self.renew_time() != other.renew_time()
    }
}

/// Returns the berth without the epoch and without the request to give the berth back. The controller writes these
/// while a node holds the berth.
fn holders_part(berth: &Berth) -> Berth {
    let berth = berth.stamped(0);
    berth.revoked(None).unwrap_or(berth)
}

impl View for PoolView {
    fn differs(&self, other: &Self) -> bool {
        match (&self.object, &other.object) {
            (Ok(a), Ok(b)) => {
                a.spec != b.spec
                    || a.status != b.status
                    || a.metadata.uid != b.metadata.uid
                    || a.metadata.finalizers != b.metadata.finalizers
                    || a.metadata.annotations != b.metadata.annotations
                    || a.metadata.deletion_timestamp != b.metadata.deletion_timestamp
            }
            (a, b) => a != b,
        }
    }
}

impl View for FleetView {
    fn differs(&self, other: &Self) -> bool {
        match (&self.object, &other.object) {
            (Ok(a), Ok(b)) => {
                (&a.spec, &a.status, a.metadata.generation) != (&b.spec, &b.status, b.metadata.generation)
                    || a.metadata.uid != b.metadata.uid
                    || a.metadata.annotations != b.metadata.annotations
            }
            (a, b) => a != b,
        }
    }
}

impl FleetView {
    /// Returns why the BootcFleet cannot be read.
    pub fn error(&self) -> Option<&str> {
        self.object.as_ref().err().map(String::as_str)
    }

    /// Projects a BootcFleet. Keeps only the annotation that Berth uses.
    pub fn of(object: Decoded<BootcFleet>) -> Self {
        let object = object.whole().map(|mut fleet| {
            fleet.metadata.managed_fields = None;
            if let Some(annotations) = &mut fleet.metadata.annotations {
                annotations.retain(|key, _| key == keys::ANNOTATION_DISMISSED);
            }
            fleet
        });
        Self { object }
    }
}

impl NodeView {
    /// Projects a Node. A Node that cannot be decoded is not Ready.
    pub fn of(node: &Decoded<Node>) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let mut conditions = status.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
        let ready = conditions.any(|c| c.type_ == "Ready" && c.status == "True");
        let info = status.and_then(|s| s.node_info.as_ref());
        let addresses = status.and_then(|s| s.addresses.as_ref()).into_iter().flatten();
        Self {
            name: NodeName::new(node.metadata.name.clone().unwrap_or_default()),
            uid: NodeUid::new(node.metadata.uid.clone().unwrap_or_default()),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            ready: ready && node.error().is_none(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or_default(),
            our_cordon: has_annotation(&node.metadata, keys::ANNOTATION_CORDON),
            created: node
                .metadata
                .creation_timestamp
                .as_ref()
                .map_or(0, |time| time.0.as_second()),
            machine: Machine::new(
                info.map(|i| i.architecture.as_str()).unwrap_or_default(),
                node.metadata.labels.as_ref().unwrap_or(&BTreeMap::new()),
            ),
            addresses: addresses
                .filter(|a| a.type_ == "InternalIP")
                .map(|a| a.address.clone())
                .collect(),
            kubelet: KubeletReport::of(status),
            error: node.error().map(Box::from),
        }
    }
}

fn has_annotation(metadata: &ObjectMeta, key: &str) -> bool {
    metadata.annotations.as_ref().is_some_and(|a| a.contains_key(key))
}

impl BootcNodeView {
    /// Projects a BootcNode.
    pub fn of(object: Decoded<BootcNode>) -> Self {
        let Decoded {
            object: BootcNode { metadata, spec, status },
            spec_error,
            status_error,
        } = object;
        let content = match spec_error {
            None => Ok(BootcNodeContent::of(
                &metadata,
                spec,
                status.unwrap_or_default(),
                status_error,
            )),
            Some(error) => Err(error),
        };
        let mut owners = metadata.owner_references.into_iter().flatten();
        let owner = owners.find(|o| o.kind == "Node").map(|o| o.uid);
        Self {
            uid: metadata.uid.unwrap_or_default(),
            generation: metadata.generation,
            deleting: metadata.deletion_timestamp.is_some(),
            finalizers: metadata.finalizers.unwrap_or_default(),
            owner,
            pool_label: metadata.labels.and_then(|mut l| l.remove(keys::LABEL_POOL)),
            content,
        }
    }

    /// Returns why a part of the object cannot be decoded.
    pub fn error(&self) -> Option<&str> {
        match &self.content {
            Ok(content) => content.status_error.as_deref(),
            Err(error) => Some(error),
        }
    }

    /// Returns the content; `None` if a part of the object cannot be decoded.
    pub fn readable(&self) -> Option<&BootcNodeContent> {
        self.content
            .as_ref()
            .ok()
            .filter(|content| content.status_error.is_none())
    }

    /// Returns the spec; `None` if it cannot be decoded.
    pub fn spec(&self) -> Option<&BootcNodeSpec> {
        self.content.as_ref().ok().map(|c| &c.spec)
    }

    /// Returns the report; `None` if the spec cannot be decoded.
    pub fn report(&self) -> Option<&Report> {
        self.content.as_ref().ok().map(|c| &c.report)
    }

    /// True if the controller has set the condition `RebootTimedOut` to True.
    pub fn has_timed_out(&self) -> bool {
        self.content.as_ref().is_ok_and(BootcNodeContent::has_timed_out)
    }

    /// True if the agent's report is about the current spec and comes from the Node in that spec.
    pub fn is_observed(&self) -> bool {
        self.content.as_ref().is_ok_and(|c| {
            self.generation.is_some()
                && c.report.observed_generation >= self.generation
                && c.report.node_uid.as_deref() == Some(c.spec.node_uid.as_str())
        })
    }

    /// True if the agent reports that Berth's changes on the node are undone.
    pub fn is_released(&self) -> bool {
        let report = self.report();
        report
            .is_some_and(|r| r.released && r.observed_generation.is_some() && r.observed_generation == self.generation)
    }
}

impl LeaseView {
    /// Projects a Lease that carries the pool label.
    pub fn of(lease: impl Into<Decoded<Lease>>) -> Self {
        let lease = lease.into();
        let pool = lease.metadata.labels.as_ref().and_then(|l| l.get(keys::LABEL_POOL));
        let pool = PoolName::new(pool.cloned().unwrap_or_default());
        let berth = lease.berth().map_err(|e| e.to_string());
        Self {
            lease: lease.object,
            pool,
            berth,
        }
    }

    /// Projects a Lease that has the name of a berth but no pool label, as if it had the label of `pool`.
    pub fn without_label(mut lease: Decoded<Lease>, pool: &PoolName) -> Self {
        let labels = lease.metadata.labels.get_or_insert_default();
        labels.insert(keys::LABEL_POOL.to_owned(), pool.to_string());
        Self::of(lease)
    }

    /// Returns why the berth cannot be read.
    pub fn error(&self) -> Option<&str> {
        self.berth.as_ref().err().map(String::as_str)
    }

    fn is_closed(&self) -> bool {
        let berth = self.berth.as_ref();
        berth.is_ok_and(|berth| matches!(berth.state, BerthState::Closed(_)))
    }

    fn renew_time(&self) -> Option<&MicroTime> {
        self.lease.spec.as_ref()?.renew_time.as_ref()
    }

    /// Returns the state of the held berth; `None` if it is not held or cannot be read.
    pub fn holding(&self) -> Option<&Holding> {
        self.berth.as_ref().ok()?.holding()
    }

    /// Returns the name of the Lease.
    pub fn name(&self) -> &str {
        self.lease.metadata.name.as_deref().unwrap_or_default()
    }
}

impl PoolView {
    /// Returns why the pool cannot be read.
    pub fn error(&self) -> Option<&str> {
        self.object.as_ref().err().map(String::as_str)
    }

    /// Projects a pool.
    pub fn of(object: Decoded<BootcNodePool>) -> Self {
        let name = PoolName::new(object.metadata.name.clone().unwrap_or_default());
        let object = object.whole().map(|mut pool| {
            pool.metadata.managed_fields = None;
            if let Some(annotations) = &mut pool.metadata.annotations {
                annotations.retain(|key, _| key == keys::ANNOTATION_POLL_REQUESTED_AT);
            }
            pool
        });
        Self { name, object }
    }
}

/// Returns the UID of the Node that a BootcNode was created for, from its spec or otherwise from its owner.
pub fn made_for(host: &BootcNodeView) -> Option<&str> {
    let published = host.spec().map(|s| s.node_uid.as_str());
    let uid = published.filter(|uid| !uid.is_empty());
    uid.or(host.owner.as_deref())
}

/// True if the Node that the BootcNode was created for is gone. A newer Node may have taken over its name.
pub fn is_stale(host: &BootcNodeView, node: Option<&NodeView>) -> bool {
    match (made_for(host), node) {
        (Some(uid), Some(node)) => uid != node.uid.as_str(),
        (_, None) => true,
        (None, Some(_)) => false,
    }
}

/// True if the BootcNode asks its agent to undo Berth's changes: the BootcNode names no pool, or is being deleted.
pub fn is_leaving(host: &BootcNodeView) -> bool {
    host.deleting || host.spec().is_some_and(|s| s.pool_name.is_empty())
}

#[cfg(test)]
mod tests;
