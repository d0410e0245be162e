//! Rollouts over three real hosts: systemd, logind, ostree, containerd and a kubelet each, the agent as the shipped
//! DaemonSet with its own tokens, roles and policies. The scenarios run one after another on the same hosts. The judge
//! checks the boots of the hosts, and the audit log.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_api::backend::Backend;
use berth_tests::cluster::{Published, RealCluster, name_of};
use berth_tests::golden;
use berth_tests::hosts::HostChange;
use berth_tests::hosts::real::RealHost;
use berth_tests::registry::Registry;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use self::on_host::{pull, staged};

mod boot_images;
mod on_host;
mod outside;
mod rpm_ostree;
mod soft;
mod undo;

/// Time limit for the work of one node.
const SOON: Duration = Duration::from_secs(60);
/// Time limit for the work of all nodes.
const LONG: Duration = Duration::from_secs(180);
/// Variable that selects scenarios: `all`, or a part of their names. If unset, only the scenarios that are fast enough
/// for `make test` run.
pub const SELECTED: &str = "BERTH_TEST_REAL";

/// Prefix of a line that names scenarios of `make test-real` only. `scripts/steps.sh` repeats these lines at the end.
pub const ONLY_IN_TEST_REAL: &str = "ONLY IN TEST-REAL: ";

/// The scenarios left out of `make test`, and why. `three_real_hosts_of_rpm_ostree` is left out as a whole.
const LEFT_OUT: [(&str, &str); 6] = [
    ("the_api_server_is_away", "it waits for 30 s; rollout_sim has it too"),
    ("a_power_cut_during_the_rollback", "the model has it in every place"),
    ("a_power_cut_before_finalization", "rollout_sim has it too"),
    ("a_soft_reboot_and_its_rollback", "simulated hosts have it too"),
    ("a_node_that_flaps", "it waits for a soak that is never over"),
    (
        "a_previous_image_that_is_bad_too",
        "it waits for two deadlines; the model has it too",
    ),
];

/// The scenarios that hosts of rpm-ostree skip, and why.
const BOOTC_ONLY: [(&str, &str); 2] = [
    (
        "a_soft_reboot_and_its_rollback",
        "only bootc reports whether an image is capable of it",
    ),
    (
        "an_image_without_its_bound_image",
        "rpm-ostree does not support bound images; only bootc does",
    ),
];

/// True if the variable selects the scenario; `None` if it is not set.
fn is_selected(name: &str) -> Option<bool> {
    let wanted = std::env::var(SELECTED).ok().filter(|wanted| !wanted.is_empty())?;
    Some(wanted == "all" || name.contains(&wanted))
}

struct Rig {
    cluster: RealCluster,
    begin: Instant,
    /// Image that all hosts run between two scenarios.
    now: Published,
    backend: Backend,
    /// Suffix of the versions published next: a scenario that runs twice on one rig needs images that no host has.
    series: &'static str,
}

impl Rig {
    /// Runs a scenario unless it is left out, asks the judge, and prints the duration.
    async fn scenario(&mut self, body: impl AsyncFnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let name = name_of(&body);
        let selected = is_selected(name);
        if selected == Some(false) {
            return Ok(());
        }
        let left_out = LEFT_OUT.iter().find(|(left_out, _)| *left_out == name);
        if let Some((_, why)) = left_out.filter(|_| selected.is_none()) {
            println!("{ONLY_IN_TEST_REAL}{name}: {why}");
            return Ok(());
        }
        let mut bootc_only = BOOTC_ONLY.iter().filter(|_| self.backend != Backend::Bootc);
        if let Some((_, why)) = bootc_only.find(|(left_out, _)| *left_out == name) {
            println!("{name:<44} LEFT OUT: {why}");
            return Ok(());
        }
        let start = Instant::now();
        if let Err(error) = body(self).await {
            let violations = self.cluster.violations()?;
            eprintln!(
                "{name} failed; violations: {violations:#?}\n{}",
                self.cluster.describe().await
            );
            return Err(error.context(name.to_owned()));
        }
        let violations = self.cluster.violations()?;
        ensure!(violations.is_empty(), "{name}: {violations:#?}");
        let total = self.begin.elapsed().as_secs_f64();
        println!(
            "{name:<44} {:>5.1} s, total {total:>5.1} s",
            start.elapsed().as_secs_f64()
        );
        Ok(())
    }

