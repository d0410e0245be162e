//! Real hosts: real systemd, logind, D-Bus, ostree and kubelet on a real ostree deployment, in `systemd-nspawn`.
//!
//! The harness is hardware, firmware and boot loader: it starts what ostree's boot entries name, sees the host end, and starts it
//! again. What was booted comes from ostree's own record of the deployment, never from Berth or bootc.
//!
//! Needs root and Debian's packages (see [`unavailable`]); everything made is cached, see `tests/osimage` for what goes into the image.

mod blocking;
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
mod osimage;
pub mod ostree;
mod outside;
mod packages;
mod programs;
mod root;
mod rpm_ostree;
mod run_dir;
mod shell;
mod site;
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

/// Reason for which there can be no real hosts here; a test that needs them prints it and ends.
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

/// A bridge with an address of its own, for a test that needs one besides loopback.
///
/// # Errors
/// When this machine does not let us make one; see [`unavailable`].
pub fn bridge() -> Result<Bridge> {
    crate::tools::ensure_packages(&["iproute2"])?;
    Bridge::new()
}
