//! The protocol of the berth, write by write: who may turn what into what (design, section 3), and what must be true of
//! the host when it does.

use berth_api::BootId;
use berth_api::berth::{BerthState, Closed, ClosedReason, HoldPhase, Holding, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::history::{CONTROLLER, History, Seen, is_doubtful, text, writes};
use super::{Truth, name_of};
use crate::audit::Record;
use crate::hosts::HostChange;

/// One write of a berth that was there before.
struct Change<'a> {
    lease: &'a str,
    before: &'a Seen,
    after: &'a Seen,
    /// The boot under which the berth was taken that is held before, if that is on record.
    taken_under: Option<&'a BootId>,
    /// The write since which it is being given back: a new leader may have stamped it meanwhile.
    releasing_since: Option<u64>,
}

impl Change<'_> {
    fn wrong(&self, invariant: &str, what: &str) -> String {
        let who = self.after.claim.as_deref().unwrap_or_default();
        format!(
            "{invariant}: {} {who} wrote {} at {}: {what} ({} -> {})",
            self.after.program,
            self.lease,
            self.after.at,
            shown(&self.before.berth.state),
            shown(&self.after.berth.state)
        )
    }
}

fn shown(state: &BerthState) -> String {
    match state {
        BerthState::Closed(closed) => format!("closed:{}", closed.reason.as_str()),
        BerthState::Offered(offer) => format!("offered:{}", offer.node),
        BerthState::Held(h) => format!("{} {:?} boot {}", h.node, h.phase, h.boot_id),
    }
}

fn is_releasing(seen: &Seen) -> bool {
    seen.berth
        .holding()
        .is_some_and(|h| matches!(h.phase, HoldPhase::Releasing(_)))
}

