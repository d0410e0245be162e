//! Types for names, so that a node cannot be taken for a pool, or a boot ID for a UID.

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
    /// UID of a Node object: a Node that was deleted and created again under its name is another node.
    NodeUid
);
name!(
    /// Name of a BootcNodePool.
    PoolName
);
name!(
    /// The kernel's boot ID (`/proc/sys/kernel/random/boot_id`): new with every boot.
    BootId
);

/// The longest value of a label.
const MAX_LABEL: usize = 63;

impl NodeName {
    /// Value of a label that names the node. The name of a Node may have 253 characters, a label's value 63. A name
    /// that is too long is cut off and ends in a hash of the whole. All programs must agree on this value, so the rule
    /// never changes. In theory two names may share a value: callers that select by it still compare the names.
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
    fn a_long_name_is_cut_off_and_stays_what_it_was() {
        let name = format!("worker-1.{}.example.com", "a".repeat(60));
        let label = NodeName::from(name.as_str()).label().into_owned();
        // Leases that are there carry it: it must not change from version to version.
        assert_eq!(label, format!("worker-1.{}-f5da50f600667942", "a".repeat(37)));
    }

    proptest! {
        #[test]
        fn every_name_of_a_node_has_a_label_of_its_own(
            names in prop::collection::btree_set("[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", 2..8),
            long in "[a-z0-9][-a-z0-9.]{80,200}[a-z0-9]",
        ) {
            // Those that begin alike too.
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
