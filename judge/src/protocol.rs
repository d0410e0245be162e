//! Checks each write of a berth against the protocol: the changes that each program may make, and the state that the
//! host must be in.

use berth_api::BootId;
use berth_api::berth::{BerthState, Closed, ClosedReason, HoldPhase, Holding, Outcome};
use jiff::Timestamp;
use serde_json::Value;

use crate::history::{CONTROLLER, History, RecordedState, in_order};
use crate::hosts::HostChange;
use crate::judge::Judge;
use crate::names::name_of;
use crate::violation::Violation;
use crate::write::{our_cordon, text};

/// A write of an existing berth.
struct Change<'a> {
    lease: &'a str,
    before: &'a RecordedState,
    after: &'a RecordedState,
    /// Boot ID of the host when it took the held berth, if that is recorded.
    taken_under: Option<&'a BootId>,
    /// resourceVersion of the turn's first write of `Releasing`. A new leader may have rewritten the berth since, with
    /// its own epoch.
    releasing_since: Option<u64>,
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

/// Returns the fields of a held berth that only its holder writes. The controller may change the other fields: `revoke`
/// and `openUntil`.
fn of_holder(holding: &Holding) -> Holding {
    Holding {
        revoke: None,
        open_until: None,
        ..holding.clone()
    }
}

fn is_releasing(state: &RecordedState) -> bool {
    state
        .berth
        .holding()
        .is_some_and(|h| matches!(h.phase, HoldPhase::Releasing(_)))
}

