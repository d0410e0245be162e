//! Newtypes for the names that the field uses, so that a node is never taken for a pool or a boot ID for a UID.

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
