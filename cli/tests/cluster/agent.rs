//! Agents of the test cluster: each writes the status of its node.

use std::time::Duration;

use berth_api::berth::lease;
use berth_api::node::timeline::{Chapter, ChapterName, ImageVersion, NodeUpdate, ProofPart, ProofStep};
use berth_api::node::{BootcNode, BootcNodeStatus, Deployment, DrainBlocker};
use berth_api::{BootId, NodeName, waves};
use berth_core::agent::facts::{
    AgentFacts, Checks, ClusterNode, Deployments, Desired, DrainFacts as AgentsDrain, Guard, GuardFacts, HostHealth,
    Os, Past, PullFacts,
};
use berth_core::agent::knowledge::Knowledge;
use berth_core::agent::node::{CordonRecord, NodeFacts as AgentsNode};
use berth_core::agent::report::{GuardUnit, Machine, Subject, report};
use berth_core::agent::step::step;
use berth_core::controller::view::NodeView;
use berth_core::{Moment, Now};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;

use super::facts::{DrainFacts, NodeFacts};
use super::{World, manifest, merge, object};

impl World<'_> {
    /// Writes each agent's status. If `since` is true, the status is from the start of the node's current state,
    /// otherwise from the agent's last report.
    pub(super) fn report(&mut self, since: bool) {
        for index in 0..self.objects.bootc_nodes.len() {
            let bootc = &self.objects.bootc_nodes[index];
            let name = bootc.name_any();
            let Some(facts) = self.facts.nodes.get(&name).filter(|facts| facts.runs > 0) else {
                continue;
            };
            let ago = if since {
                facts.since.max(facts.heard())
            } else {
                facts.heard()
            };
            let status = self.status(bootc, facts, self.now - ago);
            let bootc = &mut self.objects.bootc_nodes[index];
            bootc.status = Some(status);
        }
    }

    fn status(&self, bootc: &BootcNode, facts: &NodeFacts, at: Timestamp) -> BootcNodeStatus {
        let seen = self.agent_facts(bootc, facts, at);
        let step = step(&seen);
        let before = bootc.status.clone().unwrap_or_else(|| {
            let mut status = json!({});
            merge(&mut status, &facts.was);
            object(status)
        });
        let installed = facts.installed.clone().unwrap_or_else(|| self.facts.version(1));
        let machine = Machine {
            guard_unit: Some(match &facts.guard_failure {
                Some(why) => GuardUnit::Missing(why.clone()),
                None => GuardUnit::Installed,
            }),
            boot_safeguards: None,
            bootc_version: None,
            platform_variant: None,
            boot_image: Some(Some(object(
                json!({"version": installed, "source": "/sysroot/.bootc-aleph.json"}),
            ))),
            firstboot: before.firstboot.clone(),
        };
        let subject = Subject {
            generation: bootc.metadata.generation,
            step: &step,
            machine: &machine,
            heartbeat: Time::from(self.now - facts.heard()),
            conditions: &before.conditions,
        };
        report(&seen, &subject, &before)
    }

    fn agent_facts(&self, bootc: &BootcNode, facts: &NodeFacts, at: Timestamp) -> AgentFacts {
        let name = bootc.name_any();
        let node = self.objects.nodes.iter().find(|node| node.name() == name).unwrap();
        let boot = BootId::from(self.facts.boot_id(&name));
        let now = Now {
            wall: at,
            clock: Moment::default(),
            chance: 0.5,
        };
        let mut seen = Knowledge::new(NodeName::from(name.as_str()), boot.clone(), Past::default(), &now).facts(&now);
        seen.desired = Desired::of(Some(bootc));
        seen.host.os = Os::Bootc(Box::new(Deployments {
            backend: object(
                facts
                    .was
                    .get("backend")
                    .cloned()
                    .unwrap_or_else(|| json!({"name": "Bootc", "reason": "BootcUsable"})),
            ),
            booted: self.deployment(facts, facts.runs, false),
            staged: facts.staged.map(|number| Deployment {
                soft_reboot_capable: facts.soft_reboot_capable,
                ..self.deployment(facts, number, true)
            }),
            ..Deployments::default()
        }));
        seen.host.fresh = true;
        seen.host.clock_synchronized = Some(!facts.clock_off);
        seen.host.rivals.clone_from(&facts.rivals);
        seen.host.health = Some(HostHealth {
            checks: match facts.failed_checks.as_slice() {
                [] => Checks::Passed,
                failures => Checks::Failed(failures.to_vec()),
            },
            ..HostHealth::default()
        });
        seen.host.pull = facts.pulls.map(|progress| PullFacts {
            digest: manifest(2),
            progress: (progress.bytes > 0).then_some(progress),
        });
        seen.cluster_node = ClusterNode::Is(agents_node(&node.view, self.facts.cordoned_under(&name), boot));
        let berths = self.objects.leases.iter().filter_map(|lease| lease::read(lease).ok());
        seen.berths = Some(
            berths
                .filter(|berth| berth.node().is_some_and(|(node, _)| node.as_str() == name))
                .collect(),
        );
        seen.fenced = true;
        seen.guard = GuardFacts {
            answer: if facts.unguarded {
                Guard::Allows(
                    "this node's agent could write Lease workers-0 without limits; apply admission-policies.yaml"
                        .to_owned(),
                )
            } else {
                Guard::Refuses
            },
            next_try: Duration::from_secs(600),
            silence: None,
        };
        if let Some(drain) = &facts.drain {
            seen.drain = drained(drain, self.now - drain.since, at);
        }
        seen.past = facts.past.clone();
        seen.past.failure.clone_from(&facts.failure);
        if let (Some(took), true) = (self.facts.took, seen.past.timeline.updates.is_empty()) {
            seen.past.timeline.updates = vec![measured(facts.runs, took, self.now - SignedDuration::from_hours(100))];
        }
        seen
    }

    fn deployment(&self, facts: &NodeFacts, number: u8, locked: bool) -> Deployment {
        Deployment {
            image: format!("{}@{}", super::REPOSITORY, manifest(number)),
            digest: Some(manifest(number)),
            version: Some(self.facts.version(number)),
            architecture: Some(facts.architecture().to_owned()),
            locked,
            ..Deployment::default()
        }
    }
}

