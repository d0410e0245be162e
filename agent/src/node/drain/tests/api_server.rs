//! Requests to the API server.

use super::*;
use crate::fake_api_server;

/// Starts a fake API server with these pages of pods, and a Node that has one attached volume. Returns the server's
/// client and the list of requests that the server receives.
fn api_server(pages: Vec<Value>) -> (kube::Client, Arc<Mutex<Vec<String>>>) {
    let calls = Arc::new(Mutex::new(vec![]));
    let seen = calls.clone();
    let client = fake_api_server::client(move |call| {
        seen.lock().unwrap().push(format!("{} {}", call.method, call.path));
        let page = match call.path.split_once("&continue=page%3D") {
            Some((_, number)) => number.parse().unwrap(),
            None => 0,
        };
        if call.path.starts_with("/api/v1/pods?") {
            (200, pages[page].clone())
        } else if call.path.starts_with("/api/v1/nodes/") {
            (
                200,
                json!({"status": {"volumesAttached": [{"name": "kubernetes.io/csi/d^v"}]}}),
            )
        } else if call.path.contains("/persistentvolumeclaims/") {
            (200, json!({"spec": {"volumeName": "pv"}}))
        } else if call.path.contains("/persistentvolumes/") {
            (200, json!({"spec": {"csi": {"driver": "d", "volumeHandle": "v"}}}))
        } else {
            (200, json!({"kind": "Status"}))
        }
    });
    (client, calls)
}

fn raw_pod(name: &str, owner: &str) -> Value {
    json!({
        "metadata": {
            "name": name, "namespace": "d", "uid": name,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": owner, "controller": true}],
        },
        "spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Running"},
    })
}

#[tokio::test]
async fn all_pages_of_the_pods_are_read() {
    let (client, calls) = api_server(vec![
        json!({"metadata": {"continue": "page=1"}, "items": [raw_pod("a", "ReplicaSet")]}),
        json!({"metadata": {"continue": "page=2"}, "items": null}),
        json!({"metadata": {"continue": ""}, "items": [raw_pod("b", "ReplicaSet")]}),
    ]);
    let pods = list(&client, "n").await.unwrap();
    assert_eq!(names(&pods.iter().collect::<Vec<_>>()), ["a", "b"]);
    let calls = calls.lock().unwrap();
    assert!(
        calls
            .iter()
            .all(|call| call.contains("fieldSelector=spec.nodeName%3Dn&")),
        "{calls:?}"
    );
}

#[tokio::test]
async fn pods_are_evicted_or_deleted_as_the_pool_says() {
    for (disable_eviction, forced, expected) in [
        (false, false, "POST /api/v1/namespaces/d/pods/a/eviction"),
        (true, false, "DELETE /api/v1/namespaces/d/pods/a"),
        (false, true, "DELETE /api/v1/namespaces/d/pods/a"),
    ] {
        let (client, calls) = api_server(vec![json!({"items": [raw_pod("a", "ReplicaSet")]})]);
        let settings = Settings {
            disable_eviction,
            ..settings(forced, forced)
        };
        let given = Given {
            settings: &settings,
            ..given(at(0))
        };
        waiting(Drain::default().pass(&client, &given).await.unwrap());
        assert_eq!(calls.lock().unwrap().last().map(String::as_str), Some(expected));
    }
}

#[tokio::test]
async fn volumes_count_when_the_pods_are_gone() {
    let attached = ["volume kubernetes.io/csi/d^v".to_owned()];
    for (owner, node_ready, expected) in [
        // A staying pod uses the volume.
        (Some("DaemonSet"), true, &[][..]),
        (None, true, &attached[..]),
        // A kubelet that is not ready unmounts no volumes.
        (None, false, &[][..]),
    ] {
        let pods: Vec<Value> = owner.into_iter().map(|owner| raw_pod("a", owner)).collect();
        let (client, calls) = api_server(vec![json!({ "items": pods })]);
        let given = Given {
            node_ready,
            ..given(at(0))
        };
        let found = match Drain::default().pass(&client, &given).await.unwrap() {
            DrainProgress::Done { .. } => vec![],
            DrainProgress::Waiting { blockers, .. } => blockers.into_iter().map(|blocker| blocker.pod).collect(),
        };
        assert_eq!(found, expected, "{owner:?} {node_ready}");
        let looked = calls.lock().unwrap().iter().any(|call| call.ends_with("/nodes/n"));
        assert_eq!(looked, node_ready);
    }
    let (client, calls) = api_server(vec![json!({"items": [raw_pod("a", "ReplicaSet")]})]);
    waiting(Drain::default().pass(&client, &given(at(0))).await.unwrap());
    let looked = calls.lock().unwrap().iter().any(|call| call.ends_with("/nodes/n"));
    assert!(!looked, "not while a pod is left");
}
