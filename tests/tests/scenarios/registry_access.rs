//! Access to a registry: the real controller, with its own rights, at a real registry with TLS, a name and a password,
//! through a proxy, and at a mirror while the origin is away.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_api::Digest;
use berth_api::condition::find;
use berth_api::fleet::BootcFleet;
use berth_api::pool::{BootcNodePool, BootcNodePoolStatus};
use berth_tests::controlplane::{Bound, ControlPlane, Options};
use berth_tests::images::{Image, ImageSpec};
use berth_tests::process::Process;
use berth_tests::programs::programs;
use berth_tests::registry::{Guard, Registry};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Timeout for a change. In this test, attempts are at most a few seconds apart.
const SOON: Duration = Duration::from_secs(45);
/// User `berth` with password `hush`.
const HTPASSWD: &str = "berth:$2b$05$abcdefghijklmnopqrstuulzd.YqjLDl8lvpSmVj3De/fioSBHnUa\n";

struct Site {
    plane: ControlPlane,
    controller: Process,
    /// The registry with TLS and a password.
    host: String,
    /// Digest of its image `a/os:stable`.
    digest: Digest,
    /// Number of connections through the proxy.
    proxied: Arc<AtomicUsize>,
}

impl Site {
    async fn apply(&self, object: Value) -> Result<()> {
        self.plane.apply_yaml(&object.to_string()).await
    }

