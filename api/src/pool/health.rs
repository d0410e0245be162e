//! Rules for the proof of a boot, and for a boot that is not proven in time. Admins set them in a pool; the controller
//! copies them to the pool's BootcNodes.

use std::time::Duration;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checks::PoolCheck;
use crate::{Written, duration};

/// Rules for the proof of a boot, and for a boot that is not proven in time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.soakTime) || duration(self.soakTime == '0' ? '0s' : self.soakTime) < duration(has(self.deadline) ? self.deadline : '10m')")
    .message("health.soakTime must be shorter than health.deadline (default 10m): otherwise no boot could be proven in time"))]
pub struct Health {
    /// Longest time from the boot of a new image until the node is proven. After that, `onFailure` applies. Default
    /// 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$')")
        .message("health.deadline must be a duration above zero: a whole number and a unit, such as 90s, 10m or 1h"))]
    pub deadline: Option<Written<Duration>>,
    /// Action when a boot is not proven within `deadline`: `Rollback` or `Hold`. Default Rollback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
    /// How long the Node must be continuously Ready in the boot of a new image for the boot to be proven. Default 0:
    /// Ready once is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("health.soakTime must be a duration: 0, or a whole number and a unit, such as 30s, 5m or 1h"))]
    pub soak_time: Option<Written<Duration>>,
    /// Units of the host that may fail in the boot of a new image: full names, or prefixes followed by `*`, such as
    /// `cloud-init*`. If any other unit fails, and had not failed before the reboot, the boot is not proven.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 255)))]
    #[x_kube(validation = Rule::new(r"self.all(unit, unit.matches('^[a-zA-Z0-9:_.\\\\@-]+([*]|[.](service|socket|mount|automount|swap|target|path|timer|device|slice))$'))")
        .message("health.ignoredUnits must be full names of units, such as a.service, or prefixes followed by *, such as cloud-init*"))]
    pub ignored_units: Vec<String>,
    /// Checks that the boot of a new image must pass, after the Node is Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.all(check, self.exists_one(other, other.name == check.name))")
        .message("the checks of health.checks must have different names"))]
    pub checks: Vec<PoolCheck>,
}

/// Action when the boot of a new image is not proven in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// The node reboots once into the previous image and keeps its berth. When the boot of the previous image is
    /// proven, the node gives its berth back, and the new image counts as failed on this node. If the host no longer
    /// has the previous image, the node waits as with `Hold`.
    #[default]
    Rollback,
    /// The node keeps its berth, and waits until an admin acts or the pool has another image.
    Hold,
}

/// Default of `health.deadline`.
pub const DEFAULT_HEALTH_DEADLINE: Duration = Duration::from_secs(600);

impl Health {
    /// `deadline`, or its default.
    pub fn deadline(&self) -> Duration {
        duration::or(self.deadline.as_ref(), DEFAULT_HEALTH_DEADLINE)
    }

    /// `soakTime`, or its default.
    pub fn soak_time(&self) -> Duration {
        duration::or(self.soak_time.as_ref(), Duration::ZERO)
    }

    /// `onFailure`, or its default.
    pub fn on_failure(&self) -> OnFailure {
        self.on_failure.unwrap_or_default()
    }
}
