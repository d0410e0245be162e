//! Derives the boots of hosts from an audit log: from the boot IDs in the statuses that agents and kubelets write. The
//! log does not show when a host goes down. A new boot shows that the previous boot has ended.

use std::collections::BTreeMap;

use berth_api::BootId;
use berth_api::berth::HoldPhase;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::audit::Record;
use crate::history::History;
use crate::hosts::{HostChange, HostEvent};
use crate::names::name;
use crate::write::text;

/// Boots of each host.
#[derive(Debug, Default)]
pub struct Sightings {
    hosts: BTreeMap<String, BTreeMap<String, Boot>>,
    /// True if the log has a BootcNode's status with its body.
    pub(crate) agents: bool,
    /// True if the log has a Node's status with its body.
    pub(crate) kubelets: bool,
}

#[derive(Debug, Default)]
struct Boot {
    /// Time of the first request that shows the boot, and the request's audit ID.
    first: Option<(Timestamp, String)>,
    /// Time, digest and version of the running image in the last status of this boot. Early statuses may lack the
    /// image.
    image: Option<(Timestamp, String, String)>,
    /// First time when the kubelet reported Ready in this boot.
    ready: Option<Timestamp>,
}

impl Sightings {
    pub(crate) fn of_agent(&mut self, record: &Record) {
        let Some(status) = body(record, "berth-agent").and_then(|o| o.get("status")) else {
            return;
        };
        self.agents = true;
        let Some(boot) = text(status, "/bootID").and_then(|id| self.boot(record, id)) else {
            return;
        };
        if let Some(digest) = text(status, "/booted/digest")
            && boot.image.as_ref().is_none_or(|(at, ..)| *at <= record.at)
        {
            let version = text(status, "/booted/version").unwrap_or_default();
            boot.image = Some((record.at, digest.to_owned(), version.to_owned()));
        }
    }

    pub(crate) fn of_kubelet(&mut self, record: &Record) {
        let is_kubelet = record.user.strip_prefix("system:node:") == Some(name(record));
        let Some(status) = record.response.as_ref().and_then(|o| o.get("status")) else {
            return;
        };
        if !(record.is_write() && record.succeeded() && is_kubelet) {
            return;
        }
        self.kubelets = true;
        let conditions = status.get("conditions").and_then(Value::as_array).into_iter().flatten();
        let mut ready = conditions.filter(|c| text(c, "/type") == Some("Ready"));
        let is_ready = ready.any(|c| text(c, "/status") == Some("True"));
        let Some(boot) = text(status, "/nodeInfo/bootID").and_then(|id| self.boot(record, id)) else {
            return;
        };
        if is_ready {
            boot.ready = Some(boot.ready.map_or(record.at, |at| at.min(record.at)));
        }
    }

    fn boot(&mut self, record: &Record, id: &str) -> Option<&mut Boot> {
        if id.is_empty() {
            return None;
        }
        let boots = self.hosts.entry(name(record).to_owned()).or_default();
        let boot = boots.entry(id.to_owned()).or_default();
        let is_first = boot.first.as_ref().is_none_or(|(at, _)| record.received < *at);
        if is_first {
            boot.first = Some((record.received, record.audit_id.clone()));
        }
        Some(boot)
    }

    /// Derives the events of the hosts. A boot ends at the commit for that boot. If there is no commit, the boot ends
    /// just before the log shows the host's next boot.
    pub(crate) fn events(&self, history: &History) -> Vec<HostEvent> {
        let mut events = vec![];
        for (host, boots) in &self.hosts {
            let mut changes = vec![];
            let mut before: Option<(&str, Timestamp)> = None;
            for (id, first, boot) in ordered(boots) {
                if let Some((last, since)) = before {
                    let commit = last_commit(history, host, last, first).filter(|at| *at >= since);
                    let just_before = first.checked_sub(SignedDuration::from_micros(1)).unwrap_or(first);
                    changes.push((commit.unwrap_or(just_before), HostChange::Down));
                }
                // Without a status of the agent, the image is unknown.
                if let Some((_, digest, version)) = &boot.image {
                    let up = HostChange::Up {
                        boot_id: id.to_owned(),
                        digest: digest.clone(),
                        version: version.clone(),
                    };
                    changes.push((first, up));
                    before = Some((id, first));
                }
                // The kubelet reports only the kernel's boot ID, so the log does not show when the Node became Ready
                // after a soft reboot. Assume that it was Ready at once.
                let is_soft = BootId::new(id).is_soft();
                if let Some(ready) = boot.ready.or(is_soft.then_some(first)) {
                    changes.push((ready.max(first), HostChange::Ready { boot_id: id.to_owned() }));
                }
            }
            events.extend(changes.into_iter().map(|(at, change)| HostEvent {
                at,
                host: host.clone(),
                change,
            }));
        }
        events.sort_by_key(|e| e.at);
        events
    }

    /// Returns the audit ID of the line that showed the end of each boot, by host and boot ID.
    pub(crate) fn lines(&self) -> BTreeMap<(String, String), String> {
        let mut lines = BTreeMap::new();
        for (host, boots) in &self.hosts {
            for pair in ordered(boots).windows(2) {
                if let [(ended, ..), (_, _, next)] = pair
                    && let Some((_, line)) = &next.first
                {
                    lines.insert((host.clone(), (*ended).to_owned()), line.clone());
                }
            }
        }
        lines
    }
}

/// Returns the boots, sorted by the time of the first request that shows the boot.
fn ordered(boots: &BTreeMap<String, Boot>) -> Vec<(&str, Timestamp, &Boot)> {
    let ordered = boots
        .iter()
        .filter_map(|(id, boot)| Some((id.as_str(), boot.first.as_ref()?.0, boot)));
    let mut ordered: Vec<_> = ordered.collect();
    ordered.sort_by_key(|(_, first, _)| *first);
    ordered
}

/// Returns the last time before `before` when a berth was committed for this boot of this host.
fn last_commit(history: &History, host: &str, boot: &str, before: Timestamp) -> Option<Timestamp> {
    let states = history.values().flatten().filter(|state| {
        state.at < before
            && state.berth.holding().is_some_and(|h| {
                h.node.as_str() == host && h.phase == HoldPhase::Committed && h.boot_id.as_str() == boot
            })
    });
    states.map(|state| state.at).max()
}

fn body<'a>(record: &'a Record, program: &str) -> Option<&'a Value> {
    let is_theirs = record.is_write() && record.succeeded() && record.program() == program;
    record.response.as_ref().filter(|_| is_theirs)
}
