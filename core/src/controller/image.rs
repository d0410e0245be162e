//! A pool's image: the current target, the image that its tag points to, and the condition `ImageResolved`.
//!
//! A reference with only a tag is followed: the image that the tag points to is adopted when it is old enough. A
//! reference with a tag and a digest is pinned: a new image of the tag is reported, not adopted. A reference with only
//! a digest is resolved once. If `image.ref` changes, its image is adopted as soon as it is resolved. While a registry
//! does not answer, the target does not change.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::condition::{CommonReason, Verdict, Word};
use berth_api::pool::{Available, Target};
use berth_api::seeded::Bug;
use berth_api::{Digest, ImageRef, PoolName, Written};
use jiff::Timestamp;

use crate::Moment;
use crate::text::rounded;

pub mod feed;
mod reason;

pub use reason::ResolveReason;

/// Registry queries needed to resolve an image reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Questions {
    /// The reference with its digest, or with its tag if it has no digest. The registry's answer to this query decides
    /// the target.
    pub named: ImageRef,
    /// The tag, if the reference has one.
    pub tag: Option<ImageRef>,
}

impl Questions {
    /// Returns the queries for this reference.
    pub fn of(reference: &ImageRef) -> Self {
        let named = match reference.digest() {
            Some(digest) => reference.at(digest),
            None => reference.clone(),
        };
        Self {
            named,
            tag: reference.without_digest(),
        }
    }

    /// True if the image that the tag points to becomes the target.
    pub fn follows(&self) -> bool {
        self.tag.as_ref() == Some(&self.named) || Bug::PinFollowed.is_awake()
    }
}

/// True if the image that the reference's tag points to becomes the target.
pub fn follows(reference: &Written<ImageRef>) -> bool {
    reference
        .get()
        .is_ok_and(|reference| Questions::of(reference).follows())
}

/// A registry's latest answer to a query.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// Last image that the registry returned; `None` if it has not returned any image yet.
    pub found: Option<Found>,
    /// Failure of the latest query. `None` if it succeeded.
    pub trouble: Option<QueryFailure>,
}

/// An image that a registry returned.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The image.
    pub image: Target,
    /// Time since the controller queried the registry for the image.
    pub age: Duration,
}

/// Failure of a registry query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryFailure {
    /// CamelCase reason.
    pub reason: Word,
    /// Details, one line.
    pub message: String,
    /// Time of the first failure since the last success.
    pub since: Timestamp,
    /// Number of consecutive failures.
    pub attempts: u32,
    /// Time of the next try. `None` if the query is not retried.
    pub next: Option<Timestamp>,
}

impl QueryFailure {
    fn words(&self) -> String {
        let next = match self.next {
            Some(at) => format!(", next try at {at:.0}"),
            None => String::new(),
        };
        format!(
            "{}; since {:.0}, attempt {}{next}",
            self.message, self.since, self.attempts
        )
    }
}

/// Answers to a pool's queries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    /// Answer to the query [`Questions::named`]. The query was made after the last change of the reference.
    pub named: Answer,
    /// Answer about the tag, if the reference has one.
    pub tag: Answer,
    /// True if no registry is queried because the BootcFleet, which lists the allowed registries, cannot be read.
    pub fleet_unreadable: bool,
}

impl Answers {
    /// Returns the failure of the query [`Questions::named`]. If that query has not failed, returns the failure of the
    /// query about the tag.
    pub fn trouble(&self) -> Option<&QueryFailure> {
        self.named.trouble.as_ref().or(self.tag.trouble.as_ref())
    }

    /// True if this leader has queried a registry for the pool, with or without success.
    pub fn is_asked(&self) -> bool {
        let mut both = [&self.named, &self.tag].into_iter();
        both.any(|answer| answer.found.is_some() || answer.trouble.is_some())
    }
}

/// Input for the decision about a pool's image.
#[derive(Debug, Clone, Copy)]
pub struct ImageFacts<'a> {
    /// `image.ref`
    pub reference: &'a Written<ImageRef>,
    /// `image.minimumAge`
    pub minimum_age: Duration,
    /// `status.target`
    pub target: Option<&'a Target>,
    /// `status.available`
    pub available: Option<&'a Available>,
    /// How long the tag has pointed to the available image, as measured by this and earlier leaders.
    pub seen: Duration,
    /// Registry answers.
    pub answers: &'a Answers,
}

