//! The DaemonSet whose pods remove Berth from their hosts. Pure.
//!
//! It is made from the agents' DaemonSet, so it reaches the same hosts with the same image. Its pods mount less: the
//! kubelet would create the agent's directories on the host again.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::text::clean;

/// Argument of the agent's program that makes it remove Berth from its host.
const REMOVE: &str = "remove";
/// Variable with the file that the readiness probe checks.
const READY_FILE: &str = "BERTH_READY_FILE";
/// Directories of the host that the removal needs: the system bus, and the output of host commands.
const MOUNTED: [&str; 2] = ["/run", "/run/berth"];
/// A container that failed so often will not succeed without help.
const HOPELESS: u64 = 4;

/// True if the pods of this DaemonSet, or this pod, remove Berth from their hosts. `spec`: of the pod.
fn removes(spec: &Value) -> bool {
    spec["containers"][0]["args"][0] == REMOVE
}

/// True if the pods of this DaemonSet remove Berth from their hosts.
pub(super) fn is_removal(set: &Value) -> bool {
    removes(&set["spec"]["template"]["spec"])
}

/// Returns the DaemonSet with another pod template: its pods remove Berth from their hosts, and are ready when they
/// have succeeded. All hosts do this at the same time.
pub(super) fn removal(set: &Value) -> Result<Value> {
    let mut set = set.clone();
    let name = set["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let spec = &mut set["spec"]["template"]["spec"];
    let containers = spec["containers"].as_array().map(Vec::len);
    ensure!(
        containers == Some(1),
        "DaemonSet {name} has several containers, or none, so its pods cannot be changed to remove Berth from their \
         hosts: remove the other containers, or run berth-agent remove on each host and delete the DaemonSet"
    );
    let container = &mut spec["containers"][0];
    let root = option(container, "--host-root").unwrap_or_else(|| "/".to_owned());
    let mut arguments = vec![REMOVE.to_owned(), format!("--host-root={root}")];
    if let Some(bus) = option(container, "--bus") {
        arguments.push(format!("--bus={bus}"));
    }
    // A command of its own may have the agent's options.
    if let Some(program) = container["command"][0].as_str().map(str::to_owned) {
        container["command"] = json!([program]);
    }
    container["args"] = json!(arguments);
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    if let Some(fields) = container.as_object_mut() {
        fields.remove("livenessProbe");
        fields.remove("startupProbe");
        fields.remove("ports");
    }
    if container["readinessProbe"].is_object() {
        container["readinessProbe"]["periodSeconds"] = json!(2);
    }
    keep_mounts(container, &root);
    let mounted = mounted(container);
    if let Some(volumes) = spec["volumes"].as_array_mut() {
        volumes.retain(|volume| volume["name"].as_str().is_some_and(|name| mounted.contains(name)));
    }
    set["spec"]["minReadySeconds"] = json!(0);
    set["spec"]["updateStrategy"] =
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "100%", "maxSurge": 0 } });
    Ok(set)
}

/// Returns the value of an option in the command line of a container: `--option=value` or `--option value`.
fn option(container: &Value, option: &str) -> Option<String> {
    let mut words = vec![];
    for field in ["command", "args"] {
        words.extend(
            container[field]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str),
        );
    }
    for (at, word) in words.iter().enumerate() {
        if *word == option {
            return words.get(at + 1).map(|value| (*value).to_owned());
        }
        if let Some(value) = word.strip_prefix(option).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.to_owned());
        }
    }
    None
}

fn keep_mounts(container: &mut Value, root: &str) {
    let root = root.trim_end_matches('/');
    let mut kept: BTreeSet<String> = MOUNTED.iter().map(|path| format!("{root}{path}")).collect();
    for variable in container["env"].as_array().into_iter().flatten() {
        if variable["name"] == READY_FILE
            && let Some((directory, _)) = variable["value"].as_str().and_then(|file| file.rsplit_once('/'))
        {
            kept.insert(directory.to_owned());
        }
    }
    if let Some(mounts) = container["volumeMounts"].as_array_mut() {
        mounts.retain(|mount| mount["mountPath"].as_str().is_some_and(|path| kept.contains(path)));
    }
}

