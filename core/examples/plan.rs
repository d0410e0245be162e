//! Benchmark of the controller's decisions, for 5,000 nodes (in 100 pools, and in one) and for 65,000 nodes in 1,625
//! racks. Measures membership, the facts for berth plans, the plans, and publishing, which finds nothing to write. Does
//! no I/O: the program creates the objects as they would be in the middle of a rollout.
//!
//! Prints one JSON line per figure, with the milliseconds of every run. To run:
//! `cargo run --release -p berth-core --features controller --example plan`

#![expect(clippy::disallowed_methods, reason = "a measurement looks at a clock")]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use berth_api::berth::{Berth, Offer, lease};
use berth_api::membership::Membership;
use berth_api::{BootId, Digest, NodeName, NodeUid};
use berth_core::Moment;
use berth_core::controller::ledger::Ledger;
use berth_core::controller::membership::MembershipCache;
use berth_core::controller::occupied::Occupied;
use berth_core::controller::offers::Offers;
use berth_core::controller::plan::{self, PoolFacts};
use berth_core::controller::pool::{self, Pool};
use berth_core::controller::publish::{self, BootcNodeWrite};
use berth_core::controller::round::Round;
use berth_core::controller::snapshot::{Entry, Objects, Snapshot};
use berth_core::controller::soaks::Soaks;
use berth_core::controller::staging_permits::StagingPermits;
use berth_core::controller::view::{BootcNodeView, LeaseView, NodeView, PoolView};
use jiff::Timestamp;
use serde_json::{Value, json};

/// The worlds: name, nodes, pools, zones and runs.
const WORLDS: [(&str, usize, usize, usize, usize); 3] = [
    ("100 pools", 5000, 100, 3, 50),
    ("1 pool", 5000, 1, 3, 50),
    ("1625 racks", 65_000, 1, 1625, 10),
];
/// Epoch of the leader. Every berth has it.
const EPOCH: u64 = 7;

fn main() -> Result<()> {
    for (name, nodes, pools, zones, runs) in WORLDS {
        World::of(nodes, pools, zones)?.measure(name, runs);
    }
    Ok(())
}

/// The objects of a cluster.
struct World {
    snapshot: Snapshot,
    leases: Vec<LeaseView>,
    heard: BTreeSet<NodeName>,
}

/// Digest of the previous image (1) or of the target (2).
fn digest(n: u8) -> Result<Digest> {
    Ok(format!("sha256:{n:064x}").parse()?)
}

fn node_name(n: usize) -> String {
    format!("worker-{n:05}.pool-a.example.internal")
}

fn uid(n: usize) -> String {
    format!("00000000-0000-4000-8000-{n:012x}")
}

fn pool_name(n: usize) -> String {
    format!("workers-{n}")
}

impl World {
    /// Creates a world. Half of the nodes run the target; the other half have it staged. A pool lets a tenth of its
    /// nodes be unavailable at a time.
    fn of(nodes: usize, pools: usize, zones: usize) -> Result<Self> {
        let mut world = Self {
            snapshot: Snapshot::default(),
            leases: vec![],
            heard: BTreeSet::new(),
        };
        for n in 0..nodes {
            let name = node_name(n);
            let pool = pool_name(n % pools);
            Arc::make_mut(&mut world.snapshot.nodes).insert(name.clone(), Entry::new(node(n, &pool, zones)?));
            Arc::make_mut(&mut world.snapshot.bootc_nodes)
                .insert(name.clone(), Entry::new(host(n, &pool, (n / pools).is_multiple_of(2))?));
            world.heard.insert(NodeName::new(name));
        }
        for p in 0..pools {
            let berths = nodes / pools / 10;
            Arc::make_mut(&mut world.snapshot.pools).insert(pool_name(p), Entry::new(pool(&pool_name(p), berths)?));
            for index in 0..berths {
                let view = berth(&pool_name(p), index, p + pools * (2 * index + 1))?;
                Arc::make_mut(&mut world.snapshot.leases).insert(view.name().to_owned(), Entry::new(view.clone()));
                world.leases.push(view);
            }
        }
        Ok(world)
    }

    fn measure(&self, name: &str, runs: usize) {
        let objects: &Objects<PoolView> = &self.snapshot.pools;
        let pools = Pool::readable(objects);
        let (mut belonging, mut making, mut planning, mut publishing) = (vec![], vec![], vec![], vec![]);
        let (gone, in_doubt, gates) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let (offers, ledger, soaks) = (Offers::default(), Ledger::default(), Soaks::default());
        let (mut offered, mut published) = (0, 0);
        for _ in 0..runs {
            let membership = time(&mut belonging, || MembershipCache::default().of(&self.snapshot));
            let occupied = Occupied::of(&self.leases);
            let shared = Round {
                snapshot: &self.snapshot,
                membership: &membership,
                leases: &self.leases,
                occupied: &occupied,
                in_doubt: &in_doubt,
                refused: &in_doubt,
                confirmed_gone: &gone,
                heard: &self.heard,
                overdue: &BTreeSet::new(),
                outdated: &BTreeSet::new(),
                offers: &offers,
                ledger: &ledger,
                soaks: &soaks,
                gates: &gates,
                now: Moment::default(),
                epoch: EPOCH,
            };
            let all: Vec<PoolFacts> = time(&mut making, || shared.all(&pools));
            let now = Timestamp::now();
            let plans: Vec<_> = time(&mut planning, || all.iter().map(|one| plan::plan(one, now)).collect());
            offered = plans.iter().map(|plan| plan.writes.len()).sum();
            published = time(&mut publishing, || self.publish(&pools, &membership, &occupied)).len();
        }
        let all = [
            ("plan", planning),
            ("facts", making),
            ("membership", belonging),
            ("publish", publishing),
        ];
        for (what, runs) in all {
            let writes = if what == "publish" { published } else { offered };
            println!(
                "{}",
                json!({ "name": format!("{what}, {name}"), "milliseconds": runs, "writes": writes })
            );
        }
    }

