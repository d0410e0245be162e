//! The host's auth files, with the credentials for registries. The agent writes its auth file to the first path that
//! the host's tools search.
//!
//! A record in the runtime directory lists the digests of the auth files that the agent wrote. The agent writes the
//! record before the file, and a reboot clears both. So the next agent knows, even after a crash, whether Berth wrote
//! the host's file and may change it.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use berth_api::Digest;
use berth_core::agent::host_policy::Objection;
use berth_core::agent::host_policy::credentials::{
    self, AuthFiles, Change, Claim, Given, MAX_LENGTH, PLACES, Place, decide,
};
use berth_core::agent::reason::Reason;
use berth_shell::sha256;

use super::files;
use super::root::{HostRoot, RUN_DIR};

/// The agent's flags about the host's credentials.
#[derive(Debug, Clone, Default)]
pub struct AuthSource {
    /// File with the host's credentials, as the agent sees it. It may be missing.
    pub path: Option<PathBuf>,
    /// True to overwrite auth files that Berth did not write, or to hide them with Berth's file, which the host's tools
    /// read first.
    pub replace: bool,
}

#[derive(Debug)]
pub(super) struct HostAuth {
    root: HostRoot,
    source: AuthSource,
}

/// Result of updating the host's credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuthOutcome {
    /// True if the host's credentials have changed.
    pub changed: bool,
    /// Problem to report in a condition.
    pub objection: Option<Objection>,
}

impl HostAuth {
    pub(super) fn new(root: HostRoot, source: AuthSource) -> Self {
        Self { root, source }
    }

    fn record_path(&self) -> PathBuf {
        self.root.path(RUN_DIR).join("auth.json.ours")
    }

    fn path(&self) -> PathBuf {
        self.root.path(PLACES[0])
    }

    /// Compares the agent's auth file with the host's, and writes or removes the host's file if needed.
    pub(super) fn keep(&self, claim: Claim) -> AuthOutcome {
        let (given, text) = self.given();
        let host = self.look();
        if !host.ours.is_empty() {
            // A crash may have left credentials in the temporary file, which no other agent can be writing now.
            let _ = fs::remove_file(files::temporary(&self.path()));
        }
        let (change, objection) = decide(claim, &given, &host, self.source.replace);
        let done = match (change, &given) {
            (Change::Keep, _) => {
                return AuthOutcome {
                    changed: false,
                    objection,
                };
            }
            (Change::Write, Given::File(digest)) => self.write(&host, digest, &text),
            (Change::Write, _) => Ok(()),
            (Change::Remove, _) => self.remove(),
        };
        let path = PLACES[0];
        match done {
            Ok(()) => {
                let done = if change == Change::Write { "written" } else { "removed" };
                tracing::info!(path, "the host's credentials were {done}");
                AuthOutcome {
                    changed: true,
                    objection,
                }
            }
            Err(error) => {
                let message = format!(
                    "cannot update the host's credentials in {path}: {error}; make that directory writable for the agent, or \
                     start the agent without --auth-file"
                );
                AuthOutcome {
                    changed: false,
                    objection: Some(Objection::new(Reason::AuthFileUnwritable, message)),
                }
            }
        }
    }

    /// Returns a text that names the auth file that the host's pulls use.
    pub(super) fn in_use(&self) -> String {
        credentials::in_use(&self.look())
    }

    fn given(&self) -> (Given, Vec<u8>) {
        let Some(path) = &self.source.path else {
            return (Given::Nothing, vec![]);
        };
        let why = match files::read_bounded(path, MAX_LENGTH) {
            Ok(text) => match credentials::check(&text) {
                Ok(()) => return (Given::File(digest(&text)), text),
                Err(why) => why,
            },
            Err(error) if error.kind() == ErrorKind::NotFound => return (Given::Nothing, vec![]),
            Err(error) => error.to_string(),
        };
        let message = format!("cannot use the agent's auth file {}: {why}", path.display());
        (Given::Unusable(message), vec![])
    }

    fn look(&self) -> AuthFiles {
        let record = files::small_text(&self.record_path()).unwrap_or_default();
        AuthFiles {
            places: PLACES.map(|path| place(&self.root, path)),
            ours: record.lines().filter_map(|line| line.parse().ok()).collect(),
        }
    }

