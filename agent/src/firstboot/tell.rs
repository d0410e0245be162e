//! People are told: on the console, at their login, in the journal, and on the cluster.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context;
use berth_api::firstboot::EVENT_HOLDS;
use berth_core::firstboot::Verdict;
use berth_core::firstboot::config::Config;
use berth_core::firstboot::messages;
use berth_core::text;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use nix::fcntl::OFlag;

use crate::clients::{self, with_deadline};
use crate::host::HostRoot;
use crate::host::files;

/// Text that getty shows before the login, and that is shown at the login.
const ISSUE: &str = "/etc/issue.d/80-berth-firstboot.issue";
const MOTD: &str = "/run/motd.d/80-berth-firstboot";
/// File at whose change getty shows its text anew.
const GETTY: &str = "/run/agetty.reload";
/// Socket of the journal's own protocol.
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Longest time that the journal may take for one record.
const JOURNAL_DEADLINE: Duration = Duration::from_secs(2);
/// Longest time that an event may take, and with all that it takes to get a client.
const EVENT_DEADLINE: Duration = Duration::from_secs(5);
const CLUSTER_DEADLINE: Duration = Duration::from_secs(10);

/// Tells the people at the machine. What cannot be told in one way is told in the others.
pub fn locally(root: &HostRoot, config: Option<&Config>, verdict: &Verdict) {
    let notice = messages::notice(config, verdict);
    for path in [ISSUE, MOTD] {
        if let Err(error) = show(&root.path(path), notice.as_deref()) {
            tracing::warn!(path, %error, "cannot write the notice");
        }
    }
    // Nobody may be waiting at a console.
    let touched = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(root.path(GETTY));
    drop(touched);
    if let Err(error) = journal(&root.path(JOURNAL), &messages::journal(config, verdict)) {
        tracing::warn!(%error, "cannot write the record in the journal");
    }
}

fn show(path: &Path, notice: Option<&str>) -> io::Result<()> {
    let Some(notice) = notice else {
        return files::remove(path);
    };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    files::replace(path, notice.as_bytes())?;
    fs::set_permissions(path, Permissions::from_mode(0o644))
}

/// Sends one record. Its fields have one line each. A journal that does not read has no say in whether the machine goes on.
fn journal(socket: &Path, fields: &[(&str, String)]) -> io::Result<()> {
    let mut text = String::new();
    for (name, value) in fields {
        text.push_str(&format!("{name}={value}\n"));
    }
    let journal = UnixDatagram::unbound()?;
    journal.set_write_timeout(Some(JOURNAL_DEADLINE))?;
    journal.send_to(text.as_bytes(), socket).map(drop)
}

/// Writes an event about the machine's Node, which need not exist, in no more than ten seconds.
///
/// A kubeconfig may name files that nobody writes to, or a program that does not end. So this has a thread of its own, which ends
/// with the process.
///
/// # Errors
/// When the kubeconfig is of no use, or the API server did not take the event.
pub fn cluster(kubeconfig: &Path, node: &str, verdict: &Verdict) -> anyhow::Result<()> {
    let (sender, told) = mpsc::channel();
    let (kubeconfig, node, verdict) = (kubeconfig.to_owned(), node.to_owned(), verdict.clone());
    let tell = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let result = match runtime {
            Ok(runtime) => runtime.block_on(event(&kubeconfig, &node, &verdict)),
            Err(error) => Err(error.into()),
        };
        // An error means that nobody waits any more.
        let _ = sender.send(result);
    };
    std::thread::Builder::new()
        .name("event".to_owned())
        .spawn(tell)
        .context("cannot start a thread")?;
    told.recv_timeout(CLUSTER_DEADLINE)
        .with_context(|| format!("it took longer than {} s", CLUSTER_DEADLINE.as_secs()))?
}

