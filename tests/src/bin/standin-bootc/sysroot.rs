//! The host's sysroot: its lock, its deployments, its repository.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use berth_tests::bootc::NOT_BOOTED;
use berth_tests::hosts::real::sysroot_lock::{self, SysrootLock};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::run::output;

/// Lock file for the `ostree` child processes of this process, which itself holds the real lock.
const INNER_LOCK: &str = "/run/standin-bootc.lock";

/// Temporary origin file of the deployment that is being staged.
const ORIGIN: &str = "/run/standin-bootc.origin";

/// The sysroot of the booted host, or one that is being created.
#[derive(Debug)]
pub(crate) struct Sysroot {
    pub(crate) path: PathBuf,
    /// Lock of the booted host's sysroot; `None` for another sysroot. The kernel releases the lock when the process
    /// ends.
    _lock: Option<SysrootLock>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Deployment {
    pub(crate) booted: bool,
    pub(crate) stateroot: String,
    pub(crate) checksum: String,
    pub(crate) serial: u32,
    pub(crate) staged: bool,
    pub(crate) locked: bool,
    pub(crate) pinned: bool,
}

impl Sysroot {
    /// Takes the host's sysroot lock; waits without a timeout, as bootc does.
    ///
    /// `ostree` processes started later would wait for the lock held here. So this mounts another file over the lock
    /// file in its own mount namespace; for other processes the real file stays locked.
    pub(crate) fn lock() -> Result<Self> {
        let lock = SysrootLock::wait().context("Locking sysroot")?;
        sysroot_lock::open(Path::new(INNER_LOCK)).with_context(|| format!("Opening {INNER_LOCK}"))?;
        unshare(CloneFlags::CLONE_NEWNS).context("This command requires full root privileges (CAP_SYS_ADMIN)")?;
        let slave = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        mount(None::<&str>, "/", None::<&str>, slave, None::<&str>).context("Preparing for write: mount namespace")?;
        mount(
            Some(INNER_LOCK),
            sysroot_lock::PATH,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .context("Preparing for write: inner lock")?;
        Ok(Self {
            path: PathBuf::from("/sysroot"),
            _lock: Some(lock),
        })
    }

    /// Opens a sysroot that is not booted; creates it if it is missing.
    pub(crate) fn at(path: &Path, stateroot: &str) -> Result<Self> {
        let sysroot = Self {
            path: path.to_owned(),
            _lock: None,
        };
        if !sysroot.repo().exists() {
            std::fs::create_dir_all(path).with_context(|| format!("making {}", path.display()))?;
            let path = path.to_str().context("sysroot path")?;
            output("ostree", &["admin", "init-fs", "--modern", path])?;
            output(
                "ostree",
                &["admin", "stateroot-init", stateroot, &format!("--sysroot={path}")],
            )?;
        }
        Ok(sysroot)
    }

    pub(crate) fn repo(&self) -> PathBuf {
        self.path.join("ostree/repo")
    }

    pub(crate) fn ostree(&self, args: &[&str]) -> Result<String> {
        let repo = format!("--repo={}", self.repo().display());
        let (verb, rest) = args.split_first().context("an ostree verb")?;
        let mut all = vec![*verb, repo.as_str()];
        all.extend(rest);
        output("ostree", &all)
    }

    pub(crate) fn admin(&self, args: &[&str]) -> Result<String> {
        let sysroot = format!("--sysroot={}", self.path.display());
        let (verb, rest) = args.split_first().context("an ostree admin verb")?;
        let mut all = vec!["admin", *verb];
        if self._lock.is_none() {
            all.push(&sysroot);
        }
        all.extend(rest);
        output("ostree", &all)
    }

    /// All deployments in boot order, a staged one first.
    pub(crate) fn deployments(&self) -> Result<Vec<Deployment>> {
        parse(&self.admin(&["status", "--skip-signatures"])?)
    }

    pub(crate) fn root_of(&self, deployment: &Deployment) -> PathBuf {
        self.path
            .join("ostree/deploy")
            .join(&deployment.stateroot)
            .join("deploy")
            .join(format!("{}.{}", deployment.checksum, deployment.serial))
    }

    pub(crate) fn origin(&self, deployment: &Deployment) -> Result<String> {
        // The deployment's name ends in `.0`, which must not be replaced like a file extension.
        let mut path = self.root_of(deployment).into_os_string();
        path.push(".origin");
        let path = PathBuf::from(path);
        std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
    }

    pub(crate) fn booted_stateroot(&self) -> Result<String> {
        let all = self.deployments()?;
        let booted = all.into_iter().find(|d| d.booted).context(NOT_BOOTED)?;
        Ok(booted.stateroot)
    }

    pub(crate) fn stage(&self, origin: &str, commit: &str, lock: bool) -> Result<()> {
        std::fs::write(ORIGIN, origin).context("Writing origin")?;
        let stateroot = format!("--stateroot={}", self.booted_stateroot()?);
        let from = format!("--origin-file={ORIGIN}");
        let mut args = vec!["deploy", "--stage", &stateroot, &from];
        if lock {
            args.push("--lock-finalization");
        }
        args.push(commit);
        self.admin(&args).map(drop).context("Deploying")
    }

    /// Notifies the processes that watch `/ostree/bootc` of a change.
    pub(crate) fn touch(&self) -> Result<()> {
        let path = self.path.join("ostree/bootc");
        std::fs::create_dir_all(&path).context("Updating mtime")?;
        let stamp = path.join(".stamp");
        File::create(&stamp).context("Updating mtime")?;
        std::fs::remove_file(&stamp).context("Updating mtime")
    }
}

fn parse(text: &str) -> Result<Vec<Deployment>> {
    let mut list: Vec<Deployment> = Vec::new();
    for line in text.lines() {
        // Deployments start at column 2; their details are indented further.
        let is_head =
            line.get(..2).is_some_and(|mark| mark == "* " || mark == "  ") && line.get(2..3).is_some_and(|c| c != " ");
        if is_head {
            if let Some(deployment) = head(line)? {
                list.push(deployment);
            }
        } else if line.trim() == "Pinned: yes"
            && let Some(last) = list.last_mut()
        {
            last.pinned = true;
        }
    }
    Ok(list)
}

fn head(line: &str) -> Result<Option<Deployment>> {
    let mut words = line.get(2..).unwrap_or_default().split_whitespace();
    let (Some(stateroot), Some(name)) = (words.next(), words.next()) else {
        return Ok(None);
    };
    let Some((checksum, serial)) = name.split_once('.') else {
        return Ok(None);
    };
    let note = line.split_once('(').map(|(_, n)| n).unwrap_or_default();
    let locked = note.contains("finalization locked");
    Ok(Some(Deployment {
        booted: line.starts_with('*'),
        stateroot: stateroot.to_owned(),
        checksum: checksum.to_owned(),
        serial: serial.parse().with_context(|| format!("deployment {name}"))?,
        staged: locked || note.contains("staged"),
        locked,
        pinned: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_deployments_is_read() {
        let text = "  default cc.0 (finalization locked)\n    origin: <unknown origin type>\n* default aa.1\n    origin: x\n    Pinned: yes\n  default bb.0 (rollback)\n    origin: x\n";
        let list = parse(text).unwrap();
        assert_eq!(list.len(), 3);
        assert!(list[0].staged && list[0].locked && !list[0].booted);
        assert!(list[1].booted && list[1].pinned && list[1].serial == 1);
        assert!(!list[2].staged && list[2].checksum == "bb");
        assert!(parse("  default dd.0 (staged)\n").unwrap()[0].staged);
        assert!(parse("No deployments.\n").unwrap().is_empty());
    }
}
