//! The file `/etc/berth/firstboot.toml`, which whoever provisions a machine puts there.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::ImageRef;
use berth_api::boot_image::{BootImageLimit, MAX_SKEW};
use berth_api::condition::one_line;
use berth_api::duration;
use serde::Deserialize;

use super::node::Signs;
use crate::skew::version::OsVersion;

/// The file, as the host sees it.
pub const PATH: &str = "/etc/berth/firstboot.toml";
/// Longest file that is read, in bytes.
pub const MAX_LENGTH: usize = 64 << 10;
/// The override file, unless the configuration names another one.
pub const OVERRIDE_FILE: &str = "/etc/berth/firstboot.override";

/// Directories that the unit hides from the check (`ProtectHome=`, `PrivateTmp=`).
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// Deadline, unless the configuration names another one.
const DEADLINE: Duration = Duration::from_secs(600);
/// Longest deadline.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Most signs of a node that the file may name, of each kind.
const MAX_SIGNS: usize = 32;

/// Consequence of a boot image that is too far away.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnViolation {
    /// The kubelet does not start.
    #[default]
    Block,
    /// The boot goes on as it is, and people are told.
    Warn,
}

/// Orders for a machine's first boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Target: the OS image that the machine is to run.
    pub image: ImageRef,
    /// Consequence of a boot image that is too far away.
    pub on_violation: OnViolation,
    /// Longest time that the boot waits for the registry, and for the change to the target.
    pub deadline: Duration,
    /// Change to the target before the kubelet runs.
    pub pivot: bool,
    /// File by which an admin lets the machine go on, whatever was found.
    pub override_file: PathBuf,
    /// Limit that counts in place of the image's own, field by field.
    pub limit: BootImageLimit,
    /// Kubeconfig with which an event is written.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the machine's Node, for the event; absent: the host's name.
    pub node_name: Option<String>,
    /// Signs that the machine is a node, beside the known ones.
    pub signs: Signs,
}

