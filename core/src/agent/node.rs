//! The parts of the agent's own Node that its decisions use, and the rules that decide who owns a cordon (I4).

use std::collections::BTreeMap;

use berth_api::seeded::Bug;
use berth_api::{BootId, NodeUid, keys};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::lifecycle::Lifecycle;

/// Value of a guard annotation that Berth sets.
pub const GUARDED: &str = "true";

/// An annotation that keeps another tool, such as Karpenter, from touching a node during the node's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Keeps the cluster autoscaler from removing the node.
    ScaleDown,
    /// Keeps Karpenter from disrupting the node.
    Disruption,
    /// Keeps Karpenter from replacing the node while it is NotReady.
    Repair,
}

impl Guard {
    /// All guards.
    pub const ALL: [Self; 3] = [Self::ScaleDown, Self::Disruption, Self::Repair];

    /// Returns the key of the other tool's annotation.
    pub const fn key(self) -> &'static str {
        match self {
            Self::ScaleDown => keys::ANNOTATION_SCALE_DOWN_DISABLED,
            Self::Disruption => keys::ANNOTATION_DO_NOT_DISRUPT,
            Self::Repair => keys::ANNOTATION_DO_NOT_REPAIR,
        }
    }

    /// Returns the key of the annotation that marks the guard as set by an agent.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::ScaleDown => keys::ANNOTATION_SCALE_DOWN,
            Self::Disruption => keys::ANNOTATION_DO_NOT_DISRUPT_MARK,
            Self::Repair => keys::ANNOTATION_DO_NOT_REPAIR_MARK,
        }
    }

    /// True if Berth sets the guard only on nodes that Karpenter created.
    const fn is_karpenters(self) -> bool {
        matches!(self, Self::Disruption | Self::Repair)
    }
}

/// State of a guard's annotation on a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Value of [`Guard::key`]; `None` if the annotation is absent.
    pub value: Option<String>,
    /// True if an agent set the annotation: the Node also has the annotation [`Guard::mark`].
    pub is_ours: bool,
}

/// The parts of a Node that matter to its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// UID of the Node.
    pub uid: NodeUid,
    /// `resourceVersion` that the Node had when it was read.
    pub resource_version: String,
    /// True if the Node is cordoned, by Berth or anything else.
    pub unschedulable: bool,
    /// True if the kubelet last reported the Node as Ready. The report is from the boot `boot_id`.
    pub ready: bool,
    /// ID of the boot that the kubelet's last report is from. The kubelet names only the kernel's boot ID: see
    /// [`Self::settle_boot`].
    pub boot_id: Option<BootId>,
    /// When the kubelet last reported its condition Ready, by the host's wall clock.
    pub ready_reported: Option<Timestamp>,
    /// Record of Berth's cordon; `None` if the Node is not cordoned by Berth.
    pub cordon: Option<CordonRecord>,
    /// True if an admin excluded the node: see [`berth_api::keys::LABEL_EXCLUDE`].
    pub excluded: bool,
    /// True for a control plane node.
    pub control_plane: bool,
    /// First taint that the Node Readiness Controller has set to keep pods off the node; `None` without such a taint.
    pub not_ready_taint: Option<String>,
    /// Status of each of the Node's conditions, by type. Read only by the pool's checks.
    pub conditions: BTreeMap<String, String>,
    /// Annotations and conditions that other tools read. No step of Berth depends on them.
    pub signs: Signs,
}

/// Annotations and conditions that show other tools that the node is in a turn. Berth or another program may have set
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// State of each guard, in the order of [`Guard::ALL`].
    pub guards: [Guarded; Guard::ALL.len()],
    /// True if Karpenter created the node.
    pub is_karpenters: bool,
    /// The Node's lifecycle conditions.
    pub lifecycle: Lifecycle,
}

