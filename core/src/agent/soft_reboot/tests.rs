use std::time::Duration;

use berth_api::berth::{Berth, Offer};
use berth_api::digest::Digest;
use berth_api::names::{BootId, NodeName, NodeUid, PoolName};
use berth_api::node::{BootcNode, BootcNodeSpec, Deployment};

use super::*;
use crate::agent::facts::{ClusterNode, Deployments, Os, Past, SoftReboots, Undone};
use crate::agent::knowledge::{Event, Knowledge, Look, Services};
use crate::agent::node::NodeFacts;
use crate::{Moment, Now};

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn now() -> Now {
    Now {
        wall: jiff::Timestamp::UNIX_EPOCH,
        clock: Moment::after(Duration::from_secs(600)),
        chance: 0.5,
    }
}

fn services(boot: &str) -> Services {
    let mut services = Services::under(boot.into());
    services.soft_reboots.supported = true;
    services
}

/// Returns the knowledge of a node in boot b1 whose berth is committed for image 2. That image is staged, unlocked and
/// capable of a soft reboot.
fn knowledge() -> Knowledge {
    let mut knowledge = Knowledge::new("n1".into(), "b1".into(), Past::default(), &now());
    let spec = BootcNodeSpec {
        pool_name: "workers".to_owned(),
        reboot_policy: RebootPolicy::AllowSoftReboot,
        ..BootcNodeSpec::default()
    };
    knowledge.desired = Desired::of(Some(&BootcNode::new("n1", spec)));
    let (node, uid, boot) = (NodeName::from("n1"), NodeUid::from("u1"), BootId::from("b1"));
    let offer = Offer {
        node: node.clone(),
        uid: uid.clone(),
        target: digest(2),
        open_until: None,
    };
    let offered = Berth::new(PoolName::from("workers"), 0, 1).offered(offer).unwrap();
    let taken = offered.taken(&node, &uid, Some(digest(1)), boot.clone()).unwrap();
    let deployments = Deployments {
        booted: Deployment {
            digest: Some(digest(1)),
            ..Deployment::default()
        },
        staged: Some(Deployment {
            digest: Some(digest(2)),
            soft_reboot_capable: true,
            ..Deployment::default()
        }),
        ..Deployments::default()
    };
    let look = Look {
        os: Os::Bootc(Box::new(deployments)),
        rivals: vec![],
        finalization_failed: false,
    };
    knowledge.after(Event::Services(services("b1")), &now());
    knowledge.after(Event::Looked(look), &now());
    knowledge.after(Event::Berths(vec![taken.committed(boot).unwrap()]), &now());
    knowledge
}

#[test]
fn a_soft_reboot_needs_a_pool_an_image_and_a_host_that_allow_it() {
    let facts = knowledge().facts(&now());
    assert!(is_chosen(&facts));
    let mut policy = facts.clone();
    if let Desired::Member(member) = &mut policy.desired {
        member.reboot_policy = RebootPolicy::Reboot;
    }
    let mut old = facts.clone();
    old.host.soft_reboots.supported = false;
    let mut undoes = facts.clone();
    undoes.past.undone = Some(Undone {
        digest: digest(2),
        boot_id: "b1".into(),
        reason: String::new(),
        why: String::new(),
    });
    let mut unproven = facts.clone();
    unproven.past.unproven_boot = Some("b1".into());
    let mut without_berth = facts.clone();
    without_berth.berths = Some(vec![]);
    let mut all = vec![policy, old, undoes, unproven, without_berth];
    let changes: [fn(&mut Deployments); 4] = [
        |known| known.staged = None,
        |known| known.staged.as_mut().unwrap().soft_reboot_capable = false,
        |known| known.staged.as_mut().unwrap().locked = true,
        |known| known.backend.name = Backend::RpmOstree,
    ];
    for change in changes {
        let mut other = facts.clone();
        if let Os::Bootc(known) = &mut other.host.os {
            change(known);
        }
        all.push(other);
    }
    for facts in all {
        assert!(!is_chosen(&facts), "{facts:?}");
    }
}

#[test]
fn a_report_of_the_kubelet_from_before_the_soft_reboot_does_not_count() {
    let boot = BootId::after_soft_reboots("b1", 1);
    let began = jiff::Timestamp::from_millisecond(100_900).unwrap();
    for (seen, reported, counts) in [
        ("b1", Some(100), true),
        ("b1", Some(99), false),
        ("b1", None, false),
        ("b0", Some(100), false),
    ] {
        let mut knowledge = knowledge();
        let mut services = services(boot.as_str());
        services.soft_reboots = SoftReboots {
            supported: true,
            userspace_began: Some(began),
        };
        knowledge.after(Event::Services(services), &now());
        let node = NodeFacts {
            ready: true,
            boot_id: Some(seen.into()),
            ready_reported: reported.map(|second| jiff::Timestamp::from_second(second).unwrap()),
            ..node()
        };
        knowledge.after(Event::NodeRead(ClusterNode::Is(node)), &now());
        let facts = knowledge.facts(&now());
        let node = facts.cluster_node.get().unwrap();
        assert_eq!(node.reports_ready(&boot), counts, "{seen} {reported:?}");
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        uid: "u1".into(),
        resource_version: "1".into(),
        unschedulable: false,
        ready: false,
        boot_id: None,
        ready_reported: None,
        cordon: None,
        excluded: false,
        control_plane: false,
        not_ready_taint: None,
        conditions: Default::default(),
        signs: Default::default(),
    }
}
