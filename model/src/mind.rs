//! Converts between the agent's released [`Knowledge`] and the few bytes that the model keeps.

use std::mem::{Discriminant, discriminant};
use std::time::Duration;

use berth_api::berth::Outcome;
use berth_api::node::{Deployment, DesiredImage, Failure, Staging, Turn as BadTurn};
use berth_api::pool::{Health, HttpGet, PoolCheck};
use berth_api::{BootId, Digest, Written};
use berth_core::agent::facts::{
    CheckAnswer, CheckReading, ClusterNode, Deployments, Desired, FellBack, Fired, Guard as Answer, HostHealth,
    LastBooted, Member, Os as HostOs, OutsideBoot, Past, PullFacts, RollbackGuard, SoftReboots, StepFailure, Undone,
};
use berth_core::agent::knowledge::{
    Ending, Event, HostFailure, Knowledge, LockRetry, Look, PullReading, Services, Since, Turn,
};
use berth_core::agent::node::{CordonRecord, NodeFacts, Signs};
use berth_core::agent::reason::Reason;
use berth_core::agent::step::{REBOOT_RETRY_INTERVAL, REBOOT_START_TIMEOUT, Step};
use berth_core::agent::storage::Storage;
use berth_core::{BootMoment, Moment, Now};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent_view::AgentView;
use crate::host::Switch;
use crate::rich;
use crate::state::{
    Agent, Begun, Cordon, Ended, Failing, Guard, Host, Image, Lease, NONE, NodeRead, Object, Os, Phase, Reboot, Spec,
};

/// A duration that is longer than every timeout.
const OVER: Duration = Duration::from_secs(23 * 3600);
/// How far a wall clock jumps ahead. Longer than every timeout, but shorter than the host's uptime.
const AHEAD: SignedDuration = SignedDuration::from_hours(30 * 24);
/// Name of the pool's check.
const CHECK: &str = "app";
const NO_ANSWER: &str = "no answer";
pub const READ_ONLY: &str = "read-only";

/// All phases of a berth. The outcome in `Releasing` is arbitrary.
const PHASES: [Phase; 3] = [Phase::Taken, Phase::Committed, Phase::Releasing(Outcome::Updated)];

/// Returns the time of all decisions, on a host with a correct wall clock.
pub fn now() -> Now {
    Now {
        wall: rich::NOW,
        clock: Moment::after(Duration::from_secs(1 << 24)),
        chance: 0.0,
    }
}

/// Returns the time of all decisions on this host. Its wall clock may be ahead.
pub fn now_on(host: &Host) -> Now {
    Now {
        wall: wall(host.ahead),
        ..now()
    }
}

/// Returns the time on a wall clock that is correct or, with `is_ahead`, far ahead.
fn wall(is_ahead: bool) -> Timestamp {
    if is_ahead { rich::NOW + AHEAD } else { rich::NOW }
}

/// Returns how long a drain has run, according to the record that a restarted agent reads from the host.
pub fn recalled_drain(host: &Host) -> Begun {
    let knowledge = Knowledge::new(rich::name(0), rich::boot(0), past(host), &now_on(host));
    knowledge.turn.drain.since.map_or(Begun::No, since)
}

fn since(since: Since) -> Begun {
    match since.before {
        Duration::ZERO => Begun::Lately,
        _ => Begun::LongAgo,
    }
}

