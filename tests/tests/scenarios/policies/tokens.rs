//! Tokens that the agent of a host's service requests, and their end with the Node.

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;

use super::*;

/// Requests a token of the agents that is bound to n1, with this UID.
async fn request(client: &Client, uid: Option<&NodeUid>) -> Result<String, kube::Error> {
    request_of(ACCOUNT, client, uid).await
}

/// Requests a token of this account that is bound to n1, with this UID.
async fn request_of(account: &str, client: &Client, uid: Option<&NodeUid>) -> Result<String, kube::Error> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), keys::NAMESPACE);
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some("n1".to_owned()),
        uid: uid.map(ToString::to_string),
    };
    let request = TokenRequest {
        spec: TokenRequestSpec {
            bound_object_ref: Some(bound),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let answer: TokenRequest = accounts
        .create_subresource("token", account, &PostParams::default(), &request)
        .await?;
    Ok(answer.status.map(|status| status.token).unwrap_or_default())
}

/// After an admin has deleted the Node, neither the token of its agent nor a token that was requested with it is
/// accepted, and neither gets another token, although a Node of the same name exists.
#[tokio::test]
async fn a_deleted_node_ends_the_tokens_of_its_agent() -> Result<()> {
    let control_plane = ControlPlane::start(Options::simulated_nodes()).await?;
    let rig = Rig::new(&control_plane).await?;
    let renewed = request(&rig.service, Some(&rig.uid)).await?;
    let renewed = control_plane.token_kubeconfig("renewed", renewed)?.client().await?;
    request(&renewed, Some(&rig.uid))
        .await
        .context("a renewed token can be renewed")?;
    let nodes: Api<Node> = Api::all(rig.admin.clone());
    nodes.delete("n1", &DeleteParams::default()).await?;
    let new_uid = node(&rig.admin, "n1").await?;
    // The API server caches a good token for up to ten seconds.
    let started = Instant::now();
    let mut is_rejected = false;
    while started.elapsed() < Duration::from_secs(30) && !is_rejected {
        is_rejected = true;
        for client in [&rig.service, &renewed] {
            for uid in [Some(&rig.uid), Some(&new_uid), None] {
                let error = request(client, uid).await.err().context("a token was issued")?;
                is_rejected &= matches!(&error, kube::Error::Api(status) if status.code == 401);
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    anyhow::ensure!(is_rejected, "the tokens are still accepted");
    Ok(())
}

/// A Role that also names the controller's account gives an agent no token of that account.
#[tokio::test]
async fn an_agent_requests_tokens_of_its_own_account_only() -> Result<()> {
    let control_plane = ControlPlane::start(Options::simulated_nodes()).await?;
    let rig = Rig::new(&control_plane).await?;
    let name = "too-broad";
    let role = json!({
        "metadata": {"name": name, "namespace": keys::NAMESPACE},
        "rules": [{
            "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"],
            "resourceNames": ["berth-agent", "berth-controller"],
        }],
    });
    let binding = json!({
        "metadata": {"name": name, "namespace": keys::NAMESPACE},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": keys::NAMESPACE}],
    });
    let params = PostParams::default();
    let roles: Api<Role> = Api::namespaced(rig.admin.clone(), keys::NAMESPACE);
    roles.create(&params, &serde_json::from_value(role)?).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(rig.admin.clone(), keys::NAMESPACE);
    bindings.create(&params, &serde_json::from_value(binding)?).await?;
    // The API server applies the new Role and the policy a little later.
    let expected = "a berth-agent may request a token for the account berth-agent only";
    let started = Instant::now();
    loop {
        let answer = request_of("berth-controller", &rig.service, Some(&rig.uid)).await;
        let error = answer
            .err()
            .context("a token of the controller was issued")?
            .to_string();
        if error.contains(expected) {
            break;
        }
        anyhow::ensure!(started.elapsed() < Duration::from_secs(30), "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    request(&rig.service, Some(&rig.uid)).await?;
    Ok(())
}