/// Decision about a pool's image.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// New target. If its digest is unchanged, its publish time is unchanged too.
    pub target: Option<Target>,
    /// Digest that the tag points to, if it is not the target.
    pub available: Option<Available>,
    /// New condition `ImageResolved`.
    pub verdict: Verdict,
    /// Whether the next image may be adopted.
    pub next: Next,
}

/// Whether a pool may adopt its next image: the image that `image.ref` or its tag now points to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The pool has no next image, or the next image has no known problem. The image may still be too new
    /// (`image.minimumAge`) or need approval.
    Clear,
    /// The next image is refused.
    Refused(Refusal),
    /// The next image is not known, because no registry answer is available.
    Unknown,
}

impl<'a> ImageFacts<'a> {
    /// Returns the current target, if it was resolved from the reference that is now in the spec.
    pub fn current(&self) -> Option<&'a Target> {
        self.target.filter(|target| target.is_of(self.reference))
    }

    /// True if the available image is old enough, but the tag must be queried again before the image is adopted. Since
    /// the last query, the tag may have been moved away from a bad image.
    pub fn wants_confirmation(&self, questions: &Questions) -> bool {
        let Some(available) = self
            .available
            .filter(|_| questions.follows() && self.current().is_some())
        else {
            return false;
        };
        let found = self.answers.tag.found.as_ref();
        let same = found.filter(|found| found.image.digest == available.digest);
        !self.minimum_age.is_zero()
            && self.seen >= self.minimum_age
            && match same {
                Some(found) => !self.is_ripe(found),
                // Query again if there is no answer. If the tag now points to another image, the available image is not
                // adopted.
                None => found.is_none(),
            }
    }

    /// True if the tag has pointed to the image for `image.minimumAge`, and the last query was made after that time.
    /// Always true if `image.minimumAge` is zero.
    fn is_ripe(&self, found: &Found) -> bool {
        let seen = match self.available {
            Some(available) if available.digest == found.image.digest => self.seen,
            _ => Duration::ZERO,
        };
        if Bug::AgeIgnored.is_awake() || (Bug::NotConfirmed.is_awake() && seen >= self.minimum_age) {
            return true;
        }
        self.minimum_age.is_zero() || found.age.saturating_add(self.minimum_age) <= seen
    }

    fn available(&self, found: &Found, now: Timestamp) -> Available {
        let same = self.available.filter(|old| old.digest == found.image.digest);
        let seen = same.map_or(Duration::ZERO, |_| self.seen);
        Available {
            digest: found.image.digest.clone(),
            version: found.image.version.clone(),
            since: same.map_or_else(|| now.into(), |old| old.since.clone()),
            seen_seconds: rounded(seen.min(self.minimum_age), self.minimum_age),
        }
    }

    fn adopted(&self, image: &Target, now: Timestamp) -> Target {
        let same = self.target.filter(|old| old.digest == image.digest);
        let published = same.and_then(|old| old.publish_time.clone());
        Target {
            image: self.reference.clone(),
            publish_time: Some(published.unwrap_or_else(|| now.into())),
            ..image.clone()
        }
    }
}

/// Why an image must not become a pool's target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: CommonReason,
    /// Details, as a verb phrase with the image as its subject.
    pub words: String,
}

/// Decides about a pool's image. `refusal` returns why an image must not become the target; `None` if the image is
/// acceptable.
pub fn decide(facts: &ImageFacts<'_>, refusal: impl Fn(&Target) -> Option<Refusal>, now: Timestamp) -> Decision {
    let reference = match facts.reference.get() {
        Ok(reference) => reference,
        Err(error) => {
            return Decision {
                next: Next::Clear,
                ..unchanged(facts, Verdict::no(CommonReason::InvalidReference, error.to_string()))
            };
        }
    };
    match facts.current() {
        Some(current) => kept(facts, &Questions::of(reference), current, refusal, now),
        None => changed(facts, refusal, now),
    }
}

