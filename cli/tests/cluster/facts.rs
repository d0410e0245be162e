//! The format of the facts. In a file, `$2` is the digest of image 2's manifest, and `$a2` is the digest of its index.
//! A span of time such as `10m` means: that long before the command ran.

use std::collections::BTreeMap;

use berth_api::node::{Failure, Progress};
use berth_core::agent::facts::Past;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::REPOSITORY;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Cluster {
    /// Differences from the default image, by the number of the image.
    pub images: BTreeMap<u8, Value>,
    pub pools: BTreeMap<String, PoolFacts>,
    pub nodes: BTreeMap<String, NodeFacts>,
    /// The berths of each pool, in the order of their numbers. Berths beyond the end of a list are new.
    pub berths: BTreeMap<String, Vec<BerthFacts>>,
    pub fleet: Option<FleetFacts>,
    /// Seconds that each node measured for its last pull, drain and reboot.
    pub took: Option<[i64; 3]>,
    pub raw: Raw,
    pub notes: Vec<String>,
    pub fleet_unread: Option<String>,
    pub nodes_unread: bool,
    pub only: Option<String>,
}

/// Objects that are written by hand, for states that Berth's programs never write.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Raw {
    /// Why the objects are written by hand.
    pub because: String,
    pub leases: Vec<Lease>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct PoolFacts {
    /// Part of the image reference after the repository: a tag, a digest or both.
    #[serde(rename = "ref")]
    reference: String,
    /// Fields of the spec other than the selector and the reference.
    pub spec: Value,
    /// Number of the image that was resolved; 0 if none was.
    pub target: u8,
    /// Reference that was resolved, if it differs from the reference in the spec.
    pub target_ref: Option<String>,
    /// Earlier status of the pool. Contains the facts that are recorded nowhere else.
    pub was: Value,
    pub registry: RegistryFacts,
    /// How long the controller has known the image that the tag points to.
    pub seen: SignedDuration,
    /// Token of a poll request that the controller has served.
    pub poll: Option<String>,
    pub created: SignedDuration,
    /// How long the pool has been in this state.
    pub since: SignedDuration,
    pub edit: Option<Edit>,
}

impl Default for PoolFacts {
    fn default() -> Self {
        Self {
            reference: ":stable".to_owned(),
            spec: json!({}),
            target: 2,
            target_ref: None,
            was: json!({}),
            registry: RegistryFacts::default(),
            seen: SignedDuration::ZERO,
            poll: None,
            created: SignedDuration::from_hours(24),
            since: SignedDuration::from_mins(10),
            edit: None,
        }
    }
}

impl PoolFacts {
    pub fn reference(&self) -> String {
        match self.reference.as_str() {
            more if more.starts_with([':', '@']) => format!("{REPOSITORY}{more}"),
            whole => whole.to_owned(),
        }
    }
}

/// The registry's answer about a pool's tag. By default, the tag points to the pool's target.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RegistryFacts {
    /// Number of the image that the tag points to.
    pub tag: Option<u8>,
    /// Why there is no answer: a reason and its message.
    pub trouble: Option<(String, String)>,
    pub since: SignedDuration,
}

/// A change of a pool's spec that the controller has not read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    pub ago: SignedDuration,
    pub spec: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct FleetFacts {
    pub spec: Map<String, Value>,
    pub annotations: Option<Value>,
    /// Machines that are held back on their first boot.
    pub held: Vec<Value>,
    /// Changes of the spec that the controller has not read.
    pub edit: Map<String, Value>,
}

