//! Windows that are refused, and the error messages.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn message(rows: &[Row<'_>]) -> String {
    parsed(rows, &[]).unwrap_err().to_string()
}

fn of(schedule: &str) -> String {
    message(&[(schedule, "1h", "UTC")])
}

#[test]
fn the_error_of_a_field_count_names_the_remedy() {
    assert_eq!(
        of(" "),
        "windows[0] has an empty schedule; write five fields (minute, hour, day of month, month, day of week), such as \
         \"0 22 * * FRI\""
    );
    assert_eq!(
        of("0 0 22 * * FRI"),
        "windows[0] \"0 0 22 * * FRI\" has 6 fields; write five (minute, hour, day of month, month, day of week), \
         without seconds or years, and the time zone in timeZone"
    );
    assert!(of("0 22 * *").contains("has 4 fields"));
    assert!(of("CRON_TZ=Europe/Berlin 0 22 * * *").contains("the time zone in timeZone"));
    assert_eq!(
        of("@weekly"),
        "windows[0] \"@weekly\" is a nickname; write it as five fields, such as \"0 0 * * SUN\""
    );
    for nickname in ["@yearly", "@monthly", "@hourly", "@reboot", "@every 5m"] {
        assert!(of(nickname).contains("is a nickname"), "{nickname}");
    }
}

#[test]
fn an_invalid_field_is_named() {
    assert_eq!(
        message(&[("0 1 * * *", "1h", "UTC"), ("0 25 * * *", "1h", "UTC")]),
        "windows[1] \"0 25 * * *\": \"25\" is not a valid hour; write 0 to 23, *, or lists, ranges and steps of them, \
         such as 1,3 or 22-23 or */6"
    );
    for (schedule, field) in [
        ("60 1 * * *", "minute"),
        ("MON 1 * * *", "minute"),
        ("*/0 1 * * *", "minute"),
        ("0/15 1 * * *", "minute"),
        ("1,,2 1 * * *", "minute"),
        ("0 5-3 * * *", "hour"),
        ("0 L * * *", "hour"),
        ("0 99999999 * * *", "hour"),
        ("0 0 0 * *", "day of month"),
        ("0 0 32 * *", "day of month"),
        ("0 0 FRI * *", "day of month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * MON *", "month"),
        ("0 0 * * 8", "day of week"),
        ("0 0 * * JAN", "day of week"),
        ("0 0 * * FRI-MON", "day of week"),
        ("0 0 * * L", "day of week"),
        ("0 0 * * TUE#6", "day of week"),
        ("0 0 * * frı", "day of week"),
    ] {
        assert!(
            of(schedule).contains(&format!(" is not a valid {field}; write ")),
            "{schedule}: {}",
            of(schedule)
        );
    }
}

#[test]
fn days_that_never_come_are_refused() {
    assert_eq!(
        of("0 0 31 2 *"),
        "windows[0] \"0 0 31 2 *\" never matches: no month has such a day; correct the day or the month"
    );
    for schedule in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 1 * +MON#2", "0 0 8-31 * +TUE#1"] {
        assert!(of(schedule).contains("never matches"), "{schedule}");
    }
    // Rare days are accepted.
    for schedule in ["0 0 29 2 *", "0 0 29 2 +MON", "0 0 * 2 MON#5", "0 0 31 2 MON"] {
        assert!(parsed(&[(schedule, "1h", "UTC")], &[]).is_ok(), "{schedule}");
    }
}

