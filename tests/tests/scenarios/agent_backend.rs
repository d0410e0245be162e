//! The agent's host side with rpm-ostree: its client against the stand-in of the daemon, on a simulated host.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use berth_agent::host::{Host, HostError, Pull, PullState, Terms};
use berth_api::backend::{Backend, BackendRule};
use berth_core::agent::facts::{Deployments, Os};
use berth_core::agent::reason::Reason;
use berth_core::agent::storage::Storage;
use berth_tests::hosts::both_locks;
use berth_tests::hosts::sim::Updaters;
use berth_tests::rpmostreed::{Broken, Faults, SOCKET};
use zbus::Variant;

use super::one_host::{REPOSITORY, World, image};

async fn world(updaters: Updaters, pull_time: Duration) -> Result<World> {
    World::start(|config| {
        config.settings.pull_time = pull_time;
        config.settings.reboot_time = Duration::from_millis(50);
        updaters.install(&mut config.settings);
        config.packages = updaters.packages();
    })
    .await
}

/// Begins to pull the second image.
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

/// Options of all calls of this method of rpm-ostree.
fn options_of(world: &World, method: &str) -> Vec<BTreeMap<String, String>> {
    let calls = world.sim.rpm_ostree(|f| f.calls.clone()).into_iter();
    let meant = calls.filter(|call| call.method == method);
    meant.map(|call| call.options).collect()
}

async fn look(host: &Host) -> Result<Deployments> {
    match host.survey(&Terms::default()).await?.os {
        Os::Bootc(known) => Ok(*known),
        other => bail!("of no use: {other:?}"),
    }
}

/// Waits, woken by the host's own news, until the pull runs no longer.
async fn ended(host: &Host) -> Result<PullState> {
    let mut changes = host.changes();
    for _ in 0..600 {
        match host.find_pull(None).await?.map(|pull| pull.state) {
            Some(PullState::Running) => {}
            Some(ended) => return Ok(ended),
            None => bail!("the pull is gone"),
        }
        let _ = tokio::time::timeout(Duration::from_millis(200), changes.changed()).await;
    }
    bail!("the pull does not end")
}

#[tokio::test]
async fn a_host_without_bootc_is_staged_locked_unlocked_and_cleaned_up_by_rpm_ostree() -> Result<()> {
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
    ensure!(
        !after.staged_layers && world.sim.armed_times().is_empty(),
        "locked from the first instant"
    );
    // Nothing is left to what the daemon takes for granted.
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
    // The daemon has ended meanwhile, and nothing that it said is kept.
    world.sim.kill_rpm_ostree().await;
    host.unlock().await?;
    ensure!(!world.sim.facts().locked && !look(&host).await?.staged.is_some_and(|s| s.locked));
    host.lock(Storage::Ostree.ostree_lock().context("ostree locks")?)
        .await?;
    ensure!(world.sim.facts().locked && look(&host).await?.staged.is_some_and(|s| s.locked));
    // The same once more is what is staged.
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let other = berth_api::node::Deployment {
        image: "registry.test/other".to_owned(),
        ..staged.clone()
    };
    ensure!(
        host.unstage(&other)
            .await
            .is_err_and(|e| e.to_string().contains("in place of"))
    );
    host.unstage(&staged).await?;
    ensure!(world.sim.facts().staged.is_none());
    host.unstage(&staged).await?;

    // A pool that rules it out is told what would be lost.
    let only_bootc = Terms {
        rule: BackendRule::Bootc,
        ..Terms::default()
    };
    let Os::Unusable { reason, message } = host.survey(&only_bootc).await?.os else {
        bail!("bootc would drop a package")
    };
    ensure!(reason == Reason::LayeredHost && message.contains("htop"), "{message}");
    // What was begun with rpm-ostree is ended with it.
    let begun = Terms {
        begun: Some(Backend::RpmOstree),
        ..only_bootc
    };
    ensure!(matches!(host.survey(&begun).await?.os, Os::Bootc(known) if known.backend.reason == "Begun"));
    Ok(())
}

