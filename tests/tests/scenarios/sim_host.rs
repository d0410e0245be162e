//! A simulated host, driven over its bus as the agent drives it, without an agent and without Kubernetes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use berth_tests::hosts::sim::{Catalog, Inhibitor, RebootFault, SimFleet, SimHostConfig};
use berth_tests::hosts::{HostChange, HostLog};
use berth_tests::wait::eventually;
use futures::StreamExt;
use nix::sys::stat::Mode;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{Instant, sleep, timeout};
use zbus::Variant;

mod client;
mod world;

use client::{Ended, LOCK, ServiceProxy, UnitProxy, error_name, wait_for};
use world::{REPOSITORY, SECOND, World};

#[tokio::test]
async fn from_pull_to_the_new_image() -> Result<()> {
    let world = World::start().await?;
    let client = world.client().await?;
    assert_eq!(client.manager.version().await?, "257");
    assert_eq!(world.pull(&client).await?, "done");
    let status = client.status().await?;
    assert_eq!(status["status"]["staged"]["downloadOnly"], true);
    assert_eq!(status["status"]["staged"]["image"]["imageDigest"], world.new);
    assert_eq!(status["status"]["booted"]["image"]["version"], "1.0.0");

    // An unrelated reboot discards a locked image.
    let before = world.host.facts();
    world.host.reboot_now().await?;
    std::fs::create_dir_all(world.host.root().join("run/berth"))?;
    let after = world.host.facts();
    assert_eq!((after.booted.as_str(), after.staged), (world.old.as_str(), None));
    assert_ne!(after.boot_id, before.boot_id);

    // The connection died with the host; the next client pulls again, unlocks and reboots.
    let client = world.client().await?;
    assert_eq!(world.pull(&client).await?, "done");
    let unlock = ["/usr/bin/bootc", "upgrade", "--from-downloaded"];
    assert_eq!(client.run("berth-unlock.service", &unlock, &[]).await?.job, "done");
    assert_eq!(client.status().await?["status"]["staged"]["downloadOnly"], false);
    world.host.settings(|s| s.shutdown_time = SECOND);
    let mut shutdown = client.login.receive_prepare_for_shutdown().await?;
    client.login.reboot_with_flags(0).await?;
    assert!(timeout(SECOND * 30, shutdown.next()).await?.is_some());
    assert!(client.login.preparing_for_shutdown().await?);
    let boot_id = after.boot_id.unwrap();
    world.rebooted(&boot_id).await?;
    let facts = world.host.facts();
    assert_eq!(
        (facts.booted.as_str(), facts.version.as_str()),
        (world.new.as_str(), "2.0.0")
    );
    assert_eq!(facts.rollback.as_deref(), Some(world.old.as_str()));
    let file = std::fs::read_to_string(world.host.root().join("proc/sys/kernel/random/boot_id"))?;
    assert_eq!(Some(file.trim()), facts.boot_id.as_deref());
    let client = world.client().await?;
    assert!(!client.login.preparing_for_shutdown().await?);
    assert_eq!(
        client.status().await?["status"]["booted"]["image"]["imageDigest"],
        world.new
    );
    Ok(())
}

#[tokio::test]
async fn the_record_says_what_happened() -> Result<()> {
    let world = World::start().await?;
    let client = world.client().await?;
    world.pull(&client).await?;
    world.host.power_cut().await?;
    let changes: Vec<_> = world.log.events().into_iter().map(|e| e.change).collect();
    let digest = world.new.clone();
    assert!(matches!(&changes[0], HostChange::Up { digest, .. } if *digest == world.old));
    assert_eq!(changes[1], HostChange::PullStarted { digest: digest.clone() });
    assert_eq!(changes[2], HostChange::PullEnded { digest, ok: true });
    assert_eq!(changes[3], HostChange::Down);
    assert!(matches!(&changes[4], HostChange::Up { digest, .. } if *digest == world.old));
    Ok(())
}

