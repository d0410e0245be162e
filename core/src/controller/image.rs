//! A pool's image: which digest is in force, which other one its tag points at, and what there is to say of both.
//!
//! A tag alone is followed: what it points at is adopted once that is old enough. A reference with a tag and a digest is
//! pinned: its tag is only watched. A digest alone is never asked about again. A reference that the admin changed is
//! adopted as soon as it is resolved, and what a registry does not say changes nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::condition::{Verdict, Why, Word};
use berth_api::image_ref::ImageRefError;
use berth_api::pool::{Available, Target};
use berth_api::seeded::Bug;
use berth_api::{Digest, ImageRef, PoolName};
use jiff::Timestamp;

use crate::Moment;
use crate::text::rounded;

pub mod feed;
mod reason;

pub use reason::ResolveReason;

/// The questions to a registry that a reference leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Questions {
    /// Part of the reference that counts: its digest if it has one, else its tag.
    pub named: ImageRef,
    /// The tag, if it has one.
    pub tag: Option<ImageRef>,
}

impl Questions {
    /// The questions of this reference.
    ///
    /// # Errors
    /// When it is none.
    pub fn of(reference: &str) -> Result<Self, ImageRefError> {
        let reference: ImageRef = reference.parse()?;
        let tag = reference.without_digest();
        let named = match (reference.digest(), &tag) {
            (Some(digest), _) => reference.at(digest),
            (None, Some(tag)) => tag.clone(),
            (None, None) => reference,
        };
        Ok(Self { named, tag })
    }

    /// Says whether what the tag points at becomes the target.
    pub fn follows(&self) -> bool {
        self.tag.as_ref() == Some(&self.named) || Bug::PinFollowed.is_awake()
    }
}

/// True if what the reference's tag points to becomes the target.
pub fn follows(reference: &str) -> bool {
    Questions::of(reference).is_ok_and(|questions| questions.follows())
}

/// Last answer of a registry to a question.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answer {
    /// The last image that it answered.
    pub found: Option<Found>,
    /// Why it has not answered since.
    pub trouble: Option<Trouble>,
}

/// An image that a registry answered.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The image.
    pub image: Target,
    /// Time since it was asked for.
    pub age: Duration,
}

/// Failure to learn something from a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// CamelCase reason.
    pub reason: Word,
    /// One line.
    pub message: String,
    /// Time of the first failure in a row.
    pub since: Timestamp,
    /// Number of failures in a row.
    pub attempts: u32,
    /// Time of the next try. `None`: nobody tries again by himself.
    pub next: Option<Timestamp>,
}

impl Trouble {
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

/// Answers to a pool's questions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    /// About what its reference names. Of a reference that was changed: by a request from after the change.
    pub named: Answer,
    /// About its tag, if it has one.
    pub tag: Answer,
    /// Reference that cannot be asked about.
    pub invalid: Option<String>,
    /// Nothing is asked, since the BootcFleet cannot be read, which says what may be.
    pub fleet_unreadable: bool,
}

/// Everything that a pool's image depends on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// `image.ref`
    pub reference: &'a str,
    /// `image.minimumAge`
    pub minimum_age: Duration,
    /// `status.target`
    pub target: Option<&'a Target>,
    /// `status.available`
    pub available: Option<&'a Available>,
    /// Time for which leaders have known of what is available.
    pub seen: Duration,
    /// Answers of registries.
    pub answers: &'a Answers,
}

/// Outcome for a pool's image.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The target in force. Its time of publishing is that of the one before, if the digest is the same.
    pub target: Option<Target>,
    /// The digest that the tag points at, while that is not the target.
    pub available: Option<Available>,
    /// `ImageResolved`
    pub verdict: Verdict,
    /// Fate of an image that is not the target and could become it.
    pub next: Next,
}

/// Fate of the image that a pool should change to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// There is none, or nothing but time keeps it from being adopted.
    Clear,
    /// The image is refused.
    Refused(Refusal),
    /// The registry has not said yet which one it is.
    Unknown,
}

