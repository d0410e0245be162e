//! Images that boot but cannot be proven: the node rolls back once, under the berth of its update.

use berth_tests::cluster::has_condition;
use kube::api::{Patch, PatchParams};
use serde_json::Value;

use super::*;

/// Time from the boot of a bad image to its rollback.
const DEADLINE: Duration = Duration::from_secs(15);

/// The Node becomes Ready, but a check of the image fails. The host rolls back, and this first failure halts the
/// rollout. The next image, whose check succeeds, reaches all hosts.
pub(super) async fn an_image_that_fails_its_check(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let script = "echo the pool is degraded >&2; exit 3";
    let bad = publish(rig, "8.0.0", script).await?;
    desire_strictly(rig, &bad).await?;
    let rebooting = rig.some_in("Proving").await?.name().to_owned();
    let begin = Instant::now();
    let words = "10-storage: exit status 3: the pool is degraded";
    let said = ("NodeDegraded", "True", "DigestFailed", words);
    rig.cluster.until_node_says(&rebooting, said, LONG).await?;
    println!(
        "{:<44} {:>5.1} s after the boot",
        "a bad boot is undone",
        begin.elapsed().as_secs_f64()
    );
    let halted = ("RolloutHalted", "True", "TooManyFailures", rebooting.as_str());
    rig.cluster.until_says("workers", halted, SOON).await?;
    ensure!(rig.cluster.held().await?.is_empty(), "the berth is given back");
    ensure!(
        !rig.cluster.is_cordoned(&rebooting).await?,
        "{rebooting} is still cordoned"
    );
    let boots = rig.cluster.boots();
    ensure_rebooted_twice(&before, &boots, &rebooting)?;
    ensure!(begin.elapsed() >= DEADLINE / 2, "the deadline was not awaited");
    mend(rig, "8.1.0", &boots).await
}

/// With the bad image, neither the kubelet nor the agent runs. The rollback guard rolls the host back.
pub(super) async fn an_image_whose_kubelet_never_starts(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let version = format!("8.7.0{}", rig.series);
    let bad = rig.cluster.publish_without_kubelet(&version).await?;
    rig.desire(&bad, 1).await?;
    rig.cluster
        .patch_pool("workers", json!({ "health": { "deadline": "5s" } }))
        .await?;
    let host = rig.some_in("Rebooting").await?;
    let name = host.name().to_owned();
    let digest = bad.digest.to_string();
    let runs_it = async || Ok(host.boot().is_some_and(|boot| boot.digest == digest));
    rig.cluster.until("the bad image runs", SOON, runs_it).await?;
    let begin = Instant::now();
    let words = "the host's rollback guard rolled the host back";
    let said = ("NodeDegraded", "True", "DigestFailed", words);
    rig.cluster.until_node_says(&name, said, LONG).await?;
    println!(
        "{:<44} {:>5.1} s after the boot",
        "a host without a kubelet is back",
        begin.elapsed().as_secs_f64()
    );
    let status = rig.cluster.node_status(&name).await?;
    let reason = status.turns.first().and_then(|turn| turn.reason.clone());
    ensure!(reason.as_deref() == Some("RollbackGuardFired"), "{:?}", status.turns);
    ensure!(!rig.cluster.is_cordoned(&name).await?, "{name} is still cordoned");
    let boots = rig.cluster.boots();
    ensure_rebooted_twice(&before, &boots, &name)?;
    mend(rig, "8.8.0", &boots).await
}

