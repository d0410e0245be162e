//! Views of objects: small projections, made when an object arrives, so that a cluster of thousands of nodes fits into
//! a few tens of megabytes.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{self, Berth, BerthState};
use berth_api::boot_image::NodeBootImage;
use berth_api::condition::Why;
use berth_api::firstboot::FirstbootOutcome;
use berth_api::fleet::BootcFleet;
use berth_api::node::{BootcNode, BootcNodeSpec, NodeDeployment, Phase};
use berth_api::platform::{Machine, Platform, Variant};
use berth_api::pool::BootcNodePool;
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName, condition, keys};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::core::DeserializeGuard;

use crate::agent::reason::Reason;
use crate::controller::plan::How;

/// Urgency of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum News {
    /// Together with others: nobody waits for it.
    Later,
    /// To be looked at as soon as the rest after the last pass is over.
    Soon,
    /// To be looked at immediately.
    Now,
}

/// A projection, and how two of them differ.
pub trait View: PartialEq {
    /// Says whether a plan made from `other` could look different.
    fn differs(&self, other: &Self) -> bool;

    /// Urgency of the difference, if there is one.
    fn news(&self, other: &Self) -> Option<News> {
        self.differs(other).then_some(News::Soon)
    }

    /// Says whether somebody other than the controller has written in between: an agent's report or renewal.
    fn spoken(&self, other: &Self) -> bool {
        self.differs(other)
    }
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeView {
    /// Its name.
    pub name: NodeName,
    /// Its UID.
    pub uid: NodeUid,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The kubelet says Ready.
    pub ready: bool,
    /// `spec.unschedulable`, by anyone's doing.
    pub unschedulable: bool,
    /// True if it carries our cordon annotation.
    pub our_cordon: bool,
    /// Time of its creation, by the API server's clock, in seconds since 1970.
    pub created: i64,
    /// Its platform, without what its agent reports.
    pub machine: Machine,
    /// Its `InternalIP` addresses.
    pub addresses: Vec<String>,
}

/// A BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub struct BootcNodeView {
    /// Its own UID.
    pub uid: String,
    /// Generation of its spec.
    pub generation: Option<i64>,
    /// True if it is being deleted.
    pub deleting: bool,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// UID of the Node that owns it.
    pub owner: Option<String>,
    /// Its pool label.
    pub pool_label: Option<String>,
    /// Content, or the error of reading it.
    pub content: Result<HostContent, String>,
}

/// Spec and pruned status of a BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub struct HostContent {
    /// Spec, as the controller published it.
    pub spec: BootcNodeSpec,
    /// Report of the agent.
    pub report: Report,
    /// The agent's pulse; changes without meaning anything else.
    pub heartbeat: Option<Timestamp>,
    /// The conditions that the controller itself has written, and so no part of the report.
    pub told: Vec<Condition>,
}

impl HostContent {
    /// Says whether `RebootTimedOut` is True.
    fn reboot_timed_out(&self) -> bool {
        condition::is_true(&self.told, condition::node::REBOOT_TIMED_OUT)
    }
}

/// The parts of an agent's report that the controller needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// Generation that it speaks of.
    pub observed_generation: Option<i64>,
    /// UID of the Node that the agent runs on.
    pub node_uid: Option<String>,
    /// Digest that is booted.
    pub booted: Option<Digest>,
    /// Digest that is staged.
    pub staged: Option<Digest>,
    /// The staged image is locked.
    pub locked: bool,
    /// Boot ID of the host.
    pub boot_id: Option<BootId>,
    /// The host pulls an image.
    pub pulling: bool,
    /// The agent pulls nothing before something is repaired, or another image is published.
    pub blocked: bool,
    /// What Berth did on the node is undone.
    pub released: bool,
    /// Phase of the node, for counting and for people. No decision reads it.
    pub phase: Option<Phase>,
    /// Start of that phase, by the node's clock.
    pub phase_start: Option<Timestamp>,
    /// Version of the agent.
    pub agent_version: Option<String>,
    /// Most demanding variant that the CPU runs.
    pub platform_variant: Option<String>,
    /// The agent could not pull or stage, and tries again later.
    pub failure: Option<Failing>,
    /// The last turn that ended badly.
    pub last_turn: Option<BadTurn>,
    /// Digests that failed.
    pub failed: Vec<Digest>,
    /// `UpdatePrepared` is True.
    pub prepared: bool,
    /// `NodeDegraded` is True: reason and message.
    pub degraded: Option<(String, String)>,
    /// The agent says that the API server does not guard the berths.
    pub unguarded: bool,
    /// The retry token that the agent obeyed last.
    pub retry_token: Option<String>,
    /// Images that the node was deployed to.
    pub deployments: Vec<NodeDeployment>,
    /// Length of the last pull there.
    pub staging: Option<Duration>,
    /// End of that pull, by the node's clock.
    pub staging_ended: Option<Timestamp>,
    /// Length of the last drain there.
    pub drain: Option<Duration>,
    /// Length of the last reboot there.
    pub reboot: Option<Duration>,
    /// The host's clock is synchronised.
    pub clock_synchronized: bool,
    /// The machine's note of the image that it was installed from.
    pub boot_image: BootImageNote,
    /// The machine's first boot, where it was checked.
    pub firstboot: Option<FirstBoot>,
}