#[tokio::test]
async fn a_pull_outlives_its_client_and_is_adopted() -> Result<()> {
    let world = World::start().await?;
    world.host.settings(|s| s.pull_time = Duration::from_secs(3));
    let first = world.client().await?;
    let command = ["/usr/bin/bootc", "switch", &world.target()];
    first.start(&world.pull_unit(), &command, LOCK, &[]).await?;
    first.conn.close().await?;

    let second = world.client().await?;
    let path = second.manager.get_unit(&world.pull_unit()).await?;
    let unit = UnitProxy::builder(&second.conn).path(path).build().await?;
    assert_eq!(unit.active_state().await?, "activating");
    // A second start of the same pull is refused: the unit's name is the mutex.
    let again = second.start(&world.pull_unit(), &command, LOCK, &[]).await.unwrap_err();
    assert_eq!(error_name(&again), "org.freedesktop.systemd1.UnitExists");

    // The status waits for the pull.
    let began = Instant::now();
    assert_eq!(
        second.status().await?["status"]["staged"]["image"]["imageDigest"],
        world.new
    );
    assert!(began.elapsed() > Duration::from_millis(200));
    // The first client's reference is gone, so the unit is unloaded when it has ended.
    eventually("the unit is unloaded", SECOND * 30, async || {
        let unit = second.manager.get_unit(&world.pull_unit()).await;
        Ok(unit.is_err_and(|error| error_name(&error) == "org.freedesktop.systemd1.NoSuchUnit"))
    })
    .await?;
    assert!(world.host.facts().locked);
    Ok(())
}

#[tokio::test]
async fn a_referenced_unit_stays_until_its_client_goes() -> Result<()> {
    let world = World::start().await?;
    let (first, second) = (world.client().await?, world.client().await?);
    let mut removed = first.manager.receive_job_removed().await?;
    let job = first
        .start("berth-status.service", &["/usr/bin/true"], &[], &[])
        .await?;
    assert_eq!(wait_for(&mut removed, &job).await?, "done");
    let again = second
        .start("berth-status.service", &["/usr/bin/true"], &[], &[])
        .await
        .unwrap_err();
    assert_eq!(error_name(&again), "org.freedesktop.systemd1.UnitExists");
    first.conn.close().await?;
    eventually("the reference is gone", SECOND * 30, async || {
        let start = second.start("berth-status.service", &["/usr/bin/true"], &[], &[]);
        Ok(start.await.is_ok())
    })
    .await
}

fn failed(status: i32) -> Ended {
    Ended {
        job: "failed".to_owned(),
        active: "failed".to_owned(),
        result: "exit-code".to_owned(),
        status,
    }
}

#[tokio::test]
async fn failures_match_the_real_programs() -> Result<()> {
    let world = World::start().await?;
    let client = world.client().await?;
    let unknown = format!("{REPOSITORY}@sha256:{}", "0".repeat(64));
    let ended = client
        .run("berth-pull-0.service", &["/usr/bin/bootc", "switch", &unknown], LOCK)
        .await?;
    assert_eq!(ended, failed(1));
    assert!(
        client
            .read("berth-pull-0.service.err")?
            .ends_with("in registry.test/os: manifest unknown\n")
    );

    let switch = ["/usr/bin/bootc", "switch", "--download-only", &unknown];
    assert_eq!(client.run("berth-probe.service", &switch, &[]).await?, failed(2));
    let unlock = ["/usr/bin/bootc", "upgrade", "--from-downloaded"];
    assert_eq!(client.run("berth-unlock.service", &unlock, &[]).await?, failed(1));
    assert!(
        client
            .read("berth-unlock.service.err")?
            .contains("No staged deployment found")
    );

    world.host.settings(|s| s.bootc_missing = true);
    let version = ["/usr/bin/bootc", "--version"];
    assert_eq!(client.run("berth-version.service", &version, &[]).await?, failed(203));
    Ok(())
}

