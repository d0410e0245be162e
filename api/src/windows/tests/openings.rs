//! Openings of windows, case by case, with expected values calculated by hand.

use super::*;

#[track_caller]
fn check(schedule: &Schedule, cases: &[(&str, Opening)]) {
    for (now, expected) in cases {
        assert_eq!(schedule.at(ts(now), SALT), *expected, "at {now}");
    }
}

#[test]
fn without_windows_it_is_always_open() {
    check(
        &Schedule::default(),
        &[("2026-03-01T00:00:00Z", Opening::Open { until: None })],
    );
    let freeze = schedule(&[], &[("2026-12-20T00:00:00Z", "2027-01-04T00:00:00Z")]);
    check(
        &freeze,
        &[
            ("2026-12-01T00:00:00Z", open("2026-12-20T00:00:00Z")),
            ("2026-12-20T00:00:00Z", excluded("2027-01-04T00:00:00Z")),
            ("2027-01-03T23:59:59Z", excluded("2027-01-04T00:00:00Z")),
            ("2027-01-04T00:00:00Z", Opening::Open { until: None }),
        ],
    );
}

#[test]
fn a_window_over_midnight_belongs_to_its_first_day() {
    // Friday 22:00 to Saturday 06:00 in Kathmandu, which is 5:45 ahead.
    check(
        &schedule(&[("0 22 * * FRI", "8h", "Asia/Kathmandu")], &[]),
        &[
            ("2026-03-06T16:14:59Z", outside("2026-03-06T16:15:00Z")),
            ("2026-03-06T16:15:00Z", open("2026-03-07T00:15:00Z")),
            ("2026-03-07T00:14:59.999Z", open("2026-03-07T00:15:00Z")),
            ("2026-03-07T00:15:00Z", outside("2026-03-13T16:15:00Z")),
            // Friday 00:15 is before the window; the window of Thursday does not exist.
            ("2026-03-05T18:30:00Z", outside("2026-03-06T16:15:00Z")),
        ],
    );
}

#[test]
fn a_window_of_days_and_one_of_a_week() {
    check(
        &schedule(&[("0 20 * * FRI", "58h", "UTC")], &[]),
        &[
            ("2026-03-08T12:00:00Z", open("2026-03-09T06:00:00Z")),
            ("2026-03-09T06:00:00Z", outside("2026-03-13T20:00:00Z")),
        ],
    );
    check(
        &schedule(&[("0 0 1 * *", "168h", "UTC")], &[]),
        &[
            ("2026-03-07T23:59:59Z", open("2026-03-08T00:00:00Z")),
            ("2026-03-08T00:00:00Z", outside("2026-04-01T00:00:00Z")),
        ],
    );
}

#[test]
fn berlin_start_in_the_gap_opens_after_it() {
    // 2026-03-29: 02:00+01 becomes 03:00+02, at 01:00Z.
    check(
        &schedule(&[("30 2 * * *", "2h", "Europe/Berlin")], &[]),
        &[
            ("2026-03-28T01:30:00Z", open("2026-03-28T03:30:00Z")),
            ("2026-03-29T00:59:59Z", outside("2026-03-29T01:00:00Z")),
            ("2026-03-29T01:00:00Z", open("2026-03-29T03:00:00Z")),
            ("2026-03-29T03:00:00Z", outside("2026-03-30T00:30:00Z")),
        ],
    );
    // A start before the gap. Three elapsed hours end at 05:00 by the wall clock, not at 04:00.
    check(
        &schedule(&[("0 1 * * *", "3h", "Europe/Berlin")], &[]),
        &[("2026-03-29T00:30:00Z", open("2026-03-29T03:00:00Z"))],
    );
}