    async fn publish(&self, version: &str) -> Result<Published> {
        self.cluster.publish(&format!("{version}{}", self.series)).await
    }

    /// Publishes a version, and makes it the image of the pool.
    async fn roll_to(&self, version: &str, most: usize) -> Result<Published> {
        let image = self.publish(version).await?;
        self.desire(&image, most).await?;
        Ok(image)
    }

    async fn desire(&self, image: &Published, most: usize) -> Result<()> {
        self.cluster
            .pool(
                "workers",
                &image.reference,
                json!({ "maxUnavailable": most, "maxStaging": "100%" }),
            )
            .await
    }

    /// Waits until all hosts run an image and each has booted exactly once for it, and asks the judge.
    async fn until_all_run(&mut self, image: &Published, before: &BTreeMap<String, usize>) -> Result<()> {
        self.cluster.until_all_run(image, LONG).await?;
        let boots = self.cluster.boots();
        let once = boots
            .iter()
            .all(|(host, n)| before.get(host).is_some_and(|b| b + 1 == *n));
        ensure!(once, "each host boots once: {before:?}, then {boots:?}");
        self.now = image.clone();
        self.cluster.judge()
    }

    /// Waits until a host has this image staged and locked, and is in the phase `Waiting`. At first, the host may still
    /// have the previous image staged.
    async fn until_staged(&self, host: &RealHost, image: &Published) -> Result<()> {
        let what = format!("{} has staged and locked {}", host.name(), image.reference);
        self.cluster
            .until(&what, SOON, || async {
                let staged = staged(host).await?;
                Ok(staged.is_some_and(|staged| staged.locked && staged.digest == image.digest.to_string()))
            })
            .await?;
        self.until_phase(host, "Waiting").await
    }

    async fn until_phase(&self, host: &RealHost, phase: &str) -> Result<()> {
        self.cluster.until_phase(host.name(), phase).await
    }

    /// Compares the host's conditions since the request for the image with a golden file. Simulated hosts use the same
    /// file.
    fn ensure_walk_to(&self, host: &RealHost, image: &Published, golden: &str) -> Result<()> {
        golden::ensure_walk_to(
            &self.cluster.control_plane.audit_log(),
            host.name(),
            &image.digest,
            golden,
        )
    }

    /// Waits until some node is in a phase, and returns its host.
    async fn some_in(&self, phase: &str) -> Result<&RealHost> {
        let found = Cell::new(None);
        self.cluster
            .until(&format!("some node is {phase}"), SOON, || async {
                for host in &self.cluster.hosts {
                    if self.cluster.phase(host.name()).await? == phase {
                        found.set(Some(host));
                    }
                }
                Ok(found.get().is_some())
            })
            .await?;
        found.get().context("no host")
    }

    /// Creates a pod on each node, and a disruption budget that forbids the eviction of these pods.
    async fn block_drains(&self) -> Result<()> {
        self.cluster.deploy("web", self.cluster.hosts.len()).await?;
        self.cluster.budget("web", self.cluster.hosts.len()).await
    }

    fn downs(&self) -> usize {
        self.cluster
            .log
            .events()
            .iter()
            .filter(|e| e.change == HostChange::Down)
            .count()
    }
}

