//! A test cluster that is described by facts: objects that admins and kubelets write, the state of the hosts and the
//! registry, and past events. The agent's and the controller's own functions compute the statuses from these facts.

mod agent;
mod controller;
pub mod doctor;
mod facts;

use berth_api::berth::{Berth, ClosedReason, Offer, Outcome, Refused, lease};
use berth_api::fleet::BootcFleet;
use berth_api::pool::{BootcNodePool, DEFAULT_REBOOT_TIMEOUT, Target};
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName, keys};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kubectl_berth::Snapshot;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use facts::Cluster;
use facts::{BerthFacts, NodeFacts, PoolFacts, Ready};

const BOOT: &str = "boot-1";
const NEXT_BOOT: &str = "boot-2";
const HOUR: SignedDuration = SignedDuration::from_hours(1);
const REPOSITORY: &str = "quay.io/example/os";

struct World<'a> {
    facts: &'a Cluster,
    now: Timestamp,
    objects: Snapshot,
}

impl Cluster {
    /// Returns the objects of the cluster at this time.
    pub fn snapshot(&self, now: Timestamp) -> Snapshot {
        let objects = Snapshot {
            pools: self
                .pools
                .iter()
                .map(|(name, pool)| self.pool(name, pool, now))
                .collect(),
            fleet: self.fleet.as_ref().map(|_| self.fleet()),
            leases: self.raw.leases.iter().cloned().map(Into::into).collect(),
            notes: self.notes.clone(),
            fleet_unread: self.fleet_unread.clone(),
            only: self.only.clone(),
            ..Snapshot::default()
        };
        let mut world = World {
            facts: self,
            now,
            objects,
        };
        world.join();
        world.lease();
        for since in [true, false] {
            world.report(since);
            world.control(since);
        }
        // A last round: the agents report the controller's reasons to wait, and the controller reads these reports.
        world.report(false);
        world.control(false);
        world.edit();
        if self.nodes_unread {
            world.objects.nodes.clear();
        }
        world.objects
    }

