//! Staging on a real host: through the agent, and by the same `bootc switch` by hand, in pairs on one host.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_api::node::{BootcNode, BootcNodeStatus};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ObjectMeta, Patch, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::figure::{Figure, median, round, skip};
use super::fleet::manager;
use super::settings::{Run, setting};
use crate::controlplane::{Bound, ControlPlane, Kubeconfig, Options};
use crate::hosts::HostLog;
use crate::hosts::real::{HostOptions, OsImage, OsImages, OsVersion, RealHost, RealHosts, unavailable};
use crate::process::Process;
use crate::registry::Registry;

pub(super) const BENCHES: [&str; 1] = ["real-staging"];

const NODE: &str = "host1";
const TIMEOUT: Duration = Duration::from_secs(180);
/// Sizes of each image's own layers: four of 5 MB.
const PAYLOAD: [u64; 4] = [5 << 20; 4];

struct Bench<'a> {
    agent: &'a Path,
    plane: ControlPlane,
    identities: [Kubeconfig; 2],
    host: RealHost,
    registry: Registry,
}

/// Measures pairs of stagings; `BERTH_BENCH_PAIRS` sets their number.
pub(super) async fn measure(run: &Run) -> Result<()> {
    let progress = run.progress;
    if let Some(why) = unavailable() {
        skip(BENCHES[0], &why);
        return Ok(());
    }
    progress.say("creating OS images and a real host");
    let pairs = usize::try_from(setting("BERTH_BENCH_PAIRS", 4))?;
    let images = tokio::task::spawn_blocking(move || images(2 * pairs)).await??;
    let bench = Bench::start(&run.agent, &images).await?;
    let (mut through, mut by_hand) = (vec![], vec![]);
    for (number, pair) in images.1.chunks_exact(2).enumerate() {
        let [one, two] = pair else { continue };
        // The order alternates from pair to pair.
        let (ours, theirs) = if number % 2 == 0 { (one, two) } else { (two, one) };
        if number % 2 == 0 {
            through.push(bench.through_the_agent(ours).await?);
            by_hand.push(bench.by_hand(theirs).await?);
        } else {
            by_hand.push(bench.by_hand(theirs).await?);
            through.push(bench.through_the_agent(ours).await?);
        }
        progress.say(&format!(
            "staged through the agent in {:?} s, by hand in {:?} s",
            through.last(),
            by_hand.last()
        ));
    }
    let more: Vec<f64> = through.iter().zip(&by_hand).map(|(a, b)| a - b).collect();
    let figure = Figure::new(BENCHES[0], "s more than by hand", &more).aim(0.2_f64.max(0.02 * median(&by_hand)));
    let figure = figure
        .floor(&by_hand)
        .detail("through the agent, s", json!(round(median(&through))));
    figure
        .detail("megabytes", json!(PAYLOAD.iter().sum::<u64>() / 1_000_000))
        .print();
    Ok(())
}

/// Builds `count` images of equal size but different content. The last value is the image to install the host with.
fn images(count: usize) -> Result<(OsImages, Vec<OsImage>, OsImage)> {
    let images = OsImages::ensure(None)?;
    let first = images.version(&OsVersion::new("1.0.0"))?;
    let mut others = vec![];
    for number in 0..count {
        others.push(images.version(&OsVersion {
            payload: PAYLOAD.into(),
            ..OsVersion::new(&format!("bench-{number}"))
        })?);
    }
    Ok((images, others, first))
}

impl<'a> Bench<'a> {
    async fn start(agent: &'a Path, (images, others, first): &(OsImages, Vec<OsImage>, OsImage)) -> Result<Self> {
        let hosts = RealHosts::new(images.clone(), HostLog::default()).await?;
        let registry = Registry::start(hosts.gateway().into()).await?;
        let address = registry.host();
        let all: Vec<OsImage> = others.iter().chain([first]).cloned().collect();
        tokio::task::spawn_blocking(move || {
            all.iter()
                .try_for_each(|image| image.push(&address, "os", &image.version).map(drop))
        })
        .await??;
        let host = hosts.add(HostOptions::new(NODE, first, &registry.host())).await?;
        host.start().await?;
        let plane = ControlPlane::start(Options::simulated_nodes()).await?;
        plane.install().await?;
        let identities = objects(&plane).await?;
        let this = Self {
            agent,
            plane,
            identities,
            host,
            registry,
        };
        this.publish(None).await?;
        Ok(this)
    }

    fn api(&self) -> Api<BootcNode> {
        Api::all(self.plane.admin_client())
    }