    async fn pool(&self, name: &str, reference: &str, secret: &str) -> Result<()> {
        self.apply(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"matchLabels": {"pool": name}},
                "image": {"ref": reference, "pullSecret": secret},
            },
        }))
        .await
    }

    async fn secret(&self, name: &str, registry: &str, password: &str) -> Result<()> {
        let entry = json!({"auth": STANDARD.encode(format!("berth:{password}"))});
        let file = json!({"auths": {registry: entry}}).to_string();
        let secrets: Api<Secret> = Api::namespaced(self.plane.admin_client(), "berth-system");
        let object = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": file},
        });
        let params = PatchParams::apply("admin").force();
        secrets.patch(name, &params, &Patch::Apply(&object)).await?;
        Ok(())
    }

    async fn allow(&self, prefixes: &[&str]) -> Result<()> {
        let fleets: Api<BootcFleet> = Api::all(self.plane.admin_client());
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": {"name": "cluster"},
            "spec": {"allowedRegistries": prefixes},
        });
        let params = PatchParams::apply("admin").force();
        fleets.patch("cluster", &params, &Patch::Apply(&object)).await?;
        Ok(())
    }

    /// Waits until the pool's `ImageResolved` has this reason and text; returns the pool's status.
    async fn says(&mut self, pool: &str, reason: &str, words: &str) -> Result<BootcNodePoolStatus> {
        let pools: Api<BootcNodePool> = Api::all(self.plane.admin_client());
        let started = Instant::now();
        loop {
            let object = pools.get(pool).await?;
            let status = object.status.clone().unwrap_or_default();
            let condition = find(&status.conditions, "ImageResolved");
            let is_of_this = status.observed_generation == object.metadata.generation;
            if is_of_this && condition.is_some_and(|c| c.reason == reason && c.message.contains(words)) {
                let said = condition.map(|c| c.message.clone()).unwrap_or_default();
                ensure!(!said.contains("hush"), "a password is shown: {said}");
                return Ok(status);
            }
            self.controller.check()?;
            if started.elapsed() > SOON {
                let said = condition.map(|c| format!("{}: {}", c.reason, c.message));
                bail!(
                    "{pool} does not say {reason} ({words}), but {said:?}\n{}",
                    self.controller.log_tail()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn proxy() -> Result<(String, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = format!("http://{}", listener.local_addr()?);
    let count = Arc::<AtomicUsize>::default();
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(tunnel(client, counted.clone()));
        }
    });
    Ok((address, count))
}

async fn tunnel(client: TcpStream, count: Arc<AtomicUsize>) -> Result<()> {
    let mut client = BufReader::new(client);
    let mut first = String::new();
    client.read_line(&mut first).await?;
    let mut line = String::new();
    while client.read_line(&mut line).await? > 2 {
        line.clear();
    }
    let target = first.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next());
    let mut server = TcpStream::connect(target.context("no CONNECT")?).await?;
    count.fetch_add(1, Ordering::Relaxed);
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

fn controller(plane: &ControlPlane, kubeconfig: &std::path::Path, env: &[(&str, &str)]) -> Result<Process> {
    let directory = plane.directory();
    let mut command = Command::new(programs()?.controller);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .arg("--registry-ca")
        .arg(directory.join("registry-ca.crt"))
        .arg("--registries-conf")
        .arg(directory.join("registries.conf"))
        .arg("--log-format=human")
        .env_remove("NO_PROXY")
        .env_remove("no_proxy")
        .envs(env.iter().copied());
    Process::start("berth-controller", &command, &directory.join("access.log"))
}

#[tokio::test]
async fn images_resolve_by_credentials_tls_proxy_and_mirrors() -> Result<()> {
    let options = Options {
        controller_manager: false,
        ..Options::default()
    };
    let (plane, registry) = tokio::try_join!(ControlPlane::start(options), Registry::start_local())?;
    plane
        .apply_files(&["base/namespace.yaml", "base/crds.yaml", "base/rbac.yaml"])
        .await?;
    let own = plane
        .service_account_kubeconfig("berth-system", "berth-controller", Bound::Nothing)
        .await?;
    let client = registry.client();
    let digest = client
        .push_image("a/os", Some("stable"), &Image::tiny_os("1", b"one")?)
        .await?;
    client
        .push_image("a/os", Some("next"), &Image::tiny_os("2", b"two")?)
        .await?;
    let plain = ImageSpec::plain(vec![]).build()?;
    client.push_image("a/os", Some("plain"), &plain).await?;
    let pair = plane
        .authority()
        .server(&["localhost"], &BTreeSet::from([Ipv4Addr::LOCALHOST.into()]))?;
    let guard = Guard {
        tls: Some(&pair),
        htpasswd: Some(HTPASSWD),
    };
    let door = registry.door(&guard).await?;
    let (address, proxied) = proxy().await?;
    let process = controller(&plane, &own.path, &[("HTTPS_PROXY", &address)])?;
    let mut site = Site {
        plane,
        controller: process,
        host: door.host(),
        digest,
        proxied,
    };
    a_missing_secret_or_ca_is_awaited(&mut site).await?;
    a_refused_request_names_the_credentials(&mut site).await?;
    a_registry_that_is_not_allowed_is_left_alone(&mut site).await?;

    // The next controller bypasses the proxy.
    site.controller.stop(Duration::from_secs(5));
    // A second proxy, because the first may still accept connections of the stopped controller.
    let (bypassed, connections) = proxy().await?;
    let env = [("HTTPS_PROXY", bypassed.as_str()), ("NO_PROXY", "127.0.0.0/8")];
    site.controller = controller(&site.plane, &own.path, &env)?;
    site.pool("one", &format!("{}/a/os:next", site.host), "pull").await?;
    let target = site.says("one", "Resolved", "").await?.target.context("no target")?;
    ensure!(target.version.as_deref() == Some("2"), "{target:?}");
    ensure!(connections.load(Ordering::Relaxed) == 0, "NO_PROXY is not heeded");

    door.stop()?;
    a_mirror_serves_a_pinned_digest(&mut site, &registry.host()).await
}

async fn a_missing_secret_or_ca_is_awaited(site: &mut Site) -> Result<()> {
    let host = site.host.clone();
    site.pool("one", &format!("{host}/a/os:stable"), "pull").await?;
    site.says("one", "PullSecretNotFound", "berth-system/pull").await?;
    site.secret("pull", &format!("{host}/a"), "hush").await?;
    site.says("one", "RegistryUnavailable", "certificate").await?;
    let ca = site.plane.authority().certificate();
    fs::write(site.plane.directory().join("registry-ca.crt"), ca)?;
    let target = site.says("one", "Resolved", "").await?.target.context("no target")?;
    ensure!(target.digest == site.digest, "{target:?}");
    ensure!(target.version.as_deref() == Some("1"), "{target:?}");
    ensure!(site.proxied.load(Ordering::Relaxed) > 0, "HTTPS_PROXY is not used");
    Ok(())
}

async fn a_refused_request_names_the_credentials(site: &mut Site) -> Result<()> {
    let (host, stable) = (site.host.clone(), format!("{}/a/os:stable", site.host));
    site.secret("wrong", &host, "hush2").await?;
    site.secret("other", "quay.io", "hush").await?;
    site.pool("two", &stable, "wrong").await?;
    site.says(
        "two",
        "Unauthorized",
        "the credentials that Secret berth-system/wrong has for",
    )
    .await?;
    site.pool("two", &stable, "other").await?;
    let words = "Secret berth-system/other has no entry for";
    site.says("two", "Unauthorized", words).await?;
    site.pool("two", &format!("{host}/a/os:plain"), "pull").await?;
    let status = site.says("two", "NotBootable", "containers.bootc").await?;
    ensure!(status.target.is_none(), "{:?}", status.target);
    Ok(())
}

/// A pool whose registry is no longer allowed keeps its target.
async fn a_registry_that_is_not_allowed_is_left_alone(site: &mut Site) -> Result<()> {
    let host = site.host.clone();
    site.allow(&["quay.io/example", &format!("{host}/b")]).await?;
    let target = site.says("one", "RegistryNotAllowed", "quay.io/example").await?.target;
    ensure!(target.is_some_and(|t| t.digest == site.digest), "the target is gone");
    site.allow(&[&format!("{host}/a")]).await?;
    site.says("one", "Resolved", "").await.map(drop)
}

/// While the origin is away, the mirror serves the image.
async fn a_mirror_serves_a_pinned_digest(site: &mut Site, mirror: &str) -> Result<()> {
    let (host, file) = (site.host.clone(), site.plane.directory().join("registries.conf"));
    let pinned = format!("{host}/a/os@{}", site.digest);
    site.pool("one", &pinned, "pull").await?;
    site.says("one", "RegistryUnavailable", "").await?;
    let conf = format!(
        "[[registry]]\nprefix = \"{host}\"\n[[registry.mirror]]\nlocation = \"{mirror}\"\ninsecure = true\n\
         pull-from-mirror = \"digest-only\"\n"
    );
    fs::write(&file, conf)?;
    let target = site.says("one", "Resolved", "").await?.target.context("no target")?;
    ensure!(
        target.image.as_str() == pinned && target.digest == site.digest,
        "{target:?}"
    );
    fs::write(&file, "[[registry")?;
    site.pool("one", &pinned.replace('@', ":old@"), "pull").await?;
    site.says("one", "Resolved", ":old@").await.map(drop)
}
