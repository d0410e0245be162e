//! Finds the berths of a node and describes them in sentences.

use berth_api::berth::{Berth, BerthState, HoldPhase, Holding};
use berth_api::keys;
use berth_api::pool::BootcNodePool;
use berth_api::{Digest, NodeName};
use berth_core::controller::plan::failures;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use crate::members::{Member, Roster, is_excluded};
use crate::snapshot::Snapshot;
use crate::text::{age, clean, count, short};

#[derive(Debug, Clone)]
pub(super) struct Held<'a> {
    pub(super) lease: &'a Lease,
    pub(super) berth: Berth,
    pub(super) holding: Holding,
}

#[derive(Debug, Default)]
pub(super) struct Claims<'a> {
    /// Berths that this Node holds.
    pub(super) held: Vec<Held<'a>>,
    /// Berths that a former Node with this name holds.
    pub(super) former: Vec<Held<'a>>,
    pub(super) offered: Vec<String>,
    /// Notes on the Node, its BootcNode and the Leases that name the node, if they cannot be read.
    pub(super) unreadable: Vec<String>,
}

impl<'a> Claims<'a> {
    /// Finds the node's berths in all pools. A node that has moved to another pool may still hold a berth of its former
    /// pool.
    pub(super) fn of(snapshot: &'a Snapshot, member: &Member<'_>) -> Self {
        let notes = snapshot.undecoded_of(&member.name);
        let mut claims = Self {
            unreadable: notes.iter().map(|note| clean(note)).collect(),
            ..Self::default()
        };
        let uid = &member.node.uid;
        let name = NodeName::from(member.name.as_str());
        for lease in &snapshot.leases {
            let labelled = lease
                .labels()
                .get(keys::LABEL_NODE)
                .is_some_and(|label| *label == name.label());
            let berth = match lease.berth() {
                Ok(berth) => berth,
                Err(error) if labelled => {
                    claims.unreadable.push(clean(&error.to_string()));
                    continue;
                }
                Err(_) => continue,
            };
            match &berth.state {
                BerthState::Held(holding) if holding.node.as_str() == member.name => {
                    let list = if holding.uid == *uid {
                        &mut claims.held
                    } else {
                        &mut claims.former
                    };
                    let holding = holding.clone();
                    list.push(Held { lease, berth, holding });
                }
                BerthState::Offered(offer) if offer.node.as_str() == member.name => claims.offered.push(berth.name()),
                _ => {}
            }
        }
        claims
    }
}

impl Held<'_> {
    /// Describes the berth: `berth workers-0 for v2 (222222222222): Committed in boot b1, for 12m`.
    pub(super) fn words(&self, member: &Member<'_>, pool: Option<&BootcNodePool>, now: Timestamp) -> String {
        let target = named(&self.holding.target, member, pool);
        let phase = match self.holding.phase {
            HoldPhase::Taken => "Taken".to_owned(),
            HoldPhase::Committed => "Committed".to_owned(),
            HoldPhase::Releasing(outcome) => format!("Releasing ({})", outcome.as_str()),
        };
        let since = self.lease.spec.as_ref().and_then(|s| s.renew_time.as_ref());
        let since = since.map_or_else(String::new, |t| format!(", for {}", age(t.0, now)));
        format!(
            "berth {} for {target}: {phase} in boot {}{since}",
            self.berth.name(),
            self.holding.boot_id
        )
    }

    /// True if the node has committed to a reboot, and the Node still reports the boot ID from before the reboot.
    pub(super) fn may_be_rebooting(&self, member: &Member<'_>) -> bool {
        self.holding.phase == HoldPhase::Committed && boot_of(member) == Some(self.holding.boot_id.as_str())
    }

    /// True if the agent can prove this turn: the node has rebooted, is Ready, and runs the target or the previous
    /// digest.
    pub(super) fn is_provable(&self, member: &Member<'_>) -> bool {
        let booted = member.status().booted.and_then(|b| b.digest);
        let known = booted.is_some() && (booted.as_ref() == Some(&self.holding.target) || booted == self.holding.from);
        let rebooted = boot_of(member).is_some_and(|boot| boot != self.holding.boot_id.as_str());
        self.holding.phase == HoldPhase::Committed && known && rebooted && member.is_ready()
    }
}

pub(super) fn boot_of<'a>(member: &Member<'a>) -> Option<&'a str> {
    member.node.kubelet.boot_id.as_deref()
}

/// Formats a digest, with its version if that is known: `v2 (222222222222)`.
pub(super) fn named(digest: &Digest, member: &Member<'_>, pool: Option<&BootcNodePool>) -> String {
    let status = member.status();
    let deployments = [status.booted, status.staged, status.rollback];
    let deployed = deployments
        .into_iter()
        .flatten()
        .find(|d| d.digest.as_ref() == Some(digest));
    let version = of_target(digest, pool).or_else(|| deployed.and_then(|d| d.version));
    match version {
        Some(version) => format!("{} ({})", clean(&version), short(digest)),
        None => short(digest),
    }
}

/// Returns the version of the pool's target if the digest is one of the target's digests.
pub(super) fn of_target(digest: &Digest, pool: Option<&BootcNodePool>) -> Option<String> {
    let target = pool?.status.as_ref()?.target.as_ref()?;
    let is_its = target.digest == *digest || target.platforms.iter().any(|p| p.digest == *digest);
    target.version.clone().filter(|_| is_its)
}

/// Describes the effect on the rollout if the digest is counted as failed on this node. `recorded`: name of the node in
/// the pool's record of failures.
pub(super) fn failure_words(
    pool: Option<&BootcNodePool>,
    roster: &Roster<'_>,
    member: &Member<'_>,
    (digest, recorded): (&Digest, &NodeName),
) -> String {
    let what = format!("{} counts as failed on {}", named(digest, member, pool), member.name);
    let Some(pool) = pool else { return what };
    let records = pool.status.iter().flat_map(|s| &s.failures);
    let records: Vec<_> = records.filter(|f| f.digest == *digest).collect();
    let names = records.iter().flat_map(|f| f.nodes.iter().map(String::as_str));
    let failures = failures::count(names.chain([recorded.as_str()]), |node| {
        let member = roster.node(node.as_str());
        member.is_some_and(|member| is_excluded(member.node))
    });
    // The record lists only the first names.
    let unlisted = records.iter().map(|f| (f.count as usize).saturating_sub(f.nodes.len()));
    let failures = failures.len() + unlisted.sum::<usize>();
    let (most, name) = (pool.spec.max_failures(), pool.name_any());
    let until = format!("until the pool's image changes or you run kubectl berth retry {name}");
    match failures {
        failed if failed >= most => {
            let failures = count(failed, "failure");
            format!("{what}. With {failures}, the rollout of pool {name} halts {until}")
        }
        _ => {
            let most = count(most, "failure");
            format!(
                "{what} and is not retried there {until}. The rollout of pool {name} continues, but halts at {most}"
            )
        }
    }
}
