//! Parses the daemon's `Deployments`: an array of dictionaries with some forty keys, many of them optional. A missing
//! or malformed key affects only its own field. This module does no I/O.

use std::collections::HashMap;
use std::path::PathBuf;

use berth_api::Digest;
use berth_api::foreign::bounded;
use berth_api::node::Deployment;
use berth_core::agent::storage::Storage;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Deserialize;
use zbus::{OwnedVariant, Variant};

use super::lock::Lock;
use crate::host::driver::HostStatus;
use crate::host::repository;

pub(super) type Entry = HashMap<String, OwnedVariant>;

/// Keys of the packages that an admin layered (by name or from a file), removed, or replaced. An update keeps these
/// changes.
const LAYERS: [&str; 5] = [
    "requested-packages",
    "requested-local-packages",
    "requested-local-fileoverride-packages",
    "requested-base-removals",
    "requested-base-local-replacements",
];

/// Key of the packages that an admin replaced from a repository. The value has the repository's kind and name, and the
/// packages.
const REMOTE_REPLACEMENTS: &str = "requested-base-remote-replacements";

/// Keys of other changes. An update by rpm-ostree keeps these changes, and bootc would drop them. Used only to compare
/// two deployments.
const OTHER_CHANGES: [&str; 5] = [
    REMOTE_REPLACEMENTS,
    "regenerate-initramfs",
    "initramfs-etc",
    "initramfs-args",
    "cliwrap",
];

/// Returns the host's deployments. `lock` is the lock of the staged deployment as ostree's files show it. Fails if no
/// deployment is booted.
pub(super) fn parse(entries: &[Entry], lock: Lock) -> Result<HostStatus, String> {
    let booted_at = entries.iter().position(|entry| is_set(entry, "booted"));
    let Some((booted_at, booted)) = booted_at.and_then(|at| Some((at, entries.get(at)?))) else {
        return Err(
            "rpm-ostree reports no booted deployment; the host was not booted from an ostree deployment".to_owned(),
        );
    };
    let staged = entries.iter().find(|entry| is_set(entry, "staged"));
    let rollback_at = entries
        .iter()
        .position(|entry| !is_set(entry, "staged") && !is_set(entry, "booted"));
    let lock = match staged.and_then(|entry| flag(entry, "finalization-locked")) {
        Some(true) => Lock::Locked,
        Some(false) | None => lock,
    };
    let unreadable_lock = match &lock {
        Lock::Unreadable(why) if staged.is_some() => Some(why.clone()),
        _ => None,
    };
    Ok(HostStatus {
        booted: deployment(booted, false),
        booted_commit: commit(booted),
        staged_commit: staged.and_then(commit),
        staged: staged.map(|entry| deployment(entry, lock == Lock::Locked)),
        unreadable_lock,
        staged_signed: staged.is_some_and(is_signed),
        rollback: rollback_at
            .and_then(|at| entries.get(at))
            .map(|entry| deployment(entry, false)),
        rollback_queued: rollback_at.is_some_and(|at| at < booted_at),
        signature_enforced: is_signed(booted),
        storage: Storage::Ostree,
        staged_files: staged.and_then(files),
        staged_verity: None,
        uki_entries: false,
        layered_packages: packages(booted),
        staged_layers: staged.is_some_and(|staged| changes(staged) != changes(booted)),
    })
}

fn files(entry: &Entry) -> Option<PathBuf> {
    let Variant::I32(serial) = inner(entry.get("serial")?) else {
        return None;
    };
    let serial = u32::try_from(*serial).ok()?;
    repository::checkout(&text(entry, "osname")?, &text(entry, "checksum")?, serial)
}

fn commit(entry: &Entry) -> Option<String> {
    text(entry, "checksum").filter(|checksum| repository::is_commit(checksum))
}

fn is_signed(entry: &Entry) -> bool {
    text(entry, "container-image-reference").is_some_and(|reference| origin(&reference).1)
}

/// Converts an entry. Makes each text one line of at most the length in the BootcNode's schema.
fn deployment(entry: &Entry, locked: bool) -> Deployment {
    let image = text(entry, "container-image-reference").map(|reference| origin(&reference).0);
    let digest = match &image {
        // Without a digest from the daemon, use the digest in the image's name, if there is one.
        Some(image) => text(entry, "container-image-reference-digest")
            .and_then(|digest| digest.parse().ok())
            .or_else(|| image.rsplit_once('@')?.1.parse().ok()),
        // Only the commit identifies a deployment without a container image.
        None => text(entry, "checksum").and_then(|checksum| format!("sha256:{checksum}").parse::<Digest>().ok()),
    };
    let image = image.or_else(|| text(entry, "origin")).unwrap_or_default();
    let seconds = number(entry, "timestamp").and_then(|seconds| i64::try_from(seconds).ok());
    Deployment {
        image: bounded(&image, 512),
        digest,
        version: text(entry, "version").map(|version| bounded(&version, 256)),
        architecture: architecture(entry).map(|architecture| bounded(&architecture, 32)),
        timestamp: seconds.and_then(|s| Timestamp::from_second(s).ok()).map(Time::from),
        locked,
        pinned: is_set(entry, "pinned"),
        soft_reboot_capable: false,
    }
}

