//! The real hosts of the harness, without Berth: Berth relies on this behaviour of bootc, ostree, systemd and kubelet.

use std::ops::Deref;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::hosts::real::{
    GUEST_IMAGE, HostOptions, NodeIdentity, OsImages, OsVersion, RealHost, RealHosts, guest_program,
};
use berth_tests::hosts::{HostChange, HostLog};
use berth_tests::images::ImageSpec;
use berth_tests::registry::Registry;
use berth_tests::tools::{Tool, Tools};
use berth_tests::wait::eventually;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::PostParams;
use serde_json::Value;

use crate::one_host::{OneHost, is_skipped, of_three_layers};

const MINUTE: Duration = Duration::from_secs(60);

/// A host with v1, and a registry that has v1 to v3.
struct Rig(OneHost);

impl Deref for Rig {
    type Target = OneHost;

    fn deref(&self) -> &OneHost {
        &self.0
    }
}

impl Rig {
    async fn new() -> Result<Self> {
        tracing_subscriber::fmt().with_writer(std::io::stderr).try_init().ok();
        let mut versions = ["1.0.0", "2.0.0", "3.0.0"].map(of_three_layers);
        for small in [0, 2] {
            versions[small].payload.truncate(1);
        }
        Ok(Self(OneHost::start(versions.into(), vec![]).await?))
    }

    fn digest(&self, version: usize) -> &str {
        &self.versions[version - 1].digest
    }

    fn reference(&self, version: usize) -> String {
        self.versions[version - 1].reference(&self.registry.host(), "os")
    }

    async fn status(&self) -> Result<Value> {
        let text = self
            .host
            .exec(&["bootc", "status", "--format=json", "--format-version=1"])
            .await?;
        serde_json::from_str(&text).context("status")
    }

    /// Stages a version and locks it, in a unit as the agent does.
    async fn stage(&self, version: usize) -> Result<()> {
        let reference = self.reference(version);
        let command = [
            "systemd-run",
            "--wait",
            "--collect",
            "--unit=pull",
            "--service-type=oneshot",
            "--property=ExecStartPost=/usr/bin/ostree admin lock-finalization",
            "/usr/bin/bootc",
            "switch",
            &reference,
        ];
        self.host.exec(&command).await.map(drop)
    }

    async fn reboot(&self) -> Result<()> {
        let before = self.host.boot().context("up")?.boot_id;
        let manager = [
            "org.freedesktop.login1",
            "/org/freedesktop/login1",
            "org.freedesktop.login1.Manager",
        ];
        let mut call = vec!["busctl", "call"];
        call.extend(manager);
        call.extend(["RebootWithFlags", "t", "0"]);
        self.host.output(&call).await?;
        self.host.wait_boot(Some(&before), MINUTE).await.map(drop)
    }

