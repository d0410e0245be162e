//! Parses `bootc status --format=json` and `bootc --version`. Does no I/O.
//!
//! bootc keeps the format of its status JSON stable. Fields that later releases added may be absent or null.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::Digest;
use berth_api::foreign::{bounded, is_printable};
use berth_api::node::Deployment;
use berth_core::agent::storage::{Storage, Version};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;

use crate::host::driver::HostStatus;
use crate::host::repository;

/// Version of the oldest supported bootc. This and later versions have `downloadOnly` and `--from-downloaded`, and
/// write only JSON to standard output.
pub const FLOOR: Version = (1, 12, 1);

/// How long a failed query of the version or the help, or the answer "missing" or "too old", is cached.
const VERSION_RETRY: Duration = Duration::from_secs(30);
/// How long "missing", or a version without a help, is cached after [`MISSING_TIMES`] such answers. Long, because each
/// query runs a unit that fails, and the host's journal shows each failure.
const MISSING_RETRY: Duration = Duration::from_secs(3600);
/// Consecutive "missing" answers before [`MISSING_RETRY`] applies. While a host boots, a few queries may find no bootc.
const MISSING_TIMES: u32 = 5;

/// Result of querying bootc's version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BootcVersion {
    /// No bootc was found.
    Missing,
    /// bootc is older than the oldest supported release.
    TooOld(String),
    /// bootc is supported.
    Version {
        /// Output of `bootc --version`, without the name.
        version: String,
        /// Version as numbers.
        numbers: Version,
        /// True if bootc has `switch --download-only`, which locks an image at the moment it is staged. `None` if bootc
        /// did not print its help.
        download_only: Option<bool>,
    },
    /// The version query failed, for this reason.
    Failed(String),
}

impl BootcVersion {
    /// True if an answer of this age may still be used. `times` is the number of consecutive queries with this answer.
    pub(super) fn is_fresh(&self, age: Duration, times: u32) -> bool {
        match self {
            Self::Version {
                download_only: Some(_), ..
            } => true,
            Self::Missing | Self::Version { .. } if times >= MISSING_TIMES => age < MISSING_RETRY,
            Self::Missing | Self::Version { .. } | Self::TooOld(_) | Self::Failed(_) => age < VERSION_RETRY,
        }
    }
}

/// Result of `bootc status`.
#[derive(Debug, Clone, PartialEq)]
pub enum BootcStatus {
    /// bootc reports no booted image: the host was installed without bootc, or bootc ran inside a container.
    NotBootc,
    /// rpm-ostree has layered packages on the image; `switch` would silently drop them.
    Layered,
    /// The host was booted from an image.
    Host(Box<HostStatus>),
}

#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    #[error("cannot parse bootc status: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("bootc status returned kind {kind:?} of apiVersion {api_version:?} instead of a BootcHost")]
    Foreign { kind: String, api_version: String },
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawHost {
    api_version: String,
    kind: String,
    status: Option<RawStatus>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    staged: Option<RawEntry>,
    booted: Option<RawEntry>,
    rollback: Option<RawEntry>,
    rollback_queued: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEntry {
    image: Option<RawImage>,
    incompatible: Option<bool>,
    download_only: Option<bool>,
    pinned: Option<bool>,
    soft_reboot_capable: Option<bool>,
    composefs: Option<RawComposefs>,
    ostree: Option<RawOstree>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawOstree {
    stateroot: String,
    checksum: String,
    deploy_serial: u32,
}

/// A composefs deployment. Only the fields that Berth reads, and each may have any type in a later release.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct RawComposefs {
    verity: RawText,
    boot_type: RawText,
    bootloader: RawText,
}

/// A text, or a JSON value of another type, which counts as no text.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawText {
    Text(String),
    Other(serde::de::IgnoredAny),
}

