//! The agent's host side against a simulated host: its bus, its bootc, its faults. The agent's loop does not run here.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_agent::host::clock::Clock;
use berth_agent::host::{BootcStatus, BootcVersion, Host, HostError, HostStatus, PullState, failure};
use berth_core::agent::exec_credential::answer;
use berth_core::agent::exec_credential::command::Entry;
use berth_core::agent::reason::Reason;
use berth_core::agent::storage::{StagingLock, Storage};
use berth_tests::hosts::sim::{Inhibitor, RebootFault, credentials};
use berth_tests::hosts::{both_locks, ostrees_lock};
use berth_tests::wait::eventually;

use super::one_host::{World, ended, failure_of_pull, image, is_pulling, lock};

async fn status(host: &Host) -> Result<HostStatus> {
    match host.status().await? {
        BootcStatus::Host(status) => Ok(*status),
        other => bail!("not a bootc host: {other:?}"),
    }
}

#[tokio::test]
async fn pulls_locks_unlocks_and_removes() -> Result<()> {
    let world = World::start(|_| ()).await?;
    let host = world.agent().await?;
    let version = BootcVersion::Version {
        version: "1.16.9".to_owned(),
        numbers: (1, 16, 9),
        download_only: Some(false),
    };
    assert_eq!(host.bootc_version().await?, version);
    let before = status(&host).await?;
    assert_eq!(before.booted.digest.as_ref(), Some(&world.v1));
    assert!(before.staged.is_none() && host.find_pull(None).await?.is_none());
    assert_eq!(host.boot_id()?.as_str(), world.sim.facts().boot_id.context("down")?);

    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    host.forget_pull(&world.v2).await?;
    assert!(host.find_pull(Some(&world.v2)).await?.is_none());
    let staged = status(&host).await?.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&world.v2), true));

    host.unlock().await?;
    assert!(!world.sim.facts().locked);
    lock(&host).await?;
    assert!(world.sim.facts().locked);
    // Another process stages another image between the query and the removal.
    world
        .sim
        .stage_behind_the_agent("registry.test/other:1", &world.v3.to_string());
    let error = host.unstage(&staged).await.err().context("removed something else")?;
    assert!(error.to_string().contains("staged instead of"), "{error}");
    let other = status(&host).await?.staged.context("nothing staged")?;
    host.unstage(&other).await?;
    assert!(status(&host).await?.staged.is_none());
    host.unstage(&other).await?;
    assert_eq!(
        status(&host).await?.booted.digest.as_ref(),
        Some(&world.v1),
        "a missing deployment is not removed again"
    );
    let error = host.unlock().await.err().context("unlocked nothing")?;
    assert!(error.to_string().contains("No staged deployment"), "{error}");
    Ok(())
}

/// The image must be locked while bootc still pulls its bound images: otherwise any reboot meanwhile would apply it.
#[tokio::test]
async fn an_image_is_locked_before_its_pull_ends() -> Result<()> {
    for version in ["1.16.9", "1.17.0"] {
        let world = World::start(|_| ()).await?;
        world.sim.settings(|s| {
            s.bootc_version = version.to_owned();
            s.after_staging = Duration::from_secs(8);
        });
        let host = world.agent().await?;
        let BootcVersion::Version { download_only, .. } = host.bootc_version().await? else {
            bail!("{version} is a supported version")
        };
        let lock = StagingLock::of(Storage::Ostree, download_only == Some(true)).context("ostree locks")?;
        host.start_pull(&image(&world.v2), lock).await?;
        eventually("the lock", Duration::from_secs(10), async || {
            Ok(world.sim.facts().locked)
        })
        .await?;
        let armed = world.sim.armed_times();
        ensure!(is_pulling(&host).await?, "the pull has ended");
        println!("bootc {version}: staged and not locked for {armed:?}, in a pull that runs for 8 s after staging");
        match version {
            "1.17.0" => ensure!(armed.is_empty(), "{armed:?}"),
            _ => ensure!(armed.iter().all(|t| *t < Duration::from_secs(4)), "{armed:?}"),
        }
        assert_eq!(ended(&host).await?, PullState::Succeeded);
        host.forget_pull(&world.v2).await?;
        ensure!(status(&host).await?.staged.is_some_and(|s| s.locked), "{version}");
        host.unlock().await?;
        ensure!(!world.sim.facts().locked, "{version}: the early lock stays");
    }
    Ok(())
}

