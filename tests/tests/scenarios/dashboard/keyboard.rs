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

/// Checks each view and the drawer.
pub async fn each_control_has_a_name(viewer: &Viewer) -> Result<()> {
    let views = [
        ("#/nodes", "#tiles"),
        ("#/timeline/workers", "#timeline"),
        ("#/health", "#health"),
        ("#/node/node1", "#drawer .story"),
    ];
    for (view, part) in views {
        viewer.go(view).await?;
        viewer
            .browser
            .until("the view is shown", async || Ok(viewer.browser.count(part).await? > 0))
            .await?;
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

/// Checks each view at 360 pixels, light and dark.
pub async fn a_narrow_page_fits(viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    for scheme in [Scheme::Light, Scheme::Dark] {
        let small = Look::of(360, 740);
        browser
            .look(Look {
                scheme,
                scale: 2.0,
                ..small
            })
            .await?;
        for view in ["#/nodes", "#/timeline/workers", "#/health", "#/node/node1"] {
            viewer.go(view).await?;
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
