//! Downloads the tools as release binaries.
//!
//! `tests/controlplane/releases.txt` pins the files. A file with another digest is discarded. Tools that cannot be downloaded are
//! built.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use reqwest::{Client, Url};
use tempfile::NamedTempFile;
use tokio::time::timeout;

use super::cache::{SCRATCH, cache_dir};
use super::progress::Progress;
use super::tool::Tool;

/// Default list of releases; [`VARIABLE`] may replace it.
const PINNED: &str = include_str!("../../controlplane/releases.txt");
/// Variable with the path of a replacement list, for example with a mirror's addresses. An empty list disables
/// downloads.
const VARIABLE: &str = "BERTH_TEST_RELEASES";
/// Timeout for connecting to a site. After a timeout, the site is not tried again.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout between two parts of a file.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for a whole file. A build is faster than a longer download.
const FILE_TIMEOUT: Duration = Duration::from_secs(300);
/// Largest accepted file, in bytes.
const MAX_FILE_SIZE: u64 = 1 << 30;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Release {
    url: Url,
    /// SHA-256 in hex digits.
    digest: String,
    /// Tools with their paths in the archive. Without a path, the downloaded file is the program itself.
    members: Vec<(Tool, Option<String>)>,
}

/// Downloads these tools into the cache; returns those that failed. The caller holds the tools' lock.
pub(super) fn fetch(tools: &[Tool]) -> Result<Vec<Tool>> {
    let text = match std::env::var_os(VARIABLE) {
        Some(path) => fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
        None => PINNED.to_owned(),
    };
    let releases = parse(&text, std::env::consts::ARCH)?;
    // On its own thread, because the caller may be in another runtime.
    std::thread::scope(|scope| {
        let fetched = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(fetch_all(&releases, tools))
        });
        fetched.join().map_err(|_| anyhow::anyhow!("the download panicked"))?
    })
}

async fn fetch_all(releases: &[Release], tools: &[Tool]) -> Result<Vec<Tool>> {
    crate::install_crypto();
    let client = Client::builder()
        .connect_timeout(ANSWER_TIMEOUT)
        .read_timeout(SILENCE_TIMEOUT)
        .build()
        .context("cannot set up an HTTP client")?;
    let directory = cache_dir()?;
    let mut missing = tools.to_vec();
    let mut silent: BTreeSet<&str> = BTreeSet::new();
    for release in releases {
        let wanted: Vec<_> = release
            .members
            .iter()
            .filter(|(tool, _)| missing.contains(tool))
            .collect();
        let site = release.url.host_str().unwrap_or_default();
        if wanted.is_empty() || silent.contains(site) {
            continue;
        }
        let file = match timeout(FILE_TIMEOUT, download(&client, release, &directory)).await {
            Ok(Ok(file)) => file,
            Ok(Err(error)) if error.is::<std::io::Error>() => return Err(error),
            Err(_) => {
                silent.insert(site);
                eprintln!(
                    "berth-tools: {} takes more than {} s; download cancelled",
                    release.url,
                    FILE_TIMEOUT.as_secs()
                );
                continue;
            }
            Ok(Err(error)) => {
                // After a wrong file, the site's next file may still be correct.
                if !error.is::<WrongFile>() {
                    silent.insert(site);
                }
                eprintln!("berth-tools: cannot download {}: {error:#}", release.url);
                continue;
            }
        };
        for (tool, member) in wanted {
            match install(&file, member.as_deref(), &directory, &tool.cached()?) {
                Ok(()) => missing.retain(|other| other != tool),
                Err(error) => eprintln!("berth-tools: {} in {}: {error:#}", tool.file_name(), release.url),
            }
        }
    }
    Ok(missing)
}

/// The site returned something other than the pinned file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongFile(String);

