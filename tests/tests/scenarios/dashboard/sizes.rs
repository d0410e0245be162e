//! Sizes of tiles.

use anyhow::{Result, ensure};
use berth_tests::browser::Browser;
use serde_json::{Value, json};

/// Returns `[size, width, zones in a row]` for waves in a panel of 640 x 450 pixels. 80 of these pixels are headings.
const FIT: &str = "
    const [waves, scrolls] = JSON.parse(arguments[0]);
    const zoneGap = { x: 14, y: 5 };
    const space = { rem: 16, width: 640, height: 450, fixed: 60, head: 20, zoneGap, scrolls };
    return import('/assets/fit.js').then(({ fit }) => {
      const { tile, columns } = fit(waves, space);
      return [tile.size, tile.width, columns];
    });";

pub async fn the_largest_tiles_that_fit_are_shown(browser: &Browser) -> Result<()> {
    for (waves, scrolls, expected) in [
        (json!([]), false, json!(["named", 152, []])),
        (json!([[1]]), false, json!(["named", 152, [1]])),
        // Four tiles with names fit into a row, and 25 rows do not fit.
        (json!([[100]]), false, json!(["symbol", 40, [1]])),
        (json!([[1667, 1667, 1666]]), false, json!(["pattern", 5, [3]])),
        // Tiny tiles allow seven narrow zones in a row instead of five.
        (json!([vec![700; 7]]), false, json!(["pattern", 5, [7]])),
        (json!([[100_000]]), false, json!(["pattern", 3, [1]])),
        (json!([[100_000]]), true, json!(["pattern", 12, [1]])),
    ] {
        let input = json!([waves, scrolls]).to_string();
        let found: Value = browser.run(FIT, &[&input]).await?;
        ensure!(found == expected, "{input}: {found} instead of {expected}");
    }
    browser.until_attribute("#tiles", "data-size", "named").await?;
    browser
        .until("all tiles fit", async || Ok(browser.hidden("#tiles").await? <= 0.0))
        .await
}
