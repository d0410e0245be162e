//! Stores a berth as a `coordination.k8s.io/v1` Lease. Reading is strict: reading an edited or half-written Lease
//! fails with an error that names the cause. An unreadable Lease counts as held wherever capacity is counted.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, MicroTime, ObjectMeta};

use super::state::{Berth, BerthState, Closed, ClosedReason, HoldPhase, Holding, Offer, Outcome};
use crate::keys;
use crate::names::{BootId, NodeName, NodeUid, PoolName};

/// Error for a Lease that cannot be read as a berth.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Lease {lease} is not a valid berth: {what}; restore the Lease, or delete it if no node holds it")]
pub struct LeaseError {
    /// Name of the Lease.
    pub lease: String,
    /// Cause of the error.
    pub what: String,
}

const CLOSED: &str = "closed:";
const OFFERED: &str = "offered:";
/// Longest name of a Node, in bytes: the API server's limit for a DNS subdomain.
const MAX_NODE_NAME: usize = 253;

struct Reader<'a> {
    name: &'a str,
    annotations: Option<&'a BTreeMap<String, String>>,
}

impl<'a> Reader<'a> {
    fn error<T>(&self, what: impl Into<String>) -> Result<T, LeaseError> {
        Err(LeaseError {
            lease: self.name.to_owned(),
            what: what.into(),
        })
    }

    fn optional(&self, key: &str) -> Option<&'a str> {
        self.annotations?.get(key).map(String::as_str)
    }

    fn required(&self, key: &str) -> Result<&'a str, LeaseError> {
        match self.optional(key) {
            Some(value) if !value.is_empty() => Ok(value),
            _ => self.error(format!("annotation {key} is missing")),
        }
    }

    fn parsed<T: std::str::FromStr>(&self, key: &str) -> Result<T, LeaseError> {
        let text = self.required(key)?;
        text.parse()
            .or_else(|_| self.error(format!("annotation {key} has the invalid value {text:?}")))
    }

    fn maybe<T: std::str::FromStr>(&self, key: &str) -> Result<Option<T>, LeaseError> {
        self.optional(key).map(|_| self.parsed(key)).transpose()
    }

    /// Checks that the API server could accept this name for a Node. Other text could control an admin's terminal.
    fn node(&self, name: &str) -> Result<NodeName, LeaseError> {
        if name.is_empty() || name.len() > MAX_NODE_NAME || !name.bytes().all(is_part_of_name) {
            return self.error(format!("{name:?} is not the name of a Node"));
        }
        Ok(NodeName::from(name))
    }

    fn outcome(&self) -> Result<Option<Outcome>, LeaseError> {
        let word = self.optional(keys::ANNOTATION_OUTCOME);
        word.map(|w| Outcome::from_word(w).map_or_else(|| self.error(format!("the outcome {w:?} is unknown")), Ok))
            .transpose()
    }

    fn closed(&self, reason: &str) -> Result<BerthState, LeaseError> {
        let Some(reason) = ClosedReason::from_word(reason) else {
            return self.error(format!("the closing reason {reason:?} is unknown"));
        };
        let last_node = self.optional(keys::ANNOTATION_LAST_NODE);
        let last_target = self.maybe(keys::ANNOTATION_TARGET)?;
        Ok(BerthState::Closed(Closed {
            reason,
            last_node: last_node.map(|name| self.node(name)).transpose()?,
            last_target,
            outcome: self.outcome()?,
        }))
    }

    fn offered(&self, node: &str) -> Result<BerthState, LeaseError> {
        Ok(BerthState::Offered(Offer {
            node: self.node(node)?,
            uid: NodeUid::from(self.required(keys::ANNOTATION_NODE_UID)?),
            target: self.parsed(keys::ANNOTATION_TARGET)?,
            open_until: self.maybe(keys::ANNOTATION_OPEN_UNTIL)?,
        }))
    }

    fn held(&self, node: &str) -> Result<BerthState, LeaseError> {
        let phase = match self.required(keys::ANNOTATION_PHASE)? {
            "Taken" => HoldPhase::Taken,
            "Committed" => HoldPhase::Committed,
            "Releasing" => match self.outcome()? {
                Some(outcome) => HoldPhase::Releasing(outcome),
                None => return self.error("the phase is Releasing, but the outcome is missing"),
            },
            other => return self.error(format!("the phase {other:?} is unknown")),
        };
        Ok(BerthState::Held(Holding {
            node: self.node(node)?,
            uid: NodeUid::from(self.required(keys::ANNOTATION_NODE_UID)?),
            target: self.parsed(keys::ANNOTATION_TARGET)?,
            from: self.maybe(keys::ANNOTATION_FROM)?,
            boot_id: BootId::from(self.required(keys::ANNOTATION_BOOT_ID)?),
            phase,
            revoke: self.optional(keys::ANNOTATION_REVOKE).map(str::to_owned),
            open_until: self.maybe(keys::ANNOTATION_OPEN_UNTIL)?,
        }))
    }
}

