//! When which question is put to a registry. No I/O: the times of all questions, whoever asks them.
//!
//! A question is asked when somebody wants an answer from after some moment, when its interval is over, and when it is time to
//! try again what failed. A registry that fails as a whole is asked by one question at a time, later and later, until it
//! answers; the others then follow.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::pool::Target;
use berth_core::Moment;
use berth_core::controller::image::{Answer, Found, QueryFailure};
use berth_shell::retry;
use jiff::Timestamp;

use super::{ResolveError, ResolveReason};

const FIRST_RETRY: Duration = Duration::from_millis(1500);
/// Longest wait between two tries while a reference is not resolved, but for the jitter, which may double it: its pool stands
/// still, maybe on an image that somebody wants to be rid of.
const LAST_RETRY: Duration = Duration::from_secs(35);
/// The same for the tag of an image in force; with the jitter an hour.
const LAST_POLL_RETRY: Duration = Duration::from_secs(30 * 60);
/// Longest time that a registry can make everybody wait by `Retry-After`.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// Time after the start of a leader within which it looks at each tag for the first time.
const FIRST_POLL: Duration = Duration::from_secs(5 * 60);
/// Shortest time from one request for an image to the next.
pub(super) const SPACING: Duration = Duration::from_millis(250);
/// Time within which the questions that waited for a registry follow when it answers again.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A question to a registry, whoever asks it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Question {
    /// Repository with a tag or a digest.
    pub(super) image: String,
    /// Secret with the credentials to ask with.
    pub(super) secret: Option<String>,
}

impl Question {
    fn registry(&self) -> &str {
        self.image.split_once('/').map_or("", |(registry, _)| registry)
    }
}

/// Demand of a pool on a question.
#[derive(Debug, Clone, Default)]
pub(super) struct Ask {
    /// Time between two polls; `None` for no polls.
    pub(super) interval: Option<Duration>,
    /// Only an answer to a request from after that moment will do.
    pub(super) after: Option<Moment>,
    /// Time to wait after that moment for others who want the same.
    pub(super) gather: Duration,
    /// An admin asks: no backoff of ours keeps him waiting.
    pub(super) by_admin: bool,
    /// The pool stands still without an answer.
    pub(super) urgent: bool,
    /// True: the question is asked until it is answered.
    pub(super) until_answered: bool,
    /// Images that need not be fetched again.
    pub(super) known: Vec<Target>,
}

#[derive(Debug)]
struct Failure {
    error: ResolveError,
    attempts: u32,
    /// Wall clock at the first failure in a row.
    since: Timestamp,
    /// Time of this one, by both clocks.
    noted: (Moment, Timestamp),
    /// Time of the next try, while somebody stands still and otherwise.
    soon: Moment,
    late: Moment,
}

impl Failure {
    fn next(&self, urgent: bool) -> Moment {
        if urgent { self.soon } else { self.late }
    }

    fn trouble(&self, next: Option<Moment>) -> QueryFailure {
        let (noted, wall) = self.noted;
        let at = |next: Moment| wall.checked_add(next.since(noted)).unwrap_or(wall);
        QueryFailure {
            reason: self.error.reason.into(),
            message: self.error.message.clone(),
            since: self.since,
            attempts: self.attempts,
            next: next.map(at),
        }
    }

    /// The failure after an earlier one.
    fn after(before: Option<&Failure>, error: ResolveError, last: Duration, (now, wall): (Moment, Timestamp)) -> Self {
        let attempts = before.map_or(0, |f| f.attempts).saturating_add(1);
        let least = error.retry_after.unwrap_or_default();
        let delay = |last| now + retry::delay(attempts, FIRST_RETRY, last).max(least);
        Self {
            attempts,
            since: before.map_or(wall, |f| f.since),
            noted: (now, wall),
            soon: delay(LAST_RETRY),
            late: delay(last),
            error,
        }
    }
}

#[derive(Debug)]
struct Job {
    asks: Vec<Ask>,
    running: bool,
    /// Start of the last request.
    started: Option<Moment>,
    /// Time from which the interval counts, and the part of the jitter that was drawn for it.
    basis: (Moment, f64),
    found: Option<(Target, Moment)>,
    failure: Option<Failure>,
}

/// A registry that fails as a whole.
#[derive(Debug)]
struct Away {
    failure: Failure,
    /// The admin of the registry has said so.
    not_before: Option<Moment>,
    probed: bool,
}

impl Away {
    fn forbids(&self, now: Moment) -> bool {
        self.not_before.is_some_and(|at| at > now)
    }
}

