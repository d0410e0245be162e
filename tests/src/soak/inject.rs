//! Executes the faults of a plan.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use super::draw::{CAPACITY, CONTROLLERS};
use super::fault::{Fault, Rescue, Vanish, Who};
use super::plan::Plan;
use super::pools::{LABEL_SPARE, POOL};
use super::replaced::{PENDING_REBOOT_MAX, join_again, uid};
use super::scene::{self, Scene};
use crate::cluster::{Cluster, Published};
use crate::hosts::sim::SimHost;
use crate::proxy::Weather;

const MOMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the added latency of a scene lasts after the start of its last fault.
const SLOW_AFTER_FAULTS: Duration = Duration::from_secs(1);
const REBOOT_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// How long an admin's change of a Node is retried while the Node does not exist.
const ADMIN_RETRY_MAX: Duration = Duration::from_secs(20);
/// Webhook that rejects the controllers' writes of berths.
const WEBHOOK: &str = "broken.soak.berth.test";
const LEADER: &str = "berth-controller";
const LABEL: &str = "soak.berth.test/label";

/// Executes the faults on a cluster.
#[derive(Debug)]
pub struct Injector<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The image of the rollout.
    pub target: &'a Published,
    /// The image that an admin sets by mistake.
    pub other: &'a Published,
    /// An image whose nodes never become Ready.
    pub bad: Option<&'a Published>,
}

