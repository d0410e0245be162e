//! Resolves the reference that an admin wrote to digests: once for each change of it, off the main loop, with backoff.
//!
//! The result is kept in the pool's status and is not asked for again, not even by the next controller.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::condition::Verdict;
use berth_api::pool::Target;
use berth_api::{ImageRef, PoolName};
use berth_core::Moment;
use berth_shell::retry;
use jiff::Timestamp;
use tokio::task::JoinHandle;

use crate::store::Store;

mod access;
mod document;
mod fetch;
mod registry;
mod secret;
mod token;

pub use access::{Mounted, RegistryConfig};
pub use secret::PullSecrets;

/// Longest time that one attempt may take, all requests together.
const DEADLINE: Duration = Duration::from_secs(30);
const FIRST_RETRY: Duration = Duration::from_millis(1500);
/// Longest wait between two attempts. While a reference is not resolved its pool stands still, maybe on an image that
/// somebody wants to be rid of.
const LAST_RETRY: Duration = Duration::from_secs(35);

/// The sort of a failure to resolve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResolveReason {
    /// The client of the registry cannot be set up.
    ClientSetup,
    /// The pool's pull secret does not exist.
    PullSecretNotFound,
    /// The pool's pull secret cannot be read now.
    PullSecretUnreadable,
    /// The pool's pull secret has no credentials that can be used.
    InvalidPullSecret,
    /// The reference is not one that can be resolved.
    InvalidReference,
    /// The registry's answer makes no sense.
    InvalidAnswer,
    /// The registry's answer is not what its digest says.
    DigestMismatch,
    /// The registry does not have the image.
    ImageNotFound,
    /// The image is not for Linux.
    NoSuchPlatform,
    /// The image is none that a host can boot.
    NotBootable,
    /// The registry wants credentials, or other ones.
    Unauthorized,
    /// The registry wants fewer requests.
    RateLimited,
    /// The registry is blocked by `registries.conf`.
    RegistryBlocked,
    /// The registry refuses.
    RegistryRefused,
    /// The registry cannot be reached, or fails.
    RegistryUnavailable,
}

impl ResolveReason {
    /// The reason of the condition `ImageResolved`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClientSetup => "ClientSetup",
            Self::PullSecretNotFound => "PullSecretNotFound",
            Self::PullSecretUnreadable => "PullSecretUnreadable",
            Self::InvalidPullSecret => "InvalidPullSecret",
            Self::InvalidReference => "InvalidReference",
            Self::InvalidAnswer => "InvalidAnswer",
            Self::DigestMismatch => "DigestMismatch",
            Self::ImageNotFound => "ImageNotFound",
            Self::NoSuchPlatform => "NoSuchPlatform",
            Self::NotBootable => "NotBootable",
            Self::Unauthorized => "Unauthorized",
            Self::RateLimited => "RateLimited",
            Self::RegistryBlocked => "RegistryBlocked",
            Self::RegistryRefused => "RegistryRefused",
            Self::RegistryUnavailable => "RegistryUnavailable",
        }
    }
}

/// Error of a reference that is not resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", reason.as_str())]
pub struct ResolveError {
    /// What went wrong.
    pub reason: ResolveReason,
    /// One line, in the registry's own words where it had any.
    pub message: String,
}

impl ResolveError {
    fn new(reason: ResolveReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

/// What a pool asks a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Reference as the admin wrote it.
    pub reference: String,
    /// Name of the Secret with the credentials.
    pub pull_secret: Option<String>,
}

type Answers = Arc<Mutex<BTreeMap<PoolName, (Question, Result<Target, ResolveError>)>>>;

#[derive(Debug)]
enum State {
    Running(JoinHandle<()>),
    Failed {
        error: ResolveError,
        /// Time of the next try. `None`: only another reference can help.
        retry: Option<(Moment, Timestamp)>,
    },
    Done(Target),
}

#[derive(Debug)]
struct Job {
    question: Question,
    attempts: u32,
    state: State,
}

impl Drop for Job {
    fn drop(&mut self) {
        if let State::Running(task) = &self.state {
            task.abort();
        }
    }
}

/// State of resolving one pool's reference.
#[derive(Debug, Clone, Default)]
pub struct Resolution {
    /// Target that is resolved and not yet in the pool's status.
    pub resolved: Option<Target>,
    /// Value of `ImageResolved` while the reference is not resolved.
    pub verdict: Option<Verdict>,
    /// True while the very first attempt is under way, or its answer is on its way into the status.
    pub first: bool,
    /// Time of the next look.
    pub due: Option<Moment>,
}

/// Resolves the references of all pools.
#[derive(Debug)]
pub struct Resolver {
    config: Arc<RegistryConfig>,
    store: Store,
    jobs: BTreeMap<PoolName, Job>,
    answers: Answers,
}

impl Resolver {
    /// Makes a resolver that wakes the store when an answer is there.
    pub fn new(config: RegistryConfig, store: Store) -> Self {
        Self {
            config: Arc::new(config),
            store,
            jobs: BTreeMap::new(),
            answers: Answers::default(),
        }
    }

