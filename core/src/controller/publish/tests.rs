use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::berth::{HoldPhase, Holding};
use berth_api::membership::{Conflict, Membership};
use berth_api::node::Staging;
use berth_api::platform::Machine;
use berth_api::pool::{Drain, PhaseDurations, PlatformDigest, SignatureRule};

use super::*;
use crate::Moment;
use crate::controller::snapshot::{Entry, Objects};
use crate::controller::staging_permits::StagingPermits;
use crate::controller::view::{BootcNodeContent, Failing, KubeletReport, Report};

mod staging;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn node(name: &str) -> NodeView {
    NodeView {
        name: name.into(),
        uid: NodeUid::new(format!("uid-{name}")),
        labels: BTreeMap::new(),
        ready: true,
        unschedulable: false,
        our_cordon: false,
        created: 0,
        machine: Machine::new("amd64", &BTreeMap::new()),
        addresses: vec![],
        kubelet: KubeletReport::default(),
        error: None,
    }
}

fn target(n: u8) -> Target {
    Target {
        image: "quay.io/example/os:v1".into(),
        digest: digest(n + 100),
        version: Some("1".into()),
        metadata: None,
        platforms: vec![PlatformDigest {
            architecture: "amd64".into(),
            variant: None,
            digest: digest(n),
        }],
        publish_time: None,
    }
}

/// Nodes in pool `a`. Their BootcNodes get the specs that are published.
struct World {
    nodes: Objects<NodeView>,
    bootc_nodes: Objects<BootcNodeView>,
    membership: Membership,
    terms: BTreeMap<PoolName, Terms>,
    occupied: BTreeMap<NodeUid, BTreeSet<PoolName>>,
    holdings: BTreeMap<NodeUid, Holding>,
    overdue: BTreeSet<String>,
    lasting: BTreeSet<PoolName>,
    gone: BTreeSet<NodeUid>,
    heard: BTreeSet<NodeName>,
    permits: StagingPermits,
    fleet_paused: bool,
}

fn world(names: &[&str], max_staging: usize) -> World {
    let [a, b] = [("a", 1), ("b", 2)].map(|(pool, n)| Terms {
        target: Some(target(n)),
        unresolved: false,
        resolving: false,
        max_staging,
        signature: SignatureRule::AsBooted,
        spec: BootcNodeSpec {
            pool_name: pool.to_owned(),
            drain: Drain {
                timeout: Some("900s".into()),
                ..Drain::default()
            },
            reboot_timeout: Duration::from_secs(900).into(),
            progress_interval: Duration::from_secs(5).into(),
            ..BootcNodeSpec::default()
        },
    });
    let mut membership = Membership::default();
    for name in names {
        membership.join((*name).into(), "a".into());
    }
    World {
        nodes: names.iter().map(|n| ((*n).to_owned(), Entry::new(node(n)))).collect(),
        bootc_nodes: BTreeMap::new(),
        membership,
        terms: [("a".into(), a), ("b".into(), b)].into(),
        occupied: BTreeMap::new(),
        holdings: BTreeMap::new(),
        overdue: BTreeSet::new(),
        lasting: ["a".into(), "b".into()].into(),
        gone: BTreeSet::new(),
        heard: names.iter().map(|n| NodeName::from(*n)).collect(),
        permits: StagingPermits::default(),
        fleet_paused: false,
    }
}

impl World {
    fn writes(&self) -> Vec<BootcNodeWrite> {
        publish(&PublishFacts {
            nodes: &self.nodes,
            bootc_nodes: &self.bootc_nodes,
            membership: &self.membership,
            terms: &self.terms,
            occupied: &self.occupied,
            holdings: &self.holdings,
            unclear: &BTreeSet::new(),
            overdue: &self.overdue,
            lasting: &self.lasting,
            confirmed_gone: &self.gone,
            heard: &self.heard,
            permits: &self.permits,
            fleet_paused: self.fleet_paused,
        })
    }

