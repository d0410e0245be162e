//! The files that name the image a machine was installed from, as installers write them, and the versions in them.

use berth_core::skew::aleph::{PLACES, read};
use berth_core::skew::version::{Comparison, OsVersion};

/// Reads the file after the first line, and compares its version with the first line. Parsed texts are bounded and have one
/// line, a printed version parses as an equal version, and comparing in both directions agrees.
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
