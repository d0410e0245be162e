//! All labels, annotations, finalizers and fixed names that Berth writes to objects or reads from objects and images.
//! The table in `docs/keys.md` lists the same keys; a test in the `tests` crate compares the two.

/// API group of the custom resources.
pub const GROUP: &str = "berth.dev";
/// Version of the custom resources.
pub const VERSION: &str = "v1alpha1";
/// Default namespace of the programs and the berths.
pub const NAMESPACE: &str = "berth-system";

/// Label on every object that installs Berth, with the value [`PART_OF`]. `kubectl berth uninstall` finds the objects by
/// this label, so that it also removes objects that a component or a chart adds.
pub const LABEL_PART_OF: &str = "app.kubernetes.io/part-of";
/// Value of [`LABEL_PART_OF`].
pub const PART_OF: &str = "berth";

/// Annotation on Berth's Namespace, set by `kubectl berth uninstall`: Berth has been removed from all hosts. The command
/// reads it when it runs again after the DaemonSet is deleted.
pub const ANNOTATION_HOSTS_CLEAN: &str = "berth.dev/hosts-clean";
/// Name of the Lease that makes one controller the leader.
pub const LEADER_LEASE: &str = "berth-controller";

/// Field manager that an agent uses to apply its BootcNode's status (server-side apply). While the agent is silent, the
/// controller uses the same name. The agent's next write then replaces the controller's values.
pub const MANAGER_AGENT: &str = "berth-agent";

/// Finalizer on a BootcNode: the agent undoes Berth's changes to the node before the object is deleted.
pub const FINALIZER_NODE: &str = "berth.dev/cleanup";
/// Finalizer on a BootcNodePool: its nodes leave the pool before the object is deleted.
pub const FINALIZER_POOL: &str = "berth.dev/cleanup";

/// Label on each berth and each BootcNode: name of its pool.
pub const LABEL_POOL: &str = "berth.dev/pool";
/// Label on a berth: name of the node that holds or is offered the berth, written by [`crate::NodeName::label`].
/// Agents find their berths by this label.
pub const LABEL_NODE: &str = "berth.dev/node";

/// Annotation on a BootcNodePool: time when a poll of the tag was requested (RFC 3339). For each new value, the
/// controller polls the tag once.
pub const ANNOTATION_POLL_REQUESTED_AT: &str = "berth.dev/poll-requested-at";

/// Label on a Node, with any value, set by an admin: the node belongs to no pool and uses no capacity. If the node
/// holds a berth, its agent gives the berth back. If the Node is NotReady, the controller closes the berth instead.
pub const LABEL_EXCLUDE: &str = "berth.dev/exclude";

/// Label on a Node, with any value, set by an admin: the node stays a member of its pool but is offered no berth.
pub const LABEL_HOLD: &str = "berth.dev/hold";

/// Label on a Node, set by an admin: most demanding CPU variant that the node may run, such as `v2` for `amd64`.
pub const LABEL_VARIANT: &str = "berth.dev/platform-variant";

/// Label on an OS image: minimum boot image version of the machines that may run the OS image.
pub const LABEL_MIN_BOOT_IMAGE: &str = "berth.dev/min-boot-image";
/// Label on an OS image: maximum difference in major versions between the OS image and a machine's boot image.
pub const LABEL_MAX_BOOT_IMAGE_SKEW: &str = "berth.dev/max-boot-image-major-skew";

/// Labels of a control plane node, set by the cluster's installer.
pub const LABELS_CONTROL_PLANE: [&str; 2] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
];

/// Annotation on a Node: record of Berth's cordon, and whether the Node was already cordoned before. Written in the
/// same patch as `spec.unschedulable`.
pub const ANNOTATION_CORDON: &str = "berth.dev/cordon";
/// Annotation on a Node, changed each time an agent undoes Berth's cordon. The change gives the Node a new
/// `resourceVersion`. A delayed request to cordon the Node then fails.
pub const ANNOTATION_RELEASED: &str = "berth.dev/released";

