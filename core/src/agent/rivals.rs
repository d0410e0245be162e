//! Other updaters and reboot daemons beside the agent: which of them it waits for, and what people are told of them.

use berth_api::condition::Verdict;
use berth_api::pool::RivalUpdaters;

use crate::agent::facts::{Desired, Facts};
use crate::agent::reason::Reason;

/// Units of the host that update it by themselves.
pub const UNITS: &[&str] = &[
    APPLY_TIMER,
    APPLY_SERVICE,
    "rpm-ostreed-automatic.timer",
    "zincati.service",
];
/// Timer of the next.
const APPLY_TIMER: &str = "bootc-fetch-apply-updates.timer";
/// `bootc upgrade --apply`, which unlocks what is staged, whoever staged it, and reboots.
const APPLY_SERVICE: &str = "bootc-fetch-apply-updates.service";

fn tolerates(facts: &Facts) -> bool {
    matches!(&facts.desired, Desired::Member(member) if member.rivals == RivalUpdaters::Tolerate)
}

/// The rival beside which nothing may stay staged: it would be applied outside of every turn.
pub(crate) fn in_the_way(facts: &Facts) -> Option<&str> {
    let rivals = facts.host.rivals.iter().map(String::as_str);
    let mut applying = rivals.filter(|name| [APPLY_TIMER, APPLY_SERVICE].contains(name));
    applying.next().filter(|_| !tolerates(facts))
}

/// Verdict on the rivals that are active, for people; `None` where there are none, or the pool tolerates them.
pub(crate) fn verdict(facts: &Facts) -> Option<Verdict> {
    let rivals = &facts.host.rivals;
    if rivals.is_empty() || tolerates(facts) {
        return None;
    }
    let advice = match in_the_way(facts) {
        Some(name) => format!(
            "nothing is staged beside {name}, which would apply it and reboot at any time; run `systemctl disable --now {APPLY_TIMER}` on the host"
        ),
        None => "it may replace what Berth stages or reboot the host; disable it".to_owned(),
    };
    let message = format!(
        "{} is active: {advice}, or set rivalUpdaters: Tolerate in the pool",
        rivals.join(", ")
    );
    Some(Verdict::yes(Reason::RivalUpdater.as_str(), message))
}
