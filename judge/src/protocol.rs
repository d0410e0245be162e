//! The protocol of the berth, write by write: who may turn what into what (design, section 3), and what must be true of
//! the host when it does.

use berth_api::BootId;
use berth_api::berth::{BerthState, Closed, ClosedReason, HoldPhase, Holding, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use super::history::{CONTROLLER, History, Seen, in_order, text};
use super::{Violation, name_of};
use crate::hosts::{HostChange, HostEvent};
use crate::judge::{Judge, Write};

/// One write of a berth that was there before.
struct Change<'a> {
    lease: &'a str,
    before: &'a Seen,
    after: &'a Seen,
    /// The boot under which the berth was taken that is held before, if that is on record.
    taken_under: Option<&'a BootId>,
    /// The write since which it is being given back: a new leader may have stamped it meanwhile.
    releasing_since: Option<u64>,
    /// The log begins while it is being given back.
    began_before: bool,
}

impl Change<'_> {
    fn wrong(&self, invariant: &'static str, what: &str) -> Violation {
        let who = self.after.claim.as_deref().unwrap_or_default();
        let text = format!(
            "{} {who} wrote {} at {}: {what} ({} -> {})",
            self.after.program,
            self.lease,
            self.after.at,
            shown(&self.before.berth.state),
            shown(&self.after.berth.state)
        );
        let node = self.after.berth.node().or(self.before.berth.node());
        Violation {
            node: node.map(|(node, _)| node.to_string()),
            ..Violation::of_write(invariant, self.after, text)
        }
        .and(&self.before.audit_id)
    }
}

fn shown(state: &BerthState) -> String {
    match state {
        BerthState::Closed(closed) => format!("closed:{}", closed.reason.as_str()),
        BerthState::Offered(offer) => format!("offered:{}", offer.node),
        BerthState::Held(h) => format!("{} {:?} boot {}", h.node, h.phase, h.boot_id),
    }
}

/// The part of a held berth that its holder writes. A controller may ask for the berth back, and change the window.
fn of_holder(holding: &Holding) -> Holding {
    Holding {
        revoke: None,
        open_until: None,
        ..holding.clone()
    }
}

fn is_releasing(seen: &Seen) -> bool {
    seen.berth
        .holding()
        .is_some_and(|h| matches!(h.phase, HoldPhase::Releasing(_)))
}