    /// Runs a command that must fail; returns its exit status and error text.
    async fn refused(&self, command: &[&str]) -> Result<(i32, String)> {
        let out = self.host.output(command).await?;
        let code = out.status.code().context("killed")?;
        Ok((code, String::from_utf8_lossy(&out.stderr).trim().to_owned()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn staged_locked_unlocked_booted_rolled_back() {
    if is_skipped() {
        return;
    }
    let rig = Rig::new().await.unwrap();
    let begin = Instant::now();
    let version = rig.host.exec(&["bootc", "--version"]).await.unwrap();
    assert!(version.starts_with("bootc "), "{version}");
    let status = rig.status().await.unwrap();
    assert_eq!(status["status"]["booted"]["image"]["imageDigest"], rig.digest(1));
    assert_eq!(status["status"]["booted"]["image"]["image"]["image"], rig.reference(1));
    assert_eq!(status["status"]["rollback"], Value::Null);

    rig.stage(2).await.unwrap();
    let status = rig.status().await.unwrap();
    assert_eq!(status["status"]["staged"]["image"]["imageDigest"], rig.digest(2));
    assert_eq!(status["status"]["staged"]["downloadOnly"], true);
    eprintln!("staged: {:?}", begin.elapsed());

    // A reboot by others does not apply the update.
    rig.reboot().await.unwrap();
    assert_eq!(rig.host.boot().unwrap().digest, rig.digest(1));
    assert_eq!(rig.status().await.unwrap()["status"]["staged"], Value::Null);
    eprintln!("rebooted: {:?}", begin.elapsed());

    rig.stage(2).await.unwrap();
    let words = rig.host.exec(&["bootc", "upgrade", "--from-downloaded"]).await.unwrap();
    assert!(words.contains("will now be applied on reboot"), "{words}");
    assert_eq!(rig.status().await.unwrap()["status"]["staged"]["downloadOnly"], false);
    rig.host.write("/etc/kept", "by the merge of /etc\n").await.unwrap();
    rig.reboot().await.unwrap();
    let boot = rig.host.boot().unwrap();
    assert_eq!((boot.digest.as_str(), boot.version.as_str()), (rig.digest(2), "2.0.0"));
    let status = rig.status().await.unwrap();
    assert_eq!(status["status"]["booted"]["image"]["imageDigest"], rig.digest(2));
    assert_eq!(status["status"]["rollback"]["image"]["imageDigest"], rig.digest(1));
    assert_eq!(rig.host.read("/etc/kept").await.unwrap(), "by the merge of /etc\n");
    eprintln!("updated: {:?}", begin.elapsed());

    rig.host.exec(&["bootc", "rollback"]).await.unwrap();
    assert_eq!(rig.status().await.unwrap()["status"]["rollbackQueued"], true);
    rig.reboot().await.unwrap();
    assert_eq!(rig.host.boot().unwrap().version, "1.0.0");
    eprintln!("rolled back: {:?}", begin.elapsed());

    let boots: Vec<String> = rig
        .log
        .events()
        .into_iter()
        .filter_map(|e| match e.change {
            HostChange::Up { version, .. } => Some(version),
            _ => None,
        })
        .collect();
    assert_eq!(boots, ["1.0.0", "1.0.0", "2.0.0", "1.0.0"]);
}

/// The two locks that need not wait for the end of bootc: ostree's lock file, and a newer bootc's `--download-only`.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_locked_without_waiting_for_bootc() {
    if is_skipped() {
        return;
    }
    let rig = Rig::new().await.unwrap();
    let (first, second) = (rig.digest(1).to_owned(), rig.digest(2).to_owned());
    let reference = rig.reference(2);
    let link = [
        "ln",
        "/run/ostree/staged-deployment",
        "/run/ostree/staged-deployment-locked",
    ];
    assert_ne!(rig.refused(&link).await.unwrap().0, 0, "nothing is staged");
    rig.host.exec(&["bootc", "switch", &reference]).await.unwrap();
    rig.host.exec(&link).await.unwrap();
    rig.reboot().await.unwrap();
    assert_eq!(rig.host.boot().unwrap().digest, first, "the lock file is ignored");

    // A deployment that is locked in both ways is unlocked by one command.
    rig.host.exec(&["bootc", "switch", &reference]).await.unwrap();
    rig.host.exec(&link).await.unwrap();
    rig.host.exec(&["ostree", "admin", "lock-finalization"]).await.unwrap();
    rig.host.exec(&["bootc", "upgrade", "--from-downloaded"]).await.unwrap();
    assert_ne!(rig.refused(&["test", "-e", link[2]]).await.unwrap().0, 0);
    rig.reboot().await.unwrap();
    assert_eq!(rig.host.boot().unwrap().digest, second);

    // A real bootc has a fixed release; only the stand-in can imitate a newer one.
    if std::env::var_os("BERTH_TEST_BOOTC").is_some() {
        return;
    }
    let reference = rig.reference(3);
    rig.host.write("/etc/standin-bootc-next", "").await.unwrap();
    let help = rig.host.exec(&["bootc", "switch", "--help"]).await.unwrap();
    assert!(help.contains("--download-only"), "{help}");
    let switch = ["bootc", "switch", "--download-only", &reference];
    rig.host.exec(&switch).await.unwrap();
    assert_eq!(rig.status().await.unwrap()["status"]["staged"]["downloadOnly"], true);
    rig.reboot().await.unwrap();
    assert_eq!(rig.host.boot().unwrap().digest, second);

    // An image that was staged unlocked stays unlocked.
    rig.host.exec(&["bootc", "switch", &reference]).await.unwrap();
    let words = rig.host.exec(&switch).await.unwrap();
    assert_eq!(words.trim(), "Image specification is unchanged.");
    assert_eq!(rig.status().await.unwrap()["status"]["staged"]["downloadOnly"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_pull_resumes() {
    if is_skipped() {
        return;
    }
    let rig = Rig::new().await.unwrap();
    // Limits the network, which works with a real bootc as well.
    rig.host.limit_network(Some(200 << 10)).await.unwrap();
    let reference = rig.reference(2);
    let start = [
        "systemd-run",
        "--unit=slow",
        "--service-type=exec",
        "/usr/bin/bootc",
        "switch",
        &reference,
    ];
    rig.host.exec(&start).await.unwrap();
    layers(&rig.host, 1).await.unwrap();

    // The status waits for the pull.
    let (code, _) = rig
        .refused(&["timeout", "1", "bootc", "status", "--json"])
        .await
        .unwrap();
    assert_eq!(code, 124);
    rig.host
        .exec(&["systemctl", "kill", "--signal=KILL", "slow.service"])
        .await
        .unwrap();
    rig.host.limit_network(None).await.unwrap();
    assert_eq!(rig.status().await.unwrap()["status"]["staged"], Value::Null);

    // The retry fetches only the missing layers, as its progress shows.
    let script =
        format!("mkfifo /run/p; cat /run/p > /run/p.out & bootc switch --progress-fd 3 {reference} 3> /run/p; wait");
    rig.host.exec(&["bash", "-c", &script]).await.unwrap();
    let events = rig.host.read("/run/p.out").await.unwrap();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["type"], "Start");
    assert_eq!(events[1]["task"], "pulling");
    assert_eq!(events[1]["id"], rig.digest(2));
    let left = events[1]["bytesTotal"].as_u64().unwrap();
    assert!(left < 5 << 19, "one of three layers should be there: {left} bytes left");
    let last = events.last().unwrap();
    assert_eq!(
        (&last["task"], &last["steps"]),
        (&Value::from("staging"), &Value::from(3))
    );
    assert_eq!(rig.status().await.unwrap()["status"]["staged"]["downloadOnly"], false);

    // A power cut discards the staged image. The pulled layers remain, so no registry is needed.
    let before = rig.host.boot().unwrap().boot_id;
    rig.host.power_cut();
    rig.host.wait_boot(Some(&before), MINUTE).await.unwrap();
    assert_eq!(rig.host.boot().unwrap().version, "1.0.0");
    rig.registry.stop().unwrap();
    rig.stage(2).await.unwrap();
    assert_eq!(
        rig.status().await.unwrap()["status"]["staged"]["image"]["version"],
        "2.0.0"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_bootcs_words() {
    if is_skipped() {
        return;
    }
    let rig = Rig::new().await.unwrap();
    let host = rig.registry.host();
    let (code, words) = rig.refused(&["bootc", "upgrade", "--from-downloaded"]).await.unwrap();
    assert_eq!(
        (code, words.as_str()),
        (1, "error: Upgrading: No staged deployment found")
    );
    let (code, words) = rig.refused(&["bootc", "rollback"]).await.unwrap();
    assert_eq!(
        (code, words.as_str()),
        (1, "error: Rollback: Rollback (ostree): No rollback available")
    );
    let (code, _) = rig
        .refused(&["bootc", "switch", "--download-only", &rig.reference(2)])
        .await
        .unwrap();
    assert_eq!(code, 2);
    let unknown = format!("sha256:{}", "0".repeat(64));
    let (code, words) = rig
        .refused(&["bootc", "switch", &format!("{host}/os@{unknown}")])
        .await
        .unwrap();
    assert_eq!(code, 1);
    let expected = format!("OpenImage: reading manifest {unknown} in {host}/os: manifest unknown");
    assert!(words.contains(&expected) && words.lines().count() == 1, "{words}");
    let same = rig.host.exec(&["bootc", "switch", &rig.reference(1)]).await.unwrap();
    assert_eq!(same.trim(), "Image specification is unchanged.");
    rig.registry.stop().unwrap();
    let (code, words) = rig.refused(&["bootc", "switch", &rig.reference(2)]).await.unwrap();
    assert_eq!(code, 1);
    assert!(words.contains("OpenImage: pinging container registry"), "{words}");
    assert!(words.ends_with("connect: connection refused"), "{words}");
}

/// Waits until this number of v2's own layers is in the repository, besides the layers of v1.
async fn layers(host: &RealHost, count: usize) -> Result<()> {
    let list = ["ostree", "refs", "--list", "ostree/container/blob"];
    let before = host.exec(&list).await?.lines().count();
    let begin = Instant::now();
    while host.exec(&list).await?.lines().count() < before + count {
        ensure!(begin.elapsed() < MINUTE, "no layer after a minute");
        tokio::time::sleep(Duration::from_millis(100)).await;
        if host.exec(&["systemctl", "is-active", "slow.service"]).await.is_err() {
            bail!("the pull ended: {}", host.journal("slow.service").await?);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kubelet_is_a_node_with_the_hosts_boot_id() {
    if is_skipped() {
        return;
    }
    let (images, first) = tokio::task::spawn_blocking(|| -> Result<_> {
        let tools = Tools::ensure(&[Tool::Kubelet])?;
        let images = OsImages::ensure(Some(tools.path(Tool::Kubelet)?))?;
        let first = images.version(&OsVersion::new("1.0.0"))?;
        Ok((images, first))
    })
    .await
    .unwrap()
    .unwrap();
    let hosts = RealHosts::new(images, HostLog::default()).await.unwrap();
    let gateway = hosts.gateway().into();
    let registry = Registry::start(gateway).await.unwrap();
    let cluster = ControlPlane::start(Options::real_hosts(gateway)).await.unwrap();
    let begin = Instant::now();
    let mut nodes = Vec::new();
    for name in ["node1", "node2"] {
        let mut options = HostOptions::new(name, &first, &registry.host());
        options.node = Some(NodeIdentity {
            kubeconfig: cluster.node_kubeconfig(name).unwrap().text,
            ca: cluster.ca_certificate(),
        });
        nodes.push(hosts.add(options).await.unwrap());
    }
    eprintln!("installed: {:?}", begin.elapsed());
    for host in &nodes {
        host.start().await.unwrap();
    }
    for host in &nodes {
        ready(&cluster, host).await.unwrap();
    }
    eprintln!("ready: {:?}", begin.elapsed());

    // Two pods: the first uses an image that is on every host, the second an image from the registry.
    let image = ImageSpec::program(&guest_program().unwrap(), &["serve", "8080"])
        .unwrap()
        .build()
        .unwrap();
    let digest = registry.client().push_image("app", None, &image).await.unwrap();
    let app = format!("{}/app@{digest}", registry.host());
    let pods: Api<Pod> = Api::namespaced(cluster.admin_client(), "default");
    for (name, image) in [("guest", GUEST_IMAGE), ("app", app.as_str())] {
        let container = serde_json::json!({"name": name, "image": image});
        let pod = serde_json::json!({
            "metadata": {"name": name},
            "spec": {"nodeName": "node1", "containers": [container]},
        });
        let pod = serde_json::from_value(pod).unwrap();
        pods.create(&PostParams::default(), &pod).await.unwrap();
    }
    running(&pods, "guest", 0).await.unwrap();
    running(&pods, "app", 0).await.unwrap();
    eprintln!("pod: {:?}", begin.elapsed());

    let begin = Instant::now();
    let [first, second] = [&nodes[0], &nodes[1]];
    let (before, other) = (first.boot().unwrap(), second.boot().unwrap());
    first.reboot_now().await.unwrap();
    let not = Some(before.boot_id.as_str());
    first.wait_boot(not, MINUTE).await.unwrap();
    ready(&cluster, first).await.unwrap();
    eprintln!("ready again: {:?}", begin.elapsed());
    running(&pods, "app", 1).await.unwrap();
    eprintln!("pod again: {:?}", begin.elapsed());
    assert_eq!(second.boot().unwrap().boot_id, other.boot_id);
}

/// Waits until the Node is Ready with the host's current boot ID.
async fn ready(cluster: &ControlPlane, host: &RealHost) -> Result<()> {
    let boot_id = host.boot().context("up")?.boot_id;
    let nodes: Api<Node> = Api::all(cluster.admin_client());
    let begin = Instant::now();
    loop {
        let status = nodes
            .get_opt(host.name())
            .await?
            .and_then(|node| node.status)
            .unwrap_or_default();
        let is_ready = status
            .conditions
            .iter()
            .flatten()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        if is_ready && status.node_info.is_some_and(|info| info.boot_id == boot_id) {
            return Ok(());
        }
        if begin.elapsed() > MINUTE {
            bail!("not Ready: {:?}\n{}", status.conditions, host.journal("kubelet").await?);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until a pod's container runs after this number of restarts.
async fn running(pods: &Api<Pod>, name: &str, restarts: i32) -> Result<()> {
    eventually(name, MINUTE, async || {
        let status = pods.get(name).await?.status.unwrap_or_default();
        let mut containers = status.container_statuses.iter().flatten();
        Ok(containers.any(|c| c.ready && c.restart_count == restarts))
    })
    .await
}