async fn one_at_a_time(rig: &mut Rig) -> Result<()> {
    let v1 = rig.cluster.move_tag("stable", "1.0.0").await?;
    rig.desire(&v1, 1).await?;
    rig.cluster.until_all_run(&v1, LONG).await?;
    // The tag is moved; the pool's spec stays unchanged.
    let before = rig.cluster.boots();
    let v2 = rig.cluster.move_tag("stable", "2.0.0").await?;
    rig.cluster.request_poll("workers").await?;
    rig.until_all_run(&v2, &before).await?;
    for host in &rig.cluster.hosts {
        rig.until_phase(host, "Updated").await?;
        rig.ensure_walk_to(host, &v2, "whole")?;
    }
    // The controller uses the credentials of its Secret: the registry rejects requests without them.
    let asked = std::fs::read_to_string(rig.cluster.origin.log())?;
    ensure!(asked.contains("/v2/os/manifests/stable"), "the origin got no request");
    is_closed_to_strangers(&rig.cluster.origin).await?;
    // All other requests use the credentials of the hosts' Secret, at a mirror of an origin that is away.
    for host in &rig.cluster.hosts {
        let file = ["stat", "--format=%a %U", "/run/ostree/auth.json"];
        let found = host.exec(&file).await?;
        ensure!(found.trim() == "600 root", "{}: {found}", host.name());
    }
    let log = std::fs::read_to_string(rig.cluster.mirror.log())?;
    ensure!(log.contains("GET /v2/os/blobs/"), "nothing came from the mirror");
    Ok(())
}

/// A registry rejects a client without a password.
async fn is_closed_to_strangers(registry: &Registry) -> Result<()> {
    let host = registry.host();
    let mut connection = TcpStream::connect(&host).await?;
    let request = format!("GET /v2/os/manifests/stable HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 401 "), "no 401: {answer}");
    Ok(())
}

async fn two_at_once(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let v3 = rig.roll_to("3.0.0", 2).await?;
    rig.until_all_run(&v3, &before).await
}

async fn an_unrelated_reboot_applies_nothing(rig: &mut Rig) -> Result<()> {
    let v4 = rig.publish("4.0.0").await?;
    rig.cluster
        .pool(
            "workers",
            &v4.reference,
            json!({ "paused": true, "maxStaging": "100%" }),
        )
        .await?;
    for host in &rig.cluster.hosts {
        rig.until_staged(host, &v4).await?;
    }
    let host = rig.cluster.host(1);
    rig.cluster.unrelated_reboot(host).await?;
    let booted = host.boot().context("up")?;
    ensure!(
        booted.digest == rig.now.digest.to_string(),
        "the reboot applied {}",
        booted.version
    );
    // The image is staged again, from layers that were pulled before.
    rig.cluster
        .until("it is staged and locked again", SOON, || async {
            Ok(staged(host).await?.is_some_and(|s| s.locked))
        })
        .await?;
    rig.until_phase(host, "Waiting").await
}

async fn a_revert_while_one_is_done(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let v4 = rig.roll_to("4.0.0", 1).await?;
    rig.cluster
        .until("one host runs 4.0.0", LONG, || async {
            Ok(rig.cluster.running(&v4) == 1)
        })
        .await?;
    rig.desire(&rig.now, 1).await?;
    rig.cluster.until_all_run(&rig.now, LONG).await?;
    for host in &rig.cluster.hosts {
        let staged = staged(host).await?;
        ensure!(staged.is_none(), "{}: {staged:?}", host.name());
    }
    let boots = rig.cluster.boots();
    let went: usize = boots.iter().map(|(host, n)| n - before.get(host).unwrap_or(&0)).sum();
    // A node whose reboot has begun before the target is withdrawn boots 4.0.0 and then returns as well.
    ensure!(went == 2 || went == 4, "{before:?}, then {boots:?}");
    rig.cluster.judge()
}

async fn a_budget_blocks_then_yields(rig: &mut Rig) -> Result<()> {
    rig.block_drains().await?;
    let before = rig.cluster.boots();
    let v4 = rig.roll_to("4.0.0", 1).await?;
    let host = rig.some_in("Draining").await?;
    rig.cluster
        .until("the status names the pod and the budget", SOON, || async {
            let status = rig.cluster.node_status(host.name()).await?;
            let is_named =
                |b: &berth_api::node::DrainBlocker| b.pod.starts_with("default/web-") && b.reason.contains("web");
            Ok(status.drain_blockers.iter().any(is_named))
        })
        .await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(rig.cluster.boots() == before, "a blocked drain reboots nothing");
    // The holder gives its berth back while the pool is paused.
    rig.cluster.pause("workers", true).await?;
    rig.until_phase(host, "Waiting").await?;
    rig.ensure_walk_to(host, &v4, "taken-back")?;
    rig.cluster.pause("workers", false).await?;
    rig.cluster.remove_budget("web").await?;
    rig.until_all_run(&v4, &before).await
}