impl Injector<'_> {
    /// Executes every fault of a plan at its time. Returns when all are over.
    pub async fn run(&self, plan: &Plan) -> Result<()> {
        let begin = Instant::now();
        let cordons = async {
            if let (nodes, Some(until)) = &plan.cordoned {
                sleep_until(begin + *until).await;
                self.cordon_all(nodes, false).await?;
            }
            Ok(())
        };
        let scene = async {
            match &plan.scene {
                Some(scene) => self
                    .play(scene)
                    .await
                    .with_context(|| format!("cannot execute the scene: {scene}")),
                None => Ok(()),
            }
        };
        let faults = plan
            .faults
            .iter()
            .map(|timed| self.strike_at(begin + timed.at, timed.fault));
        tokio::try_join!(try_join_all(faults), cordons, scene)?;
        Ok(())
    }

    async fn strike_at(&self, at: Instant, fault: Fault) -> Result<()> {
        sleep_until(at).await;
        self.strike(fault).await.with_context(|| format!("cannot {fault}"))
    }

    /// Adds the latency of a scene, or removes it.
    fn slow_down(&self, scene: &Scene, on: bool) {
        for (who, latency) in &scene.slow {
            let latency = if on { *latency } else { Duration::ZERO };
            self.change_weather(*who, |weather| weather.latency = latency);
        }
    }

    /// Waits for the moment of a scene, then executes its faults. If the moment never comes, executes none.
    async fn play(&self, scene: &Scene) -> Result<()> {
        self.slow_down(scene, true);
        let host = self.host(scene.node);
        let comes = scene::comes(self.cluster.berths(), host.name(), scene.moment);
        let runs_target = async {
            while host.facts().booted != self.target.digest.to_string() {
                sleep(Duration::from_millis(50)).await;
            }
            // The turn's moments after the boot follow within this time.
            sleep(Duration::from_secs(3)).await;
        };
        let came = tokio::select! {
            came = comes => { came?; true }
            () = runs_target => false,
            () = sleep(MOMENT_TIMEOUT) => false,
        };
        if came {
            let now = Instant::now();
            let faults = scene
                .faults
                .iter()
                .map(|(after, fault)| self.strike_at(now + *after, *fault));
            let aftermath = async {
                let last = scene.faults.iter().map(|(after, _)| *after).max();
                sleep_until(now + last.unwrap_or_default() + SLOW_AFTER_FAULTS).await;
                self.slow_down(scene, false);
                Ok(())
            };
            tokio::try_join!(try_join_all(faults), aftermath)?;
        }
        self.slow_down(scene, false);
        Ok(())
    }

    /// Ends faults that a rollout may leave behind: in the network, the webhook, stopped controllers, and lost reboots.
    pub async fn calm(&self) -> Result<()> {
        self.cluster.ways.everybody(|weather| *weather = Weather::default());
        self.mend_webhook().await?;
        for number in 0..CONTROLLERS {
            self.cluster.controllers.freeze(number, false);
            self.cluster.controllers.start(number)?;
        }
        for host in &self.cluster.fleet.hosts {
            host.settings(|s| (s.reboots_lost, s.finalization_failures) = (0, 0));
        }
        Ok(())
    }

    fn host(&self, number: usize) -> &SimHost {
        self.cluster.host(number)
    }

    async fn strike(&self, fault: Fault) -> Result<()> {
        let controllers = &self.cluster.controllers;
        match fault {
            Fault::KillAgent(node) => self.host(node).kill_agent(),
            Fault::SecondAgent(node, lasts) => {
                self.host(node).second_agent();
                sleep(lasts).await;
                self.host(node).end_second_agent().await;
            }
            Fault::RestartBus(node) => self.host(node).restart_bus().await?,
            Fault::KillController(number, lasts) => {
                controllers.kill(number);
                sleep(lasts).await;
                controllers.start(number)?;
            }
            Fault::StopController(number, lasts) => {
                controllers.stop(number);
                sleep(lasts).await;
                controllers.start(number)?;
            }
            Fault::FreezeController(number, lasts) => {
                controllers.freeze(number, true);
                sleep(lasts).await;
                controllers.freeze(number, false);
            }
            Fault::Outage(who, lasts) => self.weather(who, lasts, |w, on| w.down = on).await,
            Fault::Stall(who, lasts) => self.weather(who, lasts, |w, on| w.stalled = on).await,
            Fault::Latency(who, latency, lasts) => {
                self.weather(who, lasts, |w, on| {
                    w.latency = if on { latency } else { Duration::ZERO }
                })
                .await;
            }
            Fault::LostReboot(node, rescue, after) => self.lose_reboot(self.host(node), rescue, after).await?,
            Fault::PowerCut(node) => {
                self.cluster.excuse(self.host(node).name());
                self.host(node).power_cut().await?;
            }
            Fault::Vanish(node, how, lasts) => self.vanish(self.host(node), how, lasts).await?,
            Fault::FailFinalization(node) => self.host(node).settings(|s| s.finalization_failures = 1),
            _ => self.administer(fault).await?,
        }
        Ok(())
    }

    async fn rollout(&self, change: Value) -> Result<()> {
        self.cluster.patch_pool(POOL, json!({ "rollout": change })).await
    }

    async fn administer(&self, fault: Fault) -> Result<()> {
        match fault {
            Fault::Pause(lasts) => {
                self.rollout(json!({ "paused": true })).await?;
                sleep(lasts).await;
                self.rollout(json!({ "paused": false })).await
            }
            Fault::Resize(first, second, lasts) => {
                self.rollout(json!({ "maxUnavailable": first })).await?;
                sleep(lasts).await;
                self.rollout(json!({ "maxUnavailable": second })).await?;
                sleep(lasts).await;
                self.rollout(json!({ "maxUnavailable": CAPACITY })).await
            }
            Fault::Cordon(node, lasts) => {
                self.cordon_all(&[node], true).await?;
                sleep(lasts).await;
                self.cordon_all(&[node], false).await
            }
            Fault::Label(node) => {
                for value in ["one", "two", "three"] {
                    let patch = json!({ "metadata": { "labels": { LABEL: value } } });
                    self.patch_node(node, patch).await?;
                    sleep(Duration::from_millis(200)).await;
                }
                Ok(())
            }
            Fault::DeleteBootcNode(node) => {
                let (api, name) = (self.cluster.bootc_nodes(), self.host(node).name());
                ignore_absent(api.delete(name, &DeleteParams::default()).await.map(drop))
            }
            Fault::Retarget(lasts) => self.ask_for(self.other, lasts).await,
            Fault::RefuseBerths(lasts) => {
                self.webhooks()
                    .create(&PostParams::default(), &broken_webhook()?)
                    .await
                    .or_else(if_there)?;
                sleep(lasts).await;
                self.mend_webhook().await
            }
            Fault::BadImage(lasts) => self.ask_for(self.bad.context("there is no bad image")?, lasts).await,
            Fault::Move(node, lasts) => {
                self.move_away(node).await?;
                let Some(lasts) = lasts else { return Ok(()) };
                sleep(lasts).await;
                self.move_back(node).await
            }
            _ => Ok(()),
        }
    }

    /// Moves a node to the spare pool.
    pub async fn move_away(&self, node: usize) -> Result<()> {
        self.patch_node(node, json!({ "metadata": { "labels": { LABEL_SPARE: "true" } } }))
            .await
    }

    /// Moves a node back to the pool of the soak.
    pub async fn move_back(&self, node: usize) -> Result<()> {
        self.patch_node(node, json!({ "metadata": { "labels": { LABEL_SPARE: null } } }))
            .await
    }

    fn webhooks(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.cluster.client())
    }

    async fn mend_webhook(&self) -> Result<()> {
        ignore_absent(
            self.webhooks()
                .delete(WEBHOOK, &DeleteParams::default())
                .await
                .map(drop),
        )
    }

    async fn ask_for(&self, other: &Published, lasts: Duration) -> Result<()> {
        let [other, target] = [other, self.target].map(|image| json!({ "image": { "ref": image.reference } }));
        self.cluster.patch_pool(POOL, other).await?;
        sleep(lasts).await;
        self.cluster.patch_pool(POOL, target).await
    }

    async fn weather(&self, who: Who, lasts: Duration, change: impl Fn(&mut Weather, bool)) {
        // The leader at the start of the fault stays its target.
        let who = self.resolved(who).await;
        self.change_weather(who, |w| change(w, true));
        sleep(lasts).await;
        self.change_weather(who, |w| change(w, false));
    }

    /// Changes the network of these programs. Call [`Self::resolved`] first for a leader: otherwise the change applies
    /// to all controllers.
    fn change_weather(&self, who: Who, change: impl Fn(&mut Weather)) {
        let ways = &self.cluster.ways;
        match who {
            Who::Everybody => ways.everybody(change),
            Who::Agent(node) => ways.node(self.host(node).name(), change),
            Who::Controller(number) => ways.controller(number, change),
            Who::Controllers | Who::Leader => (0..CONTROLLERS).for_each(|number| ways.controller(number, &change)),
        }
    }

    /// Replaces [`Who::Leader`] by the leading controller, or by all controllers if there is no leader.
    async fn resolved(&self, who: Who) -> Who {
        if who != Who::Leader {
            return who;
        }
        let lease = self.cluster.berths().get_opt(LEADER).await.ok().flatten();
        let holder = lease.and_then(|lease| lease.spec?.holder_identity);
        let number = holder.and_then(|holder| holder.strip_prefix("controller-")?.parse().ok());
        number.map_or(Who::Controllers, Who::Controller)
    }

    /// Cordons or uncordons nodes, as an admin does with kubectl.
    pub async fn cordon_all(&self, nodes: &[usize], unschedulable: bool) -> Result<()> {
        for node in nodes {
            self.patch_node(*node, json!({ "spec": { "unschedulable": unschedulable } }))
                .await?;
        }
        Ok(())
    }

    /// Patches a Node; retries for a while if the Node does not exist.
    async fn patch_node(&self, node: usize, patch: Value) -> Result<()> {
        let (name, start) = (self.host(node).name(), Instant::now());
        loop {
            let patched = self
                .cluster
                .nodes()
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            match patched {
                Err(kube::Error::Api(status)) if status.code == 404 && start.elapsed() < ADMIN_RETRY_MAX => {
                    sleep(Duration::from_millis(100)).await;
                }
                patched => return Ok(patched.map(drop)?),
            }
        }
    }

    async fn lose_reboot(&self, host: &SimHost, rescue: Rescue, after: Duration) -> Result<()> {
        host.settings(|s| s.reboots_lost = 1);
        let start = Instant::now();
        while host.settings(|s| s.reboots_lost) > 0 {
            // The host may already run the image, or reboot for another reason first.
            if start.elapsed() > REBOOT_REQUEST_TIMEOUT || host.facts().booted == self.target.digest.to_string() {
                host.settings(|s| s.reboots_lost = 0);
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        sleep(after).await;
        match rescue {
            Rescue::Reboot => self.cluster.unrelated_reboot(host).await?,
            Rescue::PowerCut => {
                self.cluster.excuse(host.name());
                host.power_cut().await?;
            }
            Rescue::AgentKill => host.kill_agent(),
            Rescue::Nothing => {}
        }
        Ok(())
    }

    async fn vanish(&self, host: &SimHost, how: Vanish, lasts: Duration) -> Result<()> {
        let before = uid(self.cluster, host).await;
        match how {
            Vanish::PowerLoss => {
                self.cluster.excuse(host.name());
                host.power_loss().await;
                // Keeps the agent from starting at the next power-on, before it has a new token.
                host.stop_agent().await;
            }
            Vanish::Stopped => {
                host.stop_agent().await;
                // A reboot requested by the agent still happens, licensed by the existing Node.
                sleep(PENDING_REBOOT_MAX).await;
                host.stop_kubelet();
            }
        }
        ignore_absent(
            self.cluster
                .nodes()
                .delete(host.name(), &DeleteParams::default())
                .await
                .map(drop),
        )?;
        sleep(lasts).await;
        join_again(self.cluster, host, how, &before).await
    }
}

/// A webhook that must review the controllers' berth writes but has no server, so the API server rejects these writes.
fn broken_webhook() -> Result<ValidatingWebhookConfiguration> {
    let of_controllers = "request.userInfo.username == 'system:serviceaccount:berth-system:berth-controller'";
    let berths = format!(
        "'{}' in object.metadata.?labels.orValue({{}})",
        berth_api::keys::LABEL_POOL
    );
    let object = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": WEBHOOK },
        "webhooks": [{
            "name": WEBHOOK, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            // The discard port has no listener.
            "clientConfig": { "url": "https://127.0.0.1:9/" }, "timeoutSeconds": 1,
            "rules": [{
                "apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "resources": ["leases"],
                "operations": ["CREATE", "UPDATE"],
            }],
            "matchConditions": [
                { "name": "controllers", "expression": of_controllers },
                { "name": "berths", "expression": berths },
            ],
        }],
    });
    Ok(serde_json::from_value(object)?)
}

/// Accepts that the webhook already exists: two faults may create it at the same time.
fn if_there(error: kube::Error) -> Result<ValidatingWebhookConfiguration, kube::Error> {
    match error {
        kube::Error::Api(status) if status.code == 409 => Ok(ValidatingWebhookConfiguration::default()),
        error => Err(error),
    }
}

fn ignore_absent(result: kube::Result<()>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => Ok(result?),
    }
}
