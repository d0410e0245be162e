//! Fuzzes the parser of installers' files, which record a machine's boot image, and the comparison of versions.

use berth_core::skew::aleph::{PLACES, read};
use berth_core::skew::version::{Comparison, OsVersion};

/// Parses the input: a version in the first line, then an installer's file. Panics if a parsed text is too long or has
/// several lines, if a printed version does not parse as an equal version, or if comparing the two versions in both
/// directions gives contradictory results.
pub fn boot_image(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (line, note) = data.split_at(end);
    let found = read(PLACES[0], Ok(note));
    for text in [&found.version, &found.image, &found.error].into_iter().flatten() {
        let is_plain = text.chars().count() <= 512 && !text.contains(char::is_control);
        assert!(is_plain, "{text:?}");
    }
    let other = std::str::from_utf8(line).unwrap_or_default();
    let (Ok(one), Ok(other)) = (found.version.unwrap_or_default().parse(), other.parse()) else {
        return;
    };
    let (one, other): (OsVersion, OsVersion) = (one, other);
    let again: OsVersion = one.to_string().parse().expect("a printed version can be parsed");
    assert_eq!(one.compare(&again), Comparison::Equal);
    let agree = match (one.compare(&other), other.compare(&one)) {
        (Comparison::Older, Comparison::Newer) | (Comparison::Newer, Comparison::Older) => true,
        (Comparison::Unknown(_), Comparison::Unknown(_)) => true,
        (a, b) => a == Comparison::Equal && a == b,
    };
    assert!(agree, "{one} and {other}");
}
