//! Schedule of the queries to registries. Does no I/O.
//!
//! A [`Question`] asks a registry for the image that a tag or digest names. The controller sends a question when a
//! pool needs a newer answer, when the poll interval has passed, or when the retry of a failed request is due. If a
//! registry is unavailable or rejects requests because of a rate limit, it gets only one question at a time, with
//! growing delays. As soon as it answers one, the other questions follow.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::ImageRef;
use berth_api::pool::Target;
use berth_core::Moment;
use berth_core::controller::image::{Answer, Found, QueryFailure};
use berth_shell::retry;
use jiff::Timestamp;

use super::reason::{ResolveError, ResolveReason};

const RETRY_MIN: Duration = Duration::from_millis(1500);
/// Maximum retry delay while a reference is not resolved (the jitter may double it). Short, because the pool cannot
/// update meanwhile, and its current image may be bad.
const RETRY_MAX: Duration = Duration::from_secs(35);
/// Maximum retry delay for the tag of a resolved image, before the jitter, which may double it.
const POLL_RETRY_MAX: Duration = Duration::from_secs(30 * 60);
/// Maximum delay that a registry can demand by `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Longest delay before a new leader first polls a tag.
const FIRST_POLL: Duration = Duration::from_secs(5 * 60);
/// Minimum time between two requests for the same image.
pub(super) const MIN_SPACING: Duration = Duration::from_millis(250);
/// When an outage of a registry ends, the questions that waited for the registry are asked within this time.
const CATCH_UP_TIME: Duration = Duration::from_secs(2);

/// A question to a registry, shared by all pools that ask it: which image does a tag or digest name?
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    /// Repository with a tag or a digest.
    pub(super) image: ImageRef,
    /// Secret with the registry credentials.
    pub(super) secret: Option<String>,
}

impl Question {
    fn registry(&self) -> &str {
        self.image.registry()
    }
}

/// Requirements of one pool for a question: when to ask it, and which answers count.
#[derive(Debug, Clone, Default)]
pub(super) struct Ask {
    /// Poll interval; `None` for no polls.
    pub(super) interval: Option<Duration>,
    /// Only an answer to a request sent at or after this moment counts. `None`: any answer counts.
    pub(super) after: Option<Moment>,
    /// How long to delay the request after the time `after`, so that other pools' requests can share it.
    pub(super) gather: Duration,
    /// True if an admin requested the poll: no retry delays apply, except a delay that the registry demands.
    pub(super) by_admin: bool,
    /// True if the pool is blocked until there is an answer.
    pub(super) urgent: bool,
    /// True if failures are retried until there is an answer.
    pub(super) until_answered: bool,
    /// Images that the pool already has. If the tag points to one of them, the image is not fetched again.
    pub(super) known: Vec<Target>,
}

#[derive(Debug)]
struct Failure {
    error: ResolveError,
    attempts: u32,
    /// Wall-clock time of the first failure since the last success.
    since: Timestamp,
    /// Time of this failure, by the monotonic and the wall clock.
    noted: (Moment, Timestamp),
    /// Time of the next try if a pool is blocked until there is an answer. Otherwise, the next try is at `late`.
    soon: Moment,
    late: Moment,
}

impl Failure {
    fn next(&self, urgent: bool) -> Moment {
        if urgent { self.soon } else { self.late }
    }

    fn trouble(&self, next: Option<Moment>) -> QueryFailure {
        let (noted, wall) = self.noted;
        QueryFailure {
            reason: self.error.reason.into(),
            message: self.error.message.clone(),
            since: self.since,
            attempts: self.attempts,
            next: next.map(|next| wall.checked_add(next.since(noted)).unwrap_or(wall)),
        }
    }

    /// Creates the failure that follows `before` (`None` for the first failure). `last`: maximum delay of a retry that
    /// is not urgent.
    fn after(before: Option<&Failure>, error: ResolveError, last: Duration, (now, wall): (Moment, Timestamp)) -> Self {
        let attempts = before.map_or(0, |f| f.attempts).saturating_add(1);
        let least = error.retry_after.unwrap_or_default();
        Self {
            attempts,
            since: before.map_or(wall, |f| f.since),
            noted: (now, wall),
            soon: now + retry::delay(attempts, RETRY_MIN, RETRY_MAX).max(least),
            late: now + retry::delay(attempts, RETRY_MIN, last).max(least),
            error,
        }
    }
}