/// Waits until the process of a host's agent is no longer `old`.
async fn until_another_agent(rig: &Rig, host: &RealHost, old: &str) -> Result<()> {
    rig.cluster
        .until(&format!("{} has another agent", host.name()), SOON, || async {
            let now = rig.cluster.agent_process(host).await?;
            Ok(!now.is_empty() && !now.contains(old))
        })
        .await
}

async fn an_agent_killed_mid_pull_adopts_it(rig: &mut Rig) -> Result<()> {
    rig.block_drains().await?;
    for host in &rig.cluster.hosts {
        host.limit_pulls(Some(60 << 10)).await?;
    }
    let v5 = rig.roll_to("5.0.0", 1).await?;
    for host in rig.cluster.hosts.iter().take(2) {
        rig.until_phase(host, "Staging").await?;
        rig.cluster
            .until("the pull runs", SOON, || async {
                Ok(!pull(rig.backend, host, &v5).await?.is_empty())
            })
            .await?;
        let (invocation, agent) = (
            pull(rig.backend, host, &v5).await?,
            rig.cluster.agent_process(host).await?,
        );
        rig.cluster.kill_agent(host).await?;
        until_another_agent(rig, host, &agent).await?;
        let now = pull(rig.backend, host, &v5).await?;
        ensure!(
            now == invocation,
            "{}: the next agent must adopt the running pull, not repeat it: {invocation}, {now:?}",
            host.name()
        );
    }
    for host in &rig.cluster.hosts {
        host.limit_pulls(None).await?;
        rig.cluster
            .until("the pull ends", SOON, || async {
                Ok(staged(host).await?.is_some_and(|s| s.digest == v5.digest.to_string()))
            })
            .await?;
    }
    Ok(())
}

/// Starts an inhibitor that delays a shutdown. After a request, logind waits for the inhibitor before it starts the
/// shutdown.
async fn delay_shutdown(host: &RealHost) -> Result<()> {
    let slow = [
        "systemd-inhibit",
        "--what=shutdown",
        "--mode=delay",
        "--who=test",
        "--why=slow",
        "sleep",
        "1000",
    ];
    host.exec(&[&["systemd-run", "--unit=slow-shutdown", "--collect"], slow.as_slice()].concat())
        .await
        .map(drop)
}

async fn until_going_down(rig: &Rig, host: &RealHost) -> Result<()> {
    rig.cluster
        .until("the reboot was asked for", SOON, || is_going_down(host))
        .await
}

async fn is_going_down(host: &RealHost) -> Result<bool> {
    let going = [
        "busctl",
        "get-property",
        "org.freedesktop.login1",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "PreparingForShutdown",
    ];
    Ok(host.exec(&going).await?.trim() == "b true")
}

async fn an_agent_killed_mid_drain_and_at_the_reboot(rig: &mut Rig) -> Result<()> {
    rig.block_drains().await?;
    let before = rig.cluster.boots();
    let v5 = rig.roll_to("5.0.0", 1).await?;
    let host = rig.some_in("Draining").await?;
    let agent = rig.cluster.agent_process(host).await?;
    rig.cluster.kill_agent(host).await?;
    until_another_agent(rig, host, &agent).await?;
    delay_shutdown(host).await?;
    rig.cluster.remove_budget("web").await?;
    until_going_down(rig, host).await?;
    let agent = rig.cluster.agent_process(host).await?;
    rig.cluster.kill_agent(host).await?;
    until_another_agent(rig, host, &agent).await?;
    ensure!(is_going_down(host).await?, "the next agent finds the host going down");
    host.exec(&["systemctl", "stop", "slow-shutdown"]).await?;
    rig.until_all_run(&v5, &before).await
}

