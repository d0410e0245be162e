//! Agents, controllers and the API server die, hang and come back, and two agents meet on a host.

use std::path::PathBuf;

use super::*;

/// CPU time of a process so far, in the kernel's ticks of 10 ms.
fn cpu_ticks(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The second field is the program's name in parentheses; user and system time are the 14th and 15th.
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

async fn kill_in_its_pull(cluster: &Cluster, n: usize) -> Result<()> {
    let host = cluster.host(n);
    cluster.until_phase(host.name(), "Staging").await?;
    host.kill_agent();
    Ok(())
}

#[tokio::test]
async fn the_agent_is_killed_in_every_phase() -> Result<()> {
    let options = hosts_with(2, |s| s.pull_time = Duration::from_secs(5));
    scenario(options, async |cluster| {
        cluster.deploy("web", 2).await?;
        cluster.budget("web", 2).await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        // Each host as soon as it pulls: their pulls may start seconds apart.
        let [first, second] = [1, 2].map(|n| kill_in_its_pull(cluster, n));
        futures::try_join!(first, second)?;
        let n = some_in(cluster, "Draining").await?;
        for host in &cluster.fleet.hosts {
            ensure!(
                pulls(cluster, host.name()) == 1,
                "{}: the next agent must adopt the running pull, not repeat it",
                host.name()
            );
        }
        let host = cluster.host(n);
        host.kill_agent();
        tokio::time::sleep(Duration::from_millis(500)).await;
        // The reboot takes long enough to kill the agent between request and shutdown.
        host.settings(|s| s.shutdown_time = Duration::from_secs(2));
        cluster.remove_budget("web").await?;
        cluster.until_phase(host.name(), "Rebooting").await?;
        host.kill_agent();
        cluster.until_all_run(&v2, LONG).await?;
        let boots = cluster.boots();
        ensure!(boots.values().all(|&n| n == 2), "one reboot for each host: {boots:?}");
        for host in &cluster.fleet.hosts {
            records::until_proven_turn(cluster, host.name(), &v2).await?;
        }
        Ok(())
    })
    .await
}

/// Waits until a host is committed, stops its agent, uncordons the node, and creates pods. Returns the host while its
/// agent is still stopped.
async fn committed_and_away(cluster: &Cluster) -> Result<&SimHost> {
    cluster.settings(|s| s.reboot = RebootFault::Lost);
    roll_to(cluster, "2.0.0", 1).await?;
    let host = cluster.host(some_in(cluster, "Rebooting").await?);
    host.stop_agent().await;
    cluster.settings(|s| s.reboot = Settings::default().reboot);
    cluster.cordon(host.name(), false).await?;
    cluster.deploy("web", cluster.fleet.hosts.len()).await?;
    // For this long, the judge tolerates a reboot that was requested before the pods came.
    tokio::time::sleep(Duration::from_secs(20)).await;
    Ok(host)
}

/// An agent that finds an old commit checks the node again. The node is then cordoned and drained again.
#[tokio::test]
async fn a_commit_whose_agent_was_away() -> Result<()> {
    scenario(hosts(2), async |cluster| {
        committed_and_away(cluster).await?.start_agent();
        cluster
            .until("all hosts run 2.0.0", LONG, || async {
                Ok(cluster.fleet.hosts.iter().all(|h| h.facts().version == "2.0.0"))
            })
            .await
    })
    .await
}

#[tokio::test]
async fn an_idle_agent_sends_heartbeats_and_checks_its_host() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await?;
        // Another image is staged unlocked, behind the agent's back.
        let v9 = cluster.publish("9.0.0").await?;
        cluster
            .host(1)
            .stage_behind_the_agent(&v9.pinned, &v9.digest.to_string());
        signs_of_life(cluster, "node1", 1).await?;
        until_so(cluster, "the agent has removed the image", || {
            cluster.host(1).facts().staged.is_none()
        })
        .await?;
        // After the first heartbeat without changes the agent reads the cluster once more.
        signs_of_life(cluster, "node1", 2).await?;
        let start = Timestamp::now();
        let busy = cpu_ticks(cluster.host(1).agent_pids()[0])?;
        signs_of_life(cluster, "node1", 1).await?;
        let busy = cpu_ticks(cluster.host(1).agent_pids()[0])? - busy;
        ensure!(busy < 50, "an idle agent used {busy} hundredths of a second in 10 s");
        let audit = AuditLog::read(&cluster.control_plane.audit_log())?;
        let requests: Vec<_> = audit
            .records()
            .iter()
            .filter(|r: &&Record| r.program() == "berth-agent" && r.verb != "watch" && r.received > start)
            .map(|r| (r.verb.as_str(), r.target()))
            .collect();
        // A heartbeat, or two if the first came at once. Each is a single write.
        ensure!(requests.len() <= 2, "an idle agent sends few requests: {requests:?}");
        Ok(())
    })
    .await
}

