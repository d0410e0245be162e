//! Reads packages with the programs of Debian and Fedora.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tar::{Archive, EntryType};

use super::{need, run};

/// Files, links and directories of a package: a description by path.
pub type Contents = BTreeMap<String, String>;

/// Owner of everything in the packages.
const ROOT: &str = "root:root";
/// A directory that all users may read.
pub const DIRECTORY: &str = "755 root:root directory";

pub fn file(mode: u32, bytes: &[u8]) -> String {
    file_of(mode, ROOT, &hex(&berth_shell::sha256(bytes)))
}

pub fn link(target: &str) -> String {
    link_of(ROOT, target)
}

fn file_of(mode: u32, owner: &str, sha256: &str) -> String {
    format!("{:o} {owner} {sha256}", mode & 0o7777)
}

/// Permissions of a link have no effect.
fn link_of(owner: &str, target: &str) -> String {
    format!("{owner} link to {target}")
}

fn directory_of(mode: u32, owner: &str) -> String {
    format!("{:o} {owner} directory", mode & 0o7777)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns fields of a `.deb`. `format` is a format of `dpkg-deb --show`.
pub fn deb_fields(package: &Path, format: &str) -> Result<String> {
    run(dpkg_deb()?
        .arg("--show")
        .arg(format!("--showformat={format}"))
        .arg(package))
}

/// Returns the contents of a `.deb`.
pub fn deb(package: &Path) -> Result<Contents> {
    let output = dpkg_deb()?.arg("--fsys-tarfile").arg(package).output()?;
    let mut contents = Contents::new();
    for entry in Archive::new(output.stdout.as_slice()).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.to_string_lossy().into_owned();
        let path = path.trim_start_matches('.').trim_end_matches('/').to_owned();
        let header = entry.header();
        let user = header.username()?.unwrap_or_default();
        let owner = format!("{user}:{}", header.groupname()?.unwrap_or_default());
        let mode = header.mode()?;
        let description = match header.entry_type() {
            EntryType::Directory => directory_of(mode, &owner),
            EntryType::Symlink => {
                let target = entry.link_name()?.context("a link without a target")?;
                link_of(&owner, &target.to_string_lossy())
            }
            EntryType::Regular => {
                let mut bytes = vec![];
                entry.read_to_end(&mut bytes)?;
                file_of(mode, &owner, &hex(&berth_shell::sha256(&bytes)))
            }
            other => bail!("{path} is a {other:?}"),
        };
        contents.insert(path, description);
    }
    Ok(contents)
}

fn dpkg_deb() -> Result<Command> {
    need("dpkg-deb", "dpkg")?;
    Ok(Command::new("dpkg-deb"))
}

/// Returns fields of a `.rpm`. `format` is a query format of `rpm`.
pub fn rpm_fields(package: &Path, format: &str) -> Result<String> {
    need("rpm", "rpm")?;
    let directory = package.parent().context("a package without a directory")?;
    run(Command::new("rpm")
        // Otherwise, rpm creates a database in the user's home directory.
        .arg("--dbpath")
        .arg(directory.join("rpm-database"))
        .args(["--query", "--queryformat", format, "--package"])
        .arg(package))
}

/// Returns the contents of a `.rpm`.
pub fn rpm(package: &Path) -> Result<Contents> {
    let format =
        r"[%{FILEMODES:octal}\t%{FILEUSERNAME}:%{FILEGROUPNAME}\t%{FILEDIGESTS}\t%{FILELINKTOS}\t%{FILENAMES}\n]";
    let mut contents = Contents::new();
    for line in rpm_fields(package, format)?.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [mode, owner, digest, target, path] = fields[..] else {
            bail!("a file with other fields: {line}");
        };
        let mode = u32::from_str_radix(mode, 8)?;
        let description = match mode & 0o170_000 {
            0o040_000 => directory_of(mode, owner),
            0o120_000 => link_of(owner, target),
            0o100_000 => file_of(mode, owner, digest),
            _ => bail!("neither file, link nor directory: {line}"),
        };
        contents.insert(path.to_owned(), description);
    }
    Ok(contents)
}
