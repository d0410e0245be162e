//! Fetches or builds what Berth's tests need, ahead of time and with times, so that no test waits for a build.

use std::time::Instant;

use anyhow::Result;
use berth_tests::tools::{Tool, Tools, cache_dir, ensure_packages};
use clap::{Parser, Subcommand};

/// The programs that Berth's tests run.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Find or build all of them, and say where they are.
    Fetch {
        /// Distribution packages that must be there as well.
        #[arg(long = "package")]
        packages: Vec<String>,
    },
}

fn main() -> Result<()> {
    let What::Fetch { packages } = Arguments::parse().command;
    let started = Instant::now();
    println!("cache: {}", cache_dir()?.display());
    let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
    ensure_packages(&packages)?;
    for tool in Tool::ALL {
        let begun = Instant::now();
        let tools = Tools::ensure(&[tool])?;
        let time = begun.elapsed().as_secs_f64();
        println!(
            "{:<24} {time:>6.1} s  {}",
            tool.file_name(),
            tools.path(tool)?.display()
        );
    }
    println!("all there after {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
