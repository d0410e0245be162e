//! Drains by the rules of `kubectl drain`, against a real API server with NodeRestriction, real budgets and a stand-in
//! for the kubelet. Each scenario has a node of its own; all of them run at once.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_agent::node::drain::{Drain, DrainProgress, Given, Settings};
use berth_agent::node::evict::{Answer, ByRequest, Mover};
use berth_api::node::DrainBlocker;
use berth_core::Moment;
use berth_tests::cluster::SOON;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::hosts::HostLog;
use berth_tests::hosts::sim::{Catalog, KubeletConfig, NEVER_ENDS, SimFleet, SimHost, SimHostConfig};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::Selector;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

struct Stage<'a> {
    host: &'a SimHost,
    admin: Client,
    kubelet: Client,
    /// Owner that makes pods look as if a controller managed them. No controller runs here.
    owner: Value,
    drain: Drain,
    settings: Settings,
    node_ready: bool,
    /// Start of the drain's clock.
    began: Instant,
    /// How far the drain's clock is ahead.
    ahead: Duration,
}

impl<'a> Stage<'a> {
    async fn new(plane: &ControlPlane, host: &'a SimHost) -> Result<Self> {
        let path = plane.node_kubeconfig(host.name())?.path;
        let kubelet = berth_agent::clients::client_of(&path).await?;
        let maps: Api<ConfigMap> = Api::namespaced(plane.admin_client(), "default");
        let map = serde_json::from_value(json!({"metadata": {"name": host.name()}}))?;
        let uid = maps.create(&PostParams::default(), &map).await?.uid();
        let owner =
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": host.name(), "uid": uid, "controller": true}]);
        Ok(Self {
            host,
            admin: plane.admin_client(),
            kubelet,
            owner,
            drain: Drain::default(),
            settings: Settings::default(),
            node_ready: true,
            began: Instant::now(),
            ahead: Duration::ZERO,
        })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), "default")
    }

    /// Creates a pod on the node, and waits until it runs. The pod is managed, unless the metadata say otherwise.
    async fn pod(&self, name: &str, metadata: Value, volumes: Value) -> Result<Pod> {
        let name = format!("{}-{name}", self.host.name());
        let mut all = json!({"name": name, "labels": {"node": self.host.name()}, "ownerReferences": self.owner});
        for (key, value) in metadata.as_object().context("metadata")? {
            all[key] = value.clone();
        }
        let pod = json!({"metadata": all, "spec": {
            "nodeName": self.host.name(), "volumes": volumes, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "registry.test/app"}],
        }});
        self.pods()
            .create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await
            .context(name.clone())?;
        until(&format!("{name} runs"), async || {
            let pod = self.pods().get(&name).await?;
            Ok((pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running")).then_some(pod))
        })
        .await
    }

    async fn until_gone(&self, pod: &str) -> Result<()> {
        until(&format!("{pod} is gone"), async || {
            Ok(self.pods().get_opt(pod).await?.is_none().then_some(()))
        })
        .await
    }

    async fn managed(&self, name: &str) -> Result<Pod> {
        self.pod(name, json!({}), json!([])).await
    }

    /// The names of the pods on the node that are not being deleted.
    async fn untouched(&self) -> Result<Vec<String>> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.host.name()));
        let pods = self.pods().list(&on_node).await?.items.into_iter();
        let names = pods
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .map(|pod| pod.name_any());
        Ok(names
            .map(|name| name.trim_start_matches(&format!("{}-", self.host.name())).to_owned())
            .collect())
    }

    /// Makes one pass of the drain. The drain has its own clock, which may be ahead.
    async fn pass(&mut self) -> Result<DrainProgress> {
        let given = Given {
            node: self.host.name(),
            settings: &self.settings,
            node_ready: self.node_ready,
            left: Duration::ZERO,
            now: Timestamp::now(),
            clock: Moment::after(self.began.elapsed() + self.ahead),
        };
        Ok(self.drain.pass(&self.kubelet, &given).await?)
    }

    /// Makes passes until the drain is done; returns the pods left behind.
    async fn done(&mut self) -> Result<Vec<DrainBlocker>> {
        let deadline = Instant::now() + SOON;
        loop {
            match self.pass().await? {
                DrainProgress::Done { left_behind } => return Ok(left_behind),
                DrainProgress::Waiting { blockers, .. } if Instant::now() > deadline => bail!("waits for {blockers:?}"),
                DrainProgress::Waiting { next, .. } => sleep(next).await,
            }
        }
    }

    /// Makes passes until the drain is blocked for this reason; returns all blockers.
    async fn blocked(&mut self, reason: &str) -> Result<Vec<DrainBlocker>> {
        let deadline = Instant::now() + SOON;
        loop {
            match self.pass().await? {
                DrainProgress::Done { left_behind } => bail!("done, but for {left_behind:?}"),
                DrainProgress::Waiting { blockers, next } => {
                    if blockers.iter().any(|b| b.reason.contains(reason)) {
                        return Ok(blockers);
                    }
                    ensure!(Instant::now() < deadline, "not blocked by {reason}: {blockers:?}");
                    sleep(next).await;
                }
            }
        }
    }

    /// Creates a disruption budget that forbids the eviction of this node's pods. Waits until the controller has
    /// observed the budget.
    async fn budget(&self, name: &str) -> Result<()> {
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(self.admin.clone(), "default");
        let budget = json!({
            "metadata": {"name": name},
            "spec": {"minAvailable": 10, "selector": {"matchLabels": {"node": self.host.name()}}},
        });
        budgets
            .create(&PostParams::default(), &serde_json::from_value(budget)?)
            .await?;
        until(&format!("budget {name} is observed"), async || {
            let status = budgets.get(name).await?.status;
            Ok(status
                .filter(|s| s.observed_generation == Some(1) && s.current_healthy > 0)
                .map(drop))
        })
        .await
    }

    async fn node_status(&self, status: Value) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let patch = Patch::Merge(json!({"status": status}));
        nodes
            .patch_status(self.host.name(), &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }
}

