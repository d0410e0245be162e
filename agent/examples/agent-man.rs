//! Writes the manual pages of `berth-agent` into a directory: `agent-man DIRECTORY`. The packages contain them.

use std::path::Path;

use berth_agent::cli::Args;
use clap::CommandFactory;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).ok_or("usage: agent-man DIRECTORY")?;
    Ok(berth_shell::man::write(Args::command(), "8", Path::new(&directory))?)
}
