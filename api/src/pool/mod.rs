//! BootcNodePool: a set of nodes, the image that they should run, and the rules of the rollout. Admins write the spec.

use std::sync::LazyLock;
use std::time::Duration;

use kube::core::Selector;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::BackendRule;
use crate::boot_image::BootImagePolicy;
use crate::quantity::Quantity;
use crate::{ImageRef, Written, duration};

mod checks;
mod drain;
mod health;
mod host;
pub(crate) mod image;
mod rollout;
mod status;

pub use crate::platform::PlatformDigest;
pub use checks::{HttpGet, NodeCondition, PodsReady, PoolCheck, Scheme};
pub use drain::{DEFAULT_DRAIN_TIMEOUT, Drain, OnTimeout};
pub use health::{DEFAULT_HEALTH_DEADLINE, Health, OnFailure};
pub use host::{PoolHost, SignatureRule};
pub use image::{DEFAULT_POLL_INTERVAL, MIN_POLL_INTERVAL, PoolImage};
pub use rollout::{
    DEFAULT_MAX_FAILURES, DEFAULT_PROGRESS_INTERVAL, DEFAULT_REBOOT_TIMEOUT, DEFAULT_ZONE_KEY, Exclusion, RebootPolicy,
    Rollout, Wave, Window,
};
pub use status::{
    Available, BerthCounts, BootcNodePoolStatus, DeployedImage, DigestFailures, ImageMetadata, NodeCounts,
    PhaseDurations, Target, WaveState, WaveStatus,
};

/// A set of nodes, the OS image that they should run, and the rules of the rollout.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "BootcNodePool",
    plural = "bootcnodepools",
    shortname = "bnp",
    status = "BootcNodePoolStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A set of nodes, the OS image that they should run, and the rules of the rollout.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image.ref"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.target.version"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.conditions[?(@.type=='Ready')].lastTransitionTime"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.total"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.nodes.updated"),
    printcolumn(name = "Degraded", type_ = "integer", json_path = ".status.nodes.degraded"),
    printcolumn(name = "Berths", type_ = "integer", json_path = ".status.berths.held"),
    printcolumn(name = "Trouble", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].message"),
    printcolumn(name = "Progressing", type_ = "string", json_path = ".status.conditions[?(@.type=='Progressing')].reason", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type=='Progressing')].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63")
        .message("the name of a BootcNodePool must have at most 63 characters, because it is also a label value; choose a shorter name"),
    validation = Rule::new("!has(self.spec.rollout) || !has(self.spec.rollout.after) || !(self.metadata.name in self.spec.rollout.after)")
        .message("rollout.after names the pool itself, so the pool would never be updated; remove its name from rollout.after"),
)]
#[x_kube(
    validation = Rule::new("has(self.nodeSelector)")
        .message("nodeSelector is missing; write the labels of the nodes, or nodeSelector: {} to select all nodes"),
    validation = Rule::new("has(self.image)")
        .message("image is missing; write image.ref, such as quay.io/example/os:stable"),
)]
#[serde(rename_all = "camelCase")]
pub struct BootcNodePoolSpec {
    /// Selects the members. Required; `{}` selects all nodes. A node that two pools select stays in its current pool,
    /// or joins neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::selector::schema")]
    pub node_selector: Option<Written<Selector>>,
    /// The OS image that the members should run. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<PoolImage>,
    /// Limits, times and order of the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Rollout>,
    /// Rules for moving pods away before a reboot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// Rules for a boot that is not proven in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Treatment of other updaters that are active on a member: `Wait` or `Tolerate`. Default Wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rival_updaters: Option<RivalUpdaters>,
    /// Updaters to ignore, such as `machine-config-daemon`. All others are treated according to `rivalUpdaters`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 64)))]
    #[x_kube(merge_strategy = ListMerge::Set, validation = Rule::new(UPDATERS_RULE).message(UPDATERS_MESSAGE))]
    pub tolerated_updaters: Vec<String>,
    /// Settings for the hosts of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<PoolHost>,
    /// Rules for boot images: the images that machines are first installed from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_image: Option<BootImagePolicy>,
    /// Number of images to keep in `status.deployHistory`, from 0 to 10. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10))]
    pub history_limit: Option<u8>,
}

/// Schema rule of `toleratedUpdaters`: accepts only the names of updaters that the agent detects
/// (`berth_core::agent::rivals`).
const UPDATERS_RULE: &str = "self.all(name, name in ['bootc-fetch-apply-updates.timer', 'bootc-fetch-apply-updates.service', \
     'rpm-ostreed-automatic.timer', 'rpm-ostreed-automatic.service', 'rpm-ostreed', 'zincati.service', 'kured', 'machine-config-daemon'])";
const UPDATERS_MESSAGE: &str = "toleratedUpdaters accepts only bootc-fetch-apply-updates.timer, bootc-fetch-apply-updates.service, \
     rpm-ostreed-automatic.timer, rpm-ostreed-automatic.service, rpm-ostreed, zincati.service, kured and machine-config-daemon";

