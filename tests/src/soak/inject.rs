//! Makes the faults of a plan happen.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use super::draw::{CAPACITY, CONTROLLERS, Timed};
use super::fault::{Fault, Rescue, Vanish, Who};
use super::plan::Plan;
use super::scene::{self, Scene};
use crate::cluster::{Cluster, Published};
use crate::hosts::sim::SimHost;
use crate::proxy::Weather;

/// The pool of every soak.
pub const POOL: &str = "workers";
/// The pool that admins move nodes to, and back from.
pub const SPARE: &str = "spare";
/// The label of the nodes in it.
pub const LABEL_SPARE: &str = "soak.berth.test/spare";
/// Longest wait for the moment of a scene.
const COMES_WITHIN: Duration = Duration::from_secs(30);
/// Time for which the slowness of a scene goes on after its last fault has begun.
const AFTERMATH: Duration = Duration::from_secs(1);
/// Time for which a stopped host may still go down for a reboot that it had asked for.
const REBOOT_ON_ITS_WAY: Duration = Duration::from_secs(2);
/// Longest wait for a request to reboot that is to be lost.
const LOST_WITHIN: Duration = Duration::from_secs(60);
/// Time for which an admin's change is tried again, since Nodes come and go here.
const ADMIN_TRIES: Duration = Duration::from_secs(20);
/// The webhook that refuses what controllers write of berths.
const WEBHOOK: &str = "broken.soak.berth.test";
/// The Lease of the controllers' leader.
const LEADER: &str = "berth-controller";
/// The label that admins change.
const LABEL: &str = "soak.berth.test/label";

/// Things that faults strike.
#[derive(Debug)]
pub struct Injector<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Image that the rollout rolls out.
    pub target: &'a Published,
    /// Image that an admin asks for by mistake.
    pub other: &'a Published,
    /// The image under which no host gets Ready.
    pub bad: Option<&'a Published>,
}

