//! Types for names, so that a node name cannot be used as a pool name, or a boot ID as a UID.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps a name that another system has already validated.
            pub fn new(name: impl Into<String>) -> Self {
                Self(name.into())
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(name: &str) -> Self {
                Self(name.to_owned())
            }
        }
    };
}

name!(
    /// Name of a Node; its BootcNode has the same name.
    NodeName
);
name!(
    /// UID of a Node object. A Node that was deleted and created again under the same name is another node.
    NodeUid
);
name!(
    /// Name of a BootcNodePool.
    PoolName
);
name!(
    /// ID of a boot: the kernel's boot ID (`/proc/sys/kernel/random/boot_id`), new at every boot. A soft reboot does
    /// not restart the kernel. After soft reboots, the ID ends with `.soft` and the number of soft reboots.
    BootId
);

const SOFT: &str = ".soft";

impl BootId {
    /// Returns the boot ID of a host after `count` soft reboots, given the kernel's boot ID.
    pub fn after_soft_reboots(kernel: &str, count: u32) -> Self {
        match count {
            0 => Self::new(kernel),
            _ => Self(format!("{kernel}{SOFT}{count}")),
        }
    }

    /// Returns the kernel's boot ID, which the kubelet reports.
    pub fn kernel(&self) -> &str {
        self.0.split_once(SOFT).map_or(self.0.as_str(), |(kernel, _)| kernel)
    }

    /// True if the host has soft-rebooted since its kernel started.
    pub fn is_soft(&self) -> bool {
        self.0.contains(SOFT)
    }
}

const MAX_LABEL: usize = 63;

impl NodeName {
    /// Returns the label value for this node. A Node name may have 253 characters, but a label value only 63. A longer
    /// name is cut, and ends in a hash of the whole name. All programs and versions must use this rule. Two names may
    /// in theory get the same value, so a caller that selects by the label must also compare the names.
    pub fn label(&self) -> Cow<'_, str> {
        let name = self.as_str();
        if name.len() <= MAX_LABEL {
            return Cow::Borrowed(name);
        }
        // FNV-1a: small, and the same in every version of every program.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let hash = format!("-{hash:016x}");
        let start: String = name.chars().take(MAX_LABEL - hash.len()).collect();
        Cow::Owned(start + &hash)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_fits_is_its_own_label() {
        for name in ["n1", "node-1.example.com", &"n".repeat(63)] {
            assert_eq!(NodeName::from(name).label(), name);
        }
    }

    #[test]
    fn the_label_of_a_long_name_never_changes() {
        let name = format!("worker-1.{}.example.com", "a".repeat(60));
        let label = NodeName::from(name.as_str()).label().into_owned();
        // Existing Leases have this value, so it must not change between versions.
        assert_eq!(label, format!("worker-1.{}-f5da50f600667942", "a".repeat(37)));
    }

    proptest! {
        #[test]
        fn every_node_name_has_a_unique_label(
            names in prop::collection::btree_set("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", 2..8),
            long in "[a-z0-9][-a-z0-9.]{80,200}[a-z0-9]",
        ) {
            let names = names.into_iter().chain(["0", "1", "00"].map(|end| format!("{long}{end}")));
            let names: std::collections::BTreeSet<_> = names.collect();
            let labels: std::collections::BTreeSet<_> =
                names.iter().map(|name| NodeName::from(name.as_str()).label().into_owned()).collect();
            prop_assert_eq!(labels.len(), names.len());
            for label in labels {
                let ends = [label.as_bytes()[0], label.as_bytes()[label.len() - 1]];
                prop_assert!(label.len() <= 63 && ends.iter().all(u8::is_ascii_alphanumeric), "{label}");
            }
        }
    }
}
