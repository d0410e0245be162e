//! The manual pages, rendered as `man` renders them.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use berth_tests::packages::write_manual;
use berth_tests::scratch::Scratch;

use super::need;
use crate::said::Said;

fn render(page: &Path) -> Result<Said> {
    let output = Command::new("groff")
        .args(["-man", "-K", "utf8", "-T", "utf8", "-ww", "-P", "-cbou"])
        .arg(page)
        .output()
        .context("running groff")?;
    Ok(Said::of(&output))
}

#[test]
fn manual_pages_render_without_warnings() -> Result<()> {
    need("groff", "groff-base")?;
    let scratch = Scratch::new("berth-manual-")?;
    let directory = scratch.path().join("man");
    fs::create_dir(&directory)?;
    write_manual(&directory)?;
    let mut rendered = 0;
    for page in fs::read_dir(&directory)? {
        let path = page?.path();
        let said = render(&path)?.well(&["NAME", "SYNOPSIS", "DESCRIPTION"])?;
        ensure!(said.err.is_empty(), "{}: {}", path.display(), said.err);
        rendered += 1;
    }
    ensure!(rendered > 10, "only {rendered} pages");
    let agent = render(&directory.join("berth-agent.8"))?;
    agent.well(&["EXIT STATUS", "FILES", "EXAMPLES"]).map(drop)
}
