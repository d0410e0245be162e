//! Versions of operating systems, as images and machines carry them, and which of two is older.
//!
//! A version is a family (`stream` in `stream9`), a release (`9.6`), perhaps the date of a build, and a rest. Two versions
//! are compared part by part, and only where their parts mean the same: the result of any doubt is
//! [`Comparison::Unknown`], with the reason.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Oldest major version of the systems that OpenShift may be built from, or be taken for.
const FIRST_OF_SYSTEM: u64 = 8;
/// Most characters of a version.
pub const MAX_LENGTH: usize = 128;

/// Version of an operating system.
#[derive(Debug, Clone)]
pub struct OsVersion {
    text: String,
    /// Letters before the first digit, in lower case; empty for most.
    family: String,
    release: Vec<u64>,
    /// Date of the build as `YYYYMMDDhhmm`.
    date: Option<u64>,
    rest: Vec<Part>,
}

/// A part behind the release and the date.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// Stands behind `~`: whatever has it is from before what has not.
    early: bool,
    token: Token,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Number(u64),
    Word(String),
}

/// Reason for which a text is no version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no OS version: {reason}")]
pub struct VersionError {
    text: String,
    reason: &'static str,
}

/// Age of one version, compared with another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// Older than the other.
    Older,
    /// As old as the other.
    Equal,
    /// Newer than the other.
    Newer,
    /// Nobody can tell; the reason.
    Unknown(String),
}

impl FromStr for OsVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        let error = |reason| VersionError {
            text: text.chars().take(MAX_LENGTH).collect(),
            reason,
        };
        if text.len() > MAX_LENGTH {
            return Err(error("it is longer than 128 characters"));
        }
        // `12 (bookworm)` and `24.04.1 LTS`: the words are for people.
        let first = text.split_whitespace().next().unwrap_or_default();
        if !first
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-_+~".contains(&b))
        {
            return Err(error("it has characters that no version has"));
        }
        let Some(digit) = first.find(|c: char| c.is_ascii_digit()) else {
            return Err(error("it has no number"));
        };
        let (family, numbers) = first.split_at(digit);
        if !family.bytes().all(|b| b.is_ascii_alphabetic()) {
            return Err(error("it does not begin with a number or a name"));
        }
        let family = match family {
            "v" | "V" => String::new(),
            family => family.to_ascii_lowercase(),
        };
        let mut parts = Parts(numbers);
        let mut release = vec![];
        let mut date = None;
        let mut has_time = false;
        let mut rest = vec![];
        let mut within = true;
        while let Some((separator, token)) = parts.next().map_err(|()| error("a number in it is too large"))? {
            match token {
                Token::Number(n) if within && separator == '.' => match build_date(n) {
                    Some(built) => {
                        date = Some(built);
                        has_time = built == n;
                        within = false;
                    }
                    None => release.push(n),
                },
                token => {
                    within = false;
                    let early = separator == '~';
                    rest.push(Part { early, token });
                }
            }
        }
        if let Some(legacy) = legacy(&release).filter(|_| has_time) {
            release = legacy;
        }
        Ok(Self {
            text: first.to_owned(),
            family,
            release,
            date,
            rest,
        })
    }
}

/// The parts of a version that begins with a digit, each with what stands before it. The first one counts as behind a dot,
/// and where letters and digits meet, the separator is a space.
struct Parts<'a>(&'a str);

impl Parts<'_> {
    fn next(&mut self) -> Result<Option<(char, Token)>, ()> {
        let is_separator = |c: char| !c.is_ascii_alphanumeric();
        let token = self.0.trim_start_matches(is_separator);
        let separators = &self.0[..self.0.len() - token.len()];
        let Some(first) = token.chars().next() else {
            return Ok(None);
        };
        let is_same = |c: char| c.is_ascii_alphanumeric() && c.is_ascii_digit() == first.is_ascii_digit();
        let end = token.find(|c| !is_same(c)).unwrap_or(token.len());
        let (token, rest) = token.split_at(end);
        self.0 = rest;
        let separator = match separators {
            _ if separators.contains('~') => '~',
            "" if !first.is_ascii_digit() => ' ',
            other => other.chars().next().unwrap_or('.'),
        };
        Ok(Some((
            separator,
            match first.is_ascii_digit() {
                true => Token::Number(token.parse().map_err(|_| ())?),
                false => Token::Word(token.to_ascii_lowercase()),
            },
        )))
    }
}

