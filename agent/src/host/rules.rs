use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use berth_api::Digest;
use berth_core::agent::host_policy::registries::{self, Registries};
use berth_core::agent::host_policy::signatures::{self, Policy};

use berth_shell::sha256;

use super::files;
use super::root::HostRoot;

/// Returns the registries that the agent's flags and the host's own list allow.
pub(super) fn registries(root: &HostRoot, flags: &[String]) -> Registries {
    let text = match read(root, registries::FILE, registries::MAX_LENGTH) {
        Ok(Some(text)) if text.len() > registries::MAX_LENGTH => Some(Err("the file is too long".to_owned())),
        Ok(Some(text)) => Some(String::from_utf8(text).map_err(|error| error.to_string())),
        Ok(None) => unseen(root).map(Err),
        Err(error) => Some(Err(format!("the file cannot be read: {error}"))),
    };
    let text = text.as_ref().map(|text| text.as_deref().map_err(String::clone));
    Registries::new(flags, text)
}

/// Returns an error message if the directory of the host's list is not mounted in the agent's pod: the host may then
/// have a list that the agent cannot see. `None` if the agent sees the directory.
fn unseen(root: &HostRoot) -> Option<String> {
    let directory = Path::new(registries::FILE).parent()?;
    let is_pod = root.path("/") != Path::new("/");
    if !is_pod || root.resolve(directory).is_ok_and(|found| found.is_dir()) {
        return None;
    }
    let (directory, root) = (directory.display(), root.path("/"));
    let root = root.display();
    Some(format!(
        "the host's {directory} is not visible under {root}; mount it there, as manifests/base/agent-daemonset.yaml does"
    ))
}

/// Returns the host's signature policy and the digest of its text; no digest if no policy can be read.
pub(super) fn policy(root: &HostRoot) -> (Policy, Option<Digest>) {
    for path in signatures::PLACES {
        match read(root, path, signatures::MAX_LENGTH) {
            Ok(Some(text)) => return (Policy::parse(path, &text), Some(Digest::from(sha256(&text)))),
            Ok(None) => {}
            Err(error) => return (Policy::Unusable(format!("{path} cannot be read: {error}")), None),
        }
    }
    (Policy::Missing, None)
}

/// Reads a file of the host, following links as the host would; `None` if the file does not exist. Fails on a broken
/// link, because the link may be intact in the host's view.
fn read(root: &HostRoot, path: &str, limit: usize) -> io::Result<Option<Vec<u8>>> {
    match root.resolve(path).and_then(|file| files::read_bounded(&file, limit)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound && !has_entry(root, Path::new(path))? => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the host has this path, even as a broken link, or if a parent directory is a broken link.
fn has_entry(root: &HostRoot, path: &Path) -> io::Result<bool> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(true);
    };
    let resolved = root.resolve(directory)?;
    match fs::symlink_metadata(resolved.join(name)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Err(_) if resolved.is_dir() => Ok(false),
        Err(_) => has_entry(root, directory),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    struct World(PathBuf, HostRoot);

    impl World {
        fn new(name: &str, directories: &[&str]) -> Self {
            let scratch = std::env::temp_dir().join(format!("berth-rules-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&scratch);
            let root = HostRoot::new(&scratch);
            for directory in directories {
                fs::create_dir_all(root.path(directory)).unwrap();
            }
            Self(scratch, root)
        }

        fn why(&self) -> String {
            match registries(&self.1, &[]) {
                Registries::Unusable(why) => why,
                other => panic!("{other:?}"),
            }
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_list_behind_a_link_of_the_host_is_read() {
        let world = World::new("list", &["/etc/berth", "/usr/share/berth"]);
        let (file, target) = (world.1.path(registries::FILE), "/usr/share/berth/allowed-registries");
        assert_eq!(registries(&world.1, &[]), Registries::default());
        symlink(target, &file).unwrap();
        assert!(world.why().contains("cannot be read"), "the link leads nowhere");
        fs::write(world.1.path(target), "quay.io/example\n").unwrap();
        let lists = vec![(registries::FILE.to_owned(), vec!["quay.io/example".to_owned()])];
        assert_eq!(registries(&world.1, &[]), Registries::Lists(lists));
    }

    #[test]
    fn a_list_that_is_too_long_is_refused() {
        let world = World::new("long", &["/etc/berth"]);
        let file = world.1.path(registries::FILE);
        let mut text = "quay.io/example\n".to_owned();
        text.push_str(&"#".repeat(registries::MAX_LENGTH - text.len()));
        fs::write(&file, &text).unwrap();
        assert!(matches!(registries(&world.1, &[]), Registries::Lists(_)));
        fs::write(&file, text + "#").unwrap();
        assert!(world.why().contains("the file is too long"));
    }

    #[test]
    fn a_name_below_a_file_cannot_be_looked_up() {
        let world = World::new("file", &["/etc"]);
        fs::write(world.1.path("/etc/berth"), "").unwrap();
        has_entry(&world.1, Path::new(registries::FILE)).unwrap_err();
    }

    #[test]
    fn a_directory_that_cannot_be_seen_allows_nothing() {
        let world = World::new("directory", &["/etc"]);
        assert!(world.why().contains("the host's /etc/berth is not visible under"));
        symlink("/var/elsewhere", world.1.path("/etc/berth")).unwrap();
        assert!(world.why().contains("cannot be read"));
        fs::create_dir_all(world.1.path("/var/elsewhere")).unwrap();
        assert_eq!(registries(&world.1, &[]), Registries::default());
        let file = "/etc/berth-that-is-not-there/allowed-registries";
        assert!(read(&HostRoot::new("/"), file, 1).unwrap().is_none());
        assert_eq!(unseen(&HostRoot::new("/")), None, "a service sees what there is");
    }

    #[test]
    fn the_next_place_counts_only_where_the_first_has_no_entry() {
        let world = World::new("policy", &["/etc/containers", "/usr/share/containers"]);
        let [first, next] = signatures::PLACES;
        assert_eq!(policy(&world.1), (Policy::Missing, None));
        fs::write(world.1.path(next), "{}").unwrap();
        let (found, digest) = policy(&world.1);
        assert_eq!((found, digest.is_some()), (Policy::parse(next, b"{}"), true));
        symlink("/var/policy.json", world.1.path(first)).unwrap();
        assert!(
            matches!(policy(&world.1), (Policy::Unusable(_), None)),
            "the host may see it"
        );
        fs::create_dir_all(world.1.path("/var")).unwrap();
        fs::write(world.1.path("/var/policy.json"), "{}").unwrap();
        assert_eq!(policy(&world.1).0, Policy::parse(first, b"{}"));
    }
}
