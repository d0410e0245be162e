//! Reads the audit log of a test's API server while the API server writes it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
pub use berth_judge::audit::Record;
use berth_judge::audit::parse;

/// An audit log file, and the records that were read from it.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
    records: Vec<Record>,
}

impl AuditLog {
    /// Reads the records written so far. A log that does not exist yet is empty.
    pub fn read(path: &Path) -> Result<Self> {
        let mut this = Self {
            path: path.to_owned(),
            offset: 0,
            records: Vec::new(),
        };
        this.refresh()?;
        Ok(this)
    }

    /// Reads and returns the records added since the last read.
    pub fn refresh(&mut self) -> Result<&[Record]> {
        let from = self.records.len();
        let mut text = Vec::new();
        if self.path.exists() {
            let mut file = fs::File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.offset))?;
            file.read_to_end(&mut text)?;
        }
        // The last line may be incomplete: it is read next time.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |i| i + 1);
        for line in text.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
            if let Some(record) = parse(line).with_context(|| String::from_utf8_lossy(line).into_owned())? {
                self.records.push(record);
            }
        }
        self.offset += u64::try_from(whole)?;
        Ok(self.records.get(from..).unwrap_or_default())
    }

    /// Removes and returns the records read so far, to save memory in long runs.
    pub fn take(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Returns the records read so far, in order of completion, without the records that [`Self::take`] removed.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns the records of successful writes.
    pub fn writes(&self) -> impl Iterator<Item = &Record> {
        self.records
            .iter()
            .filter(|record| record.is_write() && record.succeeded())
    }

    /// Returns the records of requests that the API server rejected with status 403 (Forbidden).
    pub fn forbidden(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.code == 403)
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
        let counts = count(log.writes());
        assert_eq!(counts[&("berth-agent".to_owned(), "leases".to_owned())], 2);
    }

    #[test]
    fn a_log_that_is_not_there_is_empty() {
        let log = AuditLog::read(Path::new("/nonexistent/audit.log")).unwrap();
        assert!(log.records().is_empty());
    }
}
