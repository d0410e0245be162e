//! Names of the daemon on the bus and on the host.

/// Name on the system bus.
pub const NAME: &str = "org.projectatomic.rpmostree1";
/// Unit of the daemon.
pub const UNIT: &str = "rpm-ostreed.service";
/// Path of the object with the deployments.
pub const SYSROOT_PATH: &str = "/org/projectatomic/rpmostree1/Sysroot";
/// Socket of the running transaction, below the host's `/run`.
pub const SOCKET: &str = "rpm-ostree-transaction.sock";

/// Object path of an operating system.
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
