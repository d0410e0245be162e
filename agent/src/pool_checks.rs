//! Runs the pool's checks, and records the containers that run before the reboot.

use anyhow::Result;
use berth_api::condition::one_line;
use berth_api::pool::{PodsReady, PoolCheck};
use berth_core::agent::facts::{CheckAnswer, CheckReading, Desired, PodReading};
use berth_core::agent::knowledge::Event;
use futures::future::join_all;
use kube::Client;

use crate::clients;
use crate::node::ready_pods;
use crate::run::Agent;

/// Maximum number of container IDs in the agent's memory on the host.
const MAX_CONTAINERS: usize = 512;

impl Agent {
    /// Runs the pool's checks that are due, all at the same time.
    pub(crate) async fn make_pool_checks(&mut self) {
        let due = self.knowledge.due_checks(&self.timers.now());
        if due.is_empty() {
            return;
        }
        let node = self.node.clone();
        let readings = match self.api.kubelet.get().await {
            Ok(client) => join_all(due.iter().map(|check| read(client, node.as_str(), check))).await,
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot run the pool's checks: the agent cannot use the kubelet's identity"
                );
                return;
            }
        };
        self.learn(Event::PoolChecks(readings));
    }

    /// Records the containers of the pods that the pool's checks select. In the next boot, a pod with these containers
    /// does not count as Ready. `known` are the containers that the record already has, and keeps.
    pub(crate) async fn record_containers(&mut self, known: Vec<String>) {
        let Desired::Member(member) = &self.knowledge.desired else {
            return;
        };
        let checks: Vec<PodsReady> = member
            .health
            .checks
            .iter()
            .filter_map(|check| check.pods_ready.clone())
            .collect();
        let mut ids = known;
        for check in checks {
            let node = self.node.clone();
            let pods = match self.api.kubelet.get().await {
                Ok(client) => pods(client, node.as_str(), &check).await,
                Err(error) => Err(error),
            };
            match pods {
                Ok(pods) => ids.extend(pods.into_iter().flat_map(|pod| pod.containers)),
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "cannot read the node's containers before the reboot; afterwards, a pod may count as Ready only because it was Ready before the reboot"
                ),
            }
        }
        ids.sort();
        ids.dedup();
        ids.truncate(MAX_CONTAINERS);
        self.learn(Event::ContainersBefore(ids));
        self.remember();
    }

    /// Adds the current containers to the record. Called before the agent reboots from an unproven boot.
    pub(crate) async fn record_more_containers(&mut self) {
        let known = self.knowledge.past.containers_before.clone();
        self.record_containers(known).await;
    }
}

async fn read(client: &Client, node: &str, check: &PoolCheck) -> CheckReading {
    let answer = if let Some(get) = &check.http_get {
        match clients::http_status(&get.origin(), get.path()).await {
            Ok(status) => CheckAnswer::Http(status),
            Err(error) => CheckAnswer::NoHttp(one_line(&format!("{error:#}"))),
        }
    } else if let Some(wanted) = &check.pods_ready {
        match pods(client, node, wanted).await {
            Ok(pods) => CheckAnswer::Pods(pods),
            Err(error) => CheckAnswer::Unread(one_line(&format!("{error:#}"))),
        }
    } else {
        CheckAnswer::Unread("this agent version does not support this kind of check; upgrade the agent".to_owned())
    };
    CheckReading {
        name: check.name.clone(),
        answer,
    }
}

async fn pods(client: &Client, node: &str, check: &PodsReady) -> Result<Vec<PodReading>> {
    let selector = check
        .selector
        .get()
        .map_err(|error| anyhow::anyhow!("invalid selector: {error}"))?;
    Ok(ready_pods::list(client, node, &check.namespace, selector).await?)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::fake_api_server;

    #[tokio::test]
    async fn an_http_check_reads_the_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut asked = [0; 512];
            let length = connection.read(&mut asked).await.unwrap();
            let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            connection.write_all(answer).await.unwrap();
            String::from_utf8_lossy(&asked[..length]).into_owned()
        };
        let client = fake_api_server::client(|call| panic!("{}", call.path));
        let check: PoolCheck =
            serde_json::from_value(serde_json::json!({"name": "app", "httpGet": {"port": port, "path": "/ok"}}))
                .unwrap();
        let (asked, reading) = tokio::join!(server, read(&client, "n1", &check));
        assert!(asked.starts_with("GET /ok HTTP/1.1"), "{asked}");
        assert_eq!(reading.answer, CheckAnswer::Http(503));
        drop(listener);
        match read(&client, "n1", &check).await.answer {
            CheckAnswer::NoHttp(why) => assert!(why.contains(&format!("127.0.0.1:{port}/ok")), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