/// True if the API server accepts this byte in the name of a Node.
fn is_part_of_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte)
}

/// Reads a berth. Fails if [`write`] could not have written this Lease.
pub fn read(lease: &Lease) -> Result<Berth, LeaseError> {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    let reader = Reader {
        name,
        annotations: lease.metadata.annotations.as_ref(),
    };
    let pool = lease.metadata.labels.as_ref().and_then(|l| l.get(keys::LABEL_POOL));
    let Some(pool) = pool else {
        return reader.error(format!("label {} is missing", keys::LABEL_POOL));
    };
    let index = name
        .strip_prefix(pool.as_str())
        .and_then(|rest| rest.strip_prefix('-'))
        .and_then(|n| n.parse().ok())
        // Only the canonical name counts: `workers-02` is not berth 2.
        .filter(|index: &u32| name.ends_with(&format!("-{index}")));
    let Some(index) = index else {
        return reader.error(format!("the name of the Lease does not have the form {pool}-NUMBER"));
    };
    let holder = lease
        .spec
        .as_ref()
        .and_then(|s| s.holder_identity.as_deref())
        .unwrap_or_default();
    let state = if let Some(reason) = holder.strip_prefix(CLOSED) {
        reader.closed(reason)?
    } else if let Some(node) = holder.strip_prefix(OFFERED) {
        reader.offered(node)?
    } else if holder.is_empty() || holder.contains(':') {
        return reader.error(format!("the holderIdentity {holder:?} is invalid"));
    } else {
        reader.held(holder)?
    };
    Ok(Berth {
        pool: PoolName::from(pool.as_str()),
        index,
        epoch: reader.parsed(keys::ANNOTATION_EPOCH)?,
        state,
    })
}

fn annotations(berth: &Berth) -> Vec<(&'static str, Option<String>)> {
    let mut uid = None;
    let target;
    let mut from = None;
    let mut boot_id = None;
    let mut phase = None;
    let mut open_until = None;
    let mut revoke = None;
    let mut outcome = None;
    let mut last_node = None;
    match &berth.state {
        BerthState::Closed(c) => {
            outcome = c.outcome;
            last_node = c.last_node.as_ref().map(ToString::to_string);
            target = c.last_target.as_ref().map(ToString::to_string);
        }
        BerthState::Offered(o) => {
            uid = Some(o.uid.to_string());
            target = Some(o.target.to_string());
            open_until = o.open_until.map(|t| t.to_string());
        }
        BerthState::Held(h) => {
            uid = Some(h.uid.to_string());
            target = Some(h.target.to_string());
            from = h.from.as_ref().map(ToString::to_string);
            boot_id = Some(h.boot_id.to_string());
            revoke = h.revoke.clone();
            open_until = h.open_until.map(|t| t.to_string());
            phase = Some(match h.phase {
                HoldPhase::Taken => "Taken",
                HoldPhase::Committed => "Committed",
                HoldPhase::Releasing(_) => "Releasing",
            });
            if let HoldPhase::Releasing(o) = h.phase {
                outcome = Some(o);
            }
        }
    }
    vec![
        (keys::ANNOTATION_EPOCH, Some(berth.epoch.to_string())),
        (keys::ANNOTATION_NODE_UID, uid),
        (keys::ANNOTATION_TARGET, target),
        (keys::ANNOTATION_FROM, from),
        (keys::ANNOTATION_BOOT_ID, boot_id),
        (keys::ANNOTATION_PHASE, phase.map(str::to_owned)),
        (keys::ANNOTATION_OPEN_UNTIL, open_until),
        (keys::ANNOTATION_REVOKE, revoke),
        (keys::ANNOTATION_OUTCOME, outcome.map(|o| o.as_str().to_owned())),
        (keys::ANNOTATION_LAST_NODE, last_node),
    ]
}

