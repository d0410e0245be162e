//! Rules for moving pods away before a reboot. They are set in a pool; each of its BootcNodes carries a copy.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration;

/// Rules for moving pods away before a reboot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// True: pods are moved away before a reboot. False: the node is cordoned and rebooted with its pods on it, and the
    /// shutdown stops them; for clusters of a single node, whose pods have nowhere to go. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Longest time that a drain may take. Default 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$')")
        .message("drain.timeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h"))]
    pub timeout: Option<String>,
    /// Action when a drain takes longer than `timeout`. Default Release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Seconds that a pod gets to end, in place of its own grace period.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86_400))]
    pub grace_period_seconds: Option<u32>,
    /// Also evict pods with emptyDir volumes, whose content is lost with them. Otherwise such pods block the drain.
    /// Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_empty_dir_data: Option<bool>,
    /// Also evict pods that no controller would create again. Otherwise such pods block the drain. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// Selects the pods to move away; the others stay until the shutdown stops them. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::selector::schema")]
    pub pod_selector: Option<LabelSelector>,
    /// Delete pods instead of evicting them, so that disruption budgets are not asked. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_eviction: Option<bool>,
}

/// Action when a drain takes too long. A node is never rebooted with pods on it that should have gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnTimeout {
    /// The node is uncordoned, gives its berth back, and tries again later.
    #[default]
    Release,
    /// The node goes on draining for as long as that takes. It stays cordoned, and reports it.
    Hold,
    /// Pods without an obstacle are evicted from the first second, also beside pods that have one. At the timeout those that
    /// only their budgets keep are deleted, and named. What `force` and `deleteEmptyDirData` are for stays with them.
    Force,
}

/// Default of `drain.timeout`.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(15 * 60);

impl Drain {
    /// `drain.enabled`, or its default.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }

    /// `drain.timeout`, or its default.
    pub fn timeout(&self) -> Duration {
        duration::parse_or(self.timeout.as_deref(), DEFAULT_DRAIN_TIMEOUT)
    }

    /// `drain.onTimeout`, or its default.
    pub fn on_timeout(&self) -> OnTimeout {
        self.on_timeout.unwrap_or_default()
    }
}
