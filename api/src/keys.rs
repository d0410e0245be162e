//! Each label, annotation, finalizer and fixed name that Berth puts on an object, and the labels of images that it reads. The table in `docs/architecture.md`
//! lists the same keys; a test in the `tests` crate compares the two.

/// API group of the custom resources.
pub const GROUP: &str = "berth.dev";
/// Version of the custom resources.
pub const VERSION: &str = "v1alpha1";
/// Default namespace of the programs and the berths.
pub const NAMESPACE: &str = "berth-system";

/// Field manager of an agent's server-side apply of its BootcNode's status. The controller applies under this name once the agent
/// is silent, so that the agent's next write takes the place of its own.
pub const MANAGER_AGENT: &str = "berth-agent";

/// Finalizer on a BootcNode: the agent first undoes what Berth did on the node.
pub const FINALIZER_NODE: &str = "berth.dev/cleanup";
/// Finalizer on a BootcNodePool: its nodes leave first.
pub const FINALIZER_POOL: &str = "berth.dev/cleanup";

/// Label on a berth and a BootcNode: the pool that it belongs to.
pub const LABEL_POOL: &str = "berth.dev/pool";
/// Label on a berth: the node it is offered to or held by, as [`crate::NodeName::label`] writes it. Agents find their
/// berths by this label.
pub const LABEL_NODE: &str = "berth.dev/node";

/// Annotation on a BootcNodePool, with any new value: the tag is polled now. The time of the request, as RFC 3339.
pub const ANNOTATION_POLL_REQUESTED_AT: &str = "berth.dev/poll-requested-at";

/// Label on a Node, with any value: the node is no member of any pool and is not counted; a berth that it holds is
/// given back.
pub const LABEL_EXCLUDE: &str = "berth.dev/exclude";

/// Label on a Node, with any value, put there by an admin: the node stays a member of its pool and counts there, and is
/// offered no berth.
pub const LABEL_HOLD: &str = "berth.dev/hold";

/// Label on a Node, set by an admin: most demanding variant of its architecture that the node gets images for, such as
/// `v2` of `amd64`.
pub const LABEL_VARIANT: &str = "berth.dev/platform-variant";

/// Label on an OS image: the oldest version that a machine may have been installed from.
pub const LABEL_MIN_BOOT_IMAGE: &str = "berth.dev/min-boot-image";
/// Label on an OS image: the most major versions between it and what a machine was installed from.
pub const LABEL_MAX_BOOT_IMAGE_SKEW: &str = "berth.dev/max-boot-image-major-skew";

/// Labels that mark a control plane node, put there by the cluster's installer.
pub const LABELS_CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// Annotation on a Node, written in the same patch as `spec.unschedulable`: record of our cordon, and of the state
/// before it.
pub const ANNOTATION_CORDON: &str = "berth.dev/cordon";
/// Annotation on a Node, changed each time Berth gives a node back, so that an older cordon write still on its
/// way loses on `resourceVersion`.
pub const ANNOTATION_RELEASED: &str = "berth.dev/released";

/// Annotation of the cluster autoscaler on a Node: `true` keeps it from taking the node away.
pub const ANNOTATION_SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Annotation on a Node: [`ANNOTATION_SCALE_DOWN_DISABLED`] is there because an agent has set it. It is written and removed in
/// the same patch, and apart from the record of the cordon: an agent that knows neither leaves both.
pub const ANNOTATION_SCALE_DOWN: &str = "berth.dev/scale-down";
/// Annotation of Karpenter on a Node: `true` keeps it from disrupting the node by its own will.
pub const ANNOTATION_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Annotation on a Node: [`ANNOTATION_DO_NOT_DISRUPT`] is there because an agent has set it.
pub const ANNOTATION_DO_NOT_DISRUPT_MARK: &str = "berth.dev/do-not-disrupt";
/// Annotation of Karpenter on a Node: `true` keeps it from replacing the node while it is unhealthy.
pub const ANNOTATION_DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// Annotation on a Node: [`ANNOTATION_DO_NOT_REPAIR`] is there because an agent has set it.
pub const ANNOTATION_DO_NOT_REPAIR_MARK: &str = "berth.dev/do-not-repair";
/// Label on a Node that Karpenter has made: the name of its NodePool.
pub const LABEL_KARPENTER_NODEPOOL: &str = "karpenter.sh/nodepool";
/// Prefix of the taints by which the Node Readiness Controller keeps pods from a node that lacks something.
pub const TAINT_READINESS: &str = "readiness.k8s.io/";

/// Annotation on a berth: UID of the Node it is offered to or held by.
pub const ANNOTATION_NODE_UID: &str = "berth.dev/node-uid";
/// Annotation on a berth: digest that the node may boot; on a closed one, the digest of the last turn.
pub const ANNOTATION_TARGET: &str = "berth.dev/target-digest";
/// Annotation on a berth: digest that the holder ran, proven, when it took the berth.
pub const ANNOTATION_FROM: &str = "berth.dev/from-digest";
/// Annotation on a berth: boot ID under which the holder took or committed it.
pub const ANNOTATION_BOOT_ID: &str = "berth.dev/boot-id";
/// Annotation on a berth: how far its holder is (`Taken`, `Committed`, `Releasing`).
pub const ANNOTATION_PHASE: &str = "berth.dev/phase";
/// Annotation on an offered or held berth: time until which the reboot may start, by the node's clock (RFC 3339). Set
/// only when the pool has windows or exclusions.
pub const ANNOTATION_OPEN_UNTIL: &str = "berth.dev/open-until";
/// Annotation on a berth: the leader's epoch that last stamped it.
pub const ANNOTATION_EPOCH: &str = "berth.dev/epoch";
/// Annotation on a held berth: reason for which the controller asks for the berth.
pub const ANNOTATION_REVOKE: &str = "berth.dev/revoke";
/// Annotation on a berth that is being or was given back: outcome of the turn.
pub const ANNOTATION_OUTCOME: &str = "berth.dev/outcome";
/// Annotation on a closed berth: node whose turn or offer ended there last.
pub const ANNOTATION_LAST_NODE: &str = "berth.dev/last-node";

/// Annotation on the BootcFleet: held machines that an admin has dismissed, as `NAME@TIME` of the report, separated by commas.
pub const ANNOTATION_DISMISSED: &str = "berth.dev/dismissed-machines";