fn holder(berth: &Berth) -> String {
    match &berth.state {
        BerthState::Closed(closed) => format!("{CLOSED}{}", closed.reason.as_str()),
        BerthState::Offered(offer) => format!("{OFFERED}{}", offer.node),
        BerthState::Held(holding) => holding.node.to_string(),
    }
}

/// Writes a berth into the Lease that it was read from. Fields of other owners stay. UID and resourceVersion also stay,
/// so that the PUT is a compare-and-swap.
pub fn write(berth: &Berth, lease: &mut Lease, now: Timestamp) {
    let annotations_map = lease.metadata.annotations.get_or_insert_default();
    for (key, value) in annotations(berth) {
        match value {
            Some(value) => annotations_map.insert(key.to_owned(), value),
            None => annotations_map.remove(key),
        };
    }
    let labels = lease.metadata.labels.get_or_insert_default();
    labels.insert(keys::LABEL_POOL.to_owned(), berth.pool.to_string());
    // A closed berth keeps the label of its last node, so that the node's agent notices when another writer closes its
    // berth.
    if let Some((node, _)) = berth.node() {
        labels.insert(keys::LABEL_NODE.to_owned(), node.label().into_owned());
    }
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(holder(berth));
    spec.renew_time = Some(MicroTime::from(now));
}

/// Removes everything from a Lease that is not part of the protocol, before the controller writes the Lease. Otherwise
/// an agent could fill its Lease up to the API server's limits, and each later write would fail. Finalizers and owners
/// stay, because the admission policy keeps agents from changing them.
pub fn clean(lease: &mut Lease) {
    let metadata = &mut lease.metadata;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| keys::BERTH_ANNOTATIONS.contains(&key.as_str()));
    }
    if let Some(labels) = &mut metadata.labels {
        labels.retain(|key, _| keys::BERTH_LABELS.contains(&key.as_str()));
    }
    metadata.generate_name = None;
    // An empty entry makes the API server drop the field owners that were recorded so far.
    metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
    if let Some(spec) = &mut lease.spec {
        *spec = LeaseSpec {
            holder_identity: spec.holder_identity.take(),
            lease_duration_seconds: spec.lease_duration_seconds,
            renew_time: spec.renew_time.take(),
            ..LeaseSpec::default()
        };
    }
}

/// Returns the Lease of a new berth. `reboot_timeout` becomes `leaseDurationSeconds`, which is only for people and
/// dashboards, because a berth never expires.
pub fn create(berth: &Berth, namespace: &str, reboot_timeout: Duration, now: Timestamp) -> Lease {
    let mut lease = Lease {
        metadata: ObjectMeta {
            name: Some(berth.name()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            lease_duration_seconds: Some(i32::try_from(reboot_timeout.as_secs()).unwrap_or(i32::MAX).max(1)),
            ..LeaseSpec::default()
        }),
    };
    write(berth, &mut lease, now);
    lease
}
