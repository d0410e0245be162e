//! Reboot windows: at which times the nodes of a pool may start a reboot.
//!
//! A [`Schedule`] is the union of windows minus exclusions. It is pure: time zones come from the database that is
//! compiled in, never from the machine, so that every program that judges a window judges it alike.
//!
//! - A window **starts** at a time of the wall clock of its time zone, given as a cron schedule of five fields.
//!   Where that time is skipped as the clocks go forward, the window starts at the first instant after the gap.
//!   Where it comes twice as the clocks go back, the window starts once, at the first of the two.
//! - It **lasts** for an elapsed time: `3h` are three hours, also in the night in which the clocks change.
//! - If both day of month and day of week are restricted, a day that matches either of them matches. Only a plain `*`
//!   (or `?`) is unrestricted, `*/2` is not. A `+` before the day of week asks for both. `L`, `15W`, `TUE#2` and
//!   `FRIL` are understood.
//! - **Splay** delays the start by a share of its own for each pool and start, and never moves the end.
//! - Windows that overlap or adjoin are one opening.
//! - An **exclusion** closes whatever is open, from its first instant to just before its last.

mod cron;
mod error;
mod spec;
mod window;

#[cfg(test)]
mod tests;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

pub use error::WindowError;
pub use spec::{MAX_DURATION, MIN_DURATION, WindowSpec};
use window::Window;

/// Longest time for which an opening is followed. One that lasts longer is given an end that is at least so far away.
const HORIZON: SignedDuration = SignedDuration::from_hours(168);

/// How far [`Schedule::longest`] looks, in time and in openings, whichever comes first.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_hours(400 * 24);
const MAX_OPENINGS: usize = 1_000;

/// Answer to the question whether reboots may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Reboots may start.
    Open {
        /// The first instant at which they may not. `None`: there is no window and no later exclusion, so there is no
        /// end and no clock to compare. An opening of more than a week is cut off somewhere after a week.
        until: Option<Timestamp>,
    },
    /// Reboots may not start.
    Closed {
        /// Time from which they may start again; `None` if that never comes.
        next: Option<Timestamp>,
        /// Reason for which they may not start now.
        why: Why,
    },
}

/// Reason for which a [`Schedule`] is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No window is open.
    Outside,
    /// An exclusion applies, whether or not a window is open.
    Excluded,
}

/// The windows and exclusions of a pool, checked. The default has neither and is always open.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    windows: Vec<Window>,
    /// From (inclusive), to (exclusive). Sorted; no two of them overlap or adjoin.
    exclusions: Vec<(Timestamp, Timestamp)>,
}

