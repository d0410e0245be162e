//! What the agent knows when it decides: plain data, gathered by [`crate::run`], read by [`crate::agent::step`] and
//! [`crate::agent::report`]. Time and identity are part of it, so that a decision can be repeated.

use std::time::Duration;

use berth_api::berth::Berth;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::{BootId, NodeName, NodeUid, PoolName};
use berth_api::node::{BootcNode, Deployment, DesiredImage, DrainBlocker, Failure, Hold, Progress, Staging, Turn};
use berth_api::pool::{DEFAULT_REBOOT_TIMEOUT, Drain};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::node::NodeFacts;

/// Everything that a decision may depend on.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The node that this agent serves.
    pub node: NodeName,
    /// This node's clock.
    pub now: Timestamp,
    /// What the BootcNode asks for.
    pub desired: Desired,
    /// What the host says.
    pub host: HostFacts,
    /// The Node object.
    pub cluster_node: ClusterNode,
    /// The berths labelled with this node; `None` while they are not known.
    pub berths: Option<Vec<Berth>>,
    /// Whether the last write of the berth that is held was one of this process, and was answered: then no other that
    /// it, or a process before it, has sent can still come in.
    pub fenced: bool,
    /// Whether this process has written the Node since it began to give the berth back.
    pub restored: bool,
    /// How far the drain of this turn is.
    pub drain: DrainFacts,
    /// How long the node has been proving its boot, agent restarts included.
    pub proving_for: Duration,
    /// What the agent remembers of earlier tries.
    pub past: Past,
    /// The step that fails again and again now.
    pub trouble: Option<Trouble>,
}

impl Facts {
    /// What an agent begins with: nothing is known but who it is, and under which boot.
    pub fn nothing_yet(node: NodeName, boot_id: BootId, now: Timestamp) -> Self {
        Self {
            node,
            now,
            desired: Desired::Unknown,
            host: HostFacts {
                boot_id,
                os: Os::Unknown,
                fresh: false,
                pull: None,
                inhibitors: vec![],
                shutting_down: false,
                shutdown_scheduled: false,
                rivals: vec![],
                finalization_failed: false,
                reboot: Reboot::NotAsked,
                clock_synchronized: None,
            },
            cluster_node: ClusterNode::Unread,
            berths: None,
            fenced: false,
            restored: false,
            drain: DrainFacts::default(),
            proving_for: Duration::ZERO,
            past: Past::default(),
            trouble: None,
        }
    }
}

/// A step that fails again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase reason.
    pub reason: &'static str,
    /// The error's words.
    pub message: String,
    /// How often it failed.
    pub attempts: u32,
}

/// What the BootcNode asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Desired {
    /// There is no BootcNode (any more, or yet): nothing is asked, and nothing may be started.
    Unknown,
    /// The node left its pool, or the BootcNode is being deleted: undo what Berth did.
    Release,
    /// The node is a member of a pool.
    Member(Box<Member>),
}

/// What a pool asks of a member.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// The pool.
    pub pool: PoolName,
    /// UID of the Node that this was published for.
    pub node_uid: NodeUid,
    /// The image; `None` while it is not resolved for this platform.
    pub image: Option<DesiredImage>,
    /// Whether it may be pulled now.
    pub staging: Staging,
    /// Why nothing happens, for people.
    pub hold: Option<Hold>,
    /// How pods are moved away.
    pub drain: Drain,
    /// When it changes, what has failed here is tried again.
    pub retry_token: Option<String>,
    /// Longest time from reboot to proof.
    pub reboot_timeout: Duration,
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
            hold: spec.hold.clone(),
            drain: spec.drain.clone(),
            retry_token: spec.retry_token.clone(),
            reboot_timeout: duration::parse_or(Some(&spec.reboot_timeout), DEFAULT_REBOOT_TIMEOUT),
        }))
    }

    /// The digest that this node should run, when one is published.
    pub fn digest(&self) -> Option<&Digest> {
        match self {
            Self::Member(member) => Some(&member.image.as_ref()?.digest),
            _ => None,
        }
    }
}

/// What the host says.
#[derive(Debug, Clone)]
pub struct HostFacts {
    /// The running boot.
    pub boot_id: BootId,
    /// The host's deployments.
    pub os: Os,
    /// Whether `os` was read after the last thing that may have changed it.
    pub fresh: bool,
    /// The pull unit, when one is loaded or its end was not yet dealt with.
    pub pull: Option<PullFacts>,
    /// Who blocks a shutdown, and why.
    pub inhibitors: Vec<String>,
    /// Whether the host is going down.
    pub shutting_down: bool,
    /// Whether somebody has scheduled a shutdown for later.
    pub shutdown_scheduled: bool,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// Whether finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// What this process knows of a reboot that it asked for.
    pub reboot: Reboot,
    /// Whether the host's clock is synchronised; `None` when nobody has asked, or there was no answer. Only what is
    /// known to be synchronised is.
    pub clock_synchronized: Option<bool>,
}

