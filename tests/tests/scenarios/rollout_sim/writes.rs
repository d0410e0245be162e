//! Writes that a rollout costs.

use berth_tests::audit;
use berth_tests::writes::{Kind, Writes};

use super::*;

/// Nodes of the rollout.
const NODES: usize = 4;
/// Limits on writes for each node of a rollout without pods to evict: writes of the BootcNode and the Node, and writes
/// of the berth.
const OF_NODE: usize = 8;
const OF_BERTH: usize = 5;
/// Events of one turn.
const EVENTS: usize = 2;

/// Counts the writes of a second rollout. In the first one every object is new.
#[tokio::test]
async fn a_rollout_needs_few_writes() -> Result<()> {
    let options = hosts_with(NODES, |s| s.pull_time = Duration::from_millis(200));
    scenario(options, async |cluster| {
        let first = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&first, LONG).await?;
        until_at_rest(cluster).await?;
        let begin = Timestamp::now();
        let second = roll_to(cluster, "3.0.0", 1).await?;
        cluster.until_all_run(&second, LONG).await?;
        until_at_rest(cluster).await?;
        let seconds = usize::try_from(Timestamp::now().duration_since(begin).as_secs())? + 1;
        let log = AuditLog::read(&cluster.control_plane.audit_log())?;
        let writes = Writes::of(log.records().iter().filter(|r| r.received >= begin))?;
        let reads = log.records().iter().filter(|r| r.received >= begin && !r.is_write());
        println!(
            "writes of {NODES} turns in {seconds} s, by cause:\n{writes}reads: {:#?}",
            audit::count(reads)
        );
        // Agents send a heartbeat every two minutes.
        let beats = seconds / 120 * NODES;
        // On a busy machine a pull, a boot or a wait may take long enough to be reported.
        let slow = writes
            .0
            .iter()
            .filter(|((kind, cause), _)| *kind == Kind::Node && is_slow(cause));
        let slow: usize = slow.map(|(_, count)| count).sum();
        ensure!(
            writes.count(Kind::Node) <= OF_NODE * NODES + beats + slow,
            "nodes:\n{writes}"
        );
        ensure!(writes.count(Kind::Berth) <= OF_BERTH * NODES, "berths:\n{writes}");
        ensure!(writes.count(Kind::Event) <= EVENTS * NODES + 2, "events:\n{writes}");
        // For the change itself, the end, the progress of each node, and states that last for some seconds.
        ensure!(
            writes.count(Kind::Pool) <= 2 * NODES + 6 + seconds / 3,
            "pool:\n{writes}"
        );
        Ok(())
    })
    .await
}

/// True if this cause appears only on a slow machine.
fn is_slow(cause: &str) -> bool {
    ["Staging", "Proving", "MaintenancePlanned"]
        .iter()
        .any(|word| cause.contains(word))
}

/// Waits until the pool has reported that all is done, and for the writes that follow a moment later.
async fn until_at_rest(cluster: &Cluster) -> Result<()> {
    soon(cluster, "the pool is at rest", async || {
        let status = cluster.pool_status("workers").await?;
        Ok(usize::try_from(status.nodes.updated)? == NODES && status.berths.held == 0)
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    Ok(())
}