    /// Makes the writes of one pass and returns them. No agent reports.
    fn step(&mut self) -> Vec<BootcNodeWrite> {
        let writes = self.writes();
        for write in &writes {
            match write {
                BootcNodeWrite::Create { name, spec, label } => {
                    let view = BootcNodeView {
                        uid: format!("host-{name}"),
                        generation: Some(1),
                        deleting: false,
                        finalizers: vec![keys::FINALIZER_NODE.into()],
                        owner: Some(spec.node_uid.clone()),
                        pool_label: label.clone(),
                        content: Ok(BootcNodeContent {
                            spec: spec.clone(),
                            report: Report::default(),
                            status_error: None,
                            heartbeat: None,
                            told: vec![],
                        }),
                    };
                    self.bootc_nodes.insert(name.clone(), Entry::new(view));
                }
                BootcNodeWrite::Update {
                    name,
                    spec,
                    label,
                    finalizers,
                    ..
                } => self.edit(name, |host| {
                    host.generation = host.generation.map(|g| g + 1);
                    host.finalizers = finalizers.clone();
                    host.pool_label = label.clone();
                    host.content.as_mut().unwrap().spec = spec.clone();
                }),
                BootcNodeWrite::Delete { name, .. } => self.edit(name, |host| host.deleting = true),
                BootcNodeWrite::Release { name, .. } => drop(self.bootc_nodes.remove(name)),
            }
        }
        writes
    }

    fn edit(&mut self, name: &str, change: impl FnOnce(&mut BootcNodeView)) {
        let mut view = self.bootc_nodes[name].view.as_ref().clone();
        change(&mut view);
        self.bootc_nodes.insert(name.to_owned(), Entry::new(view));
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut NodeView)) {
        let mut node = self.nodes[name].view.as_ref().clone();
        change(&mut node);
        self.nodes.insert(name.to_owned(), Entry::new(node));
    }

    fn report(&mut self, name: &str, change: impl FnOnce(&mut Report)) {
        self.edit(name, |host| {
            let generation = host.generation;
            let content = host.content.as_mut().unwrap();
            content.report.observed_generation = generation;
            content.report.node_uid = Some(content.spec.node_uid.clone());
            change(&mut content.report);
        });
    }

    fn spec(&self, name: &str) -> &BootcNodeSpec {
        self.bootc_nodes[name].view.spec().unwrap()
    }

    fn allowed(&self) -> Vec<&str> {
        let mut allowed = vec![];
        for (name, host) in &self.bootc_nodes {
            if host.view.spec().unwrap().staging == Staging::Allowed {
                allowed.push(name.as_str());
            }
        }
        allowed
    }

    fn image(&self, name: &str) -> Option<&Digest> {
        self.spec(name).image.as_ref().map(|image| &image.digest)
    }

    /// Runs a pass. Returns the names of the written objects.
    fn written(&mut self) -> Vec<String> {
        let writes = self.step();
        writes.iter().map(|write| write.name().to_owned()).collect()
    }

    fn pause(&mut self, paused: bool) {
        self.terms.get_mut(&"a".into()).unwrap().spec.paused = paused;
    }

    /// Runs a pass that must make exactly one update. Returns the finalizers in that update.
    fn finalizers(&mut self) -> Vec<String> {
        match self.step().as_slice() {
            [BootcNodeWrite::Update { finalizers, .. }] => finalizers.clone(),
            writes => panic!("{writes:?}"),
        }
    }

    /// Reports, for the node, this boot ID and that the earlier image is booted.
    fn report_of_boot(&mut self, name: &str, boot: &str) {
        self.report(name, |r| {
            (r.host.boot_id, r.images.booted) = (Some(boot.into()), Some(digest(0)))
        });
    }

    fn commit(&mut self, name: &str) {
        let uid = NodeUid::new(format!("uid-{name}"));
        self.occupied.insert(uid.clone(), ["a".into()].into());
        let holding = Holding {
            node: name.into(),
            uid: uid.clone(),
            target: digest(1),
            from: Some(digest(0)),
            boot_id: "boot-1".into(),
            phase: HoldPhase::Committed,
            revoke: None,
            open_until: None,
        };
        self.holdings.insert(uid, holding);
    }

    fn staged(&mut self, name: &str, n: u8) {
        self.report(name, |r| r.images.staged = Some(digest(n)));
    }
}

