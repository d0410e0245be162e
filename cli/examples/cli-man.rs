//! Writes the manual pages of `kubectl berth` into a directory: `cli-man DIRECTORY`. The packages contain them.

use std::path::Path;

use clap::CommandFactory;
use kubectl_berth::arguments::Arguments;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: cli-man DIRECTORY")?;
    Ok(berth_shell::man::write(
        Arguments::command(),
        "1",
        Path::new(&directory),
    )?)
}