async fn download(client: &Client, release: &Release, directory: &Path) -> Result<NamedTempFile> {
    let request = client.get(release.url.clone()).send();
    let answer = timeout(ANSWER_TIMEOUT, request).await;
    let mut response = answer.with_context(|| format!("no answer in {} s", ANSWER_TIMEOUT.as_secs()))??;
    if !response.status().is_success() {
        return Err(WrongFile(format!("the site answers {}", response.status())).into());
    }
    let name = release
        .url
        .path_segments()
        .and_then(|mut path| path.next_back())
        .unwrap_or_default();
    let mut progress = Progress::begin(&format!("downloading {}", release.url));
    let total = response
        .content_length()
        .map_or_else(String::new, |total| format!(" of {}", total >> 20));
    let mut file = scratch(directory)?;
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    let mut size = 0;
    while let Some(bytes) = response.chunk().await.context("the download was interrupted")? {
        size += u64::try_from(bytes.len())?;
        ensure!(
            size <= MAX_FILE_SIZE,
            WrongFile(format!("the file has more than {MAX_FILE_SIZE} bytes"))
        );
        hash.update(&bytes);
        file.write_all(&bytes).context("cannot write into the cache")?;
        progress.show(|_| format!("{name}: {}{total} MiB", size >> 20));
    }
    let found = hex(hash.finish().as_ref());
    if found != release.digest {
        let words = format!(
            "discarded: its digest is {found} instead of {} in releases.txt",
            release.digest
        );
        return Err(WrongFile(words).into());
    }
    progress.end(&format!("{name}: downloaded"));
    Ok(file)
}

/// Writes a program to the cache atomically, so that other processes never find a partial program.
fn install(file: &NamedTempFile, member: Option<&str>, directory: &Path, path: &Path) -> Result<()> {
    let mut source = file.reopen().context("cannot read the downloaded file")?;
    let mut program = scratch(directory)?;
    match member {
        Some(member) => unpack(source, member, program.as_file_mut())?,
        None => drop(std::io::copy(&mut source, program.as_file_mut())?),
    }
    program.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    program
        .persist(path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Creates a file that is removed unless it is moved elsewhere.
fn scratch(directory: &Path) -> Result<NamedTempFile> {
    let file = tempfile::Builder::new().prefix(SCRATCH).tempfile_in(directory);
    file.context("cannot write into the cache")
}

fn unpack(archive: impl Read, member: &str, to: &mut File) -> Result<()> {
    let mut archive = tar::Archive::new(GzDecoder::new(archive));
    for entry in archive.entries().context("the file is not a tar.gz archive")? {
        let mut entry = entry.context("the archive is damaged")?;
        if entry.path().is_ok_and(|path| path == Path::new(member)) {
            std::io::copy(&mut entry, to).context("the archive is damaged")?;
            return Ok(());
        }
    }
    bail!("the archive has no {member}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses the releases for one architecture, which has its Rust name. Each line contains the architecture, the address,
/// the digest, and each tool as its name or as `name=path in the archive`.
fn parse(text: &str, arch: &str) -> Result<Vec<Release>> {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut releases = vec![];
    for line in lines {
        let release = parse_line(line).with_context(|| format!("in the list of releases: {line}"))?;
        if line.split_whitespace().next() == Some(arch) {
            releases.push(release);
        }
    }
    Ok(releases)
}

fn parse_line(line: &str) -> Result<Release> {
    let mut words = line.split_whitespace().skip(1);
    let url = words.next().context("the line has no address")?;
    let url = Url::parse(url).context("the address is invalid")?;
    let digest = words.next().context("the line has no digest")?.to_owned();
    ensure!(digest.len() == 64, "{digest} is not a SHA-256");
    let members = words.map(parse_member).collect::<Result<Vec<_>>>()?;
    ensure!(!members.is_empty(), "the line has no tools");
    Ok(Release { url, digest, members })
}

fn parse_member(word: &str) -> Result<(Tool, Option<String>)> {
    let (name, path) = match word.split_once('=') {
        Some((name, path)) => (name, Some(path.to_owned())),
        None => (word, None),
    };
    let tool = Tool::ALL.into_iter().find(|tool| tool.file_name() == name);
    Ok((tool.with_context(|| format!("{name} is not a tool"))?, path))
}

#[cfg(test)]
mod tests;
