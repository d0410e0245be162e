//! Upgrades of Berth in the middle of a rollout, from the last release, in both orders.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use berth_api::node::timeline::TurnOutcome;
use berth_tests::last_release::{Release, last_release};
use berth_tests::programs::Programs;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, ResourceExt, discovery};
use tempfile::TempDir;

use super::*;

mod additive;

const HOSTS: usize = 4;

/// Says why a test does not run.
fn no_history() {
    println!(
        "UNREACHABLE: this checkout lacks the commit of tests/last-release.txt; run: git fetch --unshallow, or clone"
    );
}

/// Programs of a cluster, as links: first to the last release's, later to this checkout's.
struct Links {
    directory: TempDir,
    last: Release,
    new: Programs,
}

impl Links {
    /// Links all programs to the last release. `None` if the checkout lacks its commit.
    fn new() -> Result<Option<Self>> {
        let Some(last) = last_release()? else { return Ok(None) };
        let links = Self {
            directory: tempfile::tempdir()?,
            last,
            new: programs::programs()?,
        };
        links.point("controller", &links.last.programs.controller)?;
        for n in 1..=HOSTS {
            links.point(&format!("node{n}"), &links.last.programs.agent)?;
        }
        Ok(Some(links))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn point(&self, name: &str, program: &Path) -> Result<()> {
        let new = self.path("new");
        symlink(program, &new)?;
        std::fs::rename(&new, self.path(name)).with_context(|| format!("linking {name}"))
    }

    fn options(&self) -> ClusterOptions {
        let mut options = hosts_with(HOSTS, |s| s.pull_time = Duration::from_secs(3));
        options.controller = Some(self.path("controller"));
        for n in 1..=HOSTS {
            let name = format!("node{n}");
            let program = self.path(&name);
            options.agent_of.push((name, program));
        }
        options.base = Some(self.last.manifests.clone());
        options
    }

    /// Replaces the agents one after the other, as the DaemonSet does.
    async fn upgrade_agents(&self, cluster: &Cluster) -> Result<()> {
        let new = std::fs::canonicalize(&self.new.agent)?;
        for host in &cluster.fleet.hosts {
            self.point(host.name(), &self.new.agent)?;
            host.stop_agent().await;
            host.start_agent();
            let what = format!("{} runs the new agent", host.name());
            until_so(cluster, &what, || {
                let pids = host.agent_pids();
                pids.iter().any(|pid| program_of(*pid).is_some_and(|path| path == new))
            })
            .await?;
        }
        Ok(())
    }

    /// Replaces the controllers one after the other, as the Deployment does.
    fn upgrade_controllers(&self, cluster: &Cluster) -> Result<()> {
        self.point("controller", &self.new.controller)?;
        for number in [0, 1] {
            cluster.controllers.stop(number);
            cluster.controllers.start(number)?;
        }
        Ok(())
    }
}

fn program_of(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Waits until at least this many hosts run the image.
async fn until_running(cluster: &Cluster, image: &Published, count: usize) -> Result<()> {
    let what = format!("{count} hosts run {}", image.reference);
    cluster
        .until(&what, LONG, async || Ok(cluster.running(image) >= count))
        .await
}

/// All objects of Berth's kinds, as the last release wrote them.
async fn objects(cluster: &Cluster) -> Result<Vec<(Api<DynamicObject>, DynamicObject)>> {
    let mut found = vec![];
    for kind in ["BootcNodePool", "BootcNode", "BootcFleet"] {
        let kind = GroupVersionKind::gvk("berth.dev", "v1alpha1", kind);
        let (resource, _) = discovery::pinned_kind(&cluster.client(), &kind).await?;
        let api: Api<DynamicObject> = Api::all_with(cluster.client(), &resource);
        let list = api.list(&ListParams::default()).await?;
        found.extend(list.items.into_iter().map(|object| (api.clone(), object)));
    }
    Ok(found)
}

/// Writes each object again, without effect: the new schemas must accept every field.
async fn are_accepted(objects: &[(Api<DynamicObject>, DynamicObject)]) -> Result<()> {
    let dry = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    for (api, object) in objects {
        let name = object.name_any();
        let spec = json!({ "spec": object.data["spec"], "metadata": { "labels": { "berth.dev/test": "again" } } });
        let written = api.patch(&name, &dry, &Patch::Merge(&spec)).await;
        written.with_context(|| format!("the spec of {name}"))?;
        // The label makes each write a change. A status without a change is not validated.
        let mut status = object.data["status"].clone();
        if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
            conditions.retain(|condition| condition["type"] != "Paused");
        }
        let written = api
            .patch_status(&name, &dry, &Patch::Merge(&json!({ "status": status })))
            .await;
        written.with_context(|| format!("the status of {name}"))?;
    }
    Ok(())
}

/// Upgrades Berth while one node is away and others pull or wait.
async fn in_mid_rollout(upgrade: impl AsyncFn(&Links, &Cluster, &Published) -> Result<()>) -> Result<()> {
    let Some(links) = Links::new()? else {
        no_history();
        return Ok(());
    };
    scenario(links.options(), async |cluster| {
        cluster.controllers.start(1)?;
        cluster.deploy("web", HOSTS).await?;
        let rollout = json!({ "maxUnavailable": 1, "maxStaging": 2 });
        let v2 = roll_with(cluster, "2.0.0", rollout).await?;
        some_in(cluster, "Rebooting").await?;
        let written = objects(cluster).await?;
        ensure!(written.len() == HOSTS + 2, "{} objects", written.len());
        cluster.control_plane.install().await?;
        are_accepted(&written).await?;
        upgrade(&links, cluster, &v2).await?;
        cluster.until_all_run(&v2, LONG).await?;
        for host in &cluster.fleet.hosts {
            let name = host.name();
            ensure!(pulls(cluster, name) == 1, "{name} pulled more than once");
            soon(cluster, &format!("{name} has a record of its turn"), async || {
                let status = cluster.node_status(name).await?;
                let mut turns = status.turns.iter();
                Ok(turns.any(|turn| turn.to == v2.digest && turn.outcome == Some(TurnOutcome::Proven)))
            })
            .await?;
        }
        soon(cluster, "the history has both images", async || {
            let images = [("2.0.0".to_owned(), 4, true), ("1.0.0".to_owned(), 4, false)];
            Ok(history(cluster).await? == images)
        })
        .await
    })
    .await
}

#[tokio::test]
async fn agents_first() -> Result<()> {
    in_mid_rollout(async |links, cluster, image| {
        links.upgrade_agents(cluster).await?;
        until_running(cluster, image, 2).await?;
        links.upgrade_controllers(cluster)
    })
    .await
}

#[tokio::test]
async fn controllers_first() -> Result<()> {
    in_mid_rollout(async |links, cluster, image| {
        links.upgrade_controllers(cluster)?;
        until_running(cluster, image, 2).await?;
        links.upgrade_agents(cluster).await
    })
    .await
}
