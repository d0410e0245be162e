//! Checks pools against the registries that the fleet allows.

use berth_api::condition::{self, CommonReason};
use berth_api::fleet::BootcFleetSpec;
use berth_api::image_ref::allowed;

use crate::controller::pool::Pool;
use crate::text::few;

/// Reason of `ImageResolved` for a pool whose registry is not allowed.
pub const NOT_ALLOWED: CommonReason = CommonReason::RegistryNotAllowed;

impl Pool {
    /// Sets [`Pool::refused`] if the fleet does not allow the registry of the pool's image. An invalid reference is not
    /// checked here: the condition `ImageResolved` reports it. `fleet` is `None` if the BootcFleet cannot be read. A
    /// pool that was refused then stays refused.
    #[must_use]
    pub fn guarded(mut self, fleet: Option<&BootcFleetSpec>) -> Pool {
        let reference = self.object.as_ref().and_then(|o| o.spec.image_ref().get().ok());
        self.refused = match (fleet, reference) {
            (Some(fleet), Some(reference)) if !allowed(&fleet.allowed_registries, reference) => Some(format!(
                "{reference} is in none of the BootcFleet's allowedRegistries ({}); the pool keeps its previous image",
                few(fleet.allowed_registries.iter().cloned())
            )),
            (None, Some(reference)) if self.was_refused() => Some(format!(
                "the BootcFleet cannot be read, and its allowedRegistries refused this pool before: the pool keeps its \
                 previous image, and {reference} is checked as soon as the BootcFleet is repaired"
            )),
            _ => None,
        };
        self
    }

    fn was_refused(&self) -> bool {
        let status = self.object.as_ref().and_then(|object| object.status.as_ref());
        let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
        condition::find(conditions, condition::pool::IMAGE_RESOLVED).is_some_and(|c| c.reason == NOT_ALLOWED.as_str())
    }
}

#[cfg(test)]
mod tests {
    use berth_api::PoolName;
    use berth_api::condition::Verdict;
    use berth_api::pool::BootcNodePool;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    /// Returns a pool with this reference. `refused`: message of its refusal in the last pass; `None` if it was
    /// allowed.
    fn pool(reference: &str, refused: Option<&str>) -> Pool {
        let spec = json!({ "nodeSelector": {}, "image": { "ref": reference } });
        let object = json!({ "metadata": { "name": "workers" }, "spec": spec, "status": {} });
        let mut object: BootcNodePool = serde_json::from_value(object).unwrap();
        let verdict = match refused {
            Some(words) => Verdict::no(NOT_ALLOWED, words),
            None => Verdict::yes(CommonReason::Resolved, "it is resolved"),
        };
        let conditions = &mut object.status.as_mut().unwrap().conditions;
        condition::set(
            conditions,
            condition::pool::IMAGE_RESOLVED,
            verdict,
            None,
            Timestamp::UNIX_EPOCH,
        );
        Pool {
            object: Some(object),
            ..Pool::orphaned(PoolName::from("workers"))
        }
    }

    #[test]
    fn a_refused_pool_stays_refused_without_the_fleet() {
        let fleet: BootcFleetSpec = serde_json::from_value(json!({ "allowedRegistries": ["quay.io/a"] })).unwrap();
        let (good, bad) = ("quay.io/a/os:1", "quay.io/b/os:1");
        for (reference, before, fleet, expected) in [
            (good, None, Some(&fleet), None),
            (good, Some("no"), Some(&fleet), None),
            (bad, None, Some(&fleet), Some("is in none of")),
            (bad, Some("no"), None, Some("the BootcFleet cannot be read")),
            // The new reference may be allowed, but the fleet's registries are unknown.
            (good, Some("no"), None, Some("the BootcFleet cannot be read")),
            (good, None, None, None),
            ("nonsense", Some("no"), None, None),
        ] {
            let refused = pool(reference, before).guarded(fleet).refused;
            let is_so = match (&refused, expected) {
                (Some(words), Some(expected)) => words.contains(expected) && words.contains(reference),
                (refused, expected) => refused.is_none() && expected.is_none(),
            };
            assert!(is_so, "{reference} {before:?}: {refused:?}");
            // Another pass without the fleet refuses the pool again, with the same message.
            if let (Some(words), None) = (&refused, fleet) {
                assert_eq!(pool(reference, Some(words)).guarded(None).refused, refused);
            }
        }
    }
}
