//! A whole real cluster: hosts with systemd, ostree, containerd and a kubelet, a real control plane and registry, and the agent
//! from the shipped DaemonSet. Only the controller is a process of the harness.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use berth_api::fleet::BootcFleet;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use super::controllers::{ControllerSettings, Controllers};
use super::shipped::{self, AgentImage};
use super::site::{Published, REPOSITORY, Site, all, is_ready};
use super::workload::Workload;
use crate::controlplane::{ControlPlane, Options};
use crate::hosts::HostLog;
use crate::hosts::real::{GUEST_IMAGE, HostOptions, NodeIdentity, OsImages, OsVersion, RealHost, RealHosts};
use crate::images::ImageSpec;
use crate::process::tail;
use crate::programs;
use crate::registry::{AUTH, Guard, HTPASSWD, Registry};
use crate::tools::{Tool, Tools};

const LAYERS: [u64; 3] = [1 << 20, 1 << 20, 1 << 20];
/// logind setting that lets a scenario delay a shutdown, to act between the reboot request and the end of the boot.
const DELAY: &str = "[Login]\nInhibitDelayMaxSec=90\n";
const PULL_SECRET: &str = "berth-pull";
const AGENT: &str = "berth-agent";
/// Timeout until the whole cluster is ready, without the builds.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A running cluster of real hosts. Dropping it ends everything.
#[derive(Debug)]
pub struct RealCluster {
    /// The hosts, `node1` and so on.
    pub hosts: Vec<RealHost>,
    site: Site,
    images: OsImages,
    /// The registry in the references of OS images, which the controller queries. It needs a password and is unreachable for the
    /// hosts.
    pub origin: Box<Registry>,
    /// The only registry that hosts get OS images from. It needs a password.
    pub mirror: Box<Registry>,
    _network: RealHosts,
}

impl Deref for RealCluster {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

#[derive(Debug)]
struct Built {
    controller: PathBuf,
    agent: PathBuf,
    images: OsImages,
}

fn build() -> Result<Built> {
    let mut clock = Clock::start();
    let controller = programs::programs()?.controller;
    let agent = programs::static_agent()?;
    clock.says("programs");
    let tools = Tools::ensure(&[Tool::Kubelet, Tool::KubeApiserver, Tool::KubeScheduler, Tool::Registry])?;
    clock.says("tools");
    let images = OsImages::ensure(Some(tools.path(Tool::Kubelet)?))?;
    clock.says("OS images");
    Ok(Built {
        controller,
        agent,
        images,
    })
}

struct Clock(Instant);

impl Clock {
    fn start() -> Self {
        Self(Instant::now())
    }

