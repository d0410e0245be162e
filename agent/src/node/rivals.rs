//! Finds pods of other updaters on the agent's node. Such updaters would reboot the node or change its operating
//! system.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_core::agent::rivals;
use http::Request;
use kube::Client;
use serde::Deserialize;
use tokio::time::Instant;

use super::send;
use crate::clients::RequestError;

/// Labels whose values identify the pods of known updaters.
const KEYS: [&str; 4] = ["app.kubernetes.io/name", "k8s-app", "name", "app"];
/// Time between two queries. Rival pods belong to DaemonSets, which an admin rarely adds or removes.
const AGAIN: Duration = Duration::from_secs(300);
/// Time between two queries while the node has nothing to do.
const AGAIN_AT_REST: Duration = Duration::from_secs(1800);

#[derive(Deserialize)]
struct List {
    /// The API server sends null for an empty list, or omits the list.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

impl Metadata {
    /// Returns the names of the rival updater and of its pod; `None` if the pod is not a rival's.
    fn rival(&self) -> Option<String> {
        let rival = KEYS.iter().find_map(|key| {
            self.labels
                .get(*key)
                .filter(|value| rivals::PODS.contains(&value.as_str()))
        })?;
        Some(rivals::pod(rival, &self.namespace, &self.name))
    }
}

/// Rival pods that the last successful query found.
#[derive(Debug, Default)]
pub struct RivalPods {
    /// Time of the last query, even if it failed.
    asked: Option<Instant>,
    seen: Vec<String>,
}

impl RivalPods {
    /// True if it is time for a query.
    pub fn is_due(&self, at_rest: bool) -> bool {
        let again = if at_rest { AGAIN_AT_REST } else { AGAIN };
        self.asked.is_none_or(|at| at.elapsed() >= again)
    }

    /// Returns the rival pods that the last successful query found.
    pub fn seen(&self) -> &[String] {
        &self.seen
    }

    /// Looks for rivals among the node's pods. After a failure, keeps the rivals that were found before.
    pub async fn ask(&mut self, client: &Client, node: &str) {
        let answer = list(client, node).await;
        self.answered(answer);
    }

    fn answered(&mut self, answer: Result<Vec<String>, RequestError>) {
        self.asked = Some(Instant::now());
        match answer {
            Ok(rivals) => self.seen = rivals,
            Err(error) => tracing::debug!(%error, "cannot look for other updaters among the pods"),
        }
    }
}

/// Lists only the metadata of the node's pods, from the API server's cache.
async fn list(client: &Client, node: &str) -> Result<Vec<String>, RequestError> {
    let request = Request::get(format!(
        "/api/v1/pods?fieldSelector=spec.nodeName%3D{node}&resourceVersion=0"
    ))
    .header(
        "Accept",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    )
    .body(vec![])
    .map_err(kube::Error::HttpError)?;
    let list: List = send(client, request).await?;
    Ok(rivals(&list))
}

fn rivals(list: &List) -> Vec<String> {
    let items = list.items.iter().flatten();
    items.filter_map(|item| item.metadata.rival()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api_server;

    #[test]
    fn without_an_answer_what_was_seen_last_stays_and_is_not_asked_for_at_once() {
        let mut pods = RivalPods::default();
        assert!(pods.is_due(false));
        pods.answered(Ok(vec!["kured (pod n/p)".to_owned()]));
        assert!(!pods.is_due(false));
        pods.asked = None;
        pods.answered(Err(kube::Error::LinesCodecMaxLineLengthExceeded.into()));
        assert_eq!(
            (pods.seen(), pods.is_due(false)),
            (&["kured (pod n/p)".to_owned()][..], false)
        );
        pods.answered(Ok(vec![]));
        assert!(pods.seen().is_empty());
    }

    #[tokio::test]
    async fn only_the_own_nodes_pods_are_listed() {
        let client = fake_api_server::client(|call| {
            let pod = json!({"metadata": {"name": "p", "namespace": "n", "labels": {"name": "kured"}}});
            let is_own = call.path.contains("fieldSelector=spec.nodeName%3Dn1&");
            (200, json!({"items": if is_own { json!([pod]) } else { json!([]) }}))
        });
        let mut pods = RivalPods::default();
        pods.ask(&client, "n1").await;
        assert_eq!(pods.seen(), ["kured (pod n/p)"]);
        pods.ask(&client, "n2").await;
        assert!(pods.seen().is_empty());
    }

    #[test]
    fn rivals_are_known_by_the_labels_of_their_manifests() {
        for (key, value, known) in [
            ("app.kubernetes.io/name", "kured", true),
            ("name", "kured", true),
            ("k8s-app", "machine-config-daemon", true),
            ("app.kubernetes.io/name", "web", false),
            ("example.com/owner", "kured", false),
        ] {
            let pod = json!({"metadata": {"name": "p", "namespace": "n", "labels": {key: value}}});
            let list = serde_json::from_value(json!({"items": [pod]})).unwrap();
            let expected: Vec<_> = known.then(|| format!("{value} (pod n/p)")).into_iter().collect();
            assert_eq!(rivals(&list), expected, "{key}={value}");
        }
        for nothing in [
            json!({"items": null}),
            json!({}),
            json!({"items": [{"metadata": {"name": "p"}}]}),
        ] {
            assert!(rivals(&serde_json::from_value(nothing).unwrap()).is_empty());
        }
    }
}
