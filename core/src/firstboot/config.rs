//! Reads `/etc/berth/firstboot.toml`, the configuration of the first-boot check. The tool that provisions the machine
//! creates it.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::ImageRef;
use berth_api::boot_image::{BootImageLimit, MAX_SKEW};
use berth_api::condition::one_line;
use berth_api::duration;
use berth_api::foreign::is_printable;
use serde::Deserialize;

use super::node::Signs;
use crate::skew::version::OsVersion;

/// Path of the file on the host.
pub const PATH: &str = "/etc/berth/firstboot.toml";
/// Longest accepted file, in bytes.
pub const MAX_LENGTH: usize = 64 << 10;
/// Path of the override file if the configuration names none. An admin creates the file to let the machine join anyway.
pub const OVERRIDE_FILE: &str = "/etc/berth/firstboot.override";

/// Directories that the check cannot read, since its systemd unit hides them (`ProtectHome=`, `PrivateTmp=`).
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

const DEADLINE: Duration = Duration::from_secs(600);
const DEADLINE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of entries in `nodeFiles`, and also in `nodeProcesses`.
const MAX_SIGNS: usize = 32;

/// Longest name of a Node.
const MAX_NODE_NAME: usize = 253;

/// How the check reacts if the boot image (the image that the machine was installed from) is too old for the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnViolation {
    /// Keep the kubelet from starting.
    #[default]
    Block,
    /// Let the kubelet start, and report the violation.
    Warn,
}

/// Configuration of the first-boot check of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Target: the OS image that the machine should run.
    pub image: ImageRef,
    /// How the check reacts if the boot image is too old for the target.
    pub on_violation: OnViolation,
    /// Longest time that the boot waits for the registry and the pivot together.
    pub deadline: Duration,
    /// True to pivot: update the machine to the target before its kubelet starts.
    pub pivot: bool,
    /// Path of the override file. If an admin creates that file, the machine joins its cluster whatever the check
    /// finds.
    pub override_file: PathBuf,
    /// Limit for boot images. A field that is set here replaces the same field in the target's labels.
    pub limit: BootImageLimit,
    /// Kubeconfig of the identity that writes an Event if the result needs attention. `None`: write no Event.
    pub kubeconfig: Option<PathBuf>,
    /// Name of the machine's Node, for the Event. `None`: the hostname.
    pub node_name: Option<String>,
    /// Files and processes that show that the machine is already a node, in addition to the built-in ones.
    pub signs: Signs,
}

/// Error in the configuration file, with advice how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

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
    /// Parses the content of the configuration file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(content: &[u8]) -> Result<Self, ConfigError> {
        if content.len() > MAX_LENGTH {
            return Err(ConfigError(format!("the file is longer than {MAX_LENGTH} bytes")));
        }
        let text = std::str::from_utf8(content).map_err(|_| ConfigError("the file is not UTF-8".to_owned()))?;
        let raw: RawConfig = toml::from_str(text).map_err(|error| malformed(text, &error))?;
        let image: ImageRef = raw.image.parse().map_err(|e| invalid("image", format!("{e}")))?;
        let deadline = raw.deadline.map(|text| duration::parse(&text)).transpose();
        let deadline = deadline
            .map_err(|e| invalid("deadline", e.to_string()))?
            .unwrap_or(DEADLINE);
        if deadline.is_zero() || deadline > DEADLINE_MAX {
            let why = "the value must be from 1s to 24h".to_owned();
            return Err(invalid("deadline", why));
        }
        let signs = signs(raw.node_files, raw.node_processes)?;
        let minimum = raw.limit.minimum_version;
        if let Some(Err(error)) = minimum.as_deref().map(str::parse::<OsVersion>) {
            return Err(invalid("limit.minimumVersion", error.to_string()));
        }
        if raw.limit.max_major_skew.is_some_and(|most| most > MAX_SKEW) {
            let why = format!("the value must be a number of major versions up to {MAX_SKEW}");
            return Err(invalid("limit.maxMajorSkew", why));
        }
        Ok(Self {
            image,
            on_violation: raw.on_violation,
            deadline,
            pivot: raw.pivot,
            override_file: optional_path("overrideFile", raw.override_file)?.unwrap_or_else(|| OVERRIDE_FILE.into()),
            limit: BootImageLimit {
                minimum_version: minimum,
                max_major_skew: raw.limit.max_major_skew,
                error: None,
            },
            kubeconfig: optional_path("kubeconfig", raw.kubeconfig)?,
            node_name: node_name(raw.node_name)?,
            signs,
        })
    }

    /// Returns the limit to apply. Each field comes from the configuration, or from the target's labels if the
    /// configuration does not set it.
    pub fn limit_for(&self, image: Option<&BootImageLimit>) -> BootImageLimit {
        let image = image.cloned().unwrap_or_default();
        let own = &self.limit;
        BootImageLimit {
            minimum_version: own.minimum_version.clone().or(image.minimum_version),
            // The error is about the label with the maximum skew. That label does not matter if the configuration sets
            // a maximum.
            error: image.error.filter(|_| own.max_major_skew.is_none()),
            max_major_skew: own.max_major_skew.or(image.max_major_skew),
        }
    }
}

fn invalid(key: &str, why: String) -> ConfigError {
    ConfigError(format!("{key}: {why}"))
}

fn optional_path(key: &str, text: Option<String>) -> Result<Option<PathBuf>, ConfigError> {
    text.map(|text| path(key, text)).transpose()
}