async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + SOON;
    loop {
        match ask().await {
            Ok(Some(found)) => return Ok(found),
            answer if Instant::now() > deadline => bail!("not within {SOON:?}: {what} {:?}", answer.err()),
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
}

fn empty_dir() -> Value {
    json!([{"name": "tmp", "emptyDir": {}}])
}

fn unmanaged() -> Value {
    json!({"ownerReferences": []})
}

async fn fleet(plane: &ControlPlane, count: usize) -> Result<SimFleet> {
    let catalog = Catalog::default();
    let digest = catalog.publish("1.0.0");
    let configs: Vec<_> = (0..count)
        .map(|i: usize| {
            let name = format!("n{i}");
            let mut config = SimHostConfig::new(&name, "registry.test/os", &digest, &catalog, &HostLog::default());
            let kubeconfig = plane.node_kubeconfig(&name)?.path;
            config.kubelet = Some(KubeletConfig {
                kubeconfig,
                ..KubeletConfig::default()
            });
            Ok(config)
        })
        .collect::<Result<_>>()?;
    let fleet = SimFleet::start(count, |i| configs[i].clone()).await?;
    let nodes: Api<Node> = Api::all(plane.admin_client());
    for host in &fleet.hosts {
        until(&format!("{} is ready", host.name()), async || {
            let conditions = nodes
                .get(host.name())
                .await?
                .status
                .and_then(|s| s.conditions)
                .unwrap_or_default();
            Ok(conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
                .then_some(()))
        })
        .await?;
    }
    Ok(fleet)
}

#[tokio::test]
async fn the_rules_of_kubectl_drain() -> Result<()> {
    let mut options = Options::simulated_nodes();
    options.scheduler = true;
    // The test itself sets the attached volumes.
    options
        .disabled_controllers
        .push("persistentvolume-attach-detach-controller".to_owned());
    let plane = ControlPlane::start(options).await?;
    let fleet = fleet(&plane, 9).await?;
    let mut stages = vec![];
    for host in &fleet.hosts {
        stages.push(Stage::new(&plane, host).await?);
    }
    let [one, two, three, four, five, six, seven, eight, nine] =
        <[Stage<'_>; 9]>::try_from(stages).map_err(|stages| anyhow::anyhow!("{} hosts", stages.len()))?;
    futures::try_join!(
        async { classes(one).await.context("classes") },
        async { obstacles(two).await.context("obstacles") },
        async { budgets(three).await.context("budgets") },
        async { deletion(four).await.context("deletion") },
        async { force(five).await.context("force") },
        async { broken_node(six).await.context("broken node") },
        async { volumes(seven).await.context("volumes") },
        async { selection(eight).await.context("selection") },
        async { identities(nine).await.context("identities") },
    )?;
    Ok(())
}

async fn daemon_set(stage: &Stage<'_>, volumes: Value) -> Result<()> {
    let name = format!("{}-daemon", stage.host.name());
    let labels = json!({"daemon": name});
    let set = json!({"metadata": {"name": name}, "spec": {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "nodeSelector": {"kubernetes.io/hostname": stage.host.name()}, "volumes": volumes,
            "containers": [{"name": "main", "image": "registry.test/app"}],
        }},
    }});
    let sets: Api<DaemonSet> = Api::namespaced(stage.admin.clone(), "default");
    sets.create(&PostParams::default(), &serde_json::from_value(set)?)
        .await?;
    until(&format!("DaemonSet {name} is ready"), async || {
        Ok((sets.get(&name).await?.status.is_some_and(|s| s.number_ready == 1)).then_some(()))
    })
    .await
}

