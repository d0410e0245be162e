//! Permissions of the pods, network policies and namespace in `manifests/`: checks their text, and has a real API server
//! and scheduler admit them. No container runs.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use berth_agent::cli::{Args, NodeIdentity};
use berth_api::keys;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::manifests::with_components;
use berth_tests::programs::workspace_root;
use berth_tests::wait::eventually;
use clap::Parser;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Secret, ServiceAccount, ServiceAccountTokenProjection};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
/// Label and taint of a node that an admin set aside for the controller.
const SET_ASIDE: &str = keys::SET_ASIDE;
const CONTROLLER: &str = "berth-controller";
const SOON: Duration = Duration::from_secs(30);
/// Lifetime in seconds that is requested for the token of an automatic mount. By default, an API server makes it a year.
const AUTOMATIC: i64 = 3607;
const YEAR: i64 = 365 * 24 * 3600;

fn of_kind<T: DeserializeOwned>(objects: &[Value], kind: &str) -> Result<Vec<T>> {
    let found = objects.iter().filter(|object| object["kind"] == kind);
    Ok(found.cloned().map(serde_json::from_value).collect::<Result<_, _>>()?)
}

fn agent(objects: &[Value]) -> Result<PodSpec> {
    let mut sets: Vec<DaemonSet> = of_kind(objects, "DaemonSet")?;
    let set = sets.pop().context("no DaemonSet")?;
    set.spec.and_then(|spec| spec.template.spec).context("no pod")
}

fn controller(objects: &[Value]) -> Result<Deployment> {
    let mut deployments: Vec<Deployment> = of_kind(objects, "Deployment")?;
    deployments.pop().context("no Deployment")
}

fn controllers_pod(objects: &[Value]) -> Result<PodSpec> {
    let deployment = controller(objects)?;
    deployment.spec.and_then(|spec| spec.template.spec).context("no pod")
}

/// The projected token of a pod.
fn token(pod: &PodSpec) -> Result<&ServiceAccountTokenProjection> {
    let volumes = pod.volumes.iter().flatten();
    let mut sources = volumes.filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
    let mut sources = sources.next().context("no projected volume")?.iter();
    let token = sources.find_map(|source| source.service_account_token.as_ref());
    token.context("no token")
}

#[test]
fn pods_are_confined() -> Result<()> {
    let objects = with_components(&[])?;
    for pod in [agent(&objects)?, controllers_pod(&objects)?] {
        let profile = pod.security_context.as_ref().and_then(|c| c.seccomp_profile.as_ref());
        ensure!(profile.is_some_and(|profile| profile.type_ == "RuntimeDefault"));
        for container in &pod.containers {
            let context = container.security_context.as_ref().context("no securityContext")?;
            ensure!(context.allow_privilege_escalation == Some(false) && context.privileged == Some(false));
            ensure!(context.read_only_root_filesystem == Some(true));
            let dropped = context.capabilities.as_ref().and_then(|c| c.drop.clone());
            ensure!(dropped == Some(vec!["ALL".to_owned()]), "{dropped:?}");
        }
        ensure!(pod.automount_service_account_token == Some(false));
        let token = token(&pod)?;
        ensure!(
            token.audience.is_none(),
            "the API server's own audience, in every cluster"
        );
        ensure!(token.expiration_seconds.is_some_and(|seconds| seconds <= 3600));
    }
    Ok(())
}

/// `kubectl berth uninstall` finds the objects by this label.
#[test]
fn every_object_has_the_label_that_finds_it() -> Result<()> {
    let components = fs::read_dir(workspace_root().join("manifests/components"))?;
    for component in components {
        let name = component?.file_name().into_string().ok().context("a name in UTF-8")?;
        for object in with_components(&[&name])? {
            let label = object["metadata"]["labels"][keys::LABEL_PART_OF].as_str();
            let (kind, object) = (&object["kind"], &object["metadata"]["name"]);
            ensure!(label == Some(keys::PART_OF), "{kind} {object}, component {name}");
        }
    }
    Ok(())
}

/// The agent writes to three directories of its host. It sees no other path than those that it reads. With the component
/// `impersonation`, it sees no file of the kubelet.
#[test]
fn the_agent_sees_few_paths_of_its_host() -> Result<()> {
    let of_kubelet = ["etc/kubernetes/kubelet.conf", "var/lib/kubelet/pki"];
    sees_paths(&agent(&with_components(&[])?)?, &of_kubelet)?;
    sees_paths(&agent(&with_components(&["impersonation"])?)?, &[])
}

