//! Turns and the handovers between them, from the Lease writes in the audit log.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use berth_api::berth::{Berth, BerthState, ClosedReason, HoldPhase, lease};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use super::cpu::Usage;
use super::fleet::{by_agent, by_controller};
use crate::audit::{AuditLog, Record};
use crate::cluster::Cluster;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) offered: Timestamp,
    pub(super) taken: Timestamp,
    pub(super) given_back: Timestamp,
}

impl Turn {
    /// Seconds from the offer until the berth was given back.
    pub(super) fn seconds(&self) -> f64 {
        seconds(self.offered, self.given_back)
    }
}

/// A handover, from "given back" to "the next node holds it".
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Handover {
    /// Seconds from "given back" until the controller offered the berth.
    pub(super) to_offer: f64,
    /// Seconds from the offer until the next node took it.
    pub(super) to_take: f64,
}

pub(super) struct Start {
    at: Timestamp,
    usage: Usage,
}

impl Start {
    pub(super) fn now() -> Result<Self> {
        let (at, usage) = (Timestamp::now(), Usage::now()?);
        Ok(Self { at, usage })
    }
}

pub(super) struct Measured {
    /// Seconds from the start until the last berth was given back.
    pub(super) seconds: f64,
    pub(super) turns: Vec<Turn>,
    pub(super) handovers: Vec<Handover>,
    pub(super) conflicts: BTreeMap<String, usize>,
    /// Share of the time since the start that the CPUs were busy, from 0 to 1.
    pub(super) busy: f64,
}

impl Measured {
    pub(super) fn since(start: Start, cluster: &Cluster) -> Result<Self> {
        let busy = start.usage.busy_since()?;
        let log = AuditLog::read(&cluster.control_plane.audit_log())?;
        let mut records = log.records().to_vec();
        records.retain(|record| record.received >= start.at);
        let ended = turns(&records);
        let last = ended.iter().flatten().map(|turn| turn.given_back).max();
        Ok(Self {
            seconds: seconds(start.at, last.context("no node had a turn")?),
            handovers: handovers(&ended),
            turns: ended.into_iter().flatten().collect(),
            conflicts: conflicts(&records),
            busy,
        })
    }

    pub(super) fn lost(&self) -> usize {
        self.conflicts.values().sum()
    }
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// Ended turns of each berth, in order.
fn turns(records: &[Record]) -> Vec<Vec<Turn>> {
    #[derive(Default)]
    struct Open {
        offered: Option<Timestamp>,
        taken: Option<Timestamp>,
        done: Vec<Turn>,
    }
    let mut berths: BTreeMap<String, Open> = BTreeMap::new();
    for (record, berth) in records.iter().filter_map(|r| Some((r, stored(r)?))) {
        let open = berths.entry(berth.name()).or_default();
        match &berth.state {
            BerthState::Offered(_) => (open.offered, open.taken) = (Some(record.at), None),
            BerthState::Held(h) if h.phase == HoldPhase::Taken => drop(open.taken.get_or_insert(record.at)),
            BerthState::Held(_) => {}
            BerthState::Closed(closed) => {
                let (offered, taken) = (open.offered.take(), open.taken.take());
                if let (ClosedReason::Released, Some(offered), Some(taken)) = (closed.reason, offered, taken) {
                    open.done.push(Turn {
                        offered,
                        taken,
                        given_back: record.at,
                    });
                }
            }
        }
    }
    berths.into_values().map(|open| open.done).collect()
}

pub(super) fn stored(record: &Record) -> Option<Berth> {
    if record.resource != "leases" || !record.is_write() || !record.succeeded() {
        return None;
    }
    let object: Lease = serde_json::from_value(record.response.clone()?).ok()?;
    lease::read(&object).ok()
}

fn handovers(turns: &[Vec<Turn>]) -> Vec<Handover> {
    let mut all = vec![];
    for pair in turns.iter().flat_map(|turns| turns.windows(2)) {
        let [last, next] = pair else { continue };
        all.push(Handover {
            to_offer: seconds(last.given_back, next.offered),
            to_take: seconds(last.given_back, next.taken),
        });
    }
    all
}

/// Number of rejected berth writes (409 Conflict) by writer and kind of write, such as `agent held`.
fn conflicts(records: &[Record]) -> BTreeMap<String, usize> {
    let mut conflicts = BTreeMap::new();
    for record in records {
        let is_lost = record.resource == "leases" && record.is_write() && record.code == 409;
        // The controller's leader election Lease is not a berth.
        if !is_lost || record.name == "berth-controller" {
            continue;
        }
        let who = match record {
            r if by_agent(r) => "agent",
            r if by_controller(r) => "controller",
            _ => "somebody",
        };
        // For a rejected write the log has only the request: `closed:…`, `offered:NODE`, or the name of the holder.
        let holder = record
            .request
            .as_ref()
            .and_then(|r| r.pointer("/spec/holderIdentity")?.as_str());
        let what = match holder.unwrap_or_default().split_once(':') {
            Some(("offered", _)) => "offered",
            Some(_) => holder.unwrap_or_default(),
            None => "held",
        };
        *conflicts.entry(format!("{who} {what}")).or_default() += 1;
    }
    conflicts
}

/// Percentile: 0.99 returns the 99th of 100 sorted values. 0 if there are none.
pub(super) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn turn(offered: i64, taken: i64, given_back: i64) -> Turn {
        Turn {
            offered: at(offered),
            taken: at(taken),
            given_back: at(given_back),
        }
    }

    #[test]
    fn a_handover_is_between_turns_of_a_berth() {
        let turns = [
            vec![turn(1, 2, 5), turn(6, 9, 20), turn(22, 25, 26)],
            vec![turn(1, 1, 30)],
        ];
        let all: Vec<_> = handovers(&turns).iter().map(|h| (h.to_offer, h.to_take)).collect();
        assert_eq!(all, [(1.0, 4.0), (2.0, 5.0)]);
    }

    #[test]
    fn percentiles() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(percentile(&hundred, 0.99), 99.0);
        assert_eq!(percentile(&hundred, 0.5), 50.0);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.99), 0.0);
    }
}