/// Record of Berth's cordon: an annotation that is written in the same patch as the cordon.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CordonRecord {
    /// Name of the berth that the node held when it was cordoned.
    pub berth: String,
    /// True if the node was unschedulable before Berth cordoned it.
    pub unschedulable: bool,
}

/// How a cordon changes a guard's annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardChange {
    /// The cordon changes neither the annotation nor Berth's mark.
    Stays,
    /// Set the annotation and mark it as Berth's.
    Set,
    /// Remove only Berth's mark: another tool or person has changed the annotation after Berth set it.
    Theirs,
}

impl NodeFacts {
    /// Returns the record to write in the same patch as a cordon under this berth.
    pub fn cordon_record(&self, berth: &str) -> CordonRecord {
        // If Berth's cordon is already on the Node, only the cordon's record has the state before the cordon. If the
        // Node has a record but is schedulable, another tool or person has undone that cordon.
        let unschedulable = self.unschedulable && self.cordon.as_ref().is_none_or(|record| record.unschedulable);
        CordonRecord {
            berth: berth.to_owned(),
            unschedulable,
        }
    }

    /// Sets `boot_id` to the host's boot ID if the kubelet's report is from the current boot. The report has only the
    /// kernel's boot ID, which a soft reboot does not change. After a soft reboot, the report must therefore be at
    /// least as new as the running userspace, which started at `began`.
    pub fn settle_boot(&mut self, boot_id: &BootId, began: Option<Timestamp>) {
        let is_of_kernel = self
            .boot_id
            .as_ref()
            .is_some_and(|seen| seen.kernel() == boot_id.kernel());
        // The kubelet reports whole seconds.
        let is_since = began.is_none_or(|began| {
            let second = began.as_second();
            self.ready_reported
                .is_some_and(|reported| reported.as_second() >= second)
        });
        if boot_id.is_soft() && is_of_kernel && (is_since || Bug::OldReadyTrusted.is_awake()) {
            self.boot_id = Some(boot_id.clone());
        }
    }

    /// True if the kubelet reports Ready under this boot. A report from an earlier boot does not count.
    pub fn reports_ready(&self, boot_id: &BootId) -> bool {
        self.ready && self.boot_id.as_ref() == Some(boot_id)
    }

    /// True if the Node is Ready under this boot and has no taint of the Node Readiness Controller.
    pub fn is_ready(&self, boot_id: &BootId) -> bool {
        self.reports_ready(boot_id) && self.not_ready_taint.is_none()
    }

    /// Returns each guard with its state.
    pub fn guards(&self) -> impl Iterator<Item = (Guard, &Guarded)> {
        Guard::ALL.into_iter().zip(&self.signs.guards)
    }

    /// Returns how a cordon changes this guard. `seen` is the guard's current state.
    pub fn guard_at_cordon(&self, guard: Guard, seen: &Guarded) -> GuardChange {
        if guard.is_karpenters() && !self.signs.is_karpenters && !seen.is_ours {
            return GuardChange::Stays;
        }
        match (seen.is_ours, seen.value.as_deref()) {
            (false, Some(_)) | (true, Some(GUARDED)) => GuardChange::Stays,
            (false, None) => GuardChange::Set,
            // If the Node has no cordon of Berth's, the mark is left from an earlier turn, so set the guard again. If
            // it has one, another tool or person has removed the annotation since, so do not set the annotation again.
            (true, None) if self.cordon.is_none() => GuardChange::Set,
            (true, _) => GuardChange::Theirs,
        }
    }

    /// True if Berth's cordon is gone but guards are left. In that case, an older agent version that does not know
    /// these guards has removed the cordon.
    pub fn has_left_guards(&self) -> bool {
        self.cordon.is_none() && self.signs.guards.iter().any(|guarded| guarded.is_ours)
    }
}