impl<'a> Facts<'a> {
    /// The target, if it is from the very reference of the spec.
    pub fn current(&self) -> Option<&'a Target> {
        self.target.filter(|target| target.image == self.reference)
    }

    /// Says whether the tag is to be asked once more, because what it pointed at has become old enough: whoever has pulled
    /// back a bad push since then must be heard.
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
                // Unless it is known to point elsewhere, which the status has yet to say.
                None => found.is_none(),
            }
    }

    /// Says whether an image that the tag points at has been known for long enough, and the tag was asked after that.
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

    /// The image as this pool's target.
    fn adopted(&self, image: &Target, now: Timestamp) -> Target {
        let same = self.target.filter(|old| old.digest == image.digest);
        let published = same.and_then(|old| old.publish_time.clone());
        Target {
            image: self.reference.to_owned(),
            publish_time: Some(published.unwrap_or_else(|| now.into())),
            ..image.clone()
        }
    }
}

/// Reason for which an image does not become the target of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: Why,
    /// Details, in words that follow the name of the image.
    pub words: String,
}

/// Decides about a pool's image. `refusal` says why an image must not become the target, if so.
pub fn decide(facts: &Facts<'_>, refusal: impl Fn(&Target) -> Option<Refusal>, now: Timestamp) -> Decision {
    match facts.current() {
        Some(current) => kept(facts, current, refusal, now),
        None => changed(facts, refusal, now),
    }
}

