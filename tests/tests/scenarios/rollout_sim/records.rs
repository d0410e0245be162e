//! Compares the agents' records of their turns with the actions of the hosts.

use berth_api::node::timeline::{ChapterName, TurnOutcome, TurnRecord};

use super::*;

/// Boot ID and digest of each boot of a host.
fn boots(cluster: &Cluster, node: &str) -> Vec<(String, String)> {
    cluster
        .log
        .events()
        .iter()
        .filter_map(|e: &berth_tests::hosts::HostEvent| match &e.change {
            HostChange::Up { boot_id, digest, .. } if e.host == node => Some((boot_id.clone(), digest.clone())),
            _ => None,
        })
        .collect()
}

/// Returns the boots before and after a turn from its record, each as boot ID and digest. `None` if the record lacks
/// the proof or a digest.
fn sides(turn: &TurnRecord) -> Option<[(String, String); 2]> {
    let proof = turn.proof.as_ref()?;
    let before = (turn.boot_id_before.clone(), turn.from.as_ref()?.to_string());
    Some([before, (proof.boot_id.clone(), proof.booted.as_ref()?.to_string())])
}

fn proven<'a>(turns: &'a [TurnRecord], image: &Published) -> Vec<&'a TurnRecord> {
    let proven = turns.iter().filter(|t| t.outcome == Some(TurnOutcome::Proven));
    proven.filter(|t| t.to == image.digest).collect()
}

/// Waits until the node has exactly one proven turn to the image, whose two boots followed one another on the host.
pub(super) async fn until_proven_turn(cluster: &Cluster, node: &str, image: &Published) -> Result<()> {
    soon(cluster, &format!("the proven turn of {node} is on record"), || async {
        Ok(!proven(&cluster.node_status(node).await?.turns, image).is_empty())
    })
    .await?;
    let reported = cluster.node_status(node).await?;
    let [turn] = proven(&reported.turns, image)[..] else {
        anyhow::bail!("{node} has been proven more than once: {:?}", reported.turns);
    };
    let is_whole = turn.drain_seconds.is_some() && turn.proof.as_ref().is_some_and(|proof| proof.node_ready);
    ensure!(is_whole, "{node}: {turn:?}");
    ensure_followed(cluster, node, turn)?;
    let update = reported.timeline.updates.first().context("no update")?;
    let chapters: Vec<_> = update.chapters.iter().map(|c| c.name).collect();
    ensure!(
        chapters.ends_with(&[
            ChapterName::Waited,
            ChapterName::Drained,
            ChapterName::Rebooted,
            ChapterName::Proven,
            ChapterName::Completed,
        ]),
        "{node}: {update:?}"
    );
    ensure!(
        update.chapters.iter().all(|c| c.end_time.is_some()),
        "{node}: {update:?}"
    );
    Ok(())
}

/// Waits until the newest turns of the node, newest first, have these outcomes, and returns them.
pub(super) async fn until_outcomes(cluster: &Cluster, node: &str, outcomes: &[TurnOutcome]) -> Result<Vec<TurnRecord>> {
    soon(
        cluster,
        &format!("the turns of {node} end with {outcomes:?}"),
        || async {
            let turns = cluster.node_status(node).await?.turns;
            let reported: Vec<_> = turns.iter().filter_map(|t| t.outcome).collect();
            Ok(reported == outcomes)
        },
    )
    .await?;
    Ok(cluster.node_status(node).await?.turns)
}

/// Fails unless the two boots of a turn followed one another on the host.
pub(super) fn ensure_followed(cluster: &Cluster, node: &str, turn: &TurnRecord) -> Result<()> {
    let boots = boots(cluster, node);
    let sides = sides(turn).with_context(|| format!("the turn has no observed boots: {turn:?}"))?;
    let followed = boots.windows(2).any(|pair| *pair == sides);
    ensure!(followed, "{node}: {turn:?} does not match the host's boots: {boots:?}");
    Ok(())
}