/// Error of a configuration file. Each message says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not UTF-8, or too long.
    #[error("{0}")]
    Unreadable(String),
    /// No TOML, an unknown key, or a value of another type.
    #[error("{0}")]
    Malformed(String),
    /// A value that makes no sense.
    #[error("{key}: {why}")]
    Value {
        /// The key.
        key: &'static str,
        /// Error in its value, and what to write.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawConfig {
    image: String,
    #[serde(default)]
    on_violation: OnViolation,
    deadline: Option<String>,
    #[serde(default)]
    pivot: bool,
    override_file: Option<String>,
    kubeconfig: Option<String>,
    node_name: Option<String>,
    #[serde(default)]
    node_files: Vec<String>,
    #[serde(default)]
    node_processes: Vec<String>,
    #[serde(default)]
    limit: RawLimit,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RawLimit {
    minimum_version: Option<String>,
    max_major_skew: Option<u32>,
}

impl Config {
    /// Reads the file's content.
    ///
    /// # Errors
    /// As [`ConfigError`] says.
    pub fn parse(content: &[u8]) -> Result<Self, ConfigError> {
        if content.len() > MAX_LENGTH {
            return Err(ConfigError::Unreadable(format!("it is longer than {MAX_LENGTH} bytes")));
        }
        let text =
            std::str::from_utf8(content).map_err(|_| ConfigError::Unreadable("it is not UTF-8 text".to_owned()))?;
        let raw: RawConfig = toml::from_str(text).map_err(|error| malformed(text, &error))?;
        let value = |key, why: String| ConfigError::Value { key, why };
        let image: ImageRef = raw.image.parse().map_err(|e| value("image", format!("{e}")))?;
        let deadline = raw.deadline.map(|text| duration::parse(&text)).transpose();
        let deadline = deadline
            .map_err(|e| value("deadline", e.to_string()))?
            .unwrap_or(DEADLINE);
        if deadline.is_zero() || deadline > LONGEST {
            let why = "write a time from 1s to 24h: the boot waits so long at most".to_owned();
            return Err(value("deadline", why));
        }
        let path = |key, path: Option<String>| match path.map(PathBuf::from) {
            Some(path) if !path.is_absolute() => Err(value(
                key,
                format!("{:?} is no absolute path", path.display().to_string()),
            )),
            path => Ok(path),
        };
        let path = |key, text| match path(key, text)? {
            Some(path) => match HIDDEN.iter().find(|hidden| path.starts_with(hidden)) {
                Some(hidden) => {
                    let why =
                        format!("berth-firstboot.service does not see what is under {hidden}; put it into /etc/berth");
                    Err(value(key, why))
                }
                None => Ok(Some(path)),
            },
            None => Ok(None),
        };
        let signs = signs(raw.node_files, raw.node_processes, path)?;
        let minimum = raw.limit.minimum_version;
        if let Some(Err(error)) = minimum.as_deref().map(str::parse::<OsVersion>) {
            return Err(value("limit.minimumVersion", error.to_string()));
        }
        if raw.limit.max_major_skew.is_some_and(|most| most > MAX_SKEW) {
            let why = format!("write a number of major versions up to {MAX_SKEW}");
            return Err(value("limit.maxMajorSkew", why));
        }
        Ok(Self {
            image,
            on_violation: raw.on_violation,
            deadline,
            pivot: raw.pivot,
            override_file: path("overrideFile", raw.override_file)?.unwrap_or_else(|| OVERRIDE_FILE.into()),
            limit: BootImageLimit {
                minimum_version: minimum,
                max_major_skew: raw.limit.max_major_skew,
                error: None,
            },
            kubeconfig: path("kubeconfig", raw.kubeconfig)?,
            node_name: raw.node_name.filter(|name| !name.is_empty()),
            signs,
        })
    }

    /// Limit that counts for an image with this limit of its own.
    pub fn limit_for(&self, image: Option<&BootImageLimit>) -> BootImageLimit {
        let image = image.cloned().unwrap_or_default();
        let own = &self.limit;
        BootImageLimit {
            minimum_version: own.minimum_version.clone().or(image.minimum_version),
            // An error is about the image's number of major versions.
            error: image.error.filter(|_| own.max_major_skew.is_none()),
            max_major_skew: own.max_major_skew.or(image.max_major_skew),
        }
    }
}

/// Signs of a node. `path` reads the path of a file.
fn signs(
    files: Vec<String>,
    processes: Vec<String>,
    path: impl Fn(&'static str, Option<String>) -> Result<Option<PathBuf>, ConfigError>,
) -> Result<Signs, ConfigError> {
    let wrong = |key, why: String| ConfigError::Value { key, why };
    for (key, count) in [("nodeFiles", files.len()), ("nodeProcesses", processes.len())] {
        if count > MAX_SIGNS {
            return Err(wrong(key, format!("name {MAX_SIGNS} at most")));
        }
    }
    let mut signs = Signs::default();
    for file in files {
        signs.files.extend(path("nodeFiles", Some(file))?);
    }
    for process in processes {
        if process.is_empty() || process.contains(['/', '\0']) {
            let why =
                format!("{process:?} is not the name of a process: write it without its directory, as in kubelet");
            return Err(wrong("nodeProcesses", why));
        }
        signs.processes.push(process);
    }
    Ok(signs)
}

/// The parser's words in one line, with the line of the file.
fn malformed(text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!("line {}: ", before.matches('\n').count() + 1));
    ConfigError::Malformed(format!("{}{}", line.unwrap_or_default(), one_line(error.message())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAST: &str = "image = \"quay.io/example/os:stable\"\n";

    #[test]
    fn what_is_not_said_has_a_default() {
        let config = Config::parse(LEAST.as_bytes()).unwrap();
        assert_eq!(
            (config.on_violation, config.deadline, config.pivot),
            (OnViolation::Block, Duration::from_secs(600), false)
        );
        assert_eq!(config.override_file, PathBuf::from(OVERRIDE_FILE));
        assert!(config.limit.is_none() && config.kubeconfig.is_none());
        assert_eq!(config.signs, Signs::default());
    }

    #[test]
    fn signs_of_a_node_can_be_named() {
        let text = format!("{LEAST}nodeFiles = [\"/srv/kubelet/pods\"]\nnodeProcesses = [\"our-node\"]\n");
        let signs = Config::parse(text.as_bytes()).unwrap().signs;
        assert_eq!(signs.files, [PathBuf::from("/srv/kubelet/pods")]);
        assert_eq!(signs.processes, ["our-node"]);
        for (key, sign) in [("nodeProcesses", "\"x\""), ("nodeFiles", "\"/x\"")] {
            for (count, taken) in [(MAX_SIGNS, true), (MAX_SIGNS + 1, false)] {
                let text = format!("{LEAST}{key} = [{}]\n", vec![sign; count].join(","));
                assert_eq!(Config::parse(text.as_bytes()).is_ok(), taken, "{count} {key}");
            }
        }
    }

    #[test]
    fn the_most_that_may_be_said_is_taken() {
        let longest = format!("{LEAST}{}", "#".repeat(MAX_LENGTH - LEAST.len()));
        assert!(Config::parse(longest.as_bytes()).is_ok());
        let most = format!("{LEAST}deadline = \"24h\"\n[limit]\nmaxMajorSkew = {MAX_SKEW}\n");
        let config = Config::parse(most.as_bytes()).unwrap();
        assert_eq!(
            (config.deadline, config.limit.max_major_skew),
            (LONGEST, Some(MAX_SKEW))
        );
    }

    #[test]
    fn an_empty_name_of_the_node_is_none() {
        for (text, name) in [("", None), ("nodeName = \"\"", None), ("nodeName = \"n1\"", Some("n1"))] {
            let config = Config::parse(format!("{LEAST}{text}").as_bytes()).unwrap();
            assert_eq!(config.node_name.as_deref(), name, "{text}");
        }
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, words) in [
            ("", "missing field `image`"),
            ("image = 3", "line 1: invalid type"),
            ("image = \"os\"", "image: \"os\" names no registry"),
            ("nonsense", "line 1: "),
            (
                "image = \"r.io/os:1\"\nonviolation = \"warn\"",
                "line 2: unknown field `onviolation`",
            ),
            (
                "image = \"r.io/os:1\"\nonViolation = \"ask\"",
                "line 2: unknown variant `ask`",
            ),
            (
                "image = \"r.io/os:1\"\ndeadline = \"soon\"",
                "deadline: \"soon\" is not a duration",
            ),
            (
                "image = \"r.io/os:1\"\ndeadline = \"0\"",
                "deadline: write a time from 1s to 24h",
            ),
            ("image = \"r.io/os:1\"\ndeadline = \"25h\"", "deadline: write a time"),
            (
                "image = \"r.io/os:1\"\noverrideFile = \"go\"",
                "overrideFile: \"go\" is no absolute path",
            ),
            (
                "image = \"r.io/os:1\"\noverrideFile = \"/root/go\"",
                "overrideFile: berth-firstboot.service does not see what is under /root",
            ),
            (
                "image = \"r.io/os:1\"\nkubeconfig = \"/tmp/kubeconfig\"",
                "kubeconfig: berth-firstboot.service does not see what is under /tmp",
            ),
            (
                "image = \"r.io/os:1\"\nnodeFiles = [\"pods\"]",
                "nodeFiles: \"pods\" is no absolute path",
            ),
            (
                "image = \"r.io/os:1\"\nnodeProcesses = [\"/usr/bin/node\"]",
                "nodeProcesses: \"/usr/bin/node\" is not the name of a process",
            ),
            (
                "image = \"r.io/os:1\"\n[limit]\nminimum = \"9\"",
                "line 3: unknown field `minimum`",
            ),
            (
                "image = \"r.io/os:1\"\n[limit]\nminimumVersion = \"new\"",
                "limit.minimumVersion: ",
            ),
            (
                "image = \"r.io/os:1\"\n[limit]\nmaxMajorSkew = -1",
                "line 3: invalid value",
            ),
            (
                "image = \"r.io/os:1\"\n[limit]\nmaxMajorSkew = 1001",
                "limit.maxMajorSkew: write a number",
            ),
        ] {
            let error = Config::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        assert!(Config::parse(&[0xff]).is_err() && Config::parse(&vec![b'#'; MAX_LENGTH + 1]).is_err());
    }

    #[test]
    fn a_limit_of_the_file_counts_in_place_of_the_images() {
        let limit = |minimum: Option<&str>, most, error: Option<&str>| BootImageLimit {
            minimum_version: minimum.map(str::to_owned),
            max_major_skew: most,
            error: error.map(str::to_owned),
        };
        let of_image = limit(Some("9.2"), None, Some("its label is \"x\""));
        for (text, expected) in [
            ("", of_image.clone()),
            (
                "minimumVersion = \"9.0\"",
                limit(Some("9.0"), None, Some("its label is \"x\"")),
            ),
            ("maxMajorSkew = 2", limit(Some("9.2"), Some(2), None)),
        ] {
            let config = Config::parse(format!("{LEAST}[limit]\n{text}").as_bytes()).unwrap();
            assert_eq!(config.limit_for(Some(&of_image)), expected, "{text}");
        }
        assert!(Config::parse(LEAST.as_bytes()).unwrap().limit_for(None).is_none());
    }

    proptest! {
        #[test]
        fn any_text_gives_an_answer(text in "\\PC{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Config::parse(text.as_bytes());
            let _ = Config::parse(&bytes);
            let _ = Config::parse(format!("{LEAST}{text}").as_bytes());
        }
    }
}