#[test]
fn durations_splay_and_time_zones_have_bounds() {
    for (length, bad) in [
        ("1m", false),
        ("168h", false),
        ("59s", true),
        ("0", true),
        ("10081m", true),
    ] {
        let row = ("0 22 * * *", length, "UTC");
        let text = parsed(&[row], &[]).map_err(|error| error.to_string());
        let duration = if length == "0" { "0h" } else { length };
        let refusal = format!("windows[0] \"0 22 * * *\" has a duration of {duration}; write 1m to 168h");
        assert_eq!(text.err(), bad.then_some(refusal), "{length}");
    }
    let mut window = spec(("0 22 * * *", "1h", "UTC"));
    window.splay = Duration::from_secs(3599);
    assert!(Schedule::parse(&[window], &[]).is_ok());
    window.splay = Duration::from_secs(3600);
    assert_eq!(
        Schedule::parse(&[window], &[]).unwrap_err().to_string(),
        "windows[0] \"0 22 * * *\" has a splay of 1h, which must be shorter than its duration of 1h; write a shorter splay"
    );
    assert_eq!(
        message(&[("0 22 * * *", "1h", "Europe/Berlln")]),
        "windows[0] \"0 22 * * *\" has the unknown time zone \"Europe/Berlln\"; write an IANA name, such as \
         Europe/Berlin or UTC"
    );
    for zone in ["", "CEST", "Local", "+01:00", "../../etc/passwd"] {
        assert!(
            message(&[("0 22 * * *", "1h", zone)]).contains("unknown time zone"),
            "{zone}"
        );
    }
}

#[test]
fn exclusions_end_after_they_start() {
    let (day, next) = ("2026-12-20T00:00:00Z", "2026-12-21T00:00:00Z");
    assert!(parsed(&[], &[(day, next)]).is_ok());
    let empty = parsed(&[], &[(day, next), (day, day)]).unwrap_err().to_string();
    assert!(empty.starts_with("exclusions[1] ends at "), "{empty}");
    assert_eq!(
        parsed(&[], &[(next, day)]).unwrap_err().to_string(),
        "exclusions[0] ends at 2026-12-20T00:00:00Z, which is not after its start 2026-12-21T00:00:00Z; write a later \
         time as exclusions[0].to"
    );
}

#[test]
fn a_long_text_is_cut_in_messages() {
    assert!(of(&"1,".repeat(5000)).len() < 300);
}

proptest! {
    #[test]
    fn no_text_panics(schedule in "\\PC{0,24}", zone in "\\PC{0,12}", seconds in 0..1_000_000_u64) {
        let duration = Duration::from_secs(seconds);
        let spec = WindowSpec { schedule: &schedule, duration, time_zone: &zone, splay: duration / 2 };
        let _ = Schedule::parse(&[spec], &[]);
    }

    #[test]
    fn nothing_that_looks_like_cron_panics(
        schedule in "([-0-9*/,?#LW+@]{1,5}|[A-Z]{3}[-#L0-9]{0,3}|[0-9]{1,2}) ?".prop_map(String::from)
            .prop_flat_map(|field| proptest::collection::vec(prop_oneof![Just(field), "[*]|[1-9]|[0-9]-[0-9]"], 5))
            .prop_map(|fields| fields.join(" ")),
        now in 0_i64..4_000_000_000,
    ) {
        let spec = spec((&schedule, "90m", "America/New_York"));
        if let Ok(schedule) = Schedule::parse(&[spec], &[]) {
            // An accepted schedule opens at some time.
            let opening = schedule.at(Timestamp::from_second(now).unwrap(), SALT);
            let never = matches!(opening, Opening::Closed { next: None, .. });
            prop_assert!(!never);
        }
    }

    #[test]
    fn no_instant_panics(second in prop_oneof![
        any::<i64>(), Just(Timestamp::MIN.as_second()), Just(Timestamp::MAX.as_second()),
    ], schedule in prop_oneof![Just("*/7 * * * *"), Just("0 0 29 2 *"), Just("0 3 * * 1")]) {
        let now = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
        let spec = WindowSpec { splay: Duration::from_secs(60), ..spec((schedule, "168h", "Europe/Berlin")) };
        let schedule = Schedule::parse(&[spec], &[(ts("2026-01-01T00:00:00Z"), Timestamp::MAX)]).unwrap();
        let _ = (schedule.at(now, SALT), schedule.longest(now, SALT));
    }
}