impl Judge<'_> {
    /// Every write of a berth by Berth is one that the protocol has.
    pub(super) fn broken_protocol(&self, history: &History) -> Vec<Violation> {
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
                    began_before: !self.evidence.whole
                        && is_releasing(before)
                        && states.first().is_some_and(is_releasing)
                        && releasing_since == states.first().map(|s| s.version),
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

    fn by_agent(&self, change: &Change<'_>) -> Vec<Violation> {
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

    fn holder_moved(&self, change: &Change<'_>, before: &Holding, after: &Holding) -> Vec<Violation> {
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
                let is_known = self.evidence.whole || change.taken_under.is_some();
                if before.phase == HoldPhase::Committed && same_boot && !anew && is_known {
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
    fn not_running(&self, change: &Change<'_>, boot: &str) -> Option<Violation> {
        let host = change.after.berth.holding()?.node.as_str();
        let is_seen = |e: &&HostEvent| matches!(&e.change, HostChange::Up { boot_id, .. } if boot_id == boot);
        if !self.evidence.boots && !self.of_host(host).iter().any(is_seen) {
            return None;
        }
        let mut running = None;
        for event in self.of_host(host) {
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
        for event in self.of_host(host).iter().filter(|e| e.at <= at) {
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
    fn unproven(&self, change: &Change<'_>, after: &Holding) -> Vec<Violation> {
        let boot = after.boot_id.as_str();
        let of_host = || {
            let of_host = self.of_host(after.node.as_str()).iter();
            of_host.filter(|e| e.at <= change.after.received)
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
        let ready = |e: &HostEvent| matches!(&e.change, HostChange::Ready { boot_id } if boot_id == boot);
        let begins_here = self.evidence.whole || change.taken_under.is_some();
        let recorded = self.evidence.ready
            && begins_here
            && !self.misses(change.before.version, change.after.version)
            && self.hosts.iter().any(|e| matches!(e.change, HostChange::Ready { .. }));
        let within = self.of_host(after.node.as_str()).iter().copied();
        let mut within = within.filter(|e| e.at <= change.after.received + self.slack());
        if recorded && !within.any(ready) {
            wrong.push(change.wrong("I5", "the Node was not Ready under this boot"));
        }
        wrong
    }

    /// I4: between Releasing and closed, the agent wrote its Node, and no cordon of ours was left.
    fn unrestored(&self, change: &Change<'_>, holding: &Holding) -> Vec<Violation> {
        if !self.evidence.nodes || change.began_before {
            return vec![];
        }
        let since = change.releasing_since.unwrap_or(change.before.version);
        if self.misses(since, change.after.version) {
            return vec![];
        }
        let nodes = self.writes("nodes");
        let begun = nodes.partition_point(|(version, ..)| *version < since);
        let nodes = nodes.iter().skip(begun);
        let nodes = nodes.take_while(|(version, ..)| *version < change.after.version);
        let between =
            nodes.filter(|(_, record, _)| record.program() == "berth-agent" && record.name == holding.node.as_str());
        match between.last() {
            None if self.doubtful("nodes").any(|r| r.name == holding.node.as_str()) => vec![],
            None => vec![change.wrong("I4", "it gave back without writing its Node")],
            Some((_, _, node)) if super::our_cordon(node) => {
                vec![change.wrong("I4", "it gave back with its cordon in place")]
            }
            Some(_) => vec![],
        }
    }

    /// I2: what is taken is what was published for the node, at some moment shortly before.
    fn undesired(&self, change: &Change<'_>, taken: &Holding) -> Option<Violation> {
        if self.doubtful("bootcnodes").any(|r| r.name == taken.node.as_str()) {
            return None;
        }
        let mut desired: Option<&str> = None;
        let mut lately = vec![];
        let published = self.writes("bootcnodes").iter();
        let mut since = 0;
        for (version, record, object) in published.filter(|(_, r, object)| name_of(r, object) == taken.node.as_str()) {
            if *version > change.after.version {
                break;
            }
            since = *version;
            let digest = ["/spec/image/image", "/spec/image/digest"]
                .iter()
                .find_map(|p| text(object, p));
            if record.at + self.lag >= change.after.received {
                lately.extend(desired);
            }
            desired = digest;
        }
        if self.misses(since, change.after.version) {
            return None;
        }
        lately.extend(desired);
        let target = taken.target.to_string();
        let fits = lately.is_empty() || lately.iter().any(|digest| digest.ends_with(&target));
        (!fits).then(|| change.wrong("I2", &format!("it took {target}, and {lately:?} was published")))
    }

    /// I2: the UID in the berth is that of the Node: of the one that is there, or of one that was there when the write was
    /// sent.
    fn of_another_node(&self, change: &Change<'_>, holding: &Holding) -> Option<Violation> {
        let nodes = self.writes("nodes");
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
        if self.misses(created.last()?.0, change.after.version) {
            return None;
        }
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

    fn by_controller(&self, change: &Change<'_>) -> Vec<Violation> {
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
                if of_holder(before) == of_holder(after) {
                    return vec![];
                }
                vec![change.wrong("I1", "it changed what belongs to the holder")]
            }
            (BerthState::Held(holding), BerthState::Closed(closed)) => match closed.reason {
                ClosedReason::Gone if !self.may_be_gone(holding, change) => {
                    vec![change.wrong("I5", "it took a berth away whose Node was not deleted")]
                }
                ClosedReason::Gone | ClosedReason::Excluded => vec![],
                _ => vec![change.wrong("I5", "it took a held berth away")],
            },
            _ => vec![change.wrong("I1", "a controller may not do that")],
        }
    }

    /// I8: the failure that a berth told of stands in the status of its pool.
    fn unrecorded(&self, change: &Change<'_>, closed: &Closed) -> Vec<Violation> {
        let (Some(digest), Some(node)) = (&closed.last_target, &closed.last_node) else {
            return vec![];
        };
        let node = match closed.reason {
            // Another Node may come under that name, on which nothing has failed.
            ClosedReason::Gone => format!("{node} (deleted)"),
            _ => node.to_string(),
        };
        let pool = change.after.berth.pool.as_str();
        let mut before = self
            .writes("bootcnodepools/status")
            .iter()
            .filter(|(version, record, _)| *version < change.after.version && record.name == pool);
        let names = |(_, _, status): &Write<'_>| {
            let failures = status
                .pointer("/status/failures")
                .map(Value::to_string)
                .unwrap_or_default();
            failures.contains(&digest.to_string()) && failures.contains(&format!("\"{node}\""))
        };
        if self.misses(change.before.version, change.after.version) {
            return vec![];
        }
        if !self.evidence.whole && (!self.evidence.pool_statuses || before.clone().next().is_none()) {
            return vec![];
        }
        // It may be forgotten again by now, on an admin's word.
        match before.any(names) || self.doubtful("bootcnodepools/status").next().is_some() {
            true => vec![],
            false => vec![change.wrong("I8", "its failure was acknowledged before it was on record")],
        }
    }

    /// Says whether the Node was deleted by then, as far as the log tells.
    fn may_be_gone(&self, holding: &Holding, change: &Change<'_>) -> bool {
        let is_gone = self.was_deleted(holding.node.as_str(), change.after.at);
        is_gone || self.misses(change.before.version, change.after.version)
    }

    /// A leader that has opened a berth of a pool has fenced all of them: no older one writes there any more.
    fn late_leaders(&self, history: &History) -> Vec<Violation> {
        let mut opened: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        let mut wrong = vec![];
        for seen in in_order(history).into_iter().filter(|s| s.program == CONTROLLER) {
            let newest = opened.entry(seen.berth.pool.as_str()).or_default();
            if seen.berth.epoch < *newest {
                let text = format!(
                    "a leader of epoch {} wrote {} at {}, after one of epoch {newest} had opened a berth",
                    seen.berth.epoch,
                    seen.berth.name(),
                    seen.at
                );
                wrong.push(Violation::of_write("Fence", seen, text));
            }
            if seen.berth.offer().is_some() {
                *newest = (*newest).max(seen.berth.epoch);
            }
        }
        wrong
    }
}
