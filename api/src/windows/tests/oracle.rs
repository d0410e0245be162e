//! Compares [`Schedule::at`] with an oracle that steps through the minutes. The oracle uses only the time on the wall
//! clock, and has no rules for cron, gaps or folds.

use jiff::SignedDuration;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::windows::window::share;

const MINUTE: SignedDuration = SignedDuration::from_mins(1);
/// Extra time before the first relevant start. The oracle begins its steps at this earlier time, so that it notices
/// when the clock repeats a time.
const WARM_UP: SignedDuration = SignedDuration::from_hours(3);
const AHEAD: SignedDuration = SignedDuration::from_hours(48);

/// A window with a set of numbers for each field of its schedule. An empty set means `*`.
#[derive(Debug, Clone)]
struct Fields {
    minutes: Vec<i8>,
    hours: Vec<i8>,
    days: Vec<i8>,
    weekdays: Vec<i8>,
    duration: i64,
    splay: i64,
    zone: &'static str,
}

/// Formats the values as a field of a schedule.
fn list(values: &[i8]) -> String {
    match values {
        [] => "*".to_owned(),
        _ => values.iter().map(i8::to_string).collect::<Vec<_>>().join(","),
    }
}

/// True if the field allows the value.
fn has(values: &[i8], value: i8) -> bool {
    values.is_empty() || values.contains(&value)
}

impl Fields {
    fn text(&self) -> String {
        format!(
            "{} {} {} * {}",
            list(&self.minutes),
            list(&self.hours),
            list(&self.days),
            list(&self.weekdays)
        )
    }

    fn matches(&self, civil: jiff::civil::DateTime) -> bool {
        let (day, weekday) = (civil.day(), civil.weekday().to_sunday_zero_offset());
        let by_day = if self.days.is_empty() || self.weekdays.is_empty() {
            has(&self.days, day) && has(&self.weekdays, weekday)
        } else {
            self.days.contains(&day) || self.weekdays.contains(&weekday)
        };
        has(&self.minutes, civil.minute()) && has(&self.hours, civil.hour()) && by_day
    }

    /// Returns the open times of the window for all starts in a span. Checks each minute of the span.
    fn intervals(&self, from: Timestamp, to: Timestamp) -> Vec<(Timestamp, Timestamp)> {
        let zone: TimeZone = TimeZoneDatabase::bundled().get(self.zone).unwrap();
        let mut intervals = Vec::new();
        let mut t = from - SignedDuration::from_secs(from.as_second().rem_euclid(60));
        // Latest time that the wall clock has shown. An earlier or equal time is a repetition.
        let mut latest = zone.to_datetime(t - MINUTE);
        while t <= to {
            let shown = zone.to_datetime(t);
            let mut starts = false;
            while latest < shown {
                latest += MINUTE;
                starts |= self.matches(latest);
            }
            if starts {
                let delay = if self.splay == 0 { 0 } else { share(SALT, t, self.splay) };
                intervals.push((
                    t + SignedDuration::from_secs(delay),
                    t + SignedDuration::from_secs(self.duration),
                ));
            }
            t += MINUTE;
        }
        intervals
    }
}

fn fields() -> impl Strategy<Value = Fields> {
    // Hours with clock changes are more frequent than others.
    let hours = prop_oneof![
        btree_set(0_i8..4, 0..4),
        btree_set(0_i8..24, 1..3),
        btree_set(0_i8..24, 0..1)
    ];
    let minutes = prop_oneof![
        btree_set(0_i8..60, 1..3),
        Just([0, 15, 30, 45].into()),
        btree_set(0_i8..60, 0..1)
    ];
    let days = prop_oneof![3 => btree_set(1_i8..32, 0..1), 1 => btree_set(1_i8..29, 1..4)];
    let weekdays = prop_oneof![1 => btree_set(0_i8..7, 0..1), 1 => btree_set(0_i8..7, 1..4)];
    let duration = prop_oneof![4 => 1_i64..180, 2 => 180_i64..2_000, 1 => 2_000_i64..=10_080];
    let zones = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kathmandu",
        "Africa/Casablanca",
    ];
    let zone = proptest::sample::select(zones.to_vec());
    (
        minutes,
        hours,
        days,
        weekdays,
        duration,
        prop_oneof![2 => Just(0), 1 => 0_i64..100],
        zone,
    )
        .prop_map(|(minutes, hours, days, weekdays, duration, splay, zone)| Fields {
            minutes: minutes.into_iter().collect(),
            hours: hours.into_iter().collect(),
            days: days.into_iter().collect(),
            weekdays: weekdays.into_iter().collect(),
            duration: duration * 60,
            splay: duration * 60 * splay / 100,
            zone,
        })
}

