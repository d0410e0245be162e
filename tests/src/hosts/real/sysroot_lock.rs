//! The lock on a host's deployments, compatible with libostree.
//!
//! libostree locks `/sysroot/ostree/lock` with an open file description lock, which is independent of `flock` locks, and removes
//! the file when it releases the lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Path of the lock on a host.
pub const PATH: &str = "/sysroot/ostree/lock";

/// The held lock. The kernel releases it when the process ends for any reason.
#[derive(Debug)]
pub struct SysrootLock(#[expect(dead_code, reason = "an open file keeps the lock")] File);

impl SysrootLock {
    /// Waits for the lock without a timeout.
    pub fn wait() -> io::Result<Self> {
        loop {
            let file = open(Path::new(PATH))?;
            fcntl(&file, FcntlArg::F_OFD_SETLKW(&exclusive()))?;
            if is_at(&file, Path::new(PATH)) {
                return Ok(Self(file));
            }
        }
    }

    /// Takes the lock; `None` if it is held.
    pub fn take() -> io::Result<Option<Self>> {
        loop {
            let file = open(Path::new(PATH))?;
            match fcntl(&file, FcntlArg::F_OFD_SETLK(&exclusive())) {
                Ok(_) if is_at(&file, Path::new(PATH)) => return Ok(Some(Self(file))),
                Ok(_) => {}
                Err(Errno::EAGAIN | Errno::EACCES) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Opens a lock file; creates it if it is missing.
pub fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

fn exclusive() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// True if the path still leads to this file: the last holder may have removed it.
fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), path.metadata()) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
