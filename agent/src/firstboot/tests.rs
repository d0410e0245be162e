use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use berth_api::firstboot::FirstbootOutcome as Outcome;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;
use crate::host::HostLock;

/// A host whose bus does not answer.
struct Rig {
    scratch: PathBuf,
    setup: Setup,
    file: RecordFile,
}

impl Rig {
    fn new(name: &str, config: &str) -> Self {
        let scratch = std::env::temp_dir().join(format!("berth-{name}-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        let setup = Setup {
            root: root.clone(),
            bus: None,
            config: config::PATH.into(),
            dry_run: false,
        };
        let file = RecordFile::new(&root);
        let rig = Self { scratch, setup, file };
        rig.write(config::PATH, config);
        rig
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.setup.root.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remember(&self, finished: bool, outcome: &str) -> Record {
        let record = serde_json::json!({ "finished": finished, "status": { "outcome": outcome } });
        let record: Record = serde_json::from_value(record).unwrap();
        self.file.save(&record).unwrap();
        record
    }

    fn lock(&self) -> HostLock {
        HostLock::try_acquire(&self.setup.root).unwrap().unwrap()
    }

    fn outcome(&self) -> (Outcome, bool) {
        let record = self.file.load().unwrap();
        (record.status.outcome, record.finished)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

const CONFIG: &str = "image = \"r.io/os:stable\"\ndeadline = \"1s\"\n";

#[tokio::test]
async fn a_node_needs_neither_configuration_nor_lock() {
    let rig = Rig::new("first-node", "nonsense");
    rig.write("/var/lib/berth/state.json", "{}");
    let _of_an_agent = rig.lock();
    assert_eq!(run(&rig.setup).await, ExitCode::SUCCESS);
    assert_eq!(rig.outcome(), (Outcome::NotFirstBoot, true));
    // An admin started the kubelet of the refused machine.
    rig.remember(false, "Refused");
    assert_eq!(run(&rig.setup).await, ExitCode::SUCCESS);
    assert_eq!(rig.outcome(), (Outcome::Refused, true));
}

#[tokio::test]
async fn the_override_works_without_a_check() {
    let rig = Rig::new("first-override", &format!("{CONFIG}overrideFile = \"/etc/go\"\n"));
    rig.remember(false, "Refused");
    let lock = rig.lock();
    assert_eq!(run(&rig.setup).await, ExitCode::from(REFUSED));
    assert_eq!(rig.outcome(), (Outcome::Refused, false));
    rig.write("/etc/go", "");
    assert_ne!(run(&rig.setup).await, ExitCode::from(REFUSED));
    assert_eq!(rig.outcome(), (Outcome::Overridden, true));
    drop(lock);
    // Without a valid configuration, only the default override file counts.
    rig.remember(false, "Refused");
    rig.write(config::PATH, "nonsense");
    assert_eq!(run(&rig.setup).await, ExitCode::from(REFUSED));
    rig.write(config::OVERRIDE_FILE, "");
    assert_eq!(run(&rig.setup).await, ExitCode::from(WRONG));
    assert_eq!(rig.outcome(), (Outcome::Overridden, true));
}

#[tokio::test]
async fn a_finished_check_is_not_repeated() {
    let rig = Rig::new("first-twice", &CONFIG.replace("1s", "30s"));
    rig.remember(false, "Refused");
    let lock = rig.lock();
    let other = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let record = rig.remember(true, "Allowed");
        drop(lock);
        record
    };
    let (status, record) = tokio::join!(run(&rig.setup), other);
    assert_eq!(status, ExitCode::SUCCESS);
    assert_eq!(rig.file.load(), Some(record));
}

#[tokio::test]
async fn a_new_node_is_not_rebooted() {
    let rig = Rig::new("first-overtaken", CONFIG);
    let host = Host::connect(None, rig.setup.root.clone()).await.unwrap();
    let target = Target {
        digest: format!("sha256:{}", "02".repeat(32)).parse().unwrap(),
        version: None,
        limit: None,
    };
    async fn overtaken(host: &Host, target: &Target) -> bool {
        let trouble = pivot::unlock_and_ask(host, target, &Signs::default()).await;
        let trouble = trouble.unwrap_err();
        trouble.is_final && trouble.message.contains("has started meanwhile")
    }
    assert!(!overtaken(&host, &target).await, "the bus does not answer");
    // This kubelet keeps its files outside of /var/lib/kubelet.
    rig.write("/proc/812/comm", "kubelet\n");
    rig.write(
        "/proc/812/cmdline",
        "/var/lib/k0s/bin/kubelet\0--root-dir=/srv/kubelet\0",
    );
    assert!(overtaken(&host, &target).await);
    fs::remove_dir_all(rig.setup.root.path("/proc")).unwrap();
    rig.write("/var/lib/kubelet/pods/x", "");
    assert!(overtaken(&host, &target).await);
}

#[tokio::test]
async fn configured_signs_of_a_node_count() {
    let config = format!("{CONFIG}nodeFiles = [\"/srv/kubelet/pods\"]\n");
    let rig = Rig::new("first-own-signs", &config);
    rig.write("/srv/kubelet/pods/x", "");
    // An agent holds the host's lock.
    let _of_an_agent = rig.lock();
    assert_eq!(run(&rig.setup).await, ExitCode::SUCCESS);
    assert_eq!(rig.outcome(), (Outcome::NotFirstBoot, true));
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let mut rig = Rig::new("first-dry", CONFIG);
    rig.setup.dry_run = true;
    let config = Config::parse(format!("{CONFIG}pivot = true\n").as_bytes()).unwrap();
    fn digest(n: &str) -> berth_api::Digest {
        format!("sha256:{}", n.repeat(32)).parse().unwrap()
    }
    let mut run = Run {
        setup: &rig.setup,
        config: &config,
        host: Host::connect(None, rig.setup.root.clone()).await.unwrap(),
        file: RecordFile::new(&rig.setup.root),
        record: None,
        boot_image: None,
        answer: Answer::Found(Target {
            digest: digest("02"),
            version: None,
            limit: None,
        }),
        booted: Booted::Digest(digest("01")),
        trouble: None,
        asked: 0,
        tried: 0,
        begin: Timestamp::now(),
        give_up: Instant::now() + config.deadline,
    };
    assert_eq!(run.run_to_end().await, ExitCode::SUCCESS);
    assert_eq!(run.tried, 0);
    assert!(!rig.setup.root.path("/etc/issue.d").exists(), "no notice is written");
    assert_eq!(rig.file.load(), None);
}

#[tokio::test]
async fn every_refusal_writes_an_event() {
    let with = format!("{CONFIG}kubeconfig = \"/etc/berth/kubeconfig\"\nnodeName = \"worker-7\"\n");
    let rig = Rig::new("first-told", &with);
    rig.remember(false, "Refused");
    let asked = notify::tests::api_server(&rig.setup.root.path("/etc/berth/kubeconfig"));
    let _of_another_check = rig.lock();
    assert_eq!(run(&rig.setup).await, ExitCode::from(REFUSED));
    let asked = asked.join().unwrap();
    assert!(
        asked.contains("FirstBootRefused") && asked.contains("worker-7"),
        "{asked}"
    );
}

const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_silent_bus_delays_until_the_deadline_only() {
    let rig = Rig::new("first-mute", CONFIG);
    let socket = rig.setup.root.path("/run/dbus/system_bus_socket");
    fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let _mute = UnixListener::bind(socket).unwrap();
    let begin = Instant::now();
    assert_ne!(run(&rig.setup).await, ExitCode::from(REFUSED));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    assert_eq!(rig.outcome(), (Outcome::HostFailed, true));
}

#[tokio::test]
async fn a_fifo_as_configuration_does_not_block() {
    let rig = Rig::new("first-fifo", CONFIG);
    let path = rig.setup.root.path(config::PATH);
    fs::remove_file(&path).unwrap();
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    assert_eq!(run(&rig.setup).await, ExitCode::from(WRONG));
    assert_eq!(rig.outcome(), (Outcome::InvalidConfig, true));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    rig.remember(false, "Unknown");
    assert_eq!(run(&rig.setup).await, ExitCode::from(WRONG));
}

#[tokio::test]
async fn an_override_file_is_never_opened() {
    let rig = Rig::new("first-odd", "nonsense");
    let path = rig.setup.root.path(config::OVERRIDE_FILE);
    async fn held(rig: &Rig) -> bool {
        rig.remember(false, "Refused");
        run(&rig.setup).await == ExitCode::from(REFUSED)
    }
    symlink("/nowhere", &path).unwrap();
    assert!(held(&rig).await, "a broken link does not count");
    fs::remove_file(&path).unwrap();
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    assert!(!held(&rig).await);
    let target = path.with_extension("there");
    fs::rename(&path, &target).unwrap();
    symlink(&target, &path).unwrap();
    assert!(!held(&rig).await);
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(!held(&rig).await);
}

#[tokio::test]
async fn an_unusable_record_does_not_change_the_outcome() {
    let rig = Rig::new("first-record", "nonsense");
    let root = &rig.setup.root;
    let record = root.path("/var/lib/berth/firstboot.json");
    fs::create_dir_all(&record).unwrap();
    assert_eq!(run(&rig.setup).await, ExitCode::from(WRONG));
    assert_eq!(rig.outcome(), (Outcome::InvalidConfig, true), "it is out of the way");
    fs::remove_file(&record).unwrap();
    mkfifo(&record, Mode::S_IRWXU).unwrap();
    assert_eq!(run(&rig.setup).await, ExitCode::from(WRONG));
    assert_eq!(rig.outcome(), (Outcome::InvalidConfig, true));
    // The directory is now a broken link. As on a full disk, no file can be created in it.
    fs::remove_dir_all(root.path("/var/lib/berth")).unwrap();
    symlink("/nowhere/at/all", root.path("/var/lib/berth")).unwrap();
    fs::remove_file(root.path("/etc/issue.d/80-berth-firstboot.issue")).unwrap();
    assert_eq!(run(&rig.setup).await, ExitCode::from(WRONG));
    assert_eq!(rig.file.load(), None);
    assert!(
        root.path("/etc/issue.d/80-berth-firstboot.issue").exists(),
        "the notice is written"
    );
}
