use proptest::prelude::*;

use super::Comparison::{Equal, Newer, Older};
use super::*;

fn version(text: &str) -> OsVersion {
    text.parse().unwrap()
}

fn check_order(cases: &[(&str, Comparison, &str)]) {
    for (a, expected, b) in cases {
        assert_eq!(version(a).compare(&version(b)), *expected, "{a} and {b}");
        assert_eq!(version(b).compare(&version(a)), reversed(expected), "{b} and {a}");
    }
}

#[test]
fn versions_of_red_hat_systems_are_ordered() {
    check_order(&[
        // RHEL CoreOS, old and current.
        ("9.6.20251023-0", Newer, "9.6.20251022-1"),
        ("9.6.20251023-0", Older, "9.6.20251023-1"),
        ("411.86.202308081056-0", Older, "9.2"),
        ("411.86.202308081056-0", Equal, "8.6.202308081056-0"),
        ("48.84.202109241901-0", Older, "8.6"),
        ("419.810.202501010000-0", Newer, "8.9"),
        ("413.92.202305021736-0", Newer, "9.0"),
        ("419.810.202501010000-0", Equal, "8.10.202501010000-0"),
        // A version with a build date is newer than the same release without one.
        ("9.6", Older, "9.6.20251023-0"),
        ("9.6.20251023-0", Newer, "9.2"),
        ("9.10", Newer, "9.9.20300101-0"),
        // Fedora CoreOS, and bases of bootc.
        ("42.20250901.3.0", Newer, "41.20250901.3.1"),
        ("42.20250901.3.0", Older, "42.20250901.3.1"),
        ("42.20250901.0", Older, "42.20250902.0"),
        ("stream9.20250910.0", Older, "stream10.20240101.0"),
        ("4.20.0", Newer, "4.19.15"),
        ("4.20", Equal, "4.20.0"),
        ("4.20.3", Older, "5.0.0"),
        // Trailing zeros are ignored.
        ("9.6", Equal, "9.6.0"),
        ("9", Equal, "9.0.0"),
        ("0", Equal, "0.0"),
        ("9.6.0", Older, "9.6.1"),
        ("9.6.0", Older, "9.6.20251023-0"),
        ("9.0.20251023-0", Newer, "9"),
        ("10.0.20251023-0", Newer, "9.6.20251023-0"),
        ("9.6.0-1", Newer, "9.6"),
    ]);
}

#[test]
fn other_comparable_versions_are_ordered() {
    check_order(&[
        // Debian and Ubuntu.
        ("13.1", Newer, "13"),
        ("13.1 (trixie)", Equal, "13.1"),
        ("24.04.1 LTS", Newer, "24.04"),
        ("22.04", Older, "24.04"),
        ("13.1~rc2", Older, "13.1"),
        ("13.1~rc1", Older, "13.1~rc2"),
        ("12.5+deb12u1", Older, "12.5+deb12u2"),
        ("v1.2", Equal, "1.2"),
        ("2.0-1", Older, "2.0-2"),
        ("20250901", Older, "20251001"),
        ("1.20250901T0100", Older, "1.20250902T0100"),
        // The seconds of a build date are ignored.
        ("9.6.20251023124559-0", Equal, "9.6.202510231245-0"),
        ("9.6.20251023124559-0", Older, "9.6.202510231246-0"),
        // A version with `~` is older than its release, whatever follows.
        ("13.1-~rc1", Older, "13.1"),
        ("13.1~3", Older, "13.1-2"),
        ("13.1~2", Older, "13.1-2"),
        // Versions with a date or a family are not OpenShift releases.
        ("4.20250901", Older, "9.20250901"),
        ("stream4", Older, "stream9"),
        // The number looks like a date, but its month or day is invalid.
        ("9.20251399", Newer, "9.6"),
        ("9.20251032", Newer, "9.6"),
    ]);
}

#[test]
fn incomparable_versions_give_the_reason() {
    for (a, b, why) in [
        ("stream9.20250910.0", "9.6", "different systems"),
        ("9.20250506.0", "9.6.20251023-0", "use different version schemes"),
        ("42.20250901.3.0", "9.6.20251023-0", "use different version schemes"),
        ("9.0.20250506-0", "9.20250506.0", "use different version schemes"),
        ("9.6.1", "9.6.20251023-0", "use different version schemes"),
        // An OpenShift release is not a RHEL release.
        ("4.20.0", "9.6.20251023-0", "use different version schemes"),
        ("4.20.0", "9.6", "use different version schemes"),
        ("4.20", "9.6.0", "use different version schemes"),
        ("4.15", "9.6.20251023-0", "use different version schemes"),
        ("4.20.0", "411.86.202308081056-0", "use different version schemes"),
        ("9.6-rc1", "9.6", "cannot be ordered"),
        ("9.6-rc1", "9.6-beta1", "cannot be ordered"),
    ] {
        for (a, b) in [(a, b), (b, a)] {
            let result = version(a).compare(&version(b));
            let is_so = matches!(&result, Comparison::Unknown(words) if words.contains(why));
            assert!(is_so, "{a} and {b}: {result:?}");
        }
    }
}

