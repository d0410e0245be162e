//! Facts that an agent decides by: plain data, gathered by [`crate::run`], read by [`crate::agent::step`] and
//! [`crate::agent::report`]. Time and identity are part of them, so that a decision can be repeated.

use std::time::Duration;

use berth_api::backend::{Backend, BackendRule, NodeBackend};
use berth_api::berth::Berth;
use berth_api::digest::Digest;
use berth_api::duration;
use berth_api::names::{BootId, NodeName, NodeUid, PoolName};
use berth_api::node::timeline::{Timeline, TurnRecord};
use berth_api::node::{BootcNode, Deployment, DesiredImage, DrainBlocker, Failure, Progress, Staging, Turn};
use berth_api::pool::{DEFAULT_REBOOT_TIMEOUT, Drain, PhaseDurations, RivalUpdaters};
use berth_api::seeded::Bug;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::BootMoment;
use crate::agent::node::NodeFacts;
use crate::agent::reason::Reason;
use crate::agent::rules::{Objection, Rules};
use crate::agent::storage::{StagingLock, Storage};

/// Everything that a decision may depend on.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The node that this agent serves.
    pub node: NodeName,
    /// Time by this node's clock.
    pub now: Timestamp,
    /// The BootcNode's request.
    pub desired: Desired,
    /// State of the host.
    pub host: HostFacts,
    /// The Node object.
    pub cluster_node: ClusterNode,
    /// The berths labelled with this node; `None` while they are not known.
    pub berths: Option<Vec<Berth>>,
    /// True if the last write of the held berth was one of this process, and was answered. Then no other write that
    /// this process, or one before it, has sent can still come in.
    pub fenced: bool,
    /// True if this process has written the Node since it began to give the berth back.
    pub restored: bool,
    /// Progress of this turn's drain.
    pub drain: DrainFacts,
    /// Time for which the node has been proving its boot, agent restarts included.
    pub proving_for: Duration,
    /// Answer of the API server to writes that it must refuse.
    pub guard: GuardFacts,
    /// Memory of earlier tries.
    pub past: Past,
    /// The step that fails again and again now.
    pub trouble: Option<Trouble>,
}

impl Facts {
    /// The staged deployment, when it is of this digest and has all that belongs to it, as far as is known.
    pub fn staged_whole(&self, digest: &Digest) -> Option<&Deployment> {
        let staged = self.host.os.staged()?;
        (staged.digest.as_ref() == Some(digest) && self.past.is_complete(digest)).then_some(staged)
    }

    /// Objection of the host to the image that is desired now, by its own rules.
    pub fn objection(&self) -> Option<Objection> {
        self.host.rules.objection(self.desired.image()?)
    }

    /// Facts of an agent that has just started: its name and its boot, and nothing else.
    pub fn nothing_yet(node: NodeName, boot_id: BootId, now: Timestamp) -> Self {
        Self {
            node,
            now,
            desired: Desired::Unknown,
            host: HostFacts {
                boot_id,
                os: Os::Unknown,
                fresh: false,
                disarmed: false,
                lock_fails: None,
                pull: None,
                inhibitors: vec![],
                shutting_down: false,
                shutdown_scheduled: false,
                unreachable: None,
                forgetful: None,
                rules: Rules::default(),
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
            guard: GuardFacts {
                answer: Guard::Unknown,
                next_try: Duration::ZERO,
                silence: None,
            },
            past: Past::default(),
            trouble: None,
        }
    }
}

/// Answer of the API server to a write that its admission policies must refuse (I6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guard {
    /// There was no answer yet.
    Unknown,
    /// There was nothing yet that the write could hit: an agent asks before there are berths.
    NothingToTry,
    /// The write is refused.
    Refuses,
    /// The write would be done; what it is, and what to do about it, in words.
    Allows(String),
}

/// The last answer, and when the write is tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardFacts {
    /// The last answer.
    pub answer: Guard,
    /// Time until the next try; zero: it is due.
    pub next_try: Duration,
    /// The last error, when tries go on to have no clear answer.
    pub silence: Option<String>,
}

