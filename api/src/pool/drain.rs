//! Rules for moving pods away before a reboot. Admins set them in a pool; the controller copies them to the pool's
//! BootcNodes.

use std::time::Duration;

use kube::KubeSchema;
use kube::core::Selector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Written, duration};

/// Rules for moving pods away before a reboot.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// If true, the agent moves pods away before a reboot. If false, the agent cordons the node and reboots it, and the
    /// shutdown stops the pods. Use false for single-node clusters, where pods cannot move. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Longest time that a drain may take. Default 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$')")
        .message("drain.timeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h"))]
    pub timeout: Option<Written<Duration>>,
    /// Action when a drain exceeds `timeout`: `Release`, `Hold` or `Force`. Default Release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
    /// Grace period in seconds for every pod that is moved. Default: each pod's own grace period.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 86_400))]
    pub grace_period_seconds: Option<u32>,
    /// If true, also evict pods with emptyDir volumes, whose data is lost. Otherwise such pods block the drain. Default
    /// false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_empty_dir_data: Option<bool>,
    /// If true, also evict pods without a controller that would recreate them. Otherwise such pods block the drain.
    /// Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
    /// Selects the pods to move away; the shutdown stops all other pods. Default: all pods are moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::selector::schema")]
    pub pod_selector: Option<Written<Selector>>,
    /// If true, delete pods instead of evicting them. Deletions bypass disruption budgets. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disable_eviction: Option<bool>,
}

/// Action when a drain exceeds its timeout. Whatever the action, the node reboots only after all pods that must move
/// are gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnTimeout {
    /// The agent uncordons the node and gives the berth back. The node tries again in a later turn.
    #[default]
    Release,
    /// The agent continues the drain without a time limit, and reports the problem. The node stays cordoned.
    Hold,
    /// From the start, the agent evicts all pods that nothing blocks, even while other pods block the drain. At the
    /// timeout, the agent deletes pods that are blocked only by a disruption budget, and reports their names. Pods that
    /// need `force` or `deleteEmptyDirData` still block the drain. At twice the timeout, the node gives its berth back
    /// and tries again later.
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
        duration::or(self.timeout.as_ref(), DEFAULT_DRAIN_TIMEOUT)
    }

    /// `drain.onTimeout`, or its default.
    pub fn on_timeout(&self) -> OnTimeout {
        self.on_timeout.unwrap_or_default()
    }
}
