//! Rules by which pods are moved: those of the node's pool, in the form that the drain takes.

use std::time::Duration;

use anyhow::Context;
use berth_api::pool::{Drain, OnTimeout};
use kube::core::Selector;

/// Rules by which pods are moved.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// Instead of each pod's own grace period, in seconds.
    pub grace_period: Option<u32>,
    /// Move pods with emptyDir volumes too.
    pub delete_empty_dir_data: bool,
    /// Move pods that no controller would create again too.
    pub force: bool,
    /// Selects the pods that are moved; `None` for all.
    pub pod_selector: Option<Selector>,
    /// Delete pods instead of evicting them: budgets are not asked.
    pub disable_eviction: bool,
    /// Pods are moved also while others have an obstacle: the node is to be emptied as far as that goes, since the pool
    /// says Force.
    pub despite_obstacles: bool,
    /// True when the drain has taken longer than it may: pods that only their budgets keep are deleted. Each pod still gets
    /// its grace period, and obstacles stay what they are.
    pub forced: bool,
}

impl Settings {
    /// Reads the pool's rules, for a drain that has taken this long.
    ///
    /// # Errors
    /// When the pod selector makes no sense. No pod is moved then, since it is not known which should be.
    pub fn new(drain: &Drain, elapsed: Duration) -> anyhow::Result<Self> {
        let pod_selector = drain.pod_selector.clone().map(Selector::try_from).transpose();
        Ok(Self {
            grace_period: drain.grace_period_seconds,
            delete_empty_dir_data: drain.delete_empty_dir_data.unwrap_or(false),
            force: drain.force.unwrap_or(false),
            pod_selector: pod_selector.context("drain.podSelector of the node's pool makes no sense")?,
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
    fn force_begins_with_the_timeout_and_only_when_it_is_asked_for() {
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
    fn a_selector_that_makes_no_sense_is_an_error() {
        let odd = json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}});
        assert!(settings(odd, 0).unwrap_err().to_string().contains("podSelector"));
    }
}