async fn event(kubeconfig: &Path, node: &str, verdict: &Verdict) -> anyhow::Result<()> {
    anyhow::ensure!(
        kubeconfig.is_file(),
        "{} is no file; name one that this unit sees",
        kubeconfig.display()
    );
    let client = clients::client_of(kubeconfig).await?;
    let reporter = Reporter {
        controller: "berth-firstboot".to_owned(),
        instance: Some(node.to_owned()),
    };
    let about = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        // By this kubectl finds the events of a Node.
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    };
    let note = format!("{node}: {}", verdict.message());
    let event = Event {
        type_: EventType::Warning,
        reason: format!("FirstBoot{}", verdict.outcome.as_str()),
        note: Some(text::note(&note).to_owned()),
        action: if verdict.holds { EVENT_HOLDS } else { "Report" }.to_owned(),
        secondary: None,
    };
    let recorder = Recorder::new(client, reporter);
    with_deadline(EVENT_DEADLINE, recorder.publish(&event, &about))
        .await
        .context("the API server did not take the event")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn people_are_told_until_nothing_is_wrong() {
        let scratch = std::env::temp_dir().join(format!("berth-tell-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        fs::create_dir_all(root.path("/run/systemd/journal")).unwrap();
        let journal = UnixDatagram::bind(root.path(JOURNAL)).unwrap();
        let verdict = Verdict::invalid_config("line 1: x");
        locally(&root, None, &verdict);
        for path in [ISSUE, MOTD] {
            let path = root.path(path);
            assert!(fs::read_to_string(&path).unwrap().contains("(InvalidConfig)"));
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        }
        let mut record = [0; 4096];
        let length = journal.recv(&mut record).unwrap();
        let record = String::from_utf8_lossy(&record[..length]).into_owned();
        let id = format!("MESSAGE_ID={}\n", messages::MESSAGE_ID);
        assert!(
            record.starts_with(&id) && record.contains("\nBERTH_OUTCOME=InvalidConfig\n"),
            "{record}"
        );
        let fine = Verdict {
            outcome: berth_api::firstboot::FirstbootOutcome::Allowed,
            ..verdict
        };
        locally(&root, None, &fine);
        assert!(!root.path(ISSUE).exists() && !root.path(MOTD).exists());
        fs::remove_dir_all(&scratch).unwrap();
    }

    /// An API server for one request: its text. The kubeconfig for it is written there.
    pub(in crate::firstboot) fn api_server(kubeconfig: &Path) -> std::thread::JoinHandle<String> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let content = serde_json::json!({
            "clusters": [{ "name": "c", "cluster": { "server": server } }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "c",
        });
        fs::write(kubeconfig, content.to_string()).unwrap();
        berth_shell::install_crypto();
        std::thread::spawn(move || answer(&listener))
    }

    /// Takes one request, answers that its object was made, and gives its text back.
    fn answer(listener: &std::net::TcpListener) -> String {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut text = String::new();
        let mut piece = [0; 4096];
        loop {
            let length = stream.read(&mut piece).unwrap();
            text.push_str(&String::from_utf8_lossy(&piece[..length]));
            if let Some((_, body)) = text.split_once("\r\n\r\n")
                && (length == 0 || serde_json::from_str::<serde_json::Value>(body).is_ok())
            {
                let answer = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).unwrap();
                return text;
            }
        }
    }

    #[test]
    fn a_journal_that_does_not_read_and_a_console_without_one_hold_nobody_up() {
        let scratch = std::env::temp_dir().join(format!("berth-deaf-{}", std::process::id()));
        let root = HostRoot::new(&scratch);
        fs::create_dir_all(root.path("/run/systemd/journal")).unwrap();
        let deaf = UnixDatagram::bind(root.path(JOURNAL)).unwrap();
        nix::unistd::mkfifo(&root.path(GETTY), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let fill = UnixDatagram::unbound().unwrap();
        fill.set_nonblocking(true).unwrap();
        while fill.send_to(b"x", root.path(JOURNAL)).is_ok() {}
        let begin = std::time::Instant::now();
        locally(&root, None, &Verdict::invalid_config("line 1: x"));
        let took = begin.elapsed();
        assert!(took < JOURNAL_DEADLINE * 3, "{took:?}");
        assert!(root.path(ISSUE).exists(), "told in the other ways");
        drop(deaf);
        fs::remove_dir_all(&scratch).unwrap();
    }

    #[test]
    fn a_kubeconfig_that_nobody_writes_is_not_waited_for() {
        let fifo = std::env::temp_dir().join(format!("berth-fifo-{}.kubeconfig", std::process::id()));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = cluster(&fifo, "worker-7", &Verdict::invalid_config("x")).unwrap_err();
        assert!(error.to_string().contains("is no file"), "{error:#}");
        fs::remove_file(&fifo).unwrap();
    }

    #[test]
    fn the_cluster_is_told_of_a_machine_that_is_no_node() {
        let kubeconfig = std::env::temp_dir().join(format!("berth-tell-{}.kubeconfig", std::process::id()));
        let asked = api_server(&kubeconfig);
        cluster(&kubeconfig, "worker-7", &Verdict::invalid_config("line 1: x")).unwrap();
        let asked = asked.join().unwrap();
        for part in [
            "POST /apis/events.k8s.io/v1/namespaces/default/events",
            r#""reason":"FirstBootInvalidConfig""#,
            r#""name":"worker-7""#,
            "line 1: x",
        ] {
            assert!(asked.contains(part), "{part}: {asked}");
        }
        fs::remove_file(&kubeconfig).unwrap();
    }
}