#[tokio::test]
async fn the_next_agent_joins_the_transaction_and_cancels_it() -> Result<()> {
    // It is canceled long before its end, however busy the machine is.
    let world = world(Updaters::RpmOstree, Duration::from_secs(60)).await?;
    let first = world.agent().await?;
    look(&first).await?;
    begin(&world, &first).await?;
    ensure!(
        first.survey(&Terms::default()).await.is_err(),
        "nothing is asked beside a pull"
    );
    drop(first);
    let second = world.agent().await?;
    assert_eq!(
        second.find_pull(None).await?.map(|pull| pull.state),
        Some(PullState::Running)
    );
    second.cancel_pull(&world.v2).await?;
    ensure!(second.find_pull(Some(&world.v2)).await?.is_none() && world.sim.facts().staged.is_none());
    // One that has gone on for too long by then is canceled by itself.
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
        bail!("its time is over")
    };
    ensure!(message.contains("the pull did not end within 2 h"), "{message}");
    assert_eq!(
        berth_agent::host::failure::classify(&message).reason,
        Reason::PullTimedOut
    );
    free(&world).await?;
    ensure!(world.sim.facts().staged.is_none(), "it was canceled");
    second.forget_pull(&world.v2).await?;
    // And one that ends while no agent listens is told by what is staged.
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
async fn what_fails_in_the_daemon_keeps_its_words_and_loses_nothing() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(200)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    world.sim.rpm_ostree(|f| f.dies_in_transaction = 1);
    let PullState::Failed { message } = pull(&world, &host).await? else {
        bail!("the daemon died")
    };
    ensure!(message.contains("ended during the pull"), "{message}");
    world.sim.rpm_ostree(|f| {
        f.fails_with
            .push_back("Could not depsolve transaction; 1 problem".to_owned())
    });
    look(&host).await?;
    let PullState::Failed { message } = pull(&world, &host).await? else {
        bail!("the transaction failed")
    };
    assert_eq!(
        berth_agent::host::failure::classify(&message).reason,
        Reason::LayeringFailed
    );
    // A daemon that ends between a call and its reply, and keys that are missing.
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

/// Without `--unlock` only the daemon can unlock, and reboots in the same go.
#[tokio::test]
async fn an_older_ostree_is_finalized_by_the_reboot_itself() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    world.sim.settings(|s| s.old_ostree = true);
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    ensure!(look(&host).await?.staged.is_some_and(|s| s.locked));
    host.unlock().await?;
    ensure!(world.sim.facts().locked, "on the host nothing is armed");
    drop(host);
    let host = world.agent().await?;
    ensure!(
        look(&host).await?.staged.is_some_and(|s| !s.locked),
        "the note outlives the agent"
    );
    host.lock(Storage::Ostree.ostree_lock().context("ostree locks")?)
        .await?;
    ensure!(look(&host).await?.staged.is_some_and(|s| s.locked));
    host.unlock().await?;
    // Somebody else's transaction is no refusal.
    let somebody = world.sim.rpm_ostree_client().await?;
    somebody.os().await?.cleanup(&["repomd"]).await?;
    let busy = host.reboot().await.err().context("it was begun beside another one")?;
    ensure!(matches!(busy, HostError::Busy(_)), "{busy:?}");
    drop(somebody);
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
async fn the_next_agent_hears_the_pull_out_and_begins_no_other() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(5)).await?;
    let first = world.agent().await?;
    look(&first).await?;
    // What was begun, and whose address is lost, is joined by the same call.
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

/// An image staged in place of another one is locked as well: the lock is in its own state.
#[tokio::test]
async fn somebody_elses_work_is_waited_for_and_what_replaces_it_is_locked() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(5)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    let somebody = world.sim.rpm_ostree_client().await?;
    let theirs = format!("ostree-unverified-registry:{REPOSITORY}@{}", world.v3);
    let options = HashMap::from([("lock-finalization", Variant::from(false))]);
    let address = somebody.os().await?.rebase(options, &theirs, &[]).await?;
    let refused = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = host.start_pull(&image(&world.v2), both_locks()?).await;
        begun.err().context("it was begun beside another one")
    };
    let (theirs, refused) = tokio::join!(somebody.follow(&address), refused);
    ensure!(theirs?.ok);
    let refused = refused?;
    ensure!(matches!(refused, HostError::Busy(_)), "{refused:?}");
    ensure!(host.find_pull(None).await?.is_none(), "nothing of it is remembered");
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let staged = look(&host).await?.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&world.v2), true));
    ensure!(world.sim.facts().locked);
    Ok(())
}