impl GuardFacts {
    /// Says whether people should know that no berth is taken: what is only not answered yet is the noise of a start.
    pub fn is_to_be_told(&self) -> bool {
        matches!(self.answer, Guard::Allows(_)) || (self.answer == Guard::Unknown && self.silence.is_some())
    }

    /// Reason for which no berth is taken, for people; `None` where the API server refuses what it must, as far as that can
    /// be tried.
    pub fn unguarded(&self) -> Option<String> {
        match &self.answer {
            // An offer is a berth, on which it is tried before that is taken.
            Guard::Refuses | Guard::NothingToTry => None,
            Guard::Allows(what) => Some(format!(
                "the API server does not keep the agents of the nodes apart: {what}"
            )),
            Guard::Unknown => {
                let unknown = "the API server has not answered yet whether it refuses writes to what other nodes own";
                let why = self.silence.as_ref().map(|error| format!(": {error}"));
                Some(format!("{unknown}{}", why.unwrap_or_default()))
            }
        }
    }
}

/// A step that fails again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase reason.
    pub reason: Reason,
    /// The error's words.
    pub message: String,
    /// Number of failures so far.
    pub attempts: u32,
}

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

/// State of the host.
#[derive(Debug, Clone)]
pub struct HostFacts {
    /// The running boot.
    pub boot_id: BootId,
    /// The host's deployments.
    pub os: Os,
    /// True if `os` was read after the last thing that may have changed it.
    pub fresh: bool,
    /// True if this process saw that nothing was armed, and has done nothing since that could arm anything.
    pub disarmed: bool,
    /// Trouble with the lock of what is staged, once that has failed time and again: then what is armed is removed.
    pub lock_fails: Option<LockFails>,
    /// The pull unit, when one is loaded or its end was not yet dealt with.
    pub pull: Option<PullFacts>,
    /// Inhibitors that block a shutdown, with their reasons.
    pub inhibitors: Vec<String>,
    /// True while the host is going down.
    pub shutting_down: bool,
    /// True if somebody has scheduled a shutdown for later.
    pub shutdown_scheduled: bool,
    /// Silence of the host's services, while it lasts: what else is said of the host is from before.
    pub unreachable: Option<Unreachable>,
    /// Reason for which the agent's memory could not be written to the host, while that is so.
    pub forgetful: Option<String>,
    /// Rules of the host about what it pulls, and by which credentials.
    pub rules: Rules,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// True if finalization of the staged deployment failed at the last shutdown.
    pub finalization_failed: bool,
    /// State of a reboot that this process asked for.
    pub reboot: Reboot,
    /// Synchronisation of the host's clock; `None` when it was not asked for, or there was no answer. A clock counts as
    /// synchronised only when the host says so.
    pub clock_synchronized: Option<bool>,
}

/// A lock that fails again and again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LockFails {
    /// The last error's words.
    pub why: String,
    /// Pause until it is tried again, where what is armed is not to be removed; zero: it is due.
    pub pause: Duration,
}

/// Silence of the host's bus, systemd or logind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreachable {
    /// The error's words.
    pub why: String,
    /// Time since the first question without an answer.
    pub ago: Duration,
}

/// Silence that is worth telling. A host that goes down is silent as well, and so is a service that is restarted.
const SILENCE_TOLD_AFTER: Duration = Duration::from_secs(30);

impl Unreachable {
    /// Says whether the silence has lasted so long that people should know.
    pub fn is_to_be_told(&self) -> bool {
        self.ago >= SILENCE_TOLD_AFTER
    }
}

/// The host's deployments, as far as they are known.
#[derive(Debug, Clone, PartialEq)]
pub enum Os {
    /// The deployments were not read yet, or a pull holds the lock.
    Unknown,
    /// The host cannot be updated by Berth.
    Unusable {
        /// Condition reason.
        reason: Reason,
        /// The host tool's own words.
        message: String,
    },
    /// A host that a backend can update.
    Bootc(Box<Deployments>),
}

