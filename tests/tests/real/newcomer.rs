//! An admin who has never seen Berth follows docs/quick-start.md: the commands of the page run, as they stand there, on a cluster of
//! real hosts without Berth.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Nodes, PlainCluster, Published};
use berth_tests::hosts::real::RealHost;
use berth_tests::programs::read;
use berth_tests::tools::{Tool, Tools};
use berth_tests::traces::{cluster_is_clean, real_host_is_clean};
use tempfile::TempDir;
use tokio::process::Command;

use crate::rollout::{ONLY_IN_TEST_REAL, SELECTED};

/// Cluster that the page is written for.
const KUBEADM: Nodes = Nodes {
    overlay: "kubeadm",
    has_control_plane: true,
    workers: 2,
};
/// Time limit for all commands. The page promises about ten minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// The commands of a section of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub title: String,
    pub commands: String,
}

/// The sections of a page that have blocks of `sh`. Commands before the first heading have an empty title.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    let mut title = "";
    let mut is_command = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_command = line == "```sh";
        } else if let Some(heading) = line.strip_prefix("## ").filter(|_| !is_command) {
            title = heading;
        } else if is_command {
            if steps.last().is_none_or(|step| step.title != title) {
                steps.push(Step {
                    title: title.to_owned(),
                    commands: String::new(),
                });
            }
            if let Some(step) = steps.last_mut() {
                step.commands.push_str(line);
                step.commands.push('\n');
            }
        }
    }
    steps
}

/// The steps of the quick start.
pub fn quick_start() -> Result<Vec<Step>> {
    Ok(steps(&read("docs/quick-start.md")?))
}

/// All commands as one script. It prints the title of each step, and the seconds until it begins.
fn script(steps: &[Step]) -> String {
    let mut script = String::new();
    for step in steps {
        let _ = write!(script, "echo \"==> $SECONDS s: {}\"\n{}", step.title, step.commands);
    }
    script + "echo \"==> $SECONDS s: end\"\n"
}

/// An admin with a home directory, a kubeconfig, kubectl and Helm, and nothing else.
pub struct Newcomer<'a> {
    cluster: &'a PlainCluster,
    home: TempDir,
    image: Published,
}

impl<'a> Newcomer<'a> {
    /// Deploys a workload, publishes an OS image of version `2.0.0`, and returns an admin of the cluster.
    pub async fn to(cluster: &'a PlainCluster) -> Result<Self> {
        cluster.deploy("web", cluster.hosts.len()).await?;
        cluster.allow("workers", 1);
        let tools = tokio::task::spawn_blocking(|| Tools::ensure(&[Tool::Kubectl, Tool::Helm])).await??;
        let home = tempfile::tempdir()?;
        fs::create_dir(home.path().join("programs"))?;
        for (tool, path) in tools.iter() {
            symlink(path, home.path().join("programs").join(tool.file_name()))?;
        }
        let image = cluster.publish("stable", "2.0.0").await?;
        Ok(Self { cluster, home, image })
    }

    /// Runs these commands. Returns their output.
    pub async fn follow(&self, steps: &[Step]) -> Result<String> {
        let home = self.home.path();
        let transcript = home.join("transcript");
        let output = File::create(&transcript)?;
        let admin = self
            .cluster
            .control_plane
            .kubeconfig_for("admin", &["system:masters"])?;
        let path = format!("{0}/.local/bin:{0}/programs:/usr/bin:/bin", home.display());
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &script(steps)])
            .env_clear()
            .env("HOME", home)
            .env("PATH", path)
            .env("KUBECONFIG", admin.path)
            .env("IMAGE", &self.image.reference)
            .env("RELEASE", self.cluster.downloads.url())
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true);
        let ended = tokio::time::timeout(LIMIT, bash.status()).await;
        let said = fs::read_to_string(&transcript)?;
        println!("{said}");
        let status = ended.with_context(|| format!("the commands take longer than {LIMIT:?}"))??;
        ensure!(status.success(), "a command failed: {status}");
        ensure!(!said.contains("Warning: "), "a command warns");
        Ok(said)
    }

    /// Fails unless the commands said that the rollout is done, these hosts were updated, each by one reboot, and no other one was
    /// rebooted.
    pub fn has_updated(&self, said: &str, updated: &[&RealHost]) -> Result<()> {
        ensure!(
            said.contains("Every node runs its target image"),
            "the rollout is not done"
        );
        let boots = self.cluster.boots();
        for host in &self.cluster.hosts {
            let boot = host.boot().context("a host is down")?;
            let is_new = boot.digest == self.image.digest.to_string();
            let is_updated = updated.iter().any(|other| other.name() == host.name());
            ensure!(is_new == is_updated, "{}: {boot:?}", host.name());
            let expected = if is_updated { 2 } else { 1 };
            ensure!(boots.get(host.name()) == Some(&expected), "{boots:?}");
        }
        self.cluster.judge()
    }
}

/// Fails if Berth has left something in the cluster or on a host.
async fn is_clean(cluster: &PlainCluster) -> Result<()> {
    cluster_is_clean(&cluster.client()).await?;
    for host in &cluster.hosts {
        real_host_is_clean(host, &[]).await?;
    }
    Ok(())
}

/// Runs these commands from the beginning to the end on a new cluster.
async fn follow_all(cluster: &PlainCluster, nodes: Nodes, steps: &[Step]) -> Result<()> {
    let newcomer = Newcomer::to(cluster).await?;
    let said = newcomer.follow(steps).await?;
    let first_worker = usize::from(nodes.has_control_plane && nodes.workers > 0);
    let workers: Vec<&RealHost> = cluster.hosts.iter().skip(first_worker).collect();
    newcomer.has_updated(&said, &workers)?;
    is_clean(cluster).await
}

/// Runs a scenario on a new cluster, or prints why it is skipped.
pub async fn on_cluster(
    name: &str,
    nodes: Nodes,
    scenario: impl AsyncFnOnce(&PlainCluster) -> Result<()>,
) -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    if std::env::var_os(SELECTED).is_none() {
        println!("{ONLY_IN_TEST_REAL}{name}: it needs a static controller, which is built for it alone");
        return Ok(());
    }
    let begin = Instant::now();
    let cluster = PlainCluster::start(nodes).await?;
    println!("{:<44} {:>5.1} s", "the rig is ready", begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let outcome = scenario(&cluster).await;
    println!("{name:<44} {:>5.1} s", begin.elapsed().as_secs_f64());
    if let Err(error) = &outcome {
        eprintln!("{error:#}\n{}", cluster.describe().await);
    }
    outcome
}

/// A scenario that follows these steps.
pub async fn scenario(name: &str, nodes: Nodes, steps: Vec<Step>) -> Result<()> {
    on_cluster(name, nodes, async |cluster| follow_all(cluster, nodes, &steps).await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_follows_the_quick_start() -> Result<()> {
    scenario("a_newcomer_follows_the_quick_start", KUBEADM, quick_start()?).await
}

#[test]
fn the_steps_of_a_page_are_its_commands_in_order() {
    let page = "# Title\n## 1. One\ntext\n```sh\na\n## b\n```\n```text\noutput\n```\n```sh\nc\n```\n\
                ## 2. Two\n```\nnot run\n```\n## 3. Three\n```sh\nd\n```\n";
    let expected = [("1. One", "a\n## b\nc\n"), ("3. Three", "d\n")].map(|(title, commands)| Step {
        title: title.to_owned(),
        commands: commands.to_owned(),
    });
    assert_eq!(steps(page), expected);
}
