use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use berth_core::firstboot::node::{FILES, Signs, has_kubelet_port};
use nix::errno::Errno;

use crate::host::files;
use crate::host::root::HostRoot;

/// Longest name and longest command line of a process that are read, in bytes. Only the program and the first flags of a
/// command line matter.
const MAX_NAME: usize = 64;
const MAX_COMMAND: usize = 64 << 10;
/// Longest list of connections that is read, in bytes: some hundred thousand connections. A longer list counts as if
/// the kubelet were listening.
const MAX_TABLE: usize = 64 << 20;

/// True if an agent or a kubelet runs or has run on this machine. A file that cannot be read counts as existing: the
/// first-boot check must not reboot a node.
pub fn is_node(root: &HostRoot, signs: &Signs) -> bool {
    let known = FILES.iter().map(Path::new);
    let mut files = known.chain(signs.files.iter().map(AsRef::as_ref));
    files.any(|path| root.path(path).try_exists().unwrap_or(true))
        || kubelet_runs(root, signs).unwrap_or(true)
        || kubelet_listens(root).unwrap_or(true)
}

fn kubelet_runs(root: &HostRoot, signs: &Signs) -> io::Result<bool> {
    let Some(processes) = unless_absent(fs::read_dir(root.path("/proc")))? else {
        return Ok(false);
    };
    for process in processes {
        let path = process?.path();
        if !path.file_name().and_then(|name| name.to_str()).is_some_and(is_process) {
            continue;
        }
        let name = unless_absent(files::read_bounded(&path.join("comm"), MAX_NAME))?.unwrap_or_default();
        let command_line = unless_absent(files::read_bounded(&path.join("cmdline"), MAX_COMMAND))?.unwrap_or_default();
        if signs.is_kubelet(&String::from_utf8_lossy(&name), &command_line) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn kubelet_listens(root: &HostRoot) -> io::Result<bool> {
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let table = unless_absent(files::bounded_text(&root.path(table), MAX_TABLE))?;
        if table.is_some_and(|table| has_kubelet_port(&table)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_process(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns `None` for a missing file, and for a file in `/proc` whose process has ended.
fn unless_absent<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("berth-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn is_node(&self, signs: &Signs) -> bool {
            is_node(&HostRoot::new(&self.0), signs)
        }

        fn is_known_node(&self) -> bool {
            self.is_node(&Signs::default())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_that_a_kubelet_leaves_is_a_sign() {
        for path in FILES {
            let host = Scratch::new("node-file");
            assert!(!host.is_known_node());
            host.write(path.trim_start_matches('/'), "");
            assert!(host.is_known_node(), "{path}");
        }
        let host = Scratch::new("node-own-file");
        host.write("srv/kubelet/pods/x", "");
        assert!(!host.is_known_node());
        let signs = Signs {
            files: vec!["/srv/kubelet/pods".into()],
            ..Signs::default()
        };
        assert!(host.is_node(&signs));
    }

    #[test]
    fn a_running_kubelet_is_a_sign() {
        let host = Scratch::new("node-process");
        host.write("proc/1/comm", "systemd\n");
        host.write("proc/1/cmdline", "/sbin/init\0");
        host.write("proc/self/comm", "kubelet\n");
        // A process that ended while its directory was read.
        fs::create_dir_all(host.0.join("proc/4711")).unwrap();
        assert!(!host.is_known_node());
        host.write("proc/812/comm", "kubelet\n");
        host.write(
            "proc/812/cmdline",
            "/var/lib/k0s/bin/kubelet\0--root-dir=/srv/kubelet\0",
        );
        assert!(host.is_known_node());
    }

    #[test]
    fn a_listening_kubelet_is_a_sign() {
        let host = Scratch::new("node-port");
        host.write("proc/812/comm", "our-node\n");
        host.write("proc/812/cmdline", "our-node\0");
        host.write("proc/net/tcp", "  sl  local_address rem_address   st\n");
        assert!(!host.is_known_node());
        let signs = Signs {
            processes: vec!["our-node".into()],
            ..Signs::default()
        };
        assert!(host.is_node(&signs));
        host.write(
            "proc/net/tcp6",
            "  sl  local_address rem_address   st\n   0: 0:280A 0:0000 0A 00000000:00000000\n",
        );
        assert!(host.is_known_node());
    }

    #[test]
    fn unreadable_files_are_a_sign() {
        let host = Scratch::new("node-unreadable");
        host.write("proc", "no directory");
        assert!(host.is_known_node());
        let host = Scratch::new("node-unreadable-process");
        fs::create_dir_all(host.0.join("proc/1/comm")).unwrap();
        assert!(host.is_known_node());
    }
}
