//! A pool's capacity, and what uses it up.

use std::collections::BTreeMap;

use berth_api::berth::{BerthState, HoldPhase, lease};
use berth_api::keys;
use berth_api::pool::BootcNodePool;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;

use crate::Snapshot;
use crate::members::Member;
use crate::text::clean;

/// A pool's capacity, and what uses it up: `k` and `H ∪ U ∪ R`, by node.
#[derive(Debug, Clone)]
pub(crate) struct Occupancy {
    pub(crate) capacity: usize,
    /// Why each of them uses capacity up.
    pub(crate) users: BTreeMap<String, String>,
}

impl Occupancy {
    pub(crate) fn of(snapshot: &Snapshot, pool: &BootcNodePool, members: &[Member<'_>]) -> Self {
        let mut users = BTreeMap::new();
        for member in members {
            if let Some(why) = member.unavailable() {
                users.insert(member.name.clone(), format!("{} {why}", member.name));
            }
        }
        let name = pool.name_any();
        for lease in snapshot
            .leases
            .iter()
            .filter(|l| l.labels().get(keys::LABEL_POOL) == Some(&name))
        {
            if let Some((node, why)) = user(lease) {
                users.insert(node, why);
            }
        }
        Self {
            capacity: pool.spec.capacity(members.len()),
            users,
        }
    }

    pub(crate) fn free(&self) -> usize {
        self.capacity.saturating_sub(self.users.len())
    }
}

/// Who uses a berth up, and how. A Lease that cannot be read counts as held.
fn user(lease: &Lease) -> Option<(String, String)> {
    let name = lease.name_any();
    match lease::read(lease).map(|berth| berth.state) {
        Ok(BerthState::Closed(_)) => None,
        Ok(BerthState::Offered(offer)) => {
            let node = offer.node.to_string();
            let why = format!("{node} is offered berth {name}");
            Some((node, why))
        }
        Ok(BerthState::Held(holding)) => {
            let node = holding.node.to_string();
            let phase = match holding.phase {
                HoldPhase::Taken => "draining",
                HoldPhase::Committed => "rebooting",
                HoldPhase::Releasing(_) => "giving it back",
            };
            let why = format!("{node} holds berth {name} ({phase})");
            Some((node, why))
        }
        Err(error) => Some((format!("lease {name}"), clean(&error.to_string()))),
    }
}