#[test]
fn berlin_start_in_the_fold_opens_once() {
    // 2026-10-25: 03:00+02 becomes 02:00+01, at 01:00Z.
    check(
        &schedule(&[("30 2 * * *", "20m", "Europe/Berlin")], &[]),
        &[
            ("2026-10-25T00:29:59Z", outside("2026-10-25T00:30:00Z")),
            ("2026-10-25T00:30:00Z", open("2026-10-25T00:50:00Z")),
            // The second 02:30.
            ("2026-10-25T01:30:00Z", outside("2026-10-26T01:30:00Z")),
        ],
    );
    // The wall clock shows 02:10 for the second time, and the window that began at the first 02:50 is still open.
    check(
        &schedule(&[("50 2 * * *", "1h", "Europe/Berlin")], &[]),
        &[("2026-10-25T01:10:00Z", open("2026-10-25T01:50:00Z"))],
    );
    // Three elapsed hours from 01:00+02 end at 03:00+01.
    check(
        &schedule(&[("0 1 * * *", "3h", "Europe/Berlin")], &[]),
        &[("2026-10-25T00:00:00Z", open("2026-10-25T02:00:00Z"))],
    );
}

#[test]
fn new_york_both_ways() {
    // 2026-03-08: 02:00-05 becomes 03:00-04, at 07:00Z. 2026-11-01: 02:00-04 becomes 01:00-05, at 06:00Z.
    check(
        &schedule(&[("15 2 * * SUN", "1h", "America/New_York")], &[]),
        &[
            ("2026-03-08T06:59:59Z", outside("2026-03-08T07:00:00Z")),
            ("2026-03-08T07:00:00Z", open("2026-03-08T08:00:00Z")),
            ("2026-03-08T08:00:00Z", outside("2026-03-15T06:15:00Z")),
        ],
    );
    check(
        &schedule(&[("15 1 * * SUN", "1h", "America/New_York")], &[]),
        &[
            ("2026-11-01T05:15:00Z", open("2026-11-01T06:15:00Z")),
            ("2026-11-01T06:15:00Z", outside("2026-11-08T06:15:00Z")),
        ],
    );
}

#[test]
fn lord_howe_changes_by_half_an_hour() {
    // 2026-04-05: 02:00+11 becomes 01:30+10:30, at 15:00Z the day before. 2026-10-04: 02:00+10:30 becomes 02:30+11,
    // at 15:30Z the day before.
    check(
        &schedule(&[("45 1 * * *", "10m", "Australia/Lord_Howe")], &[]),
        &[
            ("2026-04-04T14:45:00Z", open("2026-04-04T14:55:00Z")),
            ("2026-04-04T15:15:00Z", outside("2026-04-05T15:15:00Z")),
        ],
    );
    check(
        &schedule(&[("15 2 * * *", "10m", "Australia/Lord_Howe")], &[]),
        &[
            ("2026-10-03T15:29:59Z", outside("2026-10-03T15:30:00Z")),
            ("2026-10-03T15:30:00Z", open("2026-10-03T15:40:00Z")),
            ("2026-10-03T15:40:00Z", outside("2026-10-04T15:15:00Z")),
        ],
    );
}

#[test]
fn a_day_that_a_zone_skips_is_a_gap() {
    // Apia went from 29 to 31 December 2011, at 10:00Z on the 30th.
    check(
        &schedule(&[("0 12 * * FRI", "1h", "Pacific/Apia")], &[]),
        &[
            ("2011-12-30T09:59:59Z", outside("2011-12-30T10:00:00Z")),
            ("2011-12-30T10:30:00Z", open("2011-12-30T11:00:00Z")),
        ],
    );
}

#[test]
fn overlapping_and_adjoining_windows_are_one_opening() {
    let rows = [
        ("0 22 * * *", "2h", "Europe/Berlin"),
        // Adjoins: 00:00 to 01:00 in Berlin.
        ("0 23 * * *", "1h", "UTC"),
        // Overlaps: 00:30 to 02:30 in Berlin.
        ("30 0 * * *", "2h", "Europe/Berlin"),
        // Separate from the others.
        ("0 12 * * SAT", "1h", "Europe/Berlin"),
    ];
    check(
        &schedule(&rows, &[]),
        &[
            ("2026-01-08T21:00:00Z", open("2026-01-09T01:30:00Z")),
            ("2026-01-08T23:59:00Z", open("2026-01-09T01:30:00Z")),
            ("2026-01-09T01:30:00Z", outside("2026-01-09T21:00:00Z")),
            ("2026-01-10T02:00:00Z", outside("2026-01-10T11:00:00Z")),
        ],
    );
}

