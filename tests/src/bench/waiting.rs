//! An agent that waits for a berth, without a host: the shipped client, watches and decision, in a task of this process. It has
//! staged its image, takes the offered berth, gives it back a moment later, and reports that it runs the image. The host, and all
//! that a turn does in between, are missing.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_agent::clients;
use berth_agent::node::cordon;
use berth_agent::status::StatusWriter;
use berth_agent::watches::{self, Berths, Seen};
use berth_api::NodeName;
use berth_api::berth::{Berth, HoldPhase, Outcome};
use berth_api::node::{BootcNode, BootcNodeStatus, Deployment};
use berth_core::agent::facts::{AgentFacts, ClusterNode, Deployments, Desired, Guard, Os, Past};
use berth_core::agent::knowledge::Knowledge;
use berth_core::agent::step::{Step, WaitReason, step};
use berth_core::{Moment, Now};
use jiff::Timestamp;
use kube::Client;
use serde_json::json;
use tokio::sync::watch;

/// Longest sleep of the shipped loop.
const WAIT_MAX: Duration = Duration::from_secs(20);
const NAMESPACE: &str = "berth-system";

pub(super) struct Waiting {
    facts: AgentFacts,
    object: watch::Receiver<Seen>,
    published: BootcNode,
    berths: Berths,
    status: StatusWriter,
    hold: Duration,
}

impl Waiting {
    /// Opens both watches with the given kubeconfig, and reports that the node waits. `admin` reads the Node, as a real
    /// agent does with the kubelet's identity.
    pub(super) async fn start(name: &str, kubeconfig: &Path, admin: &Client, hold: Duration) -> Result<Self> {
        let node = NodeName::from(name);
        let client = clients::client_of(kubeconfig).await?;
        let known = cordon::read(admin, name)
            .await?
            .with_context(|| format!("there is no Node {name}"))?;
        let boot = known.boot_id.clone().context("the Node has no boot ID")?;
        let now = Now {
            wall: Timestamp::now(),
            clock: Moment::default(),
            chance: 0.5,
        };
        let mut facts = Knowledge::new(node.clone(), boot, Past::default(), &now).facts(&now);
        facts.cluster_node = ClusterNode::Is(known);
        let mut object = watches::bootc_node(client.clone(), &node);
        let published = published(&mut object).await?;
        let berths = Berths::new(client.clone(), NAMESPACE, &node);
        let status = StatusWriter::new(client, &node);
        let mut this = Self {
            facts,
            object,
            published,
            berths,
            status,
            hold,
        };
        this.stage()?;
        this.report(false).await?;
        this.berths.refresh().await?;
        this.berths.watch(true);
        Ok(this)
    }

    /// Waits for a berth, has its turn, then keeps its BootcNode watch open forever, as an idle agent does.
    pub(super) async fn run(mut self, done: Arc<AtomicUsize>) -> Result<()> {
        loop {
            self.look();
            self.follow().await?;
            match step(&self.facts) {
                Step::Take(berth) => match self.take(&berth).await {
                    Ok(()) => break,
                    Err(error) => self.lost(&error).await?,
                },
                // The simulated host answers at once.
                Step::LookAtHost => self.facts.host.fresh = true,
                // A real agent makes this probe at its start and about once an hour, so usually well before an offer.
                Step::TryGuard => {
                    self.facts.guard.answer = Guard::Refuses;
                    self.facts.guard.next_try = WAIT_MAX;
                }
                Step::Wait(_, wait) => {
                    let wait = wait.unwrap_or(WAIT_MAX).min(WAIT_MAX);
                    let _ = tokio::time::timeout(wait, async {
                        tokio::select! {
                            () = self.berths.changed() => {}
                            _ = self.object.changed() => self.object.mark_changed(),
                        }
                    })
                    .await;
                    self.facts.host.fresh = false;
                }
                other => bail!("{}: unexpected step {other:?}", self.facts.node),
            }
        }
        // When a real node is proven and gives back its berth, the report of its new boot is already in the BootcNode.
        self.report(true).await?;
        tokio::time::sleep(self.hold).await;
        self.give_back().await?;
        self.berths.watch(false);
        done.fetch_add(1, Ordering::Relaxed);
        while self.object.changed().await.is_ok() {
            self.object.mark_unchanged();
        }
        Ok(())
    }

