//! A whole simulated cluster: a real control plane, a real registry, the real controller and agents, and hosts that need no root.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};

use super::controllers::{ControllerSettings, Controllers};
use super::limits::LONG;
use super::site::{Published, REPOSITORY, Site};
use super::ways::Ways;
use crate::controlplane::{Bound, ControlPlane, NodeTokens, Options};
use crate::hosts::HostLog;
use crate::hosts::sim::{
    AgentConfig, Catalog, CatalogImage, KubeletConfig, Settings, SimFleet, SimHost, SimHostConfig, Updaters,
};
use crate::images::{Image, Index};
use crate::process::tail;
use crate::programs::{self, Programs};
use crate::registry::Registry;

/// Options of a cluster.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Number of hosts.
    pub hosts: usize,
    /// Names of the first hosts; the others are `node` and a number.
    pub names: Vec<String>,
    /// Settings of the hosts.
    pub settings: Settings,
    /// Updaters of the hosts, in order. The list repeats if there are more hosts. If empty, all hosts have the updaters
    /// that `BERTH_TEST_BACKEND` names, or bootc.
    pub updaters: Vec<Updaters>,
    /// Additional environment of the agents, such as the name of a seeded bug.
    pub agent_env: Vec<(String, String)>,
    /// Additional arguments of the agents.
    pub agent_args: Vec<String>,
    /// Additional arguments of single agents, by host name.
    pub agent_args_of: Vec<(String, Vec<String>)>,
    /// Agent program to run instead of the default one.
    pub agent: Option<PathBuf>,
    /// Agent programs of single hosts, by host name.
    pub agent_of: Vec<(String, PathBuf)>,
    /// If true, runs a scheduler, for scenarios with pods.
    pub scheduler: bool,
    /// Other options of the control plane.
    pub control_plane: Options,
    /// If true, the agents' tokens are in files that their kubeconfigs name, as for services of the host.
    pub token_files: bool,
    /// If true, the agents impersonate their nodes and have no kubeconfig of a kubelet.
    pub impersonation: bool,
    /// Directory to install from in place of this checkout's `manifests/`.
    pub base: Option<PathBuf>,
    /// Files of `manifests/` to apply in addition to the base.
    pub manifests: Vec<&'static str>,
    /// If set, kubelets' kubeconfigs name a program that issues tokens, which this webhook checks.
    pub node_tokens: Option<Arc<NodeTokens>>,
    /// Controller program to run instead of the default one.
    pub controller: Option<PathBuf>,
    /// Additional environment of the controllers.
    pub controller_env: Vec<(String, String)>,
    /// Additional arguments of the controllers.
    pub controller_args: Vec<String>,
    /// Number of controllers that connect to the API server through proxies. If not 0, the agents also use proxies. See
    /// [`Cluster::ways`].
    pub proxied_controllers: usize,
}

impl ClusterOptions {
    /// Options of a cluster with this many hosts.
    pub fn of(hosts: usize) -> Self {
        Self {
            hosts,
            ..Self::default()
        }
    }

    /// Options of a cluster whose Nodes have no hosts.
    pub fn without_hosts() -> Self {
        Self {
            hosts: 0,
            scheduler: false,
            ..Self::default()
        }
    }
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            hosts: 3,
            names: vec![],
            settings: Settings::default(),
            updaters: vec![],
            agent_env: vec![],
            agent_args: vec![],
            agent_args_of: vec![],
            agent: None,
            agent_of: vec![],
            scheduler: true,
            control_plane: Options::simulated_nodes(),
            token_files: false,
            impersonation: false,
            base: None,
            manifests: vec![],
            node_tokens: None,
            controller: None,
            controller_env: vec![],
            controller_args: vec![],
            proxied_controllers: 0,
        }
    }
}

/// A running simulated cluster. Dropping it ends everything.
#[derive(Debug)]
pub struct Cluster {
    /// The hosts.
    pub fleet: SimFleet,
    /// Proxies to the API server, if there are any.
    pub ways: Ways,
    site: Site,
    catalog: Catalog,
}

