//! The agent's own Node, as far as its decisions depend on it, and the rules of a cordon's ownership (I4).

use berth_api::{BootId, NodeUid};
use serde::{Deserialize, Serialize};

use crate::agent::lifecycle::Lifecycle;

/// Value of the cluster autoscaler's annotation that Berth sets.
pub const SCALE_DOWN_DISABLED: &str = "true";

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
    /// Signs of a turn for other tools. No step depends on them.
    pub signs: Signs,
}

/// Signs on a Node by which other tools see that it is in its turn, whoever has set them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// Value of [`berth_api::keys::ANNOTATION_SCALE_DOWN_DISABLED`], when it is there.
    pub scale_down_disabled: Option<String>,
    /// An agent has set that: [`berth_api::keys::ANNOTATION_SCALE_DOWN`] is there.
    pub scale_down_is_ours: bool,
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

/// Change that a cordon makes to the cluster autoscaler's annotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleDown {
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

    /// Change that a cordon of the Node as it was read makes to the cluster autoscaler's annotation.
    pub fn scale_down_at_cordon(&self) -> ScaleDown {
        match (self.signs.scale_down_is_ours, self.signs.scale_down_disabled.as_deref()) {
            (false, Some(_)) | (true, Some(SCALE_DOWN_DISABLED)) => ScaleDown::Stays,
            (false, None) => ScaleDown::Set,
            // Who took it off under our cordon has the last word. Without a cordon that was in an earlier turn.
            (true, None) if self.cordon.is_none() => ScaleDown::Set,
            (true, _) => ScaleDown::Theirs,
        }
    }

    /// Says whether the cluster autoscaler's annotation is the one that a cordon of ours has set, and is to go with it.
    pub fn keeps_our_scale_down(&self) -> bool {
        self.signs.scale_down_is_ours && self.signs.scale_down_disabled.as_deref() == Some(SCALE_DOWN_DISABLED)
    }

    /// Says whether a cordon of ours is gone and has left the cluster autoscaler's annotation: an agent that does not know the
    /// annotation has undone it.
    pub fn has_left_scale_down(&self) -> bool {
        self.signs.scale_down_is_ours && self.cordon.is_none()
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
            signs: Signs {
                scale_down_disabled: scale_down.map(str::to_owned),
                scale_down_is_ours: ours,
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
    fn the_autoscalers_annotation_is_ours_only_if_we_have_set_it() {
        use ScaleDown::{Set, Stays, Theirs};
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
            let seen = (
                node.scale_down_at_cordon(),
                node.keeps_our_scale_down(),
                node.has_left_scale_down(),
            );
            assert_eq!(seen, (change, takes_off, is_left), "{cordoned} {ours} {value:?}");
        }
    }
}
