//! The agent's host side with rpm-ostree: its client against the stand-in of the daemon, on a simulated host.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_agent::host::{Host, HostError, PullState, Terms, failure};
use berth_api::backend::{Backend, BackendRule};
use berth_core::agent::facts::{Deployments, Os};
use berth_core::agent::reason::Reason;
use berth_tests::hosts::both_locks;
use berth_tests::hosts::sim::Updaters;
use berth_tests::rpmostreed::{Broken, Faults, SOCKET};
use zbus::Variant;

use super::one_host::{REPOSITORY, World, ended, image, is_pulling, lock};

async fn world(updaters: Updaters, pull_time: Duration) -> Result<World> {
    World::start(|config| {
        config.settings.pull_time = pull_time;
        config.settings.reboot_time = Duration::from_millis(50);
        updaters.install(&mut config.settings);
        config.packages = updaters.packages();
    })
    .await
}

/// Starts to pull the second image.
async fn begin(world: &World, host: &Host) -> Result<()> {
    Ok(host.start_pull(&image(&world.v2), both_locks()?).await?)
}

/// Pulls the second image to its end, and forgets the pull.
async fn pull(world: &World, host: &Host) -> Result<PullState> {
    begin(world, host).await?;
    let state = ended(host).await?;
    host.forget_pull(&world.v2).await?;
    Ok(state)
}

fn options_of(world: &World, method: &str) -> Vec<BTreeMap<String, String>> {
    let calls = world.sim.rpm_ostree(|f| f.calls.clone()).into_iter();
    let meant = calls.filter(|call| call.method == method);
    meant.map(|call| call.options).collect()
}

async fn look(host: &Host) -> Result<Deployments> {
    match host.survey(&Terms::default()).await?.os {
        Os::Bootc(known) => Ok(*known),
        other => bail!("no deployments: {other:?}"),
    }
}

#[tokio::test]
async fn rpm_ostree_stages_locks_unlocks_and_removes() -> Result<()> {
    let world = world(Updaters::Layered, Duration::from_millis(300)).await?;
    let host = world.agent().await?;
    let before = look(&host).await?;
    assert_eq!(
        (before.backend.name, before.backend.reason.as_str()),
        (Backend::RpmOstree, "LayeredHost")
    );
    assert_eq!(before.backend.layered_packages, ["htop"]);
    assert_eq!(
        (before.booted.digest.as_ref(), &before.staged),
        (Some(&world.v1), &None)
    );

    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let after = look(&host).await?;
    let staged = after.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&world.v2), true));
    ensure!(!after.staged_layers && world.sim.armed_times().is_empty(), "late");
    // The agent sets every option, rather than rely on the daemon's defaults.
    let asked = options_of(&world, "Rebase");
    let asked = asked.first().context("no Rebase")?;
    for (key, expected) in [
        ("lock-finalization", "b true".to_owned()),
        ("allow-downgrade", "b true".to_owned()),
        (
            "initiating-command-line",
            format!("s berth: pull and stage {}", world.v2),
        ),
    ] {
        assert_eq!(asked.get(key), Some(&expected), "{key} in {asked:?}");
    }
    // The daemon has exited meanwhile and has forgotten all its answers.
    world.sim.kill_rpm_ostree().await;
    host.unlock().await?;
    ensure!(!world.sim.facts().locked && !look(&host).await?.staged.is_some_and(|s| s.locked));
    lock(&host).await?;
    ensure!(world.sim.facts().locked && look(&host).await?.staged.is_some_and(|s| s.locked));
    // Another pull of the same digest finds it staged.
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let other = berth_api::node::Deployment {
        image: "registry.test/other".to_owned(),
        ..staged.clone()
    };
    let refused = host.unstage(&other).await;
    ensure!(refused.is_err_and(|e| e.to_string().contains("staged instead of")));
    host.unstage(&staged).await?;
    ensure!(world.sim.facts().staged.is_none());
    host.unstage(&staged).await?;
    terms_are_heeded(&host).await
}