#[tokio::test]
async fn pulls_fail_as_configured() -> Result<()> {
    let world = World::start().await?;
    let client = world.client().await?;
    let errors = format!("{}.err", world.pull_unit());
    world.host.settings(|s| s.pull_failures = 1);
    assert_eq!(world.pull(&client).await?, "failed");
    world.host.settings(|s| s.disk_full = true);
    assert_eq!(world.pull(&client).await?, "failed");
    assert!(client.read(&errors)?.contains("Insufficient free space"));
    world.host.settings(|s| (s.disk_full, s.registry_down) = (false, true));
    assert_eq!(world.pull(&client).await?, "failed");
    assert!(client.read(&errors)?.contains("connection refused"));

    // Staged but not locked: the only state that the agent must never leave.
    world.host.settings(|s| (s.registry_down, s.lock_failures) = (false, 1));
    let pull = ["/usr/bin/bootc", "switch", &world.target()];
    assert_eq!(client.run(&world.pull_unit(), &pull, LOCK).await?, failed(0));
    assert!(world.host.facts().staged.is_some() && !world.host.facts().locked);
    assert_eq!(client.run(&world.pull_unit(), &pull, LOCK).await?.job, "done");
    assert!(world.host.facts().locked, "the unchanged image is not locked");
    Ok(())
}

#[tokio::test]
async fn a_pull_reports_progress_through_a_fifo() -> Result<()> {
    let world = World::start().await?;
    world.host.settings(|s| s.pull_time = Duration::from_millis(400));
    let client = world.client().await?;
    let fifo = world.host.root().join("run/berth/pull.fifo");
    nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o600))?;
    let reader = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&fifo)?;
    let mut removed = client.manager.receive_job_removed().await?;
    let open = Variant::new(vec![("/run/berth/pull.fifo".to_owned(), "progress".to_owned(), 0u64)]);
    let command = ["/usr/bin/bootc", "switch", "--progress-fd", "3", &world.target()];
    let job = client
        .start(&world.pull_unit(), &command, LOCK, &[("OpenFile", open)])
        .await?;

    let mut lines = BufReader::new(reader).lines();
    let mut next = async || -> Result<Value> {
        let line = timeout(SECOND * 30, lines.next_line()).await??.context("no progress")?;
        Ok(serde_json::from_str(&line)?)
    };
    assert_eq!(next().await?["type"], "Start");
    assert_eq!(next().await?["bytes"], 0);
    let progress = next().await?;
    assert_eq!(
        (&progress["type"], &progress["task"]),
        (&"ProgressBytes".into(), &"pulling".into())
    );
    assert_eq!(progress["bytes"], 75_000_000);
    assert_eq!(wait_for(&mut removed, &job).await?, "done");
    Ok(())
}

#[tokio::test]
async fn a_stopped_pull_stages_nothing() -> Result<()> {
    let world = World::start().await?;
    world.host.settings(|s| s.pull_time = Duration::from_secs(60));
    let client = world.client().await?;
    let mut removed = client.manager.receive_job_removed().await?;
    let command = ["/usr/bin/bootc", "switch", &world.target()];
    let job = client.start(&world.pull_unit(), &command, LOCK, &[]).await?;
    sleep(Duration::from_millis(50)).await;
    client.manager.stop_unit(&world.pull_unit(), "replace").await?;
    assert_eq!(wait_for(&mut removed, &job).await?, "canceled");
    let listed = client
        .manager
        .list_units_by_names(&[&world.pull_unit(), "nothing.service"])
        .await?;
    assert_eq!((listed[0].2.as_str(), listed[0].3.as_str()), ("loaded", "failed"));
    assert_eq!((listed[1].2.as_str(), listed[1].3.as_str()), ("not-found", "inactive"));
    sleep(Duration::from_millis(50)).await;
    let last = world.log.events().pop().map(|e| e.change);
    assert_eq!(
        last,
        Some(HostChange::PullEnded {
            digest: world.new.clone(),
            ok: false
        })
    );
    assert_eq!(world.host.facts().staged, None);
    Ok(())
}

#[tokio::test]
async fn a_deadline_ends_a_unit() -> Result<()> {
    let world = World::start().await?;
    let client = world.client().await?;
    let mut removed = client.manager.receive_job_removed().await?;
    let limit = ("TimeoutStartUSec", Variant::new(50_000u64));
    let job = client
        .start("berth-slow.service", &["/usr/bin/sleep", "60"], &[], &[limit])
        .await?;
    assert_eq!(wait_for(&mut removed, &job).await?, "failed");
    let path = client.manager.get_unit("berth-slow.service").await?;
    let service = ServiceProxy::builder(&client.conn).path(path).build().await?;
    assert_eq!(service.result().await?, "timeout");
    Ok(())
}