fn sees_paths(pod: &PodSpec, of_kubelet: &[&str]) -> Result<()> {
    let mounts = pod.containers[0].volume_mounts.iter().flatten();
    let mounted: BTreeSet<&str> = mounts.clone().map(|mount| mount.name.as_str()).collect();
    let volumes: BTreeSet<&str> = pod
        .volumes
        .iter()
        .flatten()
        .map(|volume| volume.name.as_str())
        .collect();
    ensure!(mounted == volumes, "{mounted:?}, {volumes:?}");
    let (mut writable, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for mount in mounts {
        let Some(path) = mount.mount_path.strip_prefix("/host/") else {
            continue;
        };
        seen.insert(path);
        if mount.read_only != Some(true) {
            writable.insert(path);
        }
    }
    ensure!(
        writable == BTreeSet::from(["run/berth", "run/ostree", "var/lib/berth"]),
        "{writable:?}"
    );
    let mut read = BTreeSet::from([
        "etc/berth",
        "etc/containers",
        "etc/ostree",
        "proc/cpuinfo",
        "proc/sys/kernel/random/boot_id",
        "run",
        "usr",
    ]);
    read.extend(of_kubelet);
    ensure!(seen.difference(&writable).copied().eq(read), "{seen:?}");
    Ok(())
}

/// The component `impersonation` lets agents act as their own nodes only. All other verbs would go beyond the kubelet's
/// limits, or let each agent act as every node.
#[test]
fn agents_may_impersonate_their_own_nodes_only() -> Result<()> {
    let objects = with_components(&["impersonation"])?;
    let pod = agent(&objects)?;
    let args = pod.containers[0].args.iter().flatten().map(String::as_str);
    let args = Args::try_parse_from(["berth-agent"].into_iter().chain(args))?;
    ensure!(args.node_identity == NodeIdentity::Impersonate, "{args:?}");
    let roles: Vec<ClusterRole> = of_kind(&objects, "ClusterRole")?;
    let mut granted = BTreeSet::new();
    for role in roles.iter().filter(|role| role.name_any().starts_with("berth-agent")) {
        for rule in role.rules.iter().flatten() {
            ensure!(rule.resource_names.is_none(), "{rule:?}");
            for verb in rule.verbs.iter().filter(|verb| verb.contains("impersonate")) {
                granted.extend(
                    rule.resources
                        .iter()
                        .flatten()
                        .map(|resource| format!("{verb} {resource}")),
                );
            }
        }
    }
    let on = "impersonate-on:associated-node";
    let mut expected = BTreeSet::from(["impersonate:associated-node nodes".to_owned()]);
    for what in [
        "get nodes",
        "patch nodes",
        "patch nodes/status",
        "list pods",
        "delete pods",
        "create pods/eviction",
        "get persistentvolumeclaims",
        "get persistentvolumes",
    ] {
        expected.insert(format!("{on}:{what}"));
    }
    ensure!(granted == expected, "{granted:?}");
    ensure!(
        !with_components(&[])?
            .iter()
            .any(|object| object.to_string().contains("impersonate"))
    );
    Ok(())
}

/// All pods of the namespace are closed, except the two ports of the controller. Its requests are not restricted.
#[test]
fn network_policies_leave_the_controllers_ports_open() -> Result<()> {
    let objects = with_components(&[])?;
    let policies: Vec<NetworkPolicy> = of_kind(&objects, "NetworkPolicy")?;
    let [closed, open] = policies.try_into().ok().context("not two policies")?;
    let (closed, open) = if closed.name_any() == CONTROLLER {
        (open, closed)
    } else {
        (closed, open)
    };
    let closed = closed.spec.context("no spec")?;
    let selects_all = closed.pod_selector.unwrap_or_default() == Default::default();
    ensure!(selects_all && closed.ingress.is_none() && closed.egress.is_none());
    let both = Some(vec!["Ingress".to_owned(), "Egress".to_owned()]);
    let open = open.spec.context("no spec")?;
    ensure!(closed.policy_types == both && open.policy_types == both);
    let template = controller(&objects)?.spec.context("no spec")?.template;
    let selected = open.pod_selector.and_then(|selector| selector.match_labels);
    let labels = template
        .metadata
        .and_then(|metadata| metadata.labels)
        .unwrap_or_default();
    ensure!(
        selected
            .context("no labels")?
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
    );
    let rules = open.ingress.unwrap_or_default();
    ensure!(rules.len() == 1 && rules[0].from.is_none());
    let opened = rules[0].ports.iter().flatten().filter_map(|port| port.port.clone());
    let pod = template.spec.context("no pod")?;
    let ports = pod.containers[0].ports.iter().flatten();
    ensure!(opened.eq(ports.map(|port| IntOrString::Int(port.container_port))));
    ensure!(open.egress == Some(vec![Default::default()]), "any destination");
    ensure!(
        agent(&objects)?.host_network == Some(true),
        "the page says that no policy applies"
    );
    Ok(())
}

/// A pod of the Deployment.
fn pod_of(objects: &[Value], name: &str) -> Result<Pod> {
    let mut spec = controllers_pod(objects)?;
    spec.termination_grace_period_seconds = Some(0);
    Ok(Pod {
        metadata: serde_json::from_value(json!({"name": name}))?,
        spec: Some(spec),
        ..Pod::default()
    })
}

async fn add_node(client: &Client, name: &str, key: Option<&str>) -> Result<()> {
    let mut labels = json!({"kubernetes.io/os": "linux"});
    let mut taints = vec![];
    if let Some(key) = key {
        labels[key] = "".into();
        taints.push(json!({"key": key, "effect": "NoSchedule"}));
    }
    let node = json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}});
    let nodes: Api<Node> = Api::all(client.clone());
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    let status = json!({"status": {"allocatable": {"pods": "10", "cpu": "1", "memory": "1Gi"}}});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn cordon(client: &Client, name: &str, unschedulable: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    nodes.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn until_on(pods: &Api<Pod>, pod: &str, node: &str) -> Result<()> {
    eventually(&format!("pod {pod} is on {node}"), SOON, async || {
        let spec = pods.get(pod).await?.spec.context("no spec")?;
        Ok(spec.node_name.as_deref() == Some(node))
    })
    .await
}

async fn until_unschedulable(pods: &Api<Pod>, pod: &str) -> Result<()> {
    eventually(&format!("no node takes pod {pod}"), SOON, async || {
        let status = pods.get(pod).await?.status.context("no status")?;
        let mut conditions = status.conditions.into_iter().flatten();
        Ok(conditions.any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable")))
    })
    .await
}

/// Requests a token for a pod, as its node's kubelet does.
async fn request_token(client: &Client, account: &str, pod: &Pod, seconds: i64) -> Result<TokenRequest> {
    let reference = json!({"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()});
    let request = json!({"spec": {"audiences": [], "expirationSeconds": seconds, "boundObjectRef": reference}});
    let request: TokenRequest = serde_json::from_value(request)?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), keys::NAMESPACE);
    let params = PostParams::default();
    Ok(accounts.create_subresource("token", account, &params, &request).await?)
}

/// The kubelet of a node with a controller gets the controller's token: such a node is the controller. With the
/// component, no worker runs one, even while the control plane node takes no pods.
#[tokio::test]
async fn only_nodes_for_the_controller_run_it() -> Result<()> {
    let options = Options {
        scheduler: true,
        controller_manager: false,
        ..Options::simulated_nodes()
    };
    let plane = ControlPlane::start(options).await?;
    plane.install().await?;
    let admin = plane.admin_client();
    add_node(&admin, "worker", None).await?;
    add_node(&admin, "server", Some(CONTROL_PLANE)).await?;
    cordon(&admin, "server", true).await?;

    let [anywhere, strict] = [with_components(&[])?, with_components(&["control-plane"])?];
    let pods: Api<Pod> = Api::namespaced(admin.clone(), keys::NAMESPACE);
    let params = PostParams::default();
    pods.create(&params, &pod_of(&strict, "strict")?).await?;
    let preferred = pods.create(&params, &pod_of(&anywhere, "anywhere")?).await?;
    until_on(&pods, "anywhere", "worker").await?;
    until_unschedulable(&pods, "strict").await?;
    let worker = plane.node_kubeconfig("worker")?.client().await?;
    eventually("the kubelet gets the token of the pod on its node", SOON, async || {
        Ok(request_token(&worker, CONTROLLER, &preferred, 600).await.is_ok())
    })
    .await?;
    a_kubelet_reads_what_its_pods_mount(&plane, &worker, &anywhere).await?;

    cordon(&admin, "server", false).await?;
    until_on(&pods, "strict", "server").await?;
    let required = pods.get("strict").await?;
    let answer = request_token(&worker, CONTROLLER, &required, 600).await;
    let error = answer.err().context("a worker gets the controller's token")?;
    ensure!(
        format!("{error:#}").contains("a pod scheduled on a different node"),
        "{error:#}"
    );

    pods.delete("strict", &DeleteParams::default()).await?;
    cordon(&admin, "server", true).await?;
    pods.create(&params, &pod_of(&strict, "aside")?).await?;
    until_unschedulable(&pods, "aside").await?;
    add_node(&admin, "aside-1", Some(SET_ASIDE)).await?;
    until_on(&pods, "aside", "aside-1").await
}

/// The kubelet of a node with an agent reads the Secret that the agent mounts, and no pull secret of the controller.
async fn a_kubelet_reads_what_its_pods_mount(plane: &ControlPlane, kubelet: &Client, objects: &[Value]) -> Result<()> {
    for name in ["berth-host-pull", "pull"] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": keys::NAMESPACE},
        });
        plane.apply_yaml(&secret.to_string()).await?;
    }
    let mut spec = agent(objects)?;
    spec.node_name = Some("worker".to_owned());
    let pod = Pod {
        metadata: serde_json::from_value(json!({"name": "agent"}))?,
        spec: Some(spec),
        ..Pod::default()
    };
    let pods: Api<Pod> = Api::namespaced(plane.admin_client(), keys::NAMESPACE);
    pods.create(&PostParams::default(), &pod).await?;
    let secrets: Api<Secret> = Api::namespaced(kubelet.clone(), keys::NAMESPACE);
    eventually(
        "the kubelet reads the Secret of the pod on its node",
        SOON,
        async || Ok(secrets.get("berth-host-pull").await.is_ok()),
    )
    .await?;
    let error = secrets
        .get("pull")
        .await
        .err()
        .context("the kubelet reads a pull secret")?;
    ensure!(format!("{error:#}").contains("no relationship found"), "{error:#}");
    Ok(())
}

