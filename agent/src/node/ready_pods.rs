//! Reads whether the pods of a selector are Ready on the agent's node, for a check of the pool.

use berth_core::agent::facts::PodReading;
use kube::Client;
use kube::api::ListParams;
use kube::core::{Request, Selector};
use serde::Deserialize;

use super::send;
use crate::clients::RequestError;

#[derive(Deserialize)]
struct List {
    /// The API server sends null for an empty list, or omits the list.
    items: Option<Vec<Item>>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Metadata,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    conditions: Vec<Condition>,
    container_statuses: Vec<Container>,
}

#[derive(Deserialize)]
struct Condition {
    #[serde(rename = "type", default)]
    type_: String,
    #[serde(default)]
    status: String,
}

#[derive(Deserialize)]
struct Container {
    #[serde(rename = "containerID", default)]
    id: String,
}

impl From<Item> for PodReading {
    fn from(item: Item) -> Self {
        let is_over = matches!(item.status.phase.as_str(), "Succeeded" | "Failed");
        let mut conditions = item.status.conditions.iter();
        Self {
            name: format!("{}/{}", item.metadata.namespace, item.metadata.name),
            ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            is_ending: is_over || item.metadata.deletion_timestamp.is_some(),
            containers: item.status.container_statuses.into_iter().map(|c| c.id).collect(),
        }
    }
}

/// Lists the node's pods in this namespace that match the selector.
pub async fn list(
    client: &Client,
    node: &str,
    namespace: &str,
    selector: &Selector,
) -> Result<Vec<PodReading>, RequestError> {
    let params = ListParams::default()
        .fields(&format!("spec.nodeName={node}"))
        .labels_from(selector);
    let request = Request::new(format!("/api/v1/namespaces/{namespace}/pods")).list(&params);
    let list: List = send(client, request.map_err(kube::Error::BuildRequest)?).await?;
    Ok(list.items.into_iter().flatten().map(PodReading::from).collect())
}

#[cfg(test)]
mod tests {
    use kube::core::Selector;
    use serde_json::json;

    use super::*;
    use crate::fake_api_server;

    #[tokio::test]
    async fn the_pods_of_the_selector_are_read() {
        let client = fake_api_server::client(|call| {
            let is_asked = call.path.contains("/namespaces/net/pods?")
                && call.path.contains("fieldSelector=spec.nodeName%3Dn1")
                && call.path.contains("labelSelector=app%3Dcni");
            assert!(is_asked, "{}", call.path);
            let ready = json!([{"type": "Ready", "status": "True"}]);
            let running = json!({"conditions": ready, "containerStatuses": [{"containerID": "containerd://1"}]});
            (
                200,
                json!({"items": [
                    {"metadata": {"name": "a", "namespace": "net"}, "status": running},
                    {"metadata": {"name": "b", "namespace": "net", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
                ]}),
            )
        });
        let selector = Selector::from_iter([("app".to_owned(), "cni".to_owned())]);
        let pods = list(&client, "n1", "net", &selector).await.unwrap();
        let first = PodReading {
            name: "net/a".to_owned(),
            ready: true,
            is_ending: false,
            containers: vec!["containerd://1".to_owned()],
        };
        assert_eq!(pods[0], first);
        assert!(pods[1].is_ending && !pods[1].ready && pods.len() == 2);
    }
}
