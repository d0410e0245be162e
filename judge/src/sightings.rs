//! Hosts as an audit log shows them: under which boot an agent or a kubelet wrote its status. Nobody there saw a host go down;
//! a boot that was seen after another one tells that the first had ended.

use std::collections::BTreeMap;

use berth_api::berth::HoldPhase;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::audit::Record;
use crate::history::{History, text};
use crate::hosts::{HostChange, HostEvent};
use crate::log::name;

/// Boots of each host, as they were seen.
#[derive(Debug, Default)]
pub struct Sightings {
    hosts: BTreeMap<String, BTreeMap<String, Boot>>,
    /// Statuses of BootcNodes came with their bodies.
    pub(crate) agents: bool,
    /// Statuses of Nodes came with their bodies.
    pub(crate) kubelets: bool,
}

/// One boot of a host.
#[derive(Debug, Default)]
struct Boot {
    /// First request that tells of it, and its line.
    first: Option<(Timestamp, String)>,
    /// Digest and version of the image that runs, by the last status under this boot: an early one may not know it yet.
    image: Option<(Timestamp, String, String)>,
    /// First time at which its kubelet had said that it is Ready under this boot.
    ready: Option<Timestamp>,
}

impl Sightings {
    /// Takes in an agent's status.
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

    /// Takes in a Node's status.
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

    /// The events that follow, beside what became of the berths: a host under a commit for its boot went down after that
    /// commit, any other just before it was seen again.
    pub(crate) fn events(&self, history: &History) -> Vec<HostEvent> {
        let mut events = vec![];
        for (host, boots) in &self.hosts {
            let mut before: Option<(&str, Timestamp)> = None;
            for (id, first, boot) in ordered(boots) {
                let mut push = |at, change| {
                    events.push(HostEvent {
                        at,
                        host: host.clone(),
                        change,
                    });
                };
                if let Some((last, since)) = before {
                    let commit = last_commit(history, host, last, first).filter(|at| *at >= since);
                    let just_before = first.checked_sub(SignedDuration::from_micros(1)).unwrap_or(first);
                    push(commit.unwrap_or(just_before), HostChange::Down);
                }
                // Without a word of its agent nobody knows what it runs.
                if let Some((_, digest, version)) = &boot.image {
                    push(
                        first,
                        HostChange::Up {
                            boot_id: id.to_owned(),
                            digest: digest.clone(),
                            version: version.clone(),
                        },
                    );
                    before = Some((id, first));
                }
                if let Some(ready) = boot.ready {
                    push(ready.max(first), HostChange::Ready { boot_id: id.to_owned() });
                }
            }
        }
        events.sort_by_key(|e| e.at);
        events
    }

    /// Lines that showed the end of each boot, by host and boot.
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

/// Boots in the order in which they were seen.
fn ordered(boots: &BTreeMap<String, Boot>) -> Vec<(&str, Timestamp, &Boot)> {
    let seen = boots
        .iter()
        .filter_map(|(id, boot)| Some((id.as_str(), boot.first.as_ref()?.0, boot)));
    let mut seen: Vec<_> = seen.collect();
    seen.sort_by_key(|(_, first, _)| *first);
    seen
}

/// When a berth was last committed for that boot of that host, before a time.
fn last_commit(history: &History, host: &str, boot: &str, before: Timestamp) -> Option<Timestamp> {
    let states = history.values().flatten().filter(|seen| {
        seen.at < before
            && seen.berth.holding().is_some_and(|h| {
                h.node.as_str() == host && h.phase == HoldPhase::Committed && h.boot_id.as_str() == boot
            })
    });
    states.map(|seen| seen.at).max()
}

fn body<'a>(record: &'a Record, program: &str) -> Option<&'a Value> {
    let is_theirs = record.is_write() && record.succeeded() && record.program() == program;
    record.response.as_ref().filter(|_| is_theirs)
}
