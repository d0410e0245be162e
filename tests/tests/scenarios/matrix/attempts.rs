//! The table of attempts, each with the callers that may make it. All other callers must be refused.

use http::Method;
use serde_json::{Value, json};

use super::callers::Caller;
use super::callers::Caller::{
    AgentAsNode, AgentAsService, AgentInPod, AgentWithoutNode, Anonymous, Controller, Kubelet,
};
use super::objects::Objects;

const NONE: &[Caller] = &[];
/// The agent of the node, and the controller.
const OWN: &[Caller] = &[AgentInPod, AgentAsService, Controller];
const CONTROLLER: &[Caller] = &[Controller];
const KUBELET: &[Caller] = &[Kubelet];
/// The node's own identity: the kubelet's credentials, and the agent that impersonates its node.
const NODE: &[Caller] = &[Kubelet, AgentAsNode];
const NODE_AND_CONTROLLER: &[Caller] = &[Kubelet, AgentAsNode, Controller];
const AGENT_SERVICE: &[Caller] = &[AgentAsService];
const KUBELET_AND_CONTROLLER: &[Caller] = &[Kubelet, Controller];
/// The agent's account, even if its token names no node, and the controller.
const BERTH: &[Caller] = &[AgentInPod, AgentAsService, AgentWithoutNode, Controller];
/// Every caller whose credentials are accepted.
const AUTHENTICATED: &[Caller] = &[AgentInPod, AgentAsService, AgentWithoutNode, Controller, Kubelet];
/// Also a caller without credentials.
const ALL: &[Caller] = &[
    AgentInPod,
    AgentAsService,
    AgentWithoutNode,
    Controller,
    Kubelet,
    Anonymous,
];

/// Seconds of a day.
const DAY: u32 = 24 * 3600;

const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const BERTH_PODS: &str = "/api/v1/namespaces/berth-system/pods";
const BOOTC_NODES: &str = "/apis/berth.dev/v1alpha1/bootcnodes";
const POOLS: &str = "/apis/berth.dev/v1alpha1/bootcnodepools";
const FLEETS: &str = "/apis/berth.dev/v1alpha1/bootcfleets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/berth-system/leases";
const NODE_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const SECRETS: &str = "/api/v1/namespaces/berth-system/secrets";
const ACCOUNTS: &str = "/api/v1/namespaces/berth-system/serviceaccounts";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bootcnodes.berth.dev";

/// An attempt, made by every caller.
pub struct Attempt {
    /// Verb, resource and target, for people.
    pub what: String,
    pub method: Method,
    /// Path with query.
    pub path: String,
    pub body: Option<Value>,
    /// Callers that may do it.
    pub allowed: &'static [Caller],
    /// True if an admission policy decides, not only authorization.
    pub needs_policy: bool,
}

impl Attempt {
    fn new(what: &str, method: Method, path: &str, allowed: &'static [Caller]) -> Self {
        let path = if method == Method::GET {
            path.to_owned()
        } else {
            format!("{path}?dryRun=All")
        };
        Self {
            what: what.to_owned(),
            method,
            path,
            body: None,
            allowed,
            needs_policy: false,
        }
    }

    fn body(self, body: Value) -> Self {
        Self {
            body: Some(body),
            ..self
        }
    }

    fn by_policy(self) -> Self {
        Self {
            needs_policy: true,
            ..self
        }
    }

    /// Content type of the body.
    pub fn content_type(&self) -> Option<&'static str> {
        self.body.as_ref()?;
        if self.method == Method::PATCH {
            Some("application/merge-patch+json")
        } else {
            Some("application/json")
        }
    }
}

fn get(what: &str, path: &str, allowed: &'static [Caller]) -> Attempt {
    Attempt::new(what, Method::GET, path, allowed)
}

fn patch(what: &str, path: &str, body: Value, allowed: &'static [Caller]) -> Attempt {
    Attempt::new(what, Method::PATCH, path, allowed).body(body)
}

fn put(what: &str, path: &str, body: Value, allowed: &'static [Caller]) -> Attempt {
    Attempt::new(what, Method::PUT, path, allowed).body(body)
}

fn create(what: &str, path: &str, body: Value, allowed: &'static [Caller]) -> Attempt {
    Attempt::new(what, Method::POST, path, allowed).body(body)
}