/// A real API server accepts all manifests, with the components that need no other CRDs. The controller's pods pass
/// the strictest Pod Security level; the agents' pods pass only `privileged`.
#[tokio::test]
async fn the_api_server_admits_the_pods() -> Result<()> {
    let options = Options {
        controller_manager: false,
        ..Options::simulated_nodes()
    };
    let plane = ControlPlane::start(options).await?;
    plane.apply_manifests(&workspace_root().join("manifests")).await?;
    let admin = plane.admin_client();
    let base = with_components(&[])?;
    for components in [
        ["control-plane", "k3s"],
        ["rke2", "control-plane"],
        ["impersonation", "control-plane"],
    ] {
        let workloads = with_components(&components)?;
        let workloads = workloads
            .iter()
            .filter(|object| object["kind"] != "CustomResourceDefinition");
        for object in workloads {
            plane
                .apply_yaml(&object.to_string())
                .await
                .with_context(|| format!("{components:?}"))?;
        }
    }
    for level in ["baseline", "restricted"] {
        let space = json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": level, "labels": {"pod-security.kubernetes.io/enforce": level}},
        });
        plane.apply_yaml(&space.to_string()).await?;
        for account in [CONTROLLER, "berth-agent"] {
            let account = json!({
                "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account, "namespace": level},
            });
            plane.apply_yaml(&account.to_string()).await?;
        }
    }
    for space in ["restricted", "baseline", keys::NAMESPACE] {
        try_create(&admin, space, controllers_pod(&base)?)
            .await
            .context("the controller")?;
    }
    try_create(&admin, keys::NAMESPACE, agent(&base)?)
        .await
        .context("the agent")?;
    let answer = try_create(&admin, "baseline", agent(&base)?).await;
    let error = answer.err().context("the agent passes baseline")?;
    for part in ["host namespaces", "hostPath volumes", "seLinuxOptions"] {
        ensure!(format!("{error:#}").contains(part), "{part}: {error:#}");
    }
    tokens_live_for_an_hour(&plane, &base).await
}

