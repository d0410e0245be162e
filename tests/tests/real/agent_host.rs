//! The agent's host side against a real host: its own systemd, logind and ostree. The agent's loop is not here.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_agent::host::{AuthSource, BootcStatus, BootcVersion, Host, HostRoot, HostStatus, PullState, failure};
use berth_api::node::DesiredImage;
use berth_core::agent::host_policy::credentials::{Claim, PLACES};
use berth_core::agent::storage::Storage;
use berth_tests::hosts::real::{HostOptions, OsImage, OsImages, OsVersion, RealHost, RealHosts};
use berth_tests::hosts::{HostLog, ostrees_lock};
use berth_tests::registry::{AUTH, Guard, HTPASSWD, Registry};
use berth_tests::scratch::Scratch;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

async fn agent(host: &RealHost) -> Result<Host> {
    Host::connect(Some(&host.bus_address()?), HostRoot::new(host.path("/")?)).await
}

fn desired(image: &OsImage, registry: &Registry) -> Result<DesiredImage> {
    let digest: berth_api::Digest = image.digest.parse()?;
    let reference = image.reference(&registry.host(), "os");
    Ok(DesiredImage {
        reference,
        index_digest: digest.clone(),
        digest,
        version: None,
        signature: berth_api::pool::SignatureRule::AsBooted,
    })
}

async fn status(host: &Host) -> Result<HostStatus> {
    match host.status().await? {
        BootcStatus::Host(status) => Ok(*status),
        other => bail!("not a bootc host: {other:?}"),
    }
}

