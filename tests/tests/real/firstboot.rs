//! The first boot of real hosts: the shipped `systemd/berth-firstboot.service` runs before a unit in place of the
//! kubelet.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_core::firstboot::messages::MESSAGE_ID;
use berth_tests::cluster::name_of;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::hosts::HostLog;
use berth_tests::hosts::real::{HostOptions, OsImage, OsImages, OsVersion, RealHost, RealHosts};
use berth_tests::programs;
use berth_tests::registry::Registry;
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

const UNIT: &str = "berth-firstboot.service";
/// Path of the program in the shipped unit. The test replaces it by the path of a copy, since `/usr` belongs to the image.
const SHIPPED: &str = "/usr/bin/berth-agent";
const PROGRAM: &str = "/var/opt/berth/berth-agent";
const RAN: &str = "/var/opt/kubelet-ran";
const ISSUE: &str = "/etc/issue.d/80-berth-firstboot.issue";
const LOGIN: &str = "/run/motd.d/80-berth-firstboot";
const ALEPH: &str = "/sysroot/.bootc-aleph.json";
const CONFIG: &str = "/etc/berth/firstboot.toml";
const OVERRIDE: &str = "/etc/berth/firstboot.override";
const KUBELET: &str = "[Service]\nType=oneshot\nExecStart=/usr/bin/touch /var/opt/kubelet-ran\n\
    [Install]\nWantedBy=multi-user.target\n";

/// Kubeconfig of the identity that writes the event, and its rights.
const KUBECONFIG: &str = "/etc/berth/firstboot.kubeconfig";
const ROLE: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: { name: firstboot, namespace: default }
rules: [{ apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch] }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: { name: firstboot, namespace: default }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: Role, name: firstboot }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: User, name: firstboot }]
"#;

struct Rig {
    host: RealHost,
    registry: Registry,
    control_plane: ControlPlane,
    target: OsImage,
    hosts: RealHosts,
}

impl Rig {
    /// A host with 1.0.0, and a registry whose tag `next` is 2.0.0, which requires machines installed from 1.5 or
    /// newer.
    async fn new() -> Result<Self> {
        let (images, v1, v2) = tokio::task::spawn_blocking(|| -> Result<_> {
            let images = OsImages::ensure(None)?;
            let v1 = images.version(&OsVersion::new("1.0.0"))?;
            let v2 = images.version(&OsVersion {
                payload: vec![1 << 20; 6],
                labels: vec![("berth.dev/min-boot-image".to_owned(), "1.5.0".to_owned())],
                ..OsVersion::new("2.0.0")
            })?;
            Ok((images, v1, v2))
        })
        .await??;
        let hosts = RealHosts::new(images, HostLog::default()).await?;
        let gateway = hosts.gateway().into();
        let (registry, control_plane) = tokio::try_join!(
            Registry::start(gateway),
            ControlPlane::start(Options::real_hosts(gateway))
        )?;
        control_plane.apply_yaml(ROLE).await?;
        let kubeconfig = control_plane.kubeconfig_for("firstboot", &[])?.text;
        v1.push(&registry.host(), "os", "1.0.0")?;
        v2.push(&registry.host(), "os", "next")?;
        let shipped = std::fs::read_to_string(programs::workspace_root().join("systemd").join(UNIT))?;
        ensure!(shipped.contains(&format!("ExecStart={SHIPPED} ")), "{shipped}");
        let program = tokio::task::spawn_blocking(programs::static_agent).await??;
        let unit = shipped.replace(SHIPPED, PROGRAM);
        let mut options = HostOptions::new("host1", &v1, &registry.host());
        options.files = vec![
            (format!("etc/systemd/system/{UNIT}"), 0o644, unit.into_bytes()),
            ("etc/systemd/system/kubelet.service".to_owned(), 0o644, KUBELET.into()),
            (PROGRAM.to_owned(), 0o755, std::fs::read(&program)?),
        ];
        let host = hosts.add(options).await?;
        host.start().await?;
        host.exec(&["mkdir", "-p", "/etc/berth"]).await?;
        host.write(KUBECONFIG, &kubeconfig).await?;
        host.exec(&["systemctl", "enable", UNIT, "kubelet.service"]).await?;
        // An image has this link in /usr, beside the unit.
        host.exec(&["systemctl", "add-requires", "kubelet.service", UNIT])
            .await?;
        Ok(Self {
            host,
            registry,
            control_plane,
            target: v2,
            hosts,
        })
    }

