//! Reads how often the host has soft-rebooted, and writes the number to a file for [`HostRoot::boot_id`].
//!
//! A soft reboot keeps the files in `/run`, and the kernel with its boot ID. Only systemd counts soft reboots.

use std::io;

use berth_core::agent::facts::SoftReboots;
use jiff::Timestamp;

use super::bus::{Bus, BusError, SYSTEMD};
use super::error::HostError;
use super::root::{HostRoot, SOFT_REBOOTS};
use super::{files, units};

/// A unit that systemd starts early after each boot or soft reboot, before the kubelet.
const EARLY: &str = "basic.target";

pub(super) async fn read(bus: &Bus, root: &HostRoot) -> Result<SoftReboots, HostError> {
    let count: u32 = match bus.property(SYSTEMD, "SoftRebootsCount").await {
        Ok(count) => count,
        // systemd before 254 has no soft reboots.
        Err(BusError::Refused { .. }) => return Ok(SoftReboots::default()),
        Err(error) => return Err(error.into()),
    };
    if count == 0 {
        return Ok(SoftReboots {
            supported: true,
            userspace_began: None,
        });
    }
    let Some(began) = began(units::active_since(bus, EARLY).await?) else {
        return Err(HostError::Io(format!(
            "systemd does not report when {EARLY} started after the soft reboot"
        )));
    };
    if let Err(error) = keep(root, count) {
        return Err(HostError::Io(format!("cannot write {SOFT_REBOOTS}: {error}")));
    }
    Ok(SoftReboots {
        supported: true,
        userspace_began: Some(began),
    })
}

fn keep(root: &HostRoot, count: u32) -> io::Result<()> {
    root.make_run_dir()?;
    files::replace(&root.path(SOFT_REBOOTS), format!("{count}\n").as_bytes())
}

/// Converts systemd's microseconds since 1970. 0 means never.
fn began(microseconds: u64) -> Option<Timestamp> {
    let microseconds = i64::try_from(microseconds).ok().filter(|since| *since > 0)?;
    Timestamp::from_microsecond(microseconds).ok()
}
