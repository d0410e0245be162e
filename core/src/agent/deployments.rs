//! The last images deployed to this node, newest first. The controller merges them into the history of the pool.

use berth_api::node::{DesiredImage, NodeDeployment, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent::facts::{AgentFacts, Desired};

/// Most entries of `status.deployments` in a BootcNode.
pub const MAX_DEPLOYMENTS: usize = 3;

/// Returns the new list of deployments. `before` is the list in the BootcNode's current status. If the write of a
/// report fails, the next report is computed from the same list.
pub fn record(facts: &AgentFacts, phase: Phase, before: &[NodeDeployment]) -> Vec<NodeDeployment> {
    let mut deployments = before.to_vec();
    let (Desired::Member(member), Some(known)) = (&facts.desired, facts.host.os.deployments()) else {
        return deployments;
    };
    let Some(booted) = &known.booted.digest else {
        return deployments;
    };
    let desired = member.image.as_ref().filter(|image| image.digest == *booted);
    let (digest, version) = names(desired, booted, known.booted.version.as_ref());
    let newest = deployments
        .first_mut()
        .filter(|newest| newest.pool == member.pool.as_str());
    match newest {
        Some(newest) if newest.manifest == *booted => {
            // The node joined the pool with this image. As soon as the pool publishes the same image, take over the
            // pool's digest and version.
            if newest.deployed_time.is_none() {
                (newest.digest, newest.version) = (digest, version);
            }
        }
        // The booted image is not deployed yet: it is unproven, or the node is between two images.
        Some(_) if phase != Phase::Updated => {}
        newest => {
            // The pool did not deploy the image that a new member brought with it, so that entry has no time.
            let deployed_time = newest.is_some().then(|| Time::from(facts.now));
            let new = NodeDeployment {
                pool: member.pool.to_string(),
                digest,
                manifest: booted.clone(),
                version,
                deployed_time,
            };
            remember(&mut deployments, new);
        }
    }
    deployments
}

/// Returns the digest and version to record for the booted image: as the pool publishes them, or else as the host
/// reports them.
fn names(
    desired: Option<&DesiredImage>,
    booted: &berth_api::Digest,
    version: Option<&String>,
) -> (berth_api::Digest, Option<String>) {
    match desired {
        Some(image) => (image.index_digest.clone(), image.version.clone().or(version.cloned())),
        None => (booted.clone(), version.cloned()),
    }
}

/// Inserts a deployment at the front and removes an older entry for the same image and pool. If the new entry has no
/// time, it gets the time of the old one.
fn remember(deployments: &mut Vec<NodeDeployment>, mut new: NodeDeployment) {
    let same = deployments
        .iter()
        .position(|old| old.pool == new.pool && old.manifest == new.manifest);
    if let Some(same) = same {
        let old = deployments.remove(same);
        new.deployed_time = new.deployed_time.or(old.deployed_time);
    }
    deployments.insert(0, new);
    deployments.truncate(MAX_DEPLOYMENTS);
}