    fn says(&mut self, what: &str) {
        eprintln!("berth-tests: {what}: {:.1} s", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}

impl RealCluster {
    /// Builds the programs and images and starts everything except a pool, by the overlay `kubeadm`. The hosts run version
    /// `1.0.0`; one controller runs.
    pub async fn start(hosts: usize) -> Result<Self> {
        let Built {
            controller,
            agent,
            images,
        } = tokio::task::spawn_blocking(build)
            .await
            .context("the build panicked")??;
        let mut clock = Clock::start();
        let Servers {
            log,
            network,
            control_plane,
            registry,
        } = Servers::start(&images).await?;
        shipped::prepare(&control_plane).await?;
        let guard = Guard {
            htpasswd: Some(HTPASSWD),
            ..Guard::default()
        };
        let (origin, mirror) = tokio::try_join!(registry.door(&guard), registry.door(&guard))?;
        // Created before the pods, which would see a later change only after minutes.
        tokio::try_join!(
            give_credentials(&control_plane, "berth-host-pull", &mirror),
            give_credentials(&control_plane, PULL_SECRET, &origin),
            ask_with_credentials(&control_plane),
        )?;
        let image = push_agent(&registry, &agent).await?;
        shipped::deploy(&control_plane, &image).await?;
        clock.says("control plane");
        let controllers = Controllers::new(controller, ControllerSettings::default(), &control_plane, &origin).await?;
        controllers.start(0)?;
        let mut site = Site::new(controllers, registry, control_plane, log);
        // With one pod on each node at any time, every drain has a pod to evict.
        site.workload = Workload {
            image: GUEST_IMAGE.to_owned(),
            uneven: "DoNotSchedule".to_owned(),
        };
        let names = host_names(hosts);
        let hosts = add_hosts(&network, &images, &site, (&origin, &mirror), &names).await?;
        clock.says("installation");
        let cluster = Self {
            hosts,
            site,
            images,
            origin: Box::new(origin),
            mirror: Box::new(mirror),
            _network: network,
        };
        try_join_all(cluster.hosts.iter().map(RealHost::start)).await?;
        clock.says("boot");
        cluster.until_ready().await?;
        clock.says("nodes and agents");
        Ok(cluster)
    }

    /// Waits until every Node is Ready, with the host's current boot ID, and every agent of the DaemonSet.
    async fn until_ready(&self) -> Result<()> {
        let sets: Api<DaemonSet> = Api::namespaced(self.client(), "berth-system");
        self.until("nodes and agents are ready", READY_TIMEOUT, || async {
            if !are_up(self, &self.hosts).await? {
                return Ok(false);
            }
            let ready = sets.get(AGENT).await?.status.map_or(0, |s| s.number_ready);
            Ok(usize::try_from(ready)? == self.hosts.len())
        })
        .await
    }

    /// True if the Node of a host is Ready with the current boot ID.
    pub async fn is_ready(&self, host: &RealHost) -> Result<bool> {
        is_up(self, host).await
    }

    /// Returns the host with this number, from 1.
    pub fn host(&self, n: usize) -> &RealHost {
        &self.hosts[n - 1]
    }

    /// Returns the host of this name.
    pub fn named(&self, name: &str) -> Result<&RealHost> {
        self.hosts
            .iter()
            .find(|h| h.name() == name)
            .with_context(|| format!("there is no host {name}"))
    }

    /// Number of hosts that run this image now.
    pub fn running(&self, image: &Published) -> usize {
        self.hosts.iter().filter(|h| runs(h, image)).count()
    }

    /// Builds and pushes an OS image of this version.
    pub async fn publish(&self, version: &str) -> Result<Published> {
        self.push(version, os_version(version)).await
    }

    /// Builds and pushes an OS image with another image bound to it.
    pub async fn publish_bound(&self, version: &str, bound: &str) -> Result<Published> {
        let spec = os_version(version).bound_to(bound);
        self.push(version, spec).await
    }

    /// Builds and pushes an OS image with a required health check: a script that runs these lines.
    pub async fn publish_checked(&self, version: &str, script: &str) -> Result<Published> {
        let path = "usr/lib/berth/health.d/required.d/10-storage";
        self.publish_with(version, (path, 0o755, &format!("#!/bin/sh\n{script}\n")))
            .await
    }

    /// Builds and pushes an OS image whose kubelet never starts.
    pub async fn publish_without_kubelet(&self, version: &str) -> Result<Published> {
        let path = "usr/lib/systemd/system/kubelet.service.d/broken.conf";
        self.publish_with(
            version,
            (path, 0o644, "[Service]\nExecStart=\nExecStart=/usr/bin/false\n"),
        )
        .await
    }

    async fn publish_with(&self, version: &str, (path, mode, text): (&str, u32, &str)) -> Result<Published> {
        let spec = OsVersion {
            files: vec![(path.to_owned(), mode, text.as_bytes().to_vec())],
            ..os_version(version)
        };
        self.push(version, spec).await
    }

    /// Builds and pushes an OS image with these labels.
    pub async fn publish_labelled(&self, version: &str, labels: &[(&str, &str)]) -> Result<Published> {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let spec = OsVersion {
            labels: labels.collect(),
            ..os_version(version)
        };
        self.push(version, spec).await
    }

    async fn push(&self, tag: &str, spec: OsVersion) -> Result<Published> {
        publish(&self.images, (&self.registry, &self.origin), tag, spec).await
    }

    /// Points a tag to the OS image of this version.
    pub async fn move_tag(&self, tag: &str, version: &str) -> Result<Published> {
        self.push(tag, os_version(version)).await
    }

    /// Waits until every host runs this image, all BootcNodes report it, and no berth is held.
    pub async fn until_all_run(&self, image: &Published, limit: Duration) -> Result<()> {
        self.until(&format!("all run {}", image.reference), limit, || async {
            if self.running(image) < self.hosts.len() {
                return Ok(false);
            }
            for host in &self.hosts {
                if self.phase(host.name()).await? != "Updated" {
                    return Ok(false);
                }
            }
            Ok(self.held().await?.is_empty())
        })
        .await
    }

    /// Like [`Site::until`]; the error also has the state of the hosts.
    pub async fn until<F: Future<Output = Result<bool>>>(
        &self,
        what: &str,
        limit: Duration,
        ask: impl FnMut() -> F,
    ) -> Result<()> {
        match self.site.until(what, limit, ask).await {
            Ok(()) => Ok(()),
            Err(error) => bail!("{error:#}\n{}", self.describe_hosts().await),
        }
    }

    /// Reboots a host without asking Berth, and waits until its Node and agent are back.
    pub async fn unrelated_reboot(&self, host: &RealHost) -> Result<()> {
        let before = host.boot().context("the host is down")?.boot_id;
        self.excuse(host.name());
        host.reboot_now().await?;
        host.wait_boot(Some(&before), READY_TIMEOUT).await?;
        self.until_ready().await
    }

    /// Kills the agent on a host (SIGKILL) and deletes its pod: the DaemonSet re-creates a pod at once, but the kubelet waits
    /// longer before each restart.
    pub async fn kill_agent(&self, host: &RealHost) -> Result<()> {
        host.exec(&["pkill", "--signal", "KILL", "--exact", AGENT]).await?;
        let pods: Api<Pod> = Api::namespaced(self.client(), "berth-system");
        let params = ListParams::default()
            .labels(&format!("app.kubernetes.io/name={AGENT}"))
            .fields(&format!("spec.nodeName={}", host.name()));
        for pod in pods.list(&params).await?.items {
            pods.delete(
                pod.metadata.name.as_deref().unwrap_or_default(),
                &DeleteParams::default(),
            )
            .await?;
        }
        Ok(())
    }

    /// PID of the agent on a host, in the host's PID namespace; empty if none runs.
    pub async fn agent_process(&self, host: &RealHost) -> Result<String> {
        let out = host.output(&["pidof", AGENT]).await?;
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }

    async fn describe_hosts(&self) -> String {
        let mut text = String::new();
        for host in &self.hosts {
            let log = agent_log(host).unwrap_or_else(|e| e.to_string());
            text += &format!("host {}: {:?}\n{log}\n", host.name(), host.boot());
        }
        let pods: Api<Pod> = Api::all(self.client());
        for pod in all(&pods).await {
            let (status, node) = (pod.status.unwrap_or_default(), pod.spec.and_then(|s| s.node_name));
            let name = pod.metadata.name.unwrap_or_default();
            text += &format!(
                "pod {name} on {node:?}: {:?} {}\n",
                status.phase,
                json!(status.container_statuses)
            );
        }
        let events: Api<Event> = Api::all(self.client());
        for event in all(&events).await {
            if event.type_.as_deref() == Some("Warning") {
                let about = event.involved_object.name.unwrap_or_default();
                text += &format!("event {about}: {}\n", event.message.unwrap_or_default());
            }
        }
        text
    }

    /// The state of everything, for a failing test's output.
    pub async fn describe(&self) -> String {
        self.describe_hosts().await + &self.site.describe().await
    }
}

/// Servers of a cluster of real hosts, with its network.
pub(super) struct Servers {
    pub(super) log: HostLog,
    pub(super) network: RealHosts,
    pub(super) control_plane: ControlPlane,
    pub(super) registry: Registry,
}

impl Servers {
    pub(super) async fn start(images: &OsImages) -> Result<Self> {
        let log = HostLog::default();
        let network = RealHosts::new(images.clone(), log.clone()).await?;
        let gateway = network.gateway().into();
        let (control_plane, registry) = tokio::try_join!(
            ControlPlane::start(Options::real_hosts(gateway)),
            Registry::start(gateway)
        )?;
        Ok(Self {
            log,
            network,
            control_plane,
            registry,
        })
    }
}

/// True if the Nodes of all these hosts are Ready with the current boot IDs.
pub(super) async fn are_up(site: &Site, hosts: &[RealHost]) -> Result<bool> {
    for host in hosts {
        if !is_up(site, host).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True if the Node of a host is Ready with the current boot ID.
async fn is_up(site: &Site, host: &RealHost) -> Result<bool> {
    let Some(boot) = host.boot() else { return Ok(false) };
    let node = site.nodes().get_opt(host.name()).await?;
    Ok(node.is_some_and(|node| is_ready(node, &boot.boot_id)))
}

fn runs(host: &RealHost, image: &Published) -> bool {
    host.boot().is_some_and(|b| b.digest == image.digest.to_string())
}

/// Last lines of the logs of all agents that ran on this host, from the kubelet's files.
fn agent_log(host: &RealHost) -> Result<String> {
    let mut files = vec![];
    for pod in fs::read_dir(host.path("/var/log/pods")?)?.flatten() {
        if pod
            .file_name()
            .to_string_lossy()
            .starts_with("berth-system_berth-agent")
        {
            files.extend(fs::read_dir(pod.path().join("agent"))?.flatten().map(|f| f.path()));
        }
    }
    files.sort_by_key(|f| fs::metadata(f).and_then(|m| m.modified()).ok());
    let text: String = files.iter().map(|f| format!("{}\n", tail(f, 40))).collect();
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(60)..].join("\n"))
}

/// The OS of this version.
pub(super) fn os_version(version: &str) -> OsVersion {
    let delay = (
        "usr/lib/systemd/logind.conf.d/delay.conf".to_owned(),
        0o644,
        DELAY.as_bytes().to_vec(),
    );
    OsVersion {
        payload: LAYERS.to_vec(),
        files: vec![delay],
        ..OsVersion::new(version)
    }
}

/// Pushes to `open`, which needs neither password nor TLS; returns references to `origin`.
pub(super) async fn publish(
    images: &OsImages,
    (open, origin): (&Registry, &Registry),
    tag: &str,
    spec: OsVersion,
) -> Result<Published> {
    let (images, open, host, tag) = (images.clone(), open.host(), origin.host(), tag.to_owned());
    let blocking = tokio::task::spawn_blocking(move || {
        let image = images.version(&spec)?;
        image.push(&open, REPOSITORY, &tag)?;
        let pinned = image.reference(&host, REPOSITORY);
        let digest = image
            .digest
            .parse()
            .map_err(|e| anyhow::anyhow!("{}: {e}", image.digest))?;
        Ok(Published {
            reference: format!("{host}/{REPOSITORY}:{tag}"),
            pinned,
            digest,
        })
    });
    blocking.await.context("the push panicked")?
}

/// Creates a Secret with the name and password for a registry: for the agents, which copy it to their hosts, or for the
/// controller.
async fn give_credentials(control_plane: &ControlPlane, name: &str, registry: &Registry) -> Result<()> {
    let auths = json!({ "auths": { registry.host(): { "auth": AUTH } } }).to_string();
    let secret: Secret = serde_json::from_value(json!({
        "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": auths },
    }))?;
    let secrets: Api<Secret> = Api::namespaced(control_plane.admin_client(), "berth-system");
    secrets.create(&Default::default(), &secret).await?;
    Ok(())
}

/// Makes the controller use its Secret for the images of all pools.
async fn ask_with_credentials(control_plane: &ControlPlane) -> Result<()> {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": "cluster" },
        "spec": { "image": { "pullSecret": PULL_SECRET } },
    });
    let fleets: Api<BootcFleet> = Api::all(control_plane.admin_client());
    let params = PatchParams::apply("admin").force();
    fleets
        .patch("cluster", &params, &Patch::Apply(&object))
        .await
        .context("cannot apply the BootcFleet")?;
    Ok(())
}

