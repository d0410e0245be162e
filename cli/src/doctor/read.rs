//! Reads the facts from the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use berth_api::fleet::BootcFleetSpec;
use berth_shell::request::within;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::core::Selector;
use serde_json::Value;

use super::agents;
use super::budgets::never;
use super::commands::Commands;
use super::crds;
use super::facts::{AGENT, Answer, CONTROLLER, Facts, HOST_SECRET};
use super::probe;
use super::requests::{Asker, Wanted};
use super::roster::members;
use super::seen::{Seen, Unseen};
use super::shipped::{Kind, Shipped, shipped};
use super::workload::{Budget, Key, PodPlace, PodPlaces, Pods, Workload, key, selector};
use crate::snapshot::{Scope, Snapshot};

/// Maximum number of pages of pods that are read.
const PAGES: usize = 20;
/// Resources of the API group of admission policies.
const POLICY_API: &str = "/apis/admissionregistration.k8s.io/v1";

/// Reads the facts. Each request may take `deadline`. Fails if the API server does not return its version, because
/// then it cannot be reached.
pub async fn read(client: &Client, deadline: Duration, namespace: &str, commands: Commands) -> Result<Facts> {
    let asker = Asker {
        client: client.clone(),
        deadline,
    };
    let version: Value = within::<_, _, anyhow::Error>(deadline, async {
        let request = http::Request::get("/version")
            .body(vec![])
            .map_err(kube::Error::HttpError)?;
        client.request(request).await
    })
    .await?;
    let server = version["gitVersion"].as_str().unwrap_or_default().to_owned();
    let shipped = shipped(namespace).map_err(anyhow::Error::msg)?;
    let first = first(&asker, namespace, commands, shipped, server).await;
    Ok(second(&asker, first).await)
}

/// Reads everything that does not depend on other facts.
async fn first(asker: &Asker, namespace: &str, commands: Commands, shipped: Vec<Shipped>, server: String) -> Facts {
    let deployment = Wanted::of("apps", "deployments", namespace, CONTROLLER);
    let daemon_set = Wanted::of("apps", "daemonsets", namespace, AGENT);
    let lease = Wanted::of("coordination.k8s.io", "leases", namespace, CONTROLLER);
    let deployments = Wanted::all_of("apps", "deployments");
    let sets = Wanted::all_of("apps", "statefulsets");
    let budgets = Wanted::all_of("policy", "poddisruptionbudgets");
    let (objects, has_policies, api_servers, deployment, daemon_set, lease, budgets, deployments, sets) = futures::join!(
        objects(asker, &shipped),
        has_policies(asker),
        api_servers(asker),
        asker.read(&deployment),
        asker.read(&daemon_set),
        asker.read::<Value>(&lease),
        asker.list::<Budget>(&budgets),
        asker.list::<Workload>(&deployments),
        asker.list::<Workload>(&sets)
    );
    let leader = lease.map(|lease| holder(lease.as_ref()));
    let workloads = deployments.and_then(|mut all| {
        all.extend(sets?);
        Ok(all)
    });
    Facts {
        namespace: namespace.to_owned(),
        commands,
        shipped,
        objects,
        server: Ok(server),
        has_policies,
        api_servers,
        deployment,
        daemon_set,
        leader,
        agent_pods: Ok(vec![]),
        snapshot: Ok(Snapshot::default()),
        secrets: BTreeMap::new(),
        policy_probes: BTreeMap::new(),
        restriction_probe: Ok(Answer::NothingToTry),
        budgets,
        workloads,
        places: PodPlaces {
            of_budgets: BTreeMap::new(),
            all: Ok(Pods::default()),
        },
    }
}

