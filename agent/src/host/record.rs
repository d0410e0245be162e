//! `/run/berth/pull.json`: the pull of this boot, so that the next agent finds it (invariant I7).

use std::path::PathBuf;

use berth_api::backend::Backend;
use berth_api::node::DesiredImage;
use berth_api::{BootId, Digest};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::driver::Given;
use super::root::{HostRoot, RUN_DIR};
use super::{HostError, files};

/// A pull, as it is remembered before it is begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) digest: Digest,
    pub(super) reference: String,
    pub(super) boot_id: String,
    /// Backend that pulls.
    #[serde(default)]
    pub(super) backend: Backend,
    /// systemd has accepted the unit, or the transaction was started.
    #[serde(default)]
    pub(super) started: bool,
    /// bootc itself locks what it stages.
    #[serde(default)]
    pub(super) download_only: bool,
    /// The credentials that the host had, in words.
    #[serde(default)]
    pub(super) credentials: String,
    /// Digest of the text of the signature policy that it runs under; absent if none is enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<Digest>,
    /// Time at which it was begun, by this host's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) began: Option<Timestamp>,
    /// Words of a transaction that ended and left it open whether the image is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) said: Option<String>,
    /// End of a transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<Ended>,
}

impl Record {
    /// Record of a pull that is about to begin.
    pub(super) fn new(boot: &BootId, image: &DesiredImage, backend: Backend, given: Given) -> Self {
        Self {
            digest: image.digest.clone(),
            reference: image.reference.clone(),
            boot_id: boot.as_str().to_owned(),
            backend,
            started: false,
            download_only: false,
            credentials: given.credentials,
            policy: given.policy,
            began: None,
            said: None,
            ended: None,
        }
    }
}

/// End of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ended {
    /// Words of the failure; absent when it went well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

/// The file.
#[derive(Debug, Clone)]
pub(super) struct RecordFile(PathBuf);

impl RecordFile {
    pub(super) fn new(root: &HostRoot) -> Self {
        Self(root.path(RUN_DIR).join("pull.json"))
    }

    /// The record of this boot. A record of an earlier boot names a pull that is gone with that boot.
    pub(super) fn read(&self, boot_id: &BootId) -> Option<Record> {
        let text = std::fs::read(&self.0).ok()?;
        match serde_json::from_slice::<Record>(&text) {
            Ok(record) => (record.boot_id == boot_id.as_str()).then_some(record),
            Err(error) => {
                tracing::warn!(%error, "the record of the pull makes no sense: ignored");
                None
            }
        }
    }

    /// Writes the record, durably.
    pub(super) fn write(&self, record: &Record) -> Result<(), HostError> {
        let text = serde_json::to_vec(record).map_err(|e| HostError::Io(e.to_string()))?;
        files::replace(&self.0, &text).map_err(|e| HostError::Io(format!("cannot write {}: {e}", self.0.display())))
    }

    /// Forgets the pull.
    pub(super) fn remove(&self) -> Result<(), HostError> {
        files::remove(&self.0).map_err(|e| HostError::Io(e.to_string()))
    }
}
