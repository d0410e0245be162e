//! Limits, times and order of a rollout.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use kube::core::Selector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::Quantity;
use crate::{Written, duration};

/// Limits, times and order of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("!has(self.waves) || self.waves.all(w, w.name != 'rest' && w.name != 'control-plane')")
        .message("a wave cannot be named rest or control-plane, the names of the built-in last waves; choose another name"),
)]
#[serde(rename_all = "camelCase")]
pub struct Rollout {
    /// If true, no node is offered a berth, and a node that has not committed to its reboot gives its berth back.
    /// Staging continues, and nodes that have committed finish.
    #[serde(default)]
    pub paused: bool,
    /// Maximum number of members that may be unavailable at once: a number of at least 1, or 1% to 100% of the members,
    /// rounded down but at least 1. Nodes that are unavailable for other reasons count too. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 1000000 : string(self).matches('^([1-9][0-9]?|100)%$')")
        .message("maxUnavailable must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%"))]
    pub max_unavailable: Option<Quantity>,
    /// Maximum number of members that may pull an image at once: a number of at least 1, or 1% to 100% of the members,
    /// rounded up. Default 25%.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("type(self) == int ? self >= 1 && self <= 1000000 : string(self).matches('^([1-9][0-9]?|100)%$')")
        .message("maxStaging must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%"))]
    pub max_staging: Option<Quantity>,
    /// Groups of nodes that are updated one after another, canaries first. The nodes of a wave are offered berths only
    /// after all nodes of the earlier waves are proven and have soaked. A node belongs to the first wave that selects
    /// it. Nodes in no wave come last, followed by control plane nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub waves: Vec<Wave>,
    /// Names of pools to update before this one. While one of these pools has a node left to update, no node of this
    /// pool is offered a berth. Updates that have begun continue. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub after: Vec<String>,
    /// How long a wave must stay proven before the next wave begins. Used for waves without their own `soakTime`.
    /// Default 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("soakTime must be a duration: 0, or a whole number and a unit, such as 30m or 12h"))]
    pub soak_time: Option<Written<Duration>>,
    /// Windows when reboots may start; any one of them is enough. Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub windows: Vec<Window>,
    /// Times when reboots may not start, even inside a window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub exclusions: Vec<Exclusion>,
    /// The rollout of an image halts when the image has failed on this number of nodes, from 1 to 64. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub max_failures: Option<u32>,
    /// Any text. When it changes, nodes retry images that failed on them, and a halted rollout continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub retry_token: Option<String>,
    /// Key of the Node label that names the zone. Within a wave, nodes in the zone with the fewest nodes down go first.
    /// Default `topology.kubernetes.io/zone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    pub zone_key: Option<String>,
    /// How long a rebooting node may be silent, and how long its new boot may stay unproven, before Berth reports the
    /// node in `RebootTimedOut` or `NodeDegraded`. The node keeps its berth. Should be longer than `health.deadline`
    /// plus the reboot of a rollback. Default 15m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$')")
        .message("rebootTimeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h"))]
    pub reboot_timeout: Option<Written<Duration>>,
    /// How nodes reboot into a new image: `Reboot` or `AllowSoftReboot`. With `AllowSoftReboot`, a node restarts only
    /// its userspace if its staged image supports this. A soft reboot is faster. Default Reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reboot_policy: Option<RebootPolicy>,
    /// Shortest time between two progress reports of a node that stages an image; `0` turns the reports off. Default
    /// 5s. If many nodes may stage at once, Berth uses a longer time: all nodes together send at most 50 reports per
    /// second.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("progressInterval must be a duration: 0, or a whole number and a unit, such as 5s or 1m"))]
    pub progress_interval: Option<Written<Duration>>,
}

impl Rollout {
    /// Returns the soak time of a wave: the wave's own, otherwise the pool's. `wave` is `None` for the last, built-in
    /// waves.
    pub fn soak_time_of(&self, wave: Option<&Wave>) -> Duration {
        let own = wave.and_then(|wave| wave.soak_time.as_ref());
        duration::or(own.or(self.soak_time.as_ref()), Duration::ZERO)
    }
}

/// How nodes reboot into a new image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RebootPolicy {
    /// The whole machine reboots, including its kernel.
    #[default]
    Reboot,
    /// The node restarts only its userspace (a soft reboot) if bootc reports that the staged image supports this, and
    /// systemd is new enough. In all other cases, and after an unproven boot, the whole machine reboots.
    AllowSoftReboot,
}

/// A group of nodes that is updated before the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.nodeSelector)")
        .message("waves[].nodeSelector is missing; write the labels of the wave's nodes"),
)]
#[serde(rename_all = "camelCase")]
pub struct Wave {
    /// Name of the wave, for people: lower-case letters, digits and '-'.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')")
        .message("the name of a wave must be lower-case letters, digits and '-', such as canary"))]
    pub name: String,
    /// Selects the members of the wave. Required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::selector::schema")]
    pub node_selector: Option<Written<Selector>>,
    /// How long the wave must stay proven before the next wave begins. Default: `rollout.soakTime`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("soakTime must be a duration: 0, or a whole number and a unit, such as 30m or 12h"))]
    pub soak_time: Option<Written<Duration>>,
    /// If true, control plane nodes that match belong to the wave too. Otherwise they come after all other nodes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub include_control_plane: bool,
}

/// A time when reboots may start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("has(self.schedule)")
        .message("windows[].schedule is missing; write five cron fields, such as '0 22 * * 5'"),
    validation = Rule::new("has(self.duration)")
        .message("windows[].duration is missing; write how long the window lasts, such as 90m or 8h"),
)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Start of the window, as five cron fields: minute, hour, day of month, month, day of week.
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[^ @]+( +[^ ]+){4}$')")
        .message("windows[].schedule must be five cron fields (minute hour day month weekday), such as '0 22 * * 5'"))]
    #[serde(default)]
    pub schedule: String,
    /// Length of the window, from 1m to 168h.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,5}(s|m|h)$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')")
        .message("windows[].duration must be from 1m to 168h, such as 90m or 8h"))]
    #[serde(default)]
    pub duration: Written<Duration>,
    /// IANA name of the time zone of the schedule, such as `Europe/Berlin`. Default `UTC`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z][A-Za-z0-9_+/-]*$')")
        .message("windows[].timeZone must be an IANA time zone, such as Europe/Berlin or UTC"))]
    pub time_zone: Option<String>,
    /// Longest delay of the window's start; must be shorter than the window. The delay differs between pools, so that
    /// their windows do not all start at once. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[0-9]{1,6}(s|m|h))$')")
        .message("windows[].splay must be a duration: 0, or a whole number and a unit, such as 10m"))]
    pub splay: Option<Written<Duration>>,
}

/// A time when reboots may not start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new("self.from < self.to")
        .message("exclusions[].from must be before exclusions[].to"),
)]
#[serde(rename_all = "camelCase")]
pub struct Exclusion {
    /// Start of the exclusion in RFC 3339 format, such as `2026-12-20T00:00:00Z`.
    pub from: Time,
    /// End of the exclusion in RFC 3339 format.
    pub to: Time,
}

/// Default of `rollout.rebootTimeout`.
pub const DEFAULT_REBOOT_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Default of `rollout.progressInterval`.
pub const DEFAULT_PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Default of `rollout.maxFailures`.
pub const DEFAULT_MAX_FAILURES: u32 = 1;
/// Default of `rollout.zoneKey`.
pub const DEFAULT_ZONE_KEY: &str = "topology.kubernetes.io/zone";
