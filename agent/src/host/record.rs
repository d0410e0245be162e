//! `/run/berth/pull.json`: the record of this boot's pull, for the next agent to find the pull (invariant I7).

use std::path::PathBuf;

use berth_api::backend::Backend;
use berth_api::node::DesiredImage;
use berth_api::{BootId, Digest};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::driver::PullInputs;
use super::error::HostError;
use super::files;
use super::root::{HostRoot, RUN_DIR};

/// Longest record that is read, in bytes. Longer ones are ignored.
const MAX_LENGTH: usize = 64 << 10;

/// Record of a pull, written before the pull starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    pub(super) digest: Digest,
    pub(super) reference: String,
    pub(super) boot_id: String,
    #[serde(default)]
    pub(super) backend: Backend,
    /// True if the pull was started: systemd accepted its unit, or rpm-ostreed started its transaction.
    #[serde(default)]
    pub(super) started: bool,
    /// True if the backend locks the image as part of staging.
    #[serde(default)]
    pub(super) download_only: bool,
    /// Text about the auth file in use at the start of the pull.
    #[serde(default)]
    pub(super) credentials: String,
    /// Digest of the enforced signature policy's text; absent if the pull enforces no policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<Digest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) began: Option<Timestamp>,
    /// rpm-ostree's message that the image is already staged or booted under this reference. If the field is set, the
    /// deployments show whether the pull succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) said: Option<String>,
    /// Result of the pull by rpm-ostree; absent until the agent knows the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ended: Option<Ended>,
}

impl Record {
    pub(super) fn new(boot: &BootId, image: &DesiredImage, backend: Backend, inputs: PullInputs) -> Self {
        Self {
            digest: image.digest.clone(),
            reference: image.reference.to_string(),
            boot_id: boot.as_str().to_owned(),
            backend,
            started: false,
            download_only: false,
            credentials: inputs.credentials,
            policy: inputs.policy,
            began: None,
            said: None,
            ended: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ended {
    /// Message of the failure; absent if the transaction succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct RecordFile(PathBuf);

impl RecordFile {
    pub(super) fn new(root: &HostRoot) -> Self {
        Self(root.path(RUN_DIR).join("pull.json"))
    }

    /// Reads the record of this boot's pull. An earlier boot's record is ignored: that pull ended with its boot.
    pub(super) fn read(&self, boot_id: &BootId) -> Option<Record> {
        let text = files::bounded_text(&self.0, MAX_LENGTH).ok()?;
        match serde_json::from_str::<Record>(&text) {
            Ok(record) => (record.boot_id == boot_id.as_str()).then_some(record),
            Err(error) => {
                tracing::warn!(%error, "cannot parse /run/berth/pull.json, the record of the pull; ignoring the file");
                None
            }
        }
    }

    pub(super) fn write(&self, record: &Record) -> Result<(), HostError> {
        let text = serde_json::to_vec(record).map_err(|e| HostError::Io(e.to_string()))?;
        files::replace(&self.0, &text).map_err(|e| HostError::Io(format!("cannot write {}: {e}", self.0.display())))
    }

    pub(super) fn remove(&self) -> Result<(), HostError> {
        files::remove(&self.0).map_err(|e| HostError::Io(e.to_string()))
    }
}