/// Returns the progress, at the time `at`, of a drain that began at `began`.
fn drained(facts: &DrainFacts, began: Timestamp, at: Timestamp) -> AgentsDrain {
    let pods = facts.pods.iter().map(|(pod, reason)| DrainBlocker {
        pod: pod.clone(),
        reason: reason.clone(),
        since: Time::from(began),
    });
    AgentsDrain {
        elapsed: Duration::try_from(at.duration_since(began)).unwrap_or_default(),
        blockers: pods.collect(),
        ..AgentsDrain::default()
    }
}

/// `berth`: name of the berth that the node is cordoned for.
fn agents_node(node: &NodeView, berth: Option<String>, boot: BootId) -> AgentsNode {
    AgentsNode {
        uid: node.uid.clone(),
        resource_version: "1".to_owned(),
        unschedulable: node.unschedulable,
        ready: node.ready,
        boot_id: Some(boot),
        cordon: berth.map(|berth| object::<CordonRecord>(json!({ "berth": berth }))),
        excluded: node.labels.contains_key(berth_api::keys::LABEL_EXCLUDE),
        control_plane: waves::is_control_plane(&node.labels),
        not_ready_taint: None,
        ready_reported: None,
        conditions: Default::default(),
        signs: Default::default(),
    }
}

/// Returns an update to this image whose pull, drain and reboot took this many seconds.
fn measured(to: u8, [pull, drain, reboot]: [i64; 3], began: Timestamp) -> NodeUpdate {
    let lengths = [
        (ChapterName::Prepared, pull),
        (ChapterName::Waited, 60),
        (ChapterName::Drained, drain),
        (ChapterName::Rebooted, reboot),
        (ChapterName::Proven, 0),
        (ChapterName::Completed, 0),
    ];
    let mut at = began;
    let chapters = lengths.map(|(name, seconds)| {
        let start = at;
        at += SignedDuration::from_secs(seconds);
        Chapter {
            name,
            start_time: Some(Time::from(start)),
            end_time: Some(Time::from(at)),
        }
    });
    NodeUpdate {
        from: None,
        to: ImageVersion {
            digest: manifest(to),
            version: None,
        },
        chapters: chapters.into(),
        proof: proof(),
        clock_set: false,
    }
}

/// Returns the parts of the proof of a healthy boot.
fn proof() -> Vec<ProofStep> {
    let seconds = [0, 3, 3, 4, 9, 10, 10];
    let parts = ProofPart::ALL.iter().zip(seconds);
    parts
        .map(|(name, seconds)| ProofStep { name: *name, seconds })
        .collect()
}