impl Default for RawText {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl RawText {
    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Other(_) => "",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawImage {
    #[serde(default)]
    image: RawReference,
    version: Option<String>,
    timestamp: Option<String>,
    image_digest: Option<String>,
    architecture: Option<String>,
}

#[derive(Deserialize, Default)]
struct RawReference {
    #[serde(default)]
    image: String,
    signature: Option<RawSignature>,
}

/// The image's signature rule in bootc's JSON: a string, or an object with one key.
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

/// Parses the output of `bootc status --format=json --format-version=1`.
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
        Some(RawEntry {
            image: Some(image),
            pinned,
            composefs,
            ostree,
            ..
        }) => BootcStatus::Host(Box::new(HostStatus {
            booted_commit: commit(ostree.as_ref()),
            staged_commit: commit(status.staged.as_ref().and_then(|staged| staged.ostree.as_ref())),
            uki_entries: composefs.as_ref().is_some_and(has_uki_entries),
            storage: composefs.map_or(Storage::Ostree, |_| Storage::Composefs),
            staged_files: files(status.staged.as_ref()),
            staged_verity: verity(status.staged.as_ref()),
            staged_layers: status.staged.as_ref().is_some_and(|s| s.incompatible == Some(true)),
            signature_enforced: enforced(&image),
            staged_signed: status
                .staged
                .as_ref()
                .and_then(|s| s.image.as_ref())
                .is_some_and(enforced),
            booted: Deployment {
                pinned: pinned.unwrap_or(false),
                ..deployment(Some(image), false)
            },
            staged: status.staged.map(entry),
            rollback: status.rollback.map(entry),
            rollback_queued: status.rollback_queued.unwrap_or(false),
            ..HostStatus::default()
        })),
        _ => BootcStatus::NotBootc,
    })
}

fn enforced(image: &RawImage) -> bool {
    image.image.signature.as_ref().is_some_and(RawSignature::enforced)
}

/// Returns the deployment's ostree commit; `None` if the checksum is not a valid commit ID.
fn commit(ostree: Option<&RawOstree>) -> Option<String> {
    let checksum = &ostree?.checksum;
    repository::is_commit(checksum).then(|| checksum.clone())
}

fn files(entry: Option<&RawEntry>) -> Option<PathBuf> {
    let ostree = entry?.ostree.as_ref()?;
    repository::checkout(&ostree.stateroot, &ostree.checksum, ostree.deploy_serial)
}

/// Lengths of the fs-verity digests that composefs uses: SHA-256 and SHA-512 in hexadecimal digits.
const VERITY_LENGTHS: [usize; 2] = [64, 128];

/// Returns the name of a composefs deployment. One image can have several names, because bootc encodes its files in
/// several formats with a digest each (bootc#2248). So a name is never compared with an image: it only names the
/// deployment to remove.
fn verity(entry: Option<&RawEntry>) -> Option<String> {
    let verity = entry?.composefs.as_ref()?.verity.text();
    let is_hex = VERITY_LENGTHS.contains(&verity.len()) && verity.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| verity.to_owned())
}

/// True if a UKI boots, and the boot loader finds it through a boot loader entry. GRUB finds UKIs through its own menu.
fn has_uki_entries(booted: &RawComposefs) -> bool {
    booted.boot_type.text() == "Uki" && booted.bootloader.text() != "grub"
}

fn entry(entry: RawEntry) -> Deployment {
    Deployment {
        pinned: entry.pinned.unwrap_or(false),
        soft_reboot_capable: entry.soft_reboot_capable.unwrap_or(false),
        ..deployment(entry.image, entry.download_only.unwrap_or(false))
    }
}

/// Converts an image of bootc's status. Makes each text one line of at most the length in the BootcNode's schema.
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
        pinned: false,
        soft_reboot_capable: false,
    }
}

/// Longest version, in characters. The rest of a longer one is ignored.
const MAX_VERSION: usize = 64;

/// Parses the output of `bootc --version`. Returns the version as text and as numbers.
pub fn parse_version(text: &str) -> Option<(String, Version)> {
    let mut words = text.split_whitespace();
    let version = match (words.next()?, words.next()) {
        ("bootc", Some(version)) => version,
        (version, None) => version,
        _ => return None,
    };
    if !is_printable(version) {
        return None;
    }
    let version = bounded(version, MAX_VERSION);
    let mut numbers = version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u32>().ok()
    });
    let major = numbers.next()??;
    let minor = numbers.next()??;
    let patch = numbers.next().flatten().unwrap_or(0);
    Some((version, (major, minor, patch)))
}

/// True if the output of `bootc switch --help` lists `--download-only`. bootc before 1.16.10 lacks it.
pub fn lists_download_only(help: &str) -> bool {
    help.lines()
        .any(|line| line.split_whitespace().next() == Some("--download-only"))
}

#[cfg(test)]
mod tests;