impl Truth<'_> {
    /// Every write of a berth by Berth is one that the protocol has.
    pub(super) fn broken_protocol(&self, history: &History) -> Vec<String> {
        let mut wrong = vec![];
        for (lease, states) in history {
            let (mut taken_under, mut releasing_since) = (None, None);
            for pair in states.windows(2) {
                let [before, after] = pair else { continue };
                if matches!(
                    (&before.berth.state, &after.berth.state),
                    (BerthState::Offered(_), BerthState::Held(_))
                ) {
                    taken_under = after.berth.holding().map(|h| &h.boot_id);
                }
                releasing_since = is_releasing(before).then(|| releasing_since.unwrap_or(before.version));
                if after.after_gap {
                    continue;
                }
                let change = Change {
                    lease,
                    before,
                    after,
                    taken_under,
                    releasing_since,
                };
                if after.berth.epoch < before.berth.epoch {
                    wrong.push(change.wrong("Fence", "the epoch went back"));
                }
                wrong.extend(match after.program.as_str() {
                    "berth-agent" => self.by_agent(&change),
                    CONTROLLER => self.by_controller(&change),
                    // An admin, or the test in an admin's place.
                    _ => vec![],
                });
            }
        }
        wrong.extend(self.late_leaders(history));
        wrong
    }

    fn by_agent(&self, change: &Change<'_>) -> Vec<String> {
        let (before, after) = (&change.before.berth.state, &change.after.berth.state);
        match (before, after) {
            (BerthState::Offered(offer), BerthState::Held(taken)) if taken.phase == HoldPhase::Taken => {
                let mut wrong = vec![];
                if (&taken.node, &taken.uid, &taken.target) != (&offer.node, &offer.uid, &offer.target) {
                    wrong.push(change.wrong("I1", "it took what was not offered to it"));
                }
                wrong.extend(self.undesired(change, taken));
                wrong.extend(self.of_another_node(change, taken));
                wrong
            }
            (BerthState::Held(before), BerthState::Held(after)) => self.holder_moved(change, before, after),
            (BerthState::Held(holding), BerthState::Closed(_)) => match holding.phase {
                HoldPhase::Releasing(_) => self.unrestored(change, holding),
                _ => vec![change.wrong("I4", "it gave back without Releasing")],
            },
            _ => vec![change.wrong("I1", "an agent may not do that")],
        }
    }

    fn holder_moved(&self, change: &Change<'_>, before: &Holding, after: &Holding) -> Vec<String> {
        // A fence: what a former agent has on its way to the server now loses.
        if before == after {
            return vec![];
        }
        let mut wrong = vec![];
        if (&before.node, &before.uid) != (&after.node, &after.uid) {
            wrong.push(change.wrong("I6", "the holder became another one"));
        }
        let same_boot = before.boot_id == after.boot_id;
        match (&before.phase, &after.phase) {
            (HoldPhase::Taken, HoldPhase::Committed) if before.target == after.target => {
                if before.revoke.is_some() {
                    wrong.push(change.wrong("I1", "it committed a revoked berth"));
                }
                wrong.extend(self.not_running(change, after.boot_id.as_str()));
                wrong.extend(self.of_another_node(change, after));
            }
            // A re-licence in place.
            (HoldPhase::Taken | HoldPhase::Committed, HoldPhase::Committed) => {
                wrong.extend(self.not_running(change, after.boot_id.as_str()));
            }
            (HoldPhase::Committed, HoldPhase::Taken) => {
                wrong.extend(self.not_running(change, before.boot_id.as_str()));
            }
            (HoldPhase::Taken | HoldPhase::Committed, HoldPhase::Releasing(outcome)) => {
                // Licensed anew under this boot, which came after the first commit: then it is to be proven as any other.
                let anew = change.taken_under.is_some_and(|boot| *boot != after.boot_id);
                if before.phase == HoldPhase::Committed && same_boot && !anew {
                    wrong.push(change.wrong("I5", "it gave a committed berth back under the same boot"));
                }
                wrong.extend(self.not_running(change, after.boot_id.as_str()));
                if (!same_boot || anew) && *outcome != Outcome::Failed {
                    wrong.extend(self.unproven(change, after));
                }
            }
            _ => wrong.push(change.wrong("I1", "its phase does not allow that")),
        }
        wrong
    }

    /// I2, I5: the boot ID that an agent acts under is the one that runs. A write may come in late.
    fn not_running(&self, change: &Change<'_>, boot: &str) -> Option<String> {
        let host = change.after.berth.holding()?.node.as_str();
        let mut running = None;
        for event in self.hosts.iter().filter(|e| e.host == host) {
            match &event.change {
                HostChange::Up { boot_id, .. } if event.at <= change.after.received => running = Some(boot_id.as_str()),
                HostChange::Down if event.at + self.lag <= change.after.received => running = None,
                // It may have been sent before this boot.
                HostChange::Up { boot_id, .. } if boot_id == boot => return None,
                _ => {}
            }
        }
        let before = self.boots_within(host, change.after.received);
        let known = running.is_none() || running == Some(boot) || before.contains(&boot);
        (!known).then(|| change.wrong("I2", &format!("boot {boot} does not run on {host}")))
    }

    /// The boots that ran at some time from a little before that moment on.
    fn boots_within(&self, host: &str, at: Timestamp) -> Vec<&str> {
        let mut boots: Vec<(&str, Option<Timestamp>)> = vec![];
        for event in self.hosts.iter().filter(|e| e.host == host && e.at <= at) {
            match &event.change {
                HostChange::Up { boot_id, .. } => boots.push((boot_id, None)),
                HostChange::Down => {
                    if let Some(last) = boots.last_mut() {
                        last.1.get_or_insert(event.at);
                    }
                }
                _ => {}
            }
        }
        let lately = |(_, end): &&(&str, Option<Timestamp>)| end.is_none_or(|end| end + self.lag >= at);
        boots.iter().filter(lately).map(|(boot, _)| *boot).collect()
    }

    /// I5: after a new boot a berth is given back once the target or what ran before is booted, and the Node was Ready
    /// under that very boot.
    fn unproven(&self, change: &Change<'_>, after: &Holding) -> Vec<String> {
        let boot = after.boot_id.as_str();
        let of_host = || {
            self.hosts
                .iter()
                .filter(|e| e.host == after.node.as_str() && e.at <= change.after.received)
        };
        let booted = of_host().find_map(|e| match &e.change {
            HostChange::Up { boot_id, digest, .. } if boot_id == boot => Some(digest.clone()),
            _ => None,
        });
        let mut wrong = vec![];
        let target = after.target.to_string();
        let from = after.from.as_ref().map(ToString::to_string);
        if let Some(booted) = booted
            && booted != target
            && Some(&booted) != from.as_ref()
        {
            wrong.push(change.wrong(
                "I5",
                &format!("{booted} is booted, which is neither the target nor what ran before"),
            ));
        }
        let ready = |e: &crate::hosts::HostEvent| matches!(&e.change, HostChange::Ready { boot_id } if boot_id == boot);
        let recorded = self.hosts.iter().any(|e| matches!(e.change, HostChange::Ready { .. }));
        if recorded && !of_host().any(ready) {
            wrong.push(change.wrong("I5", "the Node was not Ready under this boot"));
        }
        wrong
    }

    /// I4: between Releasing and closed, the agent wrote its Node, and no cordon of ours was left.
    fn unrestored(&self, change: &Change<'_>, holding: &Holding) -> Vec<String> {
        let nodes = writes(self.audit, "nodes");
        let since = change.releasing_since.unwrap_or(change.before.version);
        let mut between = nodes.iter().filter(|(version, record, _)| {
            (since..change.after.version).contains(version)
                && record.program() == "berth-agent"
                && record.name == holding.node.as_str()
        });
        let lost = |r: &Record| is_doubtful(r) && r.target() == "nodes" && r.name == holding.node.as_str();
        match between.next_back() {
            None if self.audit.iter().any(lost) => vec![],
            None => vec![change.wrong("I4", "it gave back without writing its Node")],
            Some((_, _, node)) if super::our_cordon(node) => {
                vec![change.wrong("I4", "it gave back with its cordon in place")]
            }
            Some(_) => vec![],
        }
    }

    /// I2: what is taken is what was published for the node, at some moment shortly before.
    fn undesired(&self, change: &Change<'_>, taken: &Holding) -> Option<String> {
        let lost = |r: &Record| is_doubtful(r) && r.target() == "bootcnodes" && r.name == taken.node.as_str();
        if self.audit.iter().any(lost) {
            return None;
        }
        let nodes = writes(self.audit, "bootcnodes");
        let mut desired: Option<&str> = None;
        let mut lately = vec![];
        for (version, record, object) in nodes
            .iter()
            .filter(|(_, record, object)| name_of(record, object) == taken.node.as_str())
        {
            if *version > change.after.version {
                break;
            }
            let digest = ["/spec/image/image", "/spec/image/digest"]
                .iter()
                .find_map(|p| text(object, p));
            if record.at + self.lag >= change.after.received {
                lately.extend(desired);
            }
            desired = digest;
        }
        lately.extend(desired);
        let target = taken.target.to_string();
        let fits = lately.is_empty() || lately.iter().any(|digest| digest.ends_with(&target));
        (!fits).then(|| change.wrong("I2", &format!("it took {target}, and {lately:?} was published")))
    }

    /// I2: the UID in the berth is that of the Node: of the one that is there, or of one that was there when the write was
    /// sent.
    fn of_another_node(&self, change: &Change<'_>, holding: &Holding) -> Option<String> {
        let nodes = writes(self.audit, "nodes");
        let created: Vec<_> = nodes
            .iter()
            .filter(|(version, record, object)| {
                *version < change.after.version
                    && record.verb == "create"
                    && name_of(record, object) == holding.node.as_str()
            })
            .collect();
        let settled = created
            .iter()
            .rposition(|(_, record, _)| record.at + self.lag < change.after.received)?;
        let mut uids = created
            .iter()
            .skip(settled)
            .filter_map(|(_, _, node)| text(node, "/metadata/uid"));
        if uids.clone().any(|uid| uid == holding.uid.as_str()) {
            return None;
        }
        let uid = uids.next_back()?;
        Some(change.wrong("I2", &format!("the Node has the UID {uid}, not {}", holding.uid)))
    }

    fn by_controller(&self, change: &Change<'_>) -> Vec<String> {
        match (&change.before.berth.state, &change.after.berth.state) {
            (BerthState::Closed(before), BerthState::Closed(after)) => match before.outcome {
                Some(Outcome::Failed) if after.outcome.is_none() => self.unrecorded(change, before),
                _ => vec![],
            },
            (BerthState::Closed(before), BerthState::Offered(_)) => match before.outcome {
                Some(Outcome::Failed) => vec![change.wrong("I8", "it was opened before its failure was on record")],
                _ => vec![],
            },
            (BerthState::Offered(_), BerthState::Closed(_)) => vec![],
            (BerthState::Offered(before), BerthState::Offered(after)) if before == after => vec![],
            (BerthState::Held(before), BerthState::Held(after)) => {
                let unchanged = Holding {
                    revoke: None,
                    ..before.clone()
                } == Holding {
                    revoke: None,
                    ..after.clone()
                };
                match unchanged {
                    true => vec![],
                    false => vec![change.wrong("I1", "it changed what belongs to the holder")],
                }
            }
            (BerthState::Held(holding), BerthState::Closed(closed)) => match closed.reason {
                ClosedReason::Gone if !self.was_deleted(holding, change) => {
                    vec![change.wrong("I5", "it took a berth away whose Node was not deleted")]
                }
                ClosedReason::Gone | ClosedReason::Excluded => vec![],
                _ => vec![change.wrong("I5", "it took a held berth away")],
            },
            _ => vec![change.wrong("I1", "a controller may not do that")],
        }
    }

    /// I8: the failure that a berth told of stands in the status of its pool.
    fn unrecorded(&self, change: &Change<'_>, closed: &Closed) -> Vec<String> {
        let (Some(digest), Some(node)) = (&closed.last_target, &closed.last_node) else {
            return vec![];
        };
        let node = match closed.reason {
            // Another Node may come under that name, on which nothing has failed.
            ClosedReason::Gone => format!("{node} (deleted)"),
            _ => node.to_string(),
        };
        let pool = change.after.berth.pool.as_str();
        let statuses = writes(self.audit, "bootcnodepools/status");
        let mut before = statuses
            .iter()
            .filter(|(version, record, _)| *version < change.after.version && record.name == pool);
        let names = |(_, _, status): &(u64, &Record, &Value)| {
            let failures = status
                .pointer("/status/failures")
                .map(Value::to_string)
                .unwrap_or_default();
            failures.contains(&digest.to_string()) && failures.contains(&format!("\"{node}\""))
        };
        let lost = |r: &Record| is_doubtful(r) && r.target() == "bootcnodepools/status";
        // It may be forgotten again by now, on an admin's word.
        match before.any(names) || self.audit.iter().any(lost) {
            true => vec![],
            false => vec![change.wrong("I8", "its failure was acknowledged before it was on record")],
        }
    }

    fn was_deleted(&self, holding: &Holding, change: &Change<'_>) -> bool {
        self.audit.iter().any(|r| {
            r.verb == "delete"
                && r.target() == "nodes"
                && r.name == holding.node.as_str()
                && r.received <= change.after.at
        })
    }

    /// A leader that has opened a berth of a pool has fenced all of them: no older one writes there any more.
    fn late_leaders(&self, history: &History) -> Vec<String> {
        let mut ordered: Vec<&Seen> = history.values().flatten().filter(|s| s.program == CONTROLLER).collect();
        ordered.sort_by_key(|s| s.version);
        let mut opened: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        let mut wrong = vec![];
        for seen in ordered {
            let newest = opened.entry(seen.berth.pool.as_str()).or_default();
            if seen.berth.epoch < *newest {
                wrong.push(format!(
                    "Fence: a leader of epoch {} wrote {} at {}, after one of epoch {newest} had opened a berth",
                    seen.berth.epoch,
                    seen.berth.name(),
                    seen.at
                ));
            }
            if seen.berth.offer().is_some() {
                *newest = (*newest).max(seen.berth.epoch);
            }
        }
        wrong
    }
}
