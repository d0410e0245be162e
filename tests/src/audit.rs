//! The API server's audit log as typed records: who wrote what, when, and with what answer.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One audited request. A watch has two: when it started, and when it ended.
#[derive(Debug, Clone, Serialize)]
pub struct Record {
    /// Time when the API server received the request. Entries are in order of completion, not of this.
    pub received: Timestamp,
    /// Time when this stage was reached.
    pub at: Timestamp,
    /// `ResponseComplete` for everything that has an answer; `ResponseStarted` for a watch that runs.
    pub stage: String,
    /// The same for all entries of one request.
    pub audit_id: String,
    /// The user's name, `system:serviceaccount:…` or `system:node:…` say.
    pub user: String,
    /// The node claim of the user's token.
    pub node_claim: Option<String>,
    /// The whole user agent.
    pub user_agent: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource in the plural; empty for a request that is about no object.
    pub resource: String,
    /// Subresource, or empty.
    pub subresource: String,
    /// Namespace, or empty.
    pub namespace: String,
    /// Object's name, or empty (a list, or a creation with a generated name).
    pub name: String,
    /// HTTP status of the answer; 0 if there was none.
    pub code: u16,
    /// Message of the server when it refused.
    pub message: String,
    /// The path and query.
    pub uri: String,
    /// The body sent, where the audit policy keeps it (berths and Nodes).
    pub request: Option<Value>,
    /// The body answered, likewise.
    pub response: Option<Value>,
}

impl Record {
    /// Says whether the request asks for a change; a dry run asks for none.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch") && !self.uri.contains("dryRun=All")
    }

    /// Says whether the request was answered with success.
    pub fn succeeded(&self) -> bool {
        self.stage == "ResponseComplete" && (200..300).contains(&self.code)
    }

    /// The user agent up to its version: `berth-agent` of `berth-agent/0.1.0 (linux)`.
    pub fn program(&self) -> &str {
        self.user_agent.split(['/', ' ']).next().unwrap_or_default()
    }

    /// Resource and subresource as one writes them: `nodes/status`, `leases`.
    pub fn target(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    /// `spec.holderIdentity` of a logged Lease, as the server stored it.
    pub fn holder(&self) -> Option<&str> {
        self.response
            .as_ref()
            .or(self.request.as_ref())?
            .pointer("/spec/holderIdentity")?
            .as_str()
    }

    /// `spec.unschedulable` of a logged Node, as the server stored it; false if absent.
    pub fn unschedulable(&self) -> Option<bool> {
        if self.resource != "nodes" {
            return None;
        }
        let node = self.response.as_ref()?;
        let value = node.pointer("/spec/unschedulable");
        Some(value.and_then(Value::as_bool).unwrap_or(false))
    }
}

/// A reader of the log that keeps what it has read.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    records: Vec<Record>,
}

impl AuditLog {
    /// Reads what is there. A log that is not there yet is empty.
    pub fn read(path: &Path) -> Result<Self> {
        let mut this = Self {
            path: path.to_owned(),
            offset: 0,
            records: Vec::new(),
        };
        this.refresh()?;
        Ok(this)
    }

    /// Reads what has been added; returns it.
    pub fn refresh(&mut self) -> Result<&[Record]> {
        let from = self.records.len();
        let mut text = Vec::new();
        if self.path.exists() {
            let mut file = fs::File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_end(&mut text)?;
        }
        // The last line may be half written: it is left for the next time.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |i| i + 1);
        for line in text.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
            if let Some(record) = parse(line).with_context(|| String::from_utf8_lossy(line).into_owned())? {
                self.records.push(record);
            }
        }
        self.offset += u64::try_from(whole)?;
        Ok(self.records.get(from..).unwrap_or_default())
    }

    /// Gives away the records read so far; the next [`Self::refresh`] goes on behind them. For runs of hours.
    pub fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// All records, in order of completion.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The writes that succeeded.
    pub fn writes(&self) -> impl Iterator<Item = &Record> {
        self.records
            .iter()
            .filter(|record| record.is_write() && record.succeeded())
    }

    /// The requests that were refused for lack of permission.
    pub fn forbidden(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.code == 403)
    }

    /// Number of writes that succeeded, by program and resource: `("berth-agent", "leases") -> 4`.
    pub fn write_counts(&self) -> BTreeMap<(String, String), usize> {
        count(self.writes())
    }

    /// Number of requests of any kind that were answered, by program and resource.
    pub fn request_counts(&self) -> BTreeMap<(String, String), usize> {
        count(self.records.iter().filter(|record| record.stage == "ResponseComplete"))
    }
}

/// Counts records by program and resource.
pub fn count<'a>(records: impl Iterator<Item = &'a Record>) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for record in records {
        let key = (record.program().to_owned(), record.target());
        *counts.entry(key).or_default() += 1;
    }
    counts
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
    request_object: Option<Value>,
    response_object: Option<Value>,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ObjectRef {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
    subresource: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
    message: String,
}

fn parse(line: &[u8]) -> Result<Option<Record>> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    let event: Event = serde_json::from_slice(line).context("an audit line")?;
    let claim = event.user.extra.get("authentication.kubernetes.io/node-name");
    Ok(Some(Record {
        received: event.request_received_timestamp,
        at: event.stage_timestamp,
        stage: event.stage,
        audit_id: event.audit_id,
        node_claim: claim.and_then(|values| values.first().cloned()),
        user: event.user.username,
        user_agent: event.user_agent,
        verb: event.verb,
        group: event.object_ref.api_group,
        resource: event.object_ref.resource,
        subresource: event.object_ref.subresource,
        namespace: event.object_ref.namespace,
        name: event.object_ref.name,
        code: event.response_status.code,
        message: event.response_status.message,
        uri: event.request_uri,
        request: event.request_object,
        response: event.response_object,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"a","stage":"ResponseComplete","requestURI":"/apis/coordination.k8s.io/v1/namespaces/berth-system/leases/p-0","verb":"update","user":{"username":"system:serviceaccount:berth-system:berth-agent","extra":{"authentication.kubernetes.io/node-name":["n1"]}},"userAgent":"berth-agent/0.1.0","objectRef":{"resource":"leases","namespace":"berth-system","name":"p-0","apiGroup":"coordination.k8s.io","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"responseObject":{"spec":{"holderIdentity":"n1"}},"requestReceivedTimestamp":"2026-01-01T00:00:00.000001Z","stageTimestamp":"2026-01-01T00:00:00.000002Z"}"#;

    #[test]
    fn a_half_written_line_waits_for_its_other_half() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (head, tail) = LINE.split_at(100);
        write!(file, "{LINE}\n{head}").unwrap();
        let mut log = AuditLog::read(file.path()).unwrap();
        assert_eq!(log.records().len(), 1);
        assert!(log.refresh().unwrap().is_empty());
        writeln!(file, "{tail}").unwrap();
        assert_eq!(log.refresh().unwrap().len(), 1);
        let record = &log.records()[1];
        assert_eq!(record.holder(), Some("n1"));
        assert_eq!(record.node_claim.as_deref(), Some("n1"));
        assert!(record.is_write() && record.succeeded());
        let dry = Record {
            uri: format!("{}?&dryRun=All", record.uri),
            ..record.clone()
        };
        assert!(!dry.is_write(), "a dry run changes nothing");
        let counts = log.write_counts();
        assert_eq!(counts[&("berth-agent".to_owned(), "leases".to_owned())], 2);
    }

    #[test]
    fn a_log_that_is_not_there_is_empty() {
        let log = AuditLog::read(Path::new("/nonexistent/audit.log")).unwrap();
        assert!(log.records().is_empty());
    }
}
