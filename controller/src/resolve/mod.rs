//! Asks registries what the pools' references and tags point at, off the main loop.
//!
//! A question is asked once, however many pools have it. Nothing is decided here: an answer wakes the store's queue, and the
//! next pass sees it. What is in force stands in the pools' status, and does not depend on anything here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::pool::{Available, Target};
use berth_api::{ImageRef, PoolName};
use berth_core::Moment;
use berth_core::controller::image::{self, Answer, Answers, Found, Questions};
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

/// Longest time that one attempt may take, all requests together.
const DEADLINE: Duration = Duration::from_secs(30);
/// Time for which a request for a poll waits for those of other pools.
const GATHER: Duration = Duration::from_millis(100);

/// Image that a pool has, and the one that it wants.
#[derive(Debug, Clone)]
pub struct Wish<'a> {
    /// Its name.
    pub pool: &'a PoolName,
    /// `image.ref`
    pub reference: &'a str,
    /// Time between two polls; `None` for no polls.
    pub interval: Option<Duration>,
    /// `image.minimumAge`
    pub minimum_age: Duration,
    /// Secret with the credentials to ask with.
    pub secret: Option<&'a str>,
    /// `status.target`
    pub target: Option<&'a Target>,
    /// `status.available`
    pub available: Option<&'a Available>,
    /// Time for which leaders have known of what is available.
    pub seen: Duration,
    /// Request for a poll.
    pub request: Option<&'a str>,
    /// The last request that was acted on.
    pub obeyed: Option<&'a str>,
}

/// Facts that are known for a pool.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// Answers of the registries.
    pub answers: Answers,
    /// Time for which leaders have known of what is available.
    pub seen: Duration,
    /// True while the very first attempt for a reference is under way, or its answer is on its way into the status.
    pub first: bool,
    /// The last request for a poll that was acted on.
    pub poll_request: Option<String>,
    /// True if the tag is looked at at intervals.
    pub polled: bool,
}

impl Resolution {
    /// The state of a pool for which nobody may ask, since the BootcFleet cannot be read.
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

/// Moments since which this process knows of what a pool wants.
#[derive(Debug, Default)]
struct Since(BTreeMap<PoolName, (String, Moment)>);

impl Since {
    /// The moment since which the pool wants this.
    fn wants(&mut self, pool: &PoolName, what: &str, now: Moment) -> Moment {
        let entry = self.0.entry(pool.clone()).or_insert_with(|| (what.to_owned(), now));
        if entry.0 != what {
            *entry = (what.to_owned(), now);
        }
        entry.1
    }

