//! Reboot windows: the times when nodes of a pool may start a reboot.
//!
//! A [`Schedule`] is the union of windows minus exclusions. It is pure: time zones come from the compiled-in database,
//! not from the machine, so every program gets the same result.
//!
//! - A window **starts** at a wall clock time in its time zone, given as a cron schedule of five fields. If the clocks
//!   skip that time when they go forward, the window starts at the first instant after the gap. If the time occurs
//!   twice when they go back, the window starts once, at the first occurrence.
//! - The window **lasts** for an elapsed time: `3h` are three hours even in a night when the clocks change.
//! - If both day of month and day of week are restricted, a day that matches either one matches. Only a plain `*` or
//!   `?` is unrestricted; `*/2` is not. With a `+` before the day of week, both must match. `L`, `15W`, `TUE#2` and
//!   `FRIL` are supported.
//! - **Splay** delays the start by an amount that differs for each pool and start. It never moves the end.
//! - Windows that overlap or adjoin form a single opening.
//! - An **exclusion** closes every window from its start (inclusive) to its end (exclusive).

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

/// How far ahead [`Schedule::at`] looks for the end of an opening. If the opening lasts longer, `at` returns an earlier
/// instant that is at least this far away.
const HORIZON: SignedDuration = SignedDuration::from_hours(168);

/// Limits of [`Schedule::longest`], in time and in openings.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_hours(400 * 24);
const MAX_OPENINGS: usize = 1_000;

/// Whether reboots may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// Reboots may start.
    Open {
        /// First instant when reboots may no longer start. `None` if the schedule has neither windows nor later
        /// exclusions: the opening never ends, and a node need not check its clock. For an opening longer than a week,
        /// this may be an earlier instant that is at least a week away.
        until: Option<Timestamp>,
    },
    /// Reboots may not start.
    Closed {
        /// Time when reboots may start again; `None` if they may never start again.
        next: Option<Timestamp>,
        /// Why reboots may not start now.
        why: ClosedCause,
    },
}

/// Why a [`Schedule`] is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedCause {
    /// No window is open.
    Outside,
    /// An exclusion applies, inside or outside a window.
    Excluded,
}

/// The validated windows and exclusions of a pool. The default has neither and is always open.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    windows: Vec<Window>,
    /// Pairs of start (inclusive) and end (exclusive), sorted, without overlaps or adjoining pairs.
    exclusions: Vec<(Timestamp, Timestamp)>,
}

impl Schedule {
    /// Validates windows and exclusions, and prepares them for [`Self::at`]. An exclusion is a pair of start
    /// (inclusive) and end (exclusive). Parsing takes about 0.1 ms per window, so keep the result while the inputs stay
    /// the same. The error names the position of the first invalid window or exclusion, and the text to write instead.
    pub fn parse(specs: &[WindowSpec<'_>], exclusions: &[(Timestamp, Timestamp)]) -> Result<Self, WindowError> {
        let windows = specs
            .iter()
            .enumerate()
            .map(|(index, spec)| Window::parse(spec).map_err(|why| WindowError(format!("windows[{index}] {why}"))))
            .collect::<Result<_, _>>()?;
        for (index, &(from, to)) in exclusions.iter().enumerate() {
            if to <= from {
                return Err(WindowError(format!(
                    "exclusions[{index}] ends at {to}, which is not after its start {from}; write a later time as exclusions[{index}].to"
                )));
            }
        }
        Ok(Self {
            windows,
            exclusions: merged(exclusions),
        })
    }

    /// Returns whether reboots may start at `now`, and the time of the next change. `salt` is the pool's name, which
    /// determines the splay.
    ///
    /// Takes a few microseconds. The worst case takes some tenths of a millisecond: a window of one minute in every
    /// minute, on a day with a clock change. Starts of more than a week ago are ignored, because no window lasts
    /// longer.
    pub fn at(&self, now: Timestamp, salt: &str) -> Opening {
        if let Some((_, end)) = self.exclusion_at(now) {
            return Opening::Closed {
                next: self.next_open(end, salt),
                why: ClosedCause::Excluded,
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
                why: ClosedCause::Outside,
            },
        }
    }

    /// Returns the length of the longest opening from `now` on, within 400 days and the next 1,000 openings. Used for a
    /// message about openings that are too short. `None` if an opening lasts a week or longer, or never ends; zero if
    /// there is no opening.
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

    /// Openings from `now` on, limited by [`LOOK_AHEAD`] and [`MAX_OPENINGS`].
    fn openings(&self, now: Timestamp, salt: &str) -> impl Iterator<Item = (Timestamp, Option<Timestamp>)> {
        let limit = now.saturating_add(LOOK_AHEAD).unwrap_or(Timestamp::MAX);
        // The first opening counts even beyond the limits: a window may open only on leap days.
        std::iter::successors(self.opening_from(now, salt), move |&(_, until)| {
            let opening = self.opening_from(until?, salt)?;
            (opening.0 <= limit).then_some(opening)
        })
        .take(MAX_OPENINGS)
    }

    /// Returns the start and end of the first opening from `t` on. If the opening began before `t`, its start is given
    /// as `t`.
    fn opening_from(&self, t: Timestamp, salt: &str) -> Option<(Timestamp, Option<Timestamp>)> {
        match self.at(t, salt) {
            Opening::Open { until } => Some((t, until)),
            Opening::Closed { next, .. } => {
                let next = next?;
                match self.at(next, salt) {
                    Opening::Open { until } => Some((next, until)),
                    Opening::Closed { .. } => None,
                }
            }
        }
    }

    /// Returns the end of the opening at `now`, as if there were no exclusions; `None` if no window is open. Stops
    /// merging windows when the end reaches `cut` or [`HORIZON`].
    fn union_end(&self, now: Timestamp, cut: Option<Timestamp>, salt: &str) -> Option<Timestamp> {
        let horizon = now.saturating_add(HORIZON).unwrap_or(Timestamp::MAX);
        let far_enough = cut.map_or(horizon, |cut| cut.min(horizon));
        let mut end = self.last_end(now, salt)?;
        while end < far_enough {
            match self.last_end(end, salt) {
                Some(further) if further > end => end = further,
                _ => break,
            }
        }
        Some(end)
    }

    /// Latest end of the windows that are open at `t`.
    fn last_end(&self, t: Timestamp, salt: &str) -> Option<Timestamp> {
        self.windows.iter().filter_map(|w| w.open_until(t, salt)).max()
    }

    /// Returns the first open instant at or after `from`. Each iteration passes an exclusion, so the loop ends.
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

/// Sorts spans and merges those that overlap or adjoin.
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
