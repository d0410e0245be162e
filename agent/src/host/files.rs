//! Reads and writes small files on the host. After a crash, a file has either the old or the new text.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::fcntl::OFlag;
use serde::Serialize;
use serde::de::DeserializeOwned;

const MAX_SAVED: usize = 4 << 20;
/// Longest file of [`small_text`], in bytes.
const MAX_SMALL: usize = 4 << 10;

/// Errors for an existing file with invalid content.
const INVALID_CONTENT: [ErrorKind; 3] = [
    ErrorKind::InvalidData,
    ErrorKind::UnexpectedEof,
    ErrorKind::IsADirectory,
];

/// Replaces a file durably: writes the new text to a temporary file, then gives that file the final name. After an
/// error, the old file stays.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::other("the file has no directory"))?;
    let temporary = temporary(path);
    let mut file = match open_new(&temporary, false) {
        Ok(file) if !file.metadata()?.file_type().is_fifo() => file,
        // The temporary name belongs to a FIFO, whose writer would wait for a reader, or to a link to a directory.
        _ => {
            remove(&temporary)?;
            open_new(&temporary, true)?
        }
    };
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

/// Opens a file for writing and truncates it. Does not block on a FIFO.
fn open_new(path: &Path, must_be_new: bool) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .create_new(must_be_new)
        .truncate(true)
        .mode(0o600)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
}

/// Writes a value as JSON, durably, and creates a missing directory. After an error, the old content stays.
pub fn save(path: &Path, value: &impl Serialize) -> anyhow::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(|| cannot_write(path))?;
    }
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    replace(path, &text).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Reads the value that [`save`] wrote; `None` if there is no valid file. A directory or an invalid file is renamed to
/// `*.json.unreadable`, so that an admin can inspect it. `what` names the file in the log.
pub fn load<T: DeserializeOwned>(path: &Path, what: &str) -> Option<T> {
    let read = read_bounded(path, MAX_SAVED).and_then(|text| match text.len() {
        length if length > MAX_SAVED => Err(io::Error::new(ErrorKind::InvalidData, "the file is too long")),
        _ => serde_json::from_slice(&text).map_err(io::Error::from),
    });
    match read {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) if INVALID_CONTENT.contains(&error.kind()) => {
            let aside = path.with_extension("json.unreadable");
            let kept = fs::rename(path, &aside).is_ok();
            tracing::warn!(path = %path.display(), %error, kept, aside = %aside.display(),
                "cannot parse {what}; continuing without it");
            None
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read {what}");
            None
        }
    }
}

pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the name of [`replace`]'s temporary file. A crash or an error may leave that file behind.
pub fn temporary(path: &Path) -> PathBuf {
    path.with_extension("tmp")
}

/// Reads at most `limit` + 1 bytes: if the result has more than `limit` bytes, the file is too long. Fails on a FIFO,
/// because the read would wait for a writer.
pub fn read_bounded(path: &Path, limit: usize) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

/// Opens a file for reading. Fails on a FIFO, whose reader would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is a FIFO, not a file"));
    }
    Ok(file)
}

/// Reads a text of at most `limit` bytes. Fails if the file is longer or is not UTF-8.
pub fn bounded_text(path: &Path, limit: usize) -> io::Result<String> {
    let text = read_bounded(path, limit)?;
    if text.len() > limit {
        let why = format!("it is longer than {limit} bytes");
        return Err(io::Error::new(ErrorKind::InvalidData, why));
    }
    String::from_utf8(text).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Reads a text of a few bytes, such as a number or a name in `/proc`.
pub fn small_text(path: &Path) -> io::Result<String> {
    bounded_text(path, MAX_SMALL)
}

/// Reads the last `limit` bytes of a file as text; empty if it cannot be read.
pub fn tail(path: &Path, limit: u64) -> String {
    let text = read_tail(path, limit).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

fn read_tail(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut text = Vec::new();
    file.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    /// Reads and writes return at once even for a FIFO.
    #[test]
    fn unusual_files_do_not_block() {
        let scratch = std::env::temp_dir().join(format!("berth-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).unwrap();
        let path = scratch.join("a.json");
        let aside = scratch.join("a.json.unreadable");
        fn save_and_load(path: &Path) -> Option<u32> {
            save(path, &7).unwrap();
            load::<u32>(path, "the number")
        }
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert_eq!(read_bounded(&path, 10).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(tail(&path, 10), "");
        assert_eq!(load::<u32>(&path, "the number"), None);
        assert!(aside.exists() && !path.exists(), "kept aside");
        assert_eq!(save_and_load(&path), Some(7));

        fs::remove_file(&path).unwrap();
        fs::remove_file(&aside).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(load::<u32>(&path, "the number"), None);
        assert!(aside.is_dir());
        assert_eq!(save_and_load(&path), Some(7));

        // A FIFO has the name of the temporary file.
        mkfifo(&temporary(&path), Mode::S_IRWXU).unwrap();
        assert_eq!(save_and_load(&path), Some(7));
        std::os::unix::fs::symlink(&aside, temporary(&path)).unwrap();
        assert_eq!(save_and_load(&path), Some(7));
        assert!(aside.is_dir(), "the link is not followed");

        fs::write(&path, vec![b'x'; MAX_SMALL + 1]).unwrap();
        assert_eq!(small_text(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(bounded_text(&path, MAX_SMALL + 1).unwrap().len(), MAX_SMALL + 1);

        let mut long = vec![b' '; MAX_SAVED];
        long.push(b'1');
        fs::write(&path, long).unwrap();
        fs::remove_dir(&aside).unwrap();
        assert_eq!(load::<u32>(&path, "the number"), None);
        assert!(aside.exists());
        fs::remove_dir_all(&scratch).unwrap();
    }
}