#[test]
fn a_spec_is_published_once() {
    let mut world = world(&["n1"], 1);
    let writes = world.step();
    assert!(matches!(&writes[..], [BootcNodeWrite::Create { label: Some(l), .. }] if l == "a"));
    let spec = world.spec("n1").clone();
    let image = spec.image.unwrap();
    assert_eq!(image.reference.as_str(), format!("quay.io/example/os@{}", digest(1)));
    assert_eq!((image.digest, image.index_digest), (digest(1), digest(101)));
    assert_eq!(
        (spec.node_uid.as_str(), spec.drain.timeout),
        ("uid-n1", Some("900s".into()))
    );
    assert!(world.step().is_empty());
}

#[test]
fn a_target_that_cannot_be_read_changes_no_bootc_node() {
    let mut world = world(&["n1"], 1);
    world.step();
    let before = world.spec("n1").clone();
    let terms = world.terms.get_mut(&"a".into()).unwrap();
    terms.target.as_mut().unwrap().image = "nonsense".into();
    terms.spec.retry_token = Some("again".into());
    assert!(world.step().is_empty());
    assert_eq!(*world.spec("n1"), before);
    let target = world.terms.get_mut(&"a".into()).unwrap().target.as_mut().unwrap();
    target.image = "quay.io/example/os:v1".into();
    world.step();
    assert_eq!(world.spec("n1").retry_token.as_deref(), Some("again"));
}

#[test]
fn a_platform_without_an_image_gets_none() {
    let mut world = world(&["n1"], 1);
    let mut other = node("n1");
    other.machine.architecture = "s390x".into();
    world.nodes.insert("n1".into(), Entry::new(other));
    world.step();
    let spec = world.spec("n1");
    assert!(spec.image.is_none() && spec.pool_name == "a");
}

#[test]
fn each_node_gets_the_image_that_its_cpu_runs() {
    let mut world = world(&["n1", "n2", "n3", "n4", "n5"], 5);
    let terms = world.terms.get_mut(&"a".into()).unwrap();
    let target = terms.target.as_mut().unwrap();
    let one = target.platforms[0].clone();
    target.platforms = [("v2", 12), ("v3", 13)]
        .map(|(variant, n)| PlatformDigest {
            variant: Some(variant.into()),
            digest: digest(n),
            ..one.clone()
        })
        .into();
    world.step();
    for (name, variant) in [
        ("n1", Some("v2")),
        ("n2", Some("v4")),
        ("n3", None),
        ("n4", Some("v3")),
        ("n5", Some("v3")),
    ] {
        assert_eq!(world.image(name), None, "{name} has not reported");
        world.report(name, |report| {
            report.agent_version = Some("0.1.0".into());
            report.host.platform_variant = variant.map(str::to_owned);
        });
    }
    world.report("n4", |report| {
        report.node_uid = Some("of the Node that had this name before".into());
    });
    let mut labelled = node("n5");
    labelled.machine.label = Some("v2".into());
    world.nodes.insert("n5".into(), Entry::new(labelled));
    world.step();
    assert_eq!(world.image("n1"), Some(&digest(12)));
    assert_eq!(world.image("n2"), Some(&digest(13)));
    assert_eq!(world.image("n3"), None, "the agent does not know");
    assert_eq!(world.image("n4"), None, "another machine reported");
    assert_eq!(world.image("n5"), Some(&digest(12)), "the label lowers the level");
}

#[test]
fn no_bootcnode_before_the_first_image() {
    let mut world = world(&["n1"], 1);
    let terms = world.terms.get_mut(&"a".into()).unwrap();
    (terms.target, terms.resolving) = (None, true);
    assert!(world.step().is_empty());
    world.terms.get_mut(&"a".into()).unwrap().resolving = false;
    world.step();
    assert!(world.spec("n1").image.is_none());
}

#[test]
fn a_node_that_holds_a_berth_is_not_moved() {
    let mut world = world(&["n1"], 1);
    world.step();
    world.occupied.insert(NodeUid::from("uid-n1"), ["a".into()].into());
    world.membership.join("n1".into(), "b".into());
    assert!(world.step().is_empty());
    world.membership = Membership::default();
    assert!(world.step().is_empty());
    world.occupied.clear();
    world.membership.join("n1".into(), "b".into());
    world.step();
    assert_eq!(world.spec("n1").pool_name, "b");
    assert_eq!(world.spec("n1").image.as_ref().unwrap().digest, digest(2));
}

