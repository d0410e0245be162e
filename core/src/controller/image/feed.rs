//! A pool's image feed: whether new images of its tag still reach the pool. The condition `ImageResolved` is about the
//! current image and stays True while the tag cannot be queried. The condition `FeedFailing` becomes True when the tag
//! cannot be queried or its image is refused.

use berth_api::condition::{CommonReason, Verdict};
use berth_api::pool::Target;

use super::{ImageFacts, Next, Questions, Refusal};

/// Returns the condition `FeedFailing` of a pool. `in_force` is the target after this pass. `next` shows whether the
/// tag's image may be adopted. `polled` is true if the controller polls the tag.
///
/// Returns `None` to keep the current condition if the BootcFleet cannot be read, or if this leader has not queried the
/// tag yet.
pub fn assess(facts: &ImageFacts<'_>, in_force: Option<&Target>, next: &Next, polled: bool) -> Option<Verdict> {
    let is_resolved = in_force.is_some_and(|target| target.is_of(facts.reference));
    if !is_resolved {
        return Some(Verdict::unknown(
            CommonReason::ImageNotResolved,
            "image.ref is not resolved yet; see ImageResolved",
        ));
    }
    if facts.answers.fleet_unreadable {
        return None;
    }
    let questions = Questions::of(facts.reference.get().ok()?);
    let Some(tag) = &questions.tag else {
        return Some(Verdict::no(
            CommonReason::AsExpected,
            "image.ref has a digest and no tag, so there is no tag to query",
        ));
    };
    if !polled {
        return Some(Verdict::unknown(
            CommonReason::NotPolled,
            format!("image.pollInterval is 0: {tag} is queried only on request (kubectl berth poll)"),
        ));
    }
    if let Some(trouble) = &facts.answers.tag.trouble {
        let next_try = match trouble.next {
            Some(at) => format!("next try at {at:.0}"),
            None => "not tried again".to_owned(),
        };
        let message = format!(
            "{tag} cannot be queried: {}; attempt {}, {next_try}",
            trouble.message, trouble.attempts
        );
        return Some(Verdict::yes(trouble.reason.clone(), message));
    }
    if questions.follows()
        && let Next::Refused(Refusal { reason, words }) = next
    {
        return Some(Verdict::yes(
            *reason,
            format!("the image that {tag} points to is not adopted, because the image {words}"),
        ));
    }
    // A target that was adopted in this pass comes from an answer of the registry.
    let is_adopted = facts.current().is_none();
    let is_answered = is_adopted || facts.answers.tag.found.is_some();
    is_answered.then(|| Verdict::no(CommonReason::AsExpected, format!("{tag} can be queried")))
}

#[cfg(test)]
mod tests;