impl Deref for Cluster {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Cluster {
    /// Starts everything except a pool. The hosts run version `1.0.0`; one controller runs.
    pub async fn start(options: ClusterOptions) -> Result<Self> {
        let Programs { agent, controller } = programs::programs()?;
        let agent = options.agent.clone().unwrap_or(agent);
        let controller = options.controller.clone().unwrap_or(controller);
        let mut plane = options.control_plane.clone();
        plane.scheduler = options.scheduler;
        if let Some(tokens) = &options.node_tokens {
            plane.apiserver_arguments.extend(tokens.apiserver_arguments());
        }
        let (control_plane, registry) =
            tokio::try_join!(ControlPlane::start(plane), Registry::start(Ipv4Addr::LOCALHOST.into()))?;
        match &options.base {
            Some(directory) => control_plane.install_from(directory).await?,
            None => control_plane.install().await?,
        }
        control_plane.apply_files(&options.manifests).await?;
        let log = HostLog::default();
        let catalog = Catalog::default();
        let first = publish(&registry, &catalog, "1.0.0", "1.0.0", &[]).await?;
        let mut configs = vec![];
        let names: Vec<_> = (1..=options.hosts)
            .map(|n| options.names.get(n - 1).cloned().unwrap_or_else(|| format!("node{n}")))
            .collect();
        let ways = match options.proxied_controllers {
            0 => Ways::default(),
            controllers => Ways::start(&control_plane, &names, controllers).await?,
        };
        let asked_for = [Updaters::asked_for()?];
        let updaters = if options.updaters.is_empty() {
            &asked_for
        } else {
            options.updaters.as_slice()
        };
        for (name, updaters) in names.iter().zip(updaters.iter().cycle()) {
            let mut config = host(&control_plane, name, &first, &catalog, &log, &options, &agent).await?;
            if let Some(agent) = &mut config.agent {
                agent.kubeconfig = ways.of_node(name, &agent.kubeconfig)?;
                if !options.impersonation {
                    agent.kubelet_kubeconfig = ways.of_node(name, &agent.kubelet_kubeconfig)?;
                }
            }
            config.packages = updaters.packages();
            updaters.install(&mut config.settings);
            configs.push(config);
        }
        let fleet = SimFleet::start(configs.len(), |i| configs[i].clone()).await?;
        let kubeconfigs = ways.of_controllers(&control_plane).await?;
        let settings = ControllerSettings {
            kubeconfigs,
            env: options.controller_env.clone(),
            args: options.controller_args.clone(),
        };
        let controllers = Controllers::new(controller, settings, &control_plane, &registry).await?;
        controllers.start(0)?;
        Ok(Self {
            fleet,
            ways,
            site: Site::new(controllers, registry, control_plane, log),
            catalog,
        })
    }

    /// Returns the host with this number, from 1.
    pub fn host(&self, n: usize) -> &SimHost {
        &self.fleet.hosts[n - 1]
    }

    /// Pushes an OS image for amd64 with this version.
    pub async fn publish(&self, version: &str) -> Result<Published> {
        publish(&self.registry, &self.catalog, version, version, &[]).await
    }

    /// Pushes an OS image for amd64 and points a tag to it.
    pub async fn move_tag(&self, tag: &str, version: &str) -> Result<Published> {
        publish(&self.registry, &self.catalog, tag, version, &[]).await
    }

    /// Pushes an OS image for amd64 with these labels and points a tag to it.
    pub async fn move_tag_to_labelled(&self, tag: &str, version: &str, labels: &[(&str, &str)]) -> Result<Published> {
        publish(&self.registry, &self.catalog, tag, version, labels).await
    }

    /// Pushes an index of an amd64 and an arm64 image with this version.
    pub async fn publish_index(&self, version: &str) -> Result<Published> {
        let index = Index::tiny_os(version, version.as_bytes())?;
        let image = index
            .image("amd64")
            .context("the index has no amd64 image")?
            .digest
            .clone();
        let digest = self
            .registry
            .client()
            .push_index(REPOSITORY, Some(version), &index)
            .await?;
        self.catalog.insert(&image.to_string(), CatalogImage::new(version));
        Ok(Published::new(&self.registry, version, &digest, image))
    }

