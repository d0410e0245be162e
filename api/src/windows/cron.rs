//! A cron schedule of five fields, as calendar days and minutes of the day, without a time zone.

use std::fmt;

use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};
use jiff::civil::{Date, date};

use super::error::shortened;

/// A field of a schedule, and the values that it accepts.
struct Field {
    name: &'static str,
    instead: &'static str,
    /// True if the text is a single value that this field accepts: not a list, a range or a step.
    accepts: fn(&str) -> bool,
}

const FIELDS: [Field; 5] = [
    Field {
        name: "minute",
        instead: "0 to 59, *, or lists, ranges and steps of them, such as 0,30 or 0-20 or */15",
        accepts: is_number,
    },
    Field {
        name: "hour",
        instead: "0 to 23, *, or lists, ranges and steps of them, such as 1,3 or 22-23 or */6",
        accepts: is_number,
    },
    Field {
        name: "day of month",
        instead: "1 to 31, *, lists, ranges and steps of them, L for the last day, or 15W for the weekday nearest to the 15th",
        accepts: is_day_of_month,
    },
    Field {
        name: "month",
        instead: "1 to 12 or JAN to DEC, *, or lists, ranges and steps of them, such as 1,7 or MAR-OCT or */3",
        accepts: is_month,
    },
    Field {
        name: "day of week",
        instead: "0 to 7 or SUN to SAT, *, lists and ranges of them, TUE#2 for the second Tuesday, or FRIL for the \
                  last Friday",
        accepts: is_day_of_week,
    },
];

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const DAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// A span that contains every kind of year: common and leap years that start on each day of the week. A schedule that
/// matches no day in this span never matches.
const EVERY_KIND_OF_YEAR: (Date, Date) = (date(2000, 1, 1), date(2027, 12, 31));

/// A schedule that matches at least once.
#[derive(Clone)]
pub(super) struct Cron {
    days: CronPattern,
    /// Minutes from midnight when the window starts on a matching day, ascending. Never empty.
    pub(super) minutes: Vec<u16>,
}

impl fmt::Debug for Cron {
    // The pattern's own `Debug` prints a line for each of 5,000 years.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cron({:?})", self.days.as_str())
    }
}

impl Cron {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let shown = shortened(text);
        let text = text.to_ascii_uppercase();
        let fields: Vec<&str> = text.split_whitespace().collect();
        match fields.as_slice() {
            [] => {
                return Err(
                    "has an empty schedule; write five fields (minute, hour, day of month, month, day of week), such as \
                     \"0 22 * * FRI\""
                        .to_owned(),
                );
            }
            [first, ..] if first.starts_with('@') => {
                let instead = spelt_out(first);
                return Err(format!(
                    "{shown:?} is a nickname; write it as five fields, such as {instead:?}"
                ));
            }
            [_, _, _, _, _] => {}
            other => {
                return Err(format!(
                    "{shown:?} has {} fields; write five (minute, hour, day of month, month, day of week), without seconds \
                     or years, and the time zone in timeZone",
                    other.len()
                ));
            }
        }
        for (position, (field, text)) in FIELDS.iter().zip(&fields).enumerate() {
            if !is_valid_field(field, text, position) {
                return Err(not_valid(&shown, text, field.name, field.instead));
            }
        }
        // All fields are valid, so parsing the whole schedule does not fail.
        let days = parser()
            .parse(&text)
            .map_err(|_| not_valid(&shown, &text, "schedule", "five fields, such as 0 22 * * FRI"))?;
        let days = days.pattern;
        let minutes = minutes_of_day(&days);
        let cron = Self { days, minutes };
        let (first, last) = EVERY_KIND_OF_YEAR;
        if cron.minutes.is_empty() || cron.day_from(first, last).is_none() {
            return Err(format!(
                "{shown:?} never matches: no month has such a day; correct the day or the month"
            ));
        }
        Ok(cron)
    }

    pub(super) fn matches(&self, day: Date) -> bool {
        self.matches_month(day) && self.matches_in_month(day)
    }

    /// Returns the first matching day from `first` to `last`.
    pub(super) fn day_from(&self, first: Date, last: Date) -> Option<Date> {
        let mut day = first;
        while day <= last {
            if !self.matches_month(day) {
                day = day.last_of_month().tomorrow().ok()?;
            } else if self.matches_in_month(day) {
                return Some(day);
            } else {
                day = day.tomorrow().ok()?;
            }
        }
        None
    }

    fn matches_month(&self, day: Date) -> bool {
        self.days
            .month_match(u32::from(day.month().unsigned_abs()))
            .unwrap_or(false)
    }

    fn matches_in_month(&self, day: Date) -> bool {
        let weekday = Weekday::from_days_from_sunday(u32::from(day.weekday().to_sunday_zero_offset().unsigned_abs()));
        let (month, number) = (
            u32::from(day.month().unsigned_abs()),
            u32::from(day.day().unsigned_abs()),
        );
        self.days
            .day_match(i32::from(day.year()), month, number, weekday)
            .unwrap_or(false)
    }
}

fn not_valid(schedule: &str, text: &str, field: &str, instead: &str) -> String {
    format!(
        "{schedule:?}: {:?} is not a valid {field}; write {instead}",
        shortened(text)
    )
}

fn parser() -> CronParser {
    CronParser::builder()
        .seconds(Seconds::Disallowed)
        .year(Year::Disallowed)
        .build()
}

fn minutes_of_day(pattern: &CronPattern) -> Vec<u16> {
    let minutes = pattern.minutes.values();
    pattern
        .hours
        .values()
        .into_iter()
        .flat_map(|hour| minutes.iter().map(move |minute| hour * 60 + minute))
        .collect()
}

/// True if the text is valid in this field of a schedule. In this check, all other fields are `*`.
fn is_valid_field(field: &Field, text: &str, position: usize) -> bool {
    let values = if position == 4 {
        text.strip_prefix('+').unwrap_or(text)
    } else {
        text
    };
    // The parser accepts names of days and months in any field, and ignores empty list items.
    let is_known = values
        .split([',', '-', '/'])
        .all(|value| value == "*" || (field.accepts)(value));
    let mut fields = ["*"; 5];
    if let Some(slot) = fields.get_mut(position) {
        *slot = text;
    }
    is_known && parser().parse(&fields.join(" ")).is_ok()
}

fn is_number(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit())
}

fn is_day_of_month(value: &str) -> bool {
    matches!(value, "?" | "L" | "LW") || is_number(value.strip_suffix('W').unwrap_or(value))
}

fn is_month(value: &str) -> bool {
    is_number(value) || MONTHS.contains(&value)
}

fn is_day_of_week(value: &str) -> bool {
    // `2`, `TUE`, `TUE#2`, `TUE#L` and `TUEL` are accepted, `L` without a day is not.
    let day = match value.split_once('#') {
        Some((day, "L" | "1" | "2" | "3" | "4" | "5")) => day,
        Some(_) => return false,
        None => value.strip_suffix('L').unwrap_or(value),
    };
    value == "?" || is_number(day) || DAYS.contains(&day)
}

/// Returns the five fields that correspond to a nickname, such as `@WEEKLY`.
fn spelt_out(nickname: &str) -> &'static str {
    match nickname {
        "@YEARLY" | "@ANNUALLY" => "0 0 1 1 *",
        "@MONTHLY" => "0 0 1 * *",
        "@WEEKLY" => "0 0 * * SUN",
        "@HOURLY" => "0 * * * *",
        _ => "0 0 * * *",
    }
}