impl Guarded {
    /// True if the annotation still has the value that an agent set. If so, it must be removed with the cordon.
    pub fn is_kept(&self) -> bool {
        self.is_ours && self.value.as_deref() == Some(GUARDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_have_the_names_of_their_tools() {
        let names = Guard::ALL.map(|guard| (guard.key(), guard.mark()));
        let expected = [
            (
                "cluster-autoscaler.kubernetes.io/scale-down-disabled",
                "berth.dev/scale-down",
            ),
            ("karpenter.sh/do-not-disrupt", "berth.dev/do-not-disrupt"),
            ("karpenter.sh/do-not-repair", "berth.dev/do-not-repair"),
        ];
        assert_eq!(names, expected);
    }

    fn node(unschedulable: bool, cordon: Option<bool>, ours: bool, scale_down: Option<&str>) -> NodeFacts {
        NodeFacts {
            uid: "u".into(),
            resource_version: "7".into(),
            unschedulable,
            ready: true,
            boot_id: None,
            cordon: cordon.map(|unschedulable| CordonRecord {
                berth: "old-1".into(),
                unschedulable,
            }),
            excluded: false,
            control_plane: false,
            not_ready_taint: None,
            ready_reported: None,
            conditions: Default::default(),
            signs: Signs {
                guards: [(); 3].map(|()| Guarded {
                    value: scale_down.map(str::to_owned),
                    is_ours: ours,
                }),
                is_karpenters: true,
                ..Signs::default()
            },
        }
    }

    #[test]
    fn a_cordon_records_what_was_before_us() {
        for (unschedulable, cordon, before) in [
            (false, None, false),
            (true, None, true),
            (true, Some(false), false),
            (true, Some(true), true),
            (false, Some(true), false),
        ] {
            let node = node(unschedulable, cordon, false, None);
            let record = node.cordon_record("workers-0");
            assert_eq!((record.berth.as_str(), record.unschedulable), ("workers-0", before));
        }
    }

    #[test]
    fn only_a_guard_set_by_berth_is_removed() {
        use GuardChange::{Set, Stays, Theirs};
        // Each case has three inputs: whether Berth's cordon is on the Node, whether the annotation is marked as
        // Berth's, and the annotation's value. Three expected results follow: how a cordon changes the annotation,
        // whether a restore removes the annotation, and whether the guard counts as left behind.
        for (cordoned, ours, value, change, takes_off, is_left) in [
            (false, false, None, Set, false, false),
            (false, false, Some("true"), Stays, false, false),
            (false, false, Some("false"), Stays, false, false),
            // An agent version that did not know the guard set the cordon.
            (true, false, None, Set, false, false),
            (true, false, Some("true"), Stays, false, false),
            (true, true, Some("true"), Stays, true, false),
            (true, true, Some("false"), Theirs, false, false),
            (true, true, None, Theirs, false, false),
            // An agent version that did not know the guard removed the cordon.
            (false, true, Some("true"), Stays, true, true),
            (false, true, Some("false"), Theirs, false, true),
            (false, true, None, Set, false, true),
        ] {
            let node = node(true, cordoned.then_some(false), ours, value);
            for (guard, guarded) in node.guards() {
                let seen = (
                    node.guard_at_cordon(guard, guarded),
                    guarded.is_kept(),
                    node.has_left_guards(),
                );
                assert_eq!(
                    seen,
                    (change, takes_off, is_left),
                    "{guard:?} {cordoned} {ours} {value:?}"
                );
            }
        }
    }

    #[test]
    fn karpenters_guards_are_for_its_nodes() {
        let mut others = node(false, None, false, None);
        others.signs.is_karpenters = false;
        use GuardChange::{Set, Stays};
        for (node, expected) in [
            (others, [Set, Stays, Stays]),
            (node(false, None, false, None), [Set, Set, Set]),
        ] {
            let guards = node.guards();
            let changes: Vec<_> = guards
                .map(|(guard, guarded)| node.guard_at_cordon(guard, guarded))
                .collect();
            assert_eq!(changes, expected);
        }
    }
}