#[test]
fn an_exclusion_cuts_a_window_in_two() {
    let windows = [("0 0 * * *", "6h", "UTC")];
    let exclusions = [
        ("2026-06-10T03:00:00Z", "2026-06-10T04:00:00Z"),
        ("2026-06-10T02:00:00Z", "2026-06-10T03:00:00Z"),
        // From the middle of one window to the middle of the next; and a whole window.
        ("2026-06-11T05:00:00Z", "2026-06-12T05:00:00Z"),
        ("2026-06-13T00:00:00Z", "2026-06-13T06:00:00Z"),
    ];
    check(
        &schedule(&windows, &exclusions),
        &[
            ("2026-06-10T01:00:00Z", open("2026-06-10T02:00:00Z")),
            ("2026-06-10T02:00:00Z", excluded("2026-06-10T04:00:00Z")),
            ("2026-06-10T03:00:00Z", excluded("2026-06-10T04:00:00Z")),
            ("2026-06-10T04:00:00Z", open("2026-06-10T06:00:00Z")),
            ("2026-06-11T04:00:00Z", open("2026-06-11T05:00:00Z")),
            ("2026-06-11T12:00:00Z", excluded("2026-06-12T05:00:00Z")),
            ("2026-06-12T12:00:00Z", outside("2026-06-14T00:00:00Z")),
            ("2026-06-13T05:59:59Z", excluded("2026-06-14T00:00:00Z")),
        ],
    );
    let for_ever = schedule(&windows, &[("2026-06-10T00:00:00Z", "9999-12-30T22:00:00Z")]);
    let never = Opening::Closed {
        next: None,
        why: ClosedCause::Excluded,
    };
    check(&for_ever, &[("2026-06-20T01:00:00Z", never)]);
    assert_eq!(for_ever.longest(ts("2026-06-20T01:00:00Z"), SALT), Some(Duration::ZERO));
}

#[test]
fn leap_days_come_even_across_a_century() {
    check(
        &schedule(&[("0 0 29 2 *", "1h", "UTC")], &[]),
        &[
            ("2026-01-01T00:00:00Z", outside("2028-02-29T00:00:00Z")),
            ("2096-03-01T00:00:00Z", outside("2104-02-29T00:00:00Z")),
        ],
    );
    check(
        &schedule(&[("0 0 29 2 +MON", "1h", "UTC")], &[]),
        &[("2072-03-01T00:00:00Z", outside("2112-02-29T00:00:00Z"))],
    );
}

#[test]
fn day_of_month_and_day_of_week_are_alternatives() {
    // July 2026 starts on a Wednesday.
    for (text, now, next) in [
        ("0 0 13 * FRI", "2026-07-01T12:00:00Z", "2026-07-03T00:00:00Z"),
        ("0 0 13 * FRI", "2026-07-10T12:00:00Z", "2026-07-13T00:00:00Z"),
        ("0 0 13 * +FRI", "2026-07-01T12:00:00Z", "2026-11-13T00:00:00Z"),
        ("0 0 * * 7", "2026-07-01T12:00:00Z", "2026-07-05T00:00:00Z"),
        ("0 0 ? * FRI-SUN", "2026-07-01T12:00:00Z", "2026-07-03T00:00:00Z"),
        ("0 0 * * tue#2", "2026-07-01T12:00:00Z", "2026-07-14T00:00:00Z"),
        ("0 0 * * FRIL", "2026-07-01T12:00:00Z", "2026-07-31T00:00:00Z"),
        ("0 0 L * *", "2026-07-01T12:00:00Z", "2026-07-31T00:00:00Z"),
        ("0 0 1 jan,OCT-nov *", "2026-07-01T12:00:00Z", "2026-10-01T00:00:00Z"),
    ] {
        let found = schedule(&[(text, "1h", "UTC")], &[]).at(ts(now), SALT);
        assert_eq!(found, outside(next), "{text}");
    }
}