/// A lock that cannot be read is neither there nor missing: nothing may be decided on it.
#[tokio::test]
async fn a_lock_that_cannot_be_read_is_an_answer_of_its_own() -> Result<()> {
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
            bail!("it is taken for an answer: {cut:?}")
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

/// Nothing else tells the agent that the kubelet would never start under the new image.
#[tokio::test]
async fn an_image_without_a_required_unit_is_told() -> Result<()> {
    for updaters in [Updaters::Bootc, Updaters::RpmOstree] {
        let world = world(updaters, Duration::from_millis(100)).await?;
        let host = world.agent().await?;
        let lock = look(&host).await?.staging_lock().context("nothing locks")?;
        host.start_pull(&image(&world.v2), lock).await?;
        assert_eq!(ended(&host).await?, PullState::Succeeded);
        host.forget_pull(&world.v2).await?;
        let links = world.sim.root().join("etc/systemd/system/kubelet.service.requires");
        std::fs::create_dir_all(&links)?;
        std::os::unix::fs::symlink("../berth-firstboot.service", links.join("berth-firstboot.service"))?;
        let why = look(&host).await?.unit_missing();
        ensure!(why.is_none(), "the image's files are not there: {why:?}");
        let files = world.sim.staged_files().context("nothing is staged")?;
        std::fs::create_dir_all(files.join("usr/lib/systemd/system"))?;
        let why = look(&host).await?.unit_missing().context("nothing is told")?;
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

/// The daemon's `Cleanup` of what is pending takes the deployment that a rollback has queued along.
#[tokio::test]
async fn what_is_staged_over_a_queued_rollback_is_removed_alone() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    host.unlock().await?;
    drop(host);
    world.sim.reboot_now().await?;
    let somebody = world.sim.rpm_ostree_client().await?;
    let queued = somebody.os().await?.rollback(HashMap::new()).await?;
    ensure!(somebody.follow(&queued).await?.ok);
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
    ensure!(known.staged.is_none(), "it is removed");
    let rollback = known.rollback.context("the rollback is gone")?;
    ensure!(known.rollback_queued && rollback.digest.as_ref() == Some(&world.v1));
    // Without a rollback the daemon removes it.
    let back = somebody.os().await?.rollback(HashMap::new()).await?;
    ensure!(somebody.follow(&back).await?.ok);
    free(&world).await?;
    host.start_pull(&image(&world.v3), both_locks()?).await?;
    assert_eq!(ended(&host).await?, PullState::Succeeded);
    host.forget_pull(&world.v3).await?;
    host.unstage(&staged).await?;
    let known = look(&host).await?;
    ensure!(known.staged.is_none() && known.rollback.is_some(), "{known:?}");
    Ok(())
}

/// A broken daemon is an answer, and no silence of the host: a node that is drained must be given back.
#[tokio::test]
async fn a_daemon_that_cannot_be_started_is_an_answer_about_the_host() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(60)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    begin(&world, &host).await?;
    drop(host);
    world.sim.rpm_ostree(|f| f.fails_to_start = true);
    world.sim.kill_rpm_ostree().await;
    let host = world.agent().await?;
    let PullState::Failed { message } = ended(&host).await? else {
        bail!("its pull is over")
    };
    ensure!(message.contains("rpm-ostreed.service cannot be started"), "{message}");
    let Os::Unusable { reason, message } = host.survey(&Terms::default()).await?.os else {
        bail!("nobody knows the deployments")
    };
    ensure!(
        reason == Reason::StatusFailed && message.contains("rpm-ostreed.service cannot be started"),
        "{reason:?} {message}"
    );
    world.sim.rpm_ostree(|f| f.fails_to_start = false);
    look(&host).await?;
    Ok(())
}

/// The bus gives up on a daemon that takes so long to start. The agent has systemd start it, and waits.
#[tokio::test]
async fn a_daemon_that_starts_slowly_is_waited_for() -> Result<()> {
    const SLOW: Duration = Duration::from_secs(10);
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    world.sim.rpm_ostree(|f| f.slow_start = SLOW);
    world.sim.kill_rpm_ostree().await;
    let somebody = world.sim.rpm_ostree_client().await?;
    let begun = tokio::time::Instant::now();
    let sysroot = somebody.sysroot().await?;
    let (by_the_bus, known) = tokio::join!(sysroot.reload(), look(&host));
    ensure!(by_the_bus.is_err(), "the bus waits for as long");
    assert_eq!(known?.booted.digest.as_ref(), Some(&world.v1));
    ensure!(begun.elapsed() >= SLOW, "it was started at once");
    Ok(())
}

/// A transaction that was begun and is not started keeps everybody out for as long as the agent is on the bus.
#[tokio::test]
async fn what_is_begun_and_cannot_be_started_is_let_go() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_millis(100)).await?;
    world.sim.settings(|s| s.old_ostree = true);
    // No answer of another life of the daemon.
    world.sim.rpm_ostree(|f| f.idle_exit = Duration::from_secs(600));
    let host = world.agent().await?;
    look(&host).await?;
    assert_eq!(pull(&world, &host).await?, PullState::Succeeded);
    let staged = look(&host).await?.staged.context("nothing staged")?;
    let lock = || host.lock(Storage::Ostree.ostree_lock().expect("ostree locks"));
    let no_socket = |f: &mut Faults| f.no_socket = 1;
    let no_reply = |f: &mut Faults| f.loses_reply_of.push_back("FinalizeDeployment".to_owned());
    for fault in [no_socket as fn(&mut Faults), no_reply] {
        host.unlock().await?;
        world.sim.rpm_ostree(fault);
        let refused = host.reboot().await.err().context("nothing was started")?;
        ensure!(matches!(refused, HostError::RebootRefused(_)), "{refused:?}");
        free(&world).await?;
        lock().await?;
    }
    world.sim.rpm_ostree(no_socket);
    let failed = host.unstage(&staged).await.err().context("nothing was started")?;
    assert_eq!(failed.reason(), Reason::HostToolFailed);
    free(&world).await?;
    host.unstage(&staged).await?;
    ensure!(world.sim.facts().staged.is_none());
    Ok(())
}

