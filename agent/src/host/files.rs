//! Small files on the host, written so that a crash leaves either the old or the new text.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Replaces a file durably: the new text is on the disk before it gets the name.
///
/// # Errors
/// When the directory cannot be written; the old file is then untouched.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::other("the file has no directory"))?;
    let temporary = temporary(path);
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

/// Writes a value as JSON, durably. Makes the directory where it is missing.
///
/// # Errors
/// When the file cannot be written; the old content is then still there.
pub fn save(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    let context = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(context)?;
    }
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    replace(path, &text).with_context(context)
}

/// The value that [`save`] wrote. `None` where there is no file, or one that cannot be understood: it is kept aside for
/// people, and the log says of `what` that it is missing.
pub fn load<T: DeserializeOwned>(path: &Path, what: &str) -> Option<T> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read {what}");
            return None;
        }
    };
    match serde_json::from_slice(&text) {
        Ok(value) => Some(value),
        Err(error) => {
            let aside = path.with_extension("json.unreadable");
            let kept = fs::rename(path, &aside).is_ok();
            tracing::warn!(path = %path.display(), %error, kept, aside = %aside.display(),
                "{what} makes no sense: going on without it");
            None
        }
    }
}

/// Makes sure that there is no such file.
///
/// # Errors
/// When it is there and cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The name under which a file is written before it gets its own. After a crash or an error it may still be there.
pub fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// The content of a file; of one with more than `limit` bytes one more than that.
///
/// # Errors
/// When it cannot be read.
pub fn read_bounded(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

/// The last `limit` bytes of a file as text, whatever they are; empty when there is no such file.
pub fn tail(path: &Path, limit: u64) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
        let mut text = Vec::new();
        file.take(limit).read_to_end(&mut text)?;
        Ok(text)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}