/// A machine's note of its boot image. All is empty if the agent has not looked yet, or there is no note.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BootImageNote {
    /// Version of the image.
    pub version: Option<String>,
    /// Time when the machine was provisioned, by its own clock, in seconds since 1970.
    pub provisioned: Option<i64>,
    /// Why the note cannot be read.
    pub error: Option<String>,
}

impl BootImageNote {
    fn of(image: NodeBootImage) -> Self {
        Self {
            version: image.version,
            provisioned: image.provisioned_time.map(|time| time.0.as_second()),
            error: image.error,
        }
    }
}

/// A machine's first boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstBoot {
    /// Outcome.
    pub outcome: FirstbootOutcome,
    /// The kubelet was held back at first.
    pub held: bool,
}

/// A turn with a berth that did not end in an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadTurn {
    /// Outcome of the turn.
    pub outcome: String,
    /// Details: which pod, which budget, which inhibitor.
    pub message: String,
    /// Target of that turn.
    pub digest: Digest,
    /// Number of turns for that digest that ended like this.
    pub attempts: u32,
}

/// A failure to pull or stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failing {
    /// The digest that it is about.
    pub digest: Option<Digest>,
    /// Number of tries.
    pub attempts: u32,
}

/// A berth's Lease.
#[derive(Debug, Clone, PartialEq)]
pub struct LeaseView {
    /// The Lease without what is not needed to write it back.
    pub lease: Lease,
    /// The pool that its label names.
    pub pool: PoolName,
    /// The berth that it is, or why it is none.
    pub berth: Result<Berth, String>,
}

/// A pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolView {
    /// Its name.
    pub name: PoolName,
    /// The object, pruned, or why it cannot be read.
    pub object: Result<BootcNodePool, String>,
}

/// The BootcFleet.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetView {
    /// The object, pruned, or why it cannot be read.
    pub object: Result<BootcFleet, String>,
}

impl NodeView {
    /// Way in which the node is unavailable (U), if it is.
    pub(super) fn down(&self) -> Option<How> {
        How::down(self.ready, self.unschedulable, self.our_cordon)
    }

    /// Its platform. `host`: its BootcNode.
    pub fn platform<'a>(&'a self, host: Option<&'a BootcNodeView>) -> Platform<'a> {
        let report = host.and_then(BootcNodeView::report);
        // A report from another Node of this name is about another machine.
        let report = report.filter(|report| report.node_uid.as_deref() == Some(self.uid.as_str()));
        let has_reported = report.is_some_and(|report| report.agent_version.is_some());
        let variant = report.and_then(|report| report.platform_variant.as_deref());
        self.machine.platform(Variant::reported(has_reported, variant))
    }
}

impl View for NodeView {
    fn differs(&self, other: &Self) -> bool {
        self != other
    }
}

impl View for BootcNodeView {
    fn differs(&self, other: &Self) -> bool {
        let content = match (&self.content, &other.content) {
            // What `Waiting` says is for people alone.
            (Ok(a), Ok(b)) => (&a.spec, &a.report, a.reboot_timed_out()) != (&b.spec, &b.report, b.reboot_timed_out()),
            (a, b) => a != b,
        };
        let envelope = |v: &Self| {
            let finalizers = v.finalizers.clone();
            (v.uid.clone(), v.generation, v.deleting, finalizers)
        };
        content
            || envelope(self) != envelope(other)
            || (&self.owner, &self.pool_label) != (&other.owner, &other.pool_label)
    }

    fn spoken(&self, other: &Self) -> bool {
        match (&self.content, &other.content) {
            (Ok(a), Ok(b)) => a.report != b.report || a.heartbeat != b.heartbeat,
            (a, b) => a != b,
        }
    }
}

impl View for LeaseView {
    fn differs(&self, other: &Self) -> bool {
        self.berth != other.berth || self.lease.metadata.uid != other.lease.metadata.uid
    }

