//! The page without a mouse, for a screen reader, and on a small screen.

use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::browser::{Key, Look, Scheme};

use super::viewer::{Viewer, tile};

/// Most presses of Tab until the focus is in the tiles.
const TABS: usize = 40;

pub async fn a_drawer_opens_and_closes(viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    browser.press(Key::Escape).await?;
    browser
        .until("the drawer is closed", async || Ok(!browser.shows("#drawer").await?))
        .await?;
    browser.until_attribute("#connection", "data-state", "live").await?;
    browser.reload().await?;
    viewer.until_connection("live").await?;
    browser.until_shown(&tile("node2")).await?;
    let mut presses = 0;
    while !browser.is_focused("#tiles [data-node]").await? {
        ensure!(presses < TABS, "Tab does not reach the tiles");
        browser.press(Key::Tab).await?;
        presses += 1;
    }
    ensure!(
        browser.is_focused(&tile("node1")).await?,
        "the first tile is the tab stop"
    );
    browser.press(Key::Right).await?;
    ensure!(
        browser.is_focused(&tile("node2")).await?,
        "an arrow key moves to the next tile"
    );
    browser.press(Key::Enter).await?;
    browser.until_attribute("#drawer", "data-node", "node2").await?;
    browser.until_shown("#drawer").await?;
    browser
        .until("the focus is in the drawer", async || {
            browser.is_focused("#drawer, #drawer *").await
        })
        .await?;
    browser.press(Key::Escape).await?;
    browser
        .until("the drawer is closed", async || Ok(!browser.shows("#drawer").await?))
        .await?;
    browser
        .until("the focus is back", async || browser.is_focused(&tile("node2")).await)
        .await
}

/// Each view and the drawer, with a part that is there only when it is shown.
const VIEWS: [(&str, &str); 4] = [
    ("#/nodes", "#tiles [data-node]"),
    ("#/timeline/workers", "#timeline svg"),
    ("#/health", "#health"),
    ("#/node/node1", "#drawer #explain"),
];

/// Checks each view and the drawer.
pub async fn each_control_has_a_name(viewer: &Viewer) -> Result<()> {
    for (view, part) in VIEWS {
        viewer.go(view).await?;
        viewer.browser.until_shown(part).await?;
        let all = viewer.browser.accessible().await?;
        let controls: Vec<_> = all.iter().filter(|element| element.is_interactive()).collect();
        ensure!(!controls.is_empty(), "{view} has no controls");
        let nameless: Vec<_> = controls.iter().filter(|element| element.name.is_empty()).collect();
        // Empty cells of a table are not controls.
        let nameless: Vec<_> = nameless
            .iter()
            .filter(|element| element.role != "gridcell" || element.is_focusable)
            .collect();
        ensure!(nameless.is_empty(), "{view} has controls without a name: {nameless:?}");
    }
    viewer.go("#/nodes").await
}

/// Checks each view at 360 pixels, light and dark, and on a screen of 4K.
pub async fn each_page_fits(viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    for (width, scheme, scale) in [
        (360, Scheme::Light, 2.0),
        (360, Scheme::Dark, 2.0),
        (3840, Scheme::Light, 1.0),
    ] {
        let small = Look::of(width, if width == 360 { 740 } else { 2160 });
        browser.look(Look { scheme, scale, ..small }).await?;
        for (view, part) in VIEWS {
            viewer.go(view).await?;
            browser.until_shown(part).await?;
            let mut wide = vec![];
            let fits = browser.within(Duration::from_secs(10), "the page fits", async || {
                wide = browser.too_wide().await?;
                Ok(wide.is_empty())
            });
            let fits = fits.await.is_ok();
            ensure!(fits, "{view} has to be scrolled to the side: {wide:#?}");
        }
        viewer.go("#/nodes").await?;
    }
    browser.look(Look::default()).await
}
