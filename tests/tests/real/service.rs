//! The agent as a service of the host: the shipped `systemd/berth-agent.service`, with a token bound to the Node. The
//! service replaces the DaemonSet's pod, updates the host, and is restarted after the reboot and when it hangs.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::{Published, RealCluster, has_condition, name_of};
use berth_tests::controlplane::{Bound, ControlPlane};
use berth_tests::golden;
use berth_tests::hosts::real::RealHost;
use berth_tests::programs;
use berth_tests::registry::AUTH;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};

/// Name of the shipped unit.
pub const UNIT: &str = "berth-agent.service";
/// Path of the program in the shipped unit. The test replaces it by the path of a copy, since `/usr` belongs to the image.
const SHIPPED: &str = "/usr/bin/berth-agent";
const PROGRAM: &str = "/var/opt/berth/berth-agent";
const DROP_INS: &str = "/etc/systemd/system/berth-agent.service.d";

/// Time limit for the work of the host itself.
const SOON: Duration = Duration::from_secs(30);
/// Time limit for a rollout.
const LONG: Duration = Duration::from_secs(120);

/// Properties of the unit, as systemd shows them.
type Unit = BTreeMap<String, String>;

async fn unit(host: &RealHost) -> Result<Unit> {
    let text = host.exec(&["systemctl", "show", UNIT]).await?;
    Ok(text
        .lines()
        .filter_map(|l| l.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect())
}

async fn property(host: &RealHost, name: &str) -> Result<String> {
    unit(host)
        .await?
        .remove(name)
        .with_context(|| format!("{UNIT} has no property {name}"))
}

async fn is_active(host: &RealHost) -> Result<bool> {
    let out = host.output(&["systemctl", "is-active", UNIT]).await?;
    Ok(String::from_utf8_lossy(&out.stdout).trim() == "active")
}

/// Waits until the service has notified the watchdog again.
async fn until_fed(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    let (process, before) = (
        property(host, "MainPID").await?,
        property(host, "WatchdogTimestampMonotonic").await?,
    );
    cluster
        .until("the watchdog is fed", SOON, || async {
            Ok(property(host, "WatchdogTimestampMonotonic").await? != before)
        })
        .await?;
    ensure!(property(host, "MainPID").await? == process, "another process runs now");
    Ok(())
}

/// Installs the service as docs/install/service.md describes: the program, the unit, and the token with its kubeconfig. `auths` has
/// the host's credentials for registries, if it needs any.
pub async fn install(control_plane: &ControlPlane, host: &RealHost, auths: Option<&Value>) -> Result<()> {
    let program = host.path(PROGRAM)?;
    fs::create_dir_all(program.parent().context("a directory")?)?;
    fs::copy(programs::static_agent()?, &program).context("copying the agent")?;

    let token = control_plane
        .service_account_token("berth-system", "berth-agent", Bound::Node(host.name()))
        .await?;
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "cluster", "cluster": {
            "server": control_plane.url(), "certificate-authority": "/etc/kubernetes/pki/ca.crt",
        }}],
        "users": [{ "name": "agent", "user": { "tokenFile": "/etc/berth/agent.token" } }],
        "contexts": [{ "name": "agent", "context": { "cluster": "cluster", "user": "agent" } }],
        "current-context": "agent",
    });
    // If a pod ran here, its kubelet has already created the directory.
    host.exec(&["mkdir", "--parents", "/etc/berth"]).await?;
    host.exec(&["chmod", "0700", "/etc/berth"]).await?;
    let mut secrets = vec!["/etc/berth/agent.kubeconfig", "/etc/berth/agent.token"];
    let mut variables = "";
    if let Some(auths) = auths {
        host.write("/etc/berth/auth.json", &json!({ "auths": auths }).to_string())
            .await?;
        secrets.push("/etc/berth/auth.json");
        variables = "BERTH_AUTH_FILE=/etc/berth/auth.json\n";
    }
    host.write("/etc/berth/agent.env", variables).await?;
    host.write("/etc/berth/agent.kubeconfig", &kubeconfig.to_string())
        .await?;
    host.write("/etc/berth/agent.token", &token).await?;
    host.exec(&[&["chmod", "0600"], secrets.as_slice()].concat()).await?;

    let shipped = programs::workspace_root().join("systemd").join(UNIT);
    let shipped = fs::read_to_string(&shipped).with_context(|| format!("reading {}", shipped.display()))?;
    host.write(&format!("/etc/systemd/system/{UNIT}"), &shipped).await?;
    let command = shipped
        .lines()
        .find(|l| l.starts_with("ExecStart="))
        .context("the unit has no ExecStart")?;
    ensure!(command.contains(SHIPPED), "{command}");
    let command = command.replace(SHIPPED, PROGRAM);
    let log = "BERTH_LOG=info,berth_agent=debug,kube_client=off";
    host.exec(&["mkdir", DROP_INS]).await?;
    let drop_in = format!("[Service]\nExecStart=\n{command}\nEnvironment={log}\n");
    host.write(&format!("{DROP_INS}/program.conf"), &drop_in).await
}

