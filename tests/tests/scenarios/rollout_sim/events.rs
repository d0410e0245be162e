//! Events of a whole rollout: their reasons and objects, each event once.

use std::collections::BTreeMap;

use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

use super::*;

/// Reasons of the controller's events in their order, by kind and name of the object.
async fn reported(cluster: &Cluster) -> Result<BTreeMap<String, Vec<String>>> {
    let all: Api<Event> = Api::namespaced(cluster.client(), "default");
    let mut events = all.list(&ListParams::default()).await?.items;
    events.retain(|e| e.reporting_controller.as_deref() == Some("berth.dev/controller"));
    events.sort_by_key(|e| e.event_time.as_ref().map(|time| time.0));
    let mut reported: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for event in events {
        let about = event.regarding.clone().unwrap_or_default();
        let about = [about.kind, about.name].map(Option::unwrap_or_default).join(" ");
        let again = event.series.map(|series| format!(" x{}", series.count));
        let said = event.reason.unwrap_or_default() + &again.unwrap_or_default();
        reported.entry(about).or_default().push(said);
    }
    Ok(reported)
}

fn owned(reasons: &[&str]) -> Vec<String> {
    reasons.iter().map(|reason| (*reason).to_owned()).collect()
}

/// Waits until the events of a rollout over all hosts, the first of the pool, exist. Fails if there are other events.
pub async fn until_told_of_the_first_rollout(cluster: &Cluster) -> Result<()> {
    let mut expected = BTreeMap::from([("BootcNodePool workers".to_owned(), owned(&["RolloutComplete"]))]);
    for host in &cluster.fleet.hosts {
        // The drain is short, so that the first event announces the reboot.
        let turn = owned(&["TurnBegan", "TurnCompleted"]);
        expected.insert(format!("Node {}", host.name()), turn);
    }
    let total: usize = expected.values().map(Vec::len).sum();
    soon(cluster, "the rollout is reported", async || {
        Ok(reported(cluster).await?.values().map(Vec::len).sum::<usize>() >= total)
    })
    .await?;
    let reported = reported(cluster).await?;
    ensure!(reported == expected, "events {reported:#?}, expected {expected:#?}");
    Ok(())
}