async fn terms_are_heeded(host: &Host) -> Result<()> {
    // A pool that rules out rpm-ostree: the error names the package that would be lost.
    let only_bootc = Terms {
        rule: BackendRule::Bootc,
        ..Terms::default()
    };
    let Os::Unusable { reason, message } = host.survey(&only_bootc).await?.os else {
        bail!("bootc would drop a package")
    };
    ensure!(reason == Reason::LayeredHost && message.contains("htop"), "{message}");
    // An update that began with rpm-ostree ends with it.
    let begun = Terms {
        begun: Some(Backend::RpmOstree),
        ..only_bootc
    };
    ensure!(matches!(host.survey(&begun).await?.os, Os::Bootc(known) if known.backend.reason == "Begun"));
    Ok(())
}

#[tokio::test]
async fn the_next_agent_joins_the_transaction_and_cancels_it() -> Result<()> {
    // The pull takes long enough to be canceled before its end, even on a busy machine.
    let world = world(Updaters::RpmOstree, Duration::from_secs(60)).await?;
    let first = world.agent().await?;
    look(&first).await?;
    begin(&world, &first).await?;
    ensure!(first.survey(&Terms::default()).await.is_err(), "queried during a pull");
    drop(first);
    let second = world.agent().await?;
    ensure!(is_pulling(&second).await?);
    second.cancel_pull(&world.v2).await?;
    ensure!(second.find_pull(Some(&world.v2)).await?.is_none() && world.sim.facts().staged.is_none());
    // A pull that exceeds its time limit is canceled automatically.
    look(&second).await?;
    begin(&world, &second).await?;
    drop(second);
    let path = world.sim.root().join("run/berth/pull.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let long_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(3);
    ensure!(record["began"].is_string(), "{record}");
    record["began"] = long_ago.to_string().into();
    std::fs::write(&path, record.to_string())?;
    let second = world.agent().await?;
    let PullState::Failed { message } = ended(&second).await? else {
        bail!("the pull exceeded its time limit")
    };
    ensure!(message.contains("the pull did not end within 2 h"), "{message}");
    assert_eq!(failure::classify(&message).reason, Reason::PullTimedOut);
    free(&world).await?;
    ensure!(world.sim.facts().staged.is_none(), "it was canceled");
    second.forget_pull(&world.v2).await?;
    // If a pull ends while no agent listens, its result is inferred from the staged deployment.
    world.sim.settings(|s| s.pull_time = Duration::from_millis(200));
    look(&second).await?;
    begin(&world, &second).await?;
    drop(second);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let third = world.agent().await?;
    assert_eq!(ended(&third).await?, PullState::Succeeded);
    Ok(())
}

#[tokio::test]
async fn daemon_errors_are_reported_verbatim() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(200)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    world.sim.rpm_ostree(|f| f.dies_in_transaction = 1);
    let PullState::Failed { message } = pull(&world, &host).await? else {
        bail!("the daemon died")
    };
    ensure!(message.contains("exited during the pull"), "{message}");
    world.sim.rpm_ostree(|f| {
        f.fails_with
            .push_back("Could not depsolve transaction; 1 problem".to_owned())
    });
    look(&host).await?;
    let PullState::Failed { message } = pull(&world, &host).await? else {
        bail!("the transaction failed")
    };
    assert_eq!(failure::classify(&message).reason, Reason::LayeringFailed);
    // A daemon that exits between a call and its reply, and missing keys.
    world.sim.rpm_ostree(|f| {
        f.no_reply = 2;
        f.broken = [
            ("version".to_owned(), Broken::Missing),
            ("timestamp".to_owned(), Broken::Malformed),
        ]
        .into();
    });
    let known = look(&host).await?;
    assert_eq!(
        (known.booted.digest.as_ref(), &known.booted.version),
        (Some(&world.v1), &None)
    );
    world.sim.rpm_ostree(|f| f.policy = "stage".to_owned());
    let survey = host.survey(&Terms::default()).await?;
    assert_eq!(survey.policy.as_deref(), Some("stage"));
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    Ok(())
}

