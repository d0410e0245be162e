//! The images deployed to this node, newest first. The controller adds them up to the history of a pool. Pure.

use berth_api::node::{DesiredImage, NodeDeployment, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent::facts::{AgentFacts, Desired};

/// Number of deployments that are kept.
pub const MAX_DEPLOYMENTS: usize = 3;

/// Returns the deployments, given the previous ones. They are stored only in the status: if a report is lost, the next
/// one has the new deployment again.
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
            // The node joined the pool with this image. Use the pool's digest and version of it as soon as the pool
            // wants this image.
            if newest.deployed_time.is_none() {
                (newest.digest, newest.version) = (digest, version);
            }
        }
        // On the way to the next image, or back from one that does not boot: nothing is deployed yet.
        Some(_) if phase != Phase::Updated => {}
        newest => {
            // The image that a new member already runs was not deployed by this pool.
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

/// Returns the pool's digest and version of the image, or the host's if the pool does not want this image.
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

/// Puts a deployment first and drops an older one of the same image and pool, keeping its time if the new one has
/// none.
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