/// Splits a reference such as `ostree-unverified-registry:quay.io/os@sha256:…`. Returns the image's name, and whether
/// the host checks its signatures.
fn origin(reference: &str) -> (String, bool) {
    const UNVERIFIED: &str = "ostree-unverified-";
    const SIGNED: &str = "ostree-image-signed:";
    const REMOTE: &str = "ostree-remote-";
    let (rest, signed) = if let Some(rest) = reference.strip_prefix(UNVERIFIED) {
        // `registry:` stands for `image:registry:`.
        (rest.strip_prefix("image:").unwrap_or(rest), false)
    } else if let Some(rest) = reference.strip_prefix(SIGNED) {
        (rest, true)
    } else if let Some(rest) = reference.strip_prefix(REMOTE) {
        let (kind, rest) = rest.split_once(':').unwrap_or(("", rest));
        let image = rest.split_once(':').map_or(rest, |(_, image)| image);
        if kind == "registry" {
            return (image.to_owned(), true);
        }
        (image, true)
    } else {
        (reference, false)
    };
    (strip_transport(rest).to_owned(), signed)
}

fn strip_transport(image: &str) -> &str {
    let known = ["docker://", "registry:", "containers-storage:"];
    known
        .iter()
        .find_map(|prefix| image.strip_prefix(prefix))
        .unwrap_or(image)
}

fn packages(entry: &Entry) -> Vec<String> {
    let mut names: Vec<String> = LAYERS.iter().flat_map(|key| texts(entry, key)).collect();
    names.extend(replaced(entry));
    names.sort();
    names.dedup();
    names
}

/// Returns the packages replaced from a repository. The daemon sends a dictionary or a list of pairs. Both map a
/// repository's name to its packages.
fn replaced(entry: &Entry) -> Vec<String> {
    let mut names = vec![];
    match entry.get(REMOTE_REPLACEMENTS).map(|value| inner(value)) {
        Some(Variant::Dict(repositories)) => {
            for (_, packages) in repositories.iter() {
                collect_texts(packages, &mut names);
            }
        }
        Some(Variant::Array(repositories)) => {
            for repository in repositories.iter() {
                if let Variant::Structure(pair) = inner(repository) {
                    let packages = pair.fields().iter().skip(1);
                    packages.for_each(|packages| collect_texts(packages, &mut names));
                }
            }
        }
        _ => {}
    }
    names
}

fn collect_texts(value: &Variant<'_>, names: &mut Vec<String>) {
    match inner(value) {
        Variant::Str(text) if !text.is_empty() => names.push(text.as_str().to_owned()),
        Variant::Array(items) => items.iter().for_each(|item| collect_texts(item, names)),
        Variant::Structure(fields) => fields.fields().iter().for_each(|field| collect_texts(field, names)),
        _ => {}
    }
}

/// Returns all changes to the deployment's image. A missing key counts as false or empty.
fn changes(entry: &Entry) -> (Vec<String>, Vec<Option<&Variant<'_>>>) {
    let others = OTHER_CHANGES.iter().map(|key| {
        let value = entry.get(*key).map(|value| inner(value));
        value.filter(|value| !is_nothing(value))
    });
    (packages(entry), others.collect())
}

fn is_nothing(value: &Variant<'_>) -> bool {
    match inner(value) {
        Variant::Bool(flag) => !flag,
        Variant::Str(text) => text.is_empty(),
        Variant::Array(items) => items.is_empty(),
        Variant::Dict(pairs) => pairs.iter().next().is_none(),
        _ => false,
    }
}

#[derive(Deserialize)]
struct ImageConfig {
    architecture: Option<String>,
}

/// Returns the OCI architecture from the image's configuration, which the commit's metadata contains.
fn architecture(entry: &Entry) -> Option<String> {
    let Variant::Dict(meta) = inner(entry.get("base-commit-meta")?) else {
        return None;
    };
    let config = meta.iter().find_map(|(key, value)| match (inner(key), inner(value)) {
        (Variant::Str(key), Variant::Str(value)) if key.as_str() == "ostree.container.image-config" => Some(value),
        _ => None,
    })?;
    serde_json::from_str::<ImageConfig>(config.as_str()).ok()?.architecture
}

fn inner<'a>(value: &'a Variant<'a>) -> &'a Variant<'a> {
    match value {
        Variant::Variant(value) => inner(value),
        value => value,
    }
}

fn text(entry: &Entry, key: &str) -> Option<String> {
    non_empty(entry.get(key)?)
}

fn non_empty(value: &Variant<'_>) -> Option<String> {
    match inner(value) {
        Variant::Str(text) if !text.is_empty() => Some(text.as_str().to_owned()),
        _ => None,
    }
}

fn is_set(entry: &Entry, key: &str) -> bool {
    flag(entry, key) == Some(true)
}

fn flag(entry: &Entry, key: &str) -> Option<bool> {
    match inner(entry.get(key)?) {
        Variant::Bool(flag) => Some(*flag),
        _ => None,
    }
}

fn number(entry: &Entry, key: &str) -> Option<u64> {
    match inner(entry.get(key)?) {
        Variant::U64(number) => Some(*number),
        _ => None,
    }
}

fn texts(entry: &Entry, key: &str) -> Vec<String> {
    let Some(Variant::Array(items)) = entry.get(key).map(|value| inner(value)) else {
        return vec![];
    };
    items.iter().filter_map(non_empty).collect()
}

#[cfg(test)]
mod tests;