    fn pool(&self, name: &str, facts: &PoolFacts, now: Timestamp) -> BootcNodePool {
        let reference = facts.reference();
        let mut spec = json!({"nodeSelector": {"matchLabels": {"role": name}}, "image": {"ref": reference}});
        if facts.spec.get("nodeSelector").is_some() {
            spec["nodeSelector"] = json!({});
        }
        merge(&mut spec, &facts.spec);
        let mut status = json!({});
        if facts.target > 0 {
            status["target"] = json!(self.image(facts.target, facts.target_ref.as_deref().unwrap_or(&reference)));
        }
        merge(&mut status, &facts.was);
        let annotations = facts
            .poll
            .as_ref()
            .map(|token| json!({keys::ANNOTATION_POLL_REQUESTED_AT: token}));
        let created = now - facts.created;
        object(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1, "creationTimestamp": created,
                "annotations": annotations},
            "spec": spec, "status": status,
        }))
    }

    fn fleet(&self) -> BootcFleet {
        let facts = self.fleet.as_ref().unwrap();
        object(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet",
            "metadata": {"name": "cluster", "uid": "uid-fleet", "generation": 1, "annotations": facts.annotations},
            "spec": facts.spec, "status": {"heldMachines": facts.held},
        }))
    }

    fn image(&self, number: u8, reference: &str) -> Target {
        let platforms = json!([{"architecture": "amd64", "digest": manifest(number)}]);
        let index: String = format!("sha256:{}", format!("a{number}").repeat(32));
        let mut image = json!({"image": reference, "digest": index, "version": self.version(number), "platforms": platforms,
            "metadata": {}});
        if let Some(more) = self.images.get(&number) {
            merge(&mut image, more);
        }
        object(image)
    }

    fn version(&self, number: u8) -> String {
        let given = self.images.get(&number).and_then(|image| image["version"].as_str());
        given.map_or_else(|| format!("v{number}"), str::to_owned)
    }

    fn node(&self, name: &str, facts: &NodeFacts, has_joined: bool, now: Timestamp) -> Node {
        let mut labels = facts.labels.clone();
        labels.entry("role".to_owned()).or_insert_with(|| facts.pool.clone());
        if !has_joined {
            labels.remove(keys::LABEL_EXCLUDE);
        }
        let berth = self.cordoned_under(name).filter(|_| has_joined);
        let annotations = berth.map(|berth| json!({keys::ANNOTATION_CORDON: json!({"berth": berth}).to_string()}));
        let is_cordoned = facts.cordoned || annotations.is_some();
        let (reason, message) = match facts.ready {
            Ready::True => ("KubeletReady", "kubelet is posting ready status"),
            Ready::False => ("KubeletNotReady", "container runtime is down"),
            Ready::Unknown => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
        };
        let ready = json!({
            "type": "Ready", "status": facts.ready, "reason": reason, "message": message,
            "lastTransitionTime": now - facts.kubelet_since,
        });
        let mut conditions = vec![ready];
        conditions.extend(facts.conditions.iter().cloned());
        let position = self.nodes.keys().position(|node| node == name).unwrap();
        let address = facts
            .address
            .clone()
            .unwrap_or_else(|| format!("10.0.0.{}", position + 1));
        object(json!({
            "metadata": {"name": name, "uid": uid(name), "labels": labels, "annotations": annotations,
                "creationTimestamp": now - SignedDuration::from_hours(1000 - i64::try_from(position).unwrap())},
            "spec": {"unschedulable": is_cordoned},
            "status": {
                "conditions": conditions, "addresses": [{"type": "InternalIP", "address": address}],
                "nodeInfo": {"architecture": facts.architecture(), "bootID": self.boot_id(name), "containerRuntimeVersion": "",
                    "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                    "operatingSystem": "linux", "osImage": "", "systemUUID": ""},
            },
        }))
    }

    /// Returns the name of the berth of the node's current turn, if the node is cordoned for that turn.
    fn cordoned_under(&self, name: &str) -> Option<String> {
        for (pool, berths) in &self.berths {
            let mut numbered = berths.iter().enumerate();
            let held = numbered.find(|(_, berth)| berth.is_cordoned() && berth.node() == Some(name));
            if let Some((number, _)) = held {
                return Some(format!("{pool}-{number}"));
            }
        }
        None
    }

    fn boot_id(&self, name: &str) -> &'static str {
        let berths = self.berths.values().flatten();
        let has_rebooted = self.nodes.get(name).is_some_and(|node| node.rebooted)
            || berths
                .clone()
                .any(|berth| matches!(berth, BerthFacts::Proven(node) if node == name));
        if has_rebooted { NEXT_BOOT } else { BOOT }
    }
}

impl World<'_> {
    /// Adds the Leases of each pool: the berths in the facts, then new berths up to the pool's capacity.
    fn lease(&mut self) {
        let members = self.seen().1;
        for pool in self.objects.pools.clone() {
            let name = PoolName::new(pool.name_any());
            let facts = self.facts.berths.get(name.as_str()).map_or(&[][..], Vec::as_slice);
            let capacity = pool.spec.capacity(members.members(&name).len());
            let raw = self
                .facts
                .raw
                .leases
                .iter()
                .map(ResourceExt::name_any)
                .collect::<Vec<_>>();
            for number in 0..capacity.max(facts.len()) {
                let berth = Berth::new(name.clone(), u32::try_from(number).unwrap(), 1);
                if raw.contains(&berth.name()) {
                    continue;
                }
                let facts = facts.get(number).unwrap_or(&BerthFacts::New);
                let holder = facts.node().and_then(|node| self.facts.nodes.get(node));
                let ago = holder.map_or(HOUR, |node| node.since);
                let berth = moved(&berth, facts).unwrap();
                self.objects.leases.push(written(&berth, self.now - ago, number).into());
            }
        }
    }

    /// Applies the changes of specs that the controller has not read.
    fn edit(&mut self) {
        for pool in &mut self.objects.pools {
            let Some(edit) = self
                .facts
                .pools
                .get(&pool.name_any())
                .and_then(|facts| facts.edit.as_ref())
            else {
                continue;
            };
            let mut spec = serde_json::to_value(&pool.spec).unwrap();
            merge(&mut spec, &edit.spec);
            pool.spec = object(spec);
            pool.metadata.generation = Some(2);
            let time = self.now - edit.ago;
            pool.metadata.managed_fields = Some(vec![object(json!({
                "manager": "kubectl-edit", "operation": "Update", "apiVersion": "berth.dev/v1alpha1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {}},
                "time": time,
            }))]);
        }
        if let Some((fleet, facts)) = self.objects.fleet.as_mut().zip(self.facts.fleet.as_ref()) {
            let mut spec = serde_json::to_value(&fleet.spec).unwrap();
            merge(&mut spec, &json!(facts.edit));
            fleet.spec = object(spec);
        }
    }
}

