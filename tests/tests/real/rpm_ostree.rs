//! rpm-ostree as the backend of a real host: the agent's host side uses a stand-in for the daemon, which systemd and
//! D-Bus start, over the host's own ostree deployments. The agent's loop does not run here.

use std::ops::Deref;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_agent::host::{Host, HostRoot, PullState, Terms, failure};
use berth_api::backend::{Backend, BackendRule};
use berth_api::node::DesiredImage;
use berth_core::agent::facts::{Deployments, Os};
use berth_tests::hosts::both_locks;
use berth_tests::hosts::real::{FromOutside, is_rpm_ostree_real, rpm_ostree};
use tokio::sync::Mutex;

use crate::one_host::{OneHost, ended, failure_of_pull, is_skipped, lock, of_three_layers, unknown};

/// Terms of a pool that requires this backend.
const ASKED: Terms = Terms {
    rule: BackendRule::RpmOstree,
    begun: None,
};
const BOOT: Duration = Duration::from_secs(60);
/// Other updaters that may exist beside rpm-ostree.
const RIVALS: [&str; 2] = ["zincati.service", "rpm-ostreed-automatic.timer"];

struct Rig {
    one: OneHost,
    /// Access to the host's files, with one entry for each boot. Earlier entries stay open, because readers may still
    /// use them.
    ways: Mutex<Vec<FromOutside>>,
}

impl Deref for Rig {
    type Target = OneHost;

    fn deref(&self) -> &OneHost {
        &self.one
    }
}

impl Rig {
    async fn new() -> Result<Self> {
        let files = tokio::task::spawn_blocking(rpm_ostree).await??;
        let versions = vec![of_three_layers("1.0.0"), of_three_layers("2.0.0")];
        Ok(Self {
            one: OneHost::start(versions, files).await?,
            ways: Mutex::default(),
        })
    }

    async fn agent(&self) -> Result<Host> {
        let way = FromOutside::of(&self.host)?;
        let root = HostRoot::new(way.root());
        self.ways.lock().await.push(way);
        Host::connect(Some(&self.host.bus_address()?), root).await
    }

    /// Waits for the next boot, and returns its version.
    async fn boots_after(&self, before: &str) -> Result<String> {
        let boot = self.host.wait_boot(Some(before), BOOT).await;
        Ok(boot.context("the host does not come back after its reboot")?.version)
    }
}

async fn look(host: &Host, terms: &Terms) -> Result<Deployments> {
    match host.survey(terms).await?.os {
        Os::Bootc(known) => Ok(*known),
        other => bail!("no deployments: {other:?}"),
    }
}

/// Pulls an image to its end, and removes the record of the pull.
async fn pull(host: &Host, image: &DesiredImage) -> Result<PullState> {
    host.start_pull(image, both_locks()?).await?;
    let (state, _) = ended(host).await?;
    host.forget_pull(&image.digest).await?;
    Ok(state)
}

async fn words_of_failed_pull(host: &Host, image: &DesiredImage) -> Result<String> {
    match pull(host, image).await? {
        PullState::Failed { message } => Ok(message),
        other => bail!("did not fail: {other:?}"),
    }
}

