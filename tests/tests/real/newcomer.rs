//! An admin who has never seen Berth follows docs/quick-start.md: this test runs the commands of the page, as they stand there, on a
//! cluster of real hosts without Berth.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{PlainCluster, Published};
use berth_tests::programs::read;
use berth_tests::tools::{Tool, Tools};
use berth_tests::traces::{cluster_is_clean, real_host_is_clean};
use tokio::process::Command;

use crate::rollout::{ONLY_IN_TEST_REAL, SELECTED};

const PAGE: &str = "docs/quick-start.md";
/// Time limit for all commands. The page promises about ten minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// The commands of a step of the page.
struct Step {
    title: String,
    commands: String,
}

/// The steps of a page: its headings of the second level that have blocks of `sh`.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    let mut title = String::new();
    let mut is_command = false;
    for line in page.lines() {
        match line.trim_end() {
            "```sh" => {
                is_command = true;
                if steps.last().is_none_or(|step| step.title != title) {
                    steps.push(Step {
                        title: title.clone(),
                        commands: String::new(),
                    });
                }
            }
            "```" => is_command = false,
            _ if is_command => {
                if let Some(step) = steps.last_mut() {
                    let _ = writeln!(step.commands, "{line}");
                }
            }
            _ => {
                if let Some(heading) = line.strip_prefix("## ") {
                    heading.clone_into(&mut title);
                }
            }
        }
    }
    steps
}

/// All commands as one script. It prints the title of each step with the time when the step begins.
fn script(steps: &[Step]) -> String {
    let mut script = String::new();
    for step in steps {
        let _ = write!(script, "echo \"==> $SECONDS s: {}\"\n{}", step.title, step.commands);
    }
    script + "echo \"==> $SECONDS s: end\"\n"
}

/// Runs the commands as an admin: with a home directory, kubectl and a kubeconfig, and nothing else. Returns what they print.
async fn follow(cluster: &PlainCluster, home: &Path, image: &Published, steps: &[Step]) -> Result<String> {
    let kubectl = tokio::task::spawn_blocking(|| Tools::ensure(&[Tool::Kubectl])).await??;
    let kubectl = kubectl.path(Tool::Kubectl)?.to_owned();
    let programs = home.join("programs");
    std::fs::create_dir(&programs)?;
    std::os::unix::fs::symlink(&kubectl, programs.join("kubectl"))?;
    let transcript = home.join("transcript");
    let output = std::fs::File::create(&transcript)?;
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script(steps)])
        .env_clear()
        .env("HOME", home)
        .env("PATH", format!("{}:/usr/bin:/bin", programs.display()))
        .env("KUBECONFIG", kubeconfig(cluster)?)
        .env("IMAGE", &image.reference)
        .env("RELEASE", cluster.downloads.url())
        .current_dir(home)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .kill_on_drop(true);
    let ended = tokio::time::timeout(LIMIT, bash.status()).await;
    let said = std::fs::read_to_string(&transcript)?;
    println!("{said}");
    let status = ended.with_context(|| format!("the commands take longer than {LIMIT:?}"))??;
    ensure!(status.success(), "a command of {PAGE} failed: {status}");
    Ok(said)
}

fn kubeconfig(cluster: &PlainCluster) -> Result<PathBuf> {
    Ok(cluster.control_plane.kubeconfig_for("admin", &["system:masters"])?.path)
}

async fn scenario(cluster: &PlainCluster) -> Result<()> {
    cluster.deploy("web", 2).await?;
    let image = cluster.publish("stable", "2.0.0").await?;
    cluster.allow("workers", 1);
    let before = cluster.boots();
    let home = tempfile::tempdir()?;
    let said = follow(cluster, home.path(), &image, &steps(&read(PAGE)?)).await?;
    ensure!(said.contains("Every node runs its target image"), "the rollout is done");
    for host in cluster.workers() {
        let boot = host.boot().context("the worker is down")?;
        ensure!(boot.digest == image.digest.to_string(), "{}: {boot:?}", host.name());
    }
    let boots = cluster.boots();
    for (name, count) in &before {
        let expected = if name == cluster.control().name() {
            *count
        } else {
            count + 1
        };
        ensure!(boots.get(name) == Some(&expected), "{name}: {before:?}, then {boots:?}");
    }
    cluster.judge()?;
    cluster_is_clean(&cluster.client()).await?;
    for host in &cluster.hosts {
        real_host_is_clean(host, &[]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_follows_the_quick_start() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    if std::env::var_os(SELECTED).is_none() {
        println!("{ONLY_IN_TEST_REAL}a_newcomer_follows_the_quick_start: builds a static controller first");
        return Ok(());
    }
    let begin = Instant::now();
    let cluster = PlainCluster::start(2).await?;
    println!("{:<44} {:>5.1} s", "the rig is ready", begin.elapsed().as_secs_f64());
    let outcome = scenario(&cluster).await;
    println!("{:<44} {:>5.1} s", "total", begin.elapsed().as_secs_f64());
    if let Err(error) = &outcome {
        eprintln!("{error:#}\n{}", cluster.describe().await);
    }
    outcome
}

#[test]
fn the_steps_of_a_page_are_its_commands_in_order() {
    let page = "# Title\n## 1. One\ntext\n```sh\na\n```\n```text\noutput\n```\n```sh\nb\n```\n## 2. Two\n```\nnot run\n```\n## 3. Three\n```sh\nc\n```\n";
    let found: Vec<(String, String)> = steps(page)
        .into_iter()
        .map(|step| (step.title, step.commands))
        .collect();
    let expected = [("1. One", "a\nb\n"), ("3. Three", "c\n")];
    assert_eq!(
        found,
        expected.map(|(title, commands)| (title.to_owned(), commands.to_owned()))
    );
}