/// Readiness that the kubelet reports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ready {
    #[default]
    True,
    False,
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeFacts {
    /// Value of the label `role`, which pools select.
    pub pool: String,
    pub labels: BTreeMap<String, String>,
    pub ready: Ready,
    pub kubelet_since: SignedDuration,
    /// Other conditions of the Node.
    pub conditions: Vec<Value>,
    /// True if an admin cordoned the node.
    pub cordoned: bool,
    pub address: Option<String>,
    pub arch: Option<String>,

    /// Number of the image that the host runs; 0 if no agent has reported.
    pub runs: u8,
    /// Number of the image that is staged and locked.
    pub staged: Option<u8>,
    /// True if the staged image is capable of a soft reboot.
    pub soft_reboot_capable: bool,
    pub pulls: Option<Progress>,
    /// Version of the image that the machine was installed from, if not image 1.
    pub installed: Option<String>,
    /// True if the host has rebooted since the node took its berth.
    pub rebooted: bool,
    /// True if the API server accepts the agent's writes to other nodes' objects.
    pub unguarded: bool,
    /// Reasons of the condition `Implausible`.
    pub implausible: Vec<String>,
    /// Messages of the host's failed health checks.
    pub failed_checks: Vec<String>,
    /// True if the host's clock is not synchronized.
    pub clock_off: bool,
    /// Other updaters that are active on the host.
    pub rivals: Vec<String>,
    /// Why the rollback guard could not be installed on the host.
    pub guard_failure: Option<String>,
    pub drain: Option<DrainFacts>,
    pub failure: Option<Failure>,
    pub past: Past,
    /// Earlier status of the BootcNode. Contains the facts that are recorded nowhere else.
    pub was: Value,
    /// How long the node has been in this state.
    pub since: SignedDuration,
    /// How long ago the node's agent last reported. The default is one minute, or `since` if that is shorter.
    heard: Option<SignedDuration>,
}

impl Default for NodeFacts {
    fn default() -> Self {
        Self {
            pool: "workers".to_owned(),
            labels: BTreeMap::new(),
            ready: Ready::True,
            kubelet_since: SignedDuration::from_hours(1),
            conditions: vec![],
            cordoned: false,
            address: None,
            arch: None,
            runs: 1,
            staged: None,
            soft_reboot_capable: false,
            pulls: None,
            installed: None,
            rebooted: false,
            unguarded: false,
            implausible: vec![],
            failed_checks: vec![],
            clock_off: false,
            rivals: vec![],
            guard_failure: None,
            drain: None,
            failure: None,
            past: Past::default(),
            was: json!({}),
            since: SignedDuration::from_mins(10),
            heard: None,
        }
    }
}

impl NodeFacts {
    pub fn heard(&self) -> SignedDuration {
        self.heard.unwrap_or(SignedDuration::from_mins(1).min(self.since))
    }

    pub fn architecture(&self) -> &str {
        self.arch.as_deref().unwrap_or("amd64")
    }
}

/// A drain in progress.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainFacts {
    pub since: SignedDuration,
    /// For each remaining pod, why it is not evicted yet.
    #[serde(default)]
    pub pods: BTreeMap<String, String>,
}

/// State of a berth: the progress or the result of the named node's turn.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum BerthFacts {
    New,
    Offered(String),
    Taken(String),
    Committed(String),
    /// Committed by an earlier Node of this name. That Node was deleted.
    Former(String),
    /// The node has proven its boot and gives the berth back.
    Proven(String),
    /// The node could not be drained and gives the berth back.
    TimedOut(String),
    Released(String),
    Failed(String),
    Excluded(String),
    Admin(String),
}

impl BerthFacts {
    /// Returns the node of the berth's last turn or offer.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::New => None,
            Self::Offered(node)
            | Self::Taken(node)
            | Self::Committed(node)
            | Self::Former(node)
            | Self::Proven(node)
            | Self::TimedOut(node)
            | Self::Released(node)
            | Self::Failed(node)
            | Self::Excluded(node)
            | Self::Admin(node) => Some(node),
        }
    }

    /// True if the node has cordoned itself for this turn and not uncordoned itself yet.
    pub fn is_cordoned(&self) -> bool {
        matches!(self, Self::Taken(_) | Self::Committed(_))
    }
}