/// Instants near the clock changes of the zones above, and arbitrary ones.
fn instants() -> impl Strategy<Value = Timestamp> {
    let changes = [
        "2026-03-29T01:00:00Z",
        "2026-10-25T01:00:00Z",
        "2026-03-08T07:00:00Z",
        "2026-11-01T06:00:00Z",
        "2026-04-04T15:00:00Z",
        "2026-10-03T15:30:00Z",
        "2026-02-15T02:00:00Z",
        "2026-03-22T02:00:00Z",
        "2045-03-26T01:00:00Z",
        "2028-02-29T00:00:00Z",
    ];
    let near = (proptest::sample::select(changes.to_vec()), -10_000_i64..10_000)
        .prop_map(|(change, seconds)| ts(change) + SignedDuration::from_secs(seconds));
    prop_oneof![2 => near, 1 => (1_700_000_000_i64..2_600_000_000).prop_map(|s| Timestamp::from_second(s).unwrap())]
}

struct Oracle {
    intervals: Vec<(Timestamp, Timestamp)>,
    exclusions: Vec<(Timestamp, Timestamp)>,
}

impl Oracle {
    fn is_excluded(&self, t: Timestamp) -> bool {
        self.exclusions.iter().any(|&(from, to)| from <= t && t < to)
    }

    fn is_open(&self, t: Timestamp) -> bool {
        !self.is_excluded(t) && self.intervals.iter().any(|&(from, to)| from <= t && t < to)
    }

    /// Returns the first instant after `now` when the schedule is open (if `open` is true) or closed (if it is false).
    fn turns(&self, now: Timestamp, open: bool) -> Option<Timestamp> {
        let edges = self
            .intervals
            .iter()
            .chain(&self.exclusions)
            .flat_map(|&(from, to)| [from, to]);
        let mut later: Vec<_> = edges.filter(|&t| t > now).collect();
        later.sort_unstable();
        later.dedup();
        later.into_iter().find(|&t| self.is_open(t) == open)
    }
}

fn compare(windows: &[Fields], spans: &[(i64, i64)], now: Timestamp) -> Result<(), TestCaseError> {
    let longest = SignedDuration::from_secs(windows.iter().map(|w| w.duration).max().unwrap());
    let (from, to) = (now - longest - WARM_UP, now + AHEAD);
    let minutes = SignedDuration::from_mins;
    let exclusions: Vec<_> = spans
        .iter()
        .map(|&(start, length)| (now + minutes(start), now + minutes(start + length)))
        .collect();
    let oracle = Oracle {
        intervals: windows.iter().flat_map(|w| w.intervals(from, to)).collect(),
        exclusions: exclusions.clone(),
    };
    let texts: Vec<_> = windows.iter().map(Fields::text).collect();
    let specs: Vec<_> = windows
        .iter()
        .zip(&texts)
        .map(|(w, schedule)| WindowSpec {
            schedule,
            duration: Duration::from_secs(w.duration.unsigned_abs()),
            time_zone: w.zone,
            splay: Duration::from_secs(w.splay.unsigned_abs()),
        })
        .collect();
    let said = Schedule::parse(&specs, &exclusions).unwrap().at(now, SALT);
    let (is_open, turn) = match said {
        Opening::Open { until } => (true, until),
        Opening::Closed { next, why } => {
            prop_assert_eq!(why == ClosedCause::Excluded, oracle.is_excluded(now));
            (false, next)
        }
    };
    prop_assert_eq!(is_open, oracle.is_open(now), "{:?}", said);
    // After `to`, the oracle has only some of the starts.
    match oracle.turns(now, !is_open).filter(|&turn| turn <= to) {
        Some(expected) => prop_assert_eq!(turn, Some(expected)),
        None => prop_assert!(turn.is_none_or(|turn| turn > to), "{:?} is too early", said),
    }
    Ok(())
}

proptest! {
    // Stepping is slow: run a quarter of the usual number of cases.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn agrees_with_a_walk_through_the_minutes(
        windows in vec(fields(), 1..4),
        spans in vec((-1_000_i64..2_000, 1_i64..600), 0..4),
        now in instants(),
    ) {
        compare(&windows, &spans, now)?;
    }
}
