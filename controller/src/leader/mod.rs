//! Leadership: usually only one controller acts at a time.
//!
//! Safety does not depend on leadership: a write of a leader that was suspended for a minute may still arrive. The
//! fence is the epoch, which each new leader stamps on every berth. Leadership only keeps two controllers from working
//! against each other for long.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use berth_shell::locked;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};

use berth_api::decode::Decoded;
use berth_api::keys;
use berth_shell::request::{NoAnswer, within};
use tokio::task::JoinHandle;

use crate::pulse::Pulse;

mod election;

pub use election::{Election, Move};

/// Name of the Lease that the leader holds.
pub const LEASE: &str = berth_api::keys::LEADER_LEASE;

/// Timing of leader election. All times are measured on this machine.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// How long the Lease must be unchanged, as observed here, before its holder counts as dead.
    pub duration: Duration,
    /// A leader stops if it could not renew the Lease for this long. Less than `duration`.
    pub renew_deadline: Duration,
    /// Time between two tries to get or renew the Lease.
    pub retry_period: Duration,
}

/// Error: this process is no longer the leader, or cannot be sure that it still is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("leadership lost: {0}")]
pub struct Lost(pub String);

/// Proof that this process leads. Must be checked before each write. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Leadership {
    epoch: u64,
    timing: Timing,
    /// Time when the last successful renewal was sent.
    renewed: Arc<Mutex<Instant>>,
    pulse: Pulse,
}

impl Leadership {
    fn new(epoch: u64, timing: Timing, renewed: Instant, pulse: Pulse) -> Self {
        pulse.beat();
        Self {
            epoch,
            timing,
            pulse,
            renewed: Arc::new(Mutex::new(renewed)),
        }
    }

    /// Epoch of this leader: larger than the epochs of all earlier leaders.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Records that the reconciler's passes make progress.
    pub fn beat(&self) {
        self.pulse.beat();
    }

    fn renewed(&self) -> Instant {
        *locked(&self.renewed)
    }

    fn renew(&self, sent: Instant) {
        *locked(&self.renewed) = sent;
    }

    /// Returns the time left until another controller could become leader. Fails if the renew deadline has passed.
    pub fn check(&self) -> Result<Duration, Lost> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<Duration, Lost> {
        let age = now.saturating_duration_since(self.renewed());
        if age < self.timing.renew_deadline {
            return Ok(self.timing.duration - age);
        }
        Err(Lost(format!(
            "the Lease was last renewed {} s ago; another controller may lead now",
            age.as_secs()
        )))
    }
}

/// A controller that competes for leadership.
#[derive(Clone)]
pub struct Candidate {
    client: Client,
    namespace: String,
    identity: String,
    timing: Timing,
    pulse: Pulse,
}

impl std::fmt::Debug for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Candidate")
            .field("identity", &self.identity)
            .field("timing", &self.timing)
            .finish_non_exhaustive()
    }
}

