//! Deliberate bugs, so that the tests can show that they would find them. Compiled in only with the feature
//! `seeded-bugs`, which nothing that is shipped has, and asleep until `BERTH_SEEDED_BUG` names one.

/// A deliberate bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Unlock and reboot as soon as the image is staged, without a berth.
    SkipBerth,
}

impl Bug {
    #[cfg(feature = "seeded-bugs")]
    fn name(self) -> &'static str {
        match self {
            Self::SkipBerth => "skip-berth",
        }
    }

    /// Whether this agent has the bug. Always false in what is shipped.
    #[cfg(feature = "seeded-bugs")]
    pub fn is_awake(self) -> bool {
        std::env::var("BERTH_SEEDED_BUG").is_ok_and(|name| name == self.name())
    }

    /// Whether this agent has the bug. Always false in what is shipped.
    #[cfg(not(feature = "seeded-bugs"))]
    pub const fn is_awake(self) -> bool {
        false
    }
}
