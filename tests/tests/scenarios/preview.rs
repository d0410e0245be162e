//! `kubectl berth status --preview` names the order of the nodes: the test reads it before the rollout, and compares it
//! with the boots of the hosts afterwards.

use std::cell::RefCell;

use anyhow::{Context, Result, ensure};
use berth_api::Digest;
use berth_api::berth::{BerthState, ClosedReason, Offer, Outcome, lease};
use berth_api::node::Staging;
use berth_tests::cluster::{Cluster, ClusterOptions, LONG, Part, SOON, Scenarios, is_prepared};
use jiff::Timestamp;
use kube::ResourceExt;
use kube::api::PostParams;
use kubectl_berth::{PoolPreview, Scope, Snapshot, previews};
use serde_json::json;

#[tokio::test]
async fn preview() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions::of(6)).await?;
    Scenarios::of(&cluster)
        .on("preview", 1, nodes_go_as_the_preview_says)
        .run()
        .await
}

/// A cordoned node that runs the target occupies one of the two places for the whole rollout. The other nodes therefore
/// get their turns one at a time.
async fn nodes_go_as_the_preview_says(part: &Part<'_>) -> Result<()> {
    let cluster = part.cluster;
    let [done, bad, lapsed, beside, away, server] = [1, 2, 3, 4, 5, 6].map(|n| cluster.host(n).name());
    for (nodes, rack) in [([done, bad, beside], "a"), ([lapsed, away, server], "b")] {
        for node in nodes {
            part.label(node, "rack", Some(rack)).await?;
        }
    }
    part.label(server, "node-role.kubernetes.io/control-plane", Some(""))
        .await?;
    cluster.host(2).settings(|s| s.finalization_failures = 1);
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 2, "zoneKey": "rack" }))
        .await?;
    // The second node joins only after the first is done, since the pause would revoke a turn that has only begun.
    part.until_run(&v2, &[1], SOON).await?;
    part.join(cluster.host(2)).await?;
    part.soon("a turn ends badly", || async {
        let status = part.node_status(bad).await?;
        Ok(status
            .last_turn
            .is_some_and(|turn| turn.outcome == Outcome::NotApplied.as_str()))
    })
    .await?;
    part.rollout(json!({ "paused": true })).await?;
    part.until_hold(&[]).await?;
    part.cordon(done, true).await?;
    lets_an_offer_lapse(part, lapsed, &v2.digest).await?;
    // A new leader reads from the berths which nodes had an offer.
    cluster.controllers.stop(0);
    cluster.controllers.start(0)?;
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

    let named = is_previewed(part, [away, beside, lapsed, bad, server]).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until("all run it", LONG, || async {
        let order = part.order(&v2);
        Ok(going.iter().all(|node| order.iter().any(|o| o == node)))
    })
    .await?;
    let went = part.order(&v2).split_off(1);
    ensure!(went == named, "named {named:?}, went {went:?}");
    part.until_hold(&[]).await?;
    // The last node gives back before it reports that it is updated.
    part.soon("no node is left to go", || async {
        Ok(preview_of(part).await?.nodes.is_empty())
    })
    .await
}

/// Waits until the preview gives a turn to five nodes, and returns their names. The first node is in the zone without
/// an unavailable node. Then come a node of the other zone, the two nodes that had a turn (first the one in the zone
/// without an unavailable node), and a control plane node.
async fn is_previewed(part: &Part<'_>, expected: [&str; 5]) -> Result<Vec<String>> {
    let seen = RefCell::new(None);
    part.soon("all of them have a turn", || async {
        let preview = preview_of(part).await?;
        let turns: Vec<_> = preview.nodes.iter().filter_map(|row| row.turn).collect();
        seen.replace(Some(preview));
        Ok(turns == [1, 2, 3, 4, 5])
    })
    .await?;
    let preview = seen.take().context("no preview with five turns")?;
    let named: Vec<_> = preview.nodes.iter().map(|row| row.name.to_string()).collect();
    ensure!(named == expected, "{preview:#?}");
    let places = (preview.capacity, preview.free, preview.up_to_date);
    ensure!(places == (2, 1, 1), "a place is used up: {preview:#?}");
    let is_paused = preview.blocks.iter().any(|block| block.starts_with("paused"));
    ensure!(is_paused, "no node goes before the pause ends: {preview:#?}");
    Ok(named)
}

/// Makes a berth look as if a node had let an offer lapse under an earlier leader. No other node will use this berth.
/// Retries, because the controller may first have to write the outcome of the last turn to the berth.
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
    part.soon("an offer has lapsed", || async {
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
