//! Parses and compares versions of operating systems.
//!
//! A version consists of a family (`stream` in `stream9`), a release (`9.6`), an optional build date, and further
//! parts. Two versions are compared part by part, but only if their parts have the same meaning. Otherwise the result
//! is [`Comparison::Unknown`], with the reason.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// Smallest major version that may be the release of an operating system, such as RHEL 8. OpenShift releases begin with
/// 4.
const FIRST_OF_SYSTEM: u64 = 8;
/// Longest version that is parsed, in bytes.
pub const MAX_LENGTH: usize = 128;

/// Version of an operating system.
#[derive(Debug, Clone)]
pub struct OsVersion {
    text: String,
    family: String,
    release: Vec<u64>,
    /// Date of the build as `YYYYMMDDhhmm`.
    date: Option<u64>,
    rest: Vec<Part>,
}

/// A part of a version after the release and the date.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// True if `~` precedes the part. A version with such a part is older than the same version without it.
    early: bool,
    token: Token,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Number(u64),
    Word(String),
}

/// Why a text is not an OS version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an OS version: {reason}")]
pub struct VersionError {
    text: String,
    reason: &'static str,
}

/// Result of comparing the ages of two versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The first version is older than the second.
    Older,
    /// Both versions are equally old.
    Equal,
    /// The first version is newer than the second.
    Newer,
    /// The versions cannot be compared, for this reason.
    Unknown(String),
}

impl FromStr for OsVersion {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        Self::parse(text).map_err(|reason| VersionError {
            text: text.chars().take(MAX_LENGTH).collect(),
            reason,
        })
    }
}

impl OsVersion {
    /// Parses a version.
    ///
    /// # Errors
    /// Returns why the text is not a version.
    fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > MAX_LENGTH {
            return Err("it is longer than 128 characters");
        }
        // Ignore all words after the first: `(bookworm)` in `12 (bookworm)`, `LTS` in `24.04.1 LTS`.
        let first = text.split_whitespace().next().unwrap_or_default();
        if !first
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-_+~".contains(&b))
        {
            return Err("it has invalid characters");
        }
        let Some(digit) = first.find(|c: char| c.is_ascii_digit()) else {
            return Err("it has no number");
        };
        let (family, numbers) = first.split_at(digit);
        if !family.bytes().all(|b| b.is_ascii_alphabetic()) {
            return Err("it does not begin with a number or a name");
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
        while let Some((separator, token)) = parts.next().map_err(|()| "a number in it is too large")? {
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

/// Iterates over the parts of a version that begins with a digit. Each part comes with the separator before it. If a
/// part has no separator, a number gets `.`, and a word gets a space.
struct Parts<'a>(&'a str);

impl Parts<'_> {
    fn next(&mut self) -> Result<Option<(char, Token)>, ()> {
        let token = self.0.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
        let separators = &self.0[..self.0.len() - token.len()];
        let Some(first) = token.chars().next() else {
            return Ok(None);
        };
        let is_number = first.is_ascii_digit();
        let end = token.find(|c: char| !c.is_ascii_alphanumeric() || c.is_ascii_digit() != is_number);
        let (token, rest) = token.split_at(end.unwrap_or(token.len()));
        self.0 = rest;
        let separator = match separators {
            _ if separators.contains('~') => '~',
            "" if !is_number => ' ',
            other => other.chars().next().unwrap_or('.'),
        };
        let token = if is_number {
            Token::Number(token.parse().map_err(|_| ())?)
        } else {
            Token::Word(token.to_ascii_lowercase())
        };
        Ok(Some((separator, token)))
    }
}

/// Returns the build date as `YYYYMMDDhhmm` if the number looks like a date: `20251023`, `202310231244`, or with
/// seconds. `None` otherwise.
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

/// Returns the RHEL release of an older RHEL CoreOS version. In such a version, the OpenShift release comes before the
/// RHEL release: `411.86` is OpenShift 4.11 with RHEL 8.6, `419.810` is OpenShift 4.19 with RHEL 8.10. The caller must
/// check that the version has a build date with hours and minutes. OpenShift's machine-config operator uses the same
/// rule.
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
    /// Returns the first number of the release. `None` if the version is only a date.
    pub fn major(&self) -> Option<u64> {
        self.release.first().copied()
    }

