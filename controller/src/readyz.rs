//! Probes of the API servers: a control plane node may go down only while the cluster has another server that answers.
//!
//! The Service `default/kubernetes` lists the servers' addresses. Comparison with the nodes' addresses shows which node
//! runs each server. The prober requests `/readyz` from each server's own address, not through a load balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_core::controller::servers::{Answers, Asked};
use berth_shell::locked;
use futures::future::join_all;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::api::settled;
use crate::store::Store;
use crate::time;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time between two rounds of probes.
const ROUND_INTERVAL: Duration = Duration::from_secs(4);
/// Label selector of the EndpointSlices of `default/kubernetes`.
const SLICES: &str = "kubernetes.io/service-name=kubernetes";
/// Names to verify an API server's certificate against, if the certificate lacks the server's address.
const NAMES: [&str; 2] = ["kubernetes.default.svc", "kubernetes"];

/// Probes the servers in the background, only while the controller needs the answers.
#[derive(Debug, Clone)]
pub struct Readyz {
    wanted: Arc<watch::Sender<bool>>,
    answers: Arc<Mutex<Answers>>,
}

impl Readyz {
    /// Starts the prober with the credentials of `config`. It probes no server until answers are wanted.
    pub fn start(config: Config, client: Client, store: Store) -> Self {
        let (wanted, receiver) = watch::channel(false);
        let this = Self {
            wanted: Arc::new(wanted),
            answers: Arc::default(),
        };
        let prober = Prober {
            config,
            slices: Api::namespaced(client, "default"),
            clients: BTreeMap::new(),
        };
        tokio::spawn(run(prober, receiver, this.answers.clone(), store));
        this
    }

    /// Returns the latest answers. Servers are probed only if the last call passed `wanted` as true.
    pub fn answers(&self, wanted: bool) -> Answers {
        self.wanted
            .send_if_modified(|before| std::mem::replace(before, wanted) != wanted);
        locked(&self.answers).clone()
    }
}

async fn run(mut prober: Prober, mut wanted: watch::Receiver<bool>, answers: Arc<Mutex<Answers>>, store: Store) {
    // State of each server when this task last requested a pass. Also changes when a server stops answering.
    let mut reported = None;
    loop {
        if !*wanted.borrow_and_update() {
            // Drop the answers: they would become outdated while nothing is probed.
            *locked(&answers) = Answers::default();
            reported = None;
            prober.clients.clear();
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let before = locked(&answers).clone();
        let after = prober.round(before).await;
        let now = time::now();
        let news = Some((after.listed, after.states(now)));
        *locked(&answers) = after;
        if news != reported {
            reported = news;
            store.wake();
        }
        // Wait until the next round, or until the answers are no longer wanted.
        let _ = tokio::time::timeout(ROUND_INTERVAL, wanted.changed()).await;
    }
}

struct Prober {
    config: Config,
    slices: Api<EndpointSlice>,
    /// For each server, the name that its certificate was last verified against, and a client that uses this name.
    clients: BTreeMap<SocketAddr, (Option<String>, Client)>,
}

impl Prober {
    async fn round(&mut self, mut answers: Answers) -> Answers {
        match tokio::time::timeout(ANSWER_TIMEOUT, self.slices.list(&ListParams::default().labels(SLICES))).await {
            Ok(Ok(slices)) => {
                let new = Asked {
                    since: time::now(),
                    ready: None,
                };
                let mut listed = BTreeMap::new();
                for server in servers(&slices.items) {
                    listed.insert(server, answers.servers.get(&server).copied().unwrap_or(new));
                }
                answers = Answers {
                    servers: listed,
                    listed: true,
                };
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot list the API servers (EndpointSlices of default/kubernetes)")
            }
            Err(_) => tracing::warn!("listing the API servers timed out after {} s", ANSWER_TIMEOUT.as_secs()),
        }
        self.clients.retain(|server, _| answers.servers.contains_key(server));
        let asked = answers.servers.keys().map(|server| {
            let known = self.clients.get(server).cloned();
            ask(&self.config, *server, known)
        });
        for (server, found) in join_all(asked).await {
            match found {
                Ok(client) => {
                    if let Some(asked) = answers.servers.get_mut(&server) {
                        asked.ready = Some(time::now());
                    }
                    self.clients.insert(server, client);
                }
                Err(error) => {
                    tracing::debug!(%server, %error, "API server is not ready");
                    self.clients.remove(&server);
                }
            }
        }
        answers
    }
}

/// Returns the addresses in the slices, with the port named `https`, or else the first port.
fn servers(slices: &[EndpointSlice]) -> BTreeSet<SocketAddr> {
    let mut servers = BTreeSet::new();
    for slice in slices {
        let ports = slice.ports.iter().flatten();
        let https = ports
            .clone()
            .find(|p| p.name.as_deref() == Some("https"))
            .or(ports.clone().next());
        let Some(port) = https.and_then(|p| u16::try_from(p.port?).ok()) else {
            continue;
        };
        let addresses = slice.endpoints.iter().flat_map(|e| &e.addresses);
        servers.extend(addresses.filter_map(|a| Some(SocketAddr::new(a.parse().ok()?, port))));
    }
    servers
}

type Known = (Option<String>, Client);

/// Probes a server. Returns the client that reached it.
async fn ask(config: &Config, server: SocketAddr, known: Option<Known>) -> (SocketAddr, Result<Known, String>) {
    let found = tokio::time::timeout(ANSWER_TIMEOUT, first_name(config, server, known)).await;
    (
        server,
        found.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()))),
    )
}