impl Judge<'_> {
    /// Checks that all writes of berths by Berth follow the protocol.
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
                    wrong.push(change.wrong("Fence", "the epoch decreased"));
                }
                if let Some(liar) = after.writer().filter(|node| self.is_liar(node)) {
                    if !before.is_of(liar) {
                        wrong.push(change.wrong("I6", "a node may write only a berth that it held or was offered"));
                    }
                    continue;
                }
                wrong.extend(match after.program.as_str() {
                    "berth-agent" => self.by_agent(&change),
                    CONTROLLER => self.by_controller(&change),
                    // The write of an admin, or of the test acting as an admin.
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
                    wrong.push(change.wrong("I1", "the taken berth differs from the offer"));
                }
                wrong.extend(self.undesired(change, taken));
                wrong.extend(self.of_another_node(change, taken));
                wrong
            }
            (BerthState::Held(before), BerthState::Held(after)) => self.holder_moved(change, before, after),
            (BerthState::Held(holding), BerthState::Closed(_)) => match holding.phase {
                HoldPhase::Releasing(_) => self.unrestored(change, holding),
                _ => vec![change.wrong("I4", "the agent gave the berth back without the phase Releasing")],
            },
            _ => vec![change.wrong("I1", "an agent may not make this change")],
        }
    }

    fn holder_moved(&self, change: &Change<'_>, before: &Holding, after: &Holding) -> Vec<Violation> {
        // A write without a change is a fence: writes of a former agent that are still in flight then conflict.
        if before == after {
            return vec![];
        }
        let mut wrong = vec![];
        if (&before.node, &before.uid) != (&after.node, &after.uid) {
            wrong.push(change.wrong("I6", "the holder changed"));
        }
        let same_boot = before.boot_id == after.boot_id;
        match (&before.phase, &after.phase) {
            (HoldPhase::Taken, HoldPhase::Committed) if before.target == after.target => {
                if before.revoke.is_some() {
                    wrong.push(change.wrong("I1", "the agent committed a revoked berth"));
                }
                wrong.extend(self.not_running(change, after.boot_id.as_str()));
                wrong.extend(self.of_another_node(change, after));
            }
            // The holder commits for another target or another boot, without a new take.
            (HoldPhase::Taken | HoldPhase::Committed, HoldPhase::Committed) => {
                wrong.extend(self.not_running(change, after.boot_id.as_str()));
            }
            (HoldPhase::Committed, HoldPhase::Taken) => {
                wrong.extend(self.not_running(change, before.boot_id.as_str()));
            }
            (HoldPhase::Taken | HoldPhase::Committed, HoldPhase::Releasing(outcome)) => {
                // True if the berth was taken in an earlier boot. If `same_boot` is also true, the berth was committed
                // again in the current boot, and this boot must be proven too.
                let anew = change.taken_under.is_some_and(|boot| *boot != after.boot_id);
                let is_known = self.evidence.whole || change.taken_under.is_some();
                if before.phase == HoldPhase::Committed && same_boot && !anew && is_known {
                    wrong.push(change.wrong("I5", "the agent gave a committed berth back before the reboot"));
                }
                wrong.extend(self.not_running(change, after.boot_id.as_str()));
                if (!same_boot || anew) && *outcome != Outcome::Failed {
                    wrong.extend(self.unproven(change, after));
                }
            }
            _ => wrong.push(change.wrong("I1", "the phase does not allow this change")),
        }
        wrong
    }

    /// I2, I5: an agent writes only for the running boot. A write may arrive late, so a boot that ended less than the
    /// lag ago is valid too.
    fn not_running(&self, change: &Change<'_>, boot: &str) -> Option<Violation> {
        let host = change.after.berth.holding()?.node.as_str();
        let mut ups = self.of_host(host).iter();
        let is_seen = ups.any(|e| matches!(&e.change, HostChange::Up { boot_id, .. } if boot_id == boot));
        if !self.evidence.boots && !is_seen {
            return None;
        }
        let mut running = None;
        for event in self.of_host(host) {
            match &event.change {
                HostChange::Up { boot_id, .. } if event.at <= change.after.received => running = Some(boot_id.as_str()),
                HostChange::Down if event.at + self.lag <= change.after.received => running = None,
                // The records show this boot only after the write, so do not judge the write.
                HostChange::Up { boot_id, .. } if boot_id == boot => return None,
                _ => {}
            }
        }
        let before = self.boots_within(host, change.after.received);
        let known = running.is_none() || running == Some(boot) || before.contains(&boot);
        (!known).then(|| {
            change.wrong(
                "I2",
                &format!("the agent wrote for boot {boot}, but {host} ran another boot"),
            )
        })
    }

    /// Returns the boots that ran at this time or less than the lag before it.
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
        boots.retain(|(_, end)| end.is_none_or(|end| end + self.lag >= at));
        boots.into_iter().map(|(boot, _)| boot).collect()
    }

    /// I5: after a new boot, a berth is given back only if the booted image is the target or the previous image, and
    /// the Node was Ready in this boot.
    fn unproven(&self, change: &Change<'_>, after: &Holding) -> Vec<Violation> {
        let boot = after.boot_id.as_str();
        let events = self.of_host(after.node.as_str()).iter();
        let mut earlier = events.clone().filter(|e| e.at <= change.after.received);
        let booted = earlier.find_map(|e| match &e.change {
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
                &format!("the host booted {booted}, which is neither the target nor the previous image"),
            ));
        }
        let begins_here = self.evidence.whole || change.taken_under.is_some();
        let recorded = self.evidence.ready
            && begins_here
            && !self.misses(change.before.version, change.after.version)
            && self.hosts.iter().any(|e| matches!(e.change, HostChange::Ready { .. }));
        let mut within = events.filter(|e| e.at <= change.after.received + self.slack());
        let is_ready = within.any(|e| matches!(&e.change, HostChange::Ready { boot_id } if boot_id == boot));
        if recorded && !is_ready {
            wrong.push(change.wrong("I5", "the Node was not Ready in this boot"));
        }
        wrong
    }

    /// I4: between `Releasing` and the close, the agent wrote its Node and left no cordon of Berth.
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
            None => vec![change.wrong("I4", "the agent gave the berth back without writing its Node first")],
            Some((_, _, node)) if our_cordon(node) => {
                vec![change.wrong(
                    "I4",
                    "the agent gave the berth back while Berth's cordon was still on the Node",
                )]
            }
            Some(_) => vec![],
        }
    }

    /// I2: the taken target must be the image that was published for the node, now or less than the lag ago.
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
        (!fits).then(|| {
            change.wrong(
                "I2",
                &format!("the agent took the berth for {target}, but the published image was {lately:?}"),
            )
        })
    }

    /// I2: the berth's UID is the UID of the Node that exists, or existed when the write was sent.
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
        Some(change.wrong(
            "I2",
            &format!(
                "the Node has the UID {uid}, but the berth is for the UID {}",
                holding.uid
            ),
        ))
    }

    fn by_controller(&self, change: &Change<'_>) -> Vec<Violation> {
        match (&change.before.berth.state, &change.after.berth.state) {
            (BerthState::Closed(before), BerthState::Closed(after)) => match before.outcome {
                Some(Outcome::Failed) if after.outcome.is_none() => self.unrecorded(change, before),
                _ => vec![],
            },
            (BerthState::Closed(before), BerthState::Offered(_)) => match before.outcome {
                Some(Outcome::Failed) if !self.is_hidden(change, before) => vec![change.wrong(
                    "I8",
                    "the controller opened the berth before the pool's status recorded the failure",
                )],
                _ => vec![],
            },
            (BerthState::Offered(_), BerthState::Closed(_)) => vec![],
            (BerthState::Offered(before), BerthState::Offered(after)) if before == after => vec![],
            (BerthState::Held(before), BerthState::Held(after)) => {
                if of_holder(before) == of_holder(after) {
                    return vec![];
                }
                vec![change.wrong("I1", "the controller changed fields that only the holder may change")]
            }
            (BerthState::Held(holding), BerthState::Closed(closed)) => match closed.reason {
                ClosedReason::Gone if !self.may_be_gone(holding, change) => {
                    vec![change.wrong(
                        "I5",
                        "the controller closed a held berth although its Node was not deleted",
                    )]
                }
                ClosedReason::Gone | ClosedReason::Excluded => vec![],
                _ => vec![change.wrong(
                    "I5",
                    "the controller closed a held berth for a reason other than gone or excluded",
                )],
            },
            _ => vec![change.wrong("I1", "a controller may not make this change")],
        }
    }

    /// True if a liar closed its berth as failed without its name, so that the controller cannot record the failure.
    fn is_hidden(&self, change: &Change<'_>, closed: &Closed) -> bool {
        let before = change.before;
        let is_by_liar = before.writer().is_some_and(|node| self.lied_at(node, before.at));
        is_by_liar && closed.last_node.is_none()
    }

    /// I8: the controller records a failure in the pool's status before it removes the failure from the berth.
    fn unrecorded(&self, change: &Change<'_>, closed: &Closed) -> Vec<Violation> {
        let (Some(digest), Some(node)) = (&closed.last_target, &closed.last_node) else {
            return vec![];
        };
        let node = match closed.reason {
            // A new Node may have the same name, but the digest has not failed on the new Node.
            ClosedReason::Gone => format!("{node} (deleted)"),
            // The failure counts although the node is excluded.
            ClosedReason::Excluded => format!("{node} (excluded)"),
            _ => node.to_string(),
        };
        let pool = change.after.berth.pool.as_str();
        let (mut is_reported, mut is_recorded) = (false, false);
        for (version, record, status) in self.writes("bootcnodepools/status") {
            if *version < change.after.version && record.name == pool {
                let failures = status.pointer("/status/failures").map(Value::to_string);
                let failures = failures.unwrap_or_default();
                is_reported = true;
                is_recorded |= failures.contains(&digest.to_string()) && failures.contains(&format!("\"{node}\""));
            }
        }
        if self.misses(change.before.version, change.after.version) {
            return vec![];
        }
        if !self.evidence.whole && (!self.evidence.pool_statuses || !is_reported) {
            return vec![];
        }
        // An admin may have cleared the failure since.
        if is_recorded || self.doubtful("bootcnodepools/status").next().is_some() {
            return vec![];
        }
        vec![change.wrong(
            "I8",
            "the controller removed the failure from the berth before the pool's status recorded it",
        )]
    }

    fn may_be_gone(&self, holding: &Holding, change: &Change<'_>) -> bool {
        let is_gone = self.was_deleted(holding.node.as_str(), change.after.at);
        is_gone || self.misses(change.before.version, change.after.version)
    }

    /// A leader that opens a berth of a pool has fenced all berths of the pool. Older leaders must not write these
    /// berths afterwards.
    fn late_leaders(&self, history: &History) -> Vec<Violation> {
        let mut opened: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        let mut wrong = vec![];
        for state in in_order(history).into_iter().filter(|s| s.program == CONTROLLER) {
            let newest = opened.entry(state.berth.pool.as_str()).or_default();
            if state.berth.epoch < *newest {
                let text = format!(
                    "a controller with epoch {} wrote {} at {}, after a controller with epoch {newest} had opened a berth",
                    state.berth.epoch,
                    state.berth.name(),
                    state.at
                );
                wrong.push(Violation::of_write("Fence", state, text));
            }
            if state.berth.offer().is_some() {
                *newest = (*newest).max(state.berth.epoch);
            }
        }
        wrong
    }
}