    fn publish(&self, pools: &[Pool], membership: &Membership, occupied: &Occupied) -> Vec<BootcNodeWrite> {
        publish::publish(&publish::PublishFacts {
            nodes: &self.snapshot.nodes,
            bootc_nodes: &self.snapshot.bootc_nodes,
            membership,
            terms: &publish::terms(pools, membership, &BTreeSet::new()),
            occupied: &occupied.by_uid,
            holdings: &occupied.holdings,
            unclear: &occupied.unclear,
            overdue: &BTreeSet::new(),
            lasting: &pool::lasting(&self.snapshot.pools),
            confirmed_gone: &BTreeSet::new(),
            heard: &self.heard,
            permits: &StagingPermits::default(),
            fleet_paused: false,
        })
    }
}

/// Runs `work`, and adds its duration in milliseconds to `runs`.
fn time<T>(runs: &mut Vec<f64>, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = black_box(work());
    runs.push(start.elapsed().as_secs_f64() * 1000.0);
    result
}

fn node(n: usize, pool: &str, zones: usize) -> Result<NodeView> {
    let labels = BTreeMap::from([
        ("example.com/pool".to_owned(), pool.to_owned()),
        ("kubernetes.io/hostname".to_owned(), node_name(n)),
        ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
        ("kubernetes.io/os".to_owned(), "linux".to_owned()),
        ("node.kubernetes.io/instance-type".to_owned(), "m5.4xlarge".to_owned()),
        ("topology.kubernetes.io/region".to_owned(), "region-1".to_owned()),
        (
            "topology.kubernetes.io/zone".to_owned(),
            format!("region-1-{}", n % zones),
        ),
    ]);
    let object = json!({
        "metadata": { "name": node_name(n), "uid": uid(n), "labels": labels },
        "status": {
            "conditions": [{ "type": "Ready", "status": "True" }],
            "nodeInfo": {
                "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux",
                "osImage": "", "systemUUID": "",
            },
        },
    });
    Ok(NodeView::of(&serde_json::from_value(object)?))
}

fn image(digest: &Digest) -> Value {
    json!({ "image": "registry.example.com/os:2", "digest": digest, "locked": true })
}

fn host(n: usize, pool: &str, updated: bool) -> Result<BootcNodeView> {
    let target = digest(2)?;
    let booted = digest(if updated { 2 } else { 1 })?;
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode",
        "metadata": { "name": node_name(n), "uid": format!("bn-{n}"), "generation": 3 },
        "spec": {
            "poolName": pool, "nodeUID": uid(n), "staging": "Allowed", "drainTimeout": "15m", "rebootTimeout": "15m",
            "progressInterval": "5s",
            "image": { "ref": "registry.example.com/os:2", "digest": target, "indexDigest": target },
        },
        "status": {
            "observedGeneration": 3, "nodeUID": uid(n), "phase": if updated { "Updated" } else { "Waiting" },
            "booted": image(&booted), "staged": (!updated).then(|| image(&target)),
            "conditions": [{
                "type": "UpdatePrepared", "status": if updated { "False" } else { "True" }, "reason": "Ready",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    Ok(BootcNodeView::of(serde_json::from_value(object)?))
}

fn pool(name: &str, berths: usize) -> Result<PoolView> {
    let target = digest(2)?;
    let platforms = [json!({ "architecture": "amd64", "digest": target })];
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": name, "uid": name },
        "spec": {
            "nodeSelector": { "matchLabels": { "example.com/pool": name } },
            "image": { "ref": "registry.example.com/os:2" }, "rollout": { "maxUnavailable": "10%" },
        },
        "status": {
            "target": { "image": "registry.example.com/os:2", "digest": target, "platforms": platforms },
            "berths": { "total": berths },
        },
    });
    Ok(PoolView::of(serde_json::from_value(object)?))
}

/// Returns a berth. Of five berths, one is closed, one offered, one taken and two are committed, each for another node.
fn berth(pool: &str, index: usize, node: usize) -> Result<LeaseView> {
    let (name, uid) = (NodeName::new(node_name(node)), NodeUid::new(uid(node)));
    let now = Timestamp::now();
    let offer = Offer {
        node: name.clone(),
        uid: uid.clone(),
        target: digest(2)?,
        open_until: None,
    };
    let closed = Berth::new(pool.into(), u32::try_from(index)?, EPOCH);
    let offered = closed.offered(offer)?;
    let taken = offered.taken(&name, &uid, Some(digest(1)?), BootId::from("b"))?;
    let berth = match index % 5 {
        0 => closed,
        1 => offered,
        2 => taken,
        _ => taken.committed(BootId::from("b"))?,
    };
    Ok(LeaseView::of(lease::create(
        &berth,
        "berth-system",
        Duration::from_secs(900),
        now,
    )))
}