/// bootc pulls bound images only after it has staged the image. A host must never boot an image whose bound images are
/// missing.
async fn an_image_without_its_bound_image(rig: &mut Rig) -> Result<()> {
    let before = rig.cluster.boots();
    let bound = format!("{}/missing:1", rig.cluster.registry.host());
    let v7 = rig.cluster.publish_bound("7.0.0", &bound).await?;
    rig.desire(&v7, 3).await?;
    for host in &rig.cluster.hosts {
        rig.cluster
            .until("the status names the bound image", SOON, || async {
                let object = rig.cluster.bootc_nodes().get(host.name()).await?;
                let failure = object.status.unwrap_or_default().failure;
                Ok(
                    failure
                        .is_some_and(|f| f.reason == "ImageNotFound" && f.message.contains(&bound) && f.attempts > 1),
                )
            })
            .await?;
        rig.cluster
            .until("nothing stays staged", SOON, || async {
                Ok(staged(host).await?.is_none())
            })
            .await?;
    }
    ensure!(rig.cluster.boots() == before, "no host boots it");
    rig.desire(&rig.now, 1).await?;
    rig.cluster.until_all_run(&rig.now, LONG).await?;
    for host in &rig.cluster.hosts {
        rig.until_phase(host, "Updated").await?;
        rig.ensure_walk_to(host, &v7, "bad-pull")?;
    }
    Ok(())
}

async fn the_api_server_is_away(rig: &mut Rig) -> Result<()> {
    let (before, downs) = (rig.cluster.boots(), rig.downs());
    let v6 = rig.roll_to("6.0.0", 1).await?;
    rig.some_in("Rebooting").await?;
    rig.cluster.control_plane.stop_apiserver().await?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let down = rig.downs() - downs;
    ensure!(down == 1, "only the committed node reboots: {down} hosts went down");
    rig.cluster.control_plane.start_apiserver().await?;
    rig.until_all_run(&v6, &before).await
}

async fn scenarios(rig: &mut Rig) -> Result<()> {
    rig.scenario(one_at_a_time).await?;
    rig.scenario(two_at_once).await?;
    rig.scenario(an_unrelated_reboot_applies_nothing).await?;
    rig.scenario(a_revert_while_one_is_done).await?;
    rig.scenario(a_budget_blocks_then_yields).await?;
    rig.scenario(an_image_without_its_bound_image).await?;
    rig.scenario(undo::an_image_that_fails_its_check).await?;
    rig.scenario(undo::an_image_whose_kubelet_never_starts).await?;
    rig.scenario(undo::a_node_that_flaps).await?;
    rig.scenario(undo::a_power_cut_before_finalization).await?;
    rig.scenario(undo::a_power_cut_during_the_rollback).await?;
    rig.scenario(undo::a_previous_image_that_is_bad_too).await?;
    rig.scenario(soft::a_soft_reboot_and_its_rollback).await?;
    rig.scenario(outside::a_boot_that_falls_back).await?;
    rig.scenario(outside::a_rollback_by_hand).await?;
    rig.scenario(an_agent_killed_mid_pull_adopts_it).await?;
    rig.scenario(an_agent_killed_mid_drain_and_at_the_reboot).await?;
    rig.scenario(the_api_server_is_away).await
}

async fn ready() -> Result<Rig> {
    let begin = Instant::now();
    let cluster = RealCluster::start(3).await?;
    println!("{:<44} {:>5.1} s", "the rig is ready", begin.elapsed().as_secs_f64());
    cluster.deploy("web", 3).await?;
    let now = cluster.publish("1.0.0").await?;
    Ok(Rig {
        cluster,
        begin,
        now,
        backend: Backend::Bootc,
        series: "",
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn three_real_hosts() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    let mut rig = ready().await?;
    boot_images::leave_notes(&rig).await?;
    scenarios(&mut rig).await?;
    boot_images::scenarios(&mut rig).await?;
    rpm_ostree::scenarios(&mut rig).await
}

/// The scenarios of `three_real_hosts`, with rpm-ostree as the backend of all pools.
#[tokio::test(flavor = "multi_thread")]
async fn three_real_hosts_of_rpm_ostree() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    if std::env::var_os(SELECTED).is_none() {
        let why = "it takes as long as three_real_hosts, which runs some of its scenarios at its end";
        println!("{ONLY_IN_TEST_REAL}three_real_hosts_of_rpm_ostree: {why}");
        return Ok(());
    }
    let mut rig = ready().await?;
    rpm_ostree::put_on(&mut rig).await?;
    scenarios(&mut rig).await
}
