//! Tests of the judge with made-up histories. The judge must report each violation if the history has it, and must not
//! report it otherwise.

use std::time::Duration;

use berth_api::berth::{Berth, ClosedReason, HoldPhase, Offer, Outcome, lease};
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Evidence, Truth};
use crate::audit::Record;
use crate::hosts::{HostChange, HostEvent};

mod capacity;
mod liars;
mod logs;
mod order;
mod protocol;
mod quorum;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000 + second).unwrap()
}

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

/// A made-up history, with one event a second.
#[derive(Clone, Default)]
struct World {
    audit: Vec<Record>,
    hosts: Vec<HostEvent>,
    now: i64,
    berth: Option<Berth>,
    fleet: Option<usize>,
    liars: Vec<String>,
    earlier_liars: Vec<(String, Timestamp)>,
}

const AGENT: &str = "berth-agent";
const CONTROLLER: &str = "berth-controller";
const ADMIN: &str = "kubectl";

impl World {
    fn write(
        &mut self,
        program: &str,
        verb: &str,
        target: &str,
        name: &str,
        request: Value,
        mut response: Value,
    ) -> &mut Self {
        self.now += 1;
        response["metadata"]["resourceVersion"] = json!(self.now.to_string());
        let (resource, subresource) = target.split_once('/').unwrap_or((target, ""));
        self.audit.push(Record {
            received: at(self.now),
            at: at(self.now),
            stage: "ResponseComplete".to_owned(),
            audit_id: String::new(),
            user: match program {
                AGENT => "system:node:n1".to_owned(),
                CONTROLLER => "system:serviceaccount:berth-system:berth-controller".to_owned(),
                other => other.to_owned(),
            },
            node_claim: None,
            // As in a real log: the controller sends no user agent.
            user_agent: if program == CONTROLLER {
                String::new()
            } else {
                format!("{program}/1")
            },
            verb: verb.to_owned(),
            group: String::new(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: String::new(),
            name: name.to_owned(),
            code: 200,
            message: String::new(),
            refused_by_own_rules: false,
            uri: String::new(),
            request: Some(request),
            response: Some(response),
        });
        self
    }

    fn berth(&mut self, program: &str, berth: Berth) -> &mut Self {
        let object = json!(lease::create(&berth, "berth-system", Duration::from_secs(900), at(0)));
        let mut request = object.clone();
        let last = self
            .audit
            .iter()
            .rfind(|r| r.resource == "leases" && r.name == berth.name());
        let last = last.and_then(|r| r.response.clone()).unwrap_or_default();
        request["metadata"]["resourceVersion"] = last["metadata"]["resourceVersion"].clone();
        self.berth = Some(berth.clone());
        self.write(program, "update", "leases", &berth.name(), request, object)
    }

    fn next(&mut self, program: &str, change: impl FnOnce(&Berth) -> Berth) -> &mut Self {
        let berth = change(self.berth.as_ref().unwrap());
        self.berth(program, berth)
    }

    fn node(&mut self, program: &str, verb: &str, name: &str, unschedulable: bool, ours: bool) -> &mut Self {
        let record = json!({ "berth.dev/cordon": r#"{"berth":"workers-0","unschedulable":false}"# });
        let annotations = if ours { record } else { json!({}) };
        let object = json!({
            "metadata": { "name": name, "uid": format!("uid-{name}"), "annotations": annotations },
            "spec": { "unschedulable": unschedulable },
        });
        self.write(
            program,
            verb,
            "nodes",
            name,
            json!({ "spec": { "unschedulable": unschedulable } }),
            object,
        )
    }

    fn member(&mut self, name: &str, pool: &str) -> &mut Self {
        let object =
            json!({ "metadata": { "name": name }, "spec": { "nodeUID": format!("uid-{name}"), "poolName": pool } });
        self.write(CONTROLLER, "patch", "bootcnodes", name, json!({}), object)
    }

    fn capacity(&mut self, total: u64) -> &mut Self {
        let status = json!({ "status": { "berths": { "total": total } }, "metadata": {} });
        self.write(
            CONTROLLER,
            "patch",
            "bootcnodepools/status",
            "workers",
            json!({}),
            status,
        )
    }

    /// Publishes an image for a node in a pool.
    fn wants(&mut self, name: &str, pool: &str, n: u8) -> &mut Self {
        let image = json!({ "digest": digest(n).to_string() });
        let spec = json!({ "nodeUID": format!("uid-{name}"), "poolName": pool, "image": image });
        let object = json!({ "metadata": { "name": name }, "spec": spec });
        self.write(CONTROLLER, "patch", "bootcnodes", name, json!({}), object)
    }

    /// Writes a pool's spec: its nodes are updated after the pools in `after`.
    fn pool(&mut self, name: &str, after: &[&str]) -> &mut Self {
        let object = json!({ "metadata": { "name": name }, "spec": { "rollout": { "after": after } } });
        self.write(ADMIN, "patch", "bootcnodepools", name, json!({}), object)
    }

    fn pass(&mut self, seconds: i64) -> &mut Self {
        self.now += seconds;
        self
    }

    fn host(&mut self, change: HostChange) -> &mut Self {
        self.of("n1", change)
    }

    /// Adds an event of the host with this name.
    fn of(&mut self, host: &str, change: HostChange) -> &mut Self {
        self.now += 1;
        self.hosts.push(HostEvent {
            at: at(self.now),
            host: host.to_owned(),
            change,
        });
        self
    }

    fn up(&mut self, boot: &str, n: u8) -> &mut Self {
        let (boot_id, digest) = (boot.to_owned(), digest(n).to_string());
        self.host(HostChange::Up {
            boot_id,
            digest,
            version: n.to_string(),
        })
    }

    fn ready(&mut self, boot: &str) -> &mut Self {
        self.host(HostChange::Ready {
            boot_id: boot.to_owned(),
        })
    }

    fn judged(&self) -> Vec<String> {
        self.judged_with(SignedDuration::ZERO)
    }

    fn judged_with(&self, lag: SignedDuration) -> Vec<String> {
        let capacity = [("workers".to_owned(), 1), ("spare".to_owned(), 1)].into();
        let truth = Truth {
            hosts: &self.hosts,
            audit: &self.audit,
            excused: &[],
            swapped: &[],
            liars: &self.liars,
            earlier_liars: &self.earlier_liars,
            capacity,
            fleet: self.fleet,
            evidence: &Evidence::of_harness(),
            lag,
        };
        truth.violations().iter().map(ToString::to_string).collect()
    }

    /// Asserts that a violation begins with `invariant` and contains `what`.
    fn blamed(&self, invariant: &str, what: &str) {
        let said = self.judged();
        let mut of_invariant = said.iter().filter(|v| v.starts_with(invariant));
        assert!(
            of_invariant.any(|v| v.contains(what)),
            "{invariant} … {what}: {said:#?}"
        );
    }

    /// Returns a world with a pool of one berth. The berth is offered to n1, which runs image 1, for image 2.
    fn offered() -> Self {
        let mut world = Self::default();
        world.offers();
        world
    }

    /// Adds the offer of [`World::offered`] to a world that already has records.
    fn offers(&mut self) -> &mut Self {
        self.up("b1", 1)
            .ready("b1")
            .capacity(1)
            .node(ADMIN, "create", "n1", false, false);
        self.berth(CONTROLLER, new(0))
            .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
    }

    fn taken() -> Self {
        let mut world = Self::offered();
        world.next(AGENT, take);
        world
    }

    fn committed() -> Self {
        let mut world = Self::taken();
        world
            .node(AGENT, "patch", "n1", true, true)
            .next(AGENT, |b| b.committed(BootId::from("b1")).unwrap());
        world
    }

    fn rebooted() -> Self {
        let mut world = Self::committed();
        world.host(HostChange::Down).up("b2", 2);
        world
    }

    fn releasing() -> Self {
        let mut world = Self::rebooted();
        world
            .ready("b2")
            .next(AGENT, |b| b.releasing(Outcome::Updated, BootId::from("b2")).unwrap());
        world
    }

    fn given_back() -> Self {
        let mut world = Self::releasing();
        world
            .node(AGENT, "patch", "n1", false, false)
            .next(AGENT, |b| b.given_back().unwrap());
        world
    }
}

fn new(index: u32) -> Berth {
    Berth::new(PoolName::from("workers"), index, 7)
}

fn offer(node: &str, target: u8) -> Offer {
    let uid = NodeUid::from(format!("uid-{node}").as_str());
    Offer {
        node: NodeName::from(node),
        uid,
        target: digest(target),
        open_until: None,
    }
}

fn take(berth: &Berth) -> Berth {
    let (node, uid) = (NodeName::from("n1"), NodeUid::from("uid-n1"));
    berth.taken(&node, &uid, Some(digest(1)), BootId::from("b1")).unwrap()
}

#[test]
fn a_correct_turn_has_no_violation() {
    let world = World::given_back();
    assert_eq!(world.judged(), Vec::<String>::new());
    // A new agent's fence rewrites the berth unchanged.
    let mut world = World::committed();
    world.next(AGENT, Berth::clone);
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_host_is_cordoned_and_drained_first() {
    fn schedulable(cordoned: bool) -> World {
        let mut world = World::committed();
        world.node(ADMIN, "patch", "n1", cordoned, cordoned);
        world.now += 20;
        world.host(HostChange::Down).up("b2", 2);
        world
    }
    schedulable(false).blamed("I1", "its Node had been schedulable since");
    assert_eq!(schedulable(true).judged(), Vec::<String>::new());

    // The agent was killed before the answer, so its cordon may have been stored, unless a later write shows that it was not.
    fn unanswered(later: Option<&str>) -> World {
        let mut world = World::committed();
        world.node(ADMIN, "patch", "n1", false, false);
        world.now += 5;
        world.node(AGENT, "patch", "n1", true, true);
        let lost = world.audit.last_mut().unwrap();
        (lost.code, lost.response) = (504, None);
        world.now += 5;
        if let Some(target) = later {
            let node = json!({ "metadata": { "name": "n1", "uid": "uid-n1" }, "spec": {} });
            world.write(ADMIN, "patch", target, "n1", json!({}), node);
        }
        world.now += 20;
        world.host(HostChange::Down).up("b2", 2);
        world
    }
    assert_eq!(unanswered(None).judged(), Vec::<String>::new());
    for target in ["nodes", "nodes/status"] {
        unanswered(Some(target)).blamed("I1", "its Node had been schedulable since");
    }

    fn with_pod(moved: bool, drain: Value) -> World {
        let mut world = World::taken();
        let drained = json!({ "metadata": { "name": "n1" }, "spec": { "poolName": "workers", "drain": drain } });
        world.write(CONTROLLER, "patch", "bootcnodes", "n1", json!({}), drained);
        let owner = json!([{ "kind": "ReplicaSet", "name": "web" }]);
        let pod = json!({ "metadata": { "name": "web-1", "ownerReferences": owner } });
        let binding = json!({ "target": { "kind": "Node", "name": "n1" } });
        world
            .write(ADMIN, "create", "pods", "", json!({}), pod)
            .write(ADMIN, "create", "pods/binding", "web-1", binding, json!({}))
            .node(AGENT, "patch", "n1", true, true);
        if moved {
            world.write(ADMIN, "delete", "pods", "web-1", json!({}), json!({}));
        }
        world.now += 20;
        world.next(AGENT, |b| b.committed(BootId::from("b1")).unwrap());
        world.host(HostChange::Down).up("b2", 2);
        world
    }
    with_pod(false, json!({})).blamed("I1", "while the pod /web-1 was still on the host");
    assert_eq!(with_pod(true, json!({})).judged(), Vec::<String>::new());
    assert_eq!(
        with_pod(false, json!({ "enabled": false })).judged(),
        Vec::<String>::new()
    );
}

/// A kubelet that is away ends no pods, so its host may reboot with pods on it: the reboot brings the kubelet back. If
/// a kubelet lost the API server only for a moment, it still ends its pods, so the host must not reboot with them.
#[test]
fn pods_of_an_absent_kubelet_may_stay() {
    fn world(evicted_before: i64, not_ready_before: i64, ready_before: Option<i64>) -> World {
        let mut world = World::taken();
        let owner = json!([{ "kind": "ReplicaSet", "name": "web" }]);
        let spec = json!({ "terminationGracePeriodSeconds": 60 });
        let pod = json!({ "metadata": { "name": "web-1", "ownerReferences": owner }, "spec": spec });
        let binding = json!({ "target": { "kind": "Node", "name": "n1" } });
        world
            .write(ADMIN, "create", "pods", "", json!({}), pod)
            .write(ADMIN, "create", "pods/binding", "web-1", binding, json!({}))
            .node(AGENT, "patch", "n1", true, true);
        let down = world.now + 300;
        let mut steps = vec![(evicted_before, "evict"), (not_ready_before, "Unknown")];
        steps.extend(ready_before.map(|before| (before, "True")));
        steps.sort_by_key(|(before, _)| -before);
        for (before, what) in steps {
            world.now = down - before;
            match what {
                "evict" => world.write(AGENT, "create", "pods/eviction", "web-1", json!({}), json!({})),
                ready => {
                    let status = json!({ "conditions": [{ "type": "Ready", "status": ready }] });
                    let node = json!({ "metadata": { "name": "n1" }, "status": status });
                    world.write(ADMIN, "patch", "nodes/status", "n1", json!({}), node)
                }
            };
        }
        world.now = down - 1;
        world.next(AGENT, |b| b.committed(BootId::from("b1")).unwrap());
        world.now = down;
        world.host(HostChange::Down).up("b2", 2);
        world
    }
    assert_eq!(world(100, 100, None).judged(), Vec::<String>::new());
    for (evicted, not_ready, ready) in [
        // The pod's grace period plus 30 s is not over.
        (80, 100, None),
        // The kubelet may be about to watch its pods again.
        (100, 60, None),
        (100, 100, Some(50)),
    ] {
        world(evicted, not_ready, ready).blamed("I1", "while the pod /web-1 was still on the host");
    }
}

#[test]
fn a_reboot_needs_a_commit_for_its_boot() {
    let mut world = World::taken();
    world
        .host(HostChange::Down)
        .up("b2", 1)
        .blamed("I2", "without a committed berth");
    let mut world = World::rebooted();
    world
        .host(HostChange::Down)
        .up("b3", 2)
        .blamed("I2", "without a committed berth");
}

#[test]
fn a_commit_covers_one_rollback_of_its_target() {
    let mut world = World::rebooted();
    world.host(HostChange::Down).up("b3", 1);
    assert_eq!(world.judged(), Vec::<String>::new());
    world
        .host(HostChange::Down)
        .up("b4", 2)
        .blamed("I2", "without a committed berth");
}

#[test]
fn a_write_refused_by_policy_is_a_violation() {
    fn refused_by(own: bool, program: &str, code: u16) -> World {
        let mut world = World::given_back();
        world.next(program, Berth::clone);
        let last = world.audit.last_mut().unwrap();
        (last.code, last.message) = (code, "only the controller opens a berth".to_owned());
        last.refused_by_own_rules = own;
        world
    }
    fn refused(program: &str, code: u16) -> World {
        refused_by(true, program, code)
    }
    refused(AGENT, 422).blamed("Policy", "only the controller opens a berth");
    refused(CONTROLLER, 403).blamed("Policy", "the controller tried to write workers-0");
    // A rejection for another reason is not a violation: a policy of the cluster's admin, or annotations that are too
    // long.
    assert_eq!(refused_by(false, CONTROLLER, 422).judged(), Vec::<String>::new());
    // Neither a conflict nor a rejected write of another program is a violation.
    assert_eq!(refused(AGENT, 409).judged(), Vec::<String>::new());
    assert_eq!(refused(ADMIN, 422).judged(), Vec::<String>::new());
}

#[test]
fn cordons_of_admins_are_kept() {
    let mut world = World::default();
    world
        .node(ADMIN, "patch", "n1", true, false)
        .node(AGENT, "patch", "n1", false, false)
        .blamed("I4", "was uncordoned");
    // Berth cordoned the node and left it cordoned.
    let mut world = World::taken();
    world
        .node(AGENT, "patch", "n1", true, true)
        .node(AGENT, "patch", "n1", true, false)
        .blamed("I4", "was left cordoned");
    // An admin cordoned the node before the turn and uncordons it during the turn. Berth leaves it cordoned.
    let mut world = World::default();
    world.node(ADMIN, "patch", "n1", true, false);
    let mut world = World { berth: None, ..world };
    world
        .berth(CONTROLLER, new(0))
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .next(AGENT, take);
    world
        .node(AGENT, "patch", "n1", true, true)
        .node(ADMIN, "patch", "n1", false, true);
    world
        .node(AGENT, "patch", "n1", true, false)
        .blamed("I4", "was left cordoned");
    assert!(matches!(
        world.berth.as_ref().and_then(Berth::holding).map(|h| &h.phase),
        Some(HoldPhase::Taken)
    ));
}