/// Adds the facts that depend on the first ones.
async fn second(asker: &Asker, mut facts: Facts) -> Facts {
    facts.snapshot = snapshot(asker, &facts).await;
    let empty = Snapshot::default();
    let snapshot = facts.snapshot.as_ref().unwrap_or(&empty);
    let (secrets, pods, of_budgets, all, restriction, policies) = futures::join!(
        secrets(asker, &facts.namespace, snapshot),
        agent_pods(asker, &facts.namespace, snapshot),
        places(asker, &facts),
        all_pods(asker, &facts),
        restriction(asker, &facts.snapshot),
        policies(asker, &facts)
    );
    facts.secrets = secrets;
    facts.agent_pods = pods;
    facts.places = PodPlaces { of_budgets, all };
    facts.restriction_probe = restriction;
    facts.policy_probes = policies;
    facts
}

/// Tests NodeRestriction. Without the Nodes there is nothing to test it with.
async fn restriction(asker: &Asker, snapshot: &Seen<Snapshot>) -> Seen<Answer> {
    match snapshot {
        Ok(snapshot) => probe::restriction(asker, snapshot).await,
        Err(unseen) => Err(unseen.clone()),
    }
}

/// Tests the policies, if one is installed.
async fn policies(asker: &Asker, facts: &Facts) -> BTreeMap<&'static str, Seen<Answer>> {
    let mut policies = facts.shipped(Kind::Policy);
    if !policies.any(|policy| matches!(facts.installed(policy), Ok(Some(_)))) {
        return BTreeMap::new();
    }
    match &facts.snapshot {
        Ok(snapshot) => probe::policies(asker, &facts.namespace, snapshot).await,
        Err(unseen) => BTreeMap::from([(probe::OWN_STATUS, Err(unseen.clone()))]),
    }
}

async fn objects(asker: &Asker, shipped: &[Shipped]) -> BTreeMap<(Kind, String), Seen<Option<Value>>> {
    let reads = shipped.iter().map(|object| async move {
        let what = format!("{} {}", object.kind.name(), object.name);
        let wanted = Wanted::new(&object.path(), &what, &format!("get {}", object.kind.resource()));
        ((object.kind, object.name.clone()), asker.read(&wanted).await)
    });
    futures::future::join_all(reads).await.into_iter().collect()
}

async fn has_policies(asker: &Asker) -> Seen<bool> {
    let wanted = Wanted::new(
        POLICY_API,
        "kinds of admissionregistration.k8s.io/v1",
        "get the API server's discovery documents",
    );
    let found: Option<Value> = asker.read(&wanted).await?;
    let resources = found.as_ref().and_then(|list| list["resources"].as_array());
    Ok(resources
        .into_iter()
        .flatten()
        .any(|resource| resource["name"] == "validatingadmissionpolicies"))
}

async fn api_servers(asker: &Asker) -> Seen<Vec<Vec<String>>> {
    let path = "/api/v1/namespaces/kube-system/pods";
    let wanted = Wanted::new(path, "pods of API servers", "list pods in namespace kube-system");
    let (pods, _) = asker.pages::<Pod>(&wanted, Some("component=kube-apiserver"), 1).await?;
    let specs = pods.into_iter().filter_map(|pod| pod.spec);
    let containers = specs.filter_map(|spec| spec.containers.into_iter().next());
    let lines = containers.map(|container| {
        let command = container.command.into_iter().flatten();
        command.chain(container.args.into_iter().flatten()).collect()
    });
    Ok(lines.collect())
}

fn holder(lease: Option<&Value>) -> Option<String> {
    let holder = lease?["spec"]["holderIdentity"].as_str()?;
    (!holder.is_empty()).then(|| holder.to_owned())
}

/// Reads the pools and everything about them; without the CRDs, only the Nodes.
async fn snapshot(asker: &Asker, facts: &Facts) -> Seen<Snapshot> {
    if !crds::are_served(facts) {
        let read = within::<_, _, anyhow::Error>(asker.deadline, Snapshot::of_nodes(&asker.client)).await;
        return read.map_err(|error| unseen("Nodes", "list nodes", &error));
    }
    let read = Snapshot::read(&asker.client, &facts.namespace, Scope::Status);
    let read: Result<Snapshot> = within(asker.deadline, read).await;
    read.map_err(|error| {
        unseen(
            "pools and BootcNodes",
            "list bootcnodepools.berth.dev and bootcnodes.berth.dev",
            &error,
        )
    })
}

