//! The images that this node was deployed to, the newest first: what the pools' histories are added up from. Pure.

use berth_api::node::{DesiredImage, NodeDeployment, Phase};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::agent::facts::{Desired, Facts};

/// Number of deployments that are remembered.
pub const MAX_DEPLOYMENTS: usize = 3;

/// The deployments, given those before. The status itself is the memory: a report that was lost is made again.
pub fn record(facts: &Facts, phase: Phase, before: &[NodeDeployment]) -> Vec<NodeDeployment> {
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
            // The image that it was found with turns out to be one that the pool knows.
            if newest.deployed_time.is_none() {
                (newest.digest, newest.version) = (digest, version);
            }
        }
        // On the way from one image to the next, or back from one that does not boot: nothing is deployed yet.
        Some(_) if phase != Phase::Updated => {}
        newest => {
            // The image that a new member runs already is not the work of this pool.
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

/// Digest and version by which the pool knows an image; those of the host for one that the pool does not ask for.
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

/// Puts a deployment before all others. One of the same image in the same pool is forgotten, but for its time where the new
/// one has none.
fn remember(deployments: &mut Vec<NodeDeployment>, mut new: NodeDeployment) {
    let same = |old: &mut NodeDeployment| old.pool == new.pool && old.manifest == new.manifest;
    if let Some(old) = deployments.extract_if(.., same).next() {
        new.deployed_time = new.deployed_time.or(old.deployed_time);
    }
    deployments.insert(0, new);
    deployments.truncate(MAX_DEPLOYMENTS);
}
