//! Runs the functions of `scripts/dist.sh`, which make the files of a release.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::run;
use crate::programs::workspace_root;

/// Version of the release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time of all files, in seconds since 1970.
const TIME: &str = "1700000000";

const SOURCES: &str = r"
    set -euo pipefail
    . scripts/need.sh
    . scripts/static.sh
    . scripts/images.sh
    . scripts/go-tools.sh
    . scripts/dist.sh
    describe_source
";

/// Runs these commands of bash after the scripts. The commands have the paths as `$1`, `$2` and so on.
pub(crate) fn run_script(commands: &str, paths: &[&Path]) -> Result<()> {
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("{SOURCES}{commands}"), "bash"])
        .args(paths)
        .env("SOURCE_DATE_EPOCH", TIME)
        .current_dir(workspace_root());
    run(&mut bash).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_checksums_are_of_all_other_files() -> Result<()> {
        let directory = tempfile::tempdir()?;
        for name in ["b.tgz", "a.yaml", "SHA256SUMS"] {
            fs::write(directory.path().join(name), name)?;
        }
        run_script("checksums \"$1\"", &[directory.path()])?;
        let sums = fs::read_to_string(directory.path().join("SHA256SUMS"))?;
        let names: Vec<&str> = sums.lines().filter_map(|line| line.split("  ").nth(1)).collect();
        assert_eq!(names, ["a.yaml", "b.tgz"]);
        Ok(())
    }
}