#[test]
fn an_opening_without_end_is_followed_for_a_week() {
    let now = ts("2026-10-20T10:17:31Z");
    for row in [
        ("* * * * *", "168h", "UTC"),
        ("*/5 * * * *", "5m", "UTC"),
        ("0 0 * * *", "24h", "Asia/Tokyo"),
    ] {
        let schedule = schedule(&[row], &[]);
        let Opening::Open { until: Some(until) } = schedule.at(now, SALT) else {
            panic!("{row:?} is closed")
        };
        let length = until.duration_since(now).as_hours();
        assert!((168..=337).contains(&length), "{row:?}: {length} h");
        assert_eq!(schedule.longest(now, SALT), None);
    }
    // In Berlin the repeated hour of that week has no starts.
    check(
        &schedule(&[("*/5 * * * *", "5m", "Europe/Berlin")], &[]),
        &[
            ("2026-10-20T10:17:31Z", open("2026-10-25T01:00:00Z")),
            ("2026-10-25T01:00:00Z", outside("2026-10-25T02:00:00Z")),
        ],
    );
}

fn next_start(schedule: &Schedule, salt: &str, now: Timestamp) -> Timestamp {
    match schedule.at(now, salt) {
        Opening::Closed {
            next: Some(next),
            why: ClosedCause::Outside,
        } => next,
        other => panic!("{other:?}"),
    }
}

#[test]
fn splay_delays_only_the_start() {
    let hour = WindowSpec {
        splay: Duration::from_secs(3600),
        ..spec(("0 22 * * *", "4h", "UTC"))
    };
    let schedule = Schedule::parse(&[hour], &[]).unwrap();
    let (before, start, end) = (
        ts("2026-05-05T12:00:00Z"),
        ts("2026-05-05T22:00:00Z"),
        ts("2026-05-06T02:00:00Z"),
    );
    let mut by_quarter = [0_u32; 4];
    for pool in 0..400 {
        let salt = format!("pool-{pool}");
        let at = next_start(&schedule, &salt, before);
        let delay = at.duration_since(start).as_secs();
        assert!((0..=3600).contains(&delay), "{delay}");
        by_quarter[usize::try_from(delay / 901).unwrap()] += 1;
        if at > start {
            assert_eq!(next_start(&schedule, &salt, start), at, "the same while it is awaited");
        }
        assert_eq!(schedule.at(at, &salt), Opening::Open { until: Some(end) });
    }
    assert!(by_quarter.iter().all(|&pools| pools > 60), "{by_quarter:?}");
    // Fixed values: programs of different versions must agree.
    assert_eq!(next_start(&schedule, "workers", before), ts("2026-05-05T22:32:00Z"));
    assert_eq!(
        next_start(&schedule, "workers", ts("2026-05-06T12:00:00Z")),
        ts("2026-05-06T22:12:44Z")
    );
}

#[test]
fn the_longest_opening_merges_windows_between_exclusions() {
    let rows = [("0 22 * * *", "2h", "UTC"), ("0 0 * * SAT", "2h", "UTC")];
    let cut = schedule(&rows, &[("2026-01-10T00:30:00Z", "2026-01-10T01:00:00Z")]);
    let now = ts("2026-01-05T22:30:00Z");
    // The exclusion cuts the opening of the first Friday; the second is whole.
    assert_eq!(cut.longest(now, SALT), Some(Duration::from_secs(4 * 3600)));
    let closed = schedule(&rows, &[("2026-01-10T00:30:00Z", "2030-01-10T01:00:00Z")]);
    assert_eq!(closed.longest(now, SALT), Some(Duration::from_secs(9000)));
}
