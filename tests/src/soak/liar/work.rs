//! The liar at work: reads the objects that it may read, lies, and counts the answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use berth_api::BootId;
use jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::credentials::Credentials;
use super::request::{BOOTC_NODES, Identity, LEASES, NODES, PODS, View};
use super::tally::Tally;
use super::{Kind, Liar, Lie};
use crate::cluster::{Cluster, Published};
use crate::hosts::sim::SimHost;
use crate::locked::locked;
use crate::soak::untyped::{items, text};

/// How long the liar uses objects that it has read. It reads berths before each lie about them.
const REREAD: Duration = Duration::from_secs(1);
/// How long a stopped liar may take for its last request. A slower one is ended without an answer.
const LAST_WORDS: Duration = Duration::from_secs(15);

/// A liar that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Working {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    tally: Arc<Mutex<Tally>>,
}

impl Drop for Working {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Working {
    /// Starts a liar. `images` are the rollout's image and the one before.
    pub async fn start(liar: &Liar, cluster: &Cluster, images: [&Published; 2]) -> Result<Self> {
        let name = liar.name();
        let [target, before] = images.map(|image| image.digest.to_string());
        let mut others: Vec<_> = cluster.fleet.hosts.iter().map(|host| host.name().to_owned()).collect();
        others.retain(|other| *other != name);
        let credentials = Credentials::of(&cluster.control_plane, &name).await?;
        let view = View {
            node: name,
            others,
            target,
            before,
            ..View::default()
        };
        let (stop, stopped) = watch::channel(false);
        let tally = Arc::new(Mutex::new(Tally::default()));
        let work = Work {
            liar: liar.clone(),
            credentials,
            host: cluster.host(liar.node).clone(),
            admin: cluster.client(),
            view,
            tally: tally.clone(),
        };
        let task = tokio::spawn(work.run(stopped));
        Ok(Self { stop, task, tally })
    }

    /// Ends the liar, and returns the counts of its lies.
    pub async fn end(mut self) -> Result<Tally> {
        let _ = self.stop.send(true);
        match timeout(LAST_WORDS, &mut self.task).await {
            Ok(ended) => ended.context("the liar failed")?,
            Err(_) => self.task.abort(),
        }
        Ok(locked(&self.tally).clone())
    }
}

struct Work {
    liar: Liar,
    credentials: Credentials,
    host: SimHost,
    /// Reads names that an attacker may guess: of other nodes' pods.
    admin: Client,
    view: View,
    tally: Arc<Mutex<Tally>>,
}

impl Work {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let start = Instant::now();
        let (mut number, mut read) = (0, None::<Instant>);
        loop {
            let is_over = self.liar.lasts.is_some_and(|lasts| start.elapsed() >= lasts);
            let Some((at, lie)) = Lie::first_of(&self.liar.repertoire, self.liar.seed, number) else {
                break;
            };
            if is_over || *stopped.borrow() {
                break;
            }
            number = at + 1;
            let next = Instant::now() + self.liar.pace;
            if read.is_none_or(|read| read.elapsed() >= REREAD) {
                self.look().await;
                read = Some(Instant::now());
            }
            self.tell(&lie).await;
            tokio::select! {
                () = sleep_until(next) => {}
                _ = stopped.changed() => break,
            }
        }
    }

    /// Reads the liar's own objects and the host's boot.
    async fn look(&mut self) {
        let name = self.view.node.clone();
        let bootc_node = format!("{BOOTC_NODES}/{name}");
        self.view.bootc_node = self.credentials.read(Identity::Agent, &bootc_node).await;
        let node = self
            .credentials
            .read(Identity::Kubelet, &format!("{NODES}/{name}"))
            .await;
        if let Some(uid) = node.pointer("/metadata/uid").and_then(Value::as_str) {
            uid.clone_into(&mut self.view.uid);
        }
        let pods = format!("{PODS}?fieldSelector=spec.nodeName%3D{name}");
        let pods = self.credentials.read(Identity::Kubelet, &pods).await;
        let names = items(&pods)
            .iter()
            .filter_map(|pod| pod.pointer("/metadata/name")?.as_str());
        self.view.pods = names.map(str::to_owned).collect();
        self.view.other_pods = self.other_pods().await.unwrap_or_default();
        if let Some(boot_id) = self.host.facts().boot_id {
            self.view.boot_id = BootId::new(boot_id.as_str()).to_string();
        }
    }

    async fn other_pods(&self) -> Result<Vec<String>> {
        let request = http::Request::get(PODS).body(vec![])?;
        let pods = timeout(REREAD, self.admin.request::<Value>(request)).await??;
        let mut names = vec![];
        for pod in items(&pods) {
            let node = text(pod, "/spec/nodeName");
            if !node.is_empty() && node != self.view.node {
                names.push(text(pod, "/metadata/name").to_owned());
            }
        }
        Ok(names)
    }

    async fn tell(&mut self, lie: &Lie) {
        self.view.now = Timestamp::now().as_second();
        if matches!(
            lie.kind,
            Kind::Take | Kind::Move | Kind::Return | Kind::BerthTimes | Kind::Forbidden
        ) {
            let leases = self.credentials.read(Identity::Agent, LEASES).await;
            self.view.leases = items(&leases).iter().map(writable).collect();
        }
        for request in lie.requests(&self.view) {
            match self.credentials.send(&request).await {
                Ok(answer) => locked(&self.tally).add(lie.kind, &request, answer),
                Err(error) => tracing::error!(error = format!("{error:#}"), "a lie is not a valid request"),
            }
        }
    }
}

/// The object as it can be written again. The API server stores a time of the year 10000 in the owners of fields, and
/// refuses the same time in the next write. A write without owners leaves them as they are.
fn writable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::writable;

    #[test]
    fn an_object_is_written_again_without_the_owners_of_its_fields() {
        let stored = json!({
            "metadata": { "name": "workers-0", "managedFields": [{ "time": "10000-01-01T11:59:59Z" }] }, "spec": {},
        });
        assert_eq!(
            writable(&stored),
            json!({ "metadata": { "name": "workers-0" }, "spec": {} })
        );
    }
}