#[test]
fn a_holder_gets_a_new_target_too() {
    let mut world = world(&["n1"], 1);
    world.step();
    world.occupied.insert(NodeUid::from("uid-n1"), ["a".into()].into());
    world.terms.get_mut(&"a".into()).unwrap().target = Some(target(3));
    world.step();
    assert_eq!(world.spec("n1").image.as_ref().unwrap().digest, digest(3));
}

#[test]
fn a_node_that_leaves_is_released_by_its_agent() {
    let mut world = world(&["n1"], 1);
    world.step();
    world.report("n1", |r| r.released = true);
    world.membership = Membership::default();
    world.step();
    let spec = world.spec("n1");
    assert!(spec.pool_name.is_empty() && spec.image.is_none());
    assert_eq!(world.bootc_nodes["n1"].view.pool_label.as_deref(), Some("a"));
    assert!(world.step().is_empty(), "an old report does not count");
    world.report("n1", |r| r.released = true);
    assert!(matches!(&world.step()[..], [BootcNodeWrite::Delete { .. }]));
    world.report("n1", |_| {});
    assert!(matches!(
        &world.step()[..],
        [BootcNodeWrite::Release { late: false, .. }]
    ));
    assert!(world.step().is_empty());
}

#[test]
fn a_silent_node_is_released_after_the_deadline() {
    let mut world = world(&["n1"], 1);
    world.step();
    world.membership = Membership::default();
    world.step();
    world.overdue.insert("host-n1".into());
    world.occupied.insert(NodeUid::from("uid-n1"), ["a".into()].into());
    assert!(world.step().is_empty());
    world.occupied.clear();
    assert!(matches!(&world.step()[..], [BootcNodeWrite::Delete { .. }]));
    assert!(matches!(
        &world.step()[..],
        [BootcNodeWrite::Release { late: true, .. }]
    ));
}

type Change = fn(&mut World);

/// True if a node that has left its pool and is down is released after `change`.
fn is_released(is_deleting: bool, change: Change) -> bool {
    let mut world = world(&["n1"], 1);
    world.step();
    world.membership = Membership::default();
    world.step();
    if is_deleting {
        world.edit("n1", |host| host.deleting = true);
    }
    world.overdue.insert("host-n1".into());
    world.change("n1", |node| node.ready = false);
    assert!(world.step().is_empty(), "n1 is down and counts");
    change(&mut world);
    let writes = world.step();
    matches!(
        &writes[..],
        [BootcNodeWrite::Delete { .. } | BootcNodeWrite::Release { late: true, .. }]
    )
}

fn exclude(node: &mut NodeView) {
    node.labels.insert(keys::LABEL_EXCLUDE.to_owned(), String::new());
}

#[test]
fn a_node_that_is_down_stays_in_its_pool() {
    let changes: [(&str, Change, bool); 6] = [
        ("none", |_| (), false),
        ("Ready", |w| w.change("n1", |node| node.ready = true), true),
        (
            "Ready, and our cordon is still there",
            |w| w.change("n1", |node| (node.ready, node.our_cordon) = (true, true)),
            false,
        ),
        ("excluded", |w| w.change("n1", exclude), true),
        ("the pool is deleted", |w| w.lasting.clear(), true),
        ("gone, before a live read", |w| w.nodes.clear(), false),
    ];
    for (what, change, expected) in changes {
        for is_deleting in [false, true] {
            assert_eq!(is_released(is_deleting, change), expected, "{what} {is_deleting}");
        }
    }
    assert!(
        is_released(true, |w| w.membership.join("n1".into(), "a".into())),
        "n1 is a member"
    );
}