    /// The moment, if the pool has wanted exactly this.
    fn wanted(&self, pool: &PoolName, what: &str) -> Option<Moment> {
        self.0
            .get(pool)
            .filter(|(known, _)| known == what)
            .map(|(_, since)| *since)
    }
}

type Arrived = Arc<Mutex<Vec<(Question, Result<Target, ResolveError>)>>>;

/// Task that ends with its owner.
#[derive(Debug)]
struct Task(AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Resolves the references of all pools, and follows their tags.
#[derive(Debug)]
pub struct Resolver {
    config: Arc<RegistryConfig>,
    store: Store,
    polls: Polls,
    tasks: BTreeMap<Question, Task>,
    arrived: Arrived,
    changes: Since,
    requests: Since,
    confirmations: Since,
    /// Of pools that are polled: tag and Secret.
    followed: Since,
    /// Answers that pools which are not polled were given last.
    told: BTreeMap<PoolName, (Target, Moment)>,
}

/// Questions of one pool, and how its answers are to be read.
struct Asked {
    questions: Result<Questions, String>,
    /// Since when its reference is another one than its target's.
    changed: Option<Moment>,
    requested: Option<Moment>,
    confirmed: Option<Moment>,
}

impl Resolver {
    /// Makes a resolver that wakes the store when an answer is there.
    pub fn new(config: RegistryConfig, store: Store) -> Self {
        Self {
            config: Arc::new(config),
            store,
            polls: Polls::default(),
            tasks: BTreeMap::new(),
            arrived: Arrived::default(),
            changes: Since::default(),
            requests: Since::default(),
            confirmations: Since::default(),
            followed: Since::default(),
            told: BTreeMap::new(),
        }
    }

    /// Takes in the answers that have arrived. Names the result of each.
    pub fn collect(&mut self, now: Moment, wall: Timestamp) -> Vec<&'static str> {
        let arrived = std::mem::take(&mut *self.arrived.lock().unwrap_or_else(|e| e.into_inner()));
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

    /// Asks what all pools want to know, as far as it is time to, and answers what is known for each.
    pub fn ask(&mut self, wishes: &[Wish<'_>], now: Moment) -> BTreeMap<PoolName, Resolution> {
        let pools: BTreeSet<&PoolName> = wishes.iter().map(|wish| wish.pool).collect();
        let is_there = |pool: &PoolName| pools.contains(pool);
        let all = [
            &mut self.changes,
            &mut self.requests,
            &mut self.confirmations,
            &mut self.followed,
        ];
        for since in all {
            since.0.retain(|pool, _| is_there(pool));
        }
        self.told.retain(|pool, _| is_there(pool));
        let asked: Vec<Asked> = wishes.iter().map(|wish| self.asked(wish, now)).collect();
        let mut asks: BTreeMap<Question, Vec<Ask>> = BTreeMap::new();
        for (wish, asked) in wishes.iter().zip(&asked) {
            for (image, ask) in asked.asks(wish) {
                asks.entry(question(&image, wish)).or_default().push(ask);
            }
        }
        self.polls.ask(asks, now);
        for (question, known) in self.polls.start(now) {
            self.start(question, known);
        }
        let resolutions = wishes.iter().zip(&asked);
        resolutions
            .map(|(wish, asked)| (wish.pool.clone(), self.resolution(wish, asked, now)))
            .collect()
    }

    /// Time of the next request.
    pub fn due(&self) -> Option<Moment> {
        self.polls.due()
    }

    fn asked(&mut self, wish: &Wish<'_>, now: Moment) -> Asked {
        let is_current = wish.target.is_some_and(|target| target.image == wish.reference);
        let changed = match is_current {
            true => {
                self.changes.0.remove(wish.pool);
                None
            }
            false => Some(self.changes.wants(wish.pool, wish.reference, now)),
        };
        let requested = match wish.request {
            Some(request) if wish.obeyed != Some(request) => Some(self.requests.wants(wish.pool, request, now)),
            // What a former leader did is not done again.
            Some(request) => self.requests.wanted(wish.pool, request),
            None => None,
        };
        let mut asked = Asked {
            questions: Questions::of(wish.reference).map_err(|error| error.to_string()),
            changed,
            requested,
            confirmed: None,
        };
        // Of a digest that was pulled back nothing stays confirmed.
        let digest = wish.available.map(|available| available.digest.to_string());
        let is_other = |(known, _): &(String, Moment)| digest.as_ref() != Some(known);
        if self.confirmations.0.get(wish.pool).is_some_and(is_other) {
            self.confirmations.0.remove(wish.pool);
        }
        if let (Ok(questions), Some(available)) = (&asked.questions, wish.available) {
            let answers = self.resolution(wish, &asked, now).answers;
            let facts = image::ImageFacts {
                reference: wish.reference,
                minimum_age: wish.minimum_age,
                target: wish.target,
                available: Some(available),
                seen: wish.seen,
                answers: &answers,
            };
            let digest = available.digest.to_string();
            asked.confirmed = match facts.wants_confirmation(questions) {
                true => Some(self.confirmations.wants(wish.pool, &digest, now)),
                false => self.confirmations.wanted(wish.pool, &digest),
            };
        }
        asked
    }

    fn start(&mut self, question: Question, known: Vec<Target>) {
        let (config, arrived, store) = (self.config.clone(), self.arrived.clone(), self.store.clone());
        let asked = question.clone();
        let task = tokio::spawn(async move {
            let answer = match tokio::time::timeout(DEADLINE, resolve(&config, &asked, &known)).await {
                Ok(answer) => answer,
                Err(_) => Err(ResolveError::new(
                    ResolveReason::RegistryUnavailable,
                    format!("no answer within {} s", DEADLINE.as_secs()),
                )),
            };
            arrived.lock().unwrap_or_else(|e| e.into_inner()).push((asked, answer));
            store.wake();
        });
        self.tasks.insert(question, Task(task.abort_handle()));
    }

    fn resolution(&mut self, wish: &Wish<'_>, asked: &Asked, now: Moment) -> Resolution {
        let mut resolution = Resolution {
            seen: wish.seen,
            poll_request: wish.obeyed.map(str::to_owned),
            polled: wish.interval.is_some(),
            ..Resolution::default()
        };
        let request = || wish.request.map(str::to_owned);
        let questions = match &asked.questions {
            Ok(questions) => questions,
            Err(error) => {
                resolution.answers.invalid = Some(error.clone());
                resolution.poll_request = request().or(resolution.poll_request);
                return resolution;
            }
        };
        if asked.changed.is_some() {
            let answer = self.polls.answer(&question(&questions.named, wish), asked.changed, now);
            resolution.first = answer.trouble.is_none();
            resolution.answers.named = answer;
        }
        let tag = questions.tag.as_ref().map(|tag| question(tag, wish));
        if let Some(tag) = &tag {
            resolution.answers.tag = self.tag(wish, asked, tag, now);
        }
        let is_over = match (&tag, asked.requested) {
            (Some(tag), Some(after)) => self.polls.is_over(tag, after, now),
            (None, _) => true,
            (_, None) => false,
        };
        if is_over {
            resolution.poll_request = request().or(resolution.poll_request);
        }
        resolution
    }

    /// Facts that are known of a pool's tag. A pool that is not polled learns what it has asked for, and nothing of what others have.
    fn tag(&mut self, wish: &Wish<'_>, asked: &Asked, tag: &Question, now: Moment) -> Answer {
        if wish.interval.is_some() {
            self.told.remove(wish.pool);
            // Whoever joins others learns nothing that they were told before: it may be older than what is in force.
            let what = format!("{} {:?}", tag.image, tag.secret);
            let since = self.followed.wants(wish.pool, &what, now);
            return self.polls.answer(tag, Some(since), now);
        }
        self.followed.0.remove(wish.pool);
        let wanted = asked.requested.max(asked.confirmed);
        let answer = self.polls.answer(tag, wanted, now);
        if asked.changed.is_some() {
            self.told.remove(wish.pool);
        } else if let (Some(wanted), Some((image, began))) = (wanted, self.polls.found(tag)) {
            let told = self.told.get(wish.pool);
            if *began >= wanted && told.is_none_or(|(_, before)| *before < wanted) {
                self.told.insert(wish.pool.clone(), (image.clone(), *began));
            }
        }
        let told = self.told.get(wish.pool);
        Answer {
            found: told.map(|(image, began)| Found {
                image: image.clone(),
                age: now.since(*began),
            }),
            trouble: answer.trouble.filter(|_| wanted.is_some()),
        }
    }
}

impl Asked {
    /// Demand of the pool on its questions.
    fn asks(&self, wish: &Wish<'_>) -> Vec<(ImageRef, Ask)> {
        let Ok(questions) = &self.questions else {
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
            // What is in force came from this repository, whatever its tag was.
            let known = wish.target.filter(|target| is_of_repository(target, tag));
            let ask = Ask {
                interval: wish.interval,
                known: known.into_iter().cloned().collect(),
                ..Ask::default()
            };
            asks.push((tag.clone(), ask.clone()));
            if self.requested.is_some() && wish.obeyed != wish.request {
                let ask = Ask {
                    after: self.requested,
                    gather: GATHER,
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
    let image = target.image.parse::<ImageRef>();
    image.is_ok_and(|image| (image.registry(), image.repository()) == (tag.registry(), tag.repository()))
}

fn question(image: &ImageRef, wish: &Wish<'_>) -> Question {
    Question {
        image: image.to_string(),
        secret: wish.secret.map(str::to_owned),
    }
}

async fn resolve(config: &RegistryConfig, question: &Question, known: &[Target]) -> Result<Target, ResolveError> {
    let parsed: ImageRef = question
        .image
        .parse()
        .map_err(|e: berth_api::image_ref::ImageRefError| {
            ResolveError::new(ResolveReason::InvalidReference, e.to_string())
        })?;
    let secret = match (&question.secret, &config.secrets) {
        (Some(name), Some(secrets)) => Some(secrets.read(name).await?),
        _ => None,
    };
    let answer = registry::resolve(config, &parsed, &question.image, known, secret.as_ref()).await;
    answer.map_err(|error| match error.reason {
        ResolveReason::ImageNotFound if parsed.digest().is_some() => ResolveError {
            reason: ResolveReason::DigestUnavailable,
            ..error
        },
        _ => error,
    })
}

#[cfg(test)]
mod tests;
