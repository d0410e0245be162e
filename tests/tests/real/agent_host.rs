//! The agent's host side against a real host with its own systemd, logind and ostree. The agent's loop does not run
//! here.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_agent::host::{AuthSource, BootcStatus, BootcVersion, Host, HostRoot, HostStatus, PullState, failure};
use berth_api::node::DesiredImage;
use berth_core::agent::host_policy::credentials::{Claim, PLACES};
use berth_tests::hosts::ostrees_lock;
use berth_tests::hosts::real::{OsVersion, RealHost};
use berth_tests::registry::{AUTH, Guard, HTPASSWD};
use berth_tests::scratch::Scratch;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

use crate::one_host::{OneHost, ended, failure_of_pull, is_skipped, lock, of_three_layers, unknown};

async fn agent(host: &RealHost) -> Result<Host> {
    Host::connect(Some(&host.bus_address()?), HostRoot::new(host.path("/")?)).await
}

async fn status(host: &Host) -> Result<HostStatus> {
    match host.status().await? {
        BootcStatus::Host(status) => Ok(*status),
        other => bail!("not a bootc host: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_host_does_all_that_the_agent_asks() -> Result<()> {
    if is_skipped() {
        return Ok(());
    }
    let versions = vec![of_three_layers("1.0.0"), of_three_layers("2.0.0")];
    let rig = OneHost::start(versions, vec![]).await?;
    let (real, registry, v1) = (&rig.host, &rig.registry, &rig.versions[0]);
    let begin = Instant::now();

    let host = agent(real).await?;
    let boot = real.boot().context("down")?;
    assert_eq!(host.boot_id()?.as_str(), boot.boot_id);
    assert!(matches!(host.bootc_version().await?, BootcVersion::Version { .. }));
    assert_eq!(status(&host).await?.booted.digest, Some(v1.digest.parse()?));
    assert!(host.inhibitors().await?.is_empty() && host.rivals().await?.is_empty());
    assert!(!host.shutting_down().await? && !host.finalization_failed().await?);
    eprintln!("asked: {:?}", begin.elapsed());

    let image = rig.desired(2)?;
    fails_for_an_unknown_digest(&host, real, &image).await?;
    eprintln!("failed: {:?}", begin.elapsed());
    goes_through_the_proxy_of_a_drop_in(&host, real, &image, rig.hosts.gateway()).await?;
    eprintln!("asked a proxy: {:?}", begin.elapsed());
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
    // From here on the origin is away; all pulls come from a mirror that requires a password.
    registry.stop()?;
    is_refused_without_credentials(&host, real, &image, &registry.host(), &door.host()).await?;
    let host = host.with_auth(auth.clone());
    has_credentials(&host, real, &auth, &door.host())?;
    eprintln!("has credentials: {:?}", begin.elapsed());
    is_adopted_and_locked(host, real, &image).await?;
    eprintln!("staged: {:?}", begin.elapsed());

    is_unlocked_and_booted(real, &image, &auth, &door.host()).await?;
    eprintln!("rebooted: {:?}", begin.elapsed());
    Ok(())
}

/// The staged image is removed, pulled again, unlocked and booted. The next agent writes the credentials again.
async fn is_unlocked_and_booted(real: &RealHost, image: &DesiredImage, auth: &AuthSource, mirror: &str) -> Result<()> {
    let before = real.boot().context("down")?;
    let host = agent(real).await?.with_auth(auth.clone());
    let staged = status(&host).await?.staged.context("nothing staged")?;
    host.unstage(&staged).await?;
    assert!(status(&host).await?.staged.is_none());
    host.start_pull(image, ostrees_lock()?).await?;
    assert_eq!(ended(&host).await?.0, PullState::Succeeded);
    host.unlock().await?;
    assert!(!status(&host).await?.staged.context("nothing staged")?.locked);
    lock(&host).await?;
    assert!(status(&host).await?.staged.context("nothing staged")?.locked);
    host.unlock().await?;
    host.reboot().await?;
    let boot = real.wait_boot(Some(&before.boot_id), Duration::from_secs(60)).await?;
    assert_eq!(
        (boot.digest, boot.version.as_str()),
        (image.digest.to_string(), "2.0.0")
    );
    let host = agent(real).await?.with_auth(auth.clone());
    let file = real.path(PLACES[0])?;
    assert!(!file.exists(), "the file is gone after the reboot");
    has_credentials(&host, real, auth, mirror)?;
    assert!(host.keep_auth(Claim::Released).changed && !file.exists());
    assert_eq!(status(&host).await?.booted.digest.as_ref(), Some(&image.digest));
    assert!(host.find_pull(None).await?.is_none());
    Ok(())
}

/// The mirror refuses the pull; the message says that the host had no credentials.
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
    let message = failure_of_pull(host).await?;
    let reason = failure::classify(&message).reason.as_str();
    assert_eq!(reason, "Unauthorized", "{message}");
    ensure!(
        message.contains("; the host pulled without credentials: it has none of"),
        "{message}"
    );
    host.forget_pull(&image.digest).await.context("cannot forget the pull")
}

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

/// While bootc pulls bound images of a staged image, it keeps the sysroot locked. A reboot in this time applies
/// nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_staged_image_is_locked_while_bootc_runs() -> Result<()> {
    const BOUND: &str = "bound.test:5999/app:1";
    if is_skipped() {
        return Ok(());
    }
    let versions = vec![OsVersion::new("1.0.0"), OsVersion::new("2.0.0").bound_to(BOUND)];
    let rig = OneHost::start(versions, vec![]).await?;
    let real = &rig.host;
    // A registry that accepts connections and never answers.
    let silent = TcpListener::bind((rig.hosts.gateway(), 5999)).await?;
    let names = format!("127.0.0.1 localhost\n{} bound.test\n", rig.hosts.gateway());
    real.write("/etc/hosts", &names).await?;

    let host = agent(real).await?;
    host.bootc_version().await?;
    let image = rig.desired(2)?;
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

/// The agent reports the error text of the failed tool, and leaves no failed unit on the host.
async fn fails_for_an_unknown_digest(host: &Host, real: &RealHost, image: &DesiredImage) -> Result<()> {
    let unknown = unknown(image)?;
    host.start_pull(&unknown, ostrees_lock()?).await?;
    let message = failure_of_pull(host).await?;
    assert_eq!(
        failure::classify(&message).reason.as_str(),
        "ImageNotFound",
        "{message}"
    );
    host.forget_pull(&unknown.digest).await?;
    let failed = real
        .exec(&["systemctl", "list-units", "--failed", "--no-legend", "berth-*"])
        .await?;
    ensure!(failed.trim().is_empty(), "{failed}");
    Ok(())
}

/// Drop-ins for all pull units, as documented in docs/install/proxies.md, apply to the agent's transient unit.
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
        .as_str()
        .split_once('/')
        .context("a reference without a registry")?;
    ensure!(request.starts_with(&format!("GET http://{registry}/v2/")), "{request}");
    drop((connection, proxy));
    failure_of_pull(host).await?;
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
    let (end, bytes) = ended(&second).await?;
    assert_eq!(end, PullState::Succeeded);
    ensure!(bytes > 0, "no progress was reported");
    second.forget_pull(&image.digest).await?;
    real.limit_pulls(None).await?;
    let staged = status(&second).await?.staged.context("nothing staged")?;
    assert_eq!((staged.digest.as_ref(), staged.locked), (Some(&image.digest), true));
    let marker = real.path("/run/reboot-required")?;
    ensure!(!marker.exists(), "a locked image requests no reboot");
    Ok(())
}