/// If ostree lacks `--unlock`, only the daemon can unlock: it finalizes and reboots in one call.
#[tokio::test]
async fn the_daemon_finalizes_where_ostree_cannot_unlock() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    world.sim.settings(|s| s.old_ostree = true);
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    ensure!(look(&host).await?.staged.is_some_and(|s| s.locked));
    host.unlock().await?;
    ensure!(world.sim.facts().locked, "the deployment stays locked on the host");
    drop(host);
    let host = world.agent().await?;
    ensure!(look(&host).await?.staged.is_some_and(|s| !s.locked), "the note is lost");
    lock(&host).await?;
    ensure!(look(&host).await?.staged.is_some_and(|s| s.locked));
    host.unlock().await?;
    // A transaction of another client does not count as a refused reboot.
    let foreign = world.sim.rpm_ostree_client().await?;
    foreign.os().await?.cleanup(&["repomd"]).await?;
    let busy = host
        .reboot()
        .await
        .err()
        .context("a reboot was requested during another transaction")?;
    ensure!(matches!(busy, HostError::Busy(_)), "{busy:?}");
    drop(foreign);
    free(&world).await?;
    host.reboot().await?;
    let asked = options_of(&world, "FinalizeDeployment");
    let asked = asked.last().context("no FinalizeDeployment")?;
    assert_eq!(asked.get("checksum"), Some(&format!("s {}", world.v2)), "{asked:?}");
    for _ in 0..600 {
        let facts = world.sim.facts();
        if facts.boot_id.is_some() && facts.booted == world.v2.to_string() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the image does not run: {:?}", world.sim.facts())
}

#[tokio::test]
async fn the_next_agent_joins_the_running_pull() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(5)).await?;
    let first = world.agent().await?;
    look(&first).await?;
    // A transaction whose address was lost is joined by the same call.
    world
        .sim
        .rpm_ostree(|f| f.loses_reply_of.push_back("Rebase".to_owned()));
    begin(&world, &first).await?;
    assert_eq!(options_of(&world, "Rebase").len(), 2);
    drop(first);
    let second = world.agent().await?;
    assert_eq!(ended(&second).await?, PullState::Succeeded);
    assert_eq!(world.pulls(), 1);
    Ok(())
}

/// A pull is refused while another client's transaction runs. Afterwards, the agent's image replaces the other client's
/// image and is locked.
#[tokio::test]
async fn a_foreign_transaction_is_awaited() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(5)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    let foreign = world.sim.rpm_ostree_client().await?;
    let theirs = format!("ostree-unverified-registry:{REPOSITORY}@{}", world.v3);
    let options = HashMap::from([("lock-finalization", Variant::from(false))]);
    let address = foreign.os().await?.rebase(options, &theirs, &[]).await?;
    let refused = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = host.start_pull(&image(&world.v2), both_locks()?).await;
        begun.err().context("a pull began during another transaction")
    };
    let (theirs, refused) = tokio::join!(foreign.follow(&address), refused);
    ensure!(theirs?.ok);
    let refused = refused?;
    ensure!(matches!(refused, HostError::Busy(_)), "{refused:?}");
    ensure!(host.find_pull(None).await?.is_none(), "the refused pull is on record");
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let staged = look(&host).await?.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&world.v2), true));
    ensure!(world.sim.facts().locked);
    Ok(())
}

/// An unreadable lock is an error. No decision may assume that the lock is present or missing.
#[tokio::test]
async fn an_unreadable_lock_is_an_error() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let state = world.sim.root().join("run/ostree/staged-deployment");
    let whole = std::fs::read(&state)?;
    for cut in [Some(&b""[..]), whole.get(..100), None] {
        match cut {
            Some(bytes) => std::fs::write(&state, bytes)?,
            None => std::fs::remove_file(&state)?,
        }
        let Os::Unusable { reason, message } = host.survey(&Terms::default()).await?.os else {
            bail!("the unreadable lock was taken for an answer: {cut:?}")
        };
        ensure!(reason == Reason::StatusFailed, "{reason:?} {message}");
        ensure!(
            message.contains("cannot read whether the staged deployment is locked"),
            "{message}"
        );
    }
    std::fs::write(&state, whole)?;
    ensure!(look(&host).await?.staged.is_some_and(|staged| staged.locked));
    Ok(())
}