/// Waits until the pull has ended; returns its result and the number of bytes reported before.
async fn pull_ends(host: &Host) -> Result<(Option<PullState>, u64)> {
    let mut changes = host.changes();
    let mut bytes = 0;
    for _ in 0..600 {
        bytes = host.pull_progress().map_or(bytes, |p| p.bytes.max(bytes));
        match host.find_pull(None).await?.map(|pull| pull.state) {
            Some(PullState::Running) => {}
            ended => return Ok((ended, bytes)),
        }
        let _ = tokio::time::timeout(Duration::from_millis(200), changes.changed()).await;
    }
    bail!("the pull does not end")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_host_does_all_that_the_agent_asks() -> Result<()> {
    if let Some(reason) = berth_tests::hosts::real::unavailable() {
        eprintln!("{reason}");
        return Ok(());
    }
    let images = tokio::task::spawn_blocking(|| OsImages::ensure(None)).await??;
    let of = |name: &str| {
        images.version(&OsVersion {
            payload: vec![1 << 20; 3],
            ..OsVersion::new(name)
        })
    };
    let [v1, v2] = [of("1.0.0")?, of("2.0.0")?];
    let hosts = RealHosts::new(images, HostLog::default()).await?;
    let registry = Registry::start(hosts.gateway().into()).await?;
    for version in [&v1, &v2] {
        version.push(&registry.host(), "os", &version.version)?;
    }
    let real = hosts.add(HostOptions::new("host1", &v1, &registry.host())).await?;
    real.start().await?;
    let begin = Instant::now();
    let passed = |what: &str| eprintln!("{what}: {:?}", begin.elapsed());

    let host = agent(&real).await?;
    let boot = real.boot().context("down")?;
    assert_eq!(host.boot_id()?.as_str(), boot.boot_id);
    assert!(matches!(host.bootc_version().await?, BootcVersion::Version { .. }));
    assert_eq!(status(&host).await?.booted.digest, Some(v1.digest.parse()?));
    assert!(host.inhibitors().await?.is_empty() && host.rivals().await?.is_empty());
    assert!(!host.shutting_down().await? && !host.finalization_failed().await?);
    passed("asked");

    let image = desired(&v2, &registry)?;
    fails_for_an_unknown_digest(&host, &real, &image).await?;
    passed("failed");
    goes_through_the_proxy_of_a_drop_in(&host, &real, &image, hosts.gateway()).await?;
    passed("asked a proxy");
    let guard = Guard {
        htpasswd: Some(HTPASSWD),
        ..Guard::default()
    };
    let door = registry.door(&guard).await?;
    let scratch = Scratch::new("berth-auth-")?;
    let auth = AuthSource {
        path: Some(scratch.path().join("auth.json")),
        replace: false,
    };
    // From here on the origin is away, and everything comes from a mirror that requires a password.
    registry.stop()?;
    is_refused_without_credentials(&host, &real, &image, &registry.host(), &door.host()).await?;
    let host = host.with_auth(auth.clone());
    has_credentials(&host, &real, &auth, &door.host())?;
    passed("has credentials");
    is_adopted_and_locked(host, &real, &image).await?;
    passed("staged");

    let host = agent(&real).await?.with_auth(auth.clone());
    let staged = status(&host).await?.staged.context("nothing staged")?;
    host.unstage(&staged).await?;
    assert!(status(&host).await?.staged.is_none());
    host.start_pull(&image, ostrees_lock()?).await?;
    assert_eq!(pull_ends(&host).await?.0, Some(PullState::Succeeded));
    host.unlock().await?;
    assert!(!status(&host).await?.staged.context("nothing staged")?.locked);
    host.lock(Storage::Ostree.ostree_lock().context("ostree locks")?)
        .await?;
    assert!(status(&host).await?.staged.context("nothing staged")?.locked);
    host.unlock().await?;
    passed("unlocked");
    host.reboot().await?;
    let boot = real.wait_boot(Some(&boot.boot_id), Duration::from_secs(60)).await?;
    assert_eq!(
        (boot.digest.as_str(), boot.version.as_str()),
        (v2.digest.as_str(), "2.0.0")
    );
    let host = agent(&real).await?.with_auth(auth.clone());
    let file = real.path(PLACES[0])?;
    assert!(!file.exists(), "the file is gone after the reboot");
    has_credentials(&host, &real, &auth, &door.host())?;
    assert!(host.keep_auth(Claim::Released).changed && !file.exists());
    assert_eq!(status(&host).await?.booted.digest, Some(image.digest));
    assert!(host.find_pull(None).await?.is_none());
    passed("rebooted");
    Ok(())
}

/// A pull that the mirror refuses: the message says that the host had no credentials.
async fn is_refused_without_credentials(
    host: &Host,
    real: &RealHost,
    image: &DesiredImage,
    origin: &str,
    mirror: &str,
) -> Result<()> {
    let config = format!(
        "[[registry]]\nlocation = \"{origin}\"\ninsecure = true\n\
         [[registry.mirror]]\nlocation = \"{mirror}\"\ninsecure = true\n"
    );
    let path = "/etc/containers/registries.conf.d/with-mirror.conf";
    real.write(path, &config).await?;
    host.start_pull(image, ostrees_lock()?).await?;
    let (Some(PullState::Failed { message }), _) = pull_ends(host).await? else {
        bail!("did not fail")
    };
    let reason = failure::classify(&message).reason.as_str();
    assert_eq!(reason, "Unauthorized", "{message}");
    ensure!(
        message.contains("; the host pulled without credentials: it has none of"),
        "{message}"
    );
    host.forget_pull(&image.digest).await.context("cannot forget the pull")
}

/// Gives the host the credentials of the mirror.
fn has_credentials(host: &Host, real: &RealHost, auth: &AuthSource, mirror: &str) -> Result<()> {
    let text = format!(r#"{{"auths": {{"{mirror}": {{"auth": "{AUTH}"}}}}}}"#);
    fs::write(auth.path.as_ref().context("no file")?, &text)?;
    let outcome = host.keep_auth(Claim::Member);
    ensure!(outcome.changed && outcome.objection.is_none(), "{outcome:?}");
    let file = real.path(PLACES[0])?;
    ensure!(fs::read_to_string(&file)? == text);
    ensure!(fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600);
    Ok(())
}

/// Measures on the host how long a staged image stays unlocked, in microseconds.
const WINDOW: &str = "S=/run/ostree/staged-deployment; until [ -e $S ]; do :; done; a=$(date +%s%N); \
                      until [ -e $S-locked ]; do :; done; echo $(( ($(date +%s%N) - a) / 1000 ))";

/// bootc keeps the sysroot locked while it pulls the bound images of an image that it has staged. A reboot in this time applies
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_staged_image_is_locked_while_bootc_runs() -> Result<()> {
    const BOUND: &str = "bound.test:5999/app:1";
    if let Some(reason) = berth_tests::hosts::real::unavailable() {
        eprintln!("{reason}");
        return Ok(());
    }
    let images = tokio::task::spawn_blocking(|| OsImages::ensure(None)).await??;
    let v1 = images.version(&OsVersion::new("1.0.0"))?;
    let v2 = images.version(&OsVersion::new("2.0.0").bound_to(BOUND))?;
    let hosts = RealHosts::new(images, HostLog::default()).await?;
    let registry = Registry::start(hosts.gateway().into()).await?;
    for version in [&v1, &v2] {
        version.push(&registry.host(), "os", &version.version)?;
    }
    let real = hosts.add(HostOptions::new("host1", &v1, &registry.host())).await?;
    real.start().await?;
    // A registry that accepts connections and never answers.
    let silent = TcpListener::bind((hosts.gateway(), 5999)).await?;
    let names = format!("127.0.0.1 localhost\n{} bound.test\n", hosts.gateway());
    real.write("/etc/hosts", &names).await?;

    let host = agent(&real).await?;
    host.bootc_version().await?;
    let image = desired(&v2, &registry)?;
    let measure = ["timeout", "60", "bash", "-c", WINDOW];
    let (window, started) = tokio::join!(real.exec(&measure), host.start_pull(&image, ostrees_lock()?));
    started?;
    let window = Duration::from_micros(window?.trim().parse()?);
    let waits = tokio::time::timeout(Duration::from_secs(30), silent.accept()).await;
    let _connection = waits.context("the bound image was not requested")??;
    let state = host.find_pull(None).await?.map(|pull| pull.state);
    assert_eq!(state, Some(PullState::Running), "bootc still runs");
    eprintln!("staged and not locked for {window:?}, while bootc runs for several seconds");
    ensure!(window < Duration::from_secs(10), "{window:?}");
    let before = real.boot().context("down")?;
    real.reboot_now().await?;
    let boot = real.wait_boot(Some(&before.boot_id), Duration::from_secs(120)).await?;
    assert_eq!(boot.version, "1.0.0", "a reboot during the pull applies nothing");
    Ok(())
}

/// The tool's own error text is reported, and the host is not left degraded.
async fn fails_for_an_unknown_digest(host: &Host, real: &RealHost, image: &DesiredImage) -> Result<()> {
    let unknown: berth_api::Digest = format!("sha256:{}", "e".repeat(64)).parse()?;
    let reference = image.reference.replace(&image.digest.to_string(), &unknown.to_string());
    let unknown_image = DesiredImage {
        reference,
        digest: unknown.clone(),
        ..image.clone()
    };
    host.start_pull(&unknown_image, ostrees_lock()?).await?;
    let (Some(PullState::Failed { message }), _) = pull_ends(host).await? else {
        bail!("did not fail")
    };
    assert_eq!(
        failure::classify(&message).reason.as_str(),
        "ImageNotFound",
        "{message}"
    );
    host.forget_pull(&unknown).await?;
    let failed = real
        .exec(&["systemctl", "list-units", "--failed", "--no-legend", "berth-*"])
        .await?;
    ensure!(failed.trim().is_empty(), "{failed}");
    Ok(())
}

/// Drop-ins for all pull units, as documented in docs/install.md, apply to the agent's transient unit.
async fn goes_through_the_proxy_of_a_drop_in(
    host: &Host,
    real: &RealHost,
    image: &DesiredImage,
    gateway: Ipv4Addr,
) -> Result<()> {
    const DROP_INS: &str = "/etc/systemd/system/berth-pull-.service.d";
    let proxy = TcpListener::bind((gateway, 0)).await?;
    let environment = format!("[Service]\nEnvironment=HTTP_PROXY=http://{}\n", proxy.local_addr()?);
    real.exec(&["mkdir", "-p", DROP_INS]).await?;
    real.write(&format!("{DROP_INS}/proxy.conf"), &environment).await?;
    real.exec(&["systemctl", "daemon-reload"]).await?;

    host.start_pull(image, ostrees_lock()?).await?;
    let (mut connection, _) = tokio::time::timeout(Duration::from_secs(30), proxy.accept())
        .await
        .context("the proxy received no request")??;
    let mut request = String::new();
    BufReader::new(&mut connection).read_line(&mut request).await?;
    let (registry, _) = image
        .reference
        .split_once('/')
        .context("a reference without a registry")?;
    ensure!(request.starts_with(&format!("GET http://{registry}/v2/")), "{request}");
    drop((connection, proxy));
    ensure!(matches!(pull_ends(host).await?.0, Some(PullState::Failed { .. })));
    host.forget_pull(&image.digest).await?;

    real.exec(&["rm", "-r", DROP_INS]).await?;
    real.exec(&["systemctl", "daemon-reload"]).await?;
    Ok(())
}

/// The pull continues without an agent; the next agent finds it, its progress and its end.
async fn is_adopted_and_locked(first: Host, real: &RealHost, image: &DesiredImage) -> Result<()> {
    real.limit_pulls(Some(512 << 10)).await?;
    first.start_pull(image, ostrees_lock()?).await?;
    drop(first);
    let second = agent(real).await?;
    let pull = second.find_pull(None).await?.context("not found")?;
    assert_eq!((&pull.digest, pull.state), (&image.digest, PullState::Running));
    let (end, bytes) = pull_ends(&second).await?;
    assert_eq!(end, Some(PullState::Succeeded));
    ensure!(bytes > 0, "no progress was reported");
    second.forget_pull(&image.digest).await?;
    real.limit_pulls(None).await?;
    let staged = status(&second).await?.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&image.digest), true));
    let marker = real.path("/run/reboot-required")?;
    ensure!(!marker.exists(), "a locked image requests no reboot");
    Ok(())
}