    /// Returns the letters before the first digit, in lower case; usually empty.
    pub fn family(&self) -> &str {
        &self.family
    }

    fn significant(&self) -> &[u64] {
        let end = self.release.iter().rposition(|n| *n != 0).map_or(0, |last| last + 1);
        &self.release[..end]
    }

    /// True if the version may be an OpenShift release, such as `4.20.0`. An OpenShift release does not show its RHEL
    /// release: OpenShift 4.20 is built from RHEL 9.
    fn may_be_openshift(&self) -> bool {
        self.date.is_none() && self.family.is_empty() && self.major() == Some(4)
    }

    /// True if the version may be the release of an operating system, such as RHEL 9.
    fn may_be_system(&self) -> bool {
        self.major() >= Some(FIRST_OF_SYSTEM)
    }

    /// True if one of the versions may be an OpenShift release, and the other the release of an operating system.
    pub(super) fn is_apart(&self, other: &Self) -> bool {
        (self.may_be_openshift() && other.may_be_system()) || (other.may_be_openshift() && self.may_be_system())
    }

    /// True if the releases of the two versions can be compared number by number.
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

    /// Returns whether `self` is older or newer than `other`, or why they cannot be compared.
    pub fn compare(&self, other: &Self) -> Comparison {
        if self.family != other.family {
            return self.incomparable(other, "are versions of different systems");
        }
        if !self.counts_as(other) {
            return self.incomparable(other, "use different version schemes");
        }
        let order = self
            .significant()
            .cmp(other.significant())
            // If the releases are equal, a version without a build date is older than a version with one.
            .then_with(|| self.date.cmp(&other.date));
        match order {
            Ordering::Less => Comparison::Older,
            Ordering::Greater => Comparison::Newer,
            Ordering::Equal => match order_of_rest(&self.rest, &other.rest) {
                Some(Ordering::Less) => Comparison::Older,
                Some(Ordering::Equal) => Comparison::Equal,
                Some(Ordering::Greater) => Comparison::Newer,
                None => self.incomparable(other, "differ in words that cannot be ordered"),
            },
        }
    }

    /// Returns [`Comparison::Unknown`] with a message: the two versions, then `why`, which begins with a verb.
    fn incomparable(&self, other: &Self, why: &str) -> Comparison {
        Comparison::Unknown(format!("{self} and {other} {why}"))
    }
}

/// Returns the index of the median of three versions, given as texts. If two versions are equally old, the first of
/// them is the median. A version that cannot be compared with the others does not count: the first of the others is
/// returned. If no two versions can be compared, returns 0.
pub fn median(versions: [&str; 3]) -> usize {
    let parsed = versions.map(|version| OsVersion::from_str(version).ok());
    let is_at_most = |one: usize, other: usize| match (&parsed[one], &parsed[other]) {
        (Some(a), Some(b)) => matches!(a.compare(b), Comparison::Older | Comparison::Equal),
        _ => versions[one] == versions[other],
    };
    let others = [(0, 1, 2), (1, 0, 2), (2, 0, 1)];
    for (middle, a, b) in others {
        if (is_at_most(a, middle) && is_at_most(middle, b)) || (is_at_most(b, middle) && is_at_most(middle, a)) {
            return middle;
        }
    }
    let pairs = [(0, 1), (0, 2), (1, 2)];
    let comparable = pairs
        .into_iter()
        .find(|(a, b)| is_at_most(*a, *b) || is_at_most(*b, *a));
    comparable.map_or(0, |(first, _)| first)
}

/// Compares the remaining parts of two versions with equal releases and dates. `None` if the first difference is in a
/// word, since words have no order.
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

/// Returns whether an additional part makes a version older or newer. `None` if the part is a word without `~`.
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
