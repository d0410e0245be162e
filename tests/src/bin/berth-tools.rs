//! Fetches or builds the programs that Berth's tests need and prints how long it took, so that no test waits for a build.

use std::time::Instant;

use anyhow::Result;
use berth_tests::hosts::real::unavailable;
use berth_tests::last_release::last_release;
use berth_tests::programs;
use berth_tests::tools::{Tool, Tools, cache_dir};
use clap::{Parser, Subcommand};

/// The programs that Berth's tests run.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Find or build all programs, and print their paths.
    Fetch,
}

fn main() -> Result<()> {
    let Action::Fetch = Arguments::parse().command;
    let started = Instant::now();
    println!("cache: {}", cache_dir()?.display());
    build_programs()?;
    for (tool, path) in Tools::ensure(&Tool::ALL)?.iter() {
        println!("{:<24} {}", tool.file_name(), path.display());
    }
    println!("all tools are ready after {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn build_programs() -> Result<()> {
    let begun = Instant::now();
    programs::programs()?;
    programs::seeded()?;
    if unavailable().is_none() {
        programs::static_agent()?;
    }
    println!(
        "Berth's programs are ready after {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    let begun = Instant::now();
    if let Some(release) = last_release()? {
        println!(
            "the programs of {} are ready after {:.1} s",
            release.version,
            begun.elapsed().as_secs_f64()
        );
    }
    Ok(())
}