/// Waits until the daemon has heard that the agent left.
async fn free(world: &World) -> Result<()> {
    let somebody = world.sim.rpm_ostree_client().await?;
    for _ in 0..400 {
        if somebody.sysroot().await?.active_transaction_path().await?.is_empty() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("the transaction stays, though nobody will start it")
}

/// A pull that goes on must not count as ended: the next pull would be begun beside it.
#[tokio::test]
async fn a_pull_that_cannot_be_joined_or_does_not_stop_has_not_ended() -> Result<()> {
    let world = world(Updaters::RpmOstree, Duration::from_secs(60)).await?;
    let host = world.agent().await?;
    look(&host).await?;
    begin(&world, &host).await?;
    drop(host);
    let host = world.agent().await?;
    let socket = world.sim.root().join("run").join(SOCKET);
    let away = socket.with_extension("away");
    std::fs::rename(&socket, &away)?;
    ensure!(host.find_pull(None).await.is_err(), "it cannot be told");
    ensure!(host.cancel_pull(&world.v2).await.is_err(), "it was not canceled");
    std::fs::rename(&away, &socket)?;
    let running = |pull: Option<Pull>| pull.is_some_and(|pull| pull.state == PullState::Running);
    ensure!(running(host.find_pull(None).await?));
    world.sim.rpm_ostree(|f| f.leaves_on_cancel = 1);
    ensure!(host.cancel_pull(&world.v2).await.is_err(), "it goes on");
    ensure!(running(host.find_pull(None).await?));
    host.cancel_pull(&world.v2).await?;
    ensure!(host.find_pull(None).await?.is_none() && world.sim.facts().staged.is_none());
    Ok(())
}