/// Without this report, an admin would learn only after the reboot that the kubelet never starts with the new image.
#[tokio::test]
async fn an_image_without_a_required_unit_is_reported() -> Result<()> {
    for updaters in [Updaters::Bootc, Updaters::RpmOstree] {
        let world = world(updaters, Duration::from_millis(100)).await?;
        let host = world.agent().await?;
        let lock = look(&host).await?.staging_lock().context("no staging lock")?;
        host.start_pull(&image(&world.v2), lock).await?;
        assert_eq!(ended(&host).await?, PullState::Succeeded);
        host.forget_pull(&world.v2).await?;
        let links = world.sim.root().join("etc/systemd/system/kubelet.service.requires");
        std::fs::create_dir_all(&links)?;
        std::os::unix::fs::symlink("../berth-firstboot.service", links.join("berth-firstboot.service"))?;
        let why = look(&host).await?.unit_missing();
        ensure!(why.is_none(), "reported without the image's files: {why:?}");
        let files = world.sim.staged_files().context("nothing is staged")?;
        std::fs::create_dir_all(files.join("usr/lib/systemd/system"))?;
        let why = look(&host)
            .await?
            .unit_missing()
            .context("the missing unit is not reported")?;
        ensure!(
            why.contains("rm /etc/systemd/system/kubelet.service.requires/"),
            "{why}"
        );
        std::fs::write(files.join("usr/lib/systemd/system/berth-firstboot.service"), "")?;
        let why = look(&host).await?.unit_missing();
        ensure!(why.is_none(), "the image has the unit: {why:?}");
    }
    Ok(())
}

/// The daemon's `Cleanup` of pending deployments would also remove the deployment that a rollback has queued.
#[tokio::test]
async fn removal_keeps_a_queued_rollback() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    host.unlock().await?;
    drop(host);
    world.sim.reboot_now().await?;
    let foreign = world.sim.rpm_ostree_client().await?;
    let queued = foreign.os().await?.rollback(HashMap::new()).await?;
    ensure!(foreign.follow(&queued).await?.ok);
    free(&world).await?;
    let host = world.agent().await?;
    let known = look(&host).await?;
    ensure!(known.rollback_queued, "{known:?}");
    host.start_pull(&image(&world.v3), both_locks()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    host.forget_pull(&world.v3).await?;
    let known = look(&host).await?;
    let staged = known.staged.context("nothing staged")?;
    ensure!(known.rollback_queued && staged.digest.as_ref() == Some(&world.v3));
    host.unstage(&staged).await?;
    let known = look(&host).await?;
    ensure!(known.staged.is_none(), "the staged deployment is still there");
    let rollback = known.rollback.context("the rollback is gone")?;
    ensure!(known.rollback_queued && rollback.digest.as_ref() == Some(&world.v1));
    // Without a rollback the daemon removes the deployment.
    let back = foreign.os().await?.rollback(HashMap::new()).await?;
    ensure!(foreign.follow(&back).await?.ok);
    free(&world).await?;
    host.start_pull(&image(&world.v3), both_locks()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    host.forget_pull(&world.v3).await?;
    host.unstage(&staged).await?;
    let known = look(&host).await?;
    ensure!(known.staged.is_none() && known.rollback.is_some(), "{known:?}");
    Ok(())
}

/// If the daemon cannot start, the pull ends with an error. Otherwise, a drained node would never be given back.
#[tokio::test]
async fn a_daemon_that_cannot_start_is_reported() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(60)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    begin(&world, &host).await?;
    drop(host);
    world.sim.rpm_ostree(|f| f.fails_to_start = true);
    world.sim.kill_rpm_ostree().await;
    let host = world.agent().await?;
    let PullState::Failed { message } = ended(&host).await? else {
        bail!("the pull has not ended")
    };
    ensure!(message.contains("rpm-ostreed.service cannot be started"), "{message}");
    let Os::Unusable { reason, message } = host.survey(&Terms::default()).await?.os else {
        bail!("deployments were read without the daemon")
    };
    ensure!(
        reason == Reason::StatusFailed && message.contains("rpm-ostreed.service cannot be started"),
        "{reason:?} {message}"
    );
    world.sim.rpm_ostree(|f| f.fails_to_start = false);
    look(&host).await?;
    Ok(())
}

