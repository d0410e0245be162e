use std::time::Duration;

use berth_api::backend::BackendRule;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::{NodeUid, PoolName};
use berth_api::node::{BootcNode, DesiredImage, Staging};
use berth_api::pool::{DEFAULT_REBOOT_TIMEOUT, Drain, Health, PhaseDurations, RebootPolicy, RivalUpdaters};

/// Spec of the BootcNode, as the agent uses it.
#[derive(Debug, Clone, PartialEq)]
pub enum Desired {
    /// No BootcNode exists. Nothing is requested, and no update may start.
    Unknown,
    /// The node left its pool, or the BootcNode is being deleted: undo Berth's changes.
    Release,
    /// The node is a member of a pool.
    Member(Box<Member>),
}

/// Spec of a member node.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Name of the pool.
    pub pool: PoolName,
    /// UID of the Node that this spec was published for.
    pub node_uid: NodeUid,
    /// Image to run; `None` while it is not resolved for this platform.
    pub image: Option<DesiredImage>,
    /// Whether the controller permits this node to pull the image now.
    pub staging: Staging,
    /// Drain settings.
    pub drain: Drain,
    /// The pool's `spec.health`: which boots count as healthy, and how to handle a boot that is not proven in time.
    pub health: Health,
    /// How the host's backend is chosen.
    pub backend: BackendRule,
    /// Whether the pool tolerates other updaters on the host.
    pub rivals: RivalUpdaters,
    /// Names of other updaters that the pool tolerates.
    pub tolerated: Vec<String>,
    /// The pool's retry token. When it changes, digests that failed on this node are tried again.
    pub retry_token: Option<String>,
    /// How long a node may take from its reboot to the proof of the new boot. After that, the delay is reported, and a
    /// target that did not boot may be tried again.
    pub reboot_timeout: Duration,
    /// How the node reboots into a new image.
    pub reboot_policy: RebootPolicy,
    /// True if the pool or the fleet is paused. Only reported; no step depends on it.
    pub paused: bool,
    /// Median durations of updates in the pool. Used only to estimate when the update ends.
    pub estimates: PhaseDurations,
}

impl Desired {
    /// Reads the spec of a BootcNode.
    pub fn of(object: Option<&BootcNode>) -> Self {
        let Some(object) = object else { return Self::Unknown };
        if object.metadata.deletion_timestamp.is_some() || object.spec.pool_name.is_empty() {
            return Self::Release;
        }
        let spec = &object.spec;
        Self::Member(Box::new(Member {
            pool: PoolName::from(spec.pool_name.as_str()),
            node_uid: NodeUid::from(spec.node_uid.as_str()),
            image: spec.image.clone(),
            staging: spec.staging,
            drain: spec.drain.clone(),
            health: spec.health.clone(),
            backend: spec.backend,
            rivals: spec.rival_updaters,
            tolerated: spec.tolerated_updaters.clone(),
            retry_token: spec.retry_token.clone(),
            reboot_timeout: duration::or(Some(&spec.reboot_timeout), DEFAULT_REBOOT_TIMEOUT),
            reboot_policy: spec.reboot_policy,
            paused: spec.paused,
            estimates: spec.estimates,
        }))
    }

    /// Returns the image that the node should run, if one is published.
    pub fn image(&self) -> Option<&DesiredImage> {
        match self {
            Self::Member(member) => member.image.as_ref(),
            _ => None,
        }
    }

    /// Returns the pool's rule for the backend; `Auto` without a pool.
    pub fn backend(&self) -> BackendRule {
        match self {
            Self::Member(member) => member.backend,
            _ => BackendRule::Auto,
        }
    }

    /// Returns the digest that the node should run, if an image is published.
    pub fn digest(&self) -> Option<&Digest> {
        self.image().map(|image| &image.digest)
    }
}