fn mounted(container: &Value) -> BTreeSet<String> {
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    mounts
        .filter_map(|mount| mount["name"].as_str().map(str::to_owned))
        .collect()
}

/// Progress of the removal on the hosts of a DaemonSet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hosts {
    /// Nodes whose hosts are done.
    pub(super) done: BTreeSet<String>,
    /// Other nodes, and why they are not done.
    pub(super) waiting: BTreeMap<String, String>,
    /// Nodes of `waiting` whose pods failed again and again.
    pub(super) failed: BTreeSet<String>,
    /// Number of nodes whose pods do not exist yet.
    pub(super) missing: u64,
}

impl Hosts {
    /// True if nothing remains to wait for.
    pub(super) fn are_done(&self) -> bool {
        self.waiting.is_empty() && self.missing == 0
    }
}

/// Returns the progress on the hosts of this DaemonSet. `left`: nodes that are not waited for.
pub(super) fn hosts(set: &Value, pods: &[Value], left: &BTreeSet<String>) -> Hosts {
    let mut hosts = Hosts::default();
    for pod in pods {
        let node = node_of(pod);
        if left.contains(&node) {
            continue;
        }
        match why_not_done(pod) {
            None => {
                hosts.done.insert(node);
            }
            Some(why) => {
                if restarts(pod) >= HOPELESS {
                    hosts.failed.insert(node.clone());
                }
                hosts.waiting.insert(node, why);
            }
        }
    }
    // An old pod that does not end may still be there beside its successor.
    hosts.waiting.retain(|node, _| !hosts.done.contains(node));
    let status = &set["status"];
    let is_current = status["observedGeneration"].as_i64() >= set["metadata"]["generation"].as_i64();
    let wanted = status["desiredNumberScheduled"].as_u64().unwrap_or_default();
    let known = hosts.done.len() + hosts.waiting.len() + left.len();
    hosts.missing = wanted.saturating_sub(u64::try_from(known).unwrap_or(u64::MAX));
    if !is_current {
        hosts.missing = hosts.missing.max(1);
    }
    hosts
}

/// Returns the node of a pod: where the pod is, or the only node that the DaemonSet's controller lets it run on.
fn node_of(pod: &Value) -> String {
    let spec = &pod["spec"];
    let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0/values/0";
    let name = spec["nodeName"].as_str().or_else(|| spec.pointer(required)?.as_str());
    clean(name.unwrap_or_default())
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"]
        .as_u64()
        .unwrap_or_default()
}

