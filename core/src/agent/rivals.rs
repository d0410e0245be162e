//! Other updaters and reboot daemons ("rivals"): which of them keep the agent from staging an image, and how the status
//! shows them.

use berth_api::pool::RivalUpdaters;

use crate::agent::facts::{AgentFacts, Desired};
use crate::agent::reason::Reason;
use crate::finding::Finding;

/// Host units that update the host automatically.
pub const UNITS: &[&str] = &[
    APPLY_TIMER,
    APPLY_SERVICE,
    AUTOMATIC_TIMER,
    AUTOMATIC_SERVICE,
    "zincati.service",
];
/// Starts [`APPLY_SERVICE`].
const APPLY_TIMER: &str = "bootc-fetch-apply-updates.timer";
/// Runs `bootc upgrade --apply`, which unlocks any staged image, even an image from another tool, and reboots.
const APPLY_SERVICE: &str = "bootc-fetch-apply-updates.service";

/// Starts [`AUTOMATIC_SERVICE`].
const AUTOMATIC_TIMER: &str = "rpm-ostreed-automatic.timer";
/// Runs rpm-ostree's automatic update. `AutomaticUpdatePolicy` decides whether the update is only reported, staged, or
/// also applied by a reboot.
const AUTOMATIC_SERVICE: &str = "rpm-ostreed-automatic.service";

/// Programs whose pods update or reboot their node automatically. Each entry is a label value from the published
/// manifest of the program.
pub const PODS: [&str; 2] = ["kured", "machine-config-daemon"];

/// Returns the name of a rival's pod for the status.
pub fn pod(rival: &str, namespace: &str, name: &str) -> String {
    format!("{rival} (pod {namespace}/{name})")
}

/// Appends rpm-ostree's setting `AutomaticUpdatePolicy` to the names of its active update units. If no such unit is
/// active, the setting has no effect and is not shown.
pub fn with_policy(mut rivals: Vec<String>, policy: Option<&str>) -> Vec<String> {
    let Some(policy) = policy else { return rivals };
    for rival in &mut rivals {
        if [AUTOMATIC_TIMER, AUTOMATIC_SERVICE].contains(&rival.as_str()) {
            *rival = format!("{rival} (AutomaticUpdatePolicy={policy} in /etc/rpm-ostreed.conf)");
        }
    }
    rivals
}

/// Returns the name that an admin lists to tolerate this rival: the name in the status, without the part in
/// parentheses.
fn name(rival: &str) -> &str {
    rival.split_once(" (").map_or(rival, |(name, _)| name)
}

/// True if the pool tolerates this rival under the name `tolerated`. The name of a timer also tolerates the service
/// that the timer starts.
fn covers(tolerated: &str, rival: &str) -> bool {
    let started = [(APPLY_TIMER, APPLY_SERVICE), (AUTOMATIC_TIMER, AUTOMATIC_SERVICE)];
    tolerated == rival || started.contains(&(tolerated, rival))
}

fn active(facts: &AgentFacts) -> Vec<&str> {
    let rivals = facts.host.rivals.iter().map(String::as_str);
    rivals.filter(|rival| !is_tolerated(&facts.desired, rival)).collect()
}

fn is_tolerated(desired: &Desired, rival: &str) -> bool {
    let Desired::Member(member) = desired else {
        return false;
    };
    member.rivals == RivalUpdaters::Tolerate || member.tolerated.iter().any(|tolerated| covers(tolerated, name(rival)))
}

/// Returns the rival that would unlock a staged image and reboot into it at any time, outside of a turn.
pub(crate) fn in_the_way(facts: &AgentFacts) -> Option<&str> {
    let mut active = active(facts).into_iter();
    active.find(|name| [APPLY_TIMER, APPLY_SERVICE].contains(name))
}

pub(crate) fn finding(facts: &AgentFacts) -> Option<Finding> {
    let rivals = active(facts);
    if rivals.is_empty() {
        return None;
    }
    let advice = match in_the_way(facts) {
        Some(name) => format!(
            "no image is staged, because {name} would apply a staged image and reboot at any time; run `systemctl disable --now {APPLY_TIMER}` on the host"
        ),
        None => {
            let mut names: Vec<&str> = rivals.iter().map(|rival| name(rival)).collect();
            names.dedup();
            format!(
                "it may replace staged images or reboot the host; disable it, or add {} to toleratedUpdaters of the pool",
                names.join(", ")
            )
        }
    };
    let message = format!("{} is active: {advice}", rivals.join(", "));
    Some(facts.degraded(Reason::RivalUpdater, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_alone_is_not_a_rival() {
        assert!(with_policy(vec![], Some("stage")).is_empty());
        let zincati = vec!["zincati.service".to_owned()];
        assert_eq!(with_policy(zincati.clone(), Some("stage")), zincati);
        let timer = vec![AUTOMATIC_TIMER.to_owned()];
        assert_eq!(with_policy(timer.clone(), None), timer);
        let shown = with_policy(timer, Some("stage"));
        assert!(shown[0].contains("AutomaticUpdatePolicy=stage"), "{shown:?}");
        assert!(
            covers(AUTOMATIC_TIMER, name(&shown[0])),
            "the name to tolerate it by is unchanged"
        );
    }

    #[test]
    fn a_pod_is_reported_with_its_namespace() {
        let shown = pod("kured", "kube-system", "kured-x");
        assert_eq!(shown, "kured (pod kube-system/kured-x)");
        assert_eq!(name(&shown), "kured");
    }
}
