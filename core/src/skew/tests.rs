use super::*;

fn limit(minimum: Option<&str>, majors: Option<u32>) -> BootImageLimit {
    BootImageLimit {
        minimum_version: minimum.map(str::to_owned),
        max_major_skew: majors,
        error: None,
    }
}

fn min(version: &str) -> BootImageLimit {
    limit(Some(version), None)
}

fn check_skew(boot: Option<&str>, image: Option<&str>, limits: &[BootImageLimit], expected: &str) {
    let references: Vec<&BootImageLimit> = limits.iter().collect();
    let found = match skew(boot, image, &references) {
        Skew::NoLimit => "none".to_owned(),
        Skew::Within => "within".to_owned(),
        Skew::Exceeded(why) => format!("exceeded: {why}"),
        Skew::Unknown(why) => format!("unknown: {why}"),
    };
    assert_eq!(found, expected, "{boot:?} {image:?} {limits:?}");
}

#[test]
fn a_boot_image_is_judged_by_all_limits() {
    for (boot, image, limits, expected) in [
        (Some("8.6"), Some("9.6"), vec![], "none"),
        (Some("8.6"), Some("11.0"), vec![limit(None, None)], "none"),
        (Some("9.6.20251023-0"), Some("10.1"), vec![min("9.2")], "within"),
        (
            Some("9.0"),
            Some("10.1"),
            vec![min("9.2")],
            "exceeded: was installed from 9.0, which is older than the minimum 9.2",
        ),
        // The stricter of two limits applies.
        (
            Some("9.4"),
            Some("10.1"),
            vec![min("9.2"), min("9.5")],
            "exceeded: was installed from 9.4, which is older than the minimum 9.5",
        ),
        (
            Some("9.6"),
            Some("11.0"),
            vec![min("9.2")],
            "exceeded: was installed from 9.6, which is 2 major versions away from 11.0; at most 1 allowed",
        ),
        (
            Some("40.20240101.3.0"),
            Some("42.20250901.3.0"),
            vec![limit(None, Some(2))],
            "within",
        ),
        (
            Some("11.0"),
            Some("9.6"),
            vec![min("9.2")],
            "exceeded: was installed from 11.0, which is 2 major versions away from 9.6; at most 1 allowed",
        ),
        // A version that is only a date has no major version.
        (Some("20250901"), Some("20251001"), vec![min("20250101")], "within"),
        // A limit that is certainly exceeded takes precedence over a limit that cannot be compared.
        (
            Some("9.0"),
            Some("9.8"),
            vec![min("latest"), min("9.2")],
            "exceeded: was installed from 9.0, which is older than the minimum 9.2",
        ),
        (
            Some("9.0"),
            Some("11.8"),
            vec![min("latest")],
            "exceeded: was installed from 9.0, which is 2 major versions away from 11.8; at most 1 allowed",
        ),
    ] {
        check_skew(boot, image, &limits, expected);
    }
}

#[test]
fn an_impossible_comparison_is_never_within_limits() {
    let unreadable = BootImageLimit {
        error: Some("its label x is not a number".to_owned()),
        ..BootImageLimit::default()
    };
    for (boot, image, limit, expected) in [
        (
            Some("9.6"),
            Some("9.8"),
            unreadable,
            "unknown: was installed from 9.6, which cannot be compared: its label x is not a number",
        ),
        (
            None,
            Some("9.6"),
            min("9.2"),
            "unknown: has no record of the image it was installed from",
        ),
        (
            Some("rawhide"),
            Some("9.6"),
            min("9.2"),
            "unknown: was installed from an invalid version: \"rawhide\" is not an OS version: it has no number",
        ),
        (
            Some("9.6"),
            None,
            min("9.2"),
            "unknown: was installed from 9.6, which cannot be compared: the OS image has no version",
        ),
        (
            Some("9.6"),
            Some("9.8"),
            min("latest"),
            "unknown: was installed from 9.6, which cannot be compared: the minimum is invalid: \"latest\" is not an OS \
             version: it has no number",
        ),
        (
            Some("stream9.20250910.0"),
            Some("9.6"),
            min("stream9.20250101.0"),
            "unknown: was installed from stream9.20250910.0, which cannot be compared: stream9.20250910.0 and 9.6 are \
             versions of different systems",
        ),
        (
            Some("9.6.20251023-0"),
            Some("4.20.0"),
            min("9.2"),
            "unknown: was installed from 9.6.20251023-0, which cannot be compared: 9.6.20251023-0 and 4.20.0 use different \
             version schemes",
        ),
        (
            Some("9.6"),
            Some("9.8"),
            min("4.15.0"),
            "unknown: was installed from 9.6, which cannot be compared: 9.6 and 4.15.0 use different version schemes",
        ),
    ] {
        check_skew(boot, image, &[limit], expected);
    }
}

#[test]
fn the_median_of_three_versions() {
    for (versions, expected) in [
        (["9.4", "9.4", "9.4"], 0),
        (["9.0", "9.4", "9.2"], 2),
        (["0.1", "9.4", "9.4"], 1),
        (["999", "9.4", "9.4"], 1),
        (["9.4", "999", "9.4.0"], 0),
        // A version that cannot be compared does not count.
        (["no version", "9.4", "9.4"], 1),
        (["9.4", "", "9.2"], 0),
        (["stream9", "9.2", "9.4"], 1),
        (["Rawhide", "9.4", "Rawhide"], 0),
        (["stream9", "9.2", "Rawhide"], 0),
    ] {
        assert_eq!(version::median(versions), expected, "{versions:?}");
    }
}
