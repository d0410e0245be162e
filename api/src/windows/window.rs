//! A window: its starts as instants, and its open times.

use std::time::Duration;

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Span, Timestamp};

use super::cron::Cron;
use super::error::{shortened, text};
use super::spec::{MAX_DURATION, MIN_DURATION, WindowSpec};

/// Number of years until each kind of year occurs again: usually 28. Up to 40 if a century year without a leap day,
/// such as 2100, lies between.
const RAREST_YEARS: i64 = 41;

/// A validated window.
#[derive(Debug, Clone)]
pub(super) struct Window {
    cron: Cron,
    /// For each start in `cron.minutes`: position of the last start in the same chain, as returned by [`run_ends`]. Not
    /// valid on days when the clocks change.
    run_ends: Vec<usize>,
    zone: TimeZone,
    duration: SignedDuration,
    splay: SignedDuration,
}

/// A start of a window, before splay.
#[derive(Debug, Clone, Copy)]
struct Start {
    at: Timestamp,
    day: Date,
    /// Position in `cron.minutes`.
    position: usize,
}

impl Window {
    pub(super) fn parse(spec: &WindowSpec<'_>) -> Result<Self, String> {
        let shown = shortened(spec.schedule);
        let cron = Cron::parse(spec.schedule)?;
        let WindowSpec { duration, splay, .. } = *spec;
        if !(MIN_DURATION..=MAX_DURATION).contains(&duration) {
            let duration = text(duration);
            return Err(format!("{shown:?} has a duration of {duration}; write 1m to 168h"));
        }
        if splay >= duration {
            return Err(format!(
                "{shown:?} has a splay of {}, which must be shorter than its duration of {}; write a shorter splay",
                text(splay),
                text(duration)
            ));
        }
        let zone = TimeZoneDatabase::bundled().get(spec.time_zone).map_err(|_| {
            format!(
                "{shown:?} has the unknown time zone {:?}; write an IANA name, such as Europe/Berlin or UTC",
                shortened(spec.time_zone)
            )
        })?;
        let (duration, splay) = (signed(duration), signed(splay));
        Ok(Self {
            run_ends: run_ends(&cron.minutes, duration),
            cron,
            zone,
            duration,
            splay,
        })
    }

    /// Returns the end of the opening at `t`, or an earlier instant; `None` if the window is closed at `t`. The window
    /// may still be open at the returned instant, so the caller must ask again with that instant.
    pub(super) fn open_until(&self, t: Timestamp, salt: &str) -> Option<Timestamp> {
        let start = self.starts_until(t).find(|start| self.opens(start.at, salt) <= t)?;
        Some(add(self.last_of_run(&start), self.duration))
    }

    /// Returns the next opening of the window after `t`, delayed by the splay.
    pub(super) fn next_opening(&self, t: Timestamp, salt: &str) -> Option<Timestamp> {
        let may_be_delayed = self.starts_until(t).take_while(|start| add(start.at, self.splay) > t);
        let openings = may_be_delayed.map(|start| self.opens(start.at, salt));
        let mut next = openings.filter(|&opens| opens > t).min();
        for start in self.starts_after(t) {
            if next.is_some_and(|next| next <= start.at) {
                break;
            }
            let opens = self.opens(start.at, salt);
            next = Some(next.map_or(opens, |next| next.min(opens)));
        }
        next
    }

    /// Starts at or before `t` whose windows are still open at `t`, regardless of the splay; latest first.
    fn starts_until(&self, t: Timestamp) -> impl Iterator<Item = Start> {
        let latest = self.latest_civil(t);
        let oldest = t.saturating_sub(self.duration).unwrap_or(Timestamp::MIN);
        // Begin one day earlier, because the wall clock may have changed since then.
        let first_day = self.zone.to_datetime(oldest).date().saturating_sub(Span::new().days(1));
        let days = std::iter::successors(Some(latest.date()), |day| day.yesterday().ok())
            .take_while(move |&day| day >= first_day)
            .filter(|&day| self.cron.matches(day));
        let starts = days.flat_map(move |day| {
            let known = if day == latest.date() {
                self.cron
                    .minutes
                    .partition_point(|&minute| minute <= minute_of_day(latest))
            } else {
                self.cron.minutes.len()
            };
            (0..known).rev().filter_map(move |position| self.start(day, position))
        });
        starts
            .skip_while(move |start| start.at > t)
            .take_while(move |start| start.at > oldest)
    }