async fn classes(mut stage: Stage<'_>) -> Result<()> {
    daemon_set(&stage, empty_dir()).await?;
    stage
        .pod(
            "mirror",
            json!({"ownerReferences": [], "annotations": {"kubernetes.io/config.mirror": "x"}}),
            json!([]),
        )
        .await?;
    stage.managed("web").await?;
    stage.managed("ending").await?;
    stage.pod("finished", unmanaged(), empty_dir()).await?;
    let failed = Patch::Merge(json!({"status": {"phase": "Failed"}}));
    stage
        .pods()
        .patch_status("n0-finished", &PatchParams::default(), &failed)
        .await?;
    let slow = json!({"annotations": {NEVER_ENDS: ""}});
    stage.pod("slow", slow, json!([])).await?;
    for name in ["n0-ending", "n0-slow"] {
        stage.pods().delete(name, &DeleteParams::default()).await?;
    }
    let blockers = stage.blocked("Terminating").await?;
    ensure!(blockers.iter().any(|b| b.pod == "default/n0-slow"), "{blockers:?}");
    stage.until_gone("n0-web").await?;
    let forget = Patch::Merge(json!({"metadata": {"annotations": {NEVER_ENDS: null}}}));
    stage.pods().patch("n0-slow", &PatchParams::default(), &forget).await?;
    let left_behind = stage.done().await?;
    ensure!(left_behind.is_empty(), "nothing was left behind: {left_behind:?}");
    let stay = stage.untouched().await?;
    ensure!(
        stay.len() == 2 && stay.iter().all(|n| n == "mirror" || n.starts_with("daemon-")),
        "others stay: {stay:?}"
    );
    Ok(())
}

async fn obstacles(mut stage: Stage<'_>) -> Result<()> {
    stage.managed("web").await?;
    stage.pod("bare", unmanaged(), json!([])).await?;
    stage.pod("data", json!({}), empty_dir()).await?;
    let blockers = stage.blocked("Unmanaged").await?;
    for (pod, setting) in [
        ("default/n1-bare", "drain.force"),
        ("default/n1-data", "drain.deleteEmptyDirData"),
    ] {
        let mut of_pod = blockers.iter().filter(|b| b.pod == pod);
        ensure!(of_pod.any(|b| b.reason.contains(setting)), "{blockers:?}");
    }
    ensure!(stage.untouched().await?.len() == 3, "a pod was evicted");
    stage.settings.force = true;
    stage.blocked("EmptyDir").await?;
    ensure!(stage.untouched().await?.len() == 3, "a pod was evicted");
    stage.settings.delete_empty_dir_data = true;
    ensure!(
        stage.done().await?.is_empty() && stage.untouched().await?.is_empty(),
        "all are gone"
    );
    Ok(())
}