/// Date of a build, if the number is one: `20251023`, `202310231244` or with seconds.
fn build_date(number: u64) -> Option<u64> {
    let minutes = match number {
        19_000_101..=29_991_231 => number * 10_000,
        190_001_010_000..=299_912_312_359 => number,
        19_000_101_000_000..=29_991_231_235_959 => number / 100,
        _ => return None,
    };
    let (month, day) = (minutes / 1_000_000 % 100, minutes / 10_000 % 100);
    ((1..=12).contains(&month) && (1..=31).contains(&day)).then_some(minutes)
}

/// Release of RHEL in a former version of RHEL CoreOS, whose first part is that of OpenShift: `411.86` is built from 8.6,
/// `419.810` from 8.10. Their builds have a date with hours and minutes. (Rule of OpenShift's machine-config operator.)
fn legacy(release: &[u64]) -> Option<Vec<u64>> {
    let [41..=49 | 410..=499, rhel] = release else {
        return None;
    };
    let (major, minor) = match rhel {
        80..=99 => (rhel / 10, rhel % 10),
        800..=999 => (rhel / 100, rhel % 100),
        _ => return None,
    };
    Some(vec![major, minor])
}

impl OsVersion {
    /// First number of the release; `None` for a version that is only a date.
    pub fn major(&self) -> Option<u64> {
        self.release.first().copied()
    }

    /// Letters before the first digit; empty for most.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// The release without the zeros at its end: `9.6.0` is `9.6`.
    fn significant(&self) -> &[u64] {
        let end = self.release.iter().rposition(|n| *n != 0).map_or(0, |last| last + 1);
        &self.release[..end]
    }

    /// Says whether it may be a release of OpenShift, such as `4.20.0`, which is built from RHEL 9 and counts on its own.
    fn may_be_openshift(&self) -> bool {
        self.date.is_none() && self.family.is_empty() && self.major() == Some(4)
    }

    /// Says whether one of the two may be a release of OpenShift, and the other one is that of a system.
    pub(super) fn is_apart(&self, other: &Self) -> bool {
        let is_apart = |one: &Self, other: &Self| one.may_be_openshift() && other.major() >= Some(FIRST_OF_SYSTEM);
        is_apart(self, other) || is_apart(other, self)
    }

    /// Says whether the numbers of both mean the same.
    fn counts_as(&self, other: &Self) -> bool {
        if self.is_apart(other) {
            return false;
        }
        match (self.date, other.date) {
            (Some(_), Some(_)) => self.release.len() == other.release.len(),
            (Some(_), None) => other.significant().len() <= self.release.len(),
            (None, Some(_)) => self.significant().len() <= other.release.len(),
            (None, None) => true,
        }
    }

    /// Compares its age with that of another one.
    pub fn compare(&self, other: &Self) -> Comparison {
        let unknown = |why: &str| Comparison::Unknown(format!("{self} and {other} {why}"));
        if self.family != other.family {
            return unknown("are versions of different systems");
        }
        if !self.counts_as(other) {
            return unknown("count differently");
        }
        let order = self
            .significant()
            .cmp(other.significant())
            // Of a release and its builds, the release is the first.
            .then_with(|| self.date.cmp(&other.date));
        match order {
            Ordering::Less => Comparison::Older,
            Ordering::Greater => Comparison::Newer,
            Ordering::Equal => match order_of_rest(&self.rest, &other.rest) {
                Some(Ordering::Less) => Comparison::Older,
                Some(Ordering::Equal) => Comparison::Equal,
                Some(Ordering::Greater) => Comparison::Newer,
                None => unknown("differ in words that have no order"),
            },
        }
    }
}

/// Order of what stands behind two equal releases; `None` if words decide, which nobody can order.
fn order_of_rest(a: &[Part], b: &[Part]) -> Option<Ordering> {
    let (mut a, mut b) = (a.iter(), b.iter());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Some(Ordering::Equal),
            (Some(one), None) => return more(one),
            (None, Some(one)) => return more(one).map(Ordering::reverse),
            (Some(x), Some(y)) => match (x.early, y.early, &x.token, &y.token) {
                (true, false, ..) => return Some(Ordering::Less),
                (false, true, ..) => return Some(Ordering::Greater),
                (_, _, Token::Number(x), Token::Number(y)) if x != y => return Some(x.cmp(y)),
                _ if x.token != y.token => return None,
                _ => {}
            },
        }
    }
}

/// Order of what has one part more than the other.
fn more(part: &Part) -> Option<Ordering> {
    match (part.early, &part.token) {
        (true, _) => Some(Ordering::Less),
        (false, Token::Number(_)) => Some(Ordering::Greater),
        (false, Token::Word(_)) => None,
    }
}

impl fmt::Display for OsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests;
