//! Notifies admins of the outcome of the first-boot check: on the console, at login, in the journal, and with an event
//! in the cluster.

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

/// Files with the notice. getty shows `ISSUE` before a login, and login shows `MOTD`.
const ISSUE: &str = "/etc/issue.d/80-berth-firstboot.issue";
const MOTD: &str = "/run/motd.d/80-berth-firstboot";
/// Writing this file makes getty show the issue files again.
const GETTY: &str = "/run/agetty.reload";
/// Socket of journald's native protocol.
const JOURNAL: &str = "/run/systemd/journal/socket";
const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);
const EVENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for creating the client and writing the event.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(10);

/// Shows the outcome on this machine: on the console, at login and in the journal. If one of these fails, the others
/// are still tried.
pub fn locally(root: &HostRoot, config: Option<&Config>, verdict: &Verdict) {
    let notice = messages::notice(config, verdict);
    for path in [ISSUE, MOTD] {
        if let Err(error) = show(&root.path(path), notice.as_deref()) {
            tracing::warn!(path, %error, "cannot write the notice about the first-boot check");
        }
    }
    // O_NONBLOCK, since the file may be a FIFO without a reader.
    let touched = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(root.path(GETTY));
    drop(touched);
    if let Err(error) = journal(&root.path(JOURNAL), &messages::journal(config, verdict)) {
        tracing::warn!(%error, "cannot write the result of the first-boot check to the journal");
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

/// Sends one record to journald, with one line per field. Gives up after [`JOURNAL_TIMEOUT`], so that a hung journald
/// cannot delay the boot for longer.
fn journal(socket: &Path, fields: &[(&str, String)]) -> io::Result<()> {
    let mut text = String::new();
    for (name, value) in fields {
        text.push_str(&format!("{name}={value}\n"));
    }
    let journal = UnixDatagram::unbound()?;
    journal.set_write_timeout(Some(JOURNAL_TIMEOUT))?;
    journal.send_to(text.as_bytes(), socket).map(drop)
}

/// Writes an event about the machine's Node, within ten seconds. The Node need not exist yet.
///
/// A kubeconfig may name a credential program that never ends, or a file that blocks when it is read. So a separate
/// thread does the work. If that thread hangs, it ends with the process.
pub fn cluster(kubeconfig: &Path, node: &str, verdict: &Verdict) -> anyhow::Result<()> {
    let (sender, told) = mpsc::channel();
    let (kubeconfig, node, verdict) = (kubeconfig.to_owned(), node.to_owned(), verdict.clone());
    std::thread::Builder::new()
        .name("event".to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let result = match runtime {
                Ok(runtime) => runtime.block_on(event(&kubeconfig, &node, &verdict)),
                Err(error) => Err(error.into()),
            };
            // Sending fails if the caller has stopped waiting.
            let _ = sender.send(result);
        })
        .context("cannot start a thread")?;
    told.recv_timeout(CLUSTER_TIMEOUT)
        .with_context(|| format!("the event was not written within {} s", CLUSTER_TIMEOUT.as_secs()))?
}

async fn event(kubeconfig: &Path, node: &str, verdict: &Verdict) -> anyhow::Result<()> {
    anyhow::ensure!(
        kubeconfig.is_file(),
        "kubeconfig {} is not a file; in firstboot.toml, name a file that berth-firstboot.service can read",
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
        // kubectl looks up a Node's events by the Node's name in this field.
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    };
    let note = format!("{node}: {}", verdict.message());
    let event = Event {
        type_: EventType::Warning,
        reason: format!("FirstBoot{}", verdict.outcome.as_str()),
        note: Some(text::note(&note)),
        action: if verdict.holds { EVENT_HOLDS } else { "Report" }.to_owned(),
        secondary: None,
    };
    let recorder = Recorder::new(client, reporter);
    with_deadline(EVENT_TIMEOUT, recorder.publish(&event, &about))
        .await
        .context("the API server did not accept the event")
}

#[cfg(test)]
pub(crate) mod tests;
