//! Asks registries which digests the pools' references and tags point to. Background tasks send the requests.
//!
//! Pools that need the image of the same reference, with the same Secret, share one request. The resolver decides
//! nothing: each answer starts a pass, and the pass reads the answer. The current targets are in the pools' status
//! and do not depend on the answers kept here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::pool::{Available, Target};
use berth_api::{ImageRef, PoolName, Written};
use berth_core::Moment;
use berth_core::controller::image::{self, Answer, Answers, Found, Questions};
use berth_shell::locked;
use jiff::Timestamp;
use tokio::task::AbortHandle;

use crate::store::Store;

mod access;
mod fetch;
mod polls;
mod reason;
mod registry;
mod secret;
mod token;

pub use access::{Mounted, RegistryConfig};
use polls::{Ask, Polls, Question};
pub use reason::{ResolveError, ResolveReason};
pub use secret::PullSecrets;

/// Timeout of one attempt with all its requests.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an admin's poll request is delayed, so that requests of other pools share one query.
const GATHER_TIME: Duration = Duration::from_millis(100);

/// Image settings and state of one pool.
#[derive(Debug, Clone)]
pub struct PoolImage<'a> {
    /// Name of the pool.
    pub pool: &'a PoolName,
    /// `image.ref`
    pub reference: &'a Written<ImageRef>,
    /// Poll interval; `None` for no polls.
    pub interval: Option<Duration>,
    /// `image.minimumAge`
    pub minimum_age: Duration,
    /// Secret with the registry credentials.
    pub secret: Option<&'a str>,
    /// `status.target`
    pub target: Option<&'a Target>,
    /// `status.available`
    pub available: Option<&'a Available>,
    /// How long the controller has known the available image, including the time under earlier leaders.
    pub seen: Duration,
    /// Poll request of an admin.
    pub request: Option<&'a str>,
    /// Last poll request that was handled.
    pub obeyed: Option<&'a str>,
}

/// Answers for one pool.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// Answers of the registries.
    pub answers: Answers,
    /// How long the controller has known the available image, including the time under earlier leaders.
    pub seen: Duration,
    /// True while the first attempt for a new reference is in progress, or its answer is not yet in the status.
    pub first: bool,
    /// Last poll request that was handled.
    pub poll_request: Option<String>,
    /// True if the tag is polled at intervals.
    pub polled: bool,
}

impl Resolution {
    /// Resolution of a pool if the BootcFleet cannot be read. In that case, the pool's registry must not be asked.
    pub fn unasked() -> Self {
        let answers = Answers {
            fleet_unreadable: true,
            ..Answers::default()
        };
        Self {
            answers,
            ..Self::default()
        }
    }
}

/// For each pool, the value that the pool wants (for example a reference or a poll request), and when this process
/// first saw that value.
#[derive(Debug, Default)]
struct WantedSince(BTreeMap<PoolName, (String, Moment)>);

impl WantedSince {
    /// Records the value that the pool wants. Returns when this process first saw it: `now` if it is new.
    fn wants(&mut self, pool: &PoolName, what: &str, now: Moment) -> Moment {
        let entry = self.0.entry(pool.clone()).or_insert_with(|| (what.to_owned(), now));
        if entry.0 != what {
            *entry = (what.to_owned(), now);
        }
        entry.1
    }

    /// Returns when this process first saw that the pool wants this value; `None` if the pool does not want it.
    fn wanted(&self, pool: &PoolName, what: &str) -> Option<Moment> {
        self.0
            .get(pool)
            .filter(|(known, _)| known == what)
            .map(|(_, since)| *since)
    }
}

type Arrived = Arc<Mutex<Vec<(Question, Result<Target, ResolveError>)>>>;