/// Probes a server. The cluster's CA must have signed the server's certificate. The certificate need not contain the
/// server's address; a name of the Service is enough. Returns the name that matched, and its client.
async fn first_name(config: &Config, server: SocketAddr, known: Option<Known>) -> Result<Known, String> {
    let mut last = match known {
        Some((name, client)) => match readyz(&client).await {
            Ok(()) => return Ok((name, client)),
            Err(error) => error.to_string(),
        },
        None => String::new(),
    };
    let own = config.tls_server_name.clone().map(Some);
    let names = own
        .into_iter()
        .chain([None])
        .chain(NAMES.map(|name| Some(name.to_owned())));
    for name in names {
        let client = client(config, server, name.clone()).map_err(|e| e.to_string())?;
        match readyz(&client).await {
            Ok(()) => return Ok((name, client)),
            // The certificate matched, but the server is not ready.
            Err(error @ kube::Error::Api(_)) => return Err(error.to_string()),
            Err(error) => last = format!("{:#}", anyhow::Error::from(error)),
        }
    }
    Err(last)
}

fn client(config: &Config, server: SocketAddr, name: Option<String>) -> anyhow::Result<Client> {
    let mut config = settled(config.clone(), ANSWER_TIMEOUT);
    config.cluster_url = format!("https://{server}").parse()?;
    config.tls_server_name = name;
    config.connect_timeout = Some(ANSWER_TIMEOUT);
    berth_shell::client::client(config)
}

async fn readyz(client: &Client) -> Result<(), kube::Error> {
    let request = http::Request::get("/readyz")
        .body(vec![])
        .map_err(kube::Error::HttpError)?;
    client.request_text(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn slices_name_the_servers() {
        fn slice(address: &str, port: serde_json::Value) -> EndpointSlice {
            serde_json::from_value(json!({
                "metadata": {"name": "kubernetes"},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address]}],
                "ports": port,
            }))
            .unwrap()
        }
        let slices = [
            slice("10.0.0.1", json!([{"name": "https", "port": 6443}])),
            slice(
                "fd00::1",
                json!([{"name": "other", "port": 1}, {"name": "https", "port": 443}]),
            ),
            slice("api.example.com", json!([{"name": "https", "port": 6443}])),
            slice("10.0.0.9", json!([])),
        ];
        let found: Vec<String> = servers(&slices).iter().map(SocketAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.1:6443", "[fd00::1]:443"]);
    }
}