/// Decides for a pool that has no target yet, or whose target was resolved from another reference.
fn changed(facts: &ImageFacts<'_>, refusal: impl Fn(&Target) -> Option<Refusal>, now: Timestamp) -> Decision {
    if facts.answers.fleet_unreadable {
        let words = "the BootcFleet cannot be read; no image is resolved until it can be read";
        return unchanged(facts, Verdict::unknown(CommonReason::FleetUnreadable, words));
    }
    let answer = &facts.answers.named;
    if let Some(found) = &answer.found {
        if let Some(refusal) = refusal(&found.image) {
            let words = format!("{} {}", facts.reference, refusal.words);
            return Decision {
                verdict: Verdict::no(refusal.reason, words),
                next: Next::Refused(refusal),
                ..unchanged(facts, Verdict::unknown(CommonReason::Resolving, ""))
            };
        }
        let target = facts.adopted(&found.image, now);
        return Decision {
            verdict: resolved(&target),
            target: Some(target),
            available: None,
            next: Next::Clear,
        };
    }
    let verdict = match &answer.trouble {
        Some(trouble) => Verdict::no(trouble.reason.clone(), trouble.words()),
        None => Verdict::unknown(
            CommonReason::Resolving,
            format!("the registry is being queried for {}", facts.reference),
        ),
    };
    unchanged(facts, verdict)
}

/// Keeps the old target, because the new reference is invalid, or because its image is refused or unknown.
fn unchanged(facts: &ImageFacts<'_>, mut verdict: Verdict) -> Decision {
    if let Some(Err(error)) = facts.target.map(|target| target.image.get()) {
        let words = "; the BootcNodes of the pool are not changed until image.ref is resolved, because \
                     status.target.image is invalid";
        verdict.message.push_str(&format!("{words}: {error}"));
    }
    Decision {
        target: facts.target.cloned(),
        available: None,
        verdict,
        next: Next::Unknown,
    }
}

/// Keeps the current target. The next image has no known problem.
fn stays(current: &Target, available: Option<Available>, verdict: Verdict) -> Decision {
    Decision {
        target: Some(current.clone()),
        available,
        verdict,
        next: Next::Clear,
    }
}

/// Keeps the current target, because the next image is not known.
fn stays_unknown(current: &Target, available: Option<Available>, verdict: Verdict) -> Decision {
    Decision {
        next: Next::Unknown,
        ..stays(current, available, verdict)
    }
}

/// Returns the decision for a pool whose current target was resolved from the reference in the spec.
fn kept(
    facts: &ImageFacts<'_>,
    questions: &Questions,
    current: &Target,
    refusal: impl Fn(&Target) -> Option<Refusal>,
    now: Timestamp,
) -> Decision {
    if facts.answers.fleet_unreadable {
        let available = facts.available.filter(|a| a.digest != current.digest).cloned();
        let Verdict { message, .. } = resolved(current);
        let words = format!("{message}; Berth does not look for a newer image while the BootcFleet cannot be read");
        return stays_unknown(current, available, Verdict::yes(CommonReason::FleetUnreadable, words));
    }
    if questions.tag.is_none() {
        return stays(current, None, resolved(current));
    }
    let answer = &facts.answers.tag;
    let Some(found) = &answer.found else {
        let available = facts.available.filter(|a| a.digest != current.digest).cloned();
        let verdict = said(current, answer.trouble.as_ref(), available.as_ref(), || {
            untold(facts, questions)
        });
        return stays_unknown(current, available, verdict);
    };
    if found.image.digest == current.digest {
        return Decision {
            target: Some(described(current, &found.image)),
            ..stays(current, None, said(current, answer.trouble.as_ref(), None, || None))
        };
    }
    let refused = refusal(&found.image);
    if questions.follows() && refused.is_none() && facts.is_ripe(found) {
        let target = facts.adopted(&found.image, now);
        return Decision {
            verdict: said(&target, answer.trouble.as_ref(), None, || None),
            target: Some(target),
            available: None,
            next: Next::Clear,
        };
    }
    let available = facts.available(found, now);
    let verdict = said(current, answer.trouble.as_ref(), Some(&available), || match &refused {
        Some(refusal) => {
            let how = if questions.follows() { "is not" } else { "cannot be" };
            Some((
                refusal.reason,
                format!("{how} adopted, because the image {}", refusal.words),
            ))
        }
        None => untold_of(facts, questions, &available),
    });
    Decision {
        next: refused.map_or(Next::Clear, Next::Refused),
        ..stays(current, Some(available), verdict)
    }
}