async fn budgets(mut stage: Stage<'_>) -> Result<()> {
    stage.managed("web").await?;
    stage.budget("front").await?;
    let blockers = stage.blocked("disruption budget front needs").await?;
    ensure!(
        blockers.len() == 1 && blockers[0].pod == "default/n2-web",
        "{blockers:?}"
    );
    let since = blockers[0].since.clone();
    stage.budget("second").await?;
    let blockers = stage.blocked("misconfigured").await?;
    ensure!(
        blockers[0].reason.contains("more than one PodDisruptionBudget"),
        "{blockers:?}"
    );
    ensure!(blockers[0].since == since, "`since` is the first time");
    ensure!(stage.untouched().await? == ["web"], "a pod protected by a budget stays");
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(stage.admin.clone(), "default");
    for name in ["front", "second"] {
        budgets.delete(name, &DeleteParams::default()).await?;
    }
    ensure!(stage.done().await?.is_empty(), "the drain continues automatically");
    Ok(())
}

async fn deletion(mut stage: Stage<'_>) -> Result<()> {
    stage.managed("web").await?;
    stage.budget("third").await?;
    stage.blocked("disruption budget third").await?;
    stage.settings.disable_eviction = true;
    ensure!(
        stage.done().await?.is_empty() && stage.untouched().await?.is_empty(),
        "deletion ignores budgets"
    );
    Ok(())
}

/// The timeout has passed, and the pool's `onTimeout` is Force.
async fn force(mut stage: Stage<'_>) -> Result<()> {
    let keep = json!({"annotations": {NEVER_ENDS: ""}});
    stage.pod("web", keep, json!([])).await?;
    stage.budget("fourth").await?;
    stage.blocked("disruption budget fourth").await?;
    stage.pod("bare", unmanaged(), empty_dir()).await?;
    stage.blocked("Unmanaged").await?;
    (stage.settings.despite_obstacles, stage.settings.forced) = (true, true);
    let blockers = stage.blocked("by force").await?;
    ensure!(
        blockers
            .iter()
            .any(|b| b.pod == "default/n4-bare" && b.reason.contains("drain.force")),
        "each obstacle is removed only by its own setting: {blockers:?}"
    );
    (stage.settings.force, stage.settings.delete_empty_dir_data) = (true, true);
    stage.blocked("by force").await?;
    stage.until_gone("n4-bare").await?;
    let pod = stage.pods().get("n4-web").await?;
    ensure!(pod.metadata.deletion_grace_period_seconds == Some(1), "{pod:?}");
    stage.blocked("by force").await?;
    stage.ahead = Duration::from_secs(600);
    let left_behind = stage.done().await?;
    ensure!(
        left_behind.len() == 1 && left_behind[0].pod == "default/n4-web",
        "a pod that never ends is named: {left_behind:?}"
    );
    Ok(())
}

async fn broken_node(mut stage: Stage<'_>) -> Result<()> {
    stage.managed("web").await?;
    stage.host.stop_kubelet();
    let blockers = stage.blocked("Terminating").await?;
    ensure!(blockers[0].pod == "default/n5-web", "not evicted: {blockers:?}");
    stage.blocked("Terminating").await?;
    stage.ahead = Duration::from_secs(600);
    stage
        .blocked("Terminating")
        .await
        .context("the drain did not wait for a ready node")?;
    stage.node_ready = false;
    // A kubelet that is not ready for a moment may be back soon.
    let mut passes = 1;
    while let DrainProgress::Waiting { .. } = stage.pass().await? {
        stage.ahead += Duration::from_secs(12);
        passes += 1;
        ensure!(passes < 50, "the kubelet has been away for ten minutes");
    }
    ensure!(passes > 6, "it was left behind after {passes} passes");
    let left_behind = stage.done().await?;
    ensure!(
        left_behind[0].pod == "default/n5-web" && left_behind[0].reason.contains("grace"),
        "{left_behind:?}"
    );
    let pod = stage.pods().get("n5-web").await?;
    ensure!(pod.metadata.deletion_timestamp.is_some(), "the pod may still run");
    Ok(())
}

