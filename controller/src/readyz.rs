//! Probes of the API servers: a control plane node may go down only while the cluster has another server that answers.
//!
//! The cluster's own Service lists the servers, and the nodes' addresses tell on which node each of them runs. Each is
//! asked for `/readyz` at its own address, and not through a load balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use berth_core::controller::servers::{Answers, Asked};
use futures::future::join_all;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::api::settled;
use crate::store::Store;
use crate::time;

/// Longest time that a server may take to answer.
const DEADLINE: Duration = Duration::from_secs(3);
/// Time from one round to the next.
const ROUND: Duration = Duration::from_secs(4);
/// The EndpointSlices of the cluster's own Service.
const SLICES: &str = "kubernetes.io/service-name=kubernetes";
/// Names that an API server's certificate carries, if not its address.
const NAMES: [&str; 2] = ["kubernetes.default.svc", "kubernetes"];

/// Probes the servers, in the background and only while the answers are wanted.
#[derive(Debug, Clone)]
pub struct Readyz {
    wanted: Arc<watch::Sender<bool>>,
    answers: Arc<Mutex<Answers>>,
}

impl Readyz {
    /// Starts the prober, with the credentials of `config`. It asks no server until told to.
    pub fn start(config: Config, client: Client, store: Store) -> Self {
        let (wanted, told) = watch::channel(false);
        let this = Self {
            wanted: Arc::new(wanted),
            answers: Arc::default(),
        };
        let prober = Prober {
            config,
            slices: Api::namespaced(client, "default"),
            clients: BTreeMap::new(),
        };
        tokio::spawn(run(prober, told, this.answers.clone(), store));
        this
    }

    /// Returns the latest answers, and sets whether they are wanted from now on.
    pub fn answers(&self, wanted: bool) -> Answers {
        self.wanted
            .send_if_modified(|before| std::mem::replace(before, wanted) != wanted);
        lock(&self.answers).clone()
    }
}

fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(|e| e.into_inner())
}

async fn run(mut prober: Prober, mut wanted: watch::Receiver<bool>, answers: Arc<Mutex<Answers>>, store: Store) {
    // What was told last: a server that falls silent is news without having said anything.
    let mut told = None;
    loop {
        if !*wanted.borrow_and_update() {
            // What is not kept up to date is forgotten.
            *lock(&answers) = Answers::default();
            told = None;
            prober.clients.clear();
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        }
        let before = lock(&answers).clone();
        let after = prober.round(before).await;
        let now = time::now();
        let news = Some((after.listed, after.states(now)));
        *lock(&answers) = after;
        if news != told {
            told = news;
            store.wake();
        }
        // Nobody wants to know any more, or it is time.
        let _ = tokio::time::timeout(ROUND, wanted.changed()).await;
    }
}

/// Asks each server once.
struct Prober {
    config: Config,
    slices: Api<EndpointSlice>,
    /// A client for each server, by the name that its certificate was last found to have.
    clients: BTreeMap<SocketAddr, (Option<String>, Client)>,
}

impl Prober {
    async fn round(&mut self, mut answers: Answers) -> Answers {
        match tokio::time::timeout(DEADLINE, self.slices.list(&ListParams::default().labels(SLICES))).await {
            Ok(Ok(slices)) => {
                let listed = servers(&slices.items).into_iter();
                let new = Asked {
                    since: time::now(),
                    ready: None,
                };
                let known = |server| answers.servers.get(&server).copied().unwrap_or(new);
                answers = Answers {
                    servers: listed.map(|server| (server, known(server))).collect(),
                    listed: true,
                };
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot list the API servers (EndpointSlices of default/kubernetes)")
            }
            Err(_) => tracing::warn!("no list of the API servers within {} s", DEADLINE.as_secs()),
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

/// The addresses in the slices of a Service that has one port.
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

/// Asks a server whether it is ready; returns how it was reached.
async fn ask(config: &Config, server: SocketAddr, known: Option<Known>) -> (SocketAddr, Result<Known, String>) {
    let found = tokio::time::timeout(DEADLINE, first_name(config, server, known)).await;
    (
        server,
        found.unwrap_or_else(|_| Err(format!("no answer within {} s", DEADLINE.as_secs()))),
    )
}

/// Finds the name by which the server's certificate can be verified. Not every certificate has the server's address in
/// it, and not every one has a name of the Service. It must be signed by the cluster's authority for one of them.
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
            // It answers, and says no.
            Err(error @ kube::Error::Api(_)) => return Err(error.to_string()),
            Err(error) => last = format!("{:#}", anyhow::Error::from(error)),
        }
    }
    Err(last)
}

fn client(config: &Config, server: SocketAddr, name: Option<String>) -> anyhow::Result<Client> {
    let mut config = settled(config.clone(), DEADLINE);
    config.cluster_url = format!("https://{server}").parse()?;
    config.tls_server_name = name;
    config.connect_timeout = Some(DEADLINE);
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
        let slice = |address: &str, port: serde_json::Value| -> EndpointSlice {
            serde_json::from_value(json!({
                "metadata": {"name": "kubernetes"},
                "addressType": "IPv4",
                "endpoints": [{"addresses": [address]}],
                "ports": port,
            }))
            .unwrap()
        };
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
