//! Measures Berth and prints one JSON line for each figure; progress goes to standard error. No measured time makes it fail.

use std::path::PathBuf;

use anyhow::Result;
use berth_tests::bench::{self, Progress, Run, Selection, record};
use berth_tests::programs::{self, Programs};
use clap::Parser;

/// Measures Berth and prints one JSON line for each figure.
///
/// Hosts are simulated unless the figure's name begins with "real": staging takes 0.2 s, a reboot takes 1 s, and there
/// are no pods. The agent and the controller are the static release builds. "value" is the median of "runs". "floor" is
/// the cost of the same work without Berth in the same run. "aim" is the target. "peer" is the value of bootc-operator.
/// "last" is the recorded figure, with the new value divided by the recorded value as its ratio.
#[derive(Debug, Parser)]
#[command(
    name = "berth-bench",
    after_help = "ENVIRONMENT\n  BERTH_BENCH_RUNS           Number of runs of each repeatable measurement (3)\n  BERTH_BENCH_IDLE           Seconds that a process is left idle before its memory is read (60)\n  BERTH_BENCH_IDLE_REQUESTS  Seconds to count the requests of idle agents (240)\n  BERTH_BENCH_NODES          Number of Nodes of the controller, or that wait for a berth (1000)\n  BERTH_BENCH_MANY           Number of Nodes and reporting agents of a large cluster (1000, 5000 and 20000)\n  BERTH_BENCH_STATUS         Number of nodes that kubectl berth status and dashboard show (5000)\n  BERTH_BENCH_TURNS          Number of turns to measure with one berth, and with ten (300)\n  BERTH_BENCH_HUNDRED        Number of hosts to update ten at a time (100)\n  BERTH_BENCH_REBOOT         Seconds that each of those hosts takes to reboot (10)\n  BERTH_BENCH_PAIRS          Number of pairs of stagings to measure on a real host (4)"
)]
struct Arguments {
    /// Measure only figures whose names begin with one of these, separated by commas.
    #[arg(long, env = "BERTH_BENCH_ONLY", value_name = "NAMES", default_value = "")]
    only: String,
    /// Measure the berth-agent and the berth-controller in this directory instead of building them.
    #[arg(long, env = "BERTH_BENCH_PROGRAMS", value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Write the new figures to tests/benchmarks.jsonl.
    #[arg(long)]
    record: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    berth_tests::install_crypto();
    let progress = Progress::default();
    record::open()?;
    let programs = match arguments.programs {
        Some(from) => Programs {
            agent: from.join("berth-agent"),
            controller: from.join("berth-controller"),
        },
        None => {
            progress.say("building the shipped programs");
            tokio::task::spawn_blocking(programs::shipped).await??
        }
    };
    programs::choose(&programs);
    let run = Run {
        selection: Selection::parse(&arguments.only),
        agent: programs.agent,
        progress,
    };
    bench::measure(&run).await?;
    if arguments.record {
        record::save()?;
    }
    progress.say("done");
    Ok(())
}