    /// Starts the agent on this computer. The agent can access the same files of the host as in a pod.
    fn agent(&self) -> Result<Process> {
        let [own, kubelet] = &self.identities;
        let mut command = Command::new(self.agent);
        command
            .arg("--node-name")
            .arg(NODE)
            .arg("--bus")
            .arg(self.host.bus_address()?);
        command
            .arg("--kubeconfig")
            .arg(&own.path)
            .arg("--kubelet-kubeconfig")
            .arg(&kubelet.path);
        // The kubelet would create it for the pod's mount.
        std::fs::create_dir_all(self.host.path("/etc/berth")?)?;
        command.arg("--host-root").arg(self.host.path("/")?);
        Process::start("berth-agent", &command, &self.plane.directory().join("agent.log"))
    }

    async fn unstage(&self) -> Result<()> {
        // There may be nothing to undo.
        self.host.output(&["ostree", "admin", "undeploy", "0"]).await.map(drop)
    }

    /// Returns the seconds from the change of the BootcNode until the status reports the image as staged and locked.
    async fn through_the_agent(&self, image: &OsImage) -> Result<f64> {
        let before = self.api().get(NODE).await?.status.and_then(|s| s.heartbeat_time);
        let mut agent = self.agent()?;
        // Each agent starts with a heartbeat: a report of an earlier agent does not count.
        self.until(&mut agent, |phase, s| phase == "Updated" && s.heartbeat_time != before)
            .await?;
        let start = Instant::now();
        self.publish(Some(image)).await?;
        self.until(&mut agent, |phase, s| phase == "Waiting" && staged(s) == image.digest)
            .await?;
        let time = start.elapsed().as_secs_f64();
        // Only the booted image is wanted now, so the agent removes the staged one.
        self.publish(None).await?;
        self.until(&mut agent, |phase, s| phase == "Updated" && staged(s).is_empty())
            .await?;
        agent.stop(Duration::from_secs(5));
        Ok(time)
    }

    async fn by_hand(&self, image: &OsImage) -> Result<f64> {
        let reference = image.reference(&self.registry.host(), "os");
        let start = Instant::now();
        // In a scope of the host, so that bootc runs in the same cgroup as under the agent.
        self.host
            .exec(&["systemd-run", "--scope", "--quiet", "bootc", "switch", &reference])
            .await?;
        let time = start.elapsed().as_secs_f64();
        self.unstage().await?;
        Ok(time)
    }

    /// Publishes an image to the BootcNode; the booted image if `image` is `None`.
    async fn publish(&self, image: Option<&OsImage>) -> Result<()> {
        let (digest, reference) = match image {
            Some(image) => (image.digest.clone(), image.reference(&self.registry.host(), "os")),
            None => {
                let digest = self.host.boot().context("the host is down")?.digest;
                (digest.clone(), format!("{}/os@{digest}", self.registry.host()))
            }
        };
        let image = json!({ "ref": reference, "digest": digest, "indexDigest": digest });
        let patch = Patch::Merge(json!({ "spec": { "image": image, "staging": "Allowed" } }));
        self.api()
            .patch(NODE, &manager("berth-bench"), &patch)
            .await
            .context("cannot publish to the BootcNode")?;
        Ok(())
    }

    async fn until(&self, agent: &mut Process, done: impl Fn(&str, &BootcNodeStatus) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let object = self.api().get(NODE).await?;
            let current = object.metadata.generation;
            let status = object.status.unwrap_or_default();
            let phase = status.phase.map(|p| p.as_str()).unwrap_or_default();
            if status.observed_generation == current && done(phase, &status) {
                return Ok(());
            }
            agent.check()?;
            if start.elapsed() > TIMEOUT {
                bail!("timed out; the agent reports {status:?}; {}", agent.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Digest of the staged image; empty if none is staged.
fn staged(status: &BootcNodeStatus) -> String {
    status
        .staged
        .as_ref()
        .and_then(|s| s.digest.as_ref())
        .map(ToString::to_string)
        .unwrap_or_default()
}

/// Creates the Node and its BootcNode; returns the kubeconfigs of the agent and the kubelet.
async fn objects(plane: &ControlPlane) -> Result<[Kubeconfig; 2]> {
    let nodes: Api<Node> = Api::all(plane.admin_client());
    let metadata = ObjectMeta {
        name: Some(NODE.to_owned()),
        ..ObjectMeta::default()
    };
    let node = nodes
        .create(
            &PostParams::default(),
            &Node {
                metadata,
                ..Node::default()
            },
        )
        .await?;
    let mut object = BootcNode::default();
    object.metadata.name = Some(NODE.to_owned());
    object.spec.pool_name = "workers".to_owned();
    object.spec.node_uid = node.uid().unwrap_or_default();
    Api::all(plane.admin_client())
        .create(&PostParams::default(), &object)
        .await
        .context("cannot create the BootcNode")?;
    let own = plane
        .service_account_kubeconfig("berth-system", "berth-agent", Bound::Node(NODE))
        .await?;
    Ok([own, plane.node_kubeconfig(NODE)?])
}