/// Parses a path. Fails if the path is not absolute, or if the check cannot access it.
fn path(key: &str, text: String) -> Result<PathBuf, ConfigError> {
    let path = PathBuf::from(text);
    if !path.is_absolute() {
        let why = format!("{:?} is not an absolute path", path.display().to_string());
        return Err(invalid(key, why));
    }
    if let Some(hidden) = HIDDEN.iter().find(|hidden| path.starts_with(hidden)) {
        let why = format!("berth-firstboot.service cannot access files in {hidden}; put the file into /etc/berth");
        return Err(invalid(key, why));
    }
    Ok(path)
}

/// Returns the name of the machine's Node; `None` if it is missing or empty.
fn node_name(text: Option<String>) -> Result<Option<String>, ConfigError> {
    let name = text.filter(|name| !name.is_empty());
    if name
        .as_ref()
        .is_some_and(|name| name.len() > MAX_NODE_NAME || !is_printable(name))
    {
        let why = format!("must be one line of at most {MAX_NODE_NAME} characters");
        return Err(invalid("nodeName", why));
    }
    Ok(name)
}

fn signs(files: Vec<String>, processes: Vec<String>) -> Result<Signs, ConfigError> {
    for (key, count) in [("nodeFiles", files.len()), ("nodeProcesses", processes.len())] {
        if count > MAX_SIGNS {
            return Err(invalid(key, format!("the list must have at most {MAX_SIGNS} entries")));
        }
    }
    let mut signs = Signs::default();
    for file in files {
        signs.files.push(path("nodeFiles", file)?);
    }
    for process in processes {
        if process.is_empty() || process.contains(['/', '\0']) {
            let why = format!(
                "{process:?} is not the name of a process; write the name without a directory, for example kubelet"
            );
            return Err(invalid("nodeProcesses", why));
        }
        signs.processes.push(process);
    }
    Ok(signs)
}

/// Returns the TOML parser's error as one line that begins with the line number.
fn malformed(text: &str, error: &toml::de::Error) -> ConfigError {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map(|before| format!("line {}: ", before.matches('\n').count() + 1));
    ConfigError(format!("{}{}", line.unwrap_or_default(), one_line(error.message())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEAST: &str = "image = \"quay.io/example/os:stable\"\n";

    #[test]
    fn missing_values_have_defaults() {
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
    fn additional_signs_of_a_node_are_read() {
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
    fn the_largest_values_are_accepted() {
        let longest = format!("{LEAST}{}", "#".repeat(MAX_LENGTH - LEAST.len()));
        assert!(Config::parse(longest.as_bytes()).is_ok());
        let most = format!("{LEAST}deadline = \"24h\"\n[limit]\nmaxMajorSkew = {MAX_SKEW}\n");
        let config = Config::parse(most.as_bytes()).unwrap();
        assert_eq!(
            (config.deadline, config.limit.max_major_skew),
            (DEADLINE_MAX, Some(MAX_SKEW))
        );
    }

    #[test]
    fn an_empty_node_name_is_ignored() {
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
        ] {
            let error = Config::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        for (more, words) in [
            ("onviolation = \"warn\"", "line 2: unknown field `onviolation`"),
            ("onViolation = \"ask\"", "line 2: unknown variant `ask`"),
            ("deadline = \"soon\"", "deadline: \"soon\" is not a duration"),
            ("deadline = \"0\"", "deadline: the value must be from 1s to 24h"),
            ("deadline = \"25h\"", "deadline: the value must be from"),
            ("overrideFile = \"go\"", "overrideFile: \"go\" is not an absolute path"),
            (
                "overrideFile = \"/root/go\"",
                "overrideFile: berth-firstboot.service cannot access files in /root",
            ),
            (
                "kubeconfig = \"/tmp/kubeconfig\"",
                "kubeconfig: berth-firstboot.service cannot access files in /tmp",
            ),
            ("nodeName = \"a\\nb\"", "nodeName: must be one line"),
            ("nodeFiles = [\"pods\"]", "nodeFiles: \"pods\" is not an absolute path"),
            (
                "nodeProcesses = [\"/usr/bin/node\"]",
                "nodeProcesses: \"/usr/bin/node\" is not the name of a process",
            ),
            ("[limit]\nminimum = \"9\"", "line 3: unknown field `minimum`"),
            ("[limit]\nminimumVersion = \"new\"", "limit.minimumVersion: "),
            ("[limit]\nmaxMajorSkew = -1", "line 3: invalid value"),
            (
                "[limit]\nmaxMajorSkew = 1001",
                "limit.maxMajorSkew: the value must be a number",
            ),
        ] {
            let text = format!("{LEAST}{more}");
            let error = Config::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(words), "{text:?}: {error}");
        }
        assert!(Config::parse(&[0xff]).is_err() && Config::parse(&vec![b'#'; MAX_LENGTH + 1]).is_err());
    }

    #[test]
    fn the_files_limit_overrides_the_images() {
        let of_image = BootImageLimit {
            minimum_version: Some("9.2".to_owned()),
            max_major_skew: None,
            error: Some("its label is \"x\"".to_owned()),
        };
        let another_minimum = BootImageLimit {
            minimum_version: Some("9.0".to_owned()),
            ..of_image.clone()
        };
        let two_majors = BootImageLimit {
            max_major_skew: Some(2),
            error: None,
            ..of_image.clone()
        };
        for (text, expected) in [
            ("", of_image.clone()),
            ("minimumVersion = \"9.0\"", another_minimum),
            ("maxMajorSkew = 2", two_majors),
        ] {
            let config = Config::parse(format!("{LEAST}[limit]\n{text}").as_bytes()).unwrap();
            assert_eq!(config.limit_for(Some(&of_image)), expected, "{text}");
        }
        assert!(Config::parse(LEAST.as_bytes()).unwrap().limit_for(None).is_none());
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Config::parse(text.as_bytes());
            let _ = Config::parse(&bytes);
            let _ = Config::parse(format!("{LEAST}{text}").as_bytes());
        }
    }
}