/// Returns the current target. If the target has no metadata yet, adds the version and the metadata from `same`, the
/// registry's answer about the same digest. All digests stay, so no BootcNode's spec changes.
fn described(current: &Target, same: &Target) -> Target {
    let (version, metadata) = match &current.metadata {
        None => (current.version.as_ref().or(same.version.as_ref()), &same.metadata),
        metadata => (current.version.as_ref(), metadata),
    };
    Target {
        version: version.cloned(),
        metadata: metadata.clone(),
        ..current.clone()
    }
}

fn untold(facts: &ImageFacts<'_>, questions: &Questions) -> Option<(CommonReason, String)> {
    untold_of(facts, questions, facts.available?)
}

/// Returns the reason and the message why the available image is not the target yet.
fn untold_of(facts: &ImageFacts<'_>, questions: &Questions, available: &Available) -> Option<(CommonReason, String)> {
    if !questions.follows() {
        let words = "is adopted when image.ref names its digest; to do that: kubectl berth approve";
        return Some((CommonReason::ImageAvailable, words.to_owned()));
    }
    let left = facts.minimum_age.as_secs().saturating_sub(available.seen_seconds);
    let words = match left {
        0 => "is adopted as soon as the registry confirms that the tag still points to it (image.minimumAge is over)"
            .to_owned(),
        left => format!(
            "is adopted in {}, if the tag still points to it then (image.minimumAge)",
            about(left)
        ),
    };
    Some((CommonReason::MinimumAge, words))
}

/// Formats a number of seconds in s, min or h, rounded up.
fn about(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h", seconds.div_ceil(3600)),
    }
}

fn resolved(target: &Target) -> Verdict {
    said(target, None, None, || None)
}

/// Returns the condition `ImageResolved` with status True. If a query failed (`trouble`), the condition has the reason
/// of the failure. Otherwise, `why` returns the reason that keeps the available image from being adopted. If neither
/// applies, the reason is `Resolved`.
fn said(
    target: &Target,
    trouble: Option<&QueryFailure>,
    available: Option<&Available>,
    why: impl FnOnce() -> Option<(CommonReason, String)>,
) -> Verdict {
    let pinned = target.image.get().ok().and_then(ImageRef::digest);
    let mut message = if pinned == Some(&target.digest) {
        format!("{} is resolved", target.image)
    } else {
        format!("{} was resolved to {}", target.image, target.digest)
    };
    let mut reason = Word::from(CommonReason::Resolved);
    if let (Some(available), Some((because, words))) = (available, why()) {
        let version = available.version.as_ref().map_or_else(String::new, |v| format!("{v} "));
        message = format!(
            "{message}; the tag now points to {version}{}, which {words}",
            available.digest
        );
        reason = because.into();
    }
    if let Some(trouble) = trouble {
        message = format!(
            "{message}; the pool keeps its current image while the tag cannot be queried: {}",
            trouble.words()
        );
        reason = trouble.reason.clone();
    }
    Verdict::yes(reason, message)
}

/// How long the available image of each pool has been known, including the time under earlier leaders.
#[derive(Debug, Default)]
pub struct Ages(BTreeMap<PoolName, Age>);

#[derive(Debug)]
struct Age {
    digest: Digest,
    /// How long the available image was known under earlier leaders.
    before: Duration,
    since: Moment,
}

impl Age {
    fn new(available: &Available, now: Moment) -> Self {
        Self {
            digest: available.digest.clone(),
            before: Duration::from_secs(available.seen_seconds),
            since: now,
        }
    }
}

impl Ages {
    /// Records the available image of a pool's status. Returns how long the image has been known.
    pub fn see(&mut self, pool: &PoolName, available: Option<&Available>, now: Moment) -> Duration {
        let Some(available) = available else {
            self.0.remove(pool);
            return Duration::ZERO;
        };
        let age = self.0.entry(pool.clone()).or_insert_with(|| Age::new(available, now));
        if age.digest != available.digest {
            *age = Age::new(available, now);
        }
        age.before.saturating_add(now.since(age.since))
    }

    /// Keeps only the pools that `is_there` accepts.
    pub fn keep(&mut self, is_there: impl Fn(&PoolName) -> bool) {
        self.0.retain(|pool, _| is_there(pool));
    }
}

#[cfg(test)]
mod tests;
