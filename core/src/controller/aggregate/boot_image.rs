//! The boot image in use in a pool: whether machines that join today are too old for the image that they have to change to.

use berth_api::boot_image::{
    BootImageEnforcement, BootImageLimit, BootImagePolicy, BootImageSource, BootImageStatus, MAX_NAMED,
};
use berth_api::condition::{Verdict, Why, Word};
use berth_api::pool::Target;
use jiff::Timestamp;

use super::MemberView;
use crate::controller::image::Refusal;
use crate::skew::{Skew, skew};
use crate::text::few;

/// Reason of a refusal for a boot image that is too old.
pub(super) const REASON: Why = Why::BootImageSkew;

/// Everything that a pool's boot image is judged by.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    /// Rules of the pool.
    pub(super) policy: &'a BootImagePolicy,
    /// Its members.
    pub(super) members: &'a [MemberView<'a>],
    /// `status.bootImage`
    pub(super) before: Option<&'a BootImageStatus>,
}

/// What there is to say of a pool's boot image.
pub(super) struct Assessment {
    pub(super) status: Option<BootImageStatus>,
    /// `BootImageSkew`
    pub(super) verdict: Verdict,
}

/// The boot image that the next machine is installed from, as far as anybody knows.
struct InUse<'a> {
    version: Option<&'a str>,
    node: Option<&'a str>,
}

impl InUse<'_> {
    /// Words about its distance to an image.
    fn words(&self, why: &str) -> String {
        match self.node {
            Some(node) => format!("the newest machine, {node}, {why}"),
            None => format!("a machine of the recorded boot image {why}"),
        }
    }
}

/// Refusal of an image for which the boot image in use is too old.
pub(super) fn refusal(facts: &Facts<'_>, image: &Target) -> Option<Refusal> {
    if enforcement(facts.policy) != BootImageEnforcement::ReleaseRecommended {
        return None;
    }
    let in_use = in_use(facts)?;
    match skew_of(facts, in_use.version, image) {
        Skew::Exceeded(why) => Some(Refusal {
            reason: REASON,
            words: format!(
                "is for machines with a newer boot image: {}; install new machines from a newer one, or record it with \
                 bootImage.source: Manual, or warn only with bootImage.enforcement: Warn",
                in_use.words(&why)
            ),
        }),
        Skew::NoLimit | Skew::Within | Skew::Unknown(_) => None,
    }
}

/// Assesses the boot image in use, for the image in force and for one that was refused.
pub(super) fn assess(facts: &Facts<'_>, target: Option<&Target>, resolved: &Verdict, now: Timestamp) -> Assessment {
    let said = |verdict| Assessment { status: None, verdict };
    if enforcement(facts.policy) == BootImageEnforcement::Disabled {
        let words = "bootImage.enforcement is Disabled: nobody looks whether new machines could join";
        return said(Verdict::no(Why::Disabled, words));
    }
    let refused = resolved.reason == Word::from(REASON);
    let Some(target) = target else {
        return said(match refused {
            true => Verdict::yes(Why::NextImageRefused, resolved.message.clone()),
            false => Verdict::unknown(Why::ImageNotResolved, "no image is in force; see ImageResolved"),
        });
    };
    let in_use = in_use(facts);
    let version = in_use.as_ref().and_then(|in_use| in_use.version);
    let words = |why: &str| {
        in_use.as_ref().map_or_else(
            || "no machine has told what it was installed from".to_owned(),
            |i| i.words(why),
        )
    };
    let mut verdict = match skew_of(facts, version, target) {
        _ if refused => Verdict::yes(Why::NextImageRefused, resolved.message.clone()),
        Skew::NoLimit => return said(Verdict::no(Why::NoLimit, "")),
        Skew::Within => Verdict::no(Why::WithinLimit, ""),
        Skew::Exceeded(why) => Verdict::yes(Why::BootImageTooOld, words(&why)),
        Skew::Unknown(why) => Verdict::unknown(Why::CannotCompare, words(&why)),
    };
    let too_old: Vec<&str> = facts
        .members
        .iter()
        .filter(|member| matches!(skew_of(facts, version_of(member), target), Skew::Exceeded(_)))
        .map(|member| member.node.name.as_str())
        .collect();
    if verdict.status == Some(true) && !refused && !too_old.is_empty() {
        let names = few(too_old.iter().map(ToString::to_string));
        verdict.message = format!("{}; too old: {names}", verdict.message);
    }
    let same = facts
        .before
        .filter(|before| before.version.as_deref() == version && before.node.is_none());
    let is_manual = source(facts.policy) == BootImageSource::Manual;
    let status = BootImageStatus {
        version: version.map(str::to_owned),
        node: in_use.as_ref().and_then(|in_use| in_use.node).map(str::to_owned),
        recorded_time: is_manual.then(|| same.and_then(|same| same.recorded_time.clone()).unwrap_or(now.into())),
        limit: limit_of(facts, target),
        too_old: u32::try_from(too_old.len()).unwrap_or(u32::MAX),
        too_old_nodes: too_old.iter().take(MAX_NAMED).map(ToString::to_string).collect(),
    };
    Assessment {
        status: Some(status),
        verdict,
    }
}

fn enforcement(policy: &BootImagePolicy) -> BootImageEnforcement {
    policy.enforcement.unwrap_or_default()
}

fn source(policy: &BootImagePolicy) -> BootImageSource {
    policy.source.unwrap_or_default()
}

/// The boot image in use; `None` while no machine has told anything. The newest machine is the one whose Node the API server
/// created last: the clocks of machines are not compared.
fn in_use<'a>(facts: &'a Facts<'_>) -> Option<InUse<'a>> {
    if source(facts.policy) == BootImageSource::Manual {
        let version = facts.policy.manual.as_ref().map(|manual| manual.version.as_str());
        return Some(InUse { version, node: None });
    }
    let told = facts.members.iter().filter(|member| {
        let report = member.host.and_then(|host| host.report());
        report.is_some_and(|report| report.booted.is_some())
    });
    let newest = told.max_by_key(|member| (member.node.created, &member.node.name))?;
    Some(InUse {
        version: version_of(newest),
        node: Some(newest.node.name.as_str()),
    })
}

fn version_of<'a>(member: &MemberView<'a>) -> Option<&'a str> {
    member.host?.report()?.boot_image.as_deref()
}

fn skew_of(facts: &Facts<'_>, boot: Option<&str>, image: &Target) -> Skew {
    let own = BootImageLimit {
        minimum_version: facts.policy.minimum_version.clone(),
        ..BootImageLimit::default()
    };
    let nothing = BootImageLimit::default();
    let of_image = of_image(image).unwrap_or(&nothing);
    skew(boot, image.version.as_deref(), &[of_image, &own])
}

fn of_image(image: &Target) -> Option<&BootImageLimit> {
    image.metadata.as_ref()?.boot_image.as_ref()
}

/// The limit of an image, for people; the pool's own minimum stands in its spec.
fn limit_of(facts: &Facts<'_>, image: &Target) -> BootImageLimit {
    let mut limit = of_image(image).cloned().unwrap_or_default();
    limit.minimum_version = limit.minimum_version.or(facts.policy.minimum_version.clone());
    limit
}

#[cfg(test)]
mod tests;
