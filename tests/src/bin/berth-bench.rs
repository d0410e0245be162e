//! Measures Berth and prints one JSON line for each figure; progress goes to standard error. No measured time makes it fail.

use std::path::PathBuf;

use anyhow::{Context, Result};
use berth_tests::bench::fleet::Fleet;
use berth_tests::bench::{
    Progress, Selection, firstboot, handover, hundred, idle, leader, many, planner, polls, publish, record, rollout,
    staging, status,
};
use berth_tests::programs::{self, Programs};
use clap::Parser;

/// Measures Berth and prints one JSON line for each figure.
///
/// Hosts are simulated unless the figure's name begins with "real": staging takes 0.2 s, a reboot 1 s, and there are no pods. The
/// agent and the controller are the static release builds. "value" is the median of "runs", "floor" the cost of the same work
/// without Berth in the same run, "aim" the target, "peer" the value of bootc-operator, "last" the recorded figure with the ratio
/// of the new one to it.
#[derive(Debug, Parser)]
#[command(
    name = "berth-bench",
    after_help = "ENVIRONMENT\n  BERTH_BENCH_RUNS           Number of runs of each repeatable measurement (3)\n  BERTH_BENCH_IDLE           Seconds that a process is left idle before its memory is read (60)\n  BERTH_BENCH_IDLE_REQUESTS  Seconds to count the requests of idle agents (240)\n  BERTH_BENCH_NODES          Number of Nodes of the controller, or that wait for a berth (1000)\n  BERTH_BENCH_MANY           Number of Nodes and reporting agents of a large cluster (1000, 5000 and 20000)\n  BERTH_BENCH_STATUS         Number of nodes that kubectl berth status shows (5000)\n  BERTH_BENCH_TURNS          Number of turns to measure with one berth, and with ten (300)\n  BERTH_BENCH_HUNDRED        Number of hosts to update ten at a time (100)\n  BERTH_BENCH_REBOOT         Seconds that each of those hosts takes to reboot (10)\n  BERTH_BENCH_PAIRS          Number of pairs of stagings to measure on a real host (4)"
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
    let selection = Selection::parse(&arguments.only);
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
    if selection.wants("agent-size") {
        idle::size(&programs.agent)?.print();
    }
    if selection.wants_one(&firstboot::BENCHES) {
        firstboot::measure(&programs.agent, &selection, progress)
            .await
            .context("cannot measure first boots")?;
    }
    if selection.wants_one(&rollout::BENCHES) || selection.wants_one(&idle::BENCHES) {
        on_a_fleet(&selection, progress).await?;
    }
    if selection.wants_one(&publish::BENCHES) {
        publish::measure(&selection, progress)
            .await
            .context("cannot measure the controller")?;
    }
    if selection.wants_one(&many::BENCHES) {
        many::measure(&selection, progress)
            .await
            .context("cannot measure the controller with many Nodes")?;
    }
    if selection.wants_one(&polls::BENCHES) {
        polls::measure(&selection, progress)
            .await
            .context("cannot measure the polling of tags")?;
    }
    if selection.wants_one(&planner::BENCHES) {
        planner::measure(&selection, progress)
            .await
            .context("cannot measure the planner")?;
    }
    if selection.wants_one(&status::BENCHES) {
        status::measure(&selection, progress)
            .await
            .context("cannot measure kubectl berth status")?;
    }
    if selection.wants_one(&handover::BENCHES) {
        handover::measure(&selection, progress)
            .await
            .context("cannot measure the hand-over of berths")?;
    }
    if selection.wants_one(&leader::BENCHES) {
        leader::measure(&selection, progress)
            .await
            .context("cannot measure a change of leader")?;
    }
    if selection.wants(hundred::BENCH) {
        hundred::measure(progress)
            .await
            .context("cannot measure the rollout of a hundred nodes")?;
    }
    if selection.wants(staging::BENCH) {
        staging::measure(&programs.agent, progress)
            .await
            .context("cannot measure the staging on a real host")?;
    }
    if arguments.record {
        record::save()?;
    }
    progress.say("done");
    Ok(())
}

async fn on_a_fleet(selection: &Selection, progress: Progress) -> Result<()> {
    progress.say("starting ten simulated hosts");
    let fleet = Fleet::start().await?;
    if selection.wants_one(&rollout::BENCHES) {
        rollout::measure(&fleet, selection, progress)
            .await
            .context("cannot measure rollouts")?;
    }
    if selection.wants_one(&idle::BENCHES) {
        idle::measure(&fleet, selection, progress)
            .await
            .context("cannot measure idle agents")?;
    }
    Ok(())
}