#[derive(Debug, Default)]
struct Job {
    asks: Vec<Ask>,
    running: bool,
    /// Start of the last request.
    started: Option<Moment>,
    /// Start of the current poll interval, and the interval's random jitter between 0 and 1.
    basis: (Moment, f64),
    found: Option<(Target, Moment)>,
    failure: Option<Failure>,
}

/// State of a registry that is unavailable or rejects requests because of a rate limit.
#[derive(Debug)]
struct Outage {
    failure: Failure,
    /// Earliest time of the next request that the registry permits (`Retry-After`).
    not_before: Option<Moment>,
    probed: bool,
}

impl Outage {
    fn next(&self, urgent: bool) -> Moment {
        self.failure.next(urgent).max(self.not_before.unwrap_or_default())
    }
    fn forbids(&self, now: Moment) -> bool {
        self.not_before.is_some_and(|at| at > now)
    }
}

/// The questions of all pools, and the registries with an outage.
#[derive(Debug, Default)]
pub(super) struct Polls {
    jobs: BTreeMap<Question, Job>,
    outages: BTreeMap<String, Outage>,
}

impl Job {
    fn new(now: Moment) -> Self {
        Self {
            basis: (now, fastrand::f64()),
            ..Self::default()
        }
    }

    fn interval(&self) -> Option<Duration> {
        self.asks.iter().filter_map(|ask| ask.interval).min()
    }

    /// True if a pool is blocked until there is an answer.
    fn is_urgent(&self) -> bool {
        self.asks.iter().any(|ask| ask.urgent)
    }

    /// True if a failed request is retried automatically.
    fn is_tried_again(&self) -> bool {
        let mut asks = self.asks.iter();
        asks.any(|ask| ask.urgent || ask.until_answered || ask.interval.is_some())
    }

    /// True if `ask` needs a newer request than the last one that was sent.
    fn is_unmet(&self, ask: &Ask) -> bool {
        ask.after.is_some_and(|after| self.started.is_none_or(|at| at < after))
    }

    /// Returns the time of the next request, and true if an admin requested it. `None` if no request is wanted.
    fn wanted(&self) -> Option<(Moment, bool)> {
        let unmet: Vec<&Ask> = self.asks.iter().filter(|ask| self.is_unmet(ask)).collect();
        let earliest = unmet.iter().filter_map(|ask| Some(ask.after? + ask.gather)).min();
        let asked = earliest.map(|at| {
            let spaced = self.started.map_or(at, |started| at.max(started + MIN_SPACING));
            (spaced, unmet.iter().any(|ask| ask.by_admin))
        });
        let scheduled = match &self.failure {
            Some(failure) => self.is_tried_again().then(|| failure.next(self.is_urgent())),
            None => self.interval().map(|interval| self.basis.0 + self.jittered(interval)),
        };
        let scheduled = scheduled.map(|at| (at, false));
        match (asked, scheduled) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1)),
            (a, b) => a.or(b),
        }
    }

    /// Returns the interval, up to a tenth longer or shorter. Before a leader's first request: a random time of up to a
    /// quarter of the interval, at most [`FIRST_POLL`].
    fn jittered(&self, interval: Duration) -> Duration {
        match self.started {
            Some(_) => interval.mul_f64(0.9 + 0.2 * self.basis.1),
            None => (interval / 4).min(FIRST_POLL).mul_f64(self.basis.1),
        }
    }
}

impl Polls {
    /// Replaces the questions of all pools, and forgets those that no pool asks any more.
    pub(super) fn ask(&mut self, asks: BTreeMap<Question, Vec<Ask>>, now: Moment) {
        self.jobs.retain(|question, _| asks.contains_key(question));
        for (question, asks) in asks {
            self.jobs.entry(question).or_insert_with(|| Job::new(now)).asks = asks;
        }
        let jobs = &self.jobs;
        self.outages.retain(|registry, outage| {
            let mut of = jobs.iter().filter(|(question, _)| question.registry() == registry);
            outage.probed = of.clone().any(|(_, job)| job.running);
            of.next().is_some()
        });
    }