/// Treatment of other updaters and reboot daemons that are active on a member.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RivalUpdaters {
    /// While an updater that could apply an image at any time is active, such as bootc-fetch-apply-updates.timer, the
    /// node does not stage an image. Other active updaters are reported in NodeDegraded.
    #[default]
    Wait,
    /// Other updaters are ignored.
    Tolerate,
}

/// Default of `historyLimit`.
pub const DEFAULT_HISTORY_LIMIT: u8 = 3;

impl BootcNodePoolSpec {
    /// Returns the selector of the members.
    ///
    /// # Errors
    /// If the selector is missing or invalid.
    pub fn selector(&self) -> Result<&Selector, &str> {
        let written = self.node_selector.as_ref().ok_or("nodeSelector is missing")?;
        written.get().map_err(String::as_str)
    }

    /// Rules for boot images; [`BootImagePolicy::UNSET`] if absent.
    pub fn boot_image(&self) -> &BootImagePolicy {
        self.boot_image.as_ref().unwrap_or(&BootImagePolicy::UNSET)
    }

    /// The image reference. If absent, an empty reference, which is invalid. The API server rejects a pool without a
    /// reference.
    pub fn image_ref(&self) -> &Written<ImageRef> {
        static MISSING: LazyLock<Written<ImageRef>> = LazyLock::new(Written::default);
        let written = self.image.as_ref().and_then(|image| image.reference.as_ref());
        written.unwrap_or(&MISSING)
    }

    /// Time between two polls of the tag: `image.pollInterval`, otherwise the fleet's; `None` if polling is off.
    pub fn poll_interval(&self, fleet: Duration) -> Option<Duration> {
        let own = self.image.as_ref().and_then(|i| i.poll_interval.as_ref());
        match duration::or(own, fleet) {
            Duration::ZERO => None,
            interval => Some(interval.max(MIN_POLL_INTERVAL)),
        }
    }

    /// `image.minimumAge`, or its default.
    pub fn minimum_age(&self) -> Duration {
        let own = self.image.as_ref().and_then(|i| i.minimum_age.as_ref());
        duration::or(own, Duration::ZERO)
    }

    /// `host.signature`, or its default.
    pub fn signature(&self) -> SignatureRule {
        self.host.as_ref().and_then(|host| host.signature).unwrap_or_default()
    }

    /// `host.backend`, or its default.
    pub fn backend(&self) -> BackendRule {
        self.host.as_ref().and_then(|host| host.backend).unwrap_or_default()
    }

    /// `historyLimit`, or its default.
    pub fn history_limit(&self) -> usize {
        self.history_limit.unwrap_or(DEFAULT_HISTORY_LIMIT).into()
    }

    /// The rollout's settings, or the defaults if absent.
    pub fn rollout(&self) -> &Rollout {
        static UNSET: LazyLock<Rollout> = LazyLock::new(Rollout::default);
        self.rollout.as_ref().unwrap_or(&UNSET)
    }

    /// True if an admin has paused the pool.
    pub fn is_paused(&self) -> bool {
        self.rollout().paused
    }

    /// Names of the pools to update before this pool.
    pub fn after(&self) -> &[String] {
        &self.rollout().after
    }

    /// Capacity of the pool (number of its berths), given the number of members.
    pub fn capacity(&self, members: usize) -> usize {
        let most = self.rollout().max_unavailable.unwrap_or(Quantity::Nodes(1));
        most.rounded_down(members)
    }

    /// Maximum number of members that may stage at once, given the number of members.
    pub fn max_staging(&self, members: usize) -> usize {
        let most = self.rollout().max_staging.unwrap_or(Quantity::Percent(25));
        most.rounded_up(members)
    }

    /// `rollout.rebootPolicy`, or its default.
    pub fn reboot_policy(&self) -> RebootPolicy {
        self.rollout().reboot_policy.unwrap_or_default()
    }

    /// `rollout.rebootTimeout`, or its default.
    pub fn reboot_timeout(&self) -> Duration {
        duration::or(self.rollout().reboot_timeout.as_ref(), DEFAULT_REBOOT_TIMEOUT)
    }

    /// `rollout.progressInterval`, or its default.
    pub fn progress_interval(&self) -> Duration {
        duration::or(self.rollout().progress_interval.as_ref(), DEFAULT_PROGRESS_INTERVAL)
    }

    /// `rollout.maxFailures`, or its default.
    pub fn max_failures(&self) -> usize {
        self.rollout().max_failures.unwrap_or(DEFAULT_MAX_FAILURES) as usize
    }

    /// `rollout.retryToken`; empty if absent.
    pub fn retry_token(&self) -> &str {
        self.rollout().retry_token.as_deref().unwrap_or_default()
    }

    /// `rollout.zoneKey`, or its default.
    pub fn zone_key(&self) -> &str {
        self.rollout().zone_key.as_deref().unwrap_or(DEFAULT_ZONE_KEY)
    }

    /// The drain's settings, or the defaults if absent.
    pub fn drain(&self) -> Drain {
        self.drain.clone().unwrap_or_default()
    }
}
