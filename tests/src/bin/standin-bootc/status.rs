//! Builds and prints the status document.

use std::path::Path;

use anyhow::Result;
use berth_tests::bootc::document::{BootEntry, Host, Listed, OstreeEntry};

use crate::image::Image;
use crate::origin::Origin;
use crate::sysroot::{Deployment, Sysroot};

/// File that makes staged deployments capable of a soft reboot.
const SOFT_REBOOT: &str = "/var/lib/standin-bootc.soft-reboot";

/// True on a host booted by ostree, but not in a container there: bootc reports nothing in a container.
pub(crate) fn is_host() -> bool {
    !in_container() && Path::new("/run/ostree-booted").exists()
}

/// True in a container, by the same signs that bootc checks.
pub(crate) fn in_container() -> bool {
    let files = ["/run/.containerenv", "/.dockerenv"];
    std::env::var_os("container").is_some() || files.iter().any(|file| Path::new(file).exists())
}

/// Builds the document of a locked sysroot.
pub(crate) fn read(sysroot: &Sysroot) -> Result<Host> {
    let list = sysroot.deployments()?;
    let listed = list.iter().map(|deployment| listed(sysroot, deployment));
    Ok(Host::of(listed.collect::<Result<_>>()?))
}

pub(crate) fn print() -> Result<()> {
    let host = if is_host() {
        read(&Sysroot::lock()?)?
    } else {
        Host::null()
    };
    // YAML is a superset of JSON; tests do not use the human-readable format.
    println!("{}", serde_json::to_string(&host)?);
    Ok(())
}

fn listed(sysroot: &Sysroot, deployment: &Deployment) -> Result<Listed> {
    let origin = Origin::parse(&sysroot.origin(deployment)?)?;
    let image = match &origin.image {
        Some(reference) if !origin.incompatible => Image::of_commit(sysroot, &deployment.checksum)?
            .map(|image| image.status(reference))
            .transpose()?,
        _ => None,
    };
    let entry = BootEntry {
        cached_update: None,
        composefs: None,
        download_only: deployment.locked,
        image,
        incompatible: origin.incompatible,
        ostree: Some(OstreeEntry {
            checksum: deployment.checksum.clone(),
            deploy_serial: deployment.serial,
            stateroot: deployment.stateroot.clone(),
        }),
        pinned: deployment.pinned,
        soft_reboot_capable: deployment.staged && Path::new(SOFT_REBOOT).exists(),
        store: Some("ostreeContainer"),
    };
    Ok(Listed {
        booted: deployment.booted,
        staged: deployment.staged,
        entry,
    })
}
