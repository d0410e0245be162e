//! The last images deployed to this node, newest first. The controller merges them into the history of the pool.

use berth_api::node::{DesiredImage, NodeDeployment, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent::facts::{AgentFacts, Desired};

/// Number of deployments that are kept.
pub const MAX_DEPLOYMENTS: usize = 3;

/// Returns the new list. `before` is the list in the BootcNode's status: if a write fails, the next report repeats it.
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
            // The node joined with this image. As soon as the pool wants it, record the pool's digest and version.
            if newest.deployed_time.is_none() {
                (newest.digest, newest.version) = (digest, version);
            }
        }
        // The node is changing to the next image, or back from one that does not boot: nothing is deployed yet.
        Some(_) if phase != Phase::Updated => {}
        newest => {
            // A new member's image was not deployed by this pool, so it has no time.
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

/// Returns the pool's digest and version of the booted image, or the host's if the pool does not want this image.
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

/// Inserts a deployment at the front. An older one of the same image and pool is dropped, but its time is kept.
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