/// The Node alternates between Ready and not Ready, so it is never Ready for the whole soak time. The agent waits, and
/// undoes the boot while the Node is not Ready.
pub(super) async fn a_node_that_flaps(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let image = publish(rig, "8.9.0", "exit 0").await?;
    desire_strictly(rig, &image).await?;
    let health = json!({ "health": { "deadline": "15s", "soakTime": "8s" } });
    rig.cluster.patch_pool("workers", health).await?;
    let name = rig.some_in("Proving").await?.name().to_owned();
    let nodes = rig.cluster.nodes();
    let said = ("NodeDegraded", "True", "DigestFailed", "did not become Ready");
    let begin = Instant::now();
    let mut is_ready = false;
    loop {
        let conditions = rig.cluster.node_status(&name).await?.conditions;
        if has_condition(&conditions, said) {
            break;
        }
        ensure!(begin.elapsed() < LONG, "{name} does not go back: {conditions:?}");
        let status = if is_ready { "True" } else { "False" };
        is_ready = !is_ready;
        let ready = json!({ "type": "Ready", "status": status, "reason": "Flaps", "message": "" });
        let patch = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
        // Fails while the Node's old kubelet writes it.
        let _ = nodes.patch_status(&name, &PatchParams::default(), &patch).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let boots = rig.cluster.boots();
    ensure_rebooted_twice(&before, &boots, &name)?;
    mend(rig, "8.10.0", &boots).await
}

/// The power fails after the unlock, before the shutdown has finalized the image: the previous image boots, and the
/// node tries again.
pub(super) async fn a_power_cut_before_finalization(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let image = publish(rig, "8.11.0", "exit 0").await?;
    rig.block_drains().await?;
    rig.desire(&image, 1).await?;
    let host = rig.some_in("Draining").await?;
    delay_shutdown(host).await?;
    rig.cluster.remove_budget("web").await?;
    until_going_down(rig, host).await?;
    host.power_cut();
    rig.cluster.until_all_run(&image, LONG).await?;
    ensure_rebooted_once_more(&before, &rig.cluster.boots(), host.name())?;
    rig.now = image;
    rig.cluster.judge()
}

/// The power fails after the rollback was queued and before the host has shut down. The previous image still boots.
pub(super) async fn a_power_cut_during_the_rollback(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let bad = publish(rig, "8.2.0", "exit 1").await?;
    desire_strictly(rig, &bad).await?;
    let host = rig.some_in("Proving").await?;
    delay_shutdown(host).await?;
    until_going_down(rig, host).await?;
    host.power_cut();
    let said = ("NodeDegraded", "True", "DigestFailed", "10-storage");
    rig.cluster.until_node_says(host.name(), said, LONG).await?;
    let boots = rig.cluster.boots();
    ensure_rebooted_twice(&before, &boots, host.name())?;
    mend(rig, "8.3.0", &boots).await
}

/// The previous image also fails its check. The node keeps its berth and its image until the cause is removed.
pub(super) async fn a_previous_image_that_is_bad_too(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let old = publish(
        rig,
        "8.4.0",
        "test ! -e /var/lib/full || { echo /var is full >&2; exit 1; }",
    )
    .await?;
    rig.desire(&old, 2).await?;
    rig.until_all_run(&old, &before).await?;
    let before = rig.cluster.boots();
    let bad = publish(rig, "8.5.0", "touch /var/lib/full; echo /var is full >&2; exit 1").await?;
    desire_strictly(rig, &bad).await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%", "rebootTimeout": "20s" });
    rig.cluster.patch_pool("workers", json!({ "rollout": rollout })).await?;
    let host = rig.some_in("Proving").await?;
    let said = (
        "NodeDegraded",
        "True",
        "HealthCheckFailed",
        "not proven within rebootTimeout",
    );
    rig.cluster.until_node_says(host.name(), said, LONG).await?;
    tokio::time::sleep(DEADLINE).await;
    ensure_rebooted_twice(&before, &rig.cluster.boots(), host.name())?;
    ensure!(rig.cluster.held().await?.len() == 1, "the berth is given back");
    host.exec(&["rm", "/var/lib/full"]).await?;
    let said = ("NodeDegraded", "True", "DigestFailed", "/var is full");
    rig.cluster.until_node_says(host.name(), said, LONG).await?;
    let boots = rig.cluster.boots();
    ensure_rebooted_twice(&before, &boots, host.name())?;
    mend(rig, "8.6.0", &boots).await
}

async fn publish(rig: &Rig, version: &str, script: &str) -> Result<Published> {
    let version = format!("{version}{}", rig.series);
    rig.cluster.publish_checked(&version, script).await
}

async fn desire_strictly(rig: &Rig, image: &Published) -> Result<()> {
    rig.desire(image, 1).await?;
    let deadline = format!("{}s", DEADLINE.as_secs());
    let health = json!({ "deadline": deadline, "checks": [kubelet_check()] });
    rig.cluster.patch_pool("workers", json!({ "health": health })).await
}

fn kubelet_check() -> Value {
    json!({ "name": "kubelet", "httpGet": { "port": 10248, "path": "/healthz" } })
}

fn ensure_rebooted_twice(before: &BTreeMap<String, usize>, boots: &BTreeMap<String, usize>, name: &str) -> Result<()> {
    for (host, n) in boots {
        let more = if host == name { 2 } else { 0 };
        let old = before.get(host).copied().unwrap_or_default();
        ensure!(*n == old + more, "{before:?}, then {boots:?}");
    }
    Ok(())
}

/// Fails unless this host has rebooted twice and each other host once.
fn ensure_rebooted_once_more(
    before: &BTreeMap<String, usize>,
    boots: &BTreeMap<String, usize>,
    name: &str,
) -> Result<()> {
    for (host, n) in boots {
        let more = if host == name { 2 } else { 1 };
        let old = before.get(host).copied().unwrap_or_default();
        ensure!(*n == old + more, "{before:?}, then {boots:?}");
    }
    Ok(())
}

/// Rolls a good image out to all nodes, and resets the pool's health.
async fn mend(rig: &mut Rig, version: &str, boots: &BTreeMap<String, usize>) -> Result<()> {
    let good = publish(rig, version, "test -w /var").await?;
    let labels = json!({ "app.kubernetes.io/name": "berth-agent" });
    let agents = json!({ "namespace": "berth-system", "selector": { "matchLabels": labels } });
    let checks = json!([
        kubelet_check(),
        { "name": "agent", "podsReady": agents },
        { "name": "ready", "nodeCondition": { "type": "Ready" } },
    ]);
    // The pod of an agent becomes Ready some seconds after the Node.
    let health = json!({ "deadline": "5m", "checks": checks });
    rig.cluster.patch_pool("workers", json!({ "health": health })).await?;
    rig.desire(&good, 2).await?;
    rig.until_all_run(&good, boots).await?;
    rig.cluster.patch_pool("workers", json!({ "health": null })).await
}