/// The service starts beside the pod, waits for it to end, and then takes over.
async fn it_takes_over_from_the_pod(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    let auths = json!({ cluster.mirror.host(): { "auth": AUTH } });
    install(&cluster.control_plane, host, Some(&auths)).await?;
    host.exec(&["systemctl", "enable", "--now", UNIT]).await?;
    let shown = unit(host).await?;
    // A service of this type is active when it has reported that it is ready.
    for (name, value) in [
        ("Type", "notify"),
        ("ActiveState", "active"),
        ("SubState", "running"),
        ("UnitFileState", "enabled"),
        ("WatchdogUSec", "5min"),
        ("ProtectSystem", "strict"),
    ] {
        let found = shown.get(name).map(String::as_str);
        ensure!(found == Some(value), "{name} is {found:?}, not {value}");
    }
    cluster
        .until("the service waits for the pod", SOON, || async {
            Ok(host
                .journal(UNIT)
                .await?
                .contains("another agent holds this host's lock"))
        })
        .await?;
    until_fed(cluster, host).await?;

    let sets: Api<DaemonSet> = Api::namespaced(cluster.client(), "berth-system");
    sets.delete("berth-agent", &DeleteParams::default()).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "berth-system");
    cluster
        .until("the pod is gone", SOON, || async {
            Ok(pods.list(&ListParams::default()).await?.items.is_empty())
        })
        .await?;
    cluster
        .until("the service is the only agent", SOON, || async {
            Ok(cluster.agent_process(host).await? == property(host, "MainPID").await?)
        })
        .await
}

/// The hardening of the unit takes effect.
async fn it_is_confined(_: &RealCluster, host: &RealHost) -> Result<()> {
    let process = property(host, "MainPID").await?;
    let status = host.read(&format!("/proc/{process}/status")).await?;
    for line in [
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ] {
        ensure!(status.contains(line), "{line:?} is not in {status}");
    }
    for (path, wanted) in [
        ("/etc", false),
        ("/var", false),
        ("/var/lib/berth", true),
        ("/run/berth", true),
    ] {
        let test = [
            "nsenter", "--mount", "--root", "--target", &process, "--", "test", "-w", path,
        ];
        let is_writable = host.output(&test).await?.status.success();
        ensure!(is_writable == wanted, "{path} is writable: {is_writable}");
    }
    Ok(())
}

async fn pods(cluster: &RealCluster) -> Result<Vec<String>> {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), "default");
    Ok(pods
        .list(&ListParams::default())
        .await?
        .items
        .into_iter()
        .filter_map(|p| p.metadata.name)
        .collect())
}