fn delete(what: &str, path: &str, allowed: &'static [Caller]) -> Attempt {
    Attempt::new(what, Method::DELETE, path, allowed)
}

fn labels(key: &str, value: &str) -> Value {
    json!({"metadata": {"labels": {key: value}}})
}

fn annotations(key: &str, value: &str) -> Value {
    json!({"metadata": {"annotations": {key: value}}})
}

/// Returns the object with one annotation set.
fn annotated(object: &Value, key: &str, value: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["annotations"][key] = Value::from(value);
    object
}

/// Returns the object as a new one with this name.
fn renamed(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    let metadata = object["metadata"].as_object_mut().expect("an object has metadata");
    for key in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        metadata.remove(key);
    }
    metadata.insert("name".to_owned(), Value::from(name));
    object
}

/// Returns all attempts, in the order of the page.
pub fn attempts(objects: &Objects) -> Vec<Attempt> {
    let mut all = bootc_nodes();
    all.extend(admins_objects());
    all.extend(berths(objects));
    all.extend(nodes());
    all.extend(pods(objects));
    all.extend(secrets(objects));
    all.extend(installation());
    all.extend(cluster(objects));
    all
}

fn bootc_nodes() -> Vec<Attempt> {
    let status = json!({"status": {"bootID": "boot-1"}});
    let spec = json!({"spec": {"poolName": "elsewhere"}});
    let new = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": {"name": "n3"},
        "spec": {"poolName": "workers"},
    });
    let path = |rest: &str| format!("{BOOTC_NODES}{rest}");
    vec![
        get("get own BootcNode", &path("/n1"), BERTH),
        get("get another BootcNode", &path("/n2"), BERTH),
        get("list BootcNodes", BOOTC_NODES, BERTH),
        get("watch BootcNodes", &path("?watch=1&timeoutSeconds=1"), BERTH),
        patch("patch own BootcNode status", &path("/n1/status"), status.clone(), OWN).by_policy(),
        patch(
            "patch another BootcNode status",
            &path("/n2/status"),
            status,
            CONTROLLER,
        )
        .by_policy(),
        patch("patch own BootcNode spec", &path("/n1"), spec.clone(), CONTROLLER),
        patch("patch another BootcNode spec", &path("/n2"), spec, CONTROLLER),
        create("create a BootcNode", BOOTC_NODES, new, CONTROLLER),
        delete("delete own BootcNode", &path("/n1"), CONTROLLER),
        delete("delete another BootcNode", &path("/n2"), CONTROLLER),
        delete("delete all BootcNodes", BOOTC_NODES, NONE),
    ]
}

/// Pools and the fleet, which an admin writes.
fn admins_objects() -> Vec<Attempt> {
    let status = json!({"status": {"observedGeneration": 7}});
    let pool = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": {"name": "mine"},
        "spec": {"nodeSelector": {}, "image": {"ref": "example.com/evil:latest"}},
    });
    let image = json!({"spec": {"image": {"ref": "example.com/evil:latest"}}});
    let one = format!("{POOLS}/workers");
    let fleet = format!("{FLEETS}/cluster");
    vec![
        get("get a BootcNodePool", &one, CONTROLLER),
        get("list BootcNodePools", POOLS, CONTROLLER),
        patch("patch the image of a BootcNodePool", &one, image, CONTROLLER),
        patch(
            "patch a BootcNodePool status",
            &format!("{one}/status"),
            status.clone(),
            CONTROLLER,
        ),
        create("create a BootcNodePool", POOLS, pool, NONE),
        delete("delete a BootcNodePool", &one, NONE),
        get("get the BootcFleet", &fleet, CONTROLLER),
        patch("patch the BootcFleet", &fleet, json!({"spec": {"paused": true}}), NONE),
        patch(
            "patch the BootcFleet status",
            &format!("{fleet}/status"),
            status,
            CONTROLLER,
        ),
        delete("delete the BootcFleet", &fleet, NONE),
    ]
}