/// An agent may exit after it has noticed the staging, but before it has locked the image. The next agent gets no
/// signal about the staging.
#[tokio::test]
async fn an_adopted_pulls_image_is_locked_early() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.after_staging = Duration::from_secs(20));
    let host = world.agent().await?;
    host.bootc_version().await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    drop(host);
    eventually("the staging", Duration::from_secs(10), async || {
        Ok(world.sim.facts().staged.is_some())
    })
    .await?;
    ensure!(!world.sim.facts().locked, "the image is locked already");
    let host = world.agent().await?;
    host.find_pull(None).await?;
    eventually("the lock", Duration::from_secs(10), async || {
        Ok(world.sim.facts().locked)
    })
    .await?;
    ensure!(is_pulling(&host).await?, "the pull has ended");
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    host.forget_pull(&world.v2).await?;
    host.unlock().await?;
    ensure!(!world.sim.facts().locked, "the image was locked again");
    Ok(())
}

/// The agent reads bootc's help only to choose a lock. While the help fails, the agent uses ostree's lock.
#[tokio::test]
async fn a_failing_help_leaves_ostrees_lock() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world
        .sim
        .settings(|s| (s.bootc_version, s.no_help) = ("1.17.0".to_owned(), true));
    let host = world.agent().await?;
    let expected = BootcVersion::Version {
        version: "1.17.0".to_owned(),
        numbers: (1, 17, 0),
        download_only: None,
    };
    assert_eq!(host.bootc_version().await?, expected);
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    host.forget_pull(&world.v2).await?;
    ensure!(status(&host).await?.staged.is_some_and(|s| s.locked), "not locked");
    Ok(())
}

/// bootc does not lock an image that is already staged, even with `--download-only`. The agent must lock this image.
#[tokio::test]
async fn an_image_staged_by_others_is_locked() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.bootc_version = "1.17.0".to_owned());
    let host = world.agent().await?;
    host.bootc_version().await?;
    let image = image(&world.v2);
    world
        .sim
        .stage_behind_the_agent(image.reference.as_str(), &world.v2.to_string());
    let both = both_locks()?;
    host.start_pull(&image, both).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    assert!(world.sim.facts().locked);
    Ok(())
}

#[tokio::test]
async fn asks_whether_the_clock_is_synchronized() -> Result<()> {
    let world = World::start(|_| ()).await?;
    let host = world.agent().await?;
    for (said, known) in [(Some(true), Some(true)), (Some(false), Some(false)), (None, None)] {
        world.sim.settings(|s| s.clock_synchronized = said);
        assert_eq!(Clock::new(false).is_synchronized(&host, true).await, known);
    }
    assert_eq!(
        Clock::new(true).is_synchronized(&host, true).await,
        Some(true),
        "the admin's setting"
    );
    let mut clock = Clock::new(false);
    assert_eq!(clock.is_synchronized(&host, true).await, None);
    world.sim.settings(|s| s.clock_synchronized = Some(true));
    assert_eq!(
        (clock.is_synchronized(&host, true).await, clock.known()),
        (None, None),
        "not queried at every turn"
    );
    Ok(())
}

#[tokio::test]
async fn reports_progress_without_querying_bootc() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.pull_time = Duration::from_secs(6));
    let host = world.agent().await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert!(matches!(host.status().await, Err(HostError::Busy(_))));
    assert!(matches!(host.unlock().await, Err(HostError::Busy(_))));
    assert!(matches!(
        host.start_pull(&image(&world.v3), ostrees_lock()?).await,
        Err(HostError::Busy(_))
    ));
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    let mut changes = host.changes();
    let mut seen = None;
    for _ in 0..50 {
        seen = host.pull_progress().or(seen);
        if seen.is_some_and(|p| p.bytes > 0) {
            break;
        }
        let _ = tokio::time::timeout(Duration::from_millis(100), changes.changed()).await;
    }
    let seen = seen.context("no progress")?;
    assert!(seen.bytes_total > seen.bytes && seen.bytes > 0, "{seen:?}");
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    assert_eq!((host.pull_progress(), world.pulls()), (None, 1));
    Ok(())
}

/// bootc hangs with the sysroot locked when its progress pipe is full: the pipe must be read even without an agent.
#[tokio::test]
async fn a_pull_ends_without_its_agent() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| {
        s.pull_time = Duration::from_secs(1);
        // Four such lines are more than the pipe takes.
        s.progress_padding = 512 << 10;
    });
    let agent = world.agent().await?;
    agent.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    drop(agent);
    eventually("the lock", Duration::from_secs(15), async || {
        Ok(world.sim.facts().locked)
    })
    .await?;
    let next = world.agent().await?;
    assert_eq!(ended(&next).await?, PullState::Succeeded);
    next.forget_pull(&world.v2).await?;
    let left: Vec<_> = world
        .sim
        .units()
        .into_iter()
        .filter(|u| u.starts_with("berth-"))
        .collect();
    assert_eq!(left, [""; 0], "nothing is left behind");
    Ok(())
}