#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Resolves the references of all pools and polls their tags.
#[derive(Debug)]
pub struct Resolver {
    config: Arc<RegistryConfig>,
    store: Store,
    polls: Polls,
    tasks: BTreeMap<Question, Task>,
    arrived: Arrived,
    changes: WantedSince,
    requests: WantedSince,
    confirmations: WantedSince,
    /// Tag and Secret of each polled pool.
    followed: WantedSince,
    /// For pools without a poll interval: the last image that the pool got, and the time when the request for that
    /// image began.
    delivered: BTreeMap<PoolName, (Target, Moment)>,
}

/// References to resolve for one pool, and the time when the pool began to wait for each answer.
struct PoolQuestions {
    /// `None` if the reference is invalid.
    questions: Option<Questions>,
    /// Time when the pool's reference began to differ from the target's reference; `None` if they are equal.
    changed: Option<Moment>,
    requested: Option<Moment>,
    confirmed: Option<Moment>,
}

impl Resolver {
    /// Creates a resolver. Each answer starts a pass.
    pub fn new(config: RegistryConfig, store: Store) -> Self {
        Self {
            config: Arc::new(config),
            store,
            polls: Polls::default(),
            tasks: BTreeMap::new(),
            arrived: Arrived::default(),
            changes: WantedSince::default(),
            requests: WantedSince::default(),
            confirmations: WantedSince::default(),
            followed: WantedSince::default(),
            delivered: BTreeMap::new(),
        }
    }