impl Injector<'_> {
    /// Makes every fault of a plan happen in its time. Returns when all of them are over.
    ///
    /// # Errors
    /// When the harness itself could not do something; that is no finding.
    pub async fn run(&self, plan: &Plan) -> Result<()> {
        let begin = Instant::now();
        let timed = |timed: &Timed| {
            let Timed { at, fault } = *timed;
            async move {
                sleep_until(begin + at).await;
                self.strike(fault).await.with_context(|| format!("cannot {fault}"))
            }
        };
        let cordons = async {
            if let (nodes, Some(until)) = &plan.cordoned {
                sleep_until(begin + *until).await;
                self.cordon_all(nodes, false).await?;
            }
            Ok(())
        };
        let scene = async {
            match &plan.scene {
                Some(scene) => self.play(scene).await.with_context(|| format!("cannot play: {scene}")),
                None => Ok(()),
            }
        };
        tokio::try_join!(try_join_all(plan.faults.iter().map(timed)), cordons, scene)?;
        Ok(())
    }

    /// Waits for the moment of a scene, and makes it happen. A moment that does not come is none.
    async fn play(&self, scene: &Scene) -> Result<()> {
        let slow = |on: bool| {
            for (who, latency) in &scene.slow {
                let latency = if on { *latency } else { Duration::ZERO };
                self.change_weather(*who, |weather| weather.latency = latency);
            }
        };
        slow(true);
        let host = self.host(scene.node);
        let comes = scene::comes(self.cluster.berths(), host.name(), scene.moment);
        let runs_target = async {
            while host.facts().booted != self.target.digest.to_string() {
                sleep(Duration::from_millis(50)).await;
            }
            // What comes after the boot comes soon after it.
            sleep(Duration::from_secs(3)).await;
        };
        let came = tokio::select! {
            came = comes => { came?; true }
            () = runs_target => false,
            () = sleep(COMES_WITHIN) => false,
        };
        if came {
            let strike = |(after, fault): &(Duration, Fault)| {
                let (after, fault) = (*after, *fault);
                async move {
                    sleep(after).await;
                    self.strike(fault).await
                }
            };
            let aftermath = async {
                sleep(scene.faults.iter().map(|(after, _)| *after).max().unwrap_or_default() + AFTERMATH).await;
                slow(false);
                Ok(())
            };
            tokio::try_join!(try_join_all(scene.faults.iter().map(strike)), aftermath)?;
        }
        slow(false);
        Ok(())
    }

    /// Brings everything that a plan may have left behind into order, as the admins would at the end of the day.
    ///
    /// # Errors
    /// When the API server does not take it.
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

    /// Makes the changes of admins.
    async fn administer(&self, fault: Fault) -> Result<()> {
        let rollout = |change| self.cluster.patch_pool(POOL, json!({ "rollout": change }));
        match fault {
            Fault::Pause(lasts) => {
                rollout(json!({ "paused": true })).await?;
                sleep(lasts).await;
                rollout(json!({ "paused": false })).await
            }
            Fault::Resize(first, second, lasts) => {
                rollout(json!({ "maxUnavailable": first })).await?;
                sleep(lasts).await;
                rollout(json!({ "maxUnavailable": second })).await?;
                sleep(lasts).await;
                rollout(json!({ "maxUnavailable": CAPACITY })).await
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
                unless_absent(api.delete(name, &DeleteParams::default()).await.map(drop))
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
            Fault::BadImage(lasts) => self.ask_for(self.bad.context("no bad image was made")?, lasts).await,
            Fault::Move(node, lasts) => {
                self.move_away(node).await?;
                let Some(lasts) = lasts else { return Ok(()) };
                sleep(lasts).await;
                self.move_back(node).await
            }
            _ => Ok(()),
        }
    }

    /// Moves a node to the other pool.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn move_away(&self, node: usize) -> Result<()> {
        self.patch_node(node, json!({ "metadata": { "labels": { LABEL_SPARE: "true" } } }))
            .await
    }

    /// Moves a node back to the pool of the soak.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn move_back(&self, node: usize) -> Result<()> {
        self.patch_node(node, json!({ "metadata": { "labels": { LABEL_SPARE: null } } }))
            .await
    }

    fn webhooks(&self) -> Api<ValidatingWebhookConfiguration> {
        Api::all(self.cluster.client())
    }

    async fn mend_webhook(&self) -> Result<()> {
        unless_absent(
            self.webhooks()
                .delete(WEBHOOK, &DeleteParams::default())
                .await
                .map(drop),
        )
    }

    /// Asks for another image, and for the first one after a while.
    async fn ask_for(&self, other: &Published, lasts: Duration) -> Result<()> {
        let image = |image: &Published| json!({ "image": { "ref": image.reference } });
        self.cluster.patch_pool(POOL, image(other)).await?;
        sleep(lasts).await;
        self.cluster.patch_pool(POOL, image(self.target)).await
    }

    async fn weather(&self, who: Who, lasts: Duration, change: impl Fn(&mut Weather, bool)) {
        // Whoever leads when it begins is meant when it ends, too.
        let who = self.resolved(who).await;
        self.change_weather(who, |w| change(w, true));
        sleep(lasts).await;
        self.change_weather(who, |w| change(w, false));
    }

    /// Changes the weather of these programs. A leader must be [`resolved`](Self::resolved) by then, or all controllers
    /// are meant.
    fn change_weather(&self, who: Who, change: impl Fn(&mut Weather)) {
        let ways = &self.cluster.ways;
        match who {
            Who::Everybody => ways.everybody(change),
            Who::Agent(node) => ways.node(self.host(node).name(), change),
            Who::Agents => self
                .cluster
                .fleet
                .hosts
                .iter()
                .for_each(|host| ways.node(host.name(), &change)),
            Who::Controller(number) => ways.controller(number, change),
            Who::Controllers | Who::Leader => (0..CONTROLLERS).for_each(|number| ways.controller(number, &change)),
        }
    }

    /// Finds the leader. When there is none, all controllers are meant.
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
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn cordon_all(&self, nodes: &[usize], unschedulable: bool) -> Result<()> {
        for node in nodes {
            self.patch_node(*node, json!({ "spec": { "unschedulable": unschedulable } }))
                .await?;
        }
        Ok(())
    }

    /// Waits for a Node that has just vanished.
    async fn patch_node(&self, node: usize, patch: serde_json::Value) -> Result<()> {
        let (name, start) = (self.host(node).name(), Instant::now());
        loop {
            let patched = self
                .cluster
                .nodes()
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await;
            match patched {
                Err(kube::Error::Api(status)) if status.code == 404 && start.elapsed() < ADMIN_TRIES => {
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
            // It may run the image already, or reboot for another reason before it asks.
            if start.elapsed() > LOST_WITHIN || host.facts().booted == self.target.digest.to_string() {
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
        let before = self.uid(host).await?;
        match how {
            Vanish::PowerLoss => {
                self.cluster.excuse(host.name());
                host.power_loss().await;
                // It is off: nothing of it starts before it is told to.
                host.stop_agent().await;
            }
            Vanish::Stopped => {
                host.stop_agent().await;
                // What the agent had asked for still happens, under the licence of the Node that is there.
                sleep(REBOOT_ON_ITS_WAY).await;
                host.stop_kubelet();
            }
        }
        unless_absent(
            self.cluster
                .nodes()
                .delete(host.name(), &DeleteParams::default())
                .await
                .map(drop),
        )?;
        sleep(lasts).await;
        match how {
            Vanish::PowerLoss => host.power_on().await?,
            Vanish::Stopped => host.register().await?,
        }
        let back = || async { Ok(self.uid(host).await?.is_some_and(|uid| Some(uid) != before)) };
        self.cluster
            .until(&format!("{} is back", host.name()), ADMIN_TRIES, back)
            .await?;
        self.cluster.renew_agent_token(host).await?;
        // One that another fault had started meanwhile still has the old Node's token.
        host.kill_agent();
        host.start_agent();
        Ok(())
    }

    async fn uid(&self, host: &SimHost) -> Result<Option<String>> {
        Ok(self
            .cluster
            .nodes()
            .get_opt(host.name())
            .await?
            .and_then(|node| node.metadata.uid))
    }
}

/// A webhook that nobody answers for, which has to see what controllers write of berths.
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
            // Nobody listens on the discard port.
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

/// Two faults may break the same webhook at a time.
fn if_there(error: kube::Error) -> Result<ValidatingWebhookConfiguration, kube::Error> {
    match error {
        kube::Error::Api(status) if status.code == 409 => Ok(ValidatingWebhookConfiguration::default()),
        error => Err(error),
    }
}

fn unless_absent(result: kube::Result<()>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => Ok(result?),
    }
}
