//! Troubles of members that a pool's status reports.

use berth_api::berth::{HoldPhase, Outcome};
use berth_api::condition::CommonReason;
use berth_api::platform::Choice;
use berth_api::pool::Target;

use super::facts::{MemberView, PoolStatusFacts};
use crate::controller::overdue::knows_better;
use crate::controller::view::BootcNodeView;
use crate::finding::kind::Kind;
use crate::finding::{self, Finding, Subject};

impl PoolStatusFacts<'_> {
    /// Returns why a member of the pool needs attention; `None` if it does not.
    pub(super) fn trouble(&self, member: &MemberView<'_>, target: Option<&Target>) -> Option<Finding> {
        let offers = self.plan.vain.get(&member.node.name).copied();
        trouble(member, self.pool, target, offers)
    }
}

/// Returns why the member needs attention; `None` if it does not. `offers`: number of offers that the member used for no
/// update, if there were many.
pub(super) fn trouble(
    member: &MemberView<'_>,
    pool: &str,
    target: Option<&Target>,
    offers: Option<u32>,
) -> Option<Finding> {
    let node = Subject::Node(member.node.name.clone(), pool.into());
    if let Some(found) = member.implausible {
        return Some(Finding::new(Kind::Implausible, node, found.reason, &*found.message));
    }
    let overdue = member.holding.filter(|_| member.overdue);
    if let Some(holding) = overdue.filter(|holding| !knows_better(member.node, member.host, holding, member.heard)) {
        let what = match holding.phase {
            HoldPhase::Committed => "has not come back from its reboot",
            HoldPhase::Taken | HoldPhase::Releasing(_) => "holds a berth and is silent",
        };
        let message =
            format!("{what}; the node keeps its berth until its boot is proven, or the Node is deleted or excluded");
        return Some(Finding::new(
            Kind::RebootTimedOut,
            node,
            CommonReason::RebootTimedOut,
            message,
        ));
    }
    if let Some(error) = &member.node.error {
        let message = format!("the Node cannot be read, so it counts as not Ready: {error}");
        return Some(finding::node::degraded(node, CommonReason::UnreadableObjects, message));
    }
    let own = match member.host.map(|host| &host.content) {
        Some(Ok(content)) => content.trouble(&member.node.name),
        Some(Err(error)) => Some(finding::node::unreadable_spec(node.clone(), error)),
        None => None,
    };
    if own.is_some() {
        return own;
    }
    let target = target?;
    unserved_trouble(member, &node, target)
        .or_else(|| bad_turn(member, node.clone(), target))
        .or_else(|| offers.map(|offers| vain(node, offers)))
}

/// Reports a member if the target has no image for its platform, for example because the node joined after the target
/// was adopted. The controller publishes no image to such a member, so the member's agent cannot report the problem.
fn unserved_trouble(member: &MemberView<'_>, node: &Subject, target: &Target) -> Option<Finding> {
    if is_served(member, target) {
        return None;
    }
    let message = format!("{} has no image for {}", target.image, member.platform());
    let kind = Kind::PlatformUnsupported;
    Some(Finding::new(kind, node.clone(), CommonReason::NoSuchPlatform, message))
}

/// True if the target has an image for the member's platform. Also true while the architecture or CPU is unknown.
pub(super) fn is_served(member: &MemberView<'_>, target: &Target) -> bool {
    let platform = member.platform();
    platform.architecture.is_empty() || target.choose(platform) != Choice::NoSuchPlatform
}

/// Reports a member that had many offers and was not updated, without a reason of its own. Its agent may be broken or
/// compromised.
fn vain(node: Subject, offers: u32) -> Finding {
    let message = format!(
        "was offered a berth for this image {offers} times, does not run the image and reports no reason: a window closed \
         each time, or its agent is broken or compromised; to continue without the node: kubectl berth exclude {}",
        node.name()
    );
    Finding::new(Kind::BadTurn, node, CommonReason::TurnsWithoutUpdate, message)
}

/// Reports a member if a problem of the node ended its last turn for the target. A person may have to help.
fn bad_turn(member: &MemberView<'_>, node: Subject, target: &Target) -> Option<Finding> {
    let desired = target.digest_for(member.platform())?;
    let report = member.host.and_then(BootcNodeView::report)?;
    let turn = report
        .last_turn
        .as_ref()
        .filter(|t| t.digest == *desired && report.images.booted.as_ref() != Some(desired))?;
    let outcome = Outcome::from_word(&turn.outcome)?;
    let telling = match outcome {
        Outcome::DrainTimeout | Outcome::RebootBlocked | Outcome::NotApplied | Outcome::Failed => true,
        // The first turn that ends without a staged image is due to an unrelated reboot. Berth retries, so no person
        // has to help.
        Outcome::NotStaged => turn.attempts > 1,
        Outcome::Updated | Outcome::Revoked | Outcome::Withdrawn | Outcome::Lapsed => false,
    };
    let message = format!("{} (turn {})", turn.message, turn.attempts);
    telling.then(|| Finding::new(Kind::BadTurn, node, outcome, message))
}