    /// Reads a new generation of the BootcNode, and reports it as observed.
    async fn follow(&mut self) -> Result<()> {
        let object = match &*self.object.borrow_and_update() {
            Seen::Is(object) if object.metadata.generation != self.published.metadata.generation => object.clone(),
            _ => return Ok(()),
        };
        self.published = object.object;
        self.facts.desired = Desired::of(Some(&self.published));
        self.report(false).await
    }

    fn stage(&mut self) -> Result<()> {
        self.facts.desired = Desired::of(Some(&self.published));
        let image = self.published.spec.image.as_ref().context("no image is published")?;
        let locked = json!({ "image": image.reference, "digest": image.digest, "locked": true });
        let before = json!({ "image": "registry.example.com/os:1", "digest": format!("sha256:{:064x}", 1) });
        self.facts.host.os = Os::Bootc(Box::new(Deployments {
            booted: serde_json::from_value::<Deployment>(before)?,
            staged: Some(serde_json::from_value::<Deployment>(locked)?),
            ..Deployments::default()
        }));
        Ok(())
    }

    fn look(&mut self) {
        self.berths.catch_up();
        self.facts.berths = self.berths.berths();
        self.facts.now = Timestamp::now();
    }

    async fn take(&mut self, berth: &Berth) -> Result<()> {
        let node = self.facts.cluster_node.get().context("the Node is not known")?;
        let boot = self.facts.host.boot_id.clone();
        let taken = berth.taken(&self.facts.node, &node.uid, self.facts.host.os.booted().cloned(), boot)?;
        self.berths.put(&taken).await
    }

    /// Gives the berth back with the protocol's two writes. If one of them is rejected, decides again, as the shipped
    /// loop does.
    async fn give_back(&mut self) -> Result<()> {
        loop {
            self.look();
            let held = self
                .facts
                .berths
                .iter()
                .flatten()
                .find_map(|b| Some((b.clone(), b.holding()?.phase.clone())));
            let (next, last) = match held {
                None => return Ok(()),
                Some((berth, HoldPhase::Releasing(_))) => (berth.given_back()?, true),
                Some((berth, _)) => (
                    berth.releasing(Outcome::Updated, self.facts.host.boot_id.clone())?,
                    false,
                ),
            };
            match self.berths.put(&next).await {
                Ok(()) if last => return Ok(()),
                Ok(()) => {}
                Err(error) => self.lost(&error).await?,
            }
        }
    }

    async fn lost(&mut self, error: &anyhow::Error) -> Result<()> {
        tracing::debug!(error = format!("{error:#}"), "reading the berths again");
        self.berths.refresh().await
    }

    /// Reports the image as staged and waiting for its turn, or as booted if `runs`.
    async fn report(&mut self, runs: bool) -> Result<()> {
        let object = &self.published;
        self.status.adopt(&object.clone().into());
        let os = self.facts.host.os.deployments().context("nothing is staged")?;
        let (booted, staged, phase, prepared, reason) = if runs {
            (os.staged.as_ref(), None, "Updated", "False", "Booted")
        } else {
            (Some(&os.booted), os.staged.as_ref(), "Waiting", "True", "Ready")
        };
        let now = Timestamp::now();
        let status: BootcNodeStatus = serde_json::from_value(json!({
            "observedGeneration": object.metadata.generation, "nodeUID": object.spec.node_uid,
            "bootID": self.facts.host.boot_id, "heartbeatTime": now, "phaseStartTime": now,
            "phase": phase, "booted": booted, "staged": staged,
            "conditions": [{
                "type": "UpdatePrepared", "status": prepared, "reason": reason,
                "message": "", "lastTransitionTime": now, "observedGeneration": object.metadata.generation,
            }],
        }))?;
        let next = Step::Wait(WaitReason::NoBerth, None);
        self.status.write(status, &next, Duration::from_secs(10)).await
    }
}

async fn published(object: &mut watch::Receiver<Seen>) -> Result<BootcNode> {
    let seen = object
        .wait_for(|seen| matches!(seen, Seen::Is(object) if object.spec.image.is_some()))
        .await
        .context("the watch of the BootcNode ended")?
        .clone();
    let Seen::Is(object) = seen else {
        bail!("there is no BootcNode")
    };
    Ok(object.object)
}
