//! Troubles of a pool's members.

use berth_api::berth::{HoldPhase, Holding, Outcome};
use berth_api::condition::Why;
use berth_api::platform::Choice;
use berth_api::pool::Target;

use super::facts::MemberView;
use crate::controller::overdue::knows_better;
use crate::controller::view::BootcNodeView;

/// Trouble of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// Effect on the pool.
    pub(super) kind: Kind,
    /// CamelCase reason.
    pub(super) reason: String,
    /// One line.
    pub(super) message: String,
}

/// Effect of a member's trouble on the pool, the most telling last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Turns end without an update, with this outcome.
    Turn(&'static str),
    /// The member reports that something is wrong.
    Degraded,
    /// The member does not come back.
    TimedOut,
}

pub(super) fn trouble(member: &MemberView<'_>, target: Option<&Target>) -> Option<Trouble> {
    let content = member.host.map(|h| &h.content);
    let own = match content {
        Some(Ok(content)) => content.report.degraded.clone(),
        Some(Err(error)) => Some(("Unreadable".to_owned(), error.clone())),
        None => None,
    };
    let knows_better = |holding: &Holding| knows_better(member.node, member.host, holding, member.heard);
    if let Some(holding) = member
        .holding
        .filter(|holding| member.overdue && !knows_better(holding))
    {
        let what = match holding.phase {
            HoldPhase::Committed => "has not come back from its reboot",
            HoldPhase::Taken | HoldPhase::Releasing(_) => "holds a berth and is silent",
        };
        let message = format!("{what}; it keeps its berth until it is proven, deleted or excluded");
        return Some(Trouble {
            kind: Kind::TimedOut,
            reason: "RebootTimedOut".to_owned(),
            message,
        });
    }
    if let Some((reason, message)) = own {
        return Some(Trouble {
            kind: Kind::Degraded,
            reason,
            message,
        });
    }
    let target = target?;
    unserved_trouble(member, target).or_else(|| bad_turn(member, target))
}

/// The target has nothing for the member's platform, as of a node that joined after it was adopted. Its agent is asked for
/// nothing and so has nothing to report.
fn unserved_trouble(member: &MemberView<'_>, target: &Target) -> Option<Trouble> {
    if is_served(member, target) {
        return None;
    }
    Some(Trouble {
        kind: Kind::Degraded,
        reason: Why::NoSuchPlatform.as_str().to_owned(),
        message: format!("{} has no image for {}", target.image, member.platform()),
    })
}

/// True unless the member cannot run any image of the target. One that has not reported its architecture or CPU counts as
/// served: it waits for the report.
pub(super) fn is_served(member: &MemberView<'_>, target: &Target) -> bool {
    let platform = member.platform();
    platform.architecture.is_empty() || target.choose(platform) != Choice::NoSuchPlatform
}

/// The member's turns end without an update. It is tried again and again, and somebody may have to help.
fn bad_turn(member: &MemberView<'_>, target: &Target) -> Option<Trouble> {
    let desired = target.digest_for(member.platform())?;
    let report = member.host.and_then(BootcNodeView::report)?;
    let turn = report
        .last_turn
        .as_ref()
        .filter(|t| t.digest == *desired && report.booted.as_ref() != Some(desired))?;
    let outcome = Outcome::from_word(&turn.outcome)?;
    let telling = match outcome {
        Outcome::DrainTimeout | Outcome::RebootBlocked | Outcome::NotApplied | Outcome::Failed => true,
        // Once is an unrelated reboot, and mends itself.
        Outcome::NotStaged => turn.attempts > 1,
        Outcome::Updated | Outcome::Revoked | Outcome::Withdrawn | Outcome::Lapsed => false,
    };
    let message = format!("{} (turn {})", turn.message, turn.attempts);
    telling.then(|| Trouble {
        kind: Kind::Turn(outcome.as_str()),
        reason: turn.outcome.clone(),
        message,
    })
}