async fn reports_bytes(host: &Host) -> Result<()> {
    for _ in 0..600 {
        if host.pull_progress().is_some_and(|p| p.bytes > 0) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("no progress: {:?}", host.find_pull(None).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_host_does_with_rpm_ostree_all_that_the_agent_asks() -> Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let rig = Rig::new().await?;
    let done = goes_through_all(&rig).await;
    if done.is_err() {
        match rig.host.journal("rpm-ostreed.service").await {
            Ok(journal) => eprintln!("{journal}"),
            Err(error) => eprintln!("the journal of rpm-ostreed cannot be read: {error:#}"),
        }
    }
    done
}

async fn goes_through_all(rig: &Rig) -> Result<()> {
    let begin = Instant::now();
    let host = rig.agent().await?;
    let known = look(&host, &ASKED).await?;
    assert_eq!(
        (known.backend.name, known.backend.reason.as_str()),
        (Backend::RpmOstree, "AskedByPool")
    );
    assert_eq!(known.booted.digest, Some(rig.versions[0].digest.parse()?));
    ensure!(known.staged.is_none() && known.rollback.is_none(), "{known:?}");
    assert_eq!(look(&host, &Terms::default()).await?.backend.name, Backend::Bootc);
    look(&host, &ASKED).await?;
    eprintln!("asked: {:?}", begin.elapsed());

    failures_are_reported(rig, &host).await?;
    eprintln!("failed: {:?}", begin.elapsed());
    is_adopted(rig, host).await?;
    eprintln!("adopted and staged: {:?}", begin.elapsed());
    applies_nothing_locked(rig).await?;
    eprintln!("a reboot applied nothing: {:?}", begin.elapsed());
    applies_what_is_unlocked(rig).await?;
    eprintln!("updated: {:?}", begin.elapsed());
    shows_pins(rig).await?;
    keeps_layers(rig).await?;
    eprintln!("went back with a package: {:?}", begin.elapsed());
    names_rivals(rig).await
}

/// A digest that does not exist, and a daemon that dies in the middle of a pull.
async fn failures_are_reported(rig: &Rig, host: &Host) -> Result<()> {
    let image = rig.desired(2)?;
    let missing = unknown(&image)?;
    let words = words_of_failed_pull(host, &missing).await?;
    assert_eq!(failure::classify(&words).reason.as_str(), "ImageNotFound", "{words}");

    rig.host.limit_pulls(Some(256 << 10)).await?;
    host.start_pull(&image, both_locks()?).await?;
    reports_bytes(host).await?;
    rig.host
        .exec(&["systemctl", "kill", "--signal=KILL", "rpm-ostreed.service"])
        .await?;
    let message = failure_of_pull(host).await?;
    ensure!(message.contains("rpm-ostreed exited during the pull"), "{message}");
    host.forget_pull(&image.digest).await?;
    // D-Bus and systemd start it again.
    ensure!(look(host, &ASKED).await?.staged.is_none());
    Ok(())
}

/// The pull continues without an agent; the next agent joins it and receives its end.
async fn is_adopted(rig: &Rig, first: Host) -> Result<()> {
    let image = rig.desired(2)?;
    rig.host.limit_pulls(Some(512 << 10)).await?;
    first.start_pull(&image, both_locks()?).await?;
    drop(first);
    let second = rig.agent().await?;
    let found = second.find_pull(None).await?.context("not found")?;
    assert_eq!((&found.digest, found.state), (&image.digest, PullState::Running));
    let (state, bytes) = ended(&second).await?;
    assert_eq!(state, PullState::Succeeded);
    ensure!(bytes > 0, "no progress was reported");
    second.forget_pull(&image.digest).await?;
    rig.host.limit_pulls(None).await?;
    let staged = look(&second, &ASKED).await?.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&image.digest), true));
    // bootc and ostree see the same lock. It is part of the deployment's state; no lock file exists.
    let status = rig.host.exec(&["bootc", "status", "--json"]).await?;
    ensure!(status.contains(r#""version":"2.0.0""#), "{status}");
    ensure!(status.contains(r#""downloadOnly":true"#), "{status}");
    let file = rig.host.path("/run/ostree/staged-deployment-locked")?;
    ensure!(!file.try_exists()?, "rpm-ostree locks without a file");
    Ok(())
}

/// A reboot discards what rpm-ostree has locked.
async fn applies_nothing_locked(rig: &Rig) -> Result<()> {
    let before = rig.boot_id()?;
    rig.host.reboot_now().await?;
    assert_eq!(rig.boots_after(&before).await?, "1.0.0");
    let host = rig.agent().await?;
    let known = look(&host, &ASKED).await?;
    ensure!(known.staged.is_none() && known.rollback.is_none(), "{known:?}");
    Ok(())
}

async fn is_locked(host: &Host) -> Result<bool> {
    let staged = look(host, &ASKED).await?.staged.context("nothing staged")?;
    Ok(staged.locked)
}

async fn applies_what_is_unlocked(rig: &Rig) -> Result<()> {
    let image = rig.desired(2)?;
    let host = rig.agent().await?;
    look(&host, &ASKED).await?;
    assert_eq!(pull(&host, &image).await?, PullState::Succeeded);
    let staged = look(&host, &ASKED).await?.staged.context("nothing staged")?;
    host.unstage(&staged).await?;
    ensure!(look(&host, &ASKED).await?.staged.is_none());
    assert_eq!(pull(&host, &image).await?, PullState::Succeeded);
    ensure!(is_locked(&host).await?, "locked from the first instant");
    host.unlock().await?;
    ensure!(!is_locked(&host).await?, "unlocked");
    lock(&host).await?;
    ensure!(is_locked(&host).await?, "locked again");
    host.unlock().await?;
    ensure!(!is_locked(&host).await?, "unlocked again");
    let before = rig.boot_id()?;
    host.reboot().await?;
    assert_eq!(rig.boots_after(&before).await?, "2.0.0");
    let host = rig.agent().await?;
    let known = look(&host, &ASKED).await?;
    assert_eq!(known.booted.digest, Some(image.digest));
    assert_eq!(
        known.rollback.and_then(|r| r.digest),
        Some(rig.versions[0].digest.parse()?),
        "to roll back to"
    );
    Ok(())
}

/// Both backends report which deployments are pinned.
async fn shows_pins(rig: &Rig) -> Result<()> {
    let host = rig.agent().await?;
    rig.host.exec(&["ostree", "admin", "pin", "1"]).await?;
    for (terms, backend) in [(ASKED, Backend::RpmOstree), (Terms::default(), Backend::Bootc)] {
        let known = look(&host, &terms).await?;
        assert_eq!(known.backend.name, backend);
        let rollback = known.rollback.context("nothing to roll back to")?;
        ensure!(rollback.pinned && !known.booted.pinned, "{backend:?}: {rollback:?}");
    }
    rig.host.exec(&["ostree", "admin", "pin", "--unpin", "1"]).await?;
    Ok(())
}

/// An admin installs a package, and the new deployment is locked. The next image replaces this deployment and keeps the
/// package.
async fn keeps_layers(rig: &Rig) -> Result<()> {
    let image = rig.desired(1)?;
    // An admin who uses `rpm-ostree` on the host.
    let way = FromOutside::of(&rig.host)?;
    way.client().await?.install(&["htop"]).await?;
    let host = rig.agent().await?;
    let known = look(&host, &Terms::default()).await?;
    assert_eq!(
        (known.backend.name, known.backend.reason.as_str()),
        (Backend::RpmOstree, "LayeredHost")
    );
    ensure!(known.staged_layers, "a package is layered");
    let staged = known.staged.context("nothing staged")?;
    assert_eq!(
        (staged.digest, staged.locked),
        (Some(rig.versions[1].digest.parse()?), false)
    );
    lock(&host).await?;
    ensure!(look(&host, &ASKED).await?.staged.is_some_and(|s| s.locked), "locked");

    assert_eq!(pull(&host, &image).await?, PullState::Succeeded);
    let known = look(&host, &ASKED).await?;
    let staged = known.staged.context("nothing staged")?;
    assert_eq!(staged.digest, Some(image.digest.clone()));
    ensure!(staged.locked, "the lock is in the state of the newly staged deployment");
    host.unlock().await?;
    let before = rig.boot_id()?;
    host.reboot().await?;
    assert_eq!(rig.boots_after(&before).await?, "1.0.0");
    let known = look(&rig.agent().await?, &Terms::default()).await?;
    assert_eq!(known.backend.name, Backend::RpmOstree);
    assert_eq!(known.backend.layered_packages, ["htop"]);
    assert_eq!(known.booted.digest, Some(image.digest));
    if is_rpm_ostree_real() {
        rig.host.exec(&["test", "-x", "/usr/bin/htop"]).await?;
    } else {
        assert_eq!(rig.host.read("/usr/lib/layered-packages/htop").await?, "htop\n");
    }
    Ok(())
}

/// Units of other updaters, invented by the test: only their names matter.
async fn names_rivals(rig: &Rig) -> Result<()> {
    let host = rig.agent().await?;
    ensure!(host.rivals().await?.is_empty());
    let [service, timer] = RIVALS;
    let text = "[Service]\nExecStart=/usr/bin/sleep infinity\n";
    rig.host.write(&format!("/run/systemd/system/{service}"), text).await?;
    let text = "[Timer]\nOnActiveSec=1h\nUnit=zincati.service\n";
    rig.host.write(&format!("/run/systemd/system/{timer}"), text).await?;
    rig.host.exec(&["systemctl", "daemon-reload"]).await?;
    rig.host.exec(&["systemctl", "start", service, timer]).await?;
    let mut found = host.rivals().await?;
    found.sort();
    let mut expected = RIVALS;
    expected.sort_unstable();
    assert_eq!(found, expected);
    Ok(())
}