/// `kubectl berth status --watch` of an admin, which writes its lines to a file.
struct Watched {
    child: tokio::process::Child,
    lines: PathBuf,
    _directory: tempfile::TempDir,
}

impl Watched {
    async fn start(cluster: &Cluster) -> Result<Self> {
        let program = tokio::task::spawn_blocking(programs::kubectl).await??;
        let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
        let directory = tempfile::tempdir()?;
        let lines = directory.path().join("lines");
        let child = tokio::process::Command::new(program)
            .args(["status", "workers", "--watch", "--kubeconfig"])
            .arg(&config.path)
            .stdout(std::fs::File::create(&lines)?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            child,
            lines,
            _directory: directory,
        })
    }

    async fn says(&self, cluster: &Cluster, text: &str) -> Result<()> {
        let until = cluster
            .until(&format!("the watch shows {text:?}"), LONG, async || {
                anyhow::Ok(std::fs::read_to_string(&self.lines)?.contains(text))
            })
            .await;
        until.with_context(|| std::fs::read_to_string(&self.lines).unwrap_or_default())
    }

    /// Ends the watch as Ctrl-C does.
    async fn end(mut self) -> Result<()> {
        let pid = self.child.id().context("the watch has ended already")?;
        let pid = nix::unistd::Pid::from_raw(pid.try_into()?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
        let status = tokio::time::timeout(SOON, self.child.wait()).await??;
        ensure!(status.success(), "Ctrl-C ends the watch with status 0: {status}");
        Ok(())
    }
}

#[tokio::test]
async fn the_api_server_is_away_for_a_while() -> Result<()> {
    // Built beforehand, so that no scenario waits for a compiler.
    tokio::task::spawn_blocking(programs::kubectl).await??;
    // The reboot lasts until the API server is gone.
    let options = hosts_with(3, |s| s.reboot_time = Duration::from_secs(6));
    scenario(options, async |cluster| {
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let watched = Watched::start(cluster).await?;
        some_in(cluster, "Rebooting").await?;
        cluster.control_plane.stop_apiserver().await?;
        watched.says(cluster, " old (").await?;
        until_so(cluster, "the host that reboots is back", || {
            cluster.boots().values().any(|&boots| boots == 2)
        })
        .await?;
        // With an API server its berth would be free some 40 ms after its proof.
        tokio::time::sleep(Duration::from_secs(4)).await;
        let down = cluster
            .log
            .events()
            .iter()
            .filter(|e| e.change == HostChange::Down)
            .count();
        ensure!(down <= 1, "a new turn began: {down} hosts went down");
        cluster.control_plane.start_apiserver().await?;
        cluster.until_all_run(&v2, LONG).await?;
        watched.says(cluster, "up to date again").await?;
        watched.says(cluster, ": Progressing, Rebooting, ").await?;
        watched.says(cluster, "pool workers: Completed, 100% (3/3)").await?;
        watched.end().await
    })
    .await
}