async fn try_create(client: &Client, namespace: &str, spec: PodSpec) -> Result<()> {
    let pod = Pod {
        metadata: serde_json::from_value(json!({"name": "tried"}))?,
        spec: Some(spec),
        ..Pod::default()
    };
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    pods.create(&dry, &pod).await?;
    Ok(())
}

/// The tokens that the kubelet requests for the pods live for an hour. The one of an automatic mount would live for a
/// year.
async fn tokens_live_for_an_hour(plane: &ControlPlane, objects: &[Value]) -> Result<()> {
    let admin = plane.admin_client();
    add_node(&admin, "n1", None).await?;
    for (account, spec) in [
        ("berth-agent", agent(objects)?),
        (CONTROLLER, controllers_pod(objects)?),
    ] {
        let pod = plane.place_pod(keys::NAMESPACE, account, "n1", account).await?;
        let shipped = token(&spec)?.expiration_seconds.context("no lifetime")?;
        for (seconds, lifetime) in [(shipped, shipped), (AUTOMATIC, YEAR)] {
            let token = request_token(&admin, account, &pod, seconds).await?;
            let left = end_of(&token.status.context("no status")?.token)? - Timestamp::now().as_second();
            ensure!(
                (lifetime - 60..=lifetime).contains(&left),
                "{account}, {seconds}: {left} s"
            );
        }
    }
    Ok(())
}

/// Time when a token ends, from its claims: the answer's own time is the one that the caller asked for.
fn end_of(token: &str) -> Result<i64> {
    let claims = token.split('.').nth(1).context("not a JWT")?;
    let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(claims)?)?;
    claims["exp"].as_i64().context("a token without an end")
}