#[test]
fn a_node_in_conflict_counts_until_released() {
    let changes: [(&str, Change, Option<&str>); 5] = [
        ("none", |_| (), Some("a")),
        ("not overdue", |w| w.overdue.clear(), Some("a")),
        ("Ready", |w| w.change("n1", |node| node.ready = true), None),
        ("the pool is deleted", |w| w.lasting.clear(), None),
        ("released", |w| w.report("n1", |r| r.released = true), None),
    ];
    for (what, change, expected) in changes {
        let mut world = world(&["n1"], 1);
        world.step();
        let conflict = Conflict {
            node: "n1".into(),
            pools: vec!["b".into(), "c".into()],
            stays_in: None,
        };
        world.membership = Membership::default();
        world.membership.conflicts.insert("n1".into(), conflict);
        world.change("n1", |node| node.ready = false);
        world.step();
        world.overdue.insert("host-n1".into());
        change(&mut world);
        world.step();
        let label = world.bootc_nodes["n1"].view.pool_label.as_deref();
        assert_eq!(label, expected, "{what}");
    }
}

#[test]
fn a_bootcnode_that_an_admin_deletes_comes_back() {
    let mut world = world(&["n1"], 1);
    world.step();
    world.edit("n1", |h| h.deleting = true);
    world.step();
    assert!(world.spec("n1").pool_name.is_empty(), "the agent releases n1 first");
    world.report("n1", |r| r.released = true);
    assert!(matches!(&world.step()[..], [BootcNodeWrite::Release { .. }]));
    assert!(matches!(&world.step()[..], [BootcNodeWrite::Create { .. }]));
}

#[test]
fn a_recreated_node_gets_a_new_bootcnode() {
    let mut world = world(&["n1"], 1);
    world.step();
    let mut new = node("n1");
    new.uid = "uid-new".into();
    world.nodes.insert("n1".into(), Entry::new(new));
    assert!(world.step().is_empty(), "no write before a live read");
    world.gone.insert("uid-n1".into());
    assert!(matches!(&world.step()[..], [BootcNodeWrite::Delete { .. }]));
    assert!(matches!(
        &world.step()[..],
        [BootcNodeWrite::Release { late: false, .. }]
    ));
    world.step();
    assert_eq!(world.spec("n1").node_uid, "uid-new");
}

#[test]
fn a_node_that_is_gone_is_cleaned_up() {
    let mut world = world(&["n1"], 1);
    world.step();
    world.nodes.clear();
    world.membership = Membership::default();
    assert!(world.step().is_empty(), "no write before a live read");
    world.gone.insert("uid-n1".into());
    world.step();
    world.step();
    assert!(world.bootc_nodes.is_empty());
}

#[test]
fn a_node_in_conflict_keeps_its_bootcnode() {
    let mut world = world(&["n1"], 1);
    let conflict = Conflict {
        node: "n1".into(),
        pools: vec!["a".into(), "b".into()],
        stays_in: None,
    };
    world.membership = Membership::default();
    world.membership.conflicts.insert("n1".into(), conflict.clone());
    world.step();
    let spec = world.spec("n1");
    assert!(spec.pool_name.is_empty() && spec.image.is_none());
    world.report("n1", |r| r.released = true);
    world.overdue.insert("host-n1".into());
    assert!(world.step().is_empty(), "the BootcNode stays to show the conflict");
    world.membership.conflicts.clear();
    world.membership.join("n1".into(), "a".into());
    world.step();
    assert!(world.spec("n1").image.is_some());
    let stays = Conflict {
        stays_in: Some("a".into()),
        ..conflict.clone()
    };
    world.membership.conflicts.insert("n1".into(), stays);
    assert!(world.step().is_empty(), "a member in conflict stays in its pool");
    world.membership = Membership::default();
    world.membership.conflicts.insert("n1".into(), conflict);
    world.step();
    world.report("n1", |r| r.released = true);
    world.step();
    assert_eq!(
        world.bootc_nodes["n1"].view.pool_label, None,
        "a released node in conflict loses its pool label"
    );
    world.report("n1", |r| r.released = true);
    world.membership.conflicts.clear();
    assert!(
        matches!(&world.step()[..], [BootcNodeWrite::Delete { .. }]),
        "no pool selects the node any more"
    );
}

#[test]
fn a_pause_reaches_nodes_not_yet_updated() {
    let mut world = world(&["done", "late"], 2);
    world.step();
    world.report("done", |r| r.images.booted = Some(digest(1)));
    world.report("late", |r| r.images.booted = Some(digest(9)));
    world.step();
    world.pause(true);
    assert_eq!(world.written(), ["late"]);
    assert!(world.spec("late").paused && !world.spec("done").paused);
    world.pause(false);
    assert_eq!(world.written(), ["late"]);
    assert!(!world.spec("late").paused);
    world.fleet_paused = true;
    assert_eq!(
        world.written(),
        ["late"],
        "a pause of the fleet counts as a pause of the pool"
    );
    world.terms.get_mut(&"a".into()).unwrap().target = Some(target(2));
    assert_eq!(world.written(), ["done", "late"]);
    assert!(
        world.spec("done").paused,
        "the pause is published together with the new image"
    );
}

