//! Pool settings that are published to members.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use berth_api::PoolName;
use berth_api::membership::Membership;
use berth_api::node::{BootcNodeSpec, Staging};
use berth_api::pool::BootcNodePoolSpec;

use super::facts::Terms;
use crate::controller::pool::Pool;

/// Maximum number of progress reports per second from all staging nodes together.
const MAX_REPORTS_PER_SECOND: u64 = 50;

/// Returns the minimum interval between two progress reports of a node. `staging`: number of nodes that stage at once.
/// The interval is rounded up to a power of two. So a few more nodes do not change every BootcNode's spec.
fn progress_interval(staging: usize) -> Duration {
    let staging = u64::try_from(staging).unwrap_or(u64::MAX);
    match staging.div_ceil(MAX_REPORTS_PER_SECOND) {
        0 | 1 => Duration::ZERO,
        seconds => Duration::from_secs(seconds.checked_next_power_of_two().unwrap_or(seconds)),
    }
}

/// Returns the published settings of each pool. `resolving`: pools whose image is being resolved for the first time.
pub fn terms(pools: &[Pool], membership: &Membership, resolving: &BTreeSet<PoolName>) -> BTreeMap<PoolName, Terms> {
    let asked = pools.iter().filter_map(|pool| {
        let members = membership.members(&pool.name).len();
        let spec = &pool.object.as_ref()?.spec;
        Some((pool, spec, members, spec.max_staging(members)))
    });
    let asked: Vec<_> = asked.collect();
    let staging = asked.iter().map(|(_, _, members, most)| most.min(members));
    let least = progress_interval(staging.sum());
    let mut all = BTreeMap::new();
    for (pool, spec, _, max_staging) in asked {
        let terms = Terms {
            target: pool.target().cloned(),
            unresolved: pool.is_unresolved(),
            resolving: resolving.contains(&pool.name),
            max_staging,
            signature: spec.signature(),
            spec: member_spec(pool, spec, least),
        };
        all.insert(pool.name.clone(), terms);
    }
    all
}

fn member_spec(pool: &Pool, spec: &BootcNodePoolSpec, least: Duration) -> BootcNodeSpec {
    BootcNodeSpec {
        pool_name: pool.name.to_string(),
        node_uid: String::new(),
        image: None,
        staging: Staging::Held,
        drain: spec.drain(),
        health: spec.health.clone().unwrap_or_default(),
        backend: spec.backend(),
        rival_updaters: spec.rival_updaters.unwrap_or_default(),
        tolerated_updaters: spec.tolerated_updaters.clone(),
        retry_token: Some(spec.retry_token().to_owned()).filter(|t| !t.is_empty()),
        reboot_timeout: spec.reboot_timeout().into(),
        reboot_policy: spec.reboot_policy(),
        progress_interval: match spec.progress_interval() {
            Duration::ZERO => Duration::ZERO,
            asked => asked.max(least),
        }
        .into(),
        paused: spec.is_paused(),
        estimates: pool.estimates(),
    }
}

#[cfg(test)]
mod tests {
    use berth_api::NodeName;
    use berth_api::pool::PhaseDurations;

    use super::*;
    use crate::controller::pool::tests::pool;

    #[test]
    fn the_more_nodes_stage_the_less_often_each_reports() {
        for (nodes, asked, seconds) in [
            (100, "1s", 1),
            (102, "1s", 2),
            // 500 nodes stage at once: 10 s at 50 reports per second, rounded up to 16 s.
            (1000, "1s", 16),
            (1000, "60s", 60),
            (1000, "0", 0),
        ] {
            let mut pool = pool("r.io/os:1", Some("r.io/os:1"));
            let rollout = berth_api::pool::Rollout {
                max_staging: Some(berth_api::quantity::Quantity::Percent(50)),
                progress_interval: Some(asked.into()),
                ..Default::default()
            };
            pool.object.as_mut().unwrap().spec.rollout = Some(rollout);
            let mut membership = Membership::default();
            (0..nodes).for_each(|n| membership.join(NodeName::new(format!("n{n}")), "a".into()));
            let terms = terms(&[pool], &membership, &BTreeSet::new());
            let interval = terms[&"a".into()].spec.progress_interval.get().unwrap();
            assert_eq!(interval.as_secs(), seconds, "{nodes} {asked}");
        }
    }

    fn terms_of(pool: &Pool) -> Terms {
        let mut terms = terms(std::slice::from_ref(pool), &Membership::default(), &BTreeSet::new());
        terms.remove(&"a".into()).unwrap()
    }

    #[test]
    fn members_get_the_pools_token_and_medians() {
        let mut pool = pool("r.io/os:1", Some("r.io/os:1"));
        assert_eq!(terms_of(&pool).spec.retry_token, None);
        let object = pool.object.as_mut().unwrap();
        let rollout = serde_json::json!({ "retryToken": "again" });
        object.spec.rollout = Some(serde_json::from_value(rollout).unwrap());
        let medians = PhaseDurations {
            drain_seconds: Some(30),
            ..PhaseDurations::default()
        };
        object.status.as_mut().unwrap().phase_durations = medians;
        assert_eq!(terms_of(&pool).spec.retry_token.as_deref(), Some("again"));
        assert_eq!(terms_of(&pool).spec.estimates, medians);
    }
}