fn unseen(what: &str, permission: &str, error: &anyhow::Error) -> Unseen {
    let answer = error.downcast_ref::<kube::Error>();
    let is_refused = matches!(answer, Some(kube::Error::Api(status)) if matches!(status.code, 401 | 403));
    Unseen {
        what: what.to_owned(),
        why: answer.map_or_else(|| format!("{error:#}"), crate::snapshot::words),
        permission: is_refused.then(|| permission.to_owned()),
    }
}

/// Reads the types of the Secrets that pools, the fleet and the agents' DaemonSet name.
async fn secrets(asker: &Asker, namespace: &str, snapshot: &Snapshot) -> BTreeMap<String, Seen<Option<String>>> {
    let none = BootcFleetSpec::default();
    let fleet = snapshot.fleet.as_ref().map_or(&none, |fleet| &fleet.spec);
    let named = snapshot.pools.iter().filter_map(|pool| fleet.pull_secret(&pool.spec));
    let mut names: BTreeSet<String> = named.map(str::to_owned).collect();
    if !snapshot.pools.is_empty() {
        names.insert(HOST_SECRET.to_owned());
    }
    let reads = names.into_iter().map(|name| async move {
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let permission = format!("get secrets in namespace {namespace}");
        let wanted = Wanted::new(&path, &format!("type of Secret {namespace}/{name}"), &permission);
        let found = asker.secret_type(&wanted).await;
        (name, found)
    });
    futures::future::join_all(reads).await.into_iter().collect()
}

/// Reads the pods of the agents, if an agent does not report.
async fn agent_pods(asker: &Asker, namespace: &str, snapshot: &Snapshot) -> Seen<Vec<Pod>> {
    if !agents::is_any_missing(&members(snapshot, Timestamp::now())) {
        return Ok(vec![]);
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let wanted = Wanted::new(
        &path,
        "pods of the agents",
        &format!("list pods in namespace {namespace}"),
    );
    let label = format!("app.kubernetes.io/name={AGENT}");
    asker.pages(&wanted, Some(&label), PAGES).await.map(|(pods, _)| pods)
}

/// Reads the pods of the budgets that never allow a disruption.
async fn places(asker: &Asker, facts: &Facts) -> BTreeMap<Key, Seen<Pods>> {
    let budgets = facts.budgets.as_deref().unwrap_or_default();
    let reads = budgets
        .iter()
        .filter(|budget| never(budget).is_some())
        .map(|budget| async move {
            let (namespace, name) = key(budget);
            let selected = match selector(budget) {
                Some(selector) => pods(asker, Some(&namespace), Some(&selector), 1).await,
                None => Ok(Pods::default()),
            };
            ((namespace, name), selected)
        });
    futures::future::join_all(reads).await.into_iter().collect()
}

/// Reads the pods of all namespaces, if a workload has a single replica and no budget.
async fn all_pods(asker: &Asker, facts: &Facts) -> Seen<Pods> {
    let (Ok(budgets), Ok(workloads)) = (&facts.budgets, &facts.workloads) else {
        return Ok(Pods::default());
    };
    if !workloads.iter().any(|workload| workload.is_single(budgets)) {
        return Ok(Pods::default());
    }
    pods(asker, None, None, PAGES).await
}

async fn pods(asker: &Asker, namespace: Option<&str>, selector: Option<&Selector>, pages: usize) -> Seen<Pods> {
    let wanted = match namespace {
        Some(namespace) => {
            let permission = format!("list pods in namespace {namespace}");
            Wanted::new(&format!("/api/v1/namespaces/{namespace}/pods"), "pods", &permission)
        }
        None => Wanted::new("/api/v1/pods", "pods", "list pods in all namespaces"),
    };
    let selector = selector
        .filter(|selector| !selector.selects_all())
        .map(ToString::to_string);
    let (pods, is_partial) = asker.pages::<PodPlace>(&wanted, selector.as_deref(), pages).await?;
    Ok(Pods { pods, is_partial })
}
