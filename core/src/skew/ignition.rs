//! Reads the result file of Ignition. Any content is accepted; without a usable time, the result is `None`.

use jiff::Timestamp;
use serde_json::Value;

/// Path of the result file on the host.
pub const RESULT: &str = "/etc/.ignition-result.json";
/// Longest file that is read, in bytes. The file may contain the results of earlier runs.
pub const MAX_LENGTH: usize = 64 * 1024;

/// Returns when Ignition last provisioned the machine, by the machine's clock. `None` if the file lacks this time.
pub fn provisioned(result: &[u8]) -> Option<Timestamp> {
    if result.len() > MAX_LENGTH {
        return None;
    }
    let result: Value = serde_json::from_slice(result).ok()?;
    let date = result.get("provisioningDate")?.as_str()?;
    let time: Timestamp = date.trim().parse().ok()?;
    // A time of 0 shows that the machine's clock was not set yet.
    (time.as_second() > 0).then_some(time)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_date_of_the_last_run_is_read() {
        for (result, expected) in [
            (
                r#"{"provisioningBootID":"1f8a9c0c","provisioningDate":"2021-01-25T15:17:13Z","userConfigProvided":true}"#,
                Some("2021-01-25T15:17:13Z"),
            ),
            (
                r#"{"provisioningDate":"2025-10-23T12:00:00.25+02:00","previousReport":{"provisioningDate":"2021-01-25T15:17:13Z"}}"#,
                Some("2025-10-23T10:00:00.25Z"),
            ),
            (
                r#"{"previousReport":{"provisioningDate":"2021-01-25T15:17:13Z"}}"#,
                None,
            ),
            (r#"{"provisioningDate":"1970-01-01T00:00:00Z"}"#, None),
            (r#"{"provisioningDate":"0001-01-01T00:00:00Z"}"#, None),
            (r#"{"provisioningDate":"yesterday"}"#, None),
            (r#"{"provisioningDate":1611587833}"#, None),
            (r#"{"provisioningDate":null}"#, None),
            (r#"["provisioningDate"]"#, None),
            ("{\"provisioningDate\":", None),
            ("", None),
        ] {
            let found = provisioned(result.as_bytes()).map(|time| time.to_string());
            assert_eq!(found.as_deref(), expected, "{result}");
        }
        let right = r#"{"provisioningDate":"2021-01-25T15:17:13Z"}"#;
        let mut text = right.as_bytes().to_vec();
        text.resize(MAX_LENGTH, b' ');
        assert!(provisioned(&text).is_some());
        text.push(b' ');
        assert_eq!(provisioned(&text), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>, date in ".{0,40}") {
            let _ = provisioned(&bytes);
            let named = serde_json::json!({ "provisioningDate": date }).to_string();
            if let Some(time) = provisioned(named.as_bytes()) {
                prop_assert!(time.as_second() > 0);
            }
        }
    }
}
