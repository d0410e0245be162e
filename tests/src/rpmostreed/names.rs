//! Names that the daemon has on the bus and on the host.

/// The name on the system bus.
pub const NAME: &str = "org.projectatomic.rpmostree1";
/// The unit that runs the daemon.
pub const UNIT: &str = "rpm-ostreed.service";
/// The object with the deployments.
pub const SYSROOT_PATH: &str = "/org/projectatomic/rpmostree1/Sysroot";
/// The socket of the transaction that runs, below the host's `/run`.
pub const SOCKET: &str = "rpm-ostree-transaction.sock";

/// The path of the object of an operating system.
pub fn os_path(osname: &str) -> String {
    let mut path = "/org/projectatomic/rpmostree1/".to_owned();
    for byte in osname.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => path.push(char::from(byte)),
            b'/' | b'-' => path.push('_'),
            other => path.push_str(&format!("_{other:02x}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_operating_systems_become_paths() {
        assert_eq!(os_path("fedora-coreos"), "/org/projectatomic/rpmostree1/fedora_coreos");
        assert_eq!(os_path("a.b"), "/org/projectatomic/rpmostree1/a_2eb");
    }
}
