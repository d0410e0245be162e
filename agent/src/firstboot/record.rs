//! The record of the first boot on the host.

use std::path::PathBuf;

use berth_core::firstboot::Record;

use crate::host::files;
use crate::host::root::{HostRoot, STATE_DIR};

/// File on the host that holds the [`Record`] of the first-boot check.
#[derive(Debug, Clone)]
pub struct RecordFile(PathBuf);

impl RecordFile {
    /// Creates the value for the host with this root directory.
    pub fn new(root: &HostRoot) -> Self {
        Self(root.path(STATE_DIR).join("firstboot.json"))
    }

    /// Reads the record; `None` if the file is missing or cannot be parsed. An invalid file is renamed, so that an
    /// admin can inspect it.
    pub fn load(&self) -> Option<Record> {
        files::load(&self.0, "the record of the first-boot check")
    }

    /// Writes the record, durably. After an error, the old content stays.
    pub fn save(&self, record: &Record) -> anyhow::Result<()> {
        files::save(&self.0, record)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_invalid_record_is_moved_aside() {
        let scratch = std::env::temp_dir().join(format!("berth-firstboot-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        let file = RecordFile::new(&root);
        assert_eq!(file.load(), None);
        let text = r#"{"finished": true, "status": {"outcome": "Allowed"}, "later": 1}"#;
        let record: Record = serde_json::from_str(text).unwrap();
        file.save(&record).unwrap();
        assert_eq!(file.load(), Some(record));
        fs::write(&file.0, "{\"finished\": tr").unwrap();
        assert_eq!(file.load(), None);
        assert!(file.0.with_extension("json.unreadable").exists());
        fs::remove_dir_all(&scratch).unwrap();
    }
}
