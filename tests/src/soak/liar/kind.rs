//! Kinds of lies.

use std::collections::BTreeSet;

/// Declares the kinds of lies, each with its name and its weight.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident $name:literal $weight:literal)*) => {
        /// Kinds of lies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind,)*
        }

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Name of the kind, for options and statistics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            pub(super) fn weight(self) -> u64 {
                match self {
                    $(Self::$kind => $weight,)*
                }
            }
        }
    };
}

kinds! {
    /// A sign of life of the agent, and nothing else.
    Heartbeat "heartbeat" 10
    /// The status of a node that has staged its image and waits for a berth.
    Prepared "prepared" 25
    /// The status of a node that runs its image.
    Updated "updated" 6
    /// A pull that never ends.
    Pulling "pulling" 6
    /// Digests that failed on the node, often the target.
    FailedDigests "failed-digests" 6
    /// Any fields of the status.
    Status "status" 10
    /// Any conditions, with any reason and message.
    Conditions "conditions" 8
    /// Times of extreme years in the status.
    Times "times" 4
    /// Any boot image.
    BootImage "boot-image" 4
    /// Any record of the first boot.
    FirstBoot "first-boot" 2
    /// Any timeline, turns, deployments, failures, blockers and insight.
    Record "record" 5
    /// A status with the longest strings and lists that the CRD allows.
    Bulk "bulk" 1
    /// Takes an offer.
    Take "take" 12
    /// A move of a held berth that the protocol allows, at random.
    Move "move" 20
    /// Gives a held berth back.
    Return "return" 12
    /// A take or a move with a `renewTime` of an extreme year.
    BerthTimes "berth-times" 3
    /// A write that the API server must refuse.
    Forbidden "forbidden" 8
    /// Labels of the Node: pool, zone, platform.
    Labels "labels" 6
    /// Annotations of the Node, including the record of Berth's cordon.
    Annotations "annotations" 5
    /// Cordons or uncordons the Node.
    Cordon "cordon" 4
    /// Conditions of the Node: Ready, pressure, network.
    Ready "ready" 6
    /// Times of extreme years in the Node's status and its Lease.
    NodeTimes "node-times" 3
    /// Boot ID and platform of the Node.
    NodeInfo "node-info" 4
    /// Addresses of the Node, such as a server's.
    Addresses "addresses" 4
    /// A Node's status of nearly a megabyte.
    NodeBulk "node-bulk" 1
    /// Renews the kubelet's Lease.
    NodeLease "node-lease" 2
    /// Creates a mirror pod on the node.
    MirrorPod "mirror-pod" 2
    /// Deletes a pod of the node.
    DeletePod "delete-pod" 1
    /// An event, such as a machine that is held back on its first boot.
    Event "event" 3
    /// An event with times of extreme years.
    EventTimes "event-times" 1
}

impl Kind {
    /// Returns the kinds with these names, separated by commas. A name after `-` removes the kind; a list that begins
    /// so begins with all kinds.
    pub fn named(list: &str) -> Result<BTreeSet<Self>, String> {
        let mut kinds = BTreeSet::new();
        if list.trim_start().starts_with('-') {
            kinds.extend(Self::ALL);
        }
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let (name, is_removed) = word.strip_prefix('-').map_or((word, false), |name| (name, true));
            let kind = Self::ALL.iter().find(|kind| kind.name() == name).ok_or_else(|| {
                let known: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
                format!("there is no lie {name}; known lies: {}", known.join(", "))
            })?;
            if is_removed {
                kinds.remove(kind);
            } else {
                kinds.insert(*kind);
            }
        }
        Ok(kinds)
    }
}

/// Names of kinds, separated by commas.
pub(super) fn names(kinds: &BTreeSet<Kind>) -> String {
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    names.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_are_selected_by_name() {
        assert_eq!(
            Kind::named("take, move").unwrap(),
            BTreeSet::from([Kind::Take, Kind::Move])
        );
        let most = Kind::named("-times,-node-times").unwrap();
        assert_eq!(most.len(), Kind::ALL.len() - 2);
        assert!(Kind::named("tale").unwrap_err().contains("there is no lie tale"));
    }
}
