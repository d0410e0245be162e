//! Conditions of a Node that make it unavailable, and the findings about them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;

use super::kind::Kind;
use super::{Finding, Subject};
use crate::insight::Unavailable;

/// Seconds that a Node may be NotReady before a finding reports it.
const NOT_READY_GRACE: i64 = 5 * 60;
/// Seconds that a Node may have another bad condition before a finding reports it.
const PRESSURE_GRACE: i64 = 60;

/// Returns a finding for each of a Node's conditions that has made the Node unavailable for longer than its grace time.
pub fn findings(subject: &Subject, conditions: &[NodeCondition], now: Timestamp) -> Vec<Finding> {
    conditions.iter().filter_map(|c| finding(subject, c, now)).collect()
}

/// Returns why a Node with this condition is unavailable; `None` if the condition does not make it unavailable.
pub fn reason(c: &NodeCondition) -> Option<Unavailable> {
    match (c.type_.as_str(), c.status.as_str()) {
        ("Ready", "True") | ("DiskPressure" | "NetworkUnavailable", "False") => None,
        ("Ready", _) => Some(Unavailable::NotReady),
        ("DiskPressure", _) => Some(Unavailable::DiskPressure),
        ("NetworkUnavailable", _) => Some(Unavailable::NetworkUnavailable),
        _ => None,
    }
}

fn finding(subject: &Subject, c: &NodeCondition, now: Timestamp) -> Option<Finding> {
    let reason = reason(c)?;
    let (kind, grace) = match reason {
        Unavailable::NotReady => (Kind::NotReady, NOT_READY_GRACE),
        Unavailable::DiskPressure => (Kind::DiskPressure, PRESSURE_GRACE),
        Unavailable::NetworkUnavailable => (Kind::NetworkUnavailable, PRESSURE_GRACE),
        Unavailable::Unschedulable => return None,
    };
    let since = c.last_transition_time.as_ref().map(|time| time.0);
    let lasts = since.is_none_or(|since| now.as_second() - since.as_second() >= grace);
    let message = format!(
        "the Node has {}={}, with reason \"{}\" and message \"{}\"",
        c.type_,
        c.status,
        c.reason.as_deref().unwrap_or_default(),
        c.message.as_deref().unwrap_or_default()
    );
    lasts.then(|| Finding {
        since,
        ..Finding::new(kind, subject.clone(), reason, message)
    })
}
