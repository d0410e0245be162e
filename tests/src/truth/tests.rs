//! The judge is judged here by made-up histories: each sentence that it can say is said for a history that deserves it,
//! and nothing is said of one that does not.

use std::time::Duration;

use berth_api::berth::{Berth, ClosedReason, HoldPhase, Offer, Outcome, lease};
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Truth;
use crate::audit::Record;
use crate::hosts::{HostChange, HostEvent};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000 + second).unwrap()
}

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

/// A made-up history, with one event a second.
#[derive(Default)]
struct World {
    audit: Vec<Record>,
    hosts: Vec<HostEvent>,
    now: i64,
    berth: Option<Berth>,
    fleet: Option<usize>,
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
            // As the programs do: the controller says nothing.
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

    fn host(&mut self, change: HostChange) -> &mut Self {
        self.now += 1;
        self.hosts.push(HostEvent {
            at: at(self.now),
            host: "n1".to_owned(),
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
        Truth {
            hosts: &self.hosts,
            audit: &self.audit,
            excused: &[],
            capacity,
            fleet: self.fleet,
            lag,
        }
        .violations()
    }

    /// The one violation must begin with this and have that in it.
    fn blamed(&self, invariant: &str, what: &str) {
        let said = self.judged();
        let fits = |v: &String| v.starts_with(invariant) && v.contains(what);
        assert!(said.iter().any(fits), "{invariant} … {what}: {said:#?}");
    }

    /// A pool of one berth, offered to n1, which runs 1 and shall run 2.
    fn offered() -> Self {
        let mut world = Self::default();
        world
            .up("b1", 1)
            .ready("b1")
            .capacity(1)
            .node(ADMIN, "create", "n1", false, false);
        world
            .berth(CONTROLLER, new(0))
            .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
        world
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
fn a_turn_by_the_book_has_no_violation() {
    let world = World::given_back();
    assert_eq!(world.judged(), Vec::<String>::new());
    // A new agent's fence: the same state once more.
    let mut world = World::committed();
    world.next(AGENT, Berth::clone);
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn what_goes_down_is_cordoned_and_drained() {
    let schedulable = |cordoned: bool| {
        let mut world = World::committed();
        world.node(ADMIN, "patch", "n1", cordoned, cordoned);
        world.now += 20;
        world.host(HostChange::Down).up("b2", 2);
        world
    };
    schedulable(false).blamed("I1", "was not cordoned since");
    assert_eq!(schedulable(true).judged(), Vec::<String>::new());

    let with_pod = |moved: bool, drain: Value| {
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
    };
    with_pod(false, json!({})).blamed("I1", "with the pod /web-1 on it");
    assert_eq!(with_pod(true, json!({})).judged(), Vec::<String>::new());
    assert_eq!(
        with_pod(false, json!({ "enabled": false })).judged(),
        Vec::<String>::new()
    );
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
fn a_berth_is_given_back_only_when_it_is_proven() {
    let mut world = World::rebooted();
    world
        .next(AGENT, |b| b.releasing(Outcome::Updated, BootId::from("b2")).unwrap())
        .blamed("I5", "not Ready");
    let mut world = World::committed();
    world
        .next(AGENT, |b| b.releasing(Outcome::Revoked, BootId::from("b1")).unwrap())
        .blamed("I5", "under the same boot");
    let mut world = World::committed();
    world.host(HostChange::Down).up("b2", 3).ready("b2");
    world
        .next(AGENT, |b| b.releasing(Outcome::NotApplied, BootId::from("b2")).unwrap())
        .blamed("I5", "neither the target");
}

#[test]
fn a_boot_that_was_licensed_anew_is_proven_as_any_other() {
    let change_of_mind = || {
        let mut world = World::rebooted();
        world.next(AGENT, |b| b.relicensed(digest(1), BootId::from("b2")).unwrap());
        world.next(AGENT, |b| b.relicensed(digest(2), BootId::from("b2")).unwrap());
        world
    };
    let release = |b: &Berth| b.releasing(Outcome::Updated, BootId::from("b2")).unwrap();
    let mut world = change_of_mind();
    world.next(AGENT, release).blamed("I5", "not Ready");
    let mut world = change_of_mind();
    world.ready("b2").next(AGENT, release);
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_commit_is_taken_back_only_under_its_boot() {
    World::committed()
        .next(AGENT, |b| b.uncommitted().unwrap())
        .host(HostChange::Down);
    let mut world = World::rebooted();
    world
        .next(AGENT, |b| b.uncommitted().unwrap())
        .blamed("I2", "boot b1 does not run");
    let mut world = World::committed();
    world.next(AGENT, |b| b.uncommitted().unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_release_writes_the_node_first() {
    let mut world = World::releasing();
    world
        .next(AGENT, |b| b.given_back().unwrap())
        .blamed("I4", "without writing its Node");
    let mut world = World::releasing();
    world
        .node(AGENT, "patch", "n1", true, true)
        .next(AGENT, |b| b.given_back().unwrap())
        .blamed("I4", "its cordon in place");
    // A new leader stamped it meanwhile.
    let mut world = World::releasing();
    world
        .node(AGENT, "patch", "n1", false, false)
        .next(CONTROLLER, |b| b.stamped(8));
    world.next(AGENT, |b| b.given_back().unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
    let mut world = World::taken();
    let closed = |b: &Berth| {
        b.releasing(Outcome::Revoked, BootId::from("b1"))
            .unwrap()
            .given_back()
            .unwrap()
    };
    world.next(AGENT, closed).blamed("I4", "without Releasing");
}

#[test]
fn only_what_is_offered_is_taken() {
    let mut world = World::offered();
    world
        .next(AGENT, |b| {
            new(b.index).offered(offer("n1", 3)).map(|b| take(&b)).unwrap()
        })
        .blamed("I1", "not offered to it");
    let mut world = World::given_back();
    world
        .next(AGENT, |b| b.offered(offer("n1", 2)).unwrap())
        .blamed("I1", "an agent may not do that");
    let mut world = World::offered();
    let published = json!({ "metadata": { "name": "n1" }, "spec": { "image": { "digest": digest(3).to_string() } } });
    world
        .write(CONTROLLER, "patch", "bootcnodes", "n1", json!({}), published)
        .next(AGENT, take)
        .blamed("I2", "was published");
}

#[test]
fn a_licence_is_for_one_uid() {
    let mut world = World::taken();
    let anew = json!({ "metadata": { "name": "n1", "uid": "another" }, "spec": {} });
    world.write(ADMIN, "create", "nodes", "", json!({}), anew);
    world
        .next(AGENT, |b| b.committed(BootId::from("b1")).unwrap())
        .blamed("I2", "has the UID another");
    // A Node that has just been made is as good as one that has long been there.
    let mut world = World::default();
    let former = json!({ "metadata": { "name": "n1", "uid": "former" }, "spec": {} });
    world.write(ADMIN, "create", "nodes", "", json!({}), former);
    world.now += 60;
    world
        .up("b1", 1)
        .ready("b1")
        .capacity(1)
        .node(ADMIN, "create", "n1", false, false);
    world
        .berth(CONTROLLER, new(0))
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .next(AGENT, take);
    assert_eq!(world.judged_with(SignedDuration::from_secs(30)), Vec::<String>::new());
}

#[test]
fn a_controller_takes_nothing_away() {
    let ended = |b: &Berth| b.ended(ClosedReason::Gone).unwrap();
    let mut world = World::committed();
    world.next(CONTROLLER, ended).blamed("I5", "was not deleted");
    let mut world = World::committed();
    world
        .write(ADMIN, "delete", "nodes", "n1", json!({}), json!({ "metadata": {} }))
        .next(CONTROLLER, ended);
    assert_eq!(world.judged(), Vec::<String>::new());
    let mut world = World::committed();
    world
        .next(CONTROLLER, |b| new(b.index).offered(offer("n2", 2)).unwrap())
        .blamed("I1", "a controller may not do that");
    let mut world = World::taken();
    world.next(CONTROLLER, |b| b.revoked(Some("Paused".to_owned())).unwrap());
    world
        .next(AGENT, |b| {
            b.revoked(None).unwrap().committed(BootId::from("b1")).unwrap()
        })
        .blamed("I1", "revoked");
}

#[test]
fn a_failure_is_on_record_before_the_berth_opens() {
    let gone = || {
        let mut world = World::committed();
        world.write(ADMIN, "delete", "nodes", "n1", json!({}), json!({ "metadata": {} }));
        world.next(CONTROLLER, |b| b.ended(ClosedReason::Gone).unwrap());
        world
    };
    gone()
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap())
        .blamed("I8", "opened before its failure");
    gone()
        .next(CONTROLLER, |b| b.acknowledged().unwrap())
        .blamed("I8", "acknowledged before");
    let mut world = gone();
    let failures = json!([{ "digest": digest(2).to_string(), "nodes": ["n1 (deleted)"] }]);
    let status = json!({ "status": { "berths": { "total": 1 }, "failures": failures }, "metadata": {} });
    world.write(
        CONTROLLER,
        "patch",
        "bootcnodepools/status",
        "workers",
        json!({}),
        status,
    );
    world
        .next(CONTROLLER, |b| b.acknowledged().unwrap())
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn capacity_is_what_was_published() {
    // A second berth is opened while the first is held, and only one may be.
    let mut world = World::taken();
    world
        .berth(CONTROLLER, new(1))
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap())
        .blamed("I1b", "1 of 1 were held");
    // It was open already when the capacity shrank.
    let mut world = World::default();
    world
        .capacity(2)
        .up("b1", 1)
        .berth(CONTROLLER, new(1))
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    let other = world.berth.take().unwrap();
    world
        .berth(CONTROLLER, new(0))
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .next(AGENT, take);
    assert_eq!(world.judged(), Vec::<String>::new());
    world.capacity(1);
    let taken = other
        .taken(&NodeName::from("n2"), &NodeUid::from("uid-n2"), None, BootId::from("x"))
        .unwrap();
    world.berth(AGENT, taken).blamed("I1c", "while 1 of 1 were held");
}

#[test]
fn a_node_holds_one_berth_at_a_time() {
    let mut world = World::taken();
    let other = Berth::new(PoolName::from("spare"), 0, 7);
    world
        .berth(CONTROLLER, other)
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world.next(AGENT, take).blamed("I1", "holds workers-0 already");
    // One after the other is how nodes move between pools.
    let mut world = World::given_back();
    world
        .ready("b2")
        .berth(CONTROLLER, Berth::new(PoolName::from("spare"), 0, 7));
    world.next(CONTROLLER, |b| b.offered(offer("n1", 3)).unwrap());
    let (node, uid) = (NodeName::from("n1"), NodeUid::from("uid-n1"));
    world.next(AGENT, |b| {
        b.taken(&node, &uid, Some(digest(2)), BootId::from("b2")).unwrap()
    });
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn what_the_policies_had_to_stop_is_a_violation() {
    let refused = |program: &str, code: u16| {
        let mut world = World::given_back();
        world.next(program, Berth::clone);
        let last = world.audit.last_mut().unwrap();
        (last.code, last.message) = (code, "only the controller opens a berth".to_owned());
        world
    };
    refused(AGENT, 422).blamed("Policy", "only the controller opens a berth");
    refused(CONTROLLER, 403).blamed("Policy", "the controller wrote workers-0");
    // Somebody was faster; and what others try is their affair.
    assert_eq!(refused(AGENT, 409).judged(), Vec::<String>::new());
    assert_eq!(refused(ADMIN, 422).judged(), Vec::<String>::new());
}

#[test]
fn who_is_cordoned_by_others_uses_up_capacity() {
    let mut world = World::default();
    world
        .capacity(1)
        .node(ADMIN, "create", "n2", false, false)
        .node(ADMIN, "patch", "n2", true, false);
    let member = json!({ "metadata": { "name": "n2" }, "spec": { "poolName": "workers", "nodeUID": "uid-n2" } });
    world.write(CONTROLLER, "create", "bootcnodes", "n2", json!({}), member);
    world.now += 5;
    world.berth(CONTROLLER, new(0));
    // As long as it is a member of another pool, it is nothing to this one.
    let mut other = World {
        audit: world.audit.clone(),
        now: world.now,
        berth: world.berth.clone(),
        ..World::default()
    };
    other
        .member("n2", "others")
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    assert_eq!(other.judged(), Vec::<String>::new());
    world.member("n2", "workers");
    let mut same = World {
        audit: world.audit.clone(),
        now: world.now,
        berth: world.berth.clone(),
        ..World::default()
    };
    world
        .next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap())
        .blamed("I1b", "held, open or cordoned");
    // It may itself be repaired.
    same.next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    assert_eq!(same.judged(), Vec::<String>::new());
}

#[test]
fn a_node_that_has_just_joined_is_not_ready_yet() {
    let mut world = World::default();
    world
        .capacity(1)
        .node(ADMIN, "create", "n2", true, false)
        .member("n2", "workers")
        .berth(CONTROLLER, new(0));
    world.now += 5;
    world.up("a", 1).node("system:node:n1", "create", "n1", false, false);
    let judged = |ready: bool| {
        let mut world = World {
            hosts: world.hosts.clone(),
            audit: world.audit.clone(),
            now: world.now,
            berth: world.berth.clone(),
            ..World::default()
        };
        if ready {
            world.ready("a");
        }
        world.now += 5;
        world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
        world
    };
    assert_eq!(judged(false).judged(), Vec::<String>::new());
    judged(true).blamed("I1b", "held, open or cordoned");
}

#[test]
fn the_pools_of_a_fleet_share_its_limit() {
    let second = |fleet: Option<usize>| {
        let mut world = World::taken();
        world.fleet = fleet;
        let spare = Berth::new(PoolName::from("spare"), 0, 7);
        world
            .berth(CONTROLLER, spare)
            .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
        world
    };
    assert_eq!(second(None).judged(), Vec::<String>::new());
    assert_eq!(second(Some(2)).judged(), Vec::<String>::new());
    second(Some(1)).blamed("I1b", "1 of the fleet's 1");
    // Cordoned by others, in whichever pool.
    let cordoned = |offered: &str| {
        let mut world = World {
            fleet: Some(1),
            ..World::default()
        };
        world
            .capacity(1)
            .node(ADMIN, "create", "n2", false, false)
            .node(ADMIN, "patch", "n2", true, false)
            .member("n2", "spare");
        world.now += 5;
        world
            .berth(CONTROLLER, new(0))
            .next(CONTROLLER, |b| b.offered(offer(offered, 2)).unwrap());
        world
    };
    cordoned("n1").blamed("I1b", "of the fleet's 1");
    assert_eq!(cordoned("n2").judged(), Vec::<String>::new());
}

#[test]
fn a_deposed_leader_writes_nothing_any_more() {
    let mut world = World::default();
    world
        .capacity(2)
        .berth(CONTROLLER, new(0))
        .berth(CONTROLLER, new(1).stamped(8));
    world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world.berth(CONTROLLER, new(0)).blamed("Fence", "after one of epoch 8");
    let mut world = World::offered();
    world
        .next(CONTROLLER, |b| b.stamped(3))
        .blamed("Fence", "the epoch went back");
}

#[test]
fn the_admins_cordons_are_the_admins() {
    let mut world = World::default();
    world
        .node(ADMIN, "patch", "n1", true, false)
        .node(AGENT, "patch", "n1", false, false)
        .blamed("I4", "was uncordoned");
    // Cordoned by us, and left so.
    let mut world = World::taken();
    world
        .node(AGENT, "patch", "n1", true, true)
        .node(AGENT, "patch", "n1", true, false)
        .blamed("I4", "was left cordoned");
    // Uncordoned by an admin during our turn, and cordoned by us in the end.
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

#[test]
fn a_write_without_an_answer_counts_when_the_next_one_builds_on_it() {
    let mut world = World::given_back();
    let lost = world
        .audit
        .iter()
        .rposition(|r| r.resource == "leases" && r.response.as_ref().is_some_and(committed));
    let lost = &mut world.audit[lost.unwrap()];
    (lost.code, lost.response) = (504, Some(json!({ "metadata": {}, "code": 504 })));
    assert_eq!(world.judged(), Vec::<String>::new());
    // Nothing else could explain it: then nothing is said of that write, but the reboot has no licence.
    world.audit.retain(|r| r.code != 504);
    let said = world.judged();
    assert!(said.len() == 1 && said[0].starts_with("I2: n1 went down"), "{said:#?}");
}

fn committed(object: &Value) -> bool {
    object
        .pointer("/metadata/annotations")
        .is_some_and(|a| a["berth.dev/phase"] == "Committed")
}