    /// Records the answers that have arrived. Returns the result of each, for the metrics.
    pub fn collect(&mut self, now: Moment, wall: Timestamp) -> Vec<&'static str> {
        let arrived = std::mem::take(&mut *locked(&self.arrived));
        let mut results = vec![];
        for (question, answer) in arrived {
            self.tasks.remove(&question);
            results.push(match &answer {
                Ok(image) => {
                    let before = self.polls.found(&question).map(|(image, _)| &image.digest);
                    let news = before != Some(&image.digest);
                    if news {
                        tracing::info!(image = %question.image, digest = %image.digest, "image resolved");
                    }
                    if news { "Changed" } else { "Unchanged" }
                }
                Err(error) => {
                    tracing::warn!(image = %question.image, reason = error.reason.as_str(), message = %error.message, "image not resolved");
                    error.reason.as_str()
                }
            });
            self.polls.answered(&question, answer, (now, wall));
        }
        results
    }

    /// Starts the requests that are due for these pools. Returns the known answers for each pool.
    pub fn ask(&mut self, pool_images: &[PoolImage<'_>], now: Moment) -> BTreeMap<PoolName, Resolution> {
        let pools: BTreeSet<&PoolName> = pool_images.iter().map(|pool_image| pool_image.pool).collect();
        let all = [
            &mut self.changes,
            &mut self.requests,
            &mut self.confirmations,
            &mut self.followed,
        ];
        for since in all {
            since.0.retain(|pool, _| pools.contains(pool));
        }
        self.delivered.retain(|pool, _| pools.contains(pool));
        let asked: Vec<PoolQuestions> = pool_images
            .iter()
            .map(|pool_image| self.questions_of(pool_image, now))
            .collect();
        let mut asks: BTreeMap<Question, Vec<Ask>> = BTreeMap::new();
        for (pool_image, asked) in pool_images.iter().zip(&asked) {
            for (image, ask) in asked.asks(pool_image) {
                asks.entry(question(&image, pool_image)).or_default().push(ask);
            }
        }
        self.polls.ask(asks, now);
        for (question, known) in self.polls.start(now) {
            self.start(question, known);
        }
        let resolutions = pool_images.iter().zip(&asked);
        resolutions
            .map(|(pool_image, asked)| (pool_image.pool.clone(), self.resolution(pool_image, asked, now)))
            .collect()
    }

    /// Time of the next request.
    pub fn due(&self) -> Option<Moment> {
        self.polls.due()
    }

    fn questions_of(&mut self, pool_image: &PoolImage<'_>, now: Moment) -> PoolQuestions {
        let is_current = pool_image
            .target
            .is_some_and(|target| target.is_of(pool_image.reference));
        let changed = if is_current {
            self.changes.0.remove(pool_image.pool);
            None
        } else {
            Some(self.changes.wants(pool_image.pool, pool_image.reference.as_str(), now))
        };
        let requested = match pool_image.request {
            Some(request) if pool_image.obeyed != Some(request) => {
                Some(self.requests.wants(pool_image.pool, request, now))
            }
            // This poll request was already handled, perhaps by a former leader.
            Some(request) => self.requests.wanted(pool_image.pool, request),
            None => None,
        };
        let mut asked = PoolQuestions {
            questions: pool_image.reference.get().ok().map(Questions::of),
            changed,
            requested,
            confirmed: None,
        };
        // If the pool has a minimum age, a last query of the tag must confirm the available image before it is
        // adopted. Drop a confirmation of another digest.
        let digest = pool_image.available.map(|available| available.digest.to_string());
        let confirmed = self.confirmations.0.get(pool_image.pool);
        if confirmed.is_some_and(|(known, _)| digest.as_ref() != Some(known)) {
            self.confirmations.0.remove(pool_image.pool);
        }
        if let (Some(questions), Some(available)) = (&asked.questions, pool_image.available) {
            let answers = self.resolution(pool_image, &asked, now).answers;
            let facts = image::ImageFacts {
                reference: pool_image.reference,
                minimum_age: pool_image.minimum_age,
                target: pool_image.target,
                available: Some(available),
                seen: pool_image.seen,
                answers: &answers,
            };
            let digest = available.digest.to_string();
            asked.confirmed = if facts.wants_confirmation(questions) {
                Some(self.confirmations.wants(pool_image.pool, &digest, now))
            } else {
                self.confirmations.wanted(pool_image.pool, &digest)
            };
        }
        asked
    }

    fn start(&mut self, question: Question, known: Vec<Target>) {
        let (config, arrived, store) = (self.config.clone(), self.arrived.clone(), self.store.clone());
        let asked = question.clone();
        let task = tokio::spawn(async move {
            let answer = match tokio::time::timeout(ATTEMPT_TIMEOUT, resolve(&config, &asked, &known)).await {
                Ok(answer) => answer,
                Err(_) => Err(ResolveError::new(
                    ResolveReason::RegistryUnavailable,
                    format!("the registry gave no answer within {} s", ATTEMPT_TIMEOUT.as_secs()),
                )),
            };
            locked(&arrived).push((asked, answer));
            store.wake();
        });
        self.tasks.insert(question, Task(task.abort_handle()));
    }

    fn resolution(&mut self, pool_image: &PoolImage<'_>, asked: &PoolQuestions, now: Moment) -> Resolution {
        let mut resolution = Resolution {
            seen: pool_image.seen,
            poll_request: pool_image.obeyed.map(str::to_owned),
            polled: pool_image.interval.is_some(),
            ..Resolution::default()
        };
        let request = pool_image.request.map(str::to_owned);
        let Some(questions) = &asked.questions else {
            resolution.poll_request = request.or(resolution.poll_request);
            return resolution;
        };
        if asked.changed.is_some() {
            let answer = self
                .polls
                .answer(&question(&questions.named, pool_image), asked.changed, now);
            resolution.first = answer.trouble.is_none();
            resolution.answers.named = answer;
        }
        let tag = questions.tag.as_ref().map(|tag| question(tag, pool_image));
        if let Some(tag) = &tag {
            resolution.answers.tag = self.tag(pool_image, asked, tag, now);
        }
        let is_over = match (&tag, asked.requested) {
            (Some(tag), Some(after)) => self.polls.is_over(tag, after, now),
            (None, _) => true,
            (_, None) => false,
        };
        if is_over {
            resolution.poll_request = request.or(resolution.poll_request);
        }
        resolution
    }

    /// Returns the answer for a pool's tag. A pool that is not polled gets only answers to its own requests.
    fn tag(&mut self, pool_image: &PoolImage<'_>, asked: &PoolQuestions, tag: &Question, now: Moment) -> Answer {
        if pool_image.interval.is_some() {
            self.delivered.remove(pool_image.pool);
            // A pool that has just begun to poll this tag gets no earlier answer: such an answer may be older than
            // the pool's target.
            let what = format!("{} {:?}", tag.image, tag.secret);
            let since = self.followed.wants(pool_image.pool, &what, now);
            return self.polls.answer(tag, Some(since), now);
        }
        self.followed.0.remove(pool_image.pool);
        let wanted = asked.requested.max(asked.confirmed);
        let answer = self.polls.answer(tag, wanted, now);
        if asked.changed.is_some() {
            self.delivered.remove(pool_image.pool);
        } else if let (Some(wanted), Some((image, began))) = (wanted, self.polls.found(tag)) {
            let delivered = self.delivered.get(pool_image.pool);
            if *began >= wanted && delivered.is_none_or(|(_, before)| *before < wanted) {
                self.delivered.insert(pool_image.pool.clone(), (image.clone(), *began));
            }
        }
        let delivered = self.delivered.get(pool_image.pool);
        Answer {
            found: delivered.map(|(image, began)| Found {
                image: image.clone(),
                age: now.since(*began),
            }),
            trouble: answer.trouble.filter(|_| wanted.is_some()),
        }
    }
}

