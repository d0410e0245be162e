//! Chromium and chromedriver: on `PATH`, or as packages of the distribution.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::tools::{ensure_packages, find_program};

/// Debian's packages. Both have the same version, which chromedriver requires.
const PACKAGES: [&str; 2] = ["chromium", "chromium-driver"];

/// The programs of a browser.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) chromium: PathBuf,
    pub(super) driver: PathBuf,
}

impl Programs {
    fn find() -> Option<Self> {
        Some(Self {
            chromium: find_program("chromium")?,
            driver: find_program("chromedriver")?,
        })
    }

    /// Finds the programs, or installs them.
    pub(super) fn ensure() -> Result<Self> {
        if let Some(found) = Self::find() {
            return Ok(found);
        }
        ensure_packages(&PACKAGES)?;
        Self::find().context("chromium or chromedriver is not on PATH, although their packages are installed")
    }
}

/// Returns the reason why this machine has no browser; `None` if it has one, or can install it. A test that needs a browser prints
/// the reason and ends.
pub fn unavailable() -> Option<String> {
    let can_install = nix::unistd::geteuid().is_root() && find_program("apt-get").is_some();
    if can_install || Programs::find().is_some() {
        return None;
    }
    let packages = PACKAGES.join(" ");
    Some(format!(
        "SKIPPED: this machine has no chromium or no chromedriver on PATH; on Debian run: sudo apt-get install {packages}"
    ))
}