/// Moves a new berth through its states until it matches these facts.
fn moved(new: &Berth, facts: &BerthFacts) -> Result<Berth, Refused> {
    let Some(node) = facts.node() else {
        return Ok(new.clone());
    };
    let boot = BootId::from(BOOT);
    let is_former = matches!(facts, BerthFacts::Former(_));
    let uid = if is_former {
        format!("uid-former-{node}")
    } else {
        uid(node)
    };
    let (node, uid) = (NodeName::from(node), NodeUid::new(uid));
    let offered = new.offered(Offer {
        node: node.clone(),
        uid: uid.clone(),
        target: manifest(2),
        open_until: None,
    })?;
    if matches!(facts, BerthFacts::Offered(_)) {
        return Ok(offered);
    }
    let taken = offered.taken(&node, &uid, Some(manifest(1)), boot.clone())?;
    match facts {
        BerthFacts::Taken(_) => return Ok(taken),
        BerthFacts::TimedOut(_) => return taken.releasing(Outcome::DrainTimeout, boot),
        _ => {}
    }
    let committed = taken.committed(boot)?;
    let outcome = match facts {
        BerthFacts::Failed(_) => Outcome::Failed,
        _ => Outcome::Updated,
    };
    match facts {
        BerthFacts::Proven(_) => committed.releasing(outcome, BootId::from(NEXT_BOOT)),
        BerthFacts::Released(_) | BerthFacts::Failed(_) => {
            committed.releasing(outcome, BootId::from(NEXT_BOOT))?.given_back()
        }
        BerthFacts::Excluded(_) => committed.ended(ClosedReason::Excluded),
        BerthFacts::Admin(_) => committed.ended(ClosedReason::Admin),
        _ => Ok(committed),
    }
}

/// Returns the berth's Lease, as the API server stores it.
fn written(berth: &Berth, at: Timestamp, number: usize) -> Lease {
    let mut lease = lease::create(berth, "berth-system", DEFAULT_REBOOT_TIMEOUT, at);
    lease.metadata.uid = Some(format!("uid-lease-{}", berth.name()));
    lease.metadata.resource_version = Some((10 + number).to_string());
    lease
}

fn manifest(number: u8) -> Digest {
    format!("sha256:{}", number.to_string().repeat(64)).parse().unwrap()
}

fn uid(node: &str) -> String {
    format!("uid-{node}")
}

/// Decodes an object from JSON; fields that are null count as absent.
fn object<T: DeserializeOwned>(mut json: Value) -> T {
    drop_nulls(&mut json);
    serde_json::from_value(json).unwrap()
}

fn drop_nulls(json: &mut Value) {
    if let Value::Object(fields) = json {
        fields.retain(|_, value| !value.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

fn merge(json: &mut Value, more: &Value) {
    match (json, more) {
        (Value::Object(fields), Value::Object(more)) => {
            for (key, value) in more {
                merge(fields.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (json, more) => *json = more.clone(),
    }
}