fn berths(objects: &Objects) -> Vec<Attempt> {
    let path = |rest: &str| format!("{LEASES}{rest}");
    let fill = annotated(&objects.own, "example.com/fill", "x");
    let epoch = annotated(&objects.own, "berth.dev/epoch", "9");
    let mut lead = objects.leader.clone();
    lead["spec"]["holderIdentity"] = Value::from("n1");
    let renew = json!({"spec": {"renewTime": "2030-01-01T00:00:00.000000Z"}});
    let beats = |rest: &str| format!("{NODE_LEASES}{rest}");
    vec![
        get("get own berth", &path("/workers-0"), BERTH),
        get("list berths", LEASES, BERTH),
        put("renew own berth", &path("/workers-0"), objects.own.clone(), OWN).by_policy(),
        put("commit own berth", &path("/workers-0"), objects.committed.clone(), OWN).by_policy(),
        put("fill own berth", &path("/workers-0"), fill, CONTROLLER).by_policy(),
        put("change the epoch of own berth", &path("/workers-0"), epoch, CONTROLLER).by_policy(),
        put(
            "renew another node's berth",
            &path("/workers-1"),
            objects.other.clone(),
            CONTROLLER,
        )
        .by_policy(),
        put(
            "take a closed berth",
            &path("/workers-2"),
            objects.stolen.clone(),
            CONTROLLER,
        )
        .by_policy(),
        put(
            "take the controller's leadership",
            &path("/berth-controller"),
            lead,
            CONTROLLER,
        )
        .by_policy(),
        patch("patch own berth", &path("/workers-0"), renew.clone(), CONTROLLER),
        patch("patch another node's berth", &path("/workers-1"), renew, CONTROLLER),
        create(
            "create a berth",
            LEASES,
            renamed(&objects.closed, "workers-9"),
            CONTROLLER,
        ),
        delete("delete own berth", &path("/workers-0"), CONTROLLER),
        delete("delete another node's berth", &path("/workers-1"), CONTROLLER),
        delete("delete all berths", LEASES, NONE),
        get("get own Node Lease", &beats("/n1"), KUBELET),
        put(
            "renew own Node Lease",
            &beats("/n1"),
            objects.heartbeat.clone(),
            KUBELET,
        ),
        put(
            "renew another Node Lease",
            &beats("/n2"),
            objects.other_heartbeat.clone(),
            NONE,
        ),
        delete("delete own Node Lease", &beats("/n1"), KUBELET),
        delete("delete another Node Lease", &beats("/n2"), NONE),
    ]
}

fn nodes() -> Vec<Attempt> {
    let path = |rest: &str| format!("{NODES}{rest}");
    let cordon = json!({"spec": {"unschedulable": true}});
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
    let new = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}});
    let taint = json!({"spec": {"taints": [{"key": "example.com/x", "effect": "NoSchedule"}]}});
    vec![
        get("get own Node", &path("/n1"), NODE_AND_CONTROLLER),
        get("get another Node", &path("/n2"), CONTROLLER),
        get("list Nodes", NODES, CONTROLLER),
        create("create another Node", NODES, new, NONE),
        patch("cordon own Node", &path("/n1"), cordon.clone(), NODE),
        patch("cordon another Node", &path("/n2"), cordon, NONE),
        patch("taint own Node", &path("/n1"), taint, NONE),
        patch(
            "annotate own Node",
            &path("/n1"),
            annotations("berth.dev/cordon", "{}"),
            NODE,
        ),
        patch(
            "annotate another Node",
            &path("/n2"),
            annotations("berth.dev/cordon", "{}"),
            NONE,
        ),
        patch(
            "label own Node, any key",
            &path("/n1"),
            labels("pool", "elsewhere"),
            NODE,
        ),
        patch(
            "label own Node, zone",
            &path("/n1"),
            labels("topology.kubernetes.io/zone", "z"),
            NODE,
        ),
        patch(
            "label own Node, control plane",
            &path("/n1"),
            labels("node-role.kubernetes.io/control-plane", ""),
            NONE,
        ),
        patch(
            "label own Node, restricted key",
            &path("/n1"),
            labels("node-restriction.kubernetes.io/pool", "x"),
            NONE,
        ),
        patch(
            "label own Node, berth.dev/exclude",
            &path("/n1"),
            labels("berth.dev/exclude", ""),
            NONE,
        )
        .by_policy(),
        patch(
            "label own Node, berth.dev/hold",
            &path("/n1"),
            labels("berth.dev/hold", ""),
            NONE,
        )
        .by_policy(),
        patch(
            "label own Node, berth.dev/platform-variant",
            &path("/n1"),
            labels("berth.dev/platform-variant", "v9"),
            NONE,
        )
        .by_policy(),
        patch("patch own Node status", &path("/n1/status"), addresses.clone(), NODE),
        patch("patch another Node status", &path("/n2/status"), addresses, NONE),
        delete("delete own Node", &path("/n1"), NONE),
        delete("delete another Node", &path("/n2"), NONE),
    ]
}