    /// Writes the record, then the auth file. The record contains the new file's digest. If Berth wrote the replaced
    /// file, the record also contains that file's digest.
    fn write(&self, host: &AuthFiles, new: &Digest, text: &[u8]) -> io::Result<()> {
        let was_ours = match &host.places[0] {
            Place::File(digest) => host.ours.contains(digest).then_some(digest),
            _ => None,
        };
        let mut record = format!("{new}\n");
        if let Some(old) = was_ours {
            record.push_str(&format!("{old}\n"));
        }
        self.root.make_run_dir()?;
        files::replace(&self.record_path(), record.as_bytes())?;
        let path = self.path();
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        files::replace(&path, text).inspect_err(|_| drop(fs::remove_file(files::temporary(&path))))
    }

    fn remove(&self) -> io::Result<()> {
        files::remove(&self.path())?;
        files::remove(&self.record_path())
    }
}

fn place(root: &HostRoot, path: &str) -> Place {
    let path = root.path(path);
    let kind = match fs::symlink_metadata(&path) {
        Ok(found) => found.file_type(),
        // The path, or a directory in it, does not exist, so the host's tools find no file there either.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Place::Empty,
        Err(error) => return Place::Odd(format!("a file that cannot be examined: {error}")),
    };
    if kind.is_symlink() {
        let target = fs::read_link(&path).map(|to| format!(" to {}", to.display()));
        return Place::Odd(format!("a symbolic link{}", target.unwrap_or_default()));
    }
    if !kind.is_file() {
        return Place::Odd("not a file".to_owned());
    }
    match files::read_bounded(&path, MAX_LENGTH) {
        Ok(text) if text.len() > MAX_LENGTH => Place::Odd("a file that is too large".to_owned()),
        Ok(text) => Place::File(digest(&text)),
        Err(error) => Place::Odd(format!("a file that cannot be read: {error}")),
    }
}

