//! Facts of a cluster for the doctor: by default, everything is installed and well.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kubectl_berth::Snapshot;
use kubectl_berth::doctor::facts::{Answer, Facts};
use kubectl_berth::doctor::seen::{Seen, Unseen};
use kubectl_berth::doctor::shipped::{Kind, shipped};
use kubectl_berth::doctor::workload::{Budget, PodPlace, PodPlaces, Pods, Workload};
use kubectl_berth::doctor::{Commands, Origin};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::merge;

const NAMESPACE: &str = "berth-system";

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DoctorFacts {
    /// Version of the API server.
    server: String,
    /// Objects and lists that do not exist: `KIND/NAME` of a shipped object, `Deployment`, `DaemonSet`, `leader`,
    /// `policies` of the API server.
    missing: BTreeSet<String>,
    /// Objects and lists that the user may not read: as `missing`, and `pools`, `budgets`, `workloads`, `pods`,
    /// `probes`, `secrets`.
    forbidden: BTreeSet<String>,
    /// Changes of shipped objects, by `KIND/NAME`.
    changed: BTreeMap<String, Value>,
    /// Fields of the shipped CRDs that the installed ones lack, as JSON pointers.
    without: BTreeMap<String, Vec<String>>,
    /// Tag of the controller's image. By default, the version of this plugin.
    controller: Option<String>,
    /// Number of the controller's pods that are available.
    available: i32,
    /// Number of the agents' pods that are ready, and that should be.
    agents: (i32, i32),
    agent_pods: Vec<Value>,
    /// Command lines of API servers that run as pods.
    api_servers: Vec<Vec<String>>,
    /// Policies that accept a forbidden write, or `NodeRestriction`.
    accepts: BTreeSet<String>,
    /// Types of Secrets.
    secrets: BTreeMap<String, Option<String>>,
    budgets: Vec<Value>,
    workloads: Vec<Value>,
    /// Pods of these workloads, by `NAMESPACE/NODE`: their labels.
    pods: Vec<(String, BTreeMap<String, String>)>,
    /// Directory with the manifests that Berth was installed from.
    manifests: Option<String>,
    context: Option<String>,
    namespace: Option<String>,
}

impl Default for DoctorFacts {
    fn default() -> Self {
        Self {
            server: "v1.36.1".to_owned(),
            missing: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            changed: BTreeMap::new(),
            without: BTreeMap::new(),
            controller: None,
            available: 2,
            agents: (3, 3),
            agent_pods: vec![],
            api_servers: vec![],
            accepts: BTreeSet::new(),
            secrets: BTreeMap::new(),
            budgets: vec![],
            workloads: vec![],
            pods: vec![],
            manifests: None,
            context: None,
            namespace: None,
        }
    }
}

impl DoctorFacts {
    /// Returns the facts for a cluster with these objects.
    pub fn facts(&self, snapshot: Snapshot) -> Facts {
        let namespace = self.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
        let has_berth = !self.missing.contains("CustomResourceDefinition/bootcnodes.berth.dev");
        let snapshot = if has_berth {
            snapshot
        } else {
            Snapshot {
                nodes: snapshot.nodes,
                ..Snapshot::default()
            }
        };
        Facts {
            commands: Commands {
                origin: self.manifests.clone().map_or(Origin::Release, Origin::Directory),
                kubeconfig: None,
                context: self.context.clone(),
                is_usual_namespace: namespace == NAMESPACE,
            },
            shipped: shipped(&namespace).unwrap(),
            objects: self.objects(&namespace),
            server: Ok(self.server.clone()),
            has_policies: self.seen("policies", !self.missing.contains("policies")),
            api_servers: self.seen("pods", self.api_servers.clone()),
            deployment: self.seen("Deployment", self.deployment()),
            daemon_set: self.seen("DaemonSet", self.daemon_set()),
            leader: self.seen(
                "leader",
                (!self.missing.contains("leader")).then(|| "berth-controller-7d9f-x2x".to_owned()),
            ),
            agent_pods: self.seen("pods", self.agent_pods.iter().cloned().map(object).collect()),
            secrets: self
                .secrets
                .iter()
                .map(|(name, type_)| (name.clone(), self.seen("secrets", type_.clone())))
                .collect(),
            policy_probes: self.policy_probes(),
            restriction_probe: self.probe("NodeRestriction"),
            budgets: self.seen("budgets", self.budgets()),
            workloads: self.seen(
                "workloads",
                self.workloads.iter().cloned().map(object::<Workload>).collect(),
            ),
            places: PodPlaces {
                of_budgets: self.budgets().iter().map(|budget| self.of_budget(budget)).collect(),
                all: self.seen(
                    "pods",
                    Pods {
                        pods: self.pods(),
                        is_partial: false,
                    },
                ),
            },
            snapshot: self.seen("pools", snapshot),
            namespace,
        }
    }