/// While no agent runs, another process reads the pipe. This process stops when the next agent starts to read.
#[tokio::test]
async fn the_next_agent_continues_reading_the_progress() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.pull_time = Duration::from_secs(4));
    let first = world.agent().await?;
    first.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    drop(first);
    // Long enough for the other reader to start.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = world.agent().await?;
    let mut seen = None;
    for _ in 0..50 {
        second.find_pull(None).await?;
        seen = second.pull_progress().or(seen);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(seen.is_some_and(|p| p.bytes > 0), "{seen:?}");
    assert_eq!(ended(&second).await?, PullState::Succeeded);
    Ok(())
}

#[tokio::test]
async fn the_next_agent_adopts_the_pull() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.pull_time = Duration::from_secs(5));
    let first = world.agent().await?;
    first.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    drop(first);

    let second = world.agent().await?;
    let pull = second.find_pull(None).await?.context("not found")?;
    assert_eq!((pull.digest, pull.state), (world.v2.clone(), PullState::Running));
    second.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert_eq!(ended(&second).await?, PullState::Succeeded);
    drop(second);

    let third = world.agent().await?;
    assert_eq!(ended(&third).await?, PullState::Succeeded, "still on record");
    assert_eq!(world.pulls(), 1);
    // The running pull of the desired image is found even without its note.
    third.forget_pull(&world.v2).await?;
    third.start_pull(&image(&world.v3), ostrees_lock()?).await?;
    std::fs::remove_file(world.sim.root().join("run/berth/pull.json"))?;
    let found = third.find_pull(Some(&world.v3)).await?.map(|pull| pull.state);
    assert_eq!(found, Some(PullState::Running));
    Ok(())
}

#[tokio::test]
async fn a_failure_is_reported_until_forgotten() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.registry_down = true);
    let host = world.agent().await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    for host in [&host, &world.agent().await?] {
        let message = failure_of_pull(host).await?;
        ensure!(message.contains("connection refused"), "{message}");
        assert_eq!(failure::classify(&message).reason.as_str(), "RegistryUnavailable");
    }
    assert!(status(&host).await?.staged.is_none(), "a failed pull staged an image");
    world.sim.settings(|s| s.registry_down = false);
    // The failed unit does not block the next pull, whether or not it was forgotten.
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);

    world.sim.settings(|s| s.lock_failures = 1);
    host.forget_pull(&world.v2).await?;
    host.start_pull(&image(&world.v3), ostrees_lock()?).await?;
    let message = failure_of_pull(&host).await?;
    assert_eq!(failure::classify(&message).reason.as_str(), "LockFailed");
    let staged = status(&host).await?.staged.context("nothing staged")?;
    assert!(!staged.locked, "the agent must see the image as bootc does");
    Ok(())
}

/// Progress may be lost, but the pull must not fail.
#[tokio::test]
async fn a_bootc_without_the_hidden_flag_pulls_without_progress() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.no_progress_fd = true);
    let host = world.agent().await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    let message = failure_of_pull(&host).await?;
    ensure!(message.contains("--progress-fd"), "{message}");
    host.forget_pull(&world.v2).await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    Ok(())
}

#[tokio::test]
async fn a_pull_can_be_cancelled() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.pull_time = Duration::from_secs(60));
    let host = world.agent().await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    host.cancel_pull(&world.v2).await?;
    assert!(host.find_pull(Some(&world.v2)).await?.is_none());
    assert!(status(&host).await?.staged.is_none());
    host.cancel_pull(&world.v2).await?;
    world.sim.settings(|s| s.pull_time = Duration::from_millis(10));
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    Ok(())
}

#[tokio::test]
async fn a_broker_that_restarts_is_found_again() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.pull_time = Duration::from_secs(8));
    let host = world.agent().await?;
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    let mut changes = host.changes();
    world.sim.restart_bus().await?;
    tokio::time::timeout(Duration::from_secs(20), changes.changed())
        .await
        .context("no signal of the new broker")??;
    ensure!(is_pulling(&host).await?, "the pull has ended");
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    assert!(status(&host).await?.staged.is_some());
    assert_eq!(world.pulls(), 1);
    Ok(())
}