#[test]
fn an_invalid_version_is_refused_with_the_reason() {
    let long = "1.".repeat(MAX_LENGTH / 2);
    assert_eq!(version(&long).to_string(), long, "the longest that is read");
    let long = format!("{long}1");
    for (text, why) in [
        ("", "no number"),
        ("rawhide", "no number"),
        ("(9.6)", "characters"),
        ("1:9.6", "characters"),
        ("-1", "does not begin"),
        ("9.99999999999999999999999", "too large"),
        (&*long, "longer than"),
    ] {
        let error = text.parse::<OsVersion>().unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn the_major_version_is_the_systems() {
    for (text, major) in [
        ("411.86.202308081056-0", Some(8)),
        ("419.810.202501010000-0", Some(8)),
        ("42.20250901.3.0", Some(42)),
        ("48.20250901.3.0", Some(48)),
        ("stream10.20240101.0", Some(10)),
        ("20250901", None),
    ] {
        assert_eq!(version(text).major(), major, "{text}");
    }
}

/// Generates versions in several formats. Few different numbers occur, so equal parts are likely.
fn some() -> impl Strategy<Value = String> {
    prop_oneof![
        "(9|10)\\.[0-9](\\.0|\\.2025(01|11)(02|20)(-[0-3])?)?",
        "4(2|3)(\\.20250(8|9)01(\\.[1-3]\\.[0-2])?)?",
        "41[0-4]\\.(86|92|94)\\.20230(1|2)011200(-[01])?",
        "(stream)?9(\\.[0-2]){0,2}(~rc[12]|\\+deb[12]u[12])?",
        "[45](\\.[0-2]){0,2}",
    ]
}

/// Generates three versions. In half of the cases, all three have the same format. Most of these can be compared, and
/// some are equal.
fn three() -> impl Strategy<Value = (String, String, String)> {
    const ALIKE: &str = "(8|9)(\\.[0-2]){0,2}(\\.0){0,2}";
    prop_oneof![(some(), some(), some()), (ALIKE, ALIKE, ALIKE)]
}

fn is_known(result: &Comparison) -> bool {
    !matches!(result, Comparison::Unknown(_))
}

fn reversed(result: &Comparison) -> Comparison {
    match result {
        Older => Newer,
        Newer => Older,
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn any_text_is_a_version_or_none(text in ".{0,140}") {
        if let Ok(version) = text.parse::<OsVersion>() {
            prop_assert_eq!(version.compare(&version), Equal);
            prop_assert_eq!(version.to_string().parse::<OsVersion>().unwrap().compare(&version), Equal);
        }
    }

    #[test]
    fn comparable_versions_have_a_total_order((a, b, c) in three()) {
        let (a, b, c) = (version(&a), version(&b), version(&c));
        for (x, y) in [(&a, &b), (&b, &c), (&a, &c)] {
            let (there, back) = (x.compare(y), y.compare(x));
            prop_assert_eq!(is_known(&there), is_known(&back));
            if is_known(&there) {
                prop_assert_eq!(&back, &reversed(&there));
            }
        }
        let (ab, bc, ac) = (a.compare(&b), b.compare(&c), a.compare(&c));
        if is_known(&ab) && is_known(&bc) && is_known(&ac) {
            if ab == Equal {
                prop_assert_eq!(&ac, &bc);
            }
            if bc == Equal {
                prop_assert_eq!(&ac, &ab);
            }
            if ab == bc {
                prop_assert_eq!(&ac, &ab);
            }
        }
    }

    #[test]
    fn equal_versions_compare_alike((a, _, c) in three()) {
        // Appends a zero to the release: the version stays equal.
        let (a, c) = (version(&a), version(&c));
        prop_assume!(a.date.is_none() && a.rest.is_empty());
        let b = version(&format!("{a}.0"));
        prop_assert_eq!(a.compare(&b), Equal);
        match (a.compare(&c), b.compare(&c)) {
            (Comparison::Unknown(_), Comparison::Unknown(_)) => {}
            (ac, bc) => prop_assert_eq!(ac, bc),
        }
    }
}
