//! The output of `bootc status --format=json` and `bootc --version`, as far as Berth needs it.
//!
//! bootc promises the shape of its status JSON; fields come with releases and may be absent or null. Nothing here
//! does I/O.

use std::time::Duration;

use berth_api::Digest;
use berth_api::node::Deployment;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

/// The oldest supported bootc: it knows `downloadOnly` and `--from-downloaded`, and keeps its standard output
/// free of anything but the JSON.
pub const FLOOR: (u32, u32, u32) = (1, 12, 1);

/// Time for which a bad answer about bootc's version counts.
const VERSION_RETRY: Duration = Duration::from_secs(30);
/// Time for which a host counts as one without bootc, once it has said so often. Each question is a unit that fails, and in
/// the host's journal.
const MISSING_RETRY: Duration = Duration::from_secs(3600);
/// Answers in a row after which that is so: a program that cannot be started once may be a host that is just booting.
const MISSING_TIMES: u32 = 5;

/// The bootc on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootcVersion {
    /// No bootc was found.
    Missing,
    /// Older than the oldest supported one.
    TooOld(String),
    /// A supported one.
    Version {
        /// Its version.
        version: String,
        /// It has `bootc switch --download-only`, by which an image is locked from the instant at which it is staged.
        download_only: bool,
    },
    /// The version could not be found out, for this reason.
    Failed(String),
}

impl BootcVersion {
    /// Says whether an answer of this age, the same so many times in a row, still counts.
    pub(super) fn is_believed(&self, age: Duration, times: u32) -> bool {
        match self {
            Self::Version { .. } => true,
            Self::Missing if times >= MISSING_TIMES => age < MISSING_RETRY,
            Self::Missing | Self::TooOld(_) | Self::Failed(_) => age < VERSION_RETRY,
        }
    }
}

/// Answer of `bootc status`.
#[derive(Debug, Clone, PartialEq)]
pub enum BootcStatus {
    /// The host was not booted from an image by bootc, or bootc was asked from inside a container.
    NotBootc,
    /// Packages are layered on the image with rpm-ostree: `switch` would silently drop them.
    Layered,
    /// Booted from an image.
    Host(Box<HostStatus>),
}

/// The deployments of a bootc host.
#[derive(Debug, Clone, PartialEq)]
pub struct HostStatus {
    /// The deployment that runs.
    pub booted: Deployment,
    /// The deployment that a shutdown applies, unless it is locked. One without an image (a kernel argument that
    /// somebody staged, say) has no digest, but is there all the same.
    pub staged: Option<Deployment>,
    /// The first deployment that is neither.
    pub rollback: Option<Deployment>,
    /// The next boot takes the rollback deployment.
    pub rollback_queued: bool,
    /// The booted image was pulled under a signature policy that was enforced. A `switch` that does not ask for
    /// the same would weaken the host.
    pub signature_enforced: bool,
}