    /// Forgets the pools that are not among these.
    pub fn keep(&mut self, pools: &[PoolName]) {
        self.jobs.retain(|pool, _| pools.contains(pool));
    }

    /// Takes in the answers that have arrived.
    pub fn collect(&mut self, now: Moment, wall: Timestamp) {
        let answers = std::mem::take(&mut *self.answers.lock().unwrap_or_else(|e| e.into_inner()));
        for (pool, (question, answer)) in answers {
            // An answer to a question that nobody asks any more is dropped.
            let Some(job) = self.jobs.get_mut(&pool) else {
                continue;
            };
            let reference = &question.reference;
            if job.question != question || !matches!(job.state, State::Running(_)) {
                continue;
            }
            job.attempts += 1;
            job.state = match answer {
                Ok(target) => {
                    tracing::info!(%pool, %reference, digest = %target.digest, "image resolved");
                    State::Done(target)
                }
                Err(error) => {
                    tracing::warn!(%pool, %reference, attempt = job.attempts, reason = error.reason.as_str(), message = %error.message, "image not resolved");
                    let retry = (error.reason != ResolveReason::InvalidReference).then(|| {
                        let wait = retry::delay(job.attempts, FIRST_RETRY, LAST_RETRY);
                        (now + wait, wall.checked_add(wait).unwrap_or(wall))
                    });
                    State::Failed { error, retry }
                }
            };
        }
    }

    /// Starts to resolve the reference, unless the target in force is from that very reference.
    pub fn ensure(
        &mut self,
        pool: &PoolName,
        question: &Question,
        current: Option<&Target>,
        now: Moment,
    ) -> Resolution {
        if current.is_some_and(|t| t.image == question.reference) {
            self.jobs.remove(pool);
            return Resolution::default();
        }
        let attempts = match self.jobs.get(pool) {
            Some(job) if job.question == *question => match &job.state {
                State::Failed {
                    retry: Some((at, _)), ..
                } if *at <= now => Some(job.attempts),
                _ => None,
            },
            _ => Some(0),
        };
        let verdict = self.jobs.get(pool).and_then(failed);
        if let Some(attempts) = attempts {
            self.start(pool, question, attempts);
            // While it is tried again, the last failure stays on display.
            let verdict = verdict.filter(|_| attempts > 0);
            return Resolution {
                verdict,
                first: attempts == 0,
                ..Resolution::default()
            };
        }
        match self.jobs.get(pool) {
            Some(job) => Resolution {
                resolved: match &job.state {
                    State::Done(target) => Some(target.clone()),
                    _ => None,
                },
                verdict,
                // What is resolved and not in the status yet is not worth saying that it is missing.
                first: job.attempts == 0 || matches!(job.state, State::Done(_)),
                due: match &job.state {
                    State::Failed { retry, .. } => retry.map(|(at, _)| at),
                    _ => None,
                },
            },
            None => Resolution::default(),
        }
    }