#[tokio::test]
async fn hosts_that_cannot_be_updated_say_why() -> Result<()> {
    let world = World::start(|_| ()).await?;
    world.sim.settings(|s| s.bootc_missing = true);
    let host = world.agent().await?;
    assert_eq!(host.bootc_version().await?, BootcVersion::Missing);
    assert_eq!(
        host.status().await.err().map(|e| e.reason()),
        Some(Reason::BootcMissing)
    );
    world.sim.settings(|s| {
        s.bootc_missing = false;
        s.bootc_version = "1.11.0".to_owned();
    });
    world.sim.layer(&["htop"]);
    let host = world.agent().await?;
    assert_eq!(host.bootc_version().await?, BootcVersion::TooOld("1.11.0".to_owned()));
    assert_eq!(host.status().await?, BootcStatus::Layered);
    world.sim.settings(|s| {
        s.not_bootc = true;
        s.rivals.insert("zincati.service".to_owned());
    });
    assert_eq!(host.status().await?, BootcStatus::NotBootc);
    assert_eq!(host.rivals().await?, ["zincati.service"]);
    assert!(!host.finalization_failed().await?);
    Ok(())
}

#[tokio::test]
async fn reboots_through_logind_and_names_who_blocks() -> Result<()> {
    let world = World::start(|_| ()).await?;
    let host = world.agent().await?;
    assert!(host.inhibitors().await?.is_empty() && !host.shutting_down().await?);
    world
        .sim
        .settings(|s| s.inhibitors = vec![Inhibitor::block("backup", "it runs")]);
    assert_eq!(
        host.inhibitors().await?[0].to_string(),
        "backup (process 4711): it runs"
    );
    assert!(matches!(host.reboot().await, Err(HostError::RebootRefused(_))));
    world.sim.settings(|s| {
        s.inhibitors.clear();
        s.reboot = RebootFault::Works;
        s.finalization_failures = 1;
    });
    host.start_pull(&image(&world.v2), ostrees_lock()?).await?;
    ended(&host).await?;
    host.unlock().await?;
    let before = host.boot_id()?;
    host.reboot().await?;
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if host.boot_id().is_ok_and(|now| now != before) && host.rivals().await.is_ok() {
            break;
        }
    }
    assert_ne!(host.boot_id()?, before);
    assert!(host.finalization_failed().await?);
    assert!(host.find_pull(None).await?.is_none(), "the pull is of an earlier boot");
    assert_eq!(status(&host).await?.booted.digest.as_ref(), Some(&world.v1));
    Ok(())
}

#[tokio::test]
async fn two_agents_never_act_at_once() -> Result<()> {
    let world = World::start(|_| ()).await?;
    let (first, second) = (world.agent().await?, world.agent().await?);
    first.claim().await?;
    let mut waiting = Box::pin(second.claim());
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut waiting)
            .await
            .is_err()
    );
    drop(first);
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .context("the second agent still waits")??;
    Ok(())
}

/// The files with a credential are readable by root alone while its program runs, also if an earlier file was not.
#[tokio::test]
async fn a_credential_is_in_private_files_until_its_program_ends() -> Result<()> {
    let world = World::start(|_| ()).await?;
    let host = world.agent().await?;
    world.sim.settings(|s| s.credentials.time = Duration::from_secs(2));
    let (name, value) = credentials::VARIABLE;
    let entry = Entry {
        api_version: Some("client.authentication.k8s.io/v1".to_owned()),
        command: Some("aws".to_owned()),
        args: credentials::ARGUMENTS.map(str::to_owned).to_vec(),
        env: vec![(name.to_owned(), value.to_owned())],
        needs_terminal: false,
        cluster: Some(serde_json::json!({"server": "https://192.0.2.1"})),
    };
    let command = entry.command()?;
    let files = ["out", "env"].map(|kind| world.sim.root().join("run/berth").join(format!("credential.{kind}")));
    for file in &files {
        std::fs::write(file, "old")?;
    }
    let programs = host.credential_programs();
    let watch = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for file in &files {
            let mode = std::fs::metadata(file)?.permissions().mode();
            ensure!(mode & 0o777 == 0o600, "{}: {mode:o}", file.display());
        }
        Ok(())
    };
    let (output, watched) = tokio::join!(programs.run(&command), watch);
    watched?;
    let output = output.map_err(anyhow::Error::msg)?;
    let now = jiff::Timestamp::now();
    let credential = answer::parse(&output, &command.api_version, now)?;
    ensure!(
        credential
            .token
            .is_some_and(|token| token.expose().starts_with("node-token."))
    );
    ensure!(files.iter().all(|file| !file.exists()), "a file is left");

    world.sim.settings(|s| s.credentials.time = Duration::from_secs(60));
    let error = programs.run(&command).await.err().context("it did not end")?;
    ensure!(error == "did not end within 20 s", "{error}");
    ensure!(files.iter().all(|file| !file.exists()), "a file is left");
    let missing = Entry {
        command: Some("no-such-program".to_owned()),
        ..entry
    };
    let error = programs.run(&missing.command()?).await.err().context("it was found")?;
    ensure!(error.starts_with("was not found on the host: "), "{error}");
    Ok(())
}