/// D-Bus stops waiting for a daemon that starts this slowly. The agent instead requests the start from systemd, and
/// waits.
#[tokio::test]
async fn a_slow_daemon_is_awaited() -> Result<()> {
    const SLOW: Duration = Duration::from_secs(10);
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    world.sim.rpm_ostree(|f| f.slow_start = SLOW);
    world.sim.kill_rpm_ostree().await;
    let foreign = world.sim.rpm_ostree_client().await?;
    let begun = tokio::time::Instant::now();
    let sysroot = foreign.sysroot().await?;
    let (by_the_bus, known) = tokio::join!(sysroot.reload(), look(&host));
    ensure!(by_the_bus.is_err(), "the bus waited long enough");
    assert_eq!(known?.booted.digest.as_ref(), Some(&world.v1));
    ensure!(begun.elapsed() >= SLOW, "the daemon started at once");
    Ok(())
}

/// A transaction that was created but not started blocks all others until the agent disconnects from the bus.
#[tokio::test]
async fn an_unstarted_transaction_is_released() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    world.sim.settings(|s| s.old_ostree = true);
    // Keeps the daemon running, so that no answer comes from another instance.
    world.sim.rpm_ostree(|f| f.idle_exit = Duration::from_secs(600));
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let staged = look(&host).await?.staged.context("nothing staged")?;
    for fault in [no_socket as fn(&mut Faults), no_reply_to_finalize] {
        host.unlock().await?;
        world.sim.rpm_ostree(fault);
        let refused = host.reboot().await.err().context("the transaction was started")?;
        ensure!(matches!(refused, HostError::RebootRefused(_)), "{refused:?}");
        free(&world).await?;
        lock(&host).await?;
    }
    world.sim.rpm_ostree(no_socket);
    let failed = host
        .unstage(&staged)
        .await
        .err()
        .context("the transaction was started")?;
    assert_eq!(failed.reason(), Reason::HostToolFailed);
    free(&world).await?;
    host.unstage(&staged).await?;
    ensure!(world.sim.facts().staged.is_none());
    Ok(())
}

fn no_socket(faults: &mut Faults) {
    faults.no_socket = 1;
}

fn no_reply_to_finalize(faults: &mut Faults) {
    faults.loses_reply_of.push_back("FinalizeDeployment".to_owned());
}

/// Waits until the daemon has no active transaction. The daemon must first notice that the agent has disconnected.
async fn free(world: &World) -> Result<()> {
    let foreign = world.sim.rpm_ostree_client().await?;
    for _ in 0..400 {
        if foreign.sysroot().await?.active_transaction_path().await?.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the unstarted transaction was not released")
}

/// A running pull must not count as ended: the next pull would start beside it.
#[tokio::test]
async fn a_pull_that_does_not_stop_has_not_ended() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(60)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    begin(&world, &host).await?;
    drop(host);
    let host = world.agent().await?;
    let socket = world.sim.root().join("run").join(SOCKET);
    let away = socket.with_extension("away");
    std::fs::rename(&socket, &away)?;
    ensure!(host.find_pull(None).await.is_err(), "the pull's state is unknown");
    ensure!(host.cancel_pull(&world.v2).await.is_err(), "canceling must fail");
    std::fs::rename(&away, &socket)?;
    ensure!(is_pulling(&host).await?);
    world.sim.rpm_ostree(|f| f.leaves_on_cancel = 1);
    ensure!(host.cancel_pull(&world.v2).await.is_err(), "the pull still runs");
    ensure!(is_pulling(&host).await?);
    host.cancel_pull(&world.v2).await?;
    ensure!(host.find_pull(None).await?.is_none() && world.sim.facts().staged.is_none());
    Ok(())
}