/// A node is updated from v1 to v2, with a pod to drain, and the service runs again afterwards.
async fn it_updates_the_host(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    cluster.deploy("web", 1).await?;
    let (boots, tenants) = (cluster.boots(), pods(cluster).await?);
    let v2 = cluster.publish("2.0.0").await?;
    // Slow enough to be observed.
    host.limit_pulls(Some(100 << 10)).await?;
    cluster
        .pool(
            "workers",
            &v2.reference,
            json!({ "maxUnavailable": 1, "progressInterval": "1s" }),
        )
        .await?;
    cluster
        .until("the progress of the pull is reported", SOON, || async {
            let status = cluster.node_status(host.name()).await?;
            Ok(status.progress.is_some_and(|p| p.bytes > 0))
        })
        .await?;
    host.limit_pulls(None).await?;
    until_fed(cluster, host).await?;
    cluster.until_all_run(&v2, LONG).await?;
    let booted = cluster.boots()[host.name()] - boots[host.name()];
    ensure!(booted == 1, "{booted} boots");
    ensure!(is_active(host).await?, "the service does not run after the reboot");
    let now = pods(cluster).await?;
    ensure!(!now.iter().any(|pod| tenants.contains(pod)), "{tenants:?}, {now:?}");
    ensure!(
        property(host, "NRestarts").await? == "0",
        "the service has failed: {:?}",
        unit(host).await?
    );
    ensure!(
        property(host, "MainPID").await? == cluster.agent_process(host).await?,
        "another agent holds the lock"
    );
    until_phase(cluster, host, "Updated").await?;
    golden::ensure_walk_to(&cluster.control_plane.audit_log(), host.name(), &v2.digest, "whole")?;
    cluster.judge()
}

async fn until_phase(cluster: &RealCluster, host: &RealHost, phase: &str) -> Result<()> {
    cluster
        .until(&format!("the host is {phase}"), LONG, || async {
            Ok(cluster.phase(host.name()).await? == phase)
        })
        .await
}

async fn roll_to(cluster: &RealCluster, version: &str) -> Result<Published> {
    let image = cluster.publish(version).await?;
    let rollout = json!({ "maxUnavailable": 1, "maxStaging": "100%" });
    cluster.pool("workers", &image.reference, rollout).await?;
    Ok(image)
}

/// With this image the kubelet does not start, so the node is not proven until the next image comes. The service keeps
/// running; a pod could not be started without the kubelet.
async fn it_survives_an_image_without_a_kubelet(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    let boots = cluster.boots();
    host.exec(&["mkdir", "--parents", "/etc/systemd/system/kubelet.service.d"])
        .await?;
    let condition = "[Service]\nExecCondition=/bin/sh -c '! grep -qx 3.0.0 /usr/lib/os-version'\n";
    host.write("/etc/systemd/system/kubelet.service.d/bad.conf", condition)
        .await?;
    let bad = roll_to(cluster, "3.0.0").await?;
    until_phase(cluster, host, "Proving").await?;
    let stuck = host.boot().context("up")?;
    ensure!(stuck.digest == bad.digest.to_string(), "{stuck:?}");
    // An inhibitor blocks the reboot for a while: the node keeps its berth, and its staged image stays locked.
    let backup = [
        "systemd-inhibit",
        "--what=shutdown",
        "--mode=block",
        "--who=backup",
        "--why=copies the disk",
    ];
    let backup = [
        &["systemd-run", "--unit=backup", "--collect"],
        backup.as_slice(),
        &["sleep", "1000"],
    ]
    .concat();
    host.exec(&backup).await?;
    let good = roll_to(cluster, "4.0.0").await?;
    cluster
        .until("the stuck host names the inhibitor", SOON, || async {
            let conditions = cluster.node_status(host.name()).await?.conditions;
            Ok(has_condition(&conditions, ("Updated", "False", "Inhibited", "backup")))
        })
        .await?;
    host.exec(&["systemctl", "stop", "backup"]).await?;
    cluster.until_all_run(&good, LONG).await?;
    until_phase(cluster, host, "Updated").await?;
    let booted = cluster.boots()[host.name()] - boots[host.name()];
    ensure!(booted == 2, "one boot into each of two images: {booted} boots");
    golden::ensure_walk_to(
        &cluster.control_plane.audit_log(),
        host.name(),
        &bad.digest,
        "bad-image",
    )?;
    cluster.judge()
}

