//! rpm-ostree for a running host.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};

use super::host::RealHost;
use super::rpm_ostree::{is_rpm_ostree_real, rpm_ostree};
use super::shell::blocking;

/// Installs rpm-ostree on a running host.
pub async fn give_rpm_ostree(host: &RealHost) -> Result<()> {
    if is_rpm_ostree_real() {
        return Ok(());
    }
    let root = host.path("/")?;
    blocking(move || {
        for (path, mode, bytes) in rpm_ostree()? {
            let path = root.join(path);
            let directory = path.parent().context("the file's path has no directory")?;
            fs::create_dir_all(directory)
                .and_then(|()| fs::write(&path, bytes))
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
                .with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    })
    .await?;
    host.exec(&["systemctl", "daemon-reload"]).await?;
    // Makes D-Bus read the new policy and service files.
    host.exec(&["systemctl", "reload", "dbus.service"]).await?;
    Ok(())
}
