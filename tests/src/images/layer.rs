//! Layers, in memory or in a file.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use berth_api::Digest;
use bytes::Bytes;
use flate2::write::GzEncoder;
use ring::digest::{Context as Hash, SHA256};
use serde_json::{Value, json};

/// Compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// A plain tar file, which is best for big layers. Compression saves nothing on loopback, and an unoptimized gzip
    /// is slow.
    None,
    /// gzip, at its fastest.
    Gzip,
}

impl Compression {
    fn media_type(self) -> &'static str {
        match self {
            Self::None => "application/vnd.oci.image.layer.v1.tar",
            Self::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
        }
    }
}

/// A file to put into a layer.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Path of the file, without a leading slash.
    pub path: String,
    /// Permissions of the file.
    pub mode: u32,
    /// Content of the file.
    pub content: Vec<u8>,
}

impl Entry {
    /// A file readable by all users.
    pub fn file(path: String, content: Vec<u8>) -> Self {
        Self {
            path,
            mode: 0o644,
            content,
        }
    }

    /// A file executable by all users.
    pub fn executable(path: String, content: Vec<u8>) -> Self {
        Self {
            path,
            mode: 0o755,
            content,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Memory(Bytes),
    File(PathBuf),
    /// A temporary file, removed with the last copy of the layer.
    Temporary(Arc<tempfile::TempPath>),
}

/// A layer of an image.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Digest of the pushed bytes.
    pub digest: Digest,
    /// Digest of the uncompressed tar file.
    pub diff_id: Digest,
    /// Size of the pushed bytes.
    pub size: u64,
    compression: Compression,
    pub(super) content: Content,
}

impl Layer {
    /// Creates a layer with these files.
    pub fn from_entries(entries: &[Entry], compression: Compression) -> Result<Self> {
        let archive = tar_of(entries)?;
        let mut hashed = Hashed::new(Vec::new());
        let diff_id = transfer(&mut archive.as_slice(), &mut hashed, compression)?;
        let (digest, size, bytes) = hashed.finish()?;
        let content = Content::Memory(bytes.into());
        Ok(Self {
            digest,
            diff_id,
            size,
            compression,
            content,
        })
    }

    /// Creates a layer from a tar file. Keep the file of an uncompressed layer, because the push reads it.
    pub fn from_tar(path: &Path, compression: Compression) -> Result<Self> {
        let mut source = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        if compression == Compression::None {
            let mut hashed = Hashed::new(io::sink());
            let diff_id = transfer(&mut source, &mut hashed, compression)?;
            let (digest, size, _) = hashed.finish()?;
            return Ok(Self {
                digest,
                diff_id,
                size,
                compression,
                content: Content::File(path.to_owned()),
            });
        }
        let target = tempfile::NamedTempFile::new()?;
        let mut hashed = Hashed::new(io::BufWriter::new(target));
        let diff_id = transfer(&mut source, &mut hashed, compression)?;
        let (digest, size, writer) = hashed.finish()?;
        let target = writer.into_inner().context("writing a layer")?;
        Ok(Self {
            digest,
            diff_id,
            size,
            compression,
            content: Content::Temporary(Arc::new(target.into_temp_path())),
        })
    }

    pub(super) fn descriptor(&self) -> Value {
        json!({
            "mediaType": self.compression.media_type(),
            "digest": self.digest,
            "size": self.size,
        })
    }

    /// File with the layer's bytes; `None` if the bytes are in memory.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.content {
            Content::Memory(_) => None,
            Content::File(path) => Some(path),
            Content::Temporary(path) => Some(path),
        }
    }

    pub(super) fn append_to(&self, archive: &mut tar::Builder<impl Write>, path: &str) -> Result<()> {
        match (&self.content, self.file()) {
            (Content::Memory(bytes), _) => append(archive, path, bytes),
            (_, Some(file)) => {
                let mut header = header(self.size, 0o644);
                let source = File::open(file)?;
                archive.append_data(&mut header, path, source)?;
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }
}

/// A tar file with these entries, without timestamps.
pub(super) fn tar_of(entries: &[Entry]) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = header(u64::try_from(entry.content.len())?, entry.mode);
        archive.append_data(&mut header, &entry.path, entry.content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

/// Appends a file readable by all users.
pub(super) fn append(archive: &mut tar::Builder<impl Write>, path: &str, content: &[u8]) -> Result<()> {
    let mut header = header(u64::try_from(content.len())?, 0o644);
    archive.append_data(&mut header, path, content)?;
    Ok(())
}

fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// Copies a tar file, compressed if requested; returns the digest of the uncompressed file.
fn transfer(source: &mut impl Read, target: &mut impl Write, compression: Compression) -> Result<Digest> {
    match compression {
        Compression::None => {
            let mut hashed = Hashed::new(target);
            io::copy(source, &mut hashed)?;
            Ok(hashed.finish()?.0)
        }
        Compression::Gzip => {
            // The header has no time or name, so that the same input gives the same bytes.
            let mut hashed = Hashed::new(GzEncoder::new(target, flate2::Compression::fast()));
            io::copy(source, &mut hashed)?;
            let (digest, _, encoder) = hashed.finish()?;
            encoder.finish()?;
            Ok(digest)
        }
    }
}

/// A writer that hashes and counts the written bytes.
struct Hashed<W> {
    inner: W,
    hash: Hash,
    size: u64,
}

impl<W: Write> Hashed<W> {
    fn new(inner: W) -> Self {
        Self {
            inner,
            hash: Hash::new(&SHA256),
            size: 0,
        }
    }

    fn finish(mut self) -> Result<(Digest, u64, W)> {
        self.inner.flush()?;
        let digest = to_digest(self.hash.finish().as_ref())?;
        Ok((digest, self.size, self.inner))
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(buffer)?;
        let part = buffer.get(..count).unwrap_or_default();
        self.hash.update(part);
        self.size += part.len() as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

pub(super) fn to_digest(hash: &[u8]) -> Result<Digest> {
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{digits}").parse()?)
}