    fn start(&mut self, pool: &PoolName, question: &Question, attempts: u32) {
        let (config, answers) = (self.config.clone(), self.answers.clone());
        let (store, key, asked) = (self.store.clone(), pool.clone(), question.clone());
        let task = tokio::spawn(async move {
            let answer = match tokio::time::timeout(DEADLINE, resolve(&config, &asked)).await {
                Ok(answer) => answer,
                Err(_) => Err(ResolveError::new(
                    ResolveReason::RegistryUnavailable,
                    format!("no answer within {} s", DEADLINE.as_secs()),
                )),
            };
            let mut answers = answers.lock().unwrap_or_else(|e| e.into_inner());
            answers.insert(key, (asked, answer));
            store.wake();
        });
        let job = Job {
            question: question.clone(),
            attempts,
            state: State::Running(task),
        };
        self.jobs.insert(pool.clone(), job);
    }
}

fn failed(job: &Job) -> Option<Verdict> {
    let State::Failed { error, retry } = &job.state else {
        return None;
    };
    let next = match retry {
        Some((_, at)) => format!("; attempt {}, next try at {at:.0}", job.attempts),
        None => String::new(),
    };
    Some(Verdict::no(error.reason.as_str(), format!("{}{next}", error.message)))
}

async fn resolve(config: &RegistryConfig, question: &Question) -> Result<Target, ResolveError> {
    let reference = &question.reference;
    let parsed: ImageRef = reference.parse().map_err(|e: berth_api::image_ref::ImageRefError| {
        ResolveError::new(ResolveReason::InvalidReference, e.to_string())
    })?;
    let secret = match (&question.pull_secret, &config.secrets) {
        (Some(name), Some(secrets)) => Some(secrets.read(name).await?),
        _ => None,
    };
    registry::resolve(config, &parsed, reference, secret.as_ref()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    fn asks(reference: &str) -> Question {
        Question {
            reference: reference.into(),
            pull_secret: None,
        }
    }

    fn resolver() -> Resolver {
        Resolver::new(RegistryConfig::default(), Store::default())
    }

    #[tokio::test]
    async fn a_bad_reference_is_said_so_and_not_tried_again() {
        let mut resolver = resolver();
        let pool = PoolName::from("a");
        let now = time::now();
        assert!(resolver.ensure(&pool, &asks("nonsense"), None, now).first);
        tokio::time::sleep(Duration::from_millis(20)).await;
        resolver.collect(now, Timestamp::UNIX_EPOCH);
        let later = now + Duration::from_secs(3600);
        let resolution = resolver.ensure(&pool, &asks("nonsense"), None, later);
        assert_eq!(resolution.verdict.unwrap().reason, "InvalidReference");
        assert!(resolution.due.is_none() && !resolution.first);
    }

    #[tokio::test]
    async fn an_unreachable_registry_is_tried_again_later() {
        let mut resolver = Resolver::new(
            RegistryConfig {
                plain_http: vec!["127.0.0.1:1".into()],
                ..RegistryConfig::default()
            },
            Store::default(),
        );
        berth_shell::install_crypto();
        let (pool, reference) = (PoolName::from("a"), "127.0.0.1:1/os:1");
        let now = time::now();
        resolver.ensure(&pool, &asks(reference), None, now);
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            resolver.collect(now, Timestamp::UNIX_EPOCH);
            if !resolver.ensure(&pool, &asks(reference), None, now).first {
                break;
            }
        }
        let resolution = resolver.ensure(&pool, &asks(reference), None, now);
        let verdict = resolution.verdict.unwrap();
        assert_eq!(verdict.reason, "RegistryUnavailable");
        assert!(verdict.message.contains("attempt 1, next try at 1970-"), "{verdict:?}");
        let due = resolution.due.unwrap();
        let again = resolver.ensure(&pool, &asks(reference), None, due);
        assert!(!again.first && again.verdict.is_some(), "the failure stays on display");
        let secret = Some("s".to_owned());
        let other = Question {
            pull_secret: secret,
            ..asks(reference)
        };
        assert!(
            resolver.ensure(&pool, &other, None, now).first,
            "another secret starts anew"
        );
        let other = resolver.ensure(&pool, &asks("127.0.0.1:1/os:2"), None, due);
        assert!(other.first, "another reference starts anew");
    }

    #[tokio::test]
    async fn a_registry_that_comes_back_is_not_missed_for_long() {
        let mut resolver = resolver();
        let (pool, now) = (PoolName::from("a"), time::now());
        resolver.ensure(&pool, &asks("quay.io/os:1"), None, now);
        resolver.jobs.get_mut(&pool).unwrap().attempts = 1000;
        let failed = Err(ResolveError::new(ResolveReason::RegistryUnavailable, "away"));
        resolver
            .answers
            .lock()
            .unwrap()
            .insert(pool.clone(), (asks("quay.io/os:1"), failed));
        resolver.collect(now, Timestamp::UNIX_EPOCH);
        let due = resolver.ensure(&pool, &asks("quay.io/os:1"), None, now).due.unwrap();
        assert!(due.since(now) <= LAST_RETRY * 2, "the jitter included");
    }

    #[tokio::test]
    async fn what_is_in_the_status_is_not_asked_again() {
        let mut resolver = resolver();
        let target = Target {
            image: "quay.io/os:1".into(),
            digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
            version: None,
            metadata: None,
            platforms: vec![],
            publish_time: None,
        };
        let resolution = resolver.ensure(&"a".into(), &asks("quay.io/os:1"), Some(&target), time::now());
        assert!(!resolution.first && resolver.jobs.is_empty());
    }
}
