mod openings;
mod oracle;
mod refused;

use std::time::Duration;

use jiff::Timestamp;

use super::{ClosedCause, Opening, Schedule, WindowError, WindowSpec};
use crate::duration;

const SALT: &str = "workers";

fn ts(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Schedule, duration, time zone.
type Row<'a> = (&'a str, &'a str, &'a str);

fn spec<'a>((schedule, length, time_zone): Row<'a>) -> WindowSpec<'a> {
    WindowSpec {
        schedule,
        duration: duration::parse(length).unwrap(),
        time_zone,
        splay: Duration::ZERO,
    }
}

fn parsed(rows: &[Row<'_>], exclusions: &[(&str, &str)]) -> Result<Schedule, WindowError> {
    let specs: Vec<_> = rows.iter().map(|row| spec(*row)).collect();
    let exclusions: Vec<_> = exclusions.iter().map(|(from, to)| (ts(from), ts(to))).collect();
    Schedule::parse(&specs, &exclusions)
}

fn schedule(rows: &[Row<'_>], exclusions: &[(&str, &str)]) -> Schedule {
    parsed(rows, exclusions).unwrap()
}

fn open(until: &str) -> Opening {
    Opening::Open { until: Some(ts(until)) }
}

fn outside(next: &str) -> Opening {
    Opening::Closed {
        next: Some(ts(next)),
        why: ClosedCause::Outside,
    }
}

fn excluded(next: &str) -> Opening {
    Opening::Closed {
        next: Some(ts(next)),
        why: ClosedCause::Excluded,
    }
}