/// Returns why the pod has not removed Berth from its host yet; `None` if it has.
fn why_not_done(pod: &Value) -> Option<String> {
    let name = clean(pod["metadata"]["name"].as_str().unwrap_or_default());
    if !removes(&pod["spec"]) {
        return Some(format!("the agent's pod {name} has not ended yet"));
    }
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    for condition in conditions {
        if condition["type"] == "Ready" && condition["status"] == "True" {
            return None;
        }
    }
    let container = &pod["status"]["containerStatuses"][0];
    for state in ["state", "lastState"] {
        let message = container[state]["terminated"]["message"].as_str().unwrap_or_default();
        if let Some(line) = message.lines().rev().find(|line| !line.trim().is_empty()) {
            return Some(clean(line));
        }
    }
    let phase = clean(pod["status"]["phase"].as_str().unwrap_or("Pending"));
    match container["state"]["waiting"]["reason"].as_str() {
        Some(reason) => Some(format!("pod {name} is {phase}: {}", clean(reason))),
        None => Some(format!("pod {name} is {phase} and not ready yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> Value {
        json!({
            "metadata": { "name": "berth-agent", "generation": 2 },
            "spec": { "minReadySeconds": 30, "template": { "spec": {
                "containers": [{
                    "name": "agent", "image": "agent:1",
                    "args": ["--node-name=$(NODE_NAME)", "--host-root=/host", "--bus", "unix:path=/b"],
                    "env": [{ "name": "BERTH_READY_FILE", "value": "/ready/turned" }],
                    "readinessProbe": { "exec": { "command": ["/usr/bin/berth-agent", "ready"] }, "periodSeconds": 20 },
                    "volumeMounts": [
                        { "name": "host-run", "mountPath": "/host/run" },
                        { "name": "run", "mountPath": "/host/run/berth" },
                        { "name": "memory", "mountPath": "/host/var/lib/berth" },
                        { "name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" },
                        { "name": "ready", "mountPath": "/ready" },
                    ],
                }],
                "volumes": [{ "name": "host-run" }, { "name": "run" }, { "name": "memory" }, { "name": "token" }, { "name": "ready" }],
            } } },
            "status": { "observedGeneration": 2, "desiredNumberScheduled": 2 },
        })
    }

    fn pod(node: &str, args: Value, status: Value) -> Value {
        json!({
            "metadata": { "name": format!("berth-agent-{node}") },
            "spec": { "nodeName": node, "containers": [{ "args": args }] }, "status": status,
        })
    }

    #[test]
    fn the_pods_of_the_removal_see_little_of_their_hosts() {
        assert!(!is_removal(&set()));
        let removal = removal(&set()).unwrap();
        assert!(is_removal(&removal));
        let spec = &removal["spec"]["template"]["spec"];
        let container = &spec["containers"][0];
        assert_eq!(
            container["args"],
            json!(["remove", "--host-root=/host", "--bus=unix:path=/b"])
        );
        assert_eq!(container["image"], "agent:1");
        assert_eq!(
            spec["volumes"],
            json!([{ "name": "host-run" }, { "name": "run" }, { "name": "ready" }])
        );
        assert_eq!(container["volumeMounts"].as_array().map(Vec::len), Some(3));
        assert_eq!(
            removal["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"],
            "100%"
        );
    }

    #[test]
    fn a_set_with_other_containers_is_refused() {
        let mut set = set();
        set["spec"]["template"]["spec"]["containers"] = json!([{}, {}]);
        let error = removal(&set).unwrap_err().to_string();
        assert!(error.contains("berth-agent remove on each host"), "{error}");
    }

    #[test]
    fn each_host_that_is_not_done_is_named_with_its_reason() {
        let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        let failed = json!({ "containerStatuses": [{
            "restartCount": 5, "state": { "waiting": { "reason": "CrashLoopBackOff" } },
            "lastState": { "terminated": { "message": "a\nrm: cannot remove: Read-only file system\n" } },
        }] });
        let none = BTreeSet::new();
        let pods = [
            pod("n1", json!(["remove"]), ready.clone()),
            pod("n2", json!(["remove"]), failed),
        ];
        let found = hosts(&set(), &pods, &none);
        assert!(!found.are_done());
        assert_eq!(found.done, BTreeSet::from(["n1".to_owned()]));
        assert_eq!(found.waiting["n2"], "rm: cannot remove: Read-only file system");
        assert!(found.failed.contains("n2"));
        let left = BTreeSet::from(["n2".to_owned()]);
        assert!(hosts(&set(), &pods, &left).are_done());
        // The ready pod of the agent is not the ready pod of the removal.
        let pods = [pod("n1", json!(["--node-name=n1"]), ready)];
        let found = hosts(&set(), &pods, &none);
        assert!(found.waiting["n1"].contains("has not ended yet"), "{found:?}");
        assert_eq!(found.missing, 1, "n2 has no pod yet");
    }

    #[test]
    fn an_old_status_says_nothing() {
        let mut set = set();
        set["status"] = json!({ "observedGeneration": 1, "desiredNumberScheduled": 0 });
        assert!(!hosts(&set, &[], &BTreeSet::new()).are_done());
        set["status"] = json!({ "observedGeneration": 2, "desiredNumberScheduled": 0 });
        assert!(hosts(&set, &[], &BTreeSet::new()).are_done(), "no host has an agent");
    }

    #[test]
    fn a_pod_that_is_not_scheduled_belongs_to_its_node() {
        let mut pod = pod("", json!(["remove"]), json!({ "phase": "Pending" }));
        pod["spec"]["nodeName"] = Value::Null;
        pod["spec"]["affinity"] = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n7"] }] }],
        } } });
        assert_eq!(node_of(&pod), "n7");
    }
}