/// The deployments of a host, and the backend that changes them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Deployments {
    /// Backend of the host.
    pub backend: NodeBackend,
    /// The way in which the host keeps them.
    pub storage: Storage,
    /// The backend locks what it stages, from the first instant.
    pub stages_locked: bool,
    /// The booted deployment.
    pub booted: Deployment,
    /// The staged deployment.
    pub staged: Option<Deployment>,
    /// The staged deployment layers other packages than the one that runs, and the backend keeps them in what it stages over it:
    /// somebody has asked for that on the host.
    pub staged_layers: bool,
    /// True if the backend says that the staged image was staged under an enforced signature policy. It says so too of an image
    /// that was in the host's repository already, and so was not checked: see [`Past::is_verified`].
    pub staged_signed: bool,
    /// The deployment that a rollback would boot.
    pub rollback: Option<Deployment>,
    /// The next boot takes that one: somebody has queued a rollback, or it was finalized and not booted.
    pub rollback_queued: bool,
    /// A link in the host's `/etc` that makes a unit, such as the kubelet, require `berth-firstboot.service`. Set only if the staged
    /// image lacks that service.
    pub link_without_unit: Option<String>,
    /// Reason for which nothing is staged here, and nothing new is begun, for people. What was begun is finished.
    pub refusal: Option<String>,
}

impl Deployments {
    /// Way in which an image is locked that is staged here; `None` where nothing would lock it.
    pub fn staging_lock(&self) -> Option<StagingLock> {
        StagingLock::of(self.storage, self.stages_locked)
    }

    /// Message if the kubelet would never start after a boot of the staged image. `None` if no such fault is known.
    pub fn unit_missing(&self) -> Option<String> {
        let link = self.link_without_unit.as_ref()?;
        Some(format!(
            "the staged image has no berth-firstboot.service, and {link} requires it: the unit of that link, such as the kubelet, \
             would never start. Run `rm {link}` on the host, or publish an image that has the unit"
        ))
    }
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

    /// Reason for which nothing is staged on the host, for people; `None` where it is, or the host is not known.
    pub fn refusal(&self) -> Option<&str> {
        self.deployments()?.refusal.as_deref()
    }

    /// See [`Deployments::unit_missing`].
    pub fn unit_missing(&self) -> Option<String> {
        self.deployments()?.unit_missing()
    }

    /// Says whether it is known that the next boot takes another deployment than the one that runs.
    pub fn is_rollback_queued(&self) -> bool {
        self.deployments().is_some_and(|d| d.rollback_queued)
    }

    /// Digest of the deployment that the next boot takes in place of the one that runs, where it has one.
    pub fn queued_digest(&self) -> Option<&Digest> {
        let queued = self.deployments().filter(|d| d.rollback_queued)?;
        queued.rollback.as_ref()?.digest.as_ref()
    }

    /// The staged deployment.
    pub fn staged(&self) -> Option<&Deployment> {
        self.deployments()?.staged.as_ref()
    }
}

/// A pull unit on the host.
#[derive(Debug, Clone, PartialEq)]
pub struct PullFacts {
    /// Digest that is pulled.
    pub digest: Digest,
    /// Progress of the pull.
    pub progress: Option<Progress>,
}

/// State of a reboot that this process asked for. Lost with the process, on purpose: asking again under the same commit
/// is harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reboot {
    /// No reboot was asked for.
    NotAsked,
    /// A reboot was asked for, this long ago.
    Asked(Duration),
    /// logind refused, or the image could not be unlocked.
    Blocked {
        /// Reason, in the host's own words.
        why: String,
        /// Time since then.
        ago: Duration,
    },
}