/// All questions.
#[derive(Debug, Default)]
pub(super) struct Polls {
    jobs: BTreeMap<Question, Job>,
    away: BTreeMap<String, Away>,
}

impl Job {
    fn new(now: Moment) -> Self {
        Self {
            asks: vec![],
            running: false,
            started: None,
            basis: (now, fastrand::f64()),
            found: None,
            failure: None,
        }
    }

    fn interval(&self) -> Option<Duration> {
        self.asks.iter().filter_map(|ask| ask.interval).min()
    }

    /// Says whether a pool stands still without an answer.
    fn is_urgent(&self) -> bool {
        self.asks.iter().any(|ask| ask.urgent)
    }

    /// Says whether a failure is followed by another try that nobody has to ask for.
    fn is_tried_again(&self) -> bool {
        let again = |ask: &Ask| ask.urgent || ask.until_answered || ask.interval.is_some();
        self.asks.iter().any(again)
    }

    /// Time of the next request, and whether an admin has asked for it; `None`: nobody asks for one.
    fn wanted(&self) -> Option<(Moment, bool)> {
        let unmet = |ask: &&Ask| ask.after.is_some_and(|after| self.started.is_none_or(|at| at < after));
        let unmet: Vec<&Ask> = self.asks.iter().filter(unmet).collect();
        let earliest = unmet.iter().filter_map(|ask| Some(ask.after? + ask.gather)).min();
        let spaced = |at: Moment| self.started.map_or(at, |started| at.max(started + SPACING));
        let asked = earliest.map(|at| (spaced(at), unmet.iter().any(|ask| ask.by_admin)));
        let by_itself = match &self.failure {
            Some(failure) => self.is_tried_again().then(|| failure.next(self.is_urgent())),
            None => self.interval().map(|interval| self.basis.0 + self.jittered(interval)),
        };
        let by_itself = by_itself.map(|at| (at, false));
        match (asked, by_itself) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1)),
            (a, b) => a.or(b),
        }
    }

    /// The interval, a tenth longer or shorter; for a leader that has not asked yet, a part of it.
    fn jittered(&self, interval: Duration) -> Duration {
        match self.started {
            Some(_) => interval.mul_f64(0.9 + 0.2 * self.basis.1),
            None => (interval / 4).min(FIRST_POLL).mul_f64(self.basis.1),
        }
    }
}

impl Polls {
    /// Takes in what all pools ask, and forgets what nobody asks any more.
    pub(super) fn ask(&mut self, asks: BTreeMap<Question, Vec<Ask>>, now: Moment) {
        self.jobs.retain(|question, _| asks.contains_key(question));
        for (question, asks) in asks {
            self.jobs.entry(question).or_insert_with(|| Job::new(now)).asks = asks;
        }
        let jobs = &self.jobs;
        self.away.retain(|registry, away| {
            let mut of = jobs.iter().filter(|(question, _)| question.registry() == registry);
            away.probed = of.clone().any(|(_, job)| job.running);
            of.next().is_some()
        });
    }

    /// Time of the next request for this; `None` while one is under way, or nobody wants one.
    fn next(&self, question: &Question, job: &Job) -> Option<Moment> {
        if job.running {
            return None;
        }
        let (at, by_admin) = job.wanted()?;
        let Some(away) = self.away.get(question.registry()) else {
            return Some(at);
        };
        let at = away.not_before.map_or(at, |not_before| at.max(not_before));
        if by_admin {
            return Some(at);
        }
        (!away.probed).then(|| at.max(away.failure.next(job.is_urgent())))
    }

    /// Time of the next request for anything.
    pub(super) fn due(&self) -> Option<Moment> {
        let all = self.jobs.iter();
        all.filter_map(|(question, job)| self.next(question, job)).min()
    }

    /// The questions to ask now, with what need not be fetched again.
    pub(super) fn start(&mut self, now: Moment) -> Vec<(Question, Vec<Target>)> {
        let mut order: Vec<_> = self.jobs.iter().map(|(q, job)| (job.basis.0, q.clone())).collect();
        // Of those that a registry fails, another one is tried each time.
        order.sort();
        let mut begun = vec![];
        for (_, question) in order {
            let is_due = |job: &Job| self.next(&question, job).is_some_and(|at| at <= now);
            if !self.jobs.get(&question).is_some_and(is_due) {
                continue;
            }
            if let Some(away) = self.away.get_mut(question.registry()) {
                away.probed = true;
            }
            // It was there a moment ago.
            let Some(job) = self.jobs.get_mut(&question) else {
                continue;
            };
            job.running = true;
            job.started = Some(now);
            let found = job.found.iter().map(|(target, _)| target.clone());
            let known = found
                .chain(job.asks.iter().flat_map(|ask| ask.known.iter().cloned()))
                // One whose configuration nobody has read is not known well enough: whether it can be booted, say.
                .filter(|target| target.metadata.is_some())
                .collect();
            begun.push((question, known));
        }
        begun
    }

