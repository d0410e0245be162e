//! `kubectl berth status --preview` names the order of the nodes: the test reads it before the rollout, and compares it with the
//! boots of the hosts afterwards. The control plane, the controller and the agents are real, the hosts simulated.

use std::cell::RefCell;

use anyhow::{Context, Result, ensure};
use berth_api::Digest;
use berth_api::berth::{BerthState, ClosedReason, Offer, Outcome, lease};
use berth_api::node::Staging;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, SOON, is_prepared, together};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PostParams;
use kubectl_berth::{PoolPreview, Scope, Snapshot, previews};
use serde_json::json;

#[tokio::test]
async fn preview() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions {
        hosts: 6,
        ..ClusterOptions::default()
    })
    .await?;
    let part = Part::new(&cluster, "preview", 1..=1).await?;
    together(
        &cluster,
        vec![(
            "nodes_go_as_the_preview_says",
            Box::pin(nodes_go_as_the_preview_says(&part)),
        )],
    )
    .await
}

/// A node that runs the target and is cordoned uses up a place of two for the whole rollout: the others go one by one.
async fn nodes_go_as_the_preview_says(part: &Part<'_>) -> Result<()> {
    let cluster = part.cluster;
    let [done, bad, lapsed, beside, away, server] = [1, 2, 3, 4, 5, 6].map(|n| cluster.host(n).name());
    for (node, rack) in [
        (done, "a"),
        (bad, "a"),
        (lapsed, "b"),
        (beside, "a"),
        (away, "b"),
        (server, "b"),
    ] {
        part.label(node, "rack", Some(rack)).await?;
    }
    part.label(server, "node-role.kubernetes.io/control-plane", Some(""))
        .await?;
    cluster.host(2).settings(|s| s.finalization_failures = 1);
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 2, "zoneKey": "rack" }))
        .await?;
    // The other node is released after that, since the pause would revoke a turn that has only begun.
    part.until_run(&v2, &[1], SOON).await?;
    part.join(cluster.host(2)).await?;
    part.until("a turn ends badly", SOON, || async {
        let status = part.bootc_node(bad).await?.status.unwrap_or_default();
        Ok(status
            .last_turn
            .is_some_and(|turn| turn.outcome == Outcome::NotApplied.as_str()))
    })
    .await?;
    part.rollout(json!({ "paused": true })).await?;
    part.until_hold(&[], SOON).await?;
    part.cordon(done, true).await?;
    lets_an_offer_lapse(part, lapsed, &v2.digest).await?;
    for n in 3..=6 {
        part.join(cluster.host(n)).await?;
    }
    let going = [bad, lapsed, beside, away, server];
    part.until("all others are prepared", LONG, || async {
        for node in going {
            let object = part.bootc_node(node).await?;
            // A pull permit that ends changes the spec. No berth is offered until the agent has read that change.
            if object.spec.staging != Staging::Allowed || !is_prepared(&object) {
                return Ok(false);
            }
        }
        Ok(part.status().await?.nodes.total == 6)
    })
    .await?;

    let seen = RefCell::new(None);
    part.until("all of them have a turn", SOON, || async {
        let preview = preview_of(part).await?;
        let turns: Vec<_> = preview.nodes.iter().filter_map(|row| row.turn).collect();
        seen.replace(Some(preview));
        Ok(turns == [1, 2, 3, 4, 5])
    })
    .await?;
    let preview = seen.take().context("no preview with five turns")?;
    let named: Vec<&str> = preview.nodes.iter().map(|row| row.name.as_str()).collect();
    ensure!(
        named == [away, beside, bad, lapsed, server],
        "the zone without a node down, then by name, then a bad last turn, then a lapsed offer, then the control \
         plane: {preview:#?}"
    );
    ensure!(
        (preview.capacity, preview.free, preview.up_to_date) == (2, 1, 1),
        "a place is used up: {preview:#?}"
    );
    let paused = preview.blocks.iter().any(|block| block.starts_with("paused"));
    ensure!(paused, "no node goes before the pause ends: {preview:#?}");

    part.rollout(json!({ "paused": false })).await?;
    let movers = going.map(str::to_owned);
    part.until("all run it", LONG, || async {
        let order = part.order(&v2);
        Ok(movers.iter().all(|node| order.contains(node)))
    })
    .await?;
    let went = part.order(&v2).split_off(1);
    ensure!(went == named, "named {named:?}, went {went:?}");
    part.until_hold(&[], SOON).await?;
    // The last node gives back before it reports that it is updated.
    part.until("no node is left to go", SOON, || async {
        Ok(preview_of(part).await?.nodes.is_empty())
    })
    .await
}

/// Writes the trace of an earlier leader that saw a node let an offer lapse, on the berth that no other node will use. The
/// controller may still have to write the outcome of the turn before to that berth: its write goes first, and its berth is
/// closed.
async fn lets_an_offer_lapse(part: &Part<'_>, node: &str, target: &Digest) -> Result<()> {
    let berths = part.cluster.berths();
    let name = format!("{}-1", part.name);
    let uid = part
        .cluster
        .nodes()
        .get(node)
        .await?
        .uid()
        .context("the Node has no UID")?;
    part.until("an offer has lapsed", SOON, || async {
        let mut object = berths.get(&name).await?;
        let berth = lease::read(&object)?;
        if !matches!(berth.state, BerthState::Closed(_)) {
            return Ok(false);
        }
        let offer = Offer {
            node: node.into(),
            uid: uid.as_str().into(),
            target: target.clone(),
            open_until: None,
        };
        let lapsed = berth.offered(offer)?.closed(ClosedReason::Lapsed)?;
        lease::write(&lapsed, &mut object, Timestamp::now());
        match berths.replace(&name, &PostParams::default(), &object).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(refusal)) if refusal.is_conflict() => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
    .await
}

async fn preview_of(part: &Part<'_>) -> Result<PoolPreview> {
    let client = part.cluster.client();
    let mut snapshot = Snapshot::read(&client, "berth-system", Scope::Preview).await?;
    ensure!(snapshot.notes.is_empty(), "{:?}", snapshot.notes);
    snapshot.only = Some(part.name.clone());
    previews(&snapshot, Timestamp::now())
        .pop()
        .context("the preview has no pool")
}