/// The Node object, as far as it was read.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "an agent has a single one, which nearly always is a Node"
)]
pub enum ClusterNode {
    /// The Node was not read since something may have changed it.
    Unread,
    /// The API server says that there is none.
    Gone,
    /// The Node as it was read.
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

/// Progress of this turn's drain.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DrainFacts {
    /// True when no pod is left to move, as seen in the last pass.
    pub done: bool,
    /// Time for which the turn has been draining, agent restarts included.
    pub elapsed: Duration,
    /// Pods that block it.
    pub blockers: Vec<DrainBlocker>,
    /// Pods that should have gone, could not, and did not block it.
    pub left_behind: Vec<DrainBlocker>,
    /// Time until the next pass is due.
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
    /// The digest that Berth pulled or staged here last; `None` once it was seen to be gone, on a node that no pool has.
    pub staged_by_us: Option<Digest>,
    /// Backend that staged it, until it is gone and no turn goes on: nothing else may touch it (see [`crate::agent::backend`]).
    pub staged_with: Option<Backend>,
    /// The digest whose last pull failed or was stopped. Its image may be staged all the same, without the images that
    /// are bound to it: bootc pulls those last.
    pub incomplete: Option<Digest>,
    /// A digest that was committed and not booted, and how often.
    pub not_applied: Option<(Digest, u32)>,
    /// The target of this turn, once it was seen to run unproven: should something else run later, it has failed.
    pub tried: Option<Digest>,
    /// The boot under which the berth was licensed anew because the boot could not be proven: still unproven, whatever
    /// the berth says.
    pub unproven_boot: Option<BootId>,
    /// The last pull of Berth's that ended well under an enforced signature policy, unless another pull has begun since.
    pub verified: Option<Verified>,
    /// The last retry token that was obeyed.
    pub retry_token: Option<String>,
    /// Time at which the running drain began, by this node's clock: for people.
    pub drain_began: Option<Timestamp>,
    /// Moment at which the running drain began under this boot. Kept here and not in an object that others can edit: a drain that
    /// seems old may be ended, or forced. A wall clock that is set must not make it seem old either.
    pub drain_since: Option<BootMoment>,
    /// Moment at which the proof of a boot began.
    pub proof_since: Option<BootMoment>,
    /// Chapters of the latest updates. Kept on the host, since they must survive the reboot that is one of them.
    pub timeline: Timeline,
    /// The turns, the newest first, which has no end while it runs.
    pub turns: Vec<TurnRecord>,
}

/// An image that was pulled under an enforced signature policy, and not found in the host's repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verified {
    /// Digest of the image.
    pub digest: Digest,
    /// Digest of the policy file's text, as it was when the pull began.
    pub policy: Digest,
}

impl Past {
    /// True if Berth's last pull was of this digest and ran under the signature policy whose text has this digest.
    pub fn is_verified(&self, digest: &Digest, policy: Option<&Digest>) -> bool {
        let verified = self.verified.as_ref();
        verified.is_some_and(|verified| verified.digest == *digest && Some(&verified.policy) == policy)
    }

    /// Time left until a digest may be pulled again after a failure.
    pub fn pull_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let failure = self.failure.as_ref().filter(|f| f.digest.as_ref() == Some(digest))?;
        remaining(failure.next_try_time.0, now)
    }

    /// Says whether a staged image with this digest has all that belongs to it, as far as is known.
    pub fn is_complete(&self, digest: &Digest) -> bool {
        self.incomplete.as_ref() != Some(digest)
    }

    /// Time left until the node is ready for another turn for this digest.
    pub fn turn_backoff(&self, digest: &Digest, now: Timestamp) -> Option<Duration> {
        let turn = self.last_turn.as_ref().filter(|t| t.digest == *digest)?;
        remaining(turn.next_try_time.0, now)
    }
}

/// Longest backoff that [`crate::agent::past`] makes, jitter included.
const LONGEST_BACKOFF: Duration = Duration::from_secs(75 * 60);

fn remaining(until: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(until.duration_since(now)).ok()?;
    // No backoff is longer than that, so one that seems to be was made before the clock was set back.
    let is_possible = left <= LONGEST_BACKOFF || Bug::BackoffUnlimited.is_awake();
    (!left.is_zero() && is_possible).then_some(left)
}
