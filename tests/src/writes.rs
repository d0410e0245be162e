//! Writes of a rollout by cause, from the audit log: the program, the object and the reason.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use berth_api::berth::{BerthState, HoldPhase, lease};
use berth_api::keys;
use berth_api::node::BootcNode;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;

use crate::audit::Record;
use crate::statistics::round;

/// Kind of a write. The kinds differ in their cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A BootcNode or a Node, or its status.
    Node,
    /// A berth.
    Berth,
    /// A pool's status.
    Pool,
    /// An event.
    Event,
    /// The BootcFleet's status, and objects that are written once per pool or cluster.
    Other,
    /// A rejected write.
    Refused,
}

/// Number of writes of Berth's programs, by kind and cause.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writes(pub BTreeMap<(Kind, String), usize>);

impl Writes {
    /// Counts the writes of agents and controllers in these records, except the leader's renewals of its Lease.
    pub fn of<'a>(records: impl Iterator<Item = &'a Record>) -> Result<Self> {
        let mut writes = Self::default();
        for record in records.filter(|r| is_ours(r)) {
            let key = if record.succeeded() {
                (kind(record), cause(record)?)
            } else {
                let cause = format!("{} {} {}", who(record), record.target(), record.code);
                (Kind::Refused, cause)
            };
            *writes.0.entry(key).or_default() += 1;
        }
        Ok(writes)
    }

    /// Number of writes of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        let of_kind = self.0.iter().filter(|((k, _), _)| *k == kind);
        of_kind.map(|(_, count)| count).sum()
    }

    /// Number of writes of each cause, divided by `nodes`, rounded to three decimals.
    pub fn per_node(&self, nodes: usize) -> BTreeMap<String, f64> {
        let mut shares = BTreeMap::new();
        for ((_, cause), count) in &self.0 {
            shares.insert(cause.clone(), round(*count as f64 / nodes as f64));
        }
        shares
    }
}

impl std::fmt::Display for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for ((kind, cause), count) in &self.0 {
            writeln!(f, "{count:>5}  {kind:<8}  {cause}", kind = format!("{kind:?}"))?;
        }
        Ok(())
    }
}

fn is_ours(record: &Record) -> bool {
    let is_leaders = record.is_of("leases") && record.name == "berth-controller";
    record.is_write() && record.stage == "ResponseComplete" && who(record) != "others" && !is_leaders
}

fn who(record: &Record) -> &'static str {
    if record.program() == "berth-agent" {
        "agent"
    } else if record.user == "system:serviceaccount:berth-system:berth-controller" {
        "controller"
    } else {
        "others"
    }
}

fn kind(record: &Record) -> Kind {
    match record.target().as_str() {
        "nodes" | "nodes/status" | "bootcnodes" | "bootcnodes/status" => Kind::Node,
        "leases" => Kind::Berth,
        "bootcnodepools/status" => Kind::Pool,
        "events" => Kind::Event,
        _ => Kind::Other,
    }
}

fn cause(record: &Record) -> Result<String> {
    let (who, verb, target) = (who(record), &record.verb, record.target());
    let detail = match (target.as_str(), &record.response) {
        ("bootcnodes/status", Some(body)) if who == "agent" => phase(body)?,
        ("leases", Some(body)) => state(body)?,
        ("nodes", Some(body)) => mark(body),
        ("nodes/status", Some(body)) => conditions(body),
        _ => String::new(),
    };
    Ok(format!("{who} {verb} {target} {detail}").trim_end().to_owned())
}

/// Phase in a written status.
fn phase(body: &Value) -> Result<String> {
    let object: BootcNode =
        serde_json::from_value(body.clone()).context("cannot parse a BootcNode in the audit log")?;
    let phase = object.status.and_then(|status| status.phase);
    Ok(phase.map_or("", |phase| phase.as_str()).to_owned())
}

/// State in a written berth.
fn state(body: &Value) -> Result<String> {
    let object: Lease = serde_json::from_value(body.clone()).context("cannot parse a Lease in the audit log")?;
    Ok(match lease::read(&object)?.state {
        BerthState::Offered(_) => "offered".to_owned(),
        BerthState::Held(holding) => match holding.phase {
            HoldPhase::Taken => "taken".to_owned(),
            HoldPhase::Committed => "committed".to_owned(),
            HoldPhase::Releasing(_) => "releasing".to_owned(),
        },
        BerthState::Closed(closed) => format!("closed:{:?}", closed.reason),
    })
}

/// Purpose of a write to a Node: `cordoned`, `given back`, or empty for any other purpose.
fn mark(body: &Value) -> String {
    let annotations = &body["metadata"]["annotations"];
    let words = if annotations.get(keys::ANNOTATION_CORDON).is_some() {
        "cordoned"
    } else if annotations.get(keys::ANNOTATION_RELEASED).is_some() {
        "given back"
    } else {
        ""
    };
    words.to_owned()
}

/// Berth's conditions in a written Node status.
fn conditions(body: &Value) -> String {
    use berth_api::condition::lifecycle::{ALL, REASON};
    let all = body["status"]["conditions"].as_array();
    let ours = all.into_iter().flatten().filter(|c| c["reason"] == REASON);
    let types = ours.filter_map(|c| c["type"].as_str()).filter(|t| ALL.contains(t));
    let types: Vec<_> = types.collect();
    if types.is_empty() {
        return "no sign".to_owned();
    }
    types.join("+")
}