#[tokio::test]
async fn controllers_come_and_go() -> Result<()> {
    scenario(hosts(4), async |cluster| {
        cluster.controllers.start(1)?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let started = Instant::now();
        // The leader is repeatedly killed, or frozen past its lease and woken up.
        let mut turn = 0;
        while cluster.running(&v2) < 4 {
            ensure!(
                started.elapsed() < LONG * 2,
                "the rollout ends nevertheless\n{}",
                cluster.describe().await
            );
            let victim = turn % 2;
            match turn % 4 {
                0 | 1 => cluster.controllers.kill(victim),
                _ => cluster.controllers.freeze(victim, true),
            }
            tokio::time::sleep(Duration::from_millis(4500)).await;
            cluster.controllers.freeze(victim, false);
            cluster.controllers.start(victim)?;
            cluster.controllers.start(1 - victim)?;
            turn += 1;
        }
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}

#[tokio::test]
async fn two_agents_on_one_node() -> Result<()> {
    let options = hosts_with(2, |s| s.pull_time = Duration::from_secs(4));
    scenario(options, async |cluster| {
        for host in &cluster.fleet.hosts {
            host.second_agent();
        }
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        some_in(cluster, "Staging").await?;
        cluster.host(1).kill_agent();
        cluster.until_all_run(&v2, LONG).await?;
        for host in &cluster.fleet.hosts {
            ensure!(pulls(cluster, host.name()) == 1, "two agents start a single pull");
        }
        ensure!(cluster.boots().values().all(|&n| n == 2), "a host rebooted twice");
        Ok(())
    })
    .await
}

/// A cluster whose agents have a deliberate bug.
async fn rogues(bug: &str, count: usize) -> Result<Cluster> {
    let options = ClusterOptions {
        agent: Some(berth_tests::programs::seeded_agent()?),
        agent_env: vec![("BERTH_SEEDED_BUG".to_owned(), bug.to_owned())],
        ..hosts(count)
    };
    Cluster::start(options).await
}

/// Fails unless the judge names a violation.
fn blames(cluster: &Cluster, invariant: &str, what: &str) -> Result<()> {
    let violations = cluster.violations()?;
    let named = violations.iter().any(|v| v.starts_with(invariant) && v.contains(what));
    ensure!(named, "the judge must name {invariant}, {what}: {violations:?}");
    Ok(())
}

/// The judge must find a real violation: an agent that reboots without a berth.
#[tokio::test]
async fn the_judge_finds_an_agent_without_a_berth() -> Result<()> {
    let cluster = rogues("skip-berth", 2).await?;
    let v2 = roll_to(&cluster, "2.0.0", 1).await?;
    cluster
        .until("the rogue agents have rebooted", LONG, || async {
            Ok(cluster.running(&v2) == 2)
        })
        .await?;
    blames(&cluster, "I2", "without a committed berth")
}

/// Another violation: an agent reboots with an old commit, although the node is no longer cordoned or drained.
#[tokio::test]
async fn the_judge_finds_an_old_commit() -> Result<()> {
    let cluster = rogues("old-commit-used", 1).await?;
    let host = committed_and_away(&cluster).await?;
    host.start_agent();
    cluster
        .until("the rogue agent has rebooted", LONG, || async {
            Ok(host.facts().version == "2.0.0")
        })
        .await?;
    blames(&cluster, "I1", "its Node had been schedulable since")?;
    blames(&cluster, "I1", "still on the host")
}

/// Runs the readiness probe of the shipped program, as the kubelet does.
fn says_ready(file: &std::path::Path, within: u64) -> Result<()> {
    let mut probe = std::process::Command::new(programs::programs()?.agent);
    let output = probe
        .arg("ready")
        .arg(file)
        .arg(format!("--within={within}"))
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(())
}

/// A bad agent must stop the rollout of its DaemonSet: an agent is ready only if its loop runs and the API server
/// responds to it.
#[tokio::test]
async fn an_agent_is_ready_while_the_api_server_answers() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("turned");
    let mut options = hosts(1);
    options.agent_args = vec!["--heartbeat=10".to_owned(), format!("--ready-file={}", file.display())];
    scenario(options, async move |cluster| {
        // The node is in no pool yet, so the agent is idle.
        until_so(cluster, "the agent is ready", || says_ready(&file, 120).is_ok()).await?;
        cluster.control_plane.stop_apiserver().await?;
        cluster
            .until("the agent is not ready", LONG, async || {
                Ok(says_ready(&file, 15).is_err_and(|why| why.to_string().contains("API server")))
            })
            .await?;
        cluster.control_plane.start_apiserver().await?;
        cluster
            .until("the agent is ready again", LONG, async || {
                Ok(says_ready(&file, 15).is_ok())
            })
            .await?;
        cluster.host(1).stop_agent().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(says_ready(&file, 1).is_err(), "an agent that is gone is not ready");
        cluster.host(1).start_agent();
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        cluster.until_all_run(&v2, LONG).await
    })
    .await
}
