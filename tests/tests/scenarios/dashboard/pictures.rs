//! The pictures of the documentation. With `BERTH_BLESS`, they are written.

use std::fs;

use anyhow::{Result, ensure};
use berth_tests::browser::Look;
use berth_tests::programs::workspace_root;

use super::viewer::Viewer;

/// Largest picture, in bytes.
const LARGEST: usize = 150_000;

/// Takes the picture `docs/pictures/dashboard-NAME.png`.
pub async fn take(viewer: &Viewer, name: &str) -> Result<()> {
    viewer.browser.look(Look::default()).await?;
    viewer.browser.run::<()>("scrollTo(0, 0);", &[]).await?;
    let picture = viewer.browser.picture().await?;
    ensure!(
        picture.len() <= LARGEST,
        "the picture {name} has {} bytes",
        picture.len()
    );
    if is_written() {
        fs::write(
            workspace_root().join(format!("docs/pictures/dashboard-{name}.png")),
            picture,
        )?;
    }
    Ok(())
}

/// Waits for the middle of the rollout of pool `workers`, where the picture shows most. Tests without pictures do not wait, since
/// a busy machine may skip this moment.
pub async fn until_half(viewer: &Viewer) -> Result<()> {
    if !is_written() {
        return Ok(());
    }
    let browser = &viewer.browser;
    browser
        .until("half of the workers are updated, and others reboot", async || {
            let percent = browser.attribute("[data-pool='workers']", "data-percent").await?;
            let is_half = percent.is_some_and(|percent| percent.parse().is_ok_and(|percent: u32| percent >= 40));
            let reboots = browser.count("#tiles [data-phase='Rebooting']").await? >= 2;
            let is_away = browser.count("#tiles [data-assessment='Unavailable']").await? > 0;
            Ok(is_half && reboots && !is_away)
        })
        .await
}

fn is_written() -> bool {
    std::env::var_os("BERTH_BLESS").is_some()
}
