//! Fuzzes the small values that admins write: durations, quantities, selectors, windows, digests and names.

use std::time::Duration;

use berth_api::quantity::Quantity;
use berth_api::windows::{Opening, Schedule, WindowSpec};
use berth_api::{Digest, NodeName, Written, duration};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::Selector;

use crate::text::is_line;

/// Longest error about a small value, in characters.
const MAX_ERROR: usize = 1000;

/// Parses each line of the input as each kind of value, and the first three lines as a window: schedule, duration, time
/// zone. Panics if a valid value is printed differently, if an error is too long, or if a schedule contradicts itself.
pub fn written(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines: Vec<&str> = text.split('\n').collect();
    for line in lines.iter().take(16) {
        of_duration(line);
        of_quantity(line);
        of_selector(line);
        of_digest(line);
        let label = NodeName::from(*line).label().len();
        assert!(label <= 63 || !line.is_ascii(), "{label}");
    }
    let mut lines = lines.into_iter();
    let (schedule, duration, time_zone) = (lines.next(), lines.next(), lines.next());
    let duration = duration.and_then(|text| duration::parse(text).ok());
    of_window(&WindowSpec {
        schedule: schedule.unwrap_or_default(),
        duration: duration.unwrap_or(Duration::from_secs(3600)),
        time_zone: time_zone.unwrap_or("UTC"),
        splay: Duration::ZERO,
    });
}

fn of_duration(text: &str) {
    match duration::parse(text) {
        Ok(found) => {
            let printed = Written::from(found);
            assert_eq!(duration::parse(printed.as_str()).ok(), Some(found), "{text:?}");
        }
        Err(error) => is_short(&error.to_string()),
    }
}

fn of_quantity(text: &str) {
    match text.parse::<Quantity>() {
        Ok(found) => {
            assert_eq!(found.to_string().parse().ok(), Some(found), "{text:?}");
            for members in [0, 1, 99, 65_000] {
                assert!(found.rounded_down(members) <= found.rounded_up(members));
            }
        }
        Err(error) => is_short(&error.to_string()),
    }
}

fn of_digest(text: &str) {
    match text.parse::<Digest>() {
        Ok(found) => assert_eq!(found.to_string(), text),
        Err(error) => is_short(&error.to_string()),
    }
}

fn of_selector(text: &str) {
    let Ok(raw) = serde_json::from_str::<LabelSelector>(text) else {
        return;
    };
    match Written::<Selector>::new(raw.clone()).get() {
        Ok(found) => {
            let again = Written::<Selector>::new(raw);
            assert_eq!(again.get().ok().map(ToString::to_string), Some(found.to_string()));
        }
        Err(error) => is_short(error),
    }
}

fn of_window(spec: &WindowSpec<'_>) {
    let now = Timestamp::from_second(1_772_366_400).unwrap_or_default();
    let exclusions = [(now, now + Duration::from_secs(600))];
    for exclusions in [&[][..], &exclusions] {
        let schedule = match Schedule::parse(std::slice::from_ref(spec), exclusions) {
            Ok(schedule) => schedule,
            Err(error) => return is_short(&error.to_string()),
        };
        match schedule.at(now, "p") {
            Opening::Open { until } => assert!(until.is_none_or(|until| until > now)),
            Opening::Closed { next: Some(next), .. } => {
                assert!(next > now);
                let then = schedule.at(next, "p");
                assert!(matches!(then, Opening::Open { .. }), "closed at {next}, when it opens");
                let before = schedule.at(next - Duration::from_secs(1), "p");
                assert!(matches!(before, Opening::Closed { .. }), "open before {next}");
            }
            Opening::Closed { next: None, .. } => {}
        }
    }
}

fn is_short(error: &str) {
    is_line(error, MAX_ERROR);
}