fn attached(names: &[&str]) -> Value {
    let volumes = names.iter().map(|name| json!({"name": name, "devicePath": ""}));
    volumes.collect()
}

async fn volumes(mut stage: Stage<'_>) -> Result<()> {
    let (volumes, claims) = (Api::<PersistentVolume>::all(stage.admin.clone()), stage.admin.clone());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(claims, "default");
    let volume = json!({"metadata": {"name": "kept"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "csi": {"driver": "csi.test", "volumeHandle": "kept"},
        "claimRef": {"namespace": "default", "name": "kept", "apiVersion": "v1", "kind": "PersistentVolumeClaim"},
    }});
    let claim = json!({"metadata": {"name": "kept"}, "spec": {
        "resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeName": "kept",
    }});
    volumes
        .create(&PostParams::default(), &serde_json::from_value(volume)?)
        .await?;
    claims
        .create(&PostParams::default(), &serde_json::from_value(claim)?)
        .await?;
    daemon_set(
        &stage,
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": "kept"}}]),
    )
    .await?;
    stage.managed("web").await?;
    let kept = "kubernetes.io/csi/csi.test^kept";
    let both = [kept, "kubernetes.io/csi/csi.test^gone"];
    stage
        .node_status(json!({"volumesInUse": both, "volumesAttached": attached(&both)}))
        .await?;
    let blockers = stage.blocked("still attached").await?;
    let names: Vec<_> = blockers.iter().map(|b| b.pod.as_str()).collect();
    ensure!(names == ["volume kubernetes.io/csi/csi.test^gone"], "{names:?}");
    stage.node_status(json!({"volumesInUse": [kept]})).await?;
    stage
        .blocked("still attached")
        .await
        .context("unmounted is not detached")?;
    stage.node_status(json!({"volumesAttached": attached(&[kept])})).await?;
    ensure!(stage.done().await?.is_empty(), "it is detached");
    // The wait for a volume that is never detached is limited.
    stage.node_status(json!({"volumesAttached": attached(&both)})).await?;
    stage.drain = Drain::default();
    stage.blocked("still attached").await?;
    stage.ahead = Duration::from_secs(121);
    let left_behind = stage.done().await?;
    ensure!(
        left_behind.len() == 1 && left_behind[0].pod.contains("gone"),
        "{left_behind:?}"
    );
    Ok(())
}

async fn selection(mut stage: Stage<'_>) -> Result<()> {
    stage.pod("web", json!({"labels": {"tier": "web"}}), json!([])).await?;
    stage.managed("other").await?;
    stage.pod("bare", unmanaged(), empty_dir()).await?;
    stage.settings.pod_selector = Some(Selector::from_iter([("tier", "web")]));
    ensure!(stage.done().await?.is_empty(), "an unselected pod does not block");
    ensure!(stage.untouched().await? == ["bare", "other"], "unselected pods stay");
    Ok(())
}

/// A request to remove a pod names the pod's UID, so it never removes a new pod with the same name. The request uses
/// the grace period from the settings.
async fn identities(stage: Stage<'_>) -> Result<()> {
    let pod = stage.managed("web").await?;
    let mut former: berth_agent::node::pods::Pod = serde_json::from_value(serde_json::to_value(&pod)?)?;
    let uid = std::mem::replace(
        &mut former.metadata.uid,
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8".to_owned(),
    );
    for delete in [false, true] {
        let mover = ByRequest {
            client: &stage.kubelet,
            grace_period: None,
            delete,
        };
        let answer = mover.ask(&former).await;
        ensure!(answer == Answer::Gone, "the former pod is gone: {answer:?}");
        ensure!(stage.untouched().await? == ["web"], "the new pod is gone");
    }
    former.metadata.uid = uid;
    let mover = ByRequest {
        client: &stage.kubelet,
        grace_period: Some(7),
        delete: false,
    };
    stage.host.stop_kubelet();
    ensure!(mover.ask(&former).await == Answer::Accepted, "not asked to leave");
    let grace = stage.pods().get("n8-web").await?.metadata.deletion_grace_period_seconds;
    ensure!(grace == Some(7), "with the grace period of the settings: {grace:?}");
    Ok(())
}
