//! Request of the BootcNode.

use std::time::Duration;

use berth_api::backend::BackendRule;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::{NodeUid, PoolName};
use berth_api::node::{BootcNode, DesiredImage, Staging};
use berth_api::pool::{DEFAULT_REBOOT_TIMEOUT, Drain, PhaseDurations, RivalUpdaters};

/// Request of the BootcNode.
#[derive(Debug, Clone, PartialEq)]
pub enum Desired {
    /// There is no BootcNode (any more, or yet): nothing is asked, and nothing may be started.
    Unknown,
    /// The node left its pool, or the BootcNode is being deleted: undo what Berth did.
    Release,
    /// The node is a member of a pool.
    Member(Box<Member>),
}

/// Request of a pool to a member.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The pool.
    pub pool: PoolName,
    /// UID of the Node that this was published for.
    pub node_uid: NodeUid,
    /// The image; `None` while it is not resolved for this platform.
    pub image: Option<DesiredImage>,
    /// Permission to pull it now.
    pub staging: Staging,
    /// Rules for moving pods away.
    pub drain: Drain,
    /// Rule by which the host's backend is chosen.
    pub backend: BackendRule,
    /// Treatment of other updaters.
    pub rivals: RivalUpdaters,
    /// Updaters that the pool tolerates.
    pub tolerated: Vec<String>,
    /// Token of the pool. When it changes, digests that have failed here are tried again.
    pub retry_token: Option<String>,
    /// Longest time from reboot to proof.
    pub reboot_timeout: Duration,
    /// The pool or the fleet is paused. For people; no step depends on it.
    pub paused: bool,
    /// Medians of the pool, for estimates. No step depends on them.
    pub estimates: PhaseDurations,
}

impl Desired {
    /// Demands of a BootcNode.
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
            backend: spec.backend,
            rivals: spec.rival_updaters,
            tolerated: spec.tolerated_updaters.clone(),
            retry_token: spec.retry_token.clone(),
            reboot_timeout: duration::parse_or(Some(&spec.reboot_timeout), DEFAULT_REBOOT_TIMEOUT),
            paused: spec.paused,
            estimates: spec.estimates,
        }))
    }

    /// The image that this node should run, when one is published.
    pub fn image(&self) -> Option<&DesiredImage> {
        match self {
            Self::Member(member) => member.image.as_ref(),
            _ => None,
        }
    }

    /// The rule by which the host's backend is chosen.
    pub fn backend(&self) -> BackendRule {
        match self {
            Self::Member(member) => member.backend,
            _ => BackendRule::Auto,
        }
    }

    /// The digest that this node should run, when one is published.
    pub fn digest(&self) -> Option<&Digest> {
        self.image().map(|image| &image.digest)
    }
}