    fn seen<T>(&self, what: &str, fact: T) -> Seen<T> {
        if !self.forbidden.contains(what) {
            return Ok(fact);
        }
        Err(Unseen {
            what: what.to_owned(),
            why: format!("User \"eve\" cannot read {what}"),
            permission: Some(format!("get {what}")),
        })
    }

    fn objects(&self, namespace: &str) -> BTreeMap<(Kind, String), Seen<Option<Value>>> {
        let mut found = BTreeMap::new();
        for shipped in shipped(namespace).unwrap() {
            let key = format!("{}/{}", shipped.kind.name(), shipped.name);
            let mut object = shipped.object;
            if shipped.kind == Kind::Crd {
                let conditions = ["Established", "NamesAccepted"].map(|type_| json!({"type": type_, "status": "True"}));
                object["status"] = json!({"conditions": conditions});
            }
            if let Some(change) = self.changed.get(&key) {
                merge(&mut object, change);
            }
            for pointer in self.without.get(&key).into_iter().flatten() {
                let (parent, name) = pointer.rsplit_once('/').unwrap();
                object
                    .pointer_mut(parent)
                    .unwrap()
                    .as_object_mut()
                    .unwrap()
                    .remove(name)
                    .unwrap();
            }
            let object = (!self.missing.contains(&key)).then_some(object);
            found.insert((shipped.kind, shipped.name), self.seen(&key, object));
        }
        found
    }

    fn deployment<T: DeserializeOwned>(&self) -> Option<T> {
        let tag = self.controller.as_deref().unwrap_or(env!("CARGO_PKG_VERSION"));
        let image = format!("ghcr.io/berth-dev/berth-controller:{tag}");
        let pod = json!({"spec": {"containers": [{"name": "controller", "image": image}]}});
        let deployment = json!({
            "metadata": {"name": "berth-controller"},
            "spec": {"replicas": 2, "selector": {}, "template": pod}, "status": {"availableReplicas": self.available},
        });
        (!self.missing.contains("Deployment")).then(|| object(deployment))
    }

    fn daemon_set<T: DeserializeOwned>(&self) -> Option<T> {
        let (ready, wanted) = self.agents;
        let set = json!({
            "metadata": {"name": "berth-agent"},
            "status": {
                "desiredNumberScheduled": wanted, "numberReady": ready, "currentNumberScheduled": wanted,
                "numberMisscheduled": 0,
            },
        });
        (!self.missing.contains("DaemonSet")).then(|| object(set))
    }

    fn policy_probes(&self) -> BTreeMap<&'static str, Seen<Answer>> {
        let tested = ["berth-agent-own-status", "berth-agent-own-berth", "berth-node-labels"];
        tested.into_iter().map(|policy| (policy, self.probe(policy))).collect()
    }

    fn probe(&self, name: &str) -> Seen<Answer> {
        let answer = if self.accepts.contains(name) {
            Answer::Accepted
        } else {
            Answer::Refused
        };
        self.seen("probes", answer)
    }

    fn budgets(&self) -> Vec<Budget> {
        self.budgets.iter().cloned().map(object).collect()
    }

    fn of_budget(&self, budget: &Budget) -> ((String, String), Seen<Pods>) {
        let (namespace, name) = (budget.namespace().unwrap(), budget.name_any());
        let selector = budget
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref()?.match_labels.clone());
        let mut pods = self.pods();
        pods.retain(|pod| pod.namespace == namespace && Some(&pod.labels) == selector.as_ref());
        let pods = self.seen(
            "pods",
            Pods {
                pods,
                is_partial: false,
            },
        );
        ((namespace, name), pods)
    }

    fn pods(&self) -> Vec<PodPlace> {
        let places = self.pods.iter().map(|(place, labels)| {
            let (namespace, node) = place.split_once('/').unwrap();
            PodPlace {
                namespace: namespace.to_owned(),
                node: node.to_owned(),
                labels: labels.clone(),
            }
        });
        places.collect()
    }
}

fn object<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}