/// The host's deployments, as far as they are known.
#[derive(Debug, Clone, PartialEq)]
pub enum Os {
    /// Not read yet, or a pull holds the lock.
    Unknown,
    /// The host cannot be updated by Berth.
    Unusable {
        /// Condition reason.
        reason: &'static str,
        /// The host tool's own words.
        message: String,
    },
    /// A bootc host.
    Bootc(Box<Deployments>),
}

/// The deployments of a bootc host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Deployments {
    /// What runs.
    pub booted: Deployment,
    /// What is staged.
    pub staged: Option<Deployment>,
    /// What a rollback would boot.
    pub rollback: Option<Deployment>,
}

impl Os {
    /// The deployments, when they are known.
    pub fn deployments(&self) -> Option<&Deployments> {
        match self {
            Self::Bootc(deployments) => Some(deployments),
            _ => None,
        }
    }

    /// Digest of what runs.
    pub fn booted(&self) -> Option<&Digest> {
        self.deployments()?.booted.digest.as_ref()
    }

    /// What is staged.
    pub fn staged(&self) -> Option<&Deployment> {
        self.deployments()?.staged.as_ref()
    }
}

/// A pull unit on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct PullFacts {
    /// What it pulls.
    pub digest: Digest,
    /// How far it is.
    pub progress: Option<Progress>,
}

/// What this process knows of a reboot that it asked for. Lost with the process, on purpose: asking again under the
/// same commit is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reboot {
    /// It asked for none.
    NotAsked,
    /// It asked so long ago.
    Asked(Duration),
    /// logind refused, or the image could not be unlocked.
    Blocked {
        /// In the host's own words.
        why: String,
        /// So long ago.
        ago: Duration,
    },
}

/// The Node object, as far as it was read.
#[derive(Debug, Clone, PartialEq)]
pub enum ClusterNode {
    /// Not read since something may have changed it.
    Unread,
    /// The API server says that there is none.
    Gone,
    /// There is one.
    Is(NodeFacts),
}

impl ClusterNode {
    /// The Node's facts, when it was read and exists.
    pub fn get(&self) -> Option<&NodeFacts> {
        match self {
            Self::Is(facts) => Some(facts),
            _ => None,
        }
    }
}

/// How far the drain of this turn is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrainFacts {
    /// Nothing is left to move, as seen in the last pass.
    pub done: bool,
    /// How long the turn has been draining, agent restarts included.
    pub elapsed: Duration,
    /// What holds it up.
    pub blockers: Vec<DrainBlocker>,
    /// What should have gone, could not, and did not hold it up.
    pub left_behind: Vec<DrainBlocker>,
    /// When the next pass is due.
    pub next_pass: Option<Duration>,
}

/// Memory of earlier tries, kept on the host; some of it in the BootcNode's status as well. Fields that are absent in a
/// file of another version are as if nothing had happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Past {
    /// The failure that it backs off from. A new process tries at once.
    #[serde(skip)]
    pub failure: Option<Failure>,
    /// The last turn that did not end in an update.
    pub last_turn: Option<Turn>,
    /// Digests that failed here.
    pub failed_digests: Vec<Digest>,
    /// The digest that Berth staged here last.
    pub staged_by_us: Option<Digest>,
    /// A digest that was committed and not booted, and how often.
    pub not_applied: Option<(Digest, u32)>,
    /// The target of this turn, once it was seen to run unproven: should something else run later, it has failed.
    pub tried: Option<Digest>,
    /// The boot under which the berth was licensed anew because the boot could not be proven: still unproven, whatever
    /// the berth says.
    pub unproven_boot: Option<BootId>,
    /// The last retry token that was obeyed.
    pub retry_token: Option<String>,
    /// Time at which the running drain began, by this node's clock. Kept here and not in an object that others can edit:
    /// a drain that seems old may be ended, or forced.
    pub drain_began: Option<Timestamp>,
    /// The boot that is being proven, and the time at which that began, by this node's clock.
    pub proof_began: Option<(BootId, Timestamp)>,
    /// Durations of the last turn.
    pub times: Times,
}

/// How long the last turn took, for the controller to judge by whether the next one fits into a window. Kept on the
/// host, for it must survive the reboot that it measures.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Times {
    /// When the berth was committed, by this node's clock.
    pub committed: Option<Timestamp>,
    /// From the taken berth to the end of the drain, in seconds.
    pub drain_seconds: Option<u32>,
    /// From the commit to the proof, in seconds.
    pub reboot_seconds: Option<u32>,
}

impl Past {
    /// How long to wait before a digest may be pulled again after a failure.
    pub fn pull_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let failure = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest))?;
        remaining(failure.next_try_time.0, now)
    }

    /// How long to wait before the node is ready for another turn for this digest.
    pub fn turn_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let turn = self.last_turn.as_ref().filter(|t| t.digest == *digest)?;
        remaining(turn.next_try_time.0, now)
    }
}

/// No backoff that [`crate::agent::past`] makes is longer.
const LONGEST_BACKOFF: Duration = Duration::from_secs(40 * 60);

fn remaining(until: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(until.duration_since(now)).ok()?;
    // No backoff is longer than that, so one that seems to be was made before the clock was set back.
    (!left.is_zero() && left <= LONGEST_BACKOFF).then_some(left)
}