async fn add_hosts(
    network: &RealHosts,
    images: &OsImages,
    site: &Site,
    (origin, mirror): (&Registry, &Registry),
    names: &[String],
) -> Result<Vec<RealHost>> {
    // For the hosts the origin of OS images is always unreachable.
    let mirrors = format!(
        "[[registry]]\nprefix = \"{0}/{REPOSITORY}\"\nlocation = \"origin.invalid/{REPOSITORY}\"\n\
         [[registry.mirror]]\nlocation = \"{1}/{REPOSITORY}\"\ninsecure = true\n",
        origin.host(),
        mirror.host()
    );
    let path = "etc/containers/registries.conf.d/with-mirror.conf";
    publish(images, (&site.registry, origin), "1.0.0", os_version("1.0.0")).await?;
    let first = images.version(&os_version("1.0.0"))?;
    let mut hosts = vec![];
    for name in names {
        let mut options = HostOptions::new(name, &first, &site.registry.host());
        let identity = NodeIdentity {
            kubeconfig: site.control_plane.node_kubeconfig(name)?.text,
            ca: site.control_plane.ca_certificate(),
        };
        options
            .files
            .push((path.to_owned(), 0o644, mirrors.clone().into_bytes()));
        options.node = Some(identity);
        hosts.push(network.add(options).await?);
    }
    Ok(hosts)
}

fn host_names(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("node{n}")).collect()
}

/// Pushes the image of the agent that was just built.
async fn push_agent(registry: &Registry, agent: &Path) -> Result<AgentImage> {
    let stripped = tempfile::tempdir()?;
    let program = stripped.path().join(AGENT);
    let status = std::process::Command::new("strip")
        .arg("-o")
        .arg(&program)
        .arg(agent)
        .status();
    if !status.context("cannot run strip")?.success() {
        bail!("strip failed on {}", agent.display());
    }
    let image = ImageSpec::program(&program, &[])?.build()?;
    let digest = registry.client().push_image(AGENT, None, &image).await?;
    Ok(AgentImage {
        registry: registry.host(),
        digest: digest.to_string(),
    })
}