    /// Time of the next request for this question. `None` if no request is wanted, or if one is in progress. Also
    /// `None` while a request for another question probes the failing registry, unless an admin requested this poll.
    fn next(&self, question: &Question, job: &Job) -> Option<Moment> {
        if job.running {
            return None;
        }
        let (at, by_admin) = job.wanted()?;
        let Some(outage) = self.outages.get(question.registry()) else {
            return Some(at);
        };
        let at = outage.not_before.map_or(at, |not_before| at.max(not_before));
        if by_admin {
            return Some(at);
        }
        (!outage.probed).then(|| at.max(outage.failure.next(job.is_urgent())))
    }

    /// Time of the next request for any question.
    pub(super) fn due(&self) -> Option<Moment> {
        let all = self.jobs.iter();
        all.filter_map(|(question, job)| self.next(question, job)).min()
    }

    /// Returns the questions to ask now, each with the images that need not be fetched again.
    pub(super) fn start(&mut self, now: Moment) -> Vec<(Question, Vec<Target>)> {
        let mut order: Vec<_> = self.jobs.iter().map(|(q, job)| (job.basis.0, q.clone())).collect();
        // Oldest first, so that a failing registry gets a different question each time.
        order.sort();
        let mut begun = vec![];
        for (_, question) in order {
            let next = self.jobs.get(&question).and_then(|job| self.next(&question, job));
            if next.is_none_or(|at| at > now) {
                continue;
            }
            if let Some(outage) = self.outages.get_mut(question.registry()) {
                outage.probed = true;
            }
            // The job exists: `next` above has read it.
            let Some(job) = self.jobs.get_mut(&question) else {
                continue;
            };
            job.running = true;
            job.started = Some(now);
            let found = job.found.iter().map(|(target, _)| target.clone());
            let known = found
                .chain(job.asks.iter().flat_map(|ask| ask.known.iter().cloned()))
                // An image without metadata is fetched again: it is unknown, for example, whether it can boot.
                .filter(|target| target.metadata.is_some())
                .collect();
            begun.push((question, known));
        }
        begun
    }

    /// Records an answer. Ignores it if its question is no longer asked.
    pub(super) fn answered(
        &mut self,
        question: &Question,
        answer: Result<Target, ResolveError>,
        clocks: (Moment, Timestamp),
    ) {
        let now = clocks.0;
        let Some(job) = self.jobs.get_mut(question).filter(|job| job.running) else {
            return;
        };
        let began = job.started.unwrap_or(now);
        let urgent = job.is_urgent();
        job.running = false;
        job.basis = (now, fastrand::f64());
        let last = job
            .interval()
            .unwrap_or(POLL_RETRY_MAX)
            .clamp(RETRY_MAX, POLL_RETRY_MAX);
        let error = match answer {
            Ok(target) => {
                job.found = Some((target, began));
                job.failure = None;
                return self.end_outage(question.registry(), began, now);
            }
            Err(mut error) => {
                error.retry_after = error.retry_after.map(|after| after.min(RETRY_AFTER_MAX));
                error
            }
        };
        job.failure = Some(Failure::after(job.failure.as_ref(), error.clone(), last, clocks));
        let fails = matches!(
            error.reason,
            ResolveReason::RegistryUnavailable | ResolveReason::RateLimited
        );
        if !fails {
            // An error on the controller's side shows nothing about the registry.
            return if error.reason.is_our_own() {
                self.end_probe(question.registry())
            } else {
                self.end_outage(question.registry(), began, now)
            };
        }
        self.begin_outage(question.registry(), error, (began, last, urgent), clocks);
    }