#[test]
fn the_pools_medians_cost_no_write_of_their_own() {
    let mut world = world(&["n1"], 1);
    world.step();
    let medians = PhaseDurations {
        drain_seconds: Some(30),
        ..PhaseDurations::default()
    };
    world.terms.get_mut(&"a".into()).unwrap().spec.estimates = medians;
    assert!(world.step().is_empty());
    world.terms.get_mut(&"a".into()).unwrap().target = Some(target(3));
    assert_eq!(world.step().len(), 1);
    assert_eq!(world.spec("n1").estimates, medians);
}

#[test]
fn a_bootcnode_was_made_for_one_node() {
    let mut world = world(&["n1"], 1);
    world.step();
    for (published, owner, expected) in [
        ("u", Some("v"), Some("u")),
        // The BootcNode's spec names no Node.
        ("", Some("v"), Some("v")),
        ("", None, None),
    ] {
        world.edit("n1", |host| {
            host.owner = owner.map(str::to_owned);
            host.content.as_mut().unwrap().spec.node_uid = published.to_owned();
        });
        assert_eq!(made_for(&world.bootc_nodes["n1"].view), expected);
    }
}

#[test]
fn a_move_does_not_wait_for_the_image() {
    let mut world = world(&["n1"], 1);
    world.step();
    let terms = world.terms.get_mut(&"b".into()).unwrap();
    (terms.target, terms.resolving) = (None, true);
    world.membership.join("n1".into(), "b".into());
    world.step();
    let spec = world.spec("n1");
    assert!(spec.pool_name == "b" && spec.image.is_none());
}

#[test]
fn finalizer_and_owner_are_restored() {
    let ours = keys::FINALIZER_NODE.to_owned();
    let mine = "example.com/mine".to_owned();
    let mut world = world(&["n1"], 1);
    world.step();
    world.edit("n1", |host| host.finalizers = vec![mine.clone()]);
    let both = [mine.clone(), ours];
    assert_eq!(world.finalizers(), both);
    world.edit("n1", |host| host.owner = Some("another".to_owned()));
    assert_eq!(world.finalizers(), both, "a wrong owner is corrected");
    // The API server accepts no new finalizers on an object that is being deleted.
    world.edit("n1", |host| {
        (host.deleting, host.finalizers) = (true, vec![mine.clone()]);
    });
    assert_eq!(world.finalizers(), [mine]);
    world.report("n1", |report| report.released = true);
    assert!(world.step().is_empty(), "Berth's finalizer is removed already");
}

#[test]
fn an_unreadable_status_keeps_the_spec() {
    let mut world = world(&["n1"], 1);
    let platforms = ["v2", "v3"].map(|variant| PlatformDigest {
        architecture: "amd64".into(),
        variant: Some(variant.into()),
        digest: digest(if variant == "v2" { 2 } else { 3 }),
    });
    let target = world.terms.get_mut(&"a".into()).unwrap().target.as_mut().unwrap();
    target.platforms = platforms.into();
    world.step();
    world.report("n1", |report| {
        report.agent_version = Some("1".into());
        report.host.platform_variant = Some("v3".into());
    });
    world.step();
    let published = world.spec("n1").clone();
    assert_eq!(published.image.as_ref().map(|image| &image.digest), Some(&digest(3)));
    world.edit("n1", |host| {
        let content = host.content.as_mut().unwrap();
        (content.report, content.status_error) = (Report::default(), Some("status: bad".into()));
    });
    assert_eq!(world.step(), []);
    assert_eq!(*world.spec("n1"), published);
    // A node that moves to another pool gets the spec of that pool.
    world.membership = Membership::default();
    world.membership.join("n1".into(), "b".into());
    world.step();
    assert_eq!(world.spec("n1").pool_name, "b");
}
