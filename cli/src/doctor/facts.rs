//! Facts of a cluster that the doctor's checks need.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::Value;

use super::commands::{Commands, HelmRelease};
use super::seen::{Seen, Unseen};
use super::shipped::{Kind, Shipped};
use super::workload::{Budget, PodPlaces, Workload};
use crate::snapshot::Snapshot;

/// Name of the controller's Deployment, and of the Lease for its leader election.
pub const CONTROLLER: &str = "berth-controller";
/// Name of the agents' DaemonSet, and of their service account.
pub const AGENT: &str = "berth-agent";
/// Secret in Berth's namespace with the credentials of the hosts; optional.
pub const HOST_SECRET: &str = "berth-host-pull";

/// Annotations that Helm adds to an object that it installed.
const HELM: [&str; 2] = ["meta.helm.sh/release-name", "meta.helm.sh/release-namespace"];

/// Answer of the API server to a dry run of a write that it must refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Refused, by the policy or plugin that is tested.
    Refused,
    /// Refused for another reason, in these words.
    RefusedOtherwise(String),
    /// Accepted.
    Accepted,
    /// Not tried: the cluster has no object for this write.
    NothingToTry,
}

/// Facts of a cluster.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Namespace that Berth is installed in.
    pub namespace: String,
    /// Commands of remedies.
    pub commands: Commands,
    /// Objects that this plugin's version ships.
    pub shipped: Vec<Shipped>,
    /// Installed objects with the kinds and names of the shipped ones.
    pub objects: BTreeMap<(Kind, String), Seen<Option<Value>>>,
    /// Version of the API server, such as `v1.36.1`.
    pub server: Seen<String>,
    /// True if the API server serves ValidatingAdmissionPolicies.
    pub has_policies: Seen<bool>,
    /// Command line of each API server that runs as a pod of the cluster.
    pub api_servers: Seen<Vec<Vec<String>>>,
    /// The controller's Deployment.
    pub deployment: Seen<Option<Deployment>>,
    /// The agents' DaemonSet.
    pub daemon_set: Seen<Option<DaemonSet>>,
    /// Holder of the Lease for the controller's leader election; `None` if there is no holder.
    pub leader: Seen<Option<String>>,
    /// Pods of the agents' DaemonSet. Read only if an agent of a member does not report.
    pub agent_pods: Seen<Vec<Pod>>,
    /// Pools, BootcNodes, berths and Nodes. Without the CRDs it has Nodes only.
    pub snapshot: Seen<Snapshot>,
    /// Types of the Secrets with credentials, by name; `None` for a Secret that does not exist.
    pub secrets: BTreeMap<String, Seen<Option<String>>>,
    /// Dry runs of writes that a policy must refuse, by the policy's name.
    pub policy_probes: BTreeMap<&'static str, Seen<Answer>>,
    /// Dry run of a kubelet's write to another Node, which NodeRestriction must refuse.
    pub restriction_probe: Seen<Answer>,
    /// Disruption budgets of all namespaces.
    pub budgets: Seen<Vec<Budget>>,
    /// Deployments and StatefulSets of all namespaces.
    pub workloads: Seen<Vec<Workload>>,
    /// Nodes of the pods, for the budgets and workloads that need attention.
    pub places: PodPlaces,
}

static UNASKED: Seen<Option<Value>> = Ok(None);

impl Facts {
    pub(crate) fn shipped(&self, kind: Kind) -> impl Iterator<Item = &Shipped> {
        self.shipped.iter().filter(move |shipped| shipped.kind == kind)
    }

    /// Returns the installed object of this name.
    pub(crate) fn installed(&self, shipped: &Shipped) -> Result<Option<&Value>, &Unseen> {
        let found = self.objects.get(&(shipped.kind, shipped.name.clone()));
        found.unwrap_or(&UNASKED).as_ref().map(Option::as_ref)
    }

    /// Returns the Helm release that installed the CRDs; `None` if Helm did not.
    pub(crate) fn crd_release(&self) -> Option<HelmRelease> {
        self.release_of(&[Kind::Crd])
    }

    /// Returns the Helm release that installed the policies or the controller; `None` if Helm did not.
    pub(crate) fn release(&self) -> Option<HelmRelease> {
        let of_policies = self.release_of(&[Kind::Policy, Kind::Binding]);
        of_policies.or_else(|| {
            let annotations = self.deployment.as_ref().ok()?.as_ref()?.annotations();
            let [name, namespace] = HELM.map(|key| annotations.get(key).map(String::as_str));
            release(name, namespace)
        })
    }

    fn release_of(&self, kinds: &[Kind]) -> Option<HelmRelease> {
        let objects = self.objects.iter().filter(|((kind, _), _)| kinds.contains(kind));
        let mut releases = objects.filter_map(|(_, object)| {
            let annotations = &object.as_ref().ok()?.as_ref()?["metadata"]["annotations"];
            let [name, namespace] = HELM.map(|key| annotations[key].as_str());
            release(name, namespace)
        });
        releases.next()
    }
}

fn release(name: Option<&str>, namespace: Option<&str>) -> Option<HelmRelease> {
    Some(HelmRelease {
        name: name?.to_owned(),
        namespace: namespace?.to_owned(),
    })
}