impl Candidate {
    /// Creates a candidate. `identity` must be unique to this process; `pulse` reports whether the passes make
    /// progress.
    pub fn new(client: Client, namespace: &str, identity: String, timing: Timing, pulse: Pulse) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            identity,
            timing,
            pulse,
        }
    }

    fn api(&self) -> Api<Decoded<Lease>> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn within<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestError> {
        let answer = within(self.timing.retry_period.max(MIN_TIMEOUT), request).await;
        if matches!(answer, Ok(_) | Err(RequestError::Conflict)) {
            self.pulse.answered();
        }
        answer
    }

    /// Waits until this process leads.
    pub async fn acquire(&self) -> (Leadership, Lease) {
        let mut election = Election::new(self.timing.duration);
        let mut leader = None;
        loop {
            match self.try_acquire(&mut election).await {
                Ok(Some(won)) => return won,
                Ok(None) => {
                    let holder = election.holder().map(str::to_owned);
                    if holder != leader {
                        tracing::info!(leader = holder.as_deref().unwrap_or("none"), "waiting for leadership");
                        leader = holder;
                    }
                }
                Err(RequestError::Conflict) => {}
                Err(RequestError::Other(error)) => {
                    tracing::warn!(%error, "leader election: request failed; trying again");
                }
            }
            tokio::time::sleep(self.timing.retry_period).await;
        }
    }

    async fn try_acquire(&self, election: &mut Election) -> Result<Option<(Leadership, Lease)>, RequestError> {
        let api = self.api();
        let lease = self.within(api.get_opt(LEASE)).await?;
        let next = election.observe(lease.as_deref(), Instant::now());
        let sent = Instant::now();
        let lease = match (next, lease) {
            (Move::Create, _) => {
                // The Lease may have been deleted by hand: start above every epoch on a berth.
                let transitions = self.highest_epoch().await?.saturating_add(1);
                let lease = self.lease(None, transitions);
                self.within(api.create(&PostParams::default(), &lease.into())).await?
            }
            (Move::Take, Some(old)) => {
                let transitions = transitions(&old).saturating_add(1);
                let lease = self.lease(Some(old.object), transitions);
                self.within(api.replace(LEASE, &PostParams::default(), &lease.into()))
                    .await?
            }
            _ => return Ok(None),
        };
        let epoch = u64::try_from(transitions(&lease)).unwrap_or_default();
        tracing::info!(identity = %self.identity, epoch, "leading");
        Ok(Some((
            Leadership::new(epoch, self.timing, sent, self.pulse.clone()),
            lease.object,
        )))
    }

    async fn highest_epoch(&self) -> Result<i32, RequestError> {
        let api = self.api();
        let params = ListParams::default().labels(keys::LABEL_POOL);
        let berths = self.within(api.list(&params)).await?;
        let epochs = berths.iter().filter_map(|lease| {
            let text = lease.metadata.annotations.as_ref()?.get(keys::ANNOTATION_EPOCH)?;
            text.parse::<i32>().ok()
        });
        Ok(epochs.max().unwrap_or(0))
    }

    fn lease(&self, old: Option<Lease>, transitions: i32) -> Lease {
        let now = MicroTime::from(Timestamp::now());
        let metadata = old.map_or_else(
            || ObjectMeta {
                name: Some(LEASE.to_owned()),
                namespace: Some(self.namespace.clone()),
                ..ObjectMeta::default()
            },
            |old| old.metadata,
        );
        let seconds = i32::try_from(self.timing.duration.as_secs()).unwrap_or(i32::MAX);
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(seconds.max(1)),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Starts a task that renews the Lease. The task ends when leadership is lost, and returns the cause; the process
    /// must then exit.
    pub fn renew(&self, leadership: Leadership, lease: Lease) -> JoinHandle<Lost> {
        let candidate = self.clone();
        tokio::spawn(async move { candidate.keep(&leadership, lease).await })
    }

    async fn keep(&self, leadership: &Leadership, lease: Lease) -> Lost {
        let mut lease = Decoded::from(lease);
        let api = self.api();
        // Renewals without an answer: the `renewTime` that each wrote, and the time when it was sent.
        let mut unanswered: Vec<(Timestamp, Instant)> = vec![];
        loop {
            tokio::time::sleep(self.timing.retry_period).await;
            if leadership.pulse.is_lost() {
                return Lost("the controller's reconcile loop hangs".to_owned());
            }
            let (written, sent) = (microseconds(Timestamp::now()), Instant::now());
            unanswered.push((written, sent));
            if let Some(spec) = &mut lease.spec {
                spec.renew_time = Some(MicroTime::from(written));
            }
            match self.within(api.replace(LEASE, &PostParams::default(), &lease)).await {
                Ok(renewed) => {
                    lease = renewed;
                    leadership.renew(sent);
                    unanswered.clear();
                }
                Err(RequestError::Conflict) => match self.within(api.get_opt(LEASE)).await {
                    // An earlier renewal was stored but its answer was lost, or an annotation of the Lease was changed.
                    Ok(Some(found)) if self.is_mine(&found, leadership.epoch) => {
                        let written = found.spec.as_ref().and_then(|s| s.renew_time.as_ref()).map(|t| t.0);
                        if let Some((_, sent)) = unanswered.iter().find(|(time, _)| Some(*time) == written) {
                            leadership.renew(*sent);
                        }
                        // Other renewals still in flight will fail with a conflict: the Lease has changed.
                        unanswered.clear();
                        lease = found;
                    }
                    Ok(_) => return Lost("another controller has taken the Lease".to_owned()),
                    Err(error) => tracing::warn!(?error, "Lease not renewed"),
                },
                Err(RequestError::Other(error)) => tracing::warn!(%error, "Lease not renewed"),
            }
            if let Err(lost) = leadership.check() {
                return lost;
            }
        }
    }

    fn is_mine(&self, lease: &Lease, epoch: u64) -> bool {
        let holder = lease.spec.as_ref().and_then(|s| s.holder_identity.as_deref());
        holder == Some(self.identity.as_str()) && u64::try_from(transitions(lease)) == Ok(epoch)
    }

    /// Releases leadership, so that the next controller need not wait.
    pub async fn release(&self, leadership: &Leadership) {
        let api = self.api();
        let Ok(Some(mut lease)) = self.within(api.get_opt(LEASE)).await else {
            return;
        };
        if !self.is_mine(&lease, leadership.epoch) {
            return;
        }
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
            spec.renew_time = Some(MicroTime::from(Timestamp::now()));
        }
        match self.within(api.replace(LEASE, &PostParams::default(), &lease)).await {
            Ok(_) => tracing::info!("leadership released"),
            Err(error) => tracing::warn!(?error, "leadership not released"),
        }
    }
}

/// Cuts a time to microseconds, the precision of times in a Lease.
fn microseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

const MIN_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum RequestError {
    Conflict,
    Other(String),
}

impl From<kube::Error> for RequestError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => Self::Conflict,
            error => Self::Other(error.to_string()),
        }
    }
}

impl From<NoAnswer> for RequestError {
    fn from(error: NoAnswer) -> Self {
        Self::Other(error.to_string())
    }
}

fn transitions(lease: &Lease) -> i32 {
    let spec = lease.spec.as_ref();
    spec.and_then(|s| s.lease_transitions).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests;