    /// Pushes an index with one image for each of these architectures and variants; returns the images in the same order.
    pub async fn publish_platforms(&self, version: &str, of: &[(&str, Option<&str>)]) -> Result<Vec<Published>> {
        let mut images = vec![];
        for (architecture, variant) in of {
            let content = format!("{version} {architecture} {variant:?}");
            let image = Image::tiny_os_for(version, content.as_bytes(), architecture)?;
            images.push(image.spec.for_platform(architecture, *variant).build()?);
        }
        let index = Index::new(images)?;
        let digest = self
            .registry
            .client()
            .push_index(REPOSITORY, Some(version), &index)
            .await?;
        let mut published = vec![];
        for image in index.images {
            self.catalog
                .insert(&image.digest.to_string(), CatalogImage::new(version));
            published.push(Published::new(&self.registry, version, &digest, image.digest));
        }
        Ok(published)
    }

    /// Removes an image from the hosts' catalog: pulls fail as if the registry had lost the image. The real registry
    /// keeps it.
    pub fn forget(&self, image: &Published) {
        self.catalog.remove(&image.digest.to_string());
    }

    /// Signs an image, so that hosts whose policy requires a signature accept it.
    pub fn sign(&self, image: &Published) {
        let digest = image.digest.to_string();
        if let Some(found) = self.catalog.get(&digest) {
            self.catalog.insert(&digest, CatalogImage { signed: true, ..found });
        }
    }

    /// Gives the agent of a re-created Node a new token. The old token became invalid with the old Node.
    pub async fn renew_agent_token(&self, host: &SimHost) -> Result<()> {
        let bound = Bound::Node(host.name());
        let config = self
            .control_plane
            .service_account_kubeconfig("berth-system", "berth-agent", bound)
            .await?;
        self.ways.of_node(host.name(), &config.path)?;
        Ok(())
    }

    /// Waits until every host runs an image, all BootcNodes report it, and no berth is held.
    pub async fn until_all_run(&self, image: &Published, limit: Duration) -> Result<()> {
        self.until_run(image, &self.fleet.hosts.iter().collect::<Vec<_>>(), limit)
            .await
    }

    /// Like [`Self::until_all_run`], for some hosts.
    pub async fn until_run(&self, image: &Published, hosts: &[&SimHost], limit: Duration) -> Result<()> {
        let digest = image.digest.to_string();
        self.until(&format!("all run {}", image.reference), limit, || async {
            for host in hosts {
                let facts = host.facts();
                let is_up = facts.boot_id.is_some() && facts.booted == digest;
                if !is_up || self.phase(host.name()).await? != "Updated" {
                    return Ok(false);
                }
            }
            Ok(self.held().await?.is_empty())
        })
        .await
    }

    /// Changes the settings of all hosts.
    pub fn settings(&self, change: impl Fn(&mut Settings)) {
        for host in &self.fleet.hosts {
            host.settings(&change);
        }
    }

    /// Kills all agents. They restart and read their hosts at once.
    pub fn kill_agents(&self) {
        for host in &self.fleet.hosts {
            host.kill_agent();
        }
    }

    /// Number of hosts that run an image.
    pub fn running(&self, image: &Published) -> usize {
        self.fleet.running(&image.digest.to_string())
    }

    /// Waits until these hosts, numbered from 1, have booted an image.
    pub async fn until_booted(&self, image: &Published, hosts: &[usize]) -> Result<()> {
        let digest = image.digest.to_string();
        self.until(&format!("{hosts:?} boot {}", image.reference), LONG, || async {
            Ok(hosts.iter().all(|n| self.host(*n).facts().booted == digest))
        })
        .await
    }

    /// Reboots a host with an orderly shutdown that Berth did not ask for.
    pub async fn unrelated_reboot(&self, host: &SimHost) -> Result<()> {
        self.excuse(host.name());
        host.reboot_now().await
    }

