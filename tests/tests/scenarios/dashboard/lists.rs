//! The list of nodes: its order, and the filter for list and tiles.

use anyhow::Result;

use super::fleet::{DATABASE, EDGE};
use super::viewer::Viewer;

const ROWS: &str = "#list .row:not([hidden])";
const DIMMED: &str = "#tiles .tile.dim";

pub async fn the_list_sorts_and_filters(viewer: &Viewer) -> Result<()> {
    let browser = &viewer.browser;
    browser.click("[data-sort='name']").await?;
    browser.until_attribute(ROWS, "data-row", DATABASE[0]).await?;
    browser.click("[data-sort='name']").await?;
    browser.until_attribute(ROWS, "data-row", "worker-c3").await?;
    browser.write("#filter", "zone:zone-b").await?;
    browser
        .until("the list and the tiles have the nodes of one zone", async || {
            Ok(browser.count(ROWS).await? == 4 && browser.count(DIMMED).await? == 8)
        })
        .await?;
    browser.until_text("#announce", "4 of 12 nodes").await?;
    browser.write("#filter", EDGE[0]).await?;
    browser
        .until("the list has one node", async || {
            Ok(browser.count(ROWS).await? == 1 && browser.count(DIMMED).await? == 11)
        })
        .await?;
    browser.write("#filter", "x").await?;
    browser
        .until("the list is empty", async || Ok(browser.count(ROWS).await? == 0))
        .await?;
    browser.run::<()>(CLEARED, &[]).await?;
    browser.click("[data-sort='assessment']").await?;
    browser
        .until("the list has all nodes", async || {
            Ok(browser.count(ROWS).await? > 4 && browser.count(DIMMED).await? == 0)
        })
        .await
}

/// Clears the filter, as the key Backspace does.
const CLEARED: &str = "
    const filter = document.querySelector('#filter');
    filter.value = '';
    filter.dispatchEvent(new Event('input'));
    return null;";