    /// Urgency of the change. The next node waits for a berth that is given back, and all nodes behind it. Any other
    /// change of a berth can wait.
    fn news(&self, other: &Self) -> Option<News> {
        let is_closed = |view: &Self| {
            view.berth
                .as_ref()
                .is_ok_and(|b| matches!(b.state, BerthState::Closed(_)))
        };
        let given_back = is_closed(self) && !is_closed(other);
        self.differs(other)
            .then_some(if given_back { News::Now } else { News::Later })
    }

    /// Says whether the holder has written. The controller's writes to a held berth say nothing about the holder.
    fn spoken(&self, other: &Self) -> bool {
        let holders = |berth: &Berth| {
            let berth = berth.stamped(0);
            berth.revoked(None).unwrap_or(berth)
        };
        let renewed = |view: &Self| view.lease.spec.as_ref().and_then(|s| s.renew_time.clone());
        let berth = match (&self.berth, &other.berth) {
            (Ok(a), Ok(b)) => holders(a) != holders(b),
            (a, b) => a != b,
        };
        berth || renewed(self) != renewed(other)
    }
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
    /// Projects a BootcFleet. Of its annotations it keeps the one that is read.
    pub fn of(object: DeserializeGuard<BootcFleet>) -> Self {
        match object.0 {
            Ok(mut fleet) => {
                fleet.metadata.managed_fields = None;
                if let Some(annotations) = &mut fleet.metadata.annotations {
                    annotations.retain(|key, _| key == keys::ANNOTATION_DISMISSED);
                }
                Self { object: Ok(fleet) }
            }
            Err(invalid) => Self {
                object: Err(condition::one_line(&invalid.error)),
            },
        }
    }
}

impl NodeView {
    /// Projects a Node.
    pub fn of(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let ready = status
            .and_then(|s| s.conditions.as_ref())
            .into_iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let info = status.and_then(|s| s.node_info.as_ref());
        let addresses = status.and_then(|s| s.addresses.as_ref()).into_iter().flatten();
        Self {
            name: NodeName::new(node.metadata.name.clone().unwrap_or_default()),
            uid: NodeUid::new(node.metadata.uid.clone().unwrap_or_default()),
            labels: node.metadata.labels.clone().unwrap_or_default(),
            ready,
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
        }
    }
}

fn has_annotation(metadata: &ObjectMeta, key: &str) -> bool {
    metadata.annotations.as_ref().is_some_and(|a| a.contains_key(key))
}