fn mirror(node: &str, objects: &Objects) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("static-{node}"), "namespace": "default",
            "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": node, "uid": objects.uid, "controller": true},
            ],
        },
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "example.com/none"}]},
    })
}

fn pods(objects: &Objects) -> Vec<Attempt> {
    let path = |rest: &str| format!("{PODS}{rest}");
    let evict = |name: &str| {
        json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "default"},
            "deleteOptions": {"dryRun": ["All"]},
        })
    };
    let status = json!({"status": {"phase": "Failed"}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mine", "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "example.com/none"}]},
    });
    vec![
        get("list all Pods", "/api/v1/pods", NONE),
        get(
            "list own node's Pods",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
            NODE,
        ),
        get(
            "list another node's Pods",
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn2",
            NONE,
        ),
        get("get a Pod of own node", &path("/app-n1"), KUBELET),
        get("get a Pod of another node", &path("/app-n2"), NONE),
        get(
            "get the controller's Pod on another node",
            &format!("{BERTH_PODS}/{}", objects.controller_pod),
            NONE,
        ),
        create("create a Pod", PODS, pod, NONE),
        create("create a mirror Pod of own node", PODS, mirror("n1", objects), KUBELET),
        create("create a mirror Pod of another node", PODS, mirror("n2", objects), NONE),
        create(
            "evict a Pod of own node",
            &path("/app-n1/eviction"),
            evict("app-n1"),
            NODE,
        ),
        create(
            "evict a Pod of another node",
            &path("/app-n2/eviction"),
            evict("app-n2"),
            NONE,
        ),
        delete("delete a Pod of own node", &path("/app-n1"), NODE),
        delete("delete a Pod of another node", &path("/app-n2"), NONE),
        delete("delete all Pods", PODS, NONE),
        patch(
            "patch the status of own node's Pod",
            &path("/app-n1/status"),
            status.clone(),
            KUBELET,
        ),
        patch(
            "patch the status of another node's Pod",
            &path("/app-n2/status"),
            status,
            NONE,
        ),
        patch("label a Pod of own node", &path("/app-n1"), labels("app", "web"), NONE),
        get(
            "list PodDisruptionBudgets",
            "/apis/policy/v1/poddisruptionbudgets",
            NONE,
        ),
    ]
}

fn token_for(kind: &str, pod: &Value) -> Value {
    let bound = if pod.is_null() { Value::Null } else { pod.clone() };
    json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": kind,
        "spec": {"audiences": [], "boundObjectRef": bound},
    })
}

