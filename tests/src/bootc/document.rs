//! The `org.containers.bootc/v1` status document.
//!
//! bootc prints canonical JSON (sorted keys, one line); the fields here are in the order of their JSON names.

// The fields are named as in the document.
#![allow(missing_docs)]

use serde::Serialize;
use serde_json::Value;

/// Name of an image in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageReference {
    pub image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    pub transport: &'static str,
}

impl ImageReference {
    /// An image, verified by the signature policy if `signed`.
    pub fn registry(name: &str, signed: bool) -> Self {
        Self {
            image: name.to_owned(),
            signature: signed.then(|| "containerPolicy".to_owned()),
            transport: "registry",
        }
    }

    /// Returns the reference in skopeo's syntax.
    pub fn skopeo(&self) -> String {
        format!("docker://{}", self.image)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageStatus {
    pub architecture: String,
    pub image: ImageReference,
    pub image_digest: String,
    pub timestamp: Option<String>,
    pub version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OstreeEntry {
    pub checksum: String,
    pub deploy_serial: u32,
    pub stateroot: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BootEntry {
    pub cached_update: Option<ImageStatus>,
    pub composefs: Option<Value>,
    pub download_only: bool,
    pub image: Option<ImageStatus>,
    pub incompatible: bool,
    pub ostree: Option<OstreeEntry>,
    pub pinned: bool,
    pub soft_reboot_capable: bool,
    pub store: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BootOrder {
    #[default]
    Default,
    Rollback,
}

/// Desired state of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostSpec {
    pub boot_order: BootOrder,
    pub image: Option<ImageReference>,
}

/// Actual state of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HostStatus {
    pub booted: Option<BootEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_deployments: Vec<BootEntry>,
    pub read_only: bool,
    pub rollback: Option<BootEntry>,
    pub rollback_queued: bool,
    pub staged: Option<BootEntry>,
    #[serde(rename = "type")]
    pub kind: Option<&'static str>,
    pub usr_overlay: Option<()>,
}

/// Name that every host document has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metadata {
    pub name: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Host {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub metadata: Metadata,
    pub spec: HostSpec,
    pub status: HostStatus,
}

/// A deployment in ostree's boot order, with its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub booted: bool,
    pub staged: bool,
    pub entry: BootEntry,
}

impl Host {
    /// Document for a container, or a host not booted by ostree.
    pub fn null() -> Self {
        Self {
            api_version: "org.containers.bootc/v1",
            kind: "BootcHost",
            metadata: Metadata { name: "host" },
            spec: HostSpec::default(),
            status: HostStatus::default(),
        }
    }

    /// Sorts deployments into booted, staged, rollback and others.
    pub fn of(list: Vec<Listed>) -> Self {
        let mut host = Self::null();
        let booted_at = list.iter().position(|d| d.booted);
        let stateroot = booted_at
            .and_then(|at| list.get(at))
            .and_then(|d| d.entry.ostree.as_ref())
            .map(|o| o.stateroot.clone());
        for (at, deployment) in list.into_iter().enumerate() {
            let own = deployment.entry.ostree.as_ref().map(|o| &o.stateroot) == stateroot.as_ref();
            if deployment.booted {
                host.status.booted = Some(deployment.entry);
            } else if deployment.staged {
                host.status.staged = Some(deployment.entry);
            } else if own && host.status.rollback.is_none() {
                host.status.rollback_queued = booted_at.is_some_and(|booted| at < booted);
                host.status.rollback = Some(deployment.entry);
            } else {
                host.status.other_deployments.push(deployment.entry);
            }
        }
        host.fill_in();
        host
    }

    /// Reports a queued rollback as not queued, and the other way round, as bootc before 1.16.11 does for UKIs with boot
    /// loader entries.
    pub fn invert_rollback(&mut self) {
        let status = &mut self.status;
        status.rollback_queued = !status.rollback_queued;
        self.spec.boot_order = if status.rollback_queued {
            BootOrder::Rollback
        } else {
            BootOrder::Default
        };
    }

    fn fill_in(&mut self) {
        let booted = self.status.booted.as_ref();
        self.status.kind = booted.and_then(|b| b.image.as_ref()).map(|_| "bootcHost");
        let next = self.status.staged.as_ref().or(booted);
        self.spec.image = next.and_then(|n| n.image.as_ref()).map(|image| image.image.clone());
        if self.spec.image.is_some() && self.status.rollback_queued {
            self.spec.boot_order = BootOrder::Rollback;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(digit: char, serial: u32) -> BootEntry {
        let digest = format!("sha256:{}", String::from(digit).repeat(64));
        BootEntry {
            cached_update: None,
            composefs: None,
            download_only: false,
            image: Some(ImageStatus {
                architecture: "amd64".into(),
                image: ImageReference::registry(&format!("192.0.2.1:5000/os@{digest}"), false),
                image_digest: digest,
                timestamp: Some("2026-01-02T03:04:05Z".into()),
                version: Some(format!("{digit}.0.0")),
            }),
            incompatible: false,
            ostree: Some(OstreeEntry {
                checksum: String::from(digit).repeat(64),
                deploy_serial: serial,
                stateroot: "default".into(),
            }),
            pinned: false,
            soft_reboot_capable: false,
            store: Some("ostreeContainer"),
        }
    }

    fn listed(digit: char, booted: bool, staged: bool) -> Listed {
        let entry = BootEntry {
            download_only: staged,
            ..entry(digit, 0)
        };
        Listed { booted, staged, entry }
    }

    /// bootc's output for one deployment.
    fn expected(digit: char, locked: bool) -> String {
        let d = String::from(digit).repeat(64);
        format!(
            r#"{{"cachedUpdate":null,"composefs":null,"downloadOnly":{locked},"image":{{"architecture":"amd64","image":{{"image":"192.0.2.1:5000/os@sha256:{d}","transport":"registry"}},"imageDigest":"sha256:{d}","timestamp":"2026-01-02T03:04:05Z","version":"{digit}.0.0"}},"incompatible":false,"ostree":{{"checksum":"{d}","deploySerial":0,"stateroot":"default"}},"pinned":false,"softRebootCapable":false,"store":"ostreeContainer"}}"#
        )
    }

    fn document(spec: &str, order: &str, status: &str) -> String {
        format!(
            r#"{{"apiVersion":"org.containers.bootc/v1","kind":"BootcHost","metadata":{{"name":"host"}},"spec":{{"bootOrder":"{order}","image":{spec}}},"status":{status}}}"#
        )
    }

    fn spec(digit: char) -> String {
        let d = String::from(digit).repeat(64);
        format!(r#"{{"image":"192.0.2.1:5000/os@sha256:{d}","transport":"registry"}}"#)
    }

    #[test]
    fn staged_and_locked() {
        let host = Host::of(vec![
            listed('3', false, true),
            listed('1', true, false),
            listed('2', false, false),
        ]);
        let status = format!(
            r#"{{"booted":{},"readOnly":false,"rollback":{},"rollbackQueued":false,"staged":{},"type":"bootcHost","usrOverlay":null}}"#,
            expected('1', false),
            expected('2', false),
            expected('3', true)
        );
        assert_eq!(
            serde_json::to_string(&host).unwrap(),
            document(&spec('3'), "default", &status)
        );
    }

    #[test]
    fn a_queued_rollback_is_before_the_booted_one() {
        let host = Host::of(vec![listed('2', false, false), listed('1', true, false)]);
        let status = format!(
            r#"{{"booted":{},"readOnly":false,"rollback":{},"rollbackQueued":true,"staged":null,"type":"bootcHost","usrOverlay":null}}"#,
            expected('1', false),
            expected('2', false)
        );
        assert_eq!(
            serde_json::to_string(&host).unwrap(),
            document(&spec('1'), "rollback", &status)
        );
    }

    #[test]
    fn not_a_bootc_host() {
        let status = r#"{"booted":null,"readOnly":false,"rollback":null,"rollbackQueued":false,"staged":null,"type":null,"usrOverlay":null}"#;
        assert_eq!(
            serde_json::to_string(&Host::null()).unwrap(),
            document("null", "default", status)
        );
    }

    #[test]
    fn other_stateroots_are_no_rollback() {
        let mut other = listed('4', false, false);
        other.entry.ostree.as_mut().unwrap().stateroot = "other".into();
        let host = Host::of(vec![listed('1', true, false), other, listed('2', false, false)]);
        assert_eq!(host.status.rollback, Some(entry('2', 0)));
        assert_eq!(host.status.other_deployments.len(), 1);
        assert!(!host.status.rollback_queued);
    }
}