/// Another image without a kubelet; here the admin returns to the previous image by hand.
async fn its_admin_goes_back(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    let condition = "[Service]\nExecCondition=/bin/sh -c '! grep -qx 5.0.0 /usr/lib/os-version'\n";
    host.write("/etc/systemd/system/kubelet.service.d/worse.conf", condition)
        .await?;
    let pool = cluster.pools().get("workers").await?;
    let bad = roll_to(cluster, "5.0.0").await?;
    until_phase(cluster, host, "Proving").await?;
    cluster.excuse(host.name());
    host.exec(&["systemctl", "stop", UNIT]).await?;
    host.exec(&["bootc", "rollback"]).await?;
    host.reboot_now().await?;
    until_phase(cluster, host, "Degraded").await?;
    golden::ensure_walk_to(&cluster.control_plane.audit_log(), host.name(), &bad.digest, "failed")?;
    cluster.set_image("workers", pool.spec.image_ref().as_str()).await?;
    until_phase(cluster, host, "Updated").await
}

/// systemd ends and restarts an agent that hangs.
async fn it_is_restarted_when_it_hangs(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    let drop_in = format!("{DROP_INS}/watchdog.conf");
    host.exec(&["systemctl", "stop", UNIT]).await?;
    host.write(&drop_in, "[Service]\nWatchdogSec=5s\nRestartSec=1s\n")
        .await?;
    host.exec(&["systemctl", "daemon-reload"]).await?;
    host.exec(&["systemctl", "start", UNIT]).await?;
    let hung = property(host, "MainPID").await?;
    host.exec(&["kill", "-STOP", &hung]).await?;
    ensure!(property(host, "WatchdogUSec").await? == "5s", "the drop-in is not used");
    cluster
        .until("systemd restarts the service", SOON, || async {
            let now = unit(host).await?;
            Ok(now["ActiveState"] == "active" && now["NRestarts"] != "0" && now["MainPID"] != hung)
        })
        .await?;
    // An idle agent notifies the watchdog less often than every 5 s, so the drop-in is removed. A running service would
    // keep the drop-in's setting, so the service is restarted.
    host.exec(&["rm", &drop_in]).await?;
    host.exec(&["systemctl", "daemon-reload"]).await?;
    host.exec(&["systemctl", "restart", UNIT]).await?;
    let journal = host.journal(UNIT).await?;
    ensure!(journal.contains("Watchdog timeout"), "no watchdog in {journal}");
    until_fed(cluster, host).await?;
    cluster
        .until("all is as before", SOON, || async {
            Ok(cluster.phase(host.name()).await? == "Updated")
        })
        .await?;
    ensure!(cluster.held().await?.is_empty(), "no berth is held");
    Ok(())
}

async fn scenario(
    cluster: &RealCluster,
    host: &RealHost,
    body: impl AsyncFnOnce(&RealCluster, &RealHost) -> Result<()>,
) -> Result<()> {
    let (begin, name) = (Instant::now(), name_of(&body));
    body(cluster, host).await?;
    println!("{name:<44} {:>5.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

async fn scenarios(cluster: &RealCluster, host: &RealHost) -> Result<()> {
    scenario(cluster, host, it_takes_over_from_the_pod).await?;
    scenario(cluster, host, it_is_confined).await?;
    scenario(cluster, host, it_updates_the_host).await?;
    scenario(cluster, host, it_survives_an_image_without_a_kubelet).await?;
    it_is_confined(cluster, host).await?;
    scenario(cluster, host, it_is_restarted_when_it_hangs).await?;
    scenario(cluster, host, its_admin_goes_back).await?;
    let by_hand = format!("I3: {} was rebooted by the test", host.name());
    let violations = cluster.violations()?;
    ensure!(
        matches!(violations.as_slice(), [one] if one.starts_with(&by_hand)),
        "only the manual reboot may be a violation: {violations:#?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_unit_serves_a_real_host() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    let begin = Instant::now();
    let cluster = RealCluster::start(1).await?;
    println!("{:<44} {:>5.1} s", "the rig is ready", begin.elapsed().as_secs_f64());
    let host = cluster.host(1);
    let outcome = scenarios(&cluster, host).await;
    println!("{:<44} {:>5.1} s", "total", begin.elapsed().as_secs_f64());
    if let Err(error) = &outcome {
        let journal = host.journal(UNIT).await.unwrap_or_else(|e| format!("{e:#}"));
        eprintln!("{error:#}\n{}\njournal of {UNIT}:\n{journal}", cluster.describe().await);
    }
    outcome
}