impl BootcNodeView {
    /// Projects a BootcNode.
    pub fn of(object: DeserializeGuard<BootcNode>) -> Self {
        let (metadata, content) = match object.0 {
            Ok(object) => {
                let mut status = object.status.unwrap_or_default();
                let heartbeat = status.heartbeat_time.as_ref().map(|t| t.0);
                let is_ours = |c: &mut Condition| condition::node::OF_CONTROLLER.contains(&c.type_.as_str());
                let told = status.conditions.extract_if(.., is_ours).collect();
                let content = HostContent {
                    spec: object.spec,
                    report: Report::of(status),
                    heartbeat,
                    told,
                };
                (object.metadata, Ok(content))
            }
            Err(invalid) => (invalid.metadata, Err(condition::one_line(&invalid.error))),
        };
        let owner = metadata
            .owner_references
            .into_iter()
            .flatten()
            .find(|o| o.kind == "Node")
            .map(|o| o.uid);
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

    /// The spec, when it can be read.
    pub fn spec(&self) -> Option<&BootcNodeSpec> {
        self.content.as_ref().ok().map(|c| &c.spec)
    }

    /// The report, when it can be read.
    pub fn report(&self) -> Option<&Report> {
        self.content.as_ref().ok().map(|c| &c.report)
    }

    /// Says whether its status reports that it does not come back.
    pub fn reboot_timed_out(&self) -> bool {
        self.content.as_ref().is_ok_and(HostContent::reboot_timed_out)
    }

    /// Says whether the agent has reported on what is published now, from the Node that it was published for.
    pub fn observed(&self) -> bool {
        self.content.as_ref().is_ok_and(|c| {
            self.generation.is_some()
                && c.report.observed_generation >= self.generation
                && c.report.node_uid.as_deref() == Some(c.spec.node_uid.as_str())
        })
    }

    /// Says whether the agent reports that what Berth did on the node is undone.
    pub fn released(&self) -> bool {
        let report = self.report();
        report
            .is_some_and(|r| r.released && r.observed_generation.is_some() && r.observed_generation == self.generation)
    }
}

impl Report {
    fn of(status: berth_api::node::BootcNodeStatus) -> Self {
        let seconds = |s: Option<u32>| s.map(|s| Duration::from_secs(s.into()));
        let measured = status.measured();
        let degraded = condition::find(&status.conditions, condition::node::NODE_DEGRADED)
            .filter(|c| c.status == "True")
            .map(|c| (c.reason.clone(), c.message.clone()));
        let guarded = condition::find(&status.conditions, condition::node::GUARDED);
        let unguarded = match guarded {
            Some(guarded) => guarded.status == "False",
            // An agent of an earlier version has no other word for it.
            None => degraded
                .as_ref()
                .is_some_and(|(reason, _)| reason == Reason::Unguarded.as_str()),
        };
        let released = match condition::find(&status.conditions, condition::node::RELEASED) {
            Some(released) => released.status == "True",
            // An agent of an earlier version has no such condition.
            None => status.phase == Some(Phase::Released),
        };
        let pulled = condition::find(&status.conditions, condition::node::IMAGE_PULLED);
        let is_pulled = |reason: Why| pulled.is_some_and(|c| c.status == "Unknown" && c.reason == reason.as_str());
        // An image that failed to be pulled is tried again; one that the host's rules refuse is not.
        let refused = status.failure.is_none() && pulled.is_some_and(|c| c.status == "False");
        let locked = status.staged.as_ref().is_some_and(|s| s.locked);
        Self {
            observed_generation: status.observed_generation,
            node_uid: status.node_uid,
            booted: status.booted.and_then(|d| d.digest),
            staged: status.staged.and_then(|d| d.digest),
            locked,
            boot_id: status.boot_id.map(BootId::new),
            pulling: is_pulled(Why::Pulling),
            blocked: refused || is_pulled(Why::Blocked),
            released,
            phase: status.phase,
            phase_start: status.phase_start_time.map(|t| t.0),
            agent_version: status.agent_version,
            platform_variant: status.platform_variant,
            failure: status.failure.map(|f| Failing {
                digest: f.digest,
                attempts: f.attempts,
            }),
            last_turn: status.last_turn.map(|t| BadTurn {
                outcome: t.outcome,
                message: t.message,
                digest: t.digest,
                attempts: t.attempts,
            }),
            failed: status.failed_digests,
            prepared: condition::is_true(&status.conditions, condition::node::UPDATE_PREPARED),
            retry_token: status.retry_token,
            deployments: status.deployments,
            staging: seconds(measured.staging),
            staging_ended: status.timeline.staging_ended(),
            drain: seconds(measured.drain),
            reboot: seconds(measured.reboot),
            clock_synchronized: status.clock_synchronized.unwrap_or_default(),
            boot_image: status.boot_image.map(BootImageNote::of).unwrap_or_default(),
            firstboot: status.firstboot.map(|firstboot| FirstBoot {
                outcome: firstboot.outcome,
                held: firstboot.held,
            }),
            degraded,
            unguarded,
        }
    }
}

impl LeaseView {
    /// Projects a Lease that carries the pool label.
    pub fn of(mut lease: Lease) -> Self {
        lease.metadata.managed_fields = None;
        let pool = lease.metadata.labels.as_ref().and_then(|l| l.get(keys::LABEL_POOL));
        let pool = PoolName::new(pool.cloned().unwrap_or_default());
        let berth = berth::lease::read(&lease).map_err(|e| e.to_string());
        Self { lease, pool, berth }
    }

    /// Projects a Lease that has the name of a berth of that pool and not its label, as if it had the label.
    pub fn without_label(mut lease: Lease, pool: &PoolName) -> Self {
        let labels = lease.metadata.labels.get_or_insert_default();
        labels.insert(keys::LABEL_POOL.to_owned(), pool.to_string());
        Self::of(lease)
    }

    /// Name of the Lease.
    pub fn name(&self) -> &str {
        self.lease.metadata.name.as_deref().unwrap_or_default()
    }
}

impl PoolView {
    /// Projects a pool.
    pub fn of(object: DeserializeGuard<BootcNodePool>) -> Self {
        let prune = |metadata: &mut ObjectMeta| {
            metadata.managed_fields = None;
            if let Some(annotations) = &mut metadata.annotations {
                annotations.retain(|key, _| key == keys::ANNOTATION_POLL_REQUESTED_AT);
            }
        };
        match object.0 {
            Ok(mut pool) => {
                prune(&mut pool.metadata);
                Self {
                    name: PoolName::new(pool.metadata.name.clone().unwrap_or_default()),
                    object: Ok(pool),
                }
            }
            Err(invalid) => Self {
                name: PoolName::new(invalid.metadata.name.unwrap_or_default()),
                object: Err(condition::one_line(&invalid.error)),
            },
        }
    }
}

#[cfg(test)]
mod tests;