    /// Ends a scenario with its result. After a failure, prints the violations and the state of everything. Otherwise,
    /// fails if the judge finds a violation.
    pub async fn judged(&self, result: Result<()>) -> Result<()> {
        if let Err(error) = result {
            let violations = self.violations()?;
            eprintln!("violations: {violations:#?}\n{}", self.describe().await);
            return Err(error);
        }
        self.judge()
    }

    /// Number of boots of a host so far.
    pub fn boots_of(&self, host: &SimHost) -> usize {
        self.boots().get(host.name()).copied().unwrap_or_default()
    }

    /// The state of everything, for a failing test's output.
    pub async fn describe(&self) -> String {
        let hosts = self.fleet.hosts.iter().map(|host| {
            format!(
                "host {}: {:?}\n{}\n",
                host.name(),
                host.facts(),
                tail(&host.agent_log(), 20)
            )
        });
        hosts.collect::<String>() + &self.site.describe().await
    }
}

async fn publish(
    registry: &Registry,
    catalog: &Catalog,
    tag: &str,
    version: &str,
    labels: &[(&str, &str)],
) -> Result<Published> {
    let mut spec = Image::tiny_os(version, version.as_bytes())?.spec;
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    spec.labels.extend(labels);
    let image = spec.build()?;
    let digest = registry.client().push_image(REPOSITORY, Some(tag), &image).await?;
    catalog.insert(&digest.to_string(), CatalogImage::new(version));
    Ok(Published::new(registry, tag, &digest, digest.clone()))
}

/// Returns the configuration of a host, with an agent token that is bound to the host's Node. Creates the Node first,
/// because a token can be bound only to an existing object.
async fn host(
    control_plane: &ControlPlane,
    name: &str,
    image: &Published,
    catalog: &Catalog,
    log: &HostLog,
    options: &ClusterOptions,
    agent: &std::path::Path,
) -> Result<SimHostConfig> {
    let nodes: Api<Node> = Api::all(control_plane.admin_client());
    let node = Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        ..Node::default()
    };
    nodes
        .create(&PostParams::default(), &node)
        .await
        .context("cannot create a Node")?;
    let token = if options.token_files {
        control_plane.agent_service_kubeconfig(name).await?
    } else {
        control_plane
            .service_account_kubeconfig("berth-system", "berth-agent", Bound::Node(name))
            .await?
    };
    let kubelet = control_plane.node_kubeconfig(name)?;
    let borrowed = match options.node_tokens {
        _ if options.impersonation => PathBuf::from("/nonexistent/kubelet.conf"),
        Some(_) => control_plane.node_kubeconfig_with_program(name)?.path,
        None => kubelet.path.clone(),
    };
    let identity = if options.impersonation {
        vec!["--node-identity=impersonate".to_owned()]
    } else {
        vec![]
    };
    let digest = image.digest.to_string();
    let repository = image
        .reference
        .rsplit_once(':')
        .map_or(image.reference.as_str(), |(r, _)| r);
    let own_args = options.agent_args_of.iter().filter(|(of, _)| of == name);
    let own_args = own_args.flat_map(|(_, args)| args);
    let own_agent = options.agent_of.iter().find(|(of, _)| of == name);
    let mut config = SimHostConfig::new(name, repository, &digest, catalog, log);
    config.settings = options.settings.clone();
    config.kubelet = Some(KubeletConfig {
        kubeconfig: kubelet.path.clone(),
        labels: BTreeMap::new(),
    });
    config.agent = Some(AgentConfig {
        binary: own_agent.map_or_else(|| agent.to_owned(), |(_, path)| path.clone()),
        kubeconfig: token.path,
        kubelet_kubeconfig: borrowed,
        args: [
            vec!["--log-level=info,berth_agent=debug,kube_client=off".to_owned()],
            identity,
            options.agent_args.clone(),
            own_args.cloned().collect(),
        ]
        .concat(),
        env: options.agent_env.clone(),
    });
    Ok(config)
}