    /// Takes in an answer. One to a question that nobody asks any more is dropped.
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
            .unwrap_or(LAST_POLL_RETRY)
            .clamp(LAST_RETRY, LAST_POLL_RETRY);
        let error = match answer {
            Ok(target) => {
                job.found = Some((target, began));
                job.failure = None;
                return self.is_back(question.registry(), began, now);
            }
            Err(mut error) => {
                error.retry_after = error.retry_after.map(|after| after.min(LONGEST_RETRY_AFTER));
                error
            }
        };
        job.failure = Some(Failure::after(job.failure.as_ref(), error.clone(), last, clocks));
        let fails = matches!(
            error.reason,
            ResolveReason::RegistryUnavailable | ResolveReason::RateLimited
        );
        if !fails {
            // What does not come from the registry says nothing about it.
            return match error.reason.is_our_own() {
                true => self.is_untold(question.registry()),
                false => self.is_back(question.registry(), began, now),
            };
        }
        let before = self.away.remove(question.registry());
        // Those that fail together fail once.
        let (failure, earlier) = match before {
            Some(away) if began < away.failure.noted.0 && error.retry_after.is_none() => {
                (away.failure, away.not_before)
            }
            Some(away) => {
                let mut failure = Failure::after(Some(&away.failure), error.clone(), last, clocks);
                // Those who can wait have a turn of their own, which those who are tried often do not put off.
                if urgent || away.failure.late > now {
                    failure.late = away.failure.late;
                }
                (failure, away.not_before)
            }
            None => (Failure::after(None, error.clone(), last, clocks), None),
        };
        let away = Away {
            failure,
            not_before: error.retry_after.map(|after| now + after).max(earlier),
            probed: false,
        };
        self.away.insert(question.registry().to_owned(), away);
    }

    /// Nothing was learned of a registry; another question may try.
    fn is_untold(&mut self, registry: &str) {
        if let Some(away) = self.away.get_mut(registry) {
            away.probed = false;
        }
    }

    /// A registry has answered a request that began at that moment. What failed with it, and not before that, is asked soon.
    fn is_back(&mut self, registry: &str, began: Moment, now: Moment) {
        // It has failed since that request.
        if self.away.get(registry).is_some_and(|away| began < away.failure.noted.0) {
            return self.is_untold(registry);
        }
        let Some(away) = self.away.remove(registry) else {
            return;
        };
        for (_, job) in self
            .jobs
            .iter_mut()
            .filter(|(question, _)| question.registry() == registry)
        {
            if let Some(failure) = job.failure.as_mut().filter(|f| f.attempts <= away.failure.attempts) {
                let soon = now + CATCH_UP.mul_f64(fastrand::f64());
                failure.soon = failure.soon.min(soon);
                failure.late = failure.late.min(soon);
            }
        }
    }

    /// Says whether a request from after that moment has ended, well or not, or its registry forbids it.
    pub(super) fn is_over(&self, question: &Question, after: Moment, now: Moment) -> bool {
        let Some(job) = self.jobs.get(question) else {
            return false;
        };
        let forbids = self.away.get(question.registry()).is_some_and(|away| away.forbids(now));
        !job.running && (job.started.is_some_and(|at| at >= after) || forbids)
    }

    /// The last image that was answered, and when it was asked for.
    pub(super) fn found(&self, question: &Question) -> Option<&(Target, Moment)> {
        self.jobs.get(question)?.found.as_ref()
    }

    /// State of a question. `after`: only a request from after that moment has found anything.
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
        let of_all = self.away.get(question.registry());
        let next_of_all = |away: &Away| away.failure.next(urgent).max(away.not_before.unwrap_or_default());
        let own = job.failure.as_ref().map(|failure| {
            let away = of_all.map(next_of_all);
            // While it is tried again, the last failure stays on display as it was.
            let next = failure.next(urgent);
            failure.trouble(job.is_tried_again().then(|| away.map_or(next, |away| next.max(away))))
        });
        // It concerns who stands still, and while the registry forbids all requests, everybody.
        let concerns = |away: &&Away| !job.running && (urgent || away.forbids(now));
        let trouble = own.or_else(|| {
            let away = of_all.filter(concerns)?;
            Some(away.failure.trouble(Some(next_of_all(away))))
        });
        Answer { found, trouble }
    }
}

#[cfg(test)]
mod tests;