fn ago(time: Duration) -> Moment {
    Moment::after(Duration::from_secs(1 << 24).saturating_sub(time))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mind {
    pub agent: Agent,
    /// The memory on the host, and the other host fields that [`Mind::settle`] copies. The remaining fields have no
    /// meaning.
    pub host: Host,
}

pub fn knowledge(view: &AgentView) -> Knowledge {
    let (agent, host) = (&view.agent, &view.host);
    let mut knowledge = Knowledge::new(rich::name(0), rich::boot(0), past(host), &now_on(host));
    knowledge.cluster.guard.answer = match agent.guard {
        Guard::Refuses => Answer::Refuses,
        Guard::Allows => Answer::Allows(String::new()),
        Guard::Unknown => Answer::Unknown,
    };
    knowledge.cluster.guard.again = now().clock + if agent.guard_due { Duration::ZERO } else { OVER };
    knowledge.published_for = Some(rich::uid(0, agent.published));
    knowledge.desired = desired(view.spec);
    knowledge.host.os = if agent.blind { blind() } else { os(agent.os) };
    knowledge.host.fresh = agent.fresh;
    knowledge.host.disarmed = agent.disarmed;
    if agent.blind_long {
        knowledge.host.looked = ago(OVER);
    }
    knowledge.host.unreachable = began(agent.silence).map(|time| (NO_ANSWER.to_owned(), ago(time)));
    knowledge.failures.memory = agent.memory_error.then(|| READ_ONLY.to_owned());
    knowledge.pulls.processed = ended(host.ended).filter(|_| agent.knows_result).cloned();
    knowledge.host.finalization_failed = host.unfinalized;
    knowledge.pulls.succeeded = rich::some_digest(agent.pulled);
    knowledge.cluster.node = match agent.node {
        NodeRead::Unread => ClusterNode::Unread,
        NodeRead::Gone => ClusterNode::Gone,
        NodeRead::Is(object, _) => ClusterNode::Is(node(&object)),
    };
    knowledge.cluster.fenced = agent.fenced;
    knowledge.failures.lock = agent.lock_failure.then(LockRetry::default);
    knowledge.failures.step = failing(agent.failing);
    turn(&mut knowledge.turn, agent);
    knowledge.turn.drain.since = began(host.drain).map(|before| Since {
        at: now().clock,
        before,
    });
    knowledge
}

fn desired(spec: Option<Spec>) -> Desired {
    let Some(spec) = spec else { return Desired::Unknown };
    if spec.deleting || spec.pool == NONE {
        return Desired::Release;
    }
    Desired::Member(Box::new(Member {
        pool: rich::pool(spec.pool),
        node_uid: rich::uid(0, spec.uid),
        image: (spec.image != 0).then(|| DesiredImage {
            reference: Written::default(),
            digest: rich::digest(spec.image),
            index_digest: rich::digest(spec.image),
            version: None,
            signature: berth_api::pool::SignatureRule::AsBooted,
        }),
        staging: if spec.may_pull { Staging::Allowed } else { Staging::Held },
        drain: berth_api::pool::Drain::default(),
        health: health(),
        backend: berth_api::backend::BackendRule::Auto,
        rivals: berth_api::pool::RivalUpdaters::Wait,
        tolerated: vec![],
        retry_token: (spec.token != 0).then(|| spec.token.to_string()),
        reboot_timeout: Duration::from_secs(900),
        reboot_policy: Default::default(),
        paused: false,
        estimates: berth_api::pool::PhaseDurations::default(),
    }))
}

/// Returns a pool's health settings, with one check.
fn health() -> Health {
    let get = HttpGet {
        host: None,
        port: 1,
        path: None,
        scheme: None,
    };
    let check = PoolCheck {
        name: CHECK.to_owned(),
        pods_ready: None,
        http_get: Some(get),
        node_condition: None,
    };
    Health {
        checks: vec![check],
        ..Health::default()
    }
}

/// Reads the facts for a decision, as the agent does at the start of a pass.
pub fn gather(knowledge: &mut Knowledge, view: &AgentView) {
    let host = &view.host;
    let published = Event::Published {
        desired: desired(view.spec),
        uid: view.spec.map(|spec| rich::uid(0, spec.uid)),
        status: None,
        is_unread: false,
    };
    knowledge.after(published, &now_on(host));
    remember(knowledge, view);
    if host.silent {
        knowledge.after(Event::Unreachable(NO_ANSWER.to_owned()), &now_on(host));
    } else {
        knowledge.after(Event::Services(services(knowledge, host)), &now_on(host));
        knowledge.after(Event::Pull(pull(host)), &now_on(host));
        let reading = CheckReading {
            name: CHECK.to_owned(),
            answer: CheckAnswer::Http(if view.fails_check { 503 } else { 200 }),
        };
        knowledge.after(Event::PoolChecks(vec![reading]), &now_on(host));
        if knowledge.pulls.processed.is_some() || knowledge.has_fired_guard() {
            remember(knowledge, view);
        }
        if knowledge.pull_to_forget().is_some() {
            knowledge.pulls.processed = None;
        }
    }
    let berths = (0..).zip(&view.berths).filter_map(|(index, (pool, berth))| {
        let lease = Lease { epoch: 0, is: *berth };
        rich::berth((*pool, index), &lease, rich::OWN_EPOCH)
    });
    knowledge.after(Event::Berths(berths.collect()), &now_on(host));
}

/// Writes the memory to disk if it changed or the last write failed, as the agent does.
fn remember(knowledge: &mut Knowledge, view: &AgentView) {
    let host = &view.host;
    let is_written = host.disk.is_none() && remembered(*host, &knowledge.past).memory() == host.memory();
    if !is_written || knowledge.failures.memory.is_some() {
        let failure = host.read_only.then(|| READ_ONLY.to_owned());
        knowledge.after(Event::Memory(failure), &now_on(host));
    }
}

fn services(knowledge: &Knowledge, host: &Host) -> Services {
    let mut services = Services::under(rich::boot(0));
    services.shutting_down = host.down;
    services.soft_reboots = SoftReboots {
        supported: true,
        userspace_began: Some(rich::BEGAN),
    };
    services.clock_synchronized = Some(!host.ahead);
    // No image fails the host's own health checks: a bad image keeps its Node NotReady, or fails the pool's check.
    services.health = Some(HostHealth::default());
    services.rollback_guard = match host.switch {
        Switch::Disarmed => RollbackGuard::Disarmed,
        Switch::Armed { .. } => RollbackGuard::Armed,
        Switch::Fired { target, here } => RollbackGuard::Fired(Fired {
            digest: rich::digest(target),
            boot_id: rich::boot(if here { 0 } else { 1 }),
        }),
    };
    if knowledge.is_reboot_ahead() {
        services.shutdown_scheduled = host.scheduled;
        if host.inhibited {
            services.inhibitors = vec!["somebody".to_owned()];
        }
    }
    services
}

fn pull(host: &Host) -> PullReading {
    match host.ended {
        _ if host.down => PullReading::None,
        Ended::Well(image) => PullReading::Succeeded {
            digest: rich::digest(image),
            policy: None,
        },
        Ended::Badly(image) => PullReading::Failed {
            digest: rich::digest(image),
            failure: HostFailure {
                reason: Reason::PullFailed,
                message: String::new(),
            },
        },
        Ended::No if host.pull != 0 => PullReading::Running(PullFacts {
            digest: rich::digest(host.pull),
            progress: None,
        }),
        Ended::No => PullReading::None,
    }
}

fn ended(ended: Ended) -> Option<&'static Digest> {
    match ended {
        Ended::No => None,
        Ended::Well(image) | Ended::Badly(image) => Some(rich::digest_of(image)),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Observation {
    /// The deployments; `None` if they cannot be read.
    Looked(Option<Os>),
    /// The Node; `None` if it does not exist.
    Node(Option<Object>),
    /// The API server's response to forbidden writes: true if it rejects them.
    Guard(bool),
    Heartbeat,
}

pub fn observe(view: &AgentView, observation: Observation) -> Mind {
    let mut knowledge = knowledge(view);
    gather(&mut knowledge, view);
    let event = match observation {
        Observation::Looked(seen) => Event::Looked(Look {
            os: if seen.is_some() { os(seen) } else { blind() },
            rivals: vec![],
            finalization_failed: view.host.unfinalized,
        }),
        Observation::Node(object) => Event::NodeRead(object.map_or(ClusterNode::Gone, |o| ClusterNode::Is(node(&o)))),
        Observation::Guard(refuses) => {
            knowledge.after(Event::Begins(&Step::TryGuard), &now_on(&view.host));
            let answer = if refuses {
                Answer::Refuses
            } else {
                Answer::Allows(String::new())
            };
            knowledge.after(Event::Guard(Ok(answer)), &now_on(&view.host));
            Event::Ends(&Step::TryGuard, Ending::Done)
        }
        Observation::Heartbeat => Event::Heartbeat,
    };
    knowledge.after(event, &now_on(&view.host));
    mind(&knowledge, view)
}

/// Converts an agent's `Knowledge` to the model's smaller form.
pub fn mind(knowledge: &Knowledge, view: &AgentView) -> Mind {
    let turn = &knowledge.turn;
    // The last written phase matters only while the agent holds a berth.
    let holds = knowledge.cluster.holding().is_some();
    let deployments = knowledge.host.os.deployments();
    let guard = &knowledge.cluster.guard;
    let is_blind = matches!(knowledge.host.os, HostOs::Unusable { .. });
    let agent = Agent {
        published: knowledge.published_for.as_ref().map_or(0, rich::generation),
        os: deployments.map(|d| Os {
            booted: rich::image(d.booted.digest.as_ref()),
            staged: d.staged.as_ref().map_or(0, |s| rich::image(s.digest.as_ref())),
            locked: d.staged.as_ref().is_some_and(|s| s.locked),
            previous: rich::image(d.rollback.as_ref().and_then(|rollback| rollback.digest.as_ref())),
            queued: rich::image(knowledge.host.os.queued_digest()),
        }),
        fresh: knowledge.host.fresh,
        pulled: rich::image(knowledge.pulls.succeeded.as_ref()),
        node: match &knowledge.cluster.node {
            ClusterNode::Unread => NodeRead::Unread,
            ClusterNode::Gone => NodeRead::Gone,
            // A placeholder: [`Mind::settle`] keeps the agent's last read of the Node.
            ClusterNode::Is(_) => NodeRead::Is(Object::default(), false),
        },
        fenced: knowledge.cluster.fenced && holds,
        restored: turn.restored,
        drained: turn.drain.last_pass.done,
        reboot: reboot(turn),
        counted: turn.counted,
        // The agent uses this value only with a current read of the host, or after its own last write of the berth.
        wrote: turn
            .wrote
            .filter(|_| holds && (knowledge.host.fresh || knowledge.cluster.fenced))
            .and_then(|wrote| PHASES.into_iter().find(|p| discriminant(&rich::phase(*p)) == wrote)),
        lock_failure: knowledge.failures.lock.is_some(),
        failing: small_failing(knowledge),
        blind: is_blind,
        blind_long: is_blind && is_long_ago(knowledge.host.looked),
        disarmed: knowledge.host.disarmed,
        silence: match &knowledge.host.unreachable {
            None => Begun::No,
            Some((_, since)) if is_long_ago(*since) => Begun::LongAgo,
            Some(_) => Begun::Lately,
        },
        memory_error: knowledge.failures.memory.is_some(),
        knows_result: knowledge.pulls.processed.is_some(),
        guard: match guard.answer {
            Answer::Refuses | Answer::NothingToTry => Guard::Refuses,
            Answer::Allows(_) => Guard::Allows,
            Answer::Unknown => Guard::Unknown,
        },
        guard_due: !is_long_ago_from(now().clock, guard.again),
    };
    let host = host(knowledge, view);
    Mind { agent, host }
}

/// Returns the memory on the host, and the other fields of the host that depend on the agent's knowledge.
fn host(knowledge: &Knowledge, view: &AgentView) -> Host {
    let mut host = Host {
        drain: knowledge.turn.drain.since.map_or(Begun::No, since),
        ..remembered(view.host, &knowledge.past)
    };
    if !view.host.down && !view.host.silent && knowledge.pulls.processed.is_none() {
        host.ended = Ended::No;
    }
    // Without a running proof, its start does not matter.
    if knowledge.turn.proving.is_none() {
        host.proof = Begun::No;
    }
    host
}

fn is_long_ago(moment: Moment) -> bool {
    is_long_ago_from(moment, now().clock)
}

fn is_long_ago_from(moment: Moment, now: Moment) -> bool {
    !now.since(moment).is_zero()
}

fn blind() -> HostOs {
    HostOs::Unusable {
        reason: Reason::StepFailed,
        message: String::new(),
    }
}

fn deployment(image: Image, locked: bool) -> Deployment {
    Deployment {
        digest: rich::some_digest(image),
        locked,
        ..Deployment::default()
    }
}

fn os(seen: Option<Os>) -> HostOs {
    seen.map_or(HostOs::Unknown, |os| {
        HostOs::Bootc(Box::new(Deployments {
            booted: deployment(os.booted, false),
            staged: (os.staged != 0).then(|| deployment(os.staged, os.locked)),
            rollback: (os.previous != 0).then(|| deployment(os.previous, false)),
            rollback_queued: os.queued != 0,
            ..Deployments::default()
        }))
    })
}

/// Returns the kinds of the two steps whose failures the model records: locking and removing the staged image.
fn kinds() -> (Option<Discriminant<Step>>, Discriminant<Step>) {
    let lock = Storage::Ostree
        .ostree_lock()
        .map(|lock| discriminant(&Step::Lock(lock)));
    (lock, discriminant(&Step::Unstage(Deployment::default())))
}

fn failing(failing: Failing) -> Option<(Discriminant<Step>, StepFailure)> {
    let (lock, unstage) = kinds();
    let (kind, attempts) = match failing {
        Failing::No => return None,
        Failing::Lock(attempts) => (lock?, attempts.into()),
        Failing::Unstage => (unstage, 1),
    };
    let trouble = StepFailure {
        reason: Reason::StepFailed,
        message: String::new(),
        attempts,
    };
    Some((kind, trouble))
}

fn small_failing(knowledge: &Knowledge) -> Failing {
    let (lock, unstage) = kinds();
    match &knowledge.failures.step {
        // When the agent knows that locking fails, the number of attempts no longer matters.
        Some((kind, trouble)) if Some(*kind) == lock && knowledge.failures.lock.is_none() => {
            Failing::Lock(trouble.attempts.min(9) as u8)
        }
        Some((kind, _)) if *kind == unstage => Failing::Unstage,
        _ => Failing::No,
    }
}

fn turn(turn: &mut Turn, agent: &Agent) {
    let (asked, blocked) = match agent.reboot {
        Reboot::No => (None, None),
        Reboot::Asked => (Some(Duration::ZERO), None),
        Reboot::Late => (Some(REBOOT_START_TIMEOUT), None),
        Reboot::Long => (Some(REBOOT_START_TIMEOUT + REBOOT_RETRY_INTERVAL), None),
        Reboot::Blocked => (None, Some(Duration::ZERO)),
        Reboot::BlockedLong => (None, Some(REBOOT_RETRY_INTERVAL)),
    };
    turn.reboot.asked = asked.map(ago);
    turn.reboot.blocked = blocked.map(|time| ("refused".to_owned(), ago(time)));
    turn.drain.last_pass.done = agent.drained;
    turn.restored = agent.restored;
    turn.counted = agent.counted;
    turn.wrote = agent.wrote.map(|phase| discriminant(&rich::phase(phase)));
}

fn reboot(turn: &Turn) -> Reboot {
    let blocked = turn.reboot.blocked.as_ref().map(|(_, at)| now().clock.since(*at));
    let asked = turn.reboot.asked.map(|at| now().clock.since(at));
    match (blocked, asked) {
        (Some(time), _) if time >= REBOOT_RETRY_INTERVAL => Reboot::BlockedLong,
        (Some(_), _) => Reboot::Blocked,
        (None, Some(time)) if time >= REBOOT_START_TIMEOUT + REBOOT_RETRY_INTERVAL => Reboot::Long,
        (None, Some(time)) if time >= REBOOT_START_TIMEOUT => Reboot::Late,
        (None, Some(_)) => Reboot::Asked,
        (None, None) => Reboot::No,
    }
}

fn node(object: &Object) -> NodeFacts {
    let before = match object.cordon {
        Cordon::No => None,
        Cordon::OverSchedulable => Some(false),
        Cordon::OverCordoned => Some(true),
    };
    // The kubelet's last report is from the running boot, or from long before it.
    let reported = match object.boot {
        0 => rich::BEGAN,
        _ => rich::BEGAN - SignedDuration::from_hours(1),
    };
    let mut node = NodeFacts {
        uid: rich::uid(0, object.uid),
        resource_version: String::new(),
        unschedulable: object.unschedulable,
        ready: object.ready,
        boot_id: Some(BootId::new(rich::KERNEL)),
        cordon: before.map(|unschedulable| CordonRecord {
            unschedulable,
            ..CordonRecord::default()
        }),
        excluded: object.excluded,
        // No step depends on this field.
        control_plane: false,
        not_ready_taint: None,
        ready_reported: Some(reported),
        conditions: Default::default(),
        signs: Signs::default(),
    };
    node.settle_boot(&rich::boot(0), Some(rich::BEGAN));
    node
}

fn began(begun: Begun) -> Option<Duration> {
    match begun {
        Begun::No => None,
        Begun::Lately => Some(Duration::ZERO),
        Begun::LongAgo => Some(OVER),
    }
}

fn since_boot(before: Duration) -> BootMoment {
    BootMoment::new(&rich::boot(0), ago(before))
}

/// Returns a retry time that is a minute ahead of the wall clock. `is_ahead`: the clock is far ahead.
fn later(is_ahead: bool) -> Time {
    Time::from(wall(is_ahead) + SignedDuration::from_secs(60))
}

fn past(host: &Host) -> Past {
    let turn_at = if host.backoff {
        later(host.turn_ahead)
    } else {
        Time::from(rich::NOW)
    };
    let failed = (1..8).filter(|i| host.failed & (1 << i) != 0).map(rich::digest);
    Past {
        failure: host.pull_backoff.then(|| Failure {
            reason: String::new(),
            message: String::new(),
            digest: rich::some_digest(host.ours),
            attempts: 1,
            next_try_time: later(false),
        }),
        last_turn: (host.turn != 0).then(|| BadTurn {
            outcome: Outcome::NotApplied.as_str().to_owned(),
            message: String::new(),
            digest: rich::digest(host.turn),
            attempts: 1,
            next_try_time: turn_at,
        }),
        failed_digests: failed.collect(),
        staged_by_us: rich::some_digest(host.ours),
        incomplete: rich::some_digest(host.incomplete),
        not_applied: (host.not_applied.1 > 0).then(|| (rich::digest(host.not_applied.0), host.not_applied.1.into())),
        tried: rich::some_digest(host.tried),
        undone: (host.undone != 0).then(|| Undone {
            digest: rich::digest(host.undone),
            boot_id: rich::boot(if host.undoes { 0 } else { 1 }),
            reason: String::new(),
            why: String::new(),
        }),
        unproven_boot: host.relicensed.then(|| rich::boot(0)),
        target_deployed: host.deployed,
        fell_back: rich::some_digest(host.fell).map(|digest| FellBack {
            digest,
            boot_id: rich::boot(if host.falls { 0 } else { 1 }),
            ran: false,
        }),
        last_booted: rich::some_digest(host.last.0).map(|digest| LastBooted {
            digest,
            previous: rich::some_digest(host.last.1),
        }),
        outside_boot: rich::some_digest(host.left.0).map(|left| OutsideBoot {
            digest: rich::digest(host.last.0),
            left,
            is_rollback: host.left.1,
        }),
        retry_token: (host.token != 0).then(|| host.token.to_string()),
        drain_began: began(host.drain).map(|before| rich::NOW - before),
        drain_since: began(host.drain).map(since_boot),
        proof_since: began(host.proof).map(since_boot),
        ..Past::default()
    }
}

fn remembered(host: Host, past: &Past) -> Host {
    Host {
        pull_backoff: past.failure.is_some(),
        turn: past.last_turn.as_ref().map_or(0, |t| rich::image(Some(&t.digest))),
        backoff: past.last_turn.as_ref().is_some_and(|t| t.next_try_time.0 > rich::NOW),
        turn_ahead: past.last_turn.as_ref().is_some_and(|t| t.next_try_time.0 >= wall(true)),
        failed: past
            .failed_digests
            .iter()
            .fold(0, |bits, d| bits | 1 << rich::image(Some(d))),
        ours: rich::image(past.staged_by_us.as_ref()),
        incomplete: rich::image(past.incomplete.as_ref()),
        not_applied: past
            .not_applied
            .as_ref()
            .map_or((0, 0), |(d, n)| (rich::image(Some(d)), (*n).min(9) as u8)),
        tried: rich::image(past.tried.as_ref()),
        undone: past
            .undone
            .as_ref()
            .map_or(0, |undone| rich::image(Some(&undone.digest))),
        undoes: past
            .undone
            .as_ref()
            .is_some_and(|undone| undone.boot_id == rich::boot(0)),
        relicensed: past.unproven_boot == Some(rich::boot(0)),
        deployed: past.target_deployed,
        fell: past
            .fell_back
            .as_ref()
            .map_or(0, |fell| rich::image(Some(&fell.digest))),
        falls: past
            .fell_back
            .as_ref()
            .is_some_and(|fell| fell.boot_id == rich::boot(0)),
        last: past.last_booted.as_ref().map_or((0, 0), |last| {
            (rich::image(Some(&last.digest)), rich::image(last.previous.as_ref()))
        }),
        left: past.outside_boot.as_ref().map_or((0, false), |outside| {
            (rich::image(Some(&outside.left)), outside.is_rollback)
        }),
        token: past.retry_token.as_ref().and_then(|t| t.parse().ok()).unwrap_or(0),
        proof: match past.proof_since.as_ref().map(|since| since.under(&rich::boot(0))) {
            Some(Some(since)) if since < now().clock => Begun::LongAgo,
            Some(_) => Begun::Lately,
            None => Begun::No,
        },
        ..host
    }
}

impl Mind {
    pub fn settle(&self, agent: &mut Agent, host: &mut Host) {
        let node = match self.agent.node {
            NodeRead::Is(..) => agent.node,
            other => other,
        };
        *agent = Agent { node, ..self.agent };
        let before = host.memory();
        host.remember(self.host.memory());
        host.pull_backoff = self.host.pull_backoff;
        host.turn_ahead = self.host.turn_ahead;
        host.ended = self.host.ended;
        host.store(before);
    }
}