impl Schedule {
    /// Checks windows and exclusions (from, inclusive; to, exclusive) and makes them ready for [`Self::at`].
    ///
    /// Takes about 0.1 ms for each window; to be kept for as long as the texts do not change.
    ///
    /// # Errors
    /// The first window or exclusion that is refused, by its position, and what to write instead.
    pub fn parse(specs: &[WindowSpec<'_>], exclusions: &[(Timestamp, Timestamp)]) -> Result<Self, WindowError> {
        let windows = specs
            .iter()
            .enumerate()
            .map(|(index, spec)| Window::parse(index, spec))
            .collect::<Result<_, _>>()?;
        for (index, &(from, to)) in exclusions.iter().enumerate() {
            if to <= from {
                return Err(WindowError::EmptyExclusion { index, from, to });
            }
        }
        Ok(Self {
            windows,
            exclusions: merged(exclusions),
        })
    }

    /// Says whether reboots may start at `now`, and until when or from when on. `salt`, the name of the pool, chooses
    /// its splay.
    ///
    /// Takes a few microseconds, and at worst (windows of a minute in each minute of a day on which the clocks change,
    /// which are followed one by one) some tenths of a millisecond. Never looks at starts of more than a week ago.
    pub fn at(&self, now: Timestamp, salt: &str) -> Opening {
        if let Some((_, end)) = self.exclusion_at(now) {
            return Opening::Closed {
                next: self.next_open(end, salt),
                why: Why::Excluded,
            };
        }
        let cut = self.exclusion_after(now);
        if self.windows.is_empty() {
            return Opening::Open { until: cut };
        }
        match self.union_end(now, cut, salt) {
            Some(end) => Opening::Open {
                until: Some(cut.map_or(end, |cut| end.min(cut))),
            },
            None => Opening::Closed {
                next: self.next_open(now, salt),
                why: Why::Outside,
            },
        }
    }

    /// The longest opening from `now` on, of those within 400 days and of no more than 1,000, for a message that says that
    /// all are too short. `None` if one of them lasts for a week or has no end; zero if none comes.
    pub fn longest(&self, now: Timestamp, salt: &str) -> Option<Duration> {
        let mut longest = SignedDuration::ZERO;
        for (from, until) in self.openings(now, salt) {
            longest = longest.max(until?.duration_since(from));
            if longest >= HORIZON {
                return None;
            }
        }
        Duration::try_from(longest).ok()
    }

    /// The openings from `now` on, within the bounds of [`LOOK_AHEAD`] and [`MAX_OPENINGS`].
    fn openings(&self, now: Timestamp, salt: &str) -> impl Iterator<Item = (Timestamp, Option<Timestamp>)> {
        let limit = now.saturating_add(LOOK_AHEAD).unwrap_or(Timestamp::MAX);
        let from = |t: Timestamp| match self.at(t, salt) {
            Opening::Open { until } => Some((t, until)),
            Opening::Closed { next, .. } => {
                let next = next?;
                match self.at(next, salt) {
                    Opening::Open { until } => Some((next, until)),
                    Opening::Closed { .. } => None,
                }
            }
        };
        // The first is looked at however late it comes: a window may be for leap days.
        std::iter::successors(from(now), move |&(_, until)| {
            from(until?).filter(|&(next, _)| next <= limit)
        })
        .take(MAX_OPENINGS)
    }

    /// The end of the merged windows that are open at `now`, exclusions left aside. Not followed further than to
    /// `cut`, nor than [`HORIZON`].
    fn union_end(&self, now: Timestamp, cut: Option<Timestamp>, salt: &str) -> Option<Timestamp> {
        let horizon = now.saturating_add(HORIZON).unwrap_or(Timestamp::MAX);
        let far_enough = cut.map_or(horizon, |cut| cut.min(horizon));
        let furthest = |t: Timestamp| self.windows.iter().filter_map(|w| w.open_until(t, salt)).max();
        let mut end = furthest(now)?;
        while end < far_enough {
            match furthest(end) {
                Some(further) if further > end => end = further,
                _ => break,
            }
        }
        Some(end)
    }

    /// The first instant at or after `from` that is open. Each round passes an exclusion, so there are no more rounds
    /// than those.
    fn next_open(&self, from: Timestamp, salt: &str) -> Option<Timestamp> {
        let mut t = from;
        loop {
            if let Some((_, end)) = self.exclusion_at(t) {
                t = end;
            }
            if self.windows.is_empty() || self.windows.iter().any(|w| w.open_until(t, salt).is_some()) {
                return Some(t);
            }
            t = self.windows.iter().filter_map(|w| w.next_opening(t, salt)).min()?;
            if self.exclusion_at(t).is_none() {
                return Some(t);
            }
        }
    }

    fn exclusion_at(&self, t: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let started = self.exclusions.partition_point(|&(from, _)| from <= t);
        self.exclusions
            .get(started.checked_sub(1)?)
            .copied()
            .filter(|&(_, to)| t < to)
    }

    fn exclusion_after(&self, t: Timestamp) -> Option<Timestamp> {
        self.exclusions
            .get(self.exclusions.partition_point(|&(from, _)| from <= t))
            .map(|&(from, _)| from)
    }
}

/// Sorts spans and joins those that overlap or adjoin.
fn merged(spans: &[(Timestamp, Timestamp)]) -> Vec<(Timestamp, Timestamp)> {
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    let mut merged: Vec<(Timestamp, Timestamp)> = Vec::with_capacity(sorted.len());
    for (from, to) in sorted {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}
