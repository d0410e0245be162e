//! Real hosts: real systemd, logind, D-Bus, ostree and kubelet on a real ostree deployment, in `systemd-nspawn`.
//!
//! The harness plays hardware, firmware and boot loader: it starts the deployment in ostree's boot entries, notices the end of
//! the host, and starts it again. The booted image comes from ostree's own metadata, never from Berth or bootc.
//!
//! Needs root and Debian's packages (see [`unavailable`]). Everything built is cached; see `tests/osimage` for the image's
//! content.

mod bls;
mod cache;
mod cgroup;
mod content;
mod disk;
mod give_rpm_ostree;
mod guest;
mod host;
mod hosts;
mod layers;
mod machine;
mod network;
mod os_build;
mod osimage;
pub mod ostree;
mod outside;
mod programs;
mod root;
mod rpm_ostree;
mod run_dir;
mod shell;
pub mod sysroot_lock;

use anyhow::Result;

pub use self::give_rpm_ostree::give_rpm_ostree;
pub use self::guest::{GUEST_IMAGE, guest_program};
pub use self::host::RealHost;
pub use self::hosts::{HostOptions, NodeIdentity, RealHosts};
pub use self::machine::Boot;
pub use self::network::Bridge;
pub use self::osimage::{OsImage, OsImages, OsVersion};
pub use self::outside::FromOutside;
pub use self::rpm_ostree::{HostFile, is_rpm_ostree_real, rpm_ostree};

/// Returns the reason why this machine cannot run real hosts; `None` if it can. A test that needs them prints the
/// reason and ends.
pub fn unavailable() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some(
            "SKIPPED: real hosts need root (systemd-nspawn, bridges, mounts); run the tests with sudo".to_owned(),
        );
    }
    if std::env::consts::ARCH != "x86_64" {
        return Some("SKIPPED: the OS images of real hosts are made for x86_64 only".to_owned());
    }
    None
}

/// Creates a bridge with its own address, for a test that needs an address besides loopback.
pub fn bridge() -> Result<Bridge> {
    crate::tools::ensure_packages(&["iproute2"])?;
    Bridge::new()
}
