//! A stand-in for the rpm-ostree daemon, on any message bus and over any deployments.
//!
//! Serves `org.projectatomic.rpmostree1` as version 2026.2 does, as far as Berth and its tests use it: names,
//! signatures, option keys, the transaction on a socket of its own, the exit when nobody needs it, and the errors.
//! The deployments belong to who implements [`Beneath`]. Faults can be switched on while it runs: see [`Faults`].

mod beneath;
pub mod client;
mod daemon;
mod dictionary;
mod faces;
mod faults;
mod options;
mod order;
mod reference;
mod transaction;

pub use beneath::{Beneath, Deployment, SysrootLock, Tell, Teller, Undeploy, Wanted};
pub use daemon::{Config, End, run};
pub use faults::{Broken, Call, Faults, SharedFaults};
pub use reference::Reference;

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