#[tokio::test]
async fn reboots_can_be_lost_refused_and_blocked() -> Result<()> {
    let world = World::start().await?;
    let client = world.client().await?;
    let boot = world.host.facts().boot_id;
    world
        .host
        .settings(|s| s.inhibitors = vec![Inhibitor::block("backup", "nightly backup")]);
    assert_eq!(client.login.list_inhibitors().await?[0].1, "backup");
    // logind checks inhibitors for root only with this flag: SD_LOGIND_ROOT_CHECK_INHIBITORS.
    let blocked = client.login.reboot_with_flags(1).await.unwrap_err();
    assert_eq!(error_name(&blocked), "org.freedesktop.login1.BlockedByInhibitorLock");
    world.host.settings(|s| {
        s.inhibitors.clear();
        s.reboot = RebootFault::Refused {
            name: "org.freedesktop.DBus.Error.AccessDenied".to_owned(),
            message: "no".to_owned(),
        };
    });
    assert!(client.login.reboot_with_flags(0).await.is_err());
    world.host.settings(|s| s.reboot = RebootFault::Lost);
    client.login.reboot_with_flags(0).await?;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(world.host.facts().boot_id, boot);
    assert!(!client.login.preparing_for_shutdown().await?);
    world.host.settings(|s| s.reboot = RebootFault::Works);
    client.login.reboot_with_flags(0).await?;
    world.rebooted(&boot.unwrap()).await?;
    Ok(())
}

#[tokio::test]
async fn a_failed_finalization_shows_at_the_next_boot() -> Result<()> {
    let world = World::start().await?;
    world.host.settings(|s| {
        s.finalization_failures = 1;
        s.rivals.insert("zincati.service".to_owned());
    });
    world.host.stage_behind_the_agent(&world.target(), &world.new);
    world.host.reboot_now().await?;
    let client = world.client().await?;
    let names = [
        "ostree-boot-complete.service",
        "zincati.service",
        "rpm-ostreed-automatic.timer",
    ];
    let listed = client.manager.list_units_by_names(&names).await?;
    let active: Vec<_> = listed.iter().map(|u| u.3.as_str()).collect();
    assert_eq!(active, ["failed", "active", "inactive"]);
    assert_eq!(world.host.facts().booted, world.old);
    Ok(())
}

#[tokio::test]
async fn the_bus_may_be_restarted_under_a_running_unit() -> Result<()> {
    let world = World::start().await?;
    world.host.settings(|s| s.pull_time = Duration::from_secs(3));
    let client = world.client().await?;
    let command = ["/usr/bin/bootc", "switch", &world.target()];
    client.start(&world.pull_unit(), &command, LOCK, &[]).await?;
    world.host.restart_bus().await?;
    timeout(SECOND * 30, client.conn.closed()).await?;
    let client = world.client().await?;
    let mut removed = client.manager.receive_job_removed().await?;
    let listed = client.manager.list_units_by_names(&[&world.pull_unit()]).await?;
    assert_eq!(listed[0].3, "activating");
    assert_eq!(wait_for(&mut removed, &listed[0].9).await?, "done");
    assert!(world.host.facts().locked);
    Ok(())
}

#[tokio::test]
async fn a_fleet_starts_in_parallel_and_leaves_nothing_behind() -> Result<()> {
    let (catalog, log) = (Catalog::default(), HostLog::default());
    let digest = catalog.publish("1.0.0");
    let fleet = SimFleet::start(20, |i: usize| {
        SimHostConfig::new(&format!("node-{i}"), REPOSITORY, &digest, &catalog, &log)
    })
    .await?;
    assert_eq!(fleet.running(&digest), 20);
    let dir = fleet.host("node-7").context("no node-7")?.dir().to_owned();
    assert!(Path::new(&dir).exists());
    drop(fleet);
    assert!(!dir.exists());
    Ok(())
}