/// Request for a token that is bound to a Node.
fn of_node(name: &str, uid: &str, seconds: u32) -> Value {
    let reference = json!({"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid});
    let mut request = token_for("TokenRequest", &reference);
    request["spec"]["expirationSeconds"] = seconds.into();
    request
}

fn secrets(objects: &Objects) -> Vec<Attempt> {
    let reference = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    let token = |account: &str| format!("{ACCOUNTS}/{account}/token");
    let mut elsewhere = of_node("n1", &objects.uid, DAY);
    elsewhere["spec"]["audiences"] = json!(["https://kubernetes.default.svc", "sts.amazonaws.com"]);
    let own = token_for("TokenRequest", &reference(&objects.agent_pod, &objects.agent_pod_uid));
    let other = token_for("TokenRequest", &reference("agent-n2", &objects.other_agent_pod_uid));
    let controller = token_for(
        "TokenRequest",
        &reference(&objects.controller_pod, &objects.controller_pod_uid),
    );
    let unbound = token_for("TokenRequest", &Value::Null);
    vec![
        get(
            "get a pull secret of berth-system",
            &format!("{SECRETS}/pull"),
            CONTROLLER,
        ),
        get("list the Secrets of berth-system", SECRETS, NONE),
        get(
            "get a Secret of kube-system",
            "/api/v1/namespaces/kube-system/secrets/other",
            NONE,
        ),
        get("list all Secrets", "/api/v1/secrets", NONE),
        get(
            "get a ConfigMap of kube-system",
            "/api/v1/namespaces/kube-system/configmaps/other",
            NONE,
        ),
        create(
            "request a token for own agent's Pod",
            &token("berth-agent"),
            own,
            KUBELET,
        ),
        create(
            "request a token for another agent's Pod",
            &token("berth-agent"),
            other,
            NONE,
        ),
        create(
            "request the controller's token",
            &token("berth-controller"),
            controller,
            NONE,
        ),
        create("request a token bound to nothing", &token("berth-agent"), unbound, NONE).by_policy(),
        create(
            "request a token bound to own Node",
            &token("berth-agent"),
            of_node("n1", &objects.uid, DAY),
            AGENT_SERVICE,
        )
        .by_policy(),
        create(
            "request a token bound to own Node, for a year",
            &token("berth-agent"),
            of_node("n1", &objects.uid, 365 * DAY),
            NONE,
        )
        .by_policy(),
        create(
            "request a token bound to own Node, for another audience",
            &token("berth-agent"),
            elsewhere,
            NONE,
        )
        .by_policy(),
        create(
            "request a token bound to another Node",
            &token("berth-agent"),
            of_node("n2", &objects.other_uid, DAY),
            NONE,
        )
        .by_policy(),
    ]
}

/// Objects that an attacker would change to get more rights.
fn installation() -> Vec<Attempt> {
    let role = json!({"metadata": {"labels": {"x": "y"}}});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "mine"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "berth-agent", "namespace": "berth-system"}],
    });
    let policies = format!("{ADMISSION}/validatingadmissionpolicies/berth-agent-own-berth");
    let bindings = format!("{ADMISSION}/validatingadmissionpolicybindings/berth-agent-own-berth");
    let workload = |rest: &str| format!("/apis/apps/v1/namespaces/berth-system/{rest}");
    vec![
        get("get an admission policy", &policies, NONE),
        patch("patch an admission policy", &policies, role.clone(), NONE),
        delete("delete an admission policy", &policies, NONE),
        delete("delete the binding of an admission policy", &bindings, NONE),
        patch(
            "patch a ClusterRole",
            &format!("{RBAC}/clusterroles/berth-agent"),
            role.clone(),
            NONE,
        ),
        create(
            "create a ClusterRoleBinding",
            &format!("{RBAC}/clusterrolebindings"),
            binding,
            NONE,
        ),
        patch("patch a CRD", CRD, role.clone(), NONE),
        patch(
            "patch the agents' DaemonSet",
            &workload("daemonsets/berth-agent"),
            role.clone(),
            NONE,
        ),
        patch(
            "patch the controller's Deployment",
            &workload("deployments/berth-controller"),
            role.clone(),
            NONE,
        ),
        patch("patch the namespace", "/api/v1/namespaces/berth-system", role, NONE),
        delete("delete the namespace", "/api/v1/namespaces/berth-system", NONE),
    ]
}

fn cluster(objects: &Objects) -> Vec<Attempt> {
    let event = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "x", "namespace": "default"},
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "berth.dev/x", "reportingInstance": "n1",
        "action": "Try", "reason": "Try", "type": "Normal", "note": "x",
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": objects.uid},
    });
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "x"}});
    let access = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "nodes"}},
    });
    let whoami = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    vec![
        create("create an Event", EVENTS, event, KUBELET_AND_CONTROLLER),
        get("list Events", EVENTS, CONTROLLER),
        get("list the API servers' EndpointSlices", slices, CONTROLLER),
        get("list Services", "/api/v1/services", KUBELET),
        create(
            "review a token",
            "/apis/authentication.k8s.io/v1/tokenreviews",
            review,
            KUBELET,
        ),
        create(
            "review another's access",
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            access,
            KUBELET,
        ),
        create(
            "ask who it is",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            whoami,
            AUTHENTICATED,
        ),
        get("get /readyz", "/readyz", ALL),
        get("get /metrics", "/metrics", NONE),
    ]
}