/// Decides about a reference that the target is not from.
fn changed(facts: &Facts<'_>, refusal: impl Fn(&Target) -> Option<Refusal>, now: Timestamp) -> Decision {
    let stays = |verdict| Decision {
        target: facts.target.cloned(),
        available: None,
        verdict,
        next: Next::Unknown,
    };
    if let Some(error) = &facts.answers.invalid {
        return Decision {
            next: Next::Clear,
            ..stays(Verdict::no(Why::InvalidReference, error.clone()))
        };
    }
    if facts.answers.fleet_unreadable {
        let words = "the BootcFleet cannot be read; no image is resolved until it can";
        return stays(Verdict::unknown(Why::FleetUnreadable, words));
    }
    let answer = &facts.answers.named;
    if let Some(found) = &answer.found {
        if let Some(refusal) = refusal(&found.image) {
            let words = format!("{} {}", facts.reference, refusal.words);
            return Decision {
                verdict: Verdict::no(refusal.reason, words),
                next: Next::Refused(refusal),
                ..stays(Verdict::unknown(Why::Resolving, ""))
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
    stays(match &answer.trouble {
        Some(trouble) => Verdict::no(trouble.reason.clone(), trouble.words()),
        None => Verdict::unknown(Why::Resolving, format!("asking the registry for {}", facts.reference)),
    })
}

/// Decides about a reference that the target is from.
fn kept(facts: &Facts<'_>, current: &Target, refusal: impl Fn(&Target) -> Option<Refusal>, now: Timestamp) -> Decision {
    let stays = |available, verdict| Decision {
        target: Some(current.clone()),
        available,
        verdict,
        next: Next::Clear,
    };
    let unknown = |available, verdict| Decision {
        next: Next::Unknown,
        ..stays(available, verdict)
    };
    if facts.answers.fleet_unreadable {
        let available = facts.available.filter(|a| a.digest != current.digest).cloned();
        let Verdict { message, .. } = resolved(current);
        let words = format!("{message}; nothing newer is looked for while the BootcFleet cannot be read");
        return unknown(available, Verdict::yes(Why::FleetUnreadable, words));
    }
    // The reference was adopted, so that it is one.
    let Some(questions) = Questions::of(facts.reference).ok().filter(|q| q.tag.is_some()) else {
        return stays(None, resolved(current));
    };
    let answer = &facts.answers.tag;
    let Some(found) = &answer.found else {
        let available = facts.available.filter(|a| a.digest != current.digest).cloned();
        let verdict = said(current, answer.trouble.as_ref(), available.as_ref(), || {
            untold(facts, &questions)
        });
        return unknown(available, verdict);
    };
    if found.image.digest == current.digest {
        return Decision {
            target: Some(described(current, &found.image)),
            ..stays(None, said(current, answer.trouble.as_ref(), None, || None))
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
            let how = if questions.follows() { "is not" } else { "would not be" };
            Some((refusal.reason, format!("{how} adopted: it {}", refusal.words)))
        }
        None => untold_of(facts, &questions, &available),
    });
    Decision {
        next: refused.map_or(Next::Clear, Next::Refused),
        ..stays(Some(available), verdict)
    }
}

/// The target with what its builder says of it, where that was not to be had before. What the nodes are told stays.
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

fn untold(facts: &Facts<'_>, questions: &Questions) -> Option<(Why, String)> {
    untold_of(facts, questions, facts.available?)
}

/// Says why what is available is not the target.
fn untold_of(facts: &Facts<'_>, questions: &Questions, available: &Available) -> Option<(Why, String)> {
    if !questions.follows() {
        let words = "is adopted when image.ref names its digest; kubectl berth approve does that";
        return Some((Why::ImageAvailable, words.to_owned()));
    }
    let left = facts.minimum_age.as_secs().saturating_sub(available.seen_seconds);
    let words = match left {
        0 => "is adopted once the registry has confirmed it (image.minimumAge is over)".to_owned(),
        left => format!(
            "is adopted in {}, if the tag stays there (image.minimumAge)",
            about(left)
        ),
    };
    Some((Why::MinimumAge, words))
}

/// Seconds, in the larger unit.
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

/// `ImageResolved` of a target in force: that it is, and what else there is to know, the most pressing first.
fn said(
    target: &Target,
    trouble: Option<&Trouble>,
    available: Option<&Available>,
    why: impl FnOnce() -> Option<(Why, String)>,
) -> Verdict {
    let mut message = match target.image.ends_with(&target.digest.to_string()) {
        true => format!("{} is in force", target.image),
        false => format!("{} is {}", target.image, target.digest),
    };
    let mut reason = Word::from(Why::Resolved);
    if let (Some(available), Some((because, words))) = (available, why()) {
        let version = available.version.as_ref().map_or_else(String::new, |v| format!("{v} "));
        message = format!(
            "{message}; the tag points at {version}{}, which {words}",
            available.digest
        );
        reason = because.into();
    }
    if let Some(trouble) = trouble {
        message = format!(
            "{message}; it stays in force while the tag cannot be looked at: {}",
            trouble.words()
        );
        reason = trouble.reason.clone();
    }
    Verdict::yes(reason, message)
}

/// Time for which this leader, and those before it, have known of what each pool's tag points at.
#[derive(Debug, Default)]
pub struct Ages(BTreeMap<PoolName, Age>);

#[derive(Debug)]
struct Age {
    digest: Digest,
    /// Time that former leaders have counted.
    before: Duration,
    since: Moment,
}

impl Ages {
    /// Takes in what a pool's status says to be available, and answers for how long that has been known.
    pub fn see(&mut self, pool: &PoolName, available: Option<&Available>, now: Moment) -> Duration {
        let Some(available) = available else {
            self.0.remove(pool);
            return Duration::ZERO;
        };
        let new = || Age {
            digest: available.digest.clone(),
            before: Duration::from_secs(available.seen_seconds),
            since: now,
        };
        let age = self.0.entry(pool.clone()).or_insert_with(new);
        if age.digest != available.digest {
            *age = new();
        }
        age.before.saturating_add(now.since(age.since))
    }

    /// Forgets the pools that are not among these.
    pub fn keep(&mut self, is_there: impl Fn(&PoolName) -> bool) {
        self.0.retain(|pool, _| is_there(pool));
    }
}

#[cfg(test)]
mod tests;
