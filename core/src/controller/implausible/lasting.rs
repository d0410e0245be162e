//! How long a contradiction has lasted.

use std::time::Duration;

use crate::Moment;

/// Result of one comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// The reports agree.
    Agrees,
    /// The reports cannot be compared now.
    Unsettled,
    /// The reports contradict each other.
    Contradicts,
}

impl Look {
    pub(super) const fn of(contradicts: bool) -> Self {
        if contradicts { Self::Contradicts } else { Self::Agrees }
    }

    /// Returns `Unsettled` in place of a contradiction if `is_unsettled`.
    pub(super) const fn unless(self, is_unsettled: bool) -> Self {
        match self {
            Self::Contradicts if is_unsettled => Self::Unsettled,
            look => look,
        }
    }
}

/// A contradiction, and since when this process has seen it without a pause.
#[derive(Debug, Default)]
pub(super) struct Lasting {
    since: Option<Moment>,
    /// True if the contradiction has lasted for too long. It then counts until the reports agree.
    is_named: bool,
}

impl Lasting {
    /// Returns a contradiction that an earlier leader has found.
    pub(super) const fn named() -> Self {
        Self {
            since: None,
            is_named: true,
        }
    }

    pub(super) const fn is_named(&self) -> bool {
        self.is_named
    }

    pub(super) fn see(&mut self, look: Look, now: Moment) {
        match look {
            Look::Agrees => *self = Self::default(),
            Look::Unsettled => self.restart(),
            Look::Contradicts => {
                self.since.get_or_insert(now);
            }
        }
    }

    pub(super) const fn restart(&mut self) {
        self.since = None;
    }

    /// True if the contradiction was first seen before `moment`.
    pub(super) fn began_before(&self, moment: Moment) -> bool {
        self.since.is_some_and(|since| since < moment)
    }

    /// Names the contradiction if its reporter has repeated it for this long. `written`: the reporter's last write. A
    /// node that no longer writes is never named, however old its last report is.
    pub(super) fn name_after(&mut self, time: Duration, written: Moment) {
        self.is_named |= self.since.is_some_and(|since| written.since(since) >= time);
    }
}
