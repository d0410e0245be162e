//! The test harness itself: checks that a control plane and a registry behave as the other tests assume.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_tests::audit::AuditLog;
use berth_tests::controlplane::{Bound, ControlPlane, Options};
use berth_tests::images::{Image, Index};
use berth_tests::registry::Registry;
use berth_tests::wait::eventually;
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenReview, TokenReviewSpec};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

async fn make_node(client: &Client, name: &str) -> Result<Node> {
    let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let nodes: Api<Node> = Api::all(client.clone());
    Ok(nodes.create(&PostParams::default(), &node).await?)
}

async fn cordon(client: &Client, node: &str) -> Result<u16> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    match nodes.patch(node, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(200),
        Err(kube::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

#[tokio::test]
async fn a_control_plane_starts_enforces_and_comes_back() -> Result<()> {
    let started = Instant::now();
    let plane = ControlPlane::start(Options::simulated_nodes()).await?;
    println!("control plane ready after {:?}", started.elapsed());
    let admin = plane.admin_client();
    make_node(&admin, "n1").await?;
    make_node(&admin, "n2").await?;

    // NodeRestriction: a kubelet may change its own Node only.
    let kubelet = plane.node_kubeconfig("n1")?.client().await?;
    assert_eq!(cordon(&kubelet, "n1").await?, 200);
    assert_eq!(cordon(&kubelet, "n2").await?, 403);

    // The port and the data are the same after an outage.
    plane.stop_apiserver().await?;
    assert!(!plane.is_ready().await);
    let stopped = Instant::now();
    plane.start_apiserver().await?;
    println!("API server back after {:?}", stopped.elapsed());
    let nodes: Api<Node> = Api::all(admin);
    let node = nodes.get("n1").await?;
    assert_eq!(node.spec.and_then(|spec| spec.unschedulable), Some(true));

    let log = AuditLog::read(&plane.audit_log())?;
    let cordons: Vec<_> = log.writes().filter(|record| record.user == "system:node:n1").collect();
    assert_eq!(cordons.len(), 1);
    assert_eq!(cordons[0].unschedulable(), Some(true));
    assert!(
        log.forbidden()
            .any(|record| record.user == "system:node:n1" && record.name == "n2")
    );
    let stopping = Instant::now();
    drop(plane);
    println!("gone after {:?}", stopping.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_bound_token_carries_the_node_claim() -> Result<()> {
    let plane = ControlPlane::start(Options::simulated_nodes()).await?;
    let admin = plane.admin_client();
    let uid = make_node(&admin, "n1").await?.metadata.uid.context("uid")?;
    plane.place_pod("berth-system", "berth-agent", "n1", "agent-n1").await?;
    for (bound, expected) in [
        (Bound::Pod("agent-n1"), Some("n1")),
        (Bound::Node("n1"), Some("n1")),
        (Bound::Nothing, None),
    ] {
        let config = plane
            .service_account_kubeconfig("berth-system", "berth-agent", bound)
            .await?;
        let client = config.client().await?;
        let reviews: Api<SelfSubjectReview> = Api::all(client);
        let review = reviews
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await?;
        let user = review.status.and_then(|s| s.user_info).context("user")?;
        assert_eq!(
            user.username.as_deref(),
            Some("system:serviceaccount:berth-system:berth-agent")
        );
        let extra = user.extra.unwrap_or_default();
        assert_eq!(claim(&extra, "node-name"), expected, "{bound:?}");
        assert_eq!(claim(&extra, "node-uid"), expected.map(|_| uid.as_str()), "{bound:?}");
    }
    a_token_dies_with_its_pod(&plane).await
}

fn claim<'a>(extra: &'a BTreeMap<String, Vec<String>>, name: &str) -> Option<&'a str> {
    let values = extra.get(&format!("authentication.kubernetes.io/{name}"))?;
    values.first().map(String::as_str)
}

async fn a_token_dies_with_its_pod(plane: &ControlPlane) -> Result<()> {
    let token = plane
        .service_account_token("berth-system", "berth-agent", Bound::Pod("agent-n1"))
        .await?;
    let admin = plane.admin_client();
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "berth-system");
    pods.delete("agent-n1", &kube::api::DeleteParams::default().grace_period(0))
        .await?;
    let reviews: Api<TokenReview> = Api::all(admin);
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: Some(token),
            ..TokenReviewSpec::default()
        },
        ..TokenReview::default()
    };
    // The server caches a good token for up to ten seconds.
    eventually("the token is invalid", Duration::from_secs(30), async || {
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.and_then(|status| status.authenticated) != Some(true))
    })
    .await
}

#[tokio::test]
async fn a_scheduler_places_pods_if_asked_for() -> Result<()> {
    let plane = ControlPlane::start(Options {
        scheduler: true,
        ..Options::simulated_nodes()
    })
    .await?;
    let admin = plane.admin_client();
    make_node(&admin, "n1").await?;
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "default");
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "example.com/none"}],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    // The Node has room for the pod, as a kubelet would report.
    let nodes: Api<Node> = Api::all(admin);
    let status = json!({"status": {"allocatable": {"pods": "10", "cpu": "1", "memory": "1Gi"}}});
    nodes
        .patch_status("n1", &PatchParams::default(), &Patch::Merge(status))
        .await?;
    eventually("the pod is scheduled", Duration::from_secs(30), async || {
        let spec = pods.get("p").await?.spec.context("no spec")?;
        Ok(spec.node_name.as_deref() == Some("n1"))
    })
    .await
}

#[tokio::test]
async fn a_server_that_ends_says_why() -> Result<()> {
    let options = Options {
        apiserver_arguments: vec!["--no-such-flag".to_owned()],
        ..Options::default()
    };
    let error = ControlPlane::start(options).await.unwrap_err();
    assert!(format!("{error:#}").contains("no-such-flag"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn manifests_are_applied_in_order() -> Result<()> {
    let plane = ControlPlane::start(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await?;
    let text = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Ship, plural: ships, singular: ship}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: example.com/v1
kind: Ship
metadata: {name: one}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cargo}
data: {weight: "3"}
"#;
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("all.yaml"), text)?;
    plane.apply_manifests(directory.path()).await?;
    plane.apply_manifests(directory.path()).await?;
    let wrong = plane
        .apply_yaml("{apiVersion: v1, kind: ConfigMap, metadata: {name: UPPER}}")
        .await;
    let error = format!("{:#}", wrong.unwrap_err());
    assert!(error.contains("ConfigMap UPPER"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_registry_keeps_images_and_indexes() -> Result<()> {
    let registry = Registry::start_local().await?;
    let client = registry.client();
    let index = Index::tiny_os("1.0", b"first")?;
    assert_eq!(client.push_index("os", Some("stable"), &index).await?, index.digest);
    let found = client.manifest("os", "stable").await?.context("no manifest")?;
    assert_eq!(found.digest, index.digest);
    assert_eq!(found.bytes, index.manifest);
    for image in &index.images {
        let found = client.manifest("os", &image.digest.to_string()).await?;
        assert_eq!(found.context("no manifest")?.digest, image.digest);
    }

    // A tag that moves to another image, and survives a restart of the registry.
    let image = Image::tiny_os("1.1", b"second")?;
    client.push_image("os", None, &image).await?;
    client.tag("os", "stable", &image.digest).await?;
    registry.stop()?;
    assert!(client.manifest("os", "stable").await.is_err());
    registry.restart().await?;
    let found = client.manifest("os", "stable").await?.context("no manifest")?;
    assert_eq!(found.digest, image.digest);
    assert!(client.manifest("os", "none").await?.is_none());
    Ok(())
}
