//! Drain rules of the node's pool, converted for the drain.

use std::time::Duration;

use anyhow::anyhow;
use berth_api::Written;
use berth_api::pool::{Drain, OnTimeout};
use kube::core::Selector;

/// Rules for moving pods.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Grace period in seconds that replaces each pod's own.
    pub grace_period: Option<u32>,
    /// True to move pods with emptyDir volumes.
    pub delete_empty_dir_data: bool,
    /// True to move pods that no controller would re-create.
    pub force: bool,
    /// Selector of the pods that are moved; `None` for all.
    pub pod_selector: Option<Selector>,
    /// True to delete pods instead of evicting them. A deletion ignores budgets.
    pub disable_eviction: bool,
    /// True to move pods even while other pods have an [`super::pods::Obstacle`]. Set if the pool's `onTimeout` is
    /// Force: the drain then moves as many pods as possible.
    pub despite_obstacles: bool,
    /// True if the pool's `onTimeout` is Force and the drain has timed out. Pods that only budgets protect are then
    /// deleted, with their grace periods. Pods with an obstacle still stay.
    pub forced: bool,
}

impl Settings {
    /// Converts the pool's rules. `elapsed` is how long the drain has taken so far. Fails if the pod selector is
    /// invalid, because it is then unknown which pods to move.
    pub fn new(drain: &Drain, elapsed: Duration) -> anyhow::Result<Self> {
        let pod_selector = drain.pod_selector.as_ref().map(Written::get).transpose();
        let pod_selector = pod_selector.map_err(|e| anyhow!("drain.podSelector of the node's pool is invalid: {e}"))?;
        Ok(Self {
            grace_period: drain.grace_period_seconds,
            delete_empty_dir_data: drain.delete_empty_dir_data.unwrap_or(false),
            force: drain.force.unwrap_or(false),
            pod_selector: pod_selector.cloned(),
            disable_eviction: drain.disable_eviction.unwrap_or(false),
            despite_obstacles: drain.on_timeout() == OnTimeout::Force,
            forced: drain.on_timeout() == OnTimeout::Force && elapsed >= drain.timeout(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(drain: serde_json::Value, seconds: u64) -> anyhow::Result<Settings> {
        Settings::new(&serde_json::from_value(drain).unwrap(), Duration::from_secs(seconds))
    }

    #[test]
    fn follow_the_pool() {
        assert_eq!(settings(json!({}), 1_000_000).unwrap(), Settings::default());
        let all = json!({
            "gracePeriodSeconds": 7, "deleteEmptyDirData": true, "force": true, "disableEviction": true,
            "podSelector": {"matchLabels": {"tier": "web"}},
        });
        let all = settings(all, 0).unwrap();
        assert_eq!(
            all.pod_selector.as_ref().map(ToString::to_string).as_deref(),
            Some("tier=web")
        );
        assert_eq!(all.grace_period, Some(7));
        assert!(all.delete_empty_dir_data && all.force && all.disable_eviction && !all.forced);
    }

    #[test]
    fn only_on_timeout_force_forces_a_drain() {
        for (on_timeout, seconds, forced) in [
            ("Force", 59, false),
            ("Force", 60, true),
            ("Hold", 60, false),
            ("Release", 60, false),
        ] {
            let settings = settings(json!({"timeout": "60s", "onTimeout": on_timeout}), seconds).unwrap();
            assert_eq!(settings.forced, forced, "{on_timeout} after {seconds} s");
            assert_eq!(settings.despite_obstacles, on_timeout == "Force");
        }
    }

    #[test]
    fn an_invalid_selector_is_an_error() {
        let odd = json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}});
        assert!(settings(odd, 0).unwrap_err().to_string().contains("podSelector"));
    }
}