    /// Starts after `t`, earliest first.
    fn starts_after(&self, t: Timestamp) -> impl Iterator<Item = Start> {
        let civil = self.zone.to_datetime(t);
        let last_day = civil.date().saturating_add(Span::new().years(RAREST_YEARS));
        let first = self.cron.day_from(civil.date(), last_day);
        std::iter::successors(first, move |day| self.cron.day_from(day.tomorrow().ok()?, last_day))
            .flat_map(move |day| {
                let past = if day == civil.date() {
                    self.cron
                        .minutes
                        .partition_point(|&minute| minute < minute_of_day(civil))
                } else {
                    0
                };
                (past..self.cron.minutes.len()).filter_map(move |position| self.start(day, position))
            })
            .skip_while(move |start| start.at <= t)
    }

    /// Returns the latest time that the wall clock has shown up to `t`; the result may be slightly too late. In a
    /// repeated hour, the clock has already shown later times than the time at `t`.
    fn latest_civil(&self, t: Timestamp) -> DateTime {
        let civil = self.zone.to_datetime(t);
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Fold { before, .. } => civil.max(before.to_datetime(t)),
            _ => civil,
        }
    }

    fn start(&self, day: Date, position: usize) -> Option<Start> {
        let minute = i64::from(*self.cron.minutes.get(position)?);
        let time = Time::midnight().checked_add(SignedDuration::from_mins(minute)).ok()?;
        Some(Start {
            at: self.instant(day.to_datetime(time))?,
            day,
            position,
        })
    }

    /// Returns the first instant when the wall clock shows this time. If the clock skips this time, returns the first
    /// instant after the skipped times.
    fn instant(&self, civil: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(civil);
        match ambiguous.offset() {
            AmbiguousOffset::Gap { after, .. } => {
                // With the offset after the change, a skipped time maps to an instant before the change.
                let before_change = after.to_timestamp(civil).ok()?;
                self.zone
                    .following(before_change)
                    .next()
                    .map(|change| change.timestamp())
            }
            _ => ambiguous.earlier().ok(),
        }
    }

    /// Returns the last start, on the same day, in the chain of windows that begins at `start`. Each window of a chain
    /// starts no later than the end of the previous window, so the chain is open without a gap.
    fn last_of_run(&self, start: &Start) -> Timestamp {
        // With splay, each start has its own delay.
        let last = self
            .run_ends
            .get(start.position)
            .filter(|&&last| last > start.position && self.splay.is_zero());
        let Some(last) = last.and_then(|&last| self.start(start.day, last)) else {
            return start.at;
        };
        let change = self.zone.following(start.at).next();
        if change.is_some_and(|change| change.timestamp() <= last.at) {
            start.at
        } else {
            last.at
        }
    }

    /// Returns the instant when the window opens for a start: the start plus its delay by the splay.
    fn opens(&self, start: Timestamp, salt: &str) -> Timestamp {
        if self.splay.is_zero() {
            return start;
        }
        add(
            start,
            SignedDuration::from_secs(share(salt, start, self.splay.as_secs())),
        )
    }
}

/// Returns the delay of a start in seconds: from 0 to `whole`, evenly distributed. Every program and version returns
/// the same delay for the same salt and start.
pub(super) fn share(salt: &str, start: Timestamp, whole: i64) -> i64 {
    // FNV-1a, mixed before it is scaled: its upper bits alone hardly differ between similar texts.
    let seconds = start.as_second().to_be_bytes();
    let hash = salt
        .bytes()
        .chain(seconds)
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    let mixed = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = mixed ^ (mixed >> 33);
    let choices = u128::from(whole.unsigned_abs()) + 1;
    i64::try_from((u128::from(mixed) * choices) >> 64).unwrap_or(whole)
}

/// Returns, for each minute, the position of the last minute in its chain. In a chain, each minute is at most
/// `duration` after the previous minute, so the windows that start at these minutes leave no gap.
fn run_ends(minutes: &[u16], duration: SignedDuration) -> Vec<usize> {
    let mut ends: Vec<usize> = (0..minutes.len()).collect();
    for (position, pair) in minutes.windows(2).enumerate().rev() {
        let [this, next] = pair else { continue };
        if SignedDuration::from_mins(i64::from(next - this)) <= duration {
            let end = ends.get(position + 1).copied().unwrap_or(position);
            if let Some(slot) = ends.get_mut(position) {
                *slot = end;
            }
        }
    }
    ends
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::ZERO)
}

fn minute_of_day(civil: DateTime) -> u16 {
    u16::from(civil.hour().unsigned_abs()) * 60 + u16::from(civil.minute().unsigned_abs())
}

fn add(t: Timestamp, duration: SignedDuration) -> Timestamp {
    t.saturating_add(duration).unwrap_or(Timestamp::MAX)
}