impl PoolQuestions {
    /// Returns the references to resolve for the pool, each with the pool's requirements for the query.
    fn asks(&self, pool_image: &PoolImage<'_>) -> Vec<(ImageRef, Ask)> {
        let Some(questions) = &self.questions else {
            return vec![];
        };
        let mut asks = vec![];
        if self.changed.is_some() {
            let ask = Ask {
                after: self.changed,
                urgent: true,
                until_answered: true,
                ..Ask::default()
            };
            asks.push((questions.named.clone(), ask));
        }
        if let Some(tag) = &questions.tag {
            // If the tag points to the pool's target, the image is not fetched again. This also holds for a target
            // that was resolved from another tag of the repository.
            let known = pool_image.target.filter(|target| is_of_repository(target, tag));
            let ask = Ask {
                interval: pool_image.interval,
                known: known.into_iter().cloned().collect(),
                ..Ask::default()
            };
            asks.push((tag.clone(), ask.clone()));
            if self.requested.is_some() && pool_image.obeyed != pool_image.request {
                let ask = Ask {
                    after: self.requested,
                    gather: GATHER_TIME,
                    by_admin: true,
                    ..ask.clone()
                };
                asks.push((tag.clone(), ask));
            }
            if self.confirmed.is_some() {
                let ask = Ask {
                    after: self.confirmed,
                    until_answered: true,
                    ..ask
                };
                asks.push((tag.clone(), ask));
            }
        }
        asks
    }
}

fn is_of_repository(target: &Target, tag: &ImageRef) -> bool {
    let image = target.image.get();
    image.is_ok_and(|image| (image.registry(), image.repository()) == (tag.registry(), tag.repository()))
}

fn question(image: &ImageRef, pool_image: &PoolImage<'_>) -> Question {
    Question {
        image: image.clone(),
        secret: pool_image.secret.map(str::to_owned),
    }
}

async fn resolve(config: &RegistryConfig, question: &Question, known: &[Target]) -> Result<Target, ResolveError> {
    let secret = match (&question.secret, &config.secrets) {
        (Some(name), Some(secrets)) => Some(secrets.read(name).await?),
        _ => None,
    };
    let answer = registry::resolve(config, &question.image, known, secret.as_ref()).await;
    answer.map_err(|error| match error.reason {
        ResolveReason::ImageNotFound if question.image.digest().is_some() => ResolveError {
            reason: ResolveReason::DigestUnavailable,
            ..error
        },
        _ => error,
    })
}

#[cfg(test)]
mod tests;