/// Error for a text that is not the status of a bootc host.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The text is not JSON, or not of this shape.
    #[error("bootc status cannot be understood: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Some other object.
    #[error("bootc status describes a {kind:?} of {api_version:?}")]
    Foreign {
        /// The object's kind.
        kind: String,
        /// The object's apiVersion.
        api_version: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawHost {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    status: Option<RawStatus>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    #[serde(default)]
    staged: Option<RawEntry>,
    #[serde(default)]
    booted: Option<RawEntry>,
    #[serde(default)]
    rollback: Option<RawEntry>,
    #[serde(default)]
    rollback_queued: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEntry {
    #[serde(default)]
    image: Option<RawImage>,
    #[serde(default)]
    incompatible: Option<bool>,
    #[serde(default)]
    download_only: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawImage {
    #[serde(default)]
    image: RawReference,
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    timestamp: Option<String>,
    #[serde(default)]
    image_digest: Option<String>,
    #[serde(default)]
    architecture: Option<String>,
}

#[derive(Deserialize, Default)]
struct RawReference {
    #[serde(default)]
    image: String,
    #[serde(default)]
    signature: Option<RawSignature>,
}

/// Rule by which the image's signature is checked: a word, or an object with one key.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawSignature {
    Word(String),
    Remote {
        #[serde(rename = "ostreeRemote")]
        _remote: String,
    },
    Other(serde::de::IgnoredAny),
}

impl RawSignature {
    fn enforced(&self) -> bool {
        match self {
            Self::Word(word) => word == "containerPolicy",
            Self::Remote { .. } => true,
            Self::Other(_) => false,
        }
    }
}

/// Reads the output of `bootc status --format=json --format-version=1`.
///
/// # Errors
/// When the text is something else.
pub fn parse(text: &str) -> Result<BootcStatus, StatusError> {
    let host: RawHost = serde_json::from_str(text)?;
    if host.kind != "BootcHost" || !host.api_version.starts_with("org.containers.bootc/") {
        return Err(StatusError::Foreign {
            kind: bounded(&host.kind, 64),
            api_version: bounded(&host.api_version, 64),
        });
    }
    let status = host.status.unwrap_or_default();
    Ok(match status.booted {
        Some(booted) if booted.incompatible == Some(true) => BootcStatus::Layered,
        Some(RawEntry { image: Some(image), .. }) => BootcStatus::Host(Box::new(HostStatus {
            signature_enforced: image.image.signature.as_ref().is_some_and(RawSignature::enforced),
            booted: deployment(Some(image), false),
            staged: status.staged.map(entry),
            rollback: status.rollback.map(entry),
            rollback_queued: status.rollback_queued.unwrap_or(false),
        })),
        _ => BootcStatus::NotBootc,
    })
}

fn entry(entry: RawEntry) -> Deployment {
    deployment(entry.image, entry.download_only.unwrap_or(false))
}

/// Makes the entry for our API, cut to the lengths that its schema allows.
fn deployment(image: Option<RawImage>, locked: bool) -> Deployment {
    let Some(image) = image else {
        return Deployment {
            locked,
            ..Deployment::default()
        };
    };
    let timestamp = image.timestamp.and_then(|t| t.parse::<Timestamp>().ok());
    Deployment {
        image: bounded(&image.image.image, 512),
        digest: image.image_digest.and_then(|d| d.parse::<Digest>().ok()),
        version: image.version.map(|v| bounded(&v, 256)),
        architecture: image.architecture.map(|a| bounded(&a, 32)),
        timestamp: timestamp.map(Time::from),
        locked,
    }
}

fn bounded(text: &str, characters: usize) -> String {
    text.chars().take(characters).collect()
}

/// Reads the output of `bootc --version`: the version as text, and as numbers to compare.
pub fn parse_version(text: &str) -> Option<(String, (u32, u32, u32))> {
    let mut words = text.split_whitespace();
    let version = match (words.next()?, words.next()) {
        ("bootc", Some(version)) => version,
        (version, None) => version,
        _ => return None,
    };
    let mut numbers = version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    let major = numbers.next()??;
    let minor = numbers.next()??;
    let patch = numbers.next().flatten().unwrap_or(0);
    Some((bounded(version, 64), (major, minor, patch)))
}

/// Says whether the output of `bootc switch --help` has an entry for `--download-only`. bootc up to 1.16.9 has none.
pub fn lists_download_only(help: &str) -> bool {
    help.lines()
        .any(|line| line.split_whitespace().next() == Some("--download-only"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn digest(c: char) -> String {
        format!("sha256:{}", c.to_string().repeat(64))
    }

    fn entry(c: char) -> Value {
        json!({
            "cachedUpdate": null, "composefs": null, "incompatible": false, "pinned": false,
            "image": {
                "architecture": "arm64", "imageDigest": digest(c), "timestamp": "2026-03-04T05:06:07.08Z",
                "version": "9.1", "image": {"image": format!("registry.example/os@{}", digest(c)), "transport": "registry"},
            },
            "ostree": {"checksum": "ab", "deploySerial": 0, "stateroot": "default"}, "store": "ostreeContainer",
        })
    }

    fn host(status: Value) -> Value {
        json!({
            "apiVersion": "org.containers.bootc/v1", "kind": "BootcHost", "metadata": {"name": "host"},
            "spec": {"bootOrder": "default", "image": null}, "status": status,
        })
    }

    fn read(status: Value) -> BootcStatus {
        parse(&host(status).to_string()).unwrap()
    }

    fn read_host(status: Value) -> HostStatus {
        match read(status) {
            BootcStatus::Host(host) => *host,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reads_booted_staged_and_rollback() {
        let mut staged = entry('b');
        staged["downloadOnly"] = json!(true);
        staged["somethingNew"] = json!({"x": [1]});
        let status = read_host(json!({
            "booted": entry('a'), "staged": staged, "rollback": entry('c'), "rollbackQueued": true, "type": "bootcHost",
        }));
        let booted = status.booted;
        assert_eq!(booted.digest, Some(digest('a').parse().unwrap()));
        assert_eq!(booted.version.as_deref(), Some("9.1"));
        assert_eq!(booted.architecture.as_deref(), Some("arm64"));
        assert!(booted.timestamp.is_some() && !booted.locked);
        assert!(status.staged.unwrap().locked);
        assert!(status.rollback.is_some() && status.rollback_queued && !status.signature_enforced);
    }

    #[test]
    fn tells_the_kinds_of_hosts_apart() {
        let mut layered = entry('a');
        layered["incompatible"] = json!(true);
        layered["image"] = Value::Null;
        let mut plain = entry('a');
        plain["image"] = Value::Null;
        assert_eq!(read(json!({"booted": layered})), BootcStatus::Layered);
        for status in [
            json!({"booted": null}),
            json!({"booted": plain}),
            json!({}),
            Value::Null,
        ] {
            assert_eq!(read(status.clone()), BootcStatus::NotBootc, "{status}");
        }
    }

    #[test]
    fn a_staged_deployment_without_image_is_still_there() {
        let status = read_host(json!({
            "booted": entry('a'),
            "staged": {"image": null, "incompatible": true, "pinned": false, "ostree": null},
        }));
        assert_eq!(status.staged, Some(Deployment::default()));
    }

    #[test]
    fn reads_the_signature_in_all_its_forms() {
        for (signature, enforced) in [
            (json!("containerPolicy"), true),
            (json!({"ostreeRemote": "fedora"}), true),
            (json!("insecure"), false),
            (Value::Null, false),
            (json!({"later": 1}), false),
            (json!(7), false),
        ] {
            let mut booted = entry('a');
            booted["image"]["image"]["signature"] = signature.clone();
            let status = read_host(json!({"booted": booted}));
            assert_eq!(status.signature_enforced, enforced, "{signature}");
        }
    }

    #[test]
    fn old_releases_lack_fields_and_odd_ones_are_bounded() {
        let status = read_host(json!({"booted": {"image": {
            "image": {"image": "x".repeat(9999), "transport": "oci"}, "imageDigest": "sha512:1", "timestamp": "soon",
            "version": "ü".repeat(999),
        }, "incompatible": false, "pinned": false}}));
        let booted = status.booted;
        assert_eq!(
            (booted.digest, booted.timestamp, booted.architecture),
            (None, None, None)
        );
        assert_eq!(
            (booted.image.len(), booted.version.unwrap().chars().count()),
            (512, 256)
        );
    }

    #[test]
    fn refuses_what_is_no_bootc_host() {
        assert!(matches!(parse("{}"), Err(StatusError::Foreign { .. })));
        assert!(matches!(parse("Staged image:"), Err(StatusError::Malformed(_))));
        assert!(matches!(parse(""), Err(StatusError::Malformed(_))));
    }

    #[test]
    fn a_host_without_bootc_is_seldom_asked_for_it() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let good = BootcVersion::Version {
            version: "1.16.9".into(),
            download_only: false,
        };
        for (version, believed) in [
            (good, [true, true, true]),
            (BootcVersion::Missing, [true, true, false]),
            (BootcVersion::TooOld("1.1".into()), [true, false, false]),
            (BootcVersion::Failed("no answer".into()), [true, false, false]),
        ] {
            let found = [0, 59, 60].map(|age| version.is_believed(minutes(age), 5));
            assert_eq!(found, believed, "{version:?}");
        }
        assert!(!BootcVersion::Missing.is_believed(minutes(1), 4), "it may be booting");
    }

    #[test]
    fn finds_the_flag_in_the_help_of_switch() {
        for (help, found) in [
            (
                "Options:\n      --download-only\n          Stage the image, locked\n",
                true,
            ),
            ("Options:\n      --download-only    Stage the image, locked\n", true),
            (
                "      --from-downloaded  Apply what was staged with --download-only\n",
                false,
            ),
            ("      --download-only-once\n", false),
            ("Options:\n      --quiet\n", false),
            ("", false),
        ] {
            assert_eq!(lists_download_only(help), found, "{help}");
        }
    }

    #[test]
    fn reads_versions() {
        for (text, expected) in [
            ("bootc 1.16.9\n", Some(("1.16.9", (1, 16, 9)))),
            ("bootc 1.12.0", Some(("1.12.0", (1, 12, 0)))),
            ("1.1", Some(("1.1", (1, 1, 0)))),
            ("bootc 2.0.0-rc.1", Some(("2.0.0-rc.1", (2, 0, 0)))),
            ("bootc 202603201", None),
            ("bootc", None),
            ("no such file", None),
            ("", None),
        ] {
            let found = parse_version(text);
            let found = found.as_ref().map(|(t, n)| (t.as_str(), *n));
            assert_eq!(found, expected, "{text:?}");
        }
        assert!((1, 12, 0) < FLOOR && (1, 16, 9) > FLOOR);
    }

    /// Any JSON, with the names that the parser looks for among its keys.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            Just(json!(digest('d'))),
            Just(entry('e')),
        ];
        let key = prop_oneof![
            Just("image"),
            Just("staged"),
            Just("booted"),
            Just("incompatible"),
            Just("signature"),
            Just("imageDigest"),
            Just("timestamp"),
            Just("downloadOnly"),
            Just("x"),
        ];
        leaf.prop_recursive(4, 48, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(key.clone().prop_map(str::to_owned), inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn never_panics_on_any_json(status in any_json()) {
            let _ = parse(&host(status).to_string());
        }

        #[test]
        fn never_panics_on_damaged_output(at in 0usize..1200, byte: u8) {
            let mut text = host(json!({"booted": entry('a'), "staged": entry('b')})).to_string().into_bytes();
            let at = at % text.len();
            text[at] = byte;
            let _ = parse(&String::from_utf8_lossy(&text));
            text.truncate(at);
            let _ = parse(&String::from_utf8_lossy(&text));
        }

        #[test]
        fn never_panics_on_any_version(text in ".{0,40}") {
            let _ = parse_version(&text);
        }
    }
}