/// Annotation of the cluster autoscaler on a Node: `true` keeps the autoscaler from removing the node.
pub const ANNOTATION_SCALE_DOWN_DISABLED: &str = "cluster-autoscaler.kubernetes.io/scale-down-disabled";
/// Annotation on a Node: mark that an agent has set [`ANNOTATION_SCALE_DOWN_DISABLED`]. Agents write both annotations
/// in one patch, and remove both in one patch. An older agent does not know these annotations. It leaves both in place,
/// because the mark is separate from the cordon's record.
pub const ANNOTATION_SCALE_DOWN: &str = "berth.dev/scale-down";
/// Annotation of Karpenter on a Node: `true` keeps Karpenter from voluntarily disrupting the node.
pub const ANNOTATION_DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Annotation on a Node: mark that an agent has set [`ANNOTATION_DO_NOT_DISRUPT`].
pub const ANNOTATION_DO_NOT_DISRUPT_MARK: &str = "berth.dev/do-not-disrupt";
/// Annotation of Karpenter on a Node: `true` keeps Karpenter from replacing the node while the node is unhealthy.
pub const ANNOTATION_DO_NOT_REPAIR: &str = "karpenter.sh/do-not-repair";
/// Annotation on a Node: mark that an agent has set [`ANNOTATION_DO_NOT_REPAIR`].
pub const ANNOTATION_DO_NOT_REPAIR_MARK: &str = "berth.dev/do-not-repair";
/// Label on a Node that Karpenter created: name of its NodePool.
pub const LABEL_KARPENTER_NODEPOOL: &str = "karpenter.sh/nodepool";
/// Label and taint of a Node that an admin has set aside for the controller.
pub const SET_ASIDE: &str = "node-restriction.kubernetes.io/berth-controller";

/// All labels on Nodes that mean something to Berth only. An admin sets them.
pub const NODE_LABELS: [&str; 4] = [LABEL_EXCLUDE, LABEL_HOLD, LABEL_VARIANT, SET_ASIDE];
/// All taints on Nodes that mean something to Berth only. An admin sets them.
pub const NODE_TAINTS: [&str; 1] = [SET_ASIDE];
/// All annotations of Berth on Nodes.
pub const NODE_ANNOTATIONS: [&str; 5] = [
    ANNOTATION_CORDON,
    ANNOTATION_RELEASED,
    ANNOTATION_SCALE_DOWN,
    ANNOTATION_DO_NOT_DISRUPT_MARK,
    ANNOTATION_DO_NOT_REPAIR_MARK,
];

/// Prefix of the Node Readiness Controller's taints, which keep pods from a node that lacks a requirement.
pub const TAINT_READINESS: &str = "readiness.k8s.io/";

/// Annotation on a berth: UID of the Node that holds or is offered the berth.
pub const ANNOTATION_NODE_UID: &str = "berth.dev/node-uid";
/// Annotation on a berth: digest that the node may boot; on a closed berth, the target of the last turn or offer.
pub const ANNOTATION_TARGET: &str = "berth.dev/target-digest";
/// Annotation on a berth: digest that the holder ran when it took the berth.
pub const ANNOTATION_FROM: &str = "berth.dev/from-digest";
/// Annotation on a berth: boot ID of the holder's host when the agent took or committed the berth, or began to give it
/// back.
pub const ANNOTATION_BOOT_ID: &str = "berth.dev/boot-id";
/// Annotation on a berth: progress of its holder (`Taken`, `Committed`, `Releasing`).
pub const ANNOTATION_PHASE: &str = "berth.dev/phase";
/// Annotation on an offered or held berth: deadline for the start of the reboot, by the node's clock (RFC 3339). Set
/// only if the pool has windows or exclusions.
pub const ANNOTATION_OPEN_UNTIL: &str = "berth.dev/open-until";
/// Annotation on a berth: epoch (term number) that a leader last wrote to the berth.
pub const ANNOTATION_EPOCH: &str = "berth.dev/epoch";
/// Annotation on a held berth: why the controller asks for it back.
pub const ANNOTATION_REVOKE: &str = "berth.dev/revoke";
/// Annotation on a berth that is being or was given back: outcome of the turn.
pub const ANNOTATION_OUTCOME: &str = "berth.dev/outcome";
/// Annotation on a closed berth: node of the last turn or offer.
pub const ANNOTATION_LAST_NODE: &str = "berth.dev/last-node";

/// All annotations that Berth uses on berths. The admission policy lets agents change only these annotations. When the
/// controller writes a berth, it removes all other annotations.
pub const BERTH_ANNOTATIONS: [&str; 10] = [
    ANNOTATION_NODE_UID,
    ANNOTATION_TARGET,
    ANNOTATION_FROM,
    ANNOTATION_BOOT_ID,
    ANNOTATION_PHASE,
    ANNOTATION_OPEN_UNTIL,
    ANNOTATION_EPOCH,
    ANNOTATION_REVOKE,
    ANNOTATION_OUTCOME,
    ANNOTATION_LAST_NODE,
];
/// All labels on a berth.
pub const BERTH_LABELS: [&str; 2] = [LABEL_POOL, LABEL_NODE];

/// Annotation on the BootcFleet: dismissed machines, separated by commas. Each entry is `NAME@TIME`, with the time of
/// the machine's last report. An admin dismisses a machine that is held back on its first boot.
pub const ANNOTATION_DISMISSED: &str = "berth.dev/dismissed-machines";
