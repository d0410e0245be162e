//! The agent's own Node, as far as its decisions depend on it, and the rules of a cordon's ownership (I4).

use berth_api::{BootId, NodeUid, keys};
use serde::{Deserialize, Serialize};

use crate::agent::lifecycle::Lifecycle;

/// Value of each guard that Berth sets.
pub const GUARDED: &str = "true";

/// Annotation by which another tool is kept from a node that is in its turn.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::ScaleDown, Self::Disruption, Self::Repair];

    /// The other tool's annotation.
    pub const fn key(self) -> &'static str {
        match self {
            Self::ScaleDown => keys::ANNOTATION_SCALE_DOWN_DISABLED,
            Self::Disruption => keys::ANNOTATION_DO_NOT_DISRUPT,
            Self::Repair => keys::ANNOTATION_DO_NOT_REPAIR,
        }
    }

    /// Annotation that says that an agent has set the other one.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::ScaleDown => keys::ANNOTATION_SCALE_DOWN,
            Self::Disruption => keys::ANNOTATION_DO_NOT_DISRUPT_MARK,
            Self::Repair => keys::ANNOTATION_DO_NOT_REPAIR_MARK,
        }
    }

    /// True if it is only for nodes that Karpenter has made.
    const fn is_karpenters(self) -> bool {
        matches!(self, Self::Disruption | Self::Repair)
    }
}

/// A guard on a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guarded {
    /// Value of [`Guard::key`], when it is there.
    pub value: Option<String>,
    /// An agent has set it: [`Guard::mark`] is there.
    pub is_ours: bool,
}

/// The parts of a Node that matter to its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its UID.
    pub uid: NodeUid,
    /// The version that was read.
    pub resource_version: String,
    /// Cordoned, by whomever.
    pub unschedulable: bool,
    /// True if its kubelet reports Ready. `boot_id` tells under which boot.
    pub ready: bool,
    /// The boot ID under which the kubelet last reported.
    pub boot_id: Option<BootId>,
    /// Our cordon, when there is one.
    pub cordon: Option<CordonRecord>,
    /// An admin has excluded it: see [`berth_api::keys::LABEL_EXCLUDE`].
    pub excluded: bool,
    /// The node carries the control plane.
    pub control_plane: bool,
    /// Taint by which the Node Readiness Controller says that something of the node is not ready; the first of several.
    pub not_ready_taint: Option<String>,
    /// Signs of a turn for other tools. No step depends on them.
    pub signs: Signs,
}

/// Signs on a Node by which other tools see that it is in its turn, whoever has set them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// The guards, in the order of [`Guard::ALL`].
    pub guards: [Guarded; Guard::ALL.len()],
    /// Karpenter has made the node.
    pub is_karpenters: bool,
    /// The lifecycle conditions.
    pub lifecycle: Lifecycle,
}

/// Record of our cordon patch on the Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CordonRecord {
    /// The berth under which the node was cordoned.
    #[serde(default)]
    pub berth: String,
    /// True if it was unschedulable before.
    #[serde(default)]
    pub unschedulable: bool,
}

/// Change that a cordon makes to a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuardChange {
    /// Stays as it is, and whose it is as well.
    Stays,
    /// Set, and ours.
    Set,
    /// Somebody else's from now on.
    Theirs,
}

impl NodeFacts {
    /// Record of a cordon of the Node as it was read, under this berth.
    pub fn cordon_record(&self, berth: &str) -> CordonRecord {
        // A cordon of ours that is there already hides what was before it; its record does not. A record on a node that is
        // schedulable is about a cordon that somebody has undone.
        let unschedulable = self.unschedulable && self.cordon.as_ref().is_none_or(|record| record.unschedulable);
        CordonRecord {
            berth: berth.to_owned(),
            unschedulable,
        }
    }

    /// Each guard with its state.
    pub fn guards(&self) -> impl Iterator<Item = (Guard, &Guarded)> {
        Guard::ALL.into_iter().zip(&self.signs.guards)
    }

    /// Change that a cordon of the Node as it was read makes to a guard.
    pub fn guard_at_cordon(&self, guard: Guard, seen: &Guarded) -> GuardChange {
        if guard.is_karpenters() && !self.signs.is_karpenters && !seen.is_ours {
            return GuardChange::Stays;
        }
        match (seen.is_ours, seen.value.as_deref()) {
            (false, Some(_)) | (true, Some(GUARDED)) => GuardChange::Stays,
            (false, None) => GuardChange::Set,
            // Who took it off under our cordon has the last word. Without a cordon that was in an earlier turn.
            (true, None) if self.cordon.is_none() => GuardChange::Set,
            (true, _) => GuardChange::Theirs,
        }
    }

    /// True if a cordon of ours is gone and has left a guard: an agent that does not know the guard has undone it.
    pub fn has_left_guards(&self) -> bool {
        self.cordon.is_none() && self.signs.guards.iter().any(|guarded| guarded.is_ours)
    }
}

impl Guarded {
    /// True if it is what an agent has set, and is to go with the cordon.
    pub fn is_kept(&self) -> bool {
        self.is_ours && self.value.as_deref() == Some(GUARDED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_guard_is_ours_only_if_we_have_set_it() {
        use GuardChange::{Set, Stays, Theirs};
        // Cordoned by us, whether the annotation is marked as ours, its value; the change at a cordon, whether a restore takes it
        // off, and whether it was left behind.
        for (cordoned, ours, value, change, takes_off, is_left) in [
            (false, false, None, Set, false, false),
            (false, false, Some("true"), Stays, false, false),
            (false, false, Some("false"), Stays, false, false),
            // The cordon of an agent that did not know it.
            (true, false, None, Set, false, false),
            (true, false, Some("true"), Stays, false, false),
            (true, true, Some("true"), Stays, true, false),
            (true, true, Some("false"), Theirs, false, false),
            (true, true, None, Theirs, false, false),
            // Such an agent has restored the Node.
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
        let changes = |node: &NodeFacts| -> Vec<_> {
            node.guards()
                .map(|(guard, guarded)| node.guard_at_cordon(guard, guarded))
                .collect()
        };
        use GuardChange::{Set, Stays};
        assert_eq!(changes(&others), [Set, Stays, Stays]);
        assert_eq!(changes(&node(false, None, false, None)), [Set, Set, Set]);
    }
}