pub(super) fn digest(text: &[u8]) -> Digest {
    Digest::from(sha256(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const ONE: &str = r#"{"auths":{"quay.io":{"auth":"dTpvbmU="}}}"#;
    const TWO: &str = r#"{"auths":{"quay.io":{"auth":"dTp0d28="}}}"#;

    struct World {
        scratch: PathBuf,
        root: HostRoot,
        secret: PathBuf,
    }

    impl World {
        fn new(name: &str) -> Self {
            let scratch = std::env::temp_dir().join(format!("berth-auth-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&scratch);
            fs::create_dir_all(scratch.join("host")).unwrap();
            Self {
                root: HostRoot::new(scratch.join("host")),
                secret: scratch.join("secret"),
                scratch,
            }
        }

        /// Runs the update like an agent that has just started.
        fn keep(&self, claim: Claim, replace: bool) -> (bool, Option<Reason>) {
            let source = AuthSource {
                path: Some(self.secret.clone()),
                replace,
            };
            let done = HostAuth::new(self.root.clone(), source).keep(claim);
            (done.changed, done.objection.map(|o| o.reason))
        }

        fn text(&self) -> Option<String> {
            fs::read_to_string(self.root.path(PLACES[0])).ok()
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.scratch);
        }
    }

    #[test]
    fn the_hosts_file_follows_the_agents() {
        let world = World::new("follows");
        assert_eq!(world.keep(Claim::Member, false), (false, None), "nothing was given");
        assert!(!world.root.path("/run").exists(), "and nothing was made");
        fs::write(&world.secret, ONE).unwrap();
        assert_eq!(world.keep(Claim::Unknown, false), (false, None));
        assert_eq!(world.keep(Claim::Member, false), (true, None));
        assert_eq!(world.text().as_deref(), Some(ONE));
        let mode = fs::metadata(world.root.path(PLACES[0])).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(world.keep(Claim::Member, false), (false, None), "once is enough");
        fs::write(&world.secret, TWO).unwrap();
        assert_eq!(world.keep(Claim::Member, false), (true, None));
        assert_eq!(world.text().as_deref(), Some(TWO));
        fs::write(&world.secret, "nonsense").unwrap();
        assert_eq!(world.keep(Claim::Member, false), (false, Some(Reason::InvalidAuthFile)));
        assert_eq!(world.text().as_deref(), Some(TWO), "what worked stays");
        fs::remove_file(&world.secret).unwrap();
        assert_eq!(world.keep(Claim::Member, false), (true, None));
        assert_eq!(world.text(), None);
        fs::write(&world.secret, ONE).unwrap();
        assert_eq!(world.keep(Claim::Member, false), (true, None));
        assert_eq!(world.keep(Claim::Released, false), (true, None));
        assert_eq!(world.text(), None, "it goes with the pool");
        let left: Vec<_> = fs::read_dir(world.root.path(RUN_DIR)).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn a_foreign_file_stays() {
        let world = World::new("foreign");
        fs::write(&world.secret, ONE).unwrap();
        fs::create_dir_all(world.root.path("/run/ostree")).unwrap();
        fs::create_dir_all(world.root.path("/etc/ostree")).unwrap();
        fs::write(world.root.path("/etc/ostree/auth.json"), TWO).unwrap();
        assert_eq!(world.keep(Claim::Member, false), (false, Some(Reason::ForeignAuthFile)));
        assert_eq!(world.text(), None, "it is not hidden");
        symlink("/etc/ostree/auth.json", world.root.path(PLACES[0])).unwrap();
        let source = AuthSource {
            path: Some(world.secret.clone()),
            replace: false,
        };
        let done = HostAuth::new(world.root.clone(), source).keep(Claim::Member);
        let message = done.objection.unwrap().message;
        assert!(
            message.contains("/run/ostree/auth.json (a symbolic link to /etc/ostree/auth.json)"),
            "{message}"
        );
        assert_eq!(world.keep(Claim::Released, false), (false, None));
        assert_eq!(world.keep(Claim::Member, true), (true, None), "that was asked for");
        assert!(fs::symlink_metadata(world.root.path(PLACES[0])).unwrap().is_file());
        let kept = fs::read_to_string(world.root.path("/etc/ostree/auth.json")).unwrap();
        assert_eq!((world.text().as_deref(), kept.as_str()), (Some(ONE), TWO));
    }

    #[test]
    fn a_crash_between_record_and_file_is_repaired() {
        let world = World::new("crash");
        fs::write(&world.secret, ONE).unwrap();
        assert!(world.keep(Claim::Member, false).0);
        // The agent has written the record of the second text, but not the file.
        let record = world.root.path(RUN_DIR).join("auth.json.ours");
        fs::write(
            &record,
            format!("{}\n{}\n", digest(TWO.as_bytes()), digest(ONE.as_bytes())),
        )
        .unwrap();
        fs::write(&world.secret, TWO).unwrap();
        assert_eq!(world.keep(Claim::Member, false), (true, None));
        assert_eq!(world.text().as_deref(), Some(TWO));
        // Without a record, a file counts as foreign.
        fs::remove_file(&record).unwrap();
        fs::write(&world.secret, ONE).unwrap();
        assert_eq!(world.keep(Claim::Member, false), (false, Some(Reason::ForeignAuthFile)));
    }

    #[test]
    fn no_credentials_stay_in_a_temporary_file() {
        let world = World::new("temporary");
        let temporary = world.root.path("/run/ostree/auth.tmp");
        fs::write(&world.secret, ONE).unwrap();
        fs::create_dir_all(world.root.path(PLACES[0])).unwrap();
        assert_eq!(
            world.keep(Claim::Member, true),
            (false, Some(Reason::AuthFileUnwritable))
        );
        assert!(!temporary.exists(), "the file did not get its name");
        fs::remove_dir(world.root.path(PLACES[0])).unwrap();
        for has_file in [true, false] {
            assert!(world.keep(Claim::Member, false).0);
            fs::write(&temporary, ONE).unwrap();
            if !has_file {
                fs::remove_file(world.root.path(PLACES[0])).unwrap();
            }
            world.keep(Claim::Released, false);
            assert!(!temporary.exists(), "an agent died while it wrote");
        }
    }

    #[test]
    fn an_unwritable_directory_is_reported() {
        let world = World::new("unwritable");
        fs::write(&world.secret, ONE).unwrap();
        fs::create_dir_all(world.root.path("/run")).unwrap();
        fs::write(world.root.path("/run/ostree"), "a file").unwrap();
        assert_eq!(
            world.keep(Claim::Member, false),
            (false, Some(Reason::AuthFileUnwritable))
        );
    }
}
