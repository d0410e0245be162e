//! Phases of a turn's time, from the berth's writes and the host's events.

use std::collections::BTreeMap;

use berth_api::berth::{BerthState, HoldPhase};
use jiff::Timestamp;

use super::fleet::by_agent;
use super::handovers::stored;
use crate::audit::Record;
use crate::hosts::{HostChange, HostEvent};

/// Events of one turn, in order.
const MOMENTS: [&str; 8] = [
    "1 offered",
    "2 taken",
    "3 committed",
    "4 down",
    "5 up",
    "6 ready",
    "7 releasing",
    "8 given back",
];

/// Interval from the Ready Node to the end of the boot's proof.
pub(super) const PROOF: &str = MOMENTS[6];
const FIRST: &str = "0 first offered";

/// Returns the seconds from each event of a turn to the next event, for all turns. The first event of a turn counts
/// from the end of the previous turn, or from `begin`.
pub(super) fn stretches(records: &[Record], hosts: &[HostEvent], begin: Timestamp) -> BTreeMap<&'static str, Vec<f64>> {
    let mut stretches: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let mut before = begin;
    for (moment, at) in moments(records, hosts, begin) {
        // The first offer also waits for the staging.
        let moment = if before == begin { FIRST } else { moment };
        stretches
            .entry(moment)
            .or_default()
            .push(at.duration_since(before).as_secs_f64());
        before = at;
    }
    stretches
}

fn moments(records: &[Record], hosts: &[HostEvent], begin: Timestamp) -> Vec<(&'static str, Timestamp)> {
    let mut all: Vec<(&'static str, Timestamp)> = records.iter().filter_map(of_berth).collect();
    // The agent also writes nodes/status with the kubelet's identity, so its writes are left out.
    let said: Vec<Timestamp> = records
        .iter()
        .filter(|r| r.target() == "nodes/status" && r.user.starts_with("system:node:") && !by_agent(r))
        .map(|r| r.at)
        .collect();
    for event in hosts.iter().filter(|e| e.at >= begin) {
        match &event.change {
            HostChange::Down => all.push((MOMENTS[3], event.at)),
            HostChange::Up { .. } => {
                all.push((MOMENTS[4], event.at));
                // After a boot the kubelet stand-in writes twice: first not ready, then ready.
                all.extend(
                    said.iter()
                        .filter(|at| **at > event.at)
                        .nth(1)
                        .map(|at| (MOMENTS[5], *at)),
                );
            }
            HostChange::Ready { .. } | HostChange::PullStarted { .. } | HostChange::PullEnded { .. } => {}
        }
    }
    all.sort_by_key(|(_, at)| *at);
    all
}

fn of_berth(record: &Record) -> Option<(&'static str, Timestamp)> {
    let moment = match stored(record)?.state {
        BerthState::Offered(_) => MOMENTS[0],
        BerthState::Held(holding) => match holding.phase {
            HoldPhase::Taken => MOMENTS[1],
            HoldPhase::Committed => MOMENTS[2],
            HoldPhase::Releasing(_) => MOMENTS[6],
        },
        BerthState::Closed(_) => MOMENTS[7],
    };
    Some((moment, record.at))
}
