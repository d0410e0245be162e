//! `poll`: requests that the controller check a pool's tag now.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use berth_api::Digest;
use berth_api::condition::{self, pool as types};
use berth_api::keys;
use berth_api::pool::BootcNodePool;
use berth_shell::retry;
use jiff::Timestamp;
use kube::api::Patch;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::apply::params;
use crate::text::{clean, short};

/// First delay between two checks of the pool's status, without jitter.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Longest delay between two checks of the pool's status.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Reasons of `ImageResolved` that are set only after the registry has answered.
const ANSWERED: [&str; 5] = [
    "Resolved",
    "ImageAvailable",
    "MinimumAge",
    "NoSuchPlatform",
    "BootImageSkew",
];

/// Requests a poll of the pool's tag, waits for the controller, and describes the result. Fails if the controller or
/// the registry does not answer.
pub async fn poll(client: &Client, pool: &str, timeout: Duration) -> Result<String> {
    let pools = Api::<BootcNodePool>::all(client.clone());
    let token = Timestamp::now().to_string();
    let patch = json!({ "metadata": { "annotations": { keys::ANNOTATION_POLL_REQUESTED_AT: token } } });
    let patched = pools.patch(pool, &params(), &Patch::Merge(patch)).await;
    patched.with_context(|| format!("cannot request a poll of pool {pool}"))?;
    let waited = tokio::time::timeout(timeout, acted(&pools, pool, &token)).await;
    let Ok(found) = waited else {
        bail!(
            "the controller has not answered within {} s; the request is still pending and is done when status.pollRequest \
             of pool {pool} is {token}; check the controller: kubectl get pods -n berth-system",
            timeout.as_secs()
        );
    };
    found_words(&found?).map_err(anyhow::Error::msg)
}

/// Waits until the controller has acted on this request or a later request. Returns the pool with the result.
async fn acted(pools: &Api<BootcNodePool>, name: &str, token: &str) -> Result<BootcNodePool> {
    let mut tries = 0;
    loop {
        tries += 1;
        let pool = pools
            .get(name)
            .await
            .with_context(|| format!("cannot read pool {name}"))?;
        let obeyed = pool.status.as_ref().and_then(|s| s.poll_request.as_deref());
        let asked = pool.annotations().get(keys::ANNOTATION_POLL_REQUESTED_AT);
        if obeyed.is_some_and(|obeyed| obeyed == token || Some(obeyed) == asked.map(String::as_str)) {
            return Ok(pool);
        }
        tokio::time::sleep(retry::delay(tries, CHECK_INTERVAL, CHECK_INTERVAL_MAX)).await;
    }
}

/// Describes the result of a poll. The error gives the reason why the tag could not be checked, or why the reference is
/// not resolved.
pub fn found_words(pool: &BootcNodePool) -> Result<String, String> {
    let name = pool.name_any();
    let status = pool.status.clone().unwrap_or_default();
    let Some(condition) = condition::find(&status.conditions, types::IMAGE_RESOLVED) else {
        return Err(format!(
            "pool {name} has no condition ImageResolved yet; run the command again"
        ));
    };
    let message = clean(&condition.message);
    if pool.metadata.deletion_timestamp.is_some() {
        return Err(format!("pool {name} is being deleted; its tag is no longer checked"));
    }
    if condition.status != "True" || !ANSWERED.contains(&condition.reason.as_str()) {
        return Err(format!("pool {name}: {}: {message}", condition.reason));
    }
    Ok(match (&status.available, &status.target) {
        (Some(available), _) => {
            let image = image_words(available.version.as_deref(), &available.digest);
            format!("Pool {name}: the tag points to {image}, which the pool does not use yet.\n  {message}\n")
        }
        (None, Some(target)) => {
            let image = image_words(target.version.as_deref(), &target.digest);
            format!(
                "Pool {name}: {} points to {image}, which the pool already uses.\n",
                target.image
            )
        }
        (None, None) => format!("Pool {name}: {message}\n"),
    })
}

fn image_words(version: Option<&str>, digest: &Digest) -> String {
    match version {
        Some(version) => format!("{} ({})", clean(version), short(digest)),
        None => short(digest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_is_not_adopted_is_an_error() {
        fn pool(status: &str) -> BootcNodePool {
            let pool = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": "p" },
                "spec": { "image": { "ref": "quay.io/os:2" }, "nodeSelector": {} },
                "status": {
                    "target": { "image": "quay.io/os:1", "digest": format!("sha256:{}", "1".repeat(64)), "platforms": [] },
                    "conditions": [{
                        "type": "ImageResolved", "status": status, "reason": "BootImageSkew",
                        "message": "quay.io/os:2 has nothing for n1", "lastTransitionTime": "2026-01-01T00:00:00Z",
                    }],
                },
            });
            serde_json::from_value::<BootcNodePool>(pool).unwrap()
        }
        assert!(found_words(&pool("True")).is_ok());
        assert!(found_words(&pool("False")).unwrap_err().contains("has nothing for n1"));
        let mut deleted = pool("True");
        let at = "\"2026-01-01T00:00:00Z\"";
        deleted.metadata.deletion_timestamp = Some(serde_json::from_str(at).unwrap());
        assert!(found_words(&deleted).is_err());
    }
}