    /// Begins or prolongs a registry's outage after the failure of a request that began at `began`. `last`: maximum
    /// delay of a retry that is not urgent.
    fn begin_outage(
        &mut self,
        registry: &str,
        error: ResolveError,
        (began, last, urgent): (Moment, Duration, bool),
        clocks: (Moment, Timestamp),
    ) {
        let now = clocks.0;
        let before = self.outages.remove(registry);
        // Requests that ran at the same time count as one failure.
        let (failure, earlier) = match before {
            Some(outage) if began < outage.failure.noted.0 && error.retry_after.is_none() => {
                (outage.failure, outage.not_before)
            }
            Some(outage) => {
                let mut failure = Failure::after(Some(&outage.failure), error.clone(), last, clocks);
                // Questions that can wait keep their own retry time; frequent urgent tries do not postpone it.
                if urgent || outage.failure.late > now {
                    failure.late = outage.failure.late;
                }
                (failure, outage.not_before)
            }
            None => (Failure::after(None, error.clone(), last, clocks), None),
        };
        let outage = Outage {
            failure,
            not_before: error.retry_after.map(|after| now + after).max(earlier),
            probed: false,
        };
        self.outages.insert(registry.to_owned(), outage);
    }

    /// Ends a probe that showed nothing about the registry. The next probe may ask another question.
    fn end_probe(&mut self, registry: &str) {
        if let Some(outage) = self.outages.get_mut(registry) {
            outage.probed = false;
        }
    }

    /// Ends the outage of a registry that answered a request begun at `began`. Questions that failed because of the
    /// outage are asked soon.
    fn end_outage(&mut self, registry: &str, began: Moment, now: Moment) {
        // The registry has failed again since that request began.
        if self
            .outages
            .get(registry)
            .is_some_and(|outage| began < outage.failure.noted.0)
        {
            return self.end_probe(registry);
        }
        let Some(outage) = self.outages.remove(registry) else {
            return;
        };
        for (_, job) in self
            .jobs
            .iter_mut()
            .filter(|(question, _)| question.registry() == registry)
        {
            if let Some(failure) = job.failure.as_mut().filter(|f| f.attempts <= outage.failure.attempts) {
                let soon = now + CATCH_UP_TIME.mul_f64(fastrand::f64());
                failure.soon = failure.soon.min(soon);
                failure.late = failure.late.min(soon);
            }
        }
    }

    /// True if a request sent at or after `after` has ended, whatever its result, or the registry forbids requests now.
    pub(super) fn is_over(&self, question: &Question, after: Moment, now: Moment) -> bool {
        let Some(job) = self.jobs.get(question) else {
            return false;
        };
        let forbids = self
            .outages
            .get(question.registry())
            .is_some_and(|outage| outage.forbids(now));
        !job.running && (job.started.is_some_and(|at| at >= after) || forbids)
    }

    /// Last image that was found, and the time when its request began.
    pub(super) fn found(&self, question: &Question) -> Option<&(Target, Moment)> {
        self.jobs.get(question)?.found.as_ref()
    }

    /// Returns the state of a question. Ignores images from requests that began before `after`.
    pub(super) fn answer(&self, question: &Question, after: Option<Moment>, now: Moment) -> Answer {
        let Some(job) = self.jobs.get(question) else {
            return Answer::default();
        };
        let found = job
            .found
            .as_ref()
            .filter(|(_, began)| after.is_none_or(|after| *began >= after));
        let found = found.map(|(image, began)| Found {
            image: image.clone(),
            age: now.since(*began),
        });
        let urgent = job.is_urgent();
        let of_all = self.outages.get(question.registry());
        let own = job.failure.as_ref().map(|failure| {
            let outage = of_all.map(|outage| outage.next(urgent));
            // During a retry the last failure is reported unchanged.
            let next = failure.next(urgent);
            failure.trouble(
                job.is_tried_again()
                    .then(|| outage.map_or(next, |outage| next.max(outage))),
            )
        });
        let trouble = own.or_else(|| {
            // An outage is reported only to blocked pools, or to every pool while the registry forbids all requests.
            let outage = of_all.filter(|outage| !job.running && (urgent || outage.forbids(now)))?;
            Some(outage.failure.trouble(Some(outage.next(urgent))))
        });
        Answer { found, trouble }
    }
}

#[cfg(test)]
mod tests;