    async fn scenario(&self, body: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<()> {
        let (begin, name) = (Instant::now(), name_of(&body));
        body(self).await?;
        println!("{name:<56} {:>5.1} s", begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// Resets the host to its first boot, installed from this version, with a configuration.
    async fn prepare(&self, installed_from: Option<&str>, more: &str) -> Result<()> {
        let host = &self.host;
        host.exec(&["rm", "-rf", "/var/lib/berth", RAN, OVERRIDE, ALEPH])
            .await?;
        let _ = host.output(&["systemctl", "stop", UNIT, "kubelet.service"]).await?;
        let _ = host.output(&["systemctl", "reset-failed"]).await?;
        if let Some(version) = installed_from {
            host.write(ALEPH, &format!("{{\"version\": \"{version}\"}}")).await?;
        }
        let config = format!(
            "image = \"{}/os:next\"\ndeadline = \"60s\"\nkubeconfig = \"{KUBECONFIG}\"\n{more}",
            self.registry.host()
        );
        host.write(CONFIG, &config).await
    }

    async fn reword(&self, word: &str, by: &str) -> Result<()> {
        let config = self.host.read(CONFIG).await?;
        ensure!(config.contains(word), "{config}");
        self.host.write(CONFIG, &config.replace(word, by)).await
    }

    /// Starts the kubelet as the boot does; true if it ran.
    async fn kubelet_runs(&self) -> Result<bool> {
        let _ = self.host.output(&["systemctl", "start", "kubelet.service"]).await?;
        self.has(RAN).await
    }

    async fn has(&self, path: &str) -> Result<bool> {
        Ok(self.host.output(&["test", "-e", path]).await?.status.success())
    }

    /// Text that getty shows, in one line.
    async fn notice(&self) -> Result<String> {
        let text = self.host.read(ISSUE).await?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    async fn record(&self) -> Result<Value> {
        let text = self.host.read("/var/lib/berth/firstboot.json").await?;
        serde_json::from_str(&text).context(text)
    }

    async fn expect(&self, outcome: &str, finished: bool) -> Result<Value> {
        let record = self.record().await?;
        let is = record["status"]["outcome"] == outcome && record["finished"] == finished;
        ensure!(is, "not {outcome}, {finished}: {record:#}");
        Ok(record)
    }

    async fn until(&self, what: &str, mut done: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let begin = Instant::now();
        while !done().await.unwrap_or(false) {
            if begin.elapsed() > Duration::from_secs(90) {
                let journal = self.host.journal(UNIT).await.unwrap_or_default();
                bail!("timeout waiting for {what}; the unit's journal:\n{journal}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

async fn a_refused_machine_does_not_start_its_kubelet(rig: &Rig) -> Result<()> {
    rig.prepare(Some("1.0.0"), "").await?;
    let ran = rig.kubelet_runs().await?;
    let journal = rig.host.journal(UNIT).await?;
    ensure!(!ran, "the kubelet ran; {journal}");
    let record = rig.expect("Refused", false).await.context(journal)?;
    ensure!(
        record["status"]["held"] == true && record["status"]["digest"] == *rig.target.digest,
        "{record:#}"
    );
    let status = rig
        .host
        .exec(&["systemctl", "show", "--property=ExecMainStatus", UNIT])
        .await?;
    ensure!(status.trim() == "ExecMainStatus=3", "{status}");
    let issue = rig.notice().await?;
    ensure!(
        issue.contains("older than the minimum") && issue.contains("held back"),
        "{issue}"
    );
    let login = rig.host.read(LOGIN).await?;
    ensure!(login == rig.host.read(ISSUE).await?, "the login shows: {login}");
    rig.until("the journal's record", || async {
        let query = format!("MESSAGE_ID={MESSAGE_ID}");
        let text = rig.host.exec(&["journalctl", "--output=json", &query]).await?;
        let last: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
        Ok(last["BERTH_OUTCOME"] == "Refused" && last["BERTH_KUBELET_HELD"] == "true")
    })
    .await?;
    an_event_is_on_the_cluster(rig).await?;

    a_reboot_lets_it_go_no_further(rig).await?;
    // An admin may let the boot continue.
    ensure!(!rig.kubelet_runs().await?, "the kubelet ran without the override");
    rig.host.write(OVERRIDE, "").await?;
    let dry = rig.host.exec(&[PROGRAM, "firstboot", "--dry-run"]).await?;
    ensure!(dry.starts_with("Overridden: "), "{dry}");
    rig.expect("Refused", false)
        .await
        .context("a dry run changes nothing")?;
    ensure!(rig.kubelet_runs().await?, "{}", rig.host.journal(UNIT).await?);
    let record = rig.expect("Overridden", true).await?;
    ensure!(record["status"]["held"] == true, "the refusal is lost: {record:#}");
    ensure!(!rig.has(ISSUE).await?, "the notice is still there");
    Ok(())
}

/// The next boot checks again, before its kubelet, and shows the notice again: the reboot had removed it.
async fn a_reboot_lets_it_go_no_further(rig: &Rig) -> Result<()> {
    let host = &rig.host;
    let first = host.boot().context("down")?.boot_id;
    host.reboot_now().await?;
    host.wait_boot(Some(&first), Duration::from_secs(60)).await?;
    rig.until("the refusal of the next boot", || async {
        let status = ["systemctl", "show", "--property=ExecMainStatus,ActiveState", UNIT];
        let status = host.exec(&status).await?;
        Ok(status.contains("ActiveState=failed") && status.contains("ExecMainStatus=3"))
    })
    .await?;
    rig.until("the end of the kubelet's job", || async {
        let jobs = host.exec(&["systemctl", "list-jobs", "--no-legend"]).await?;
        Ok(!jobs.contains("kubelet.service"))
    })
    .await?;
    let journal = host.journal(UNIT).await?;
    ensure!(!rig.has(RAN).await?, "the kubelet ran after the reboot; {journal}");
    let login = host.read(LOGIN).await.context(journal)?;
    ensure!(
        login == host.read(ISSUE).await? && login.contains("held back"),
        "{login}"
    );
    rig.expect("Refused", false).await.map(drop)
}

/// The event has the machine's own name, since the configuration names no node.
async fn an_event_is_on_the_cluster(rig: &Rig) -> Result<()> {
    let events: Api<Event> = Api::all(rig.control_plane.admin_client());
    let selector = ListParams::default().fields("reason=FirstBootRefused");
    rig.until("the event on the cluster", async || {
        let name = rig.host.name();
        let events = events.list(&selector).await?.items;
        let words = [
            name,
            "from 1.0.0",
            "older than the minimum 1.5.0",
            "from a newer boot image",
        ];
        Ok(events.iter().any(|event: &Event| {
            let message = event.message.as_deref().unwrap_or_default();
            event.involved_object.name.as_deref() == Some(name) && words.iter().all(|word| message.contains(word))
        }))
    })
    .await
}

async fn an_unknown_boot_image_is_reported_and_boots(rig: &Rig) -> Result<()> {
    rig.prepare(None, "pivot = true\n").await?;
    ensure!(rig.kubelet_runs().await?, "{}", rig.host.journal(UNIT).await?);
    let record = rig.expect("Unknown", true).await?;
    ensure!(record["status"].get("pivoted").is_none(), "{record:#}");
    let issue = rig.notice().await?;
    ensure!(issue.contains("has no record of the image it was installed"), "{issue}");
    rig.prepare(Some("rawhide"), "pivot = true\n").await?;
    ensure!(rig.kubelet_runs().await?, "{}", rig.host.journal(UNIT).await?);
    let record = rig.expect("Unknown", true).await?;
    ensure!(record["status"].get("pivoted").is_none(), "{record:#}");
    let issue = rig.notice().await?;
    ensure!(issue.contains("rawhide"), "an unknown version: {issue}");
    // An image without labels, as images that were built before the limit was introduced.
    rig.prepare(Some("0.1.0"), "").await?;
    rig.reword("/os:next", "/os:1.0.0").await?;
    ensure!(rig.kubelet_runs().await?, "{}", rig.host.journal(UNIT).await?);
    let record = rig.expect("Allowed", true).await?;
    let message = record["status"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("sets a limit"), "{message}");
    rig.prepare(Some("1.6.0"), "nonsense = 1\n").await?;
    ensure!(rig.kubelet_runs().await?, "a bad file must not hold the kubelet back");
    rig.expect("InvalidConfig", true).await.map(drop)
}

/// An OS image may lack the program, or contain one that cannot run on this host.
async fn a_missing_or_broken_program_holds_no_machine(rig: &Rig) -> Result<()> {
    rig.prepare(Some("1.0.0"), "").await?;
    let aside = format!("{PROGRAM}.aside");
    rig.host.exec(&["mv", PROGRAM, &aside]).await?;
    ensure!(rig.kubelet_runs().await?, "{}", rig.host.journal(UNIT).await?);
    rig.prepare(Some("1.0.0"), "").await?;
    rig.host.write(PROGRAM, "no program\n").await?;
    rig.host.exec(&["chmod", "755", PROGRAM]).await?;
    ensure!(rig.kubelet_runs().await?, "{}", rig.host.journal(UNIT).await?);
    let status = rig
        .host
        .exec(&["systemctl", "show", "--property=ExecMainStatus", UNIT])
        .await?;
    ensure!(status.trim() == "ExecMainStatus=203", "{status}");
    rig.host.exec(&["mv", &aside, PROGRAM]).await.map(drop)
}

async fn a_registry_that_comes_back_is_awaited(rig: &Rig) -> Result<()> {
    rig.prepare(Some("1.6.0"), "").await?;
    rig.registry.stop()?;
    rig.host
        .exec(&["systemctl", "start", "--no-block", "kubelet.service"])
        .await?;
    rig.until("the wait", || async {
        Ok(rig
            .host
            .journal(UNIT)
            .await?
            .contains("cannot get the target image from the registry"))
    })
    .await?;
    ensure!(!rig.has(RAN).await?, "the kubelet ran during the wait");
    rig.registry.restart().await?;
    rig.until("the kubelet", || rig.has(RAN)).await?;
    rig.expect("Allowed", true).await?;
    let dry = rig.host.exec(&[PROGRAM, "firstboot", "--dry-run"]).await?;
    ensure!(dry.contains("has already ended (Allowed)"), "{dry}");
    rig.prepare(Some("1.6.0"), "").await?;
    let begin = Instant::now();
    let dry = rig.host.exec(&[PROGRAM, "firstboot", "--dry-run"]).await?;
    ensure!(dry.starts_with("Allowed: "), "{dry}");
    println!(
        "{:<56} {:>5.3} s",
        "from the start to the decision",
        begin.elapsed().as_secs_f64()
    );
    rig.registry.stop()?;
    rig.reword("60s", "2s").await?;
    ensure!(rig.kubelet_runs().await?, "the kubelet did not run");
    rig.expect("RegistryAway", true).await?;
    rig.registry.restart().await?;
    the_deadline_ends_a_registry_that_trickles(rig).await
}

/// The registry's answer would never end: systemd stops the host's skopeo at the deadline.
async fn the_deadline_ends_a_registry_that_trickles(rig: &Rig) -> Result<()> {
    let listener = TcpListener::bind((rig.hosts.gateway(), 0)).await?;
    let address = listener.local_addr()?;
    let drips = tokio::spawn(async move {
        let mut all = tokio::task::JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            all.spawn(async move {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                    .await;
                while stream.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            });
        }
    });
    rig.prepare(Some("1.6.0"), "").await?;
    rig.reword(&rig.registry.host(), &address.to_string()).await?;
    rig.reword("60s", "3s").await?;
    let begin = Instant::now();
    ensure!(rig.kubelet_runs().await?, "the kubelet did not run");
    let took = begin.elapsed();
    drips.abort();
    ensure!(took < Duration::from_secs(60), "a deadline of 3 s took {took:?}");
    rig.expect("RegistryAway", true).await.map(drop)
}

async fn a_power_cut_does_not_keep_a_machine_from_its_target(rig: &Rig) -> Result<()> {
    let host = &rig.host;
    rig.prepare(Some("1.6.0"), "pivot = true\n").await?;
    host.limit_pulls(Some(512 << 10)).await?;
    let first = host.boot().context("down")?.boot_id;
    host.exec(&["systemctl", "start", "--no-block", "kubelet.service"])
        .await?;
    rig.until("the pull", || async {
        let units = host
            .exec(&["systemctl", "list-units", "--no-legend", "berth-pull-*"])
            .await?;
        Ok(units.contains("berth-pull-"))
    })
    .await?;
    host.power_cut();
    host.wait_boot(Some(&first), Duration::from_secs(60)).await?;
    rig.until("the boot into the target", || async {
        Ok(host.boot().is_some_and(|boot| boot.digest == rig.target.digest))
    })
    .await?;
    rig.until("the kubelet", || rig.has(RAN)).await?;
    let record = rig.expect("Allowed", true).await?;
    ensure!(
        record["status"]["pivoted"] == true && record["pivots"] == 1,
        "{record:#}"
    );
    ensure!(record["status"]["version"] == "2.0.0", "{record:#}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_is_compared_before_it_is_a_node() -> Result<()> {
    if crate::one_host::is_skipped() {
        return Ok(());
    }
    let begin = Instant::now();
    let rig = Rig::new().await?;
    println!("{:<56} {:>5.1} s", "the rig is ready", begin.elapsed().as_secs_f64());
    rig.scenario(a_refused_machine_does_not_start_its_kubelet).await?;
    rig.scenario(an_unknown_boot_image_is_reported_and_boots).await?;
    rig.scenario(a_missing_or_broken_program_holds_no_machine).await?;
    rig.scenario(a_registry_that_comes_back_is_awaited).await?;
    rig.scenario(a_power_cut_does_not_keep_a_machine_from_its_target).await
}
