//! I1(b) and (c): a berth is opened and taken only within the published capacity.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::{BerthState, HoldPhase, Offer};
use jiff::Timestamp;
use serde_json::Value;

use crate::history::{History, RecordedState, in_order};
use crate::hosts::HostChange;
use crate::judge::Judge;
use crate::violation::Violation;
use crate::write::{our_cordon, text};

/// A write of a Node, and whether it left the Node cordoned: unschedulable, or with the mark of Berth's cordon. Berth counts both as
/// unavailable.
struct Cordoned {
    version: u64,
    at: Timestamp,
    uid: String,
    is_cordoned: bool,
}

/// Berths other than the written one, at the time of the write: all in its pool, or for the fleet's limit all in the
/// cluster.
struct Others {
    held: usize,
    /// UIDs of the nodes that hold or are offered one of these berths.
    nodes: BTreeSet<String>,
}

impl Others {
    fn of<'a>(others: impl Iterator<Item = &'a RecordedState>) -> Self {
        let (mut held, mut nodes) = (0, BTreeSet::new());
        for other in others {
            held += usize::from(other.berth.holding().is_some());
            nodes.extend(other.berth.node().map(|(_, uid)| uid.to_string()));
        }
        Self { held, nodes }
    }
}

impl Judge<'_> {
    /// Checks every opened and every taken berth, in the order of resourceVersions.
    pub(super) fn beyond_capacity(&self, history: &History) -> Vec<Violation> {
        let totals = self.totals();
        let (cordoned, members) = (self.cordoned(), self.members());
        let mut now: BTreeMap<String, &RecordedState> = BTreeMap::new();
        let mut wrong = vec![];
        for state in in_order(history) {
            let (pool, lease) = (state.berth.pool.as_str(), state.berth.name());
            if !state.writer().is_some_and(|node| self.is_liar(node)) {
                wrong.extend(second_berth(&now, &lease, state, |s| self.lasts(s)));
            }
            let was_closed = now.get(&lease).is_none_or(|s| s.berth.node().is_none());
            if was_closed {
                wrong.extend(second_offer(&now, &lease, state, |s| self.lasts(s)));
            }
            let before = now.insert(lease.clone(), state).map(|s| &s.berth.state);
            let Some((since, k)) = published(&totals, pool, state.version) else {
                continue;
            };
            let most = self.most(pool).filter(|_| self.misses(since, state.version));
            let k = k.max(most.unwrap_or(0)).max(self.perhaps_published(pool, state));
            let others = now.iter().filter(|(name, s)| **name != lease && self.lasts(s));
            let of_pool = others.filter(|(_, s)| s.berth.pool.as_str() == pool);
            let Others { held, nodes } = Others::of(of_pool.map(|(_, s)| *s));
            match (before, &state.berth.state) {
                (Some(BerthState::Offered(_)), BerthState::Held(h)) if h.phase == HoldPhase::Taken && held >= k => {
                    let text = format!(
                        "{} took {lease} at {} while {held} of {k} berths were held",
                        h.node, state.at
                    );
                    wrong.push(Violation::of_write("I1c", state, text));
                }
                (Some(BerthState::Closed(_)) | None, BerthState::Offered(offer)) => {
                    let (used, uid) = (nodes.len(), offer.uid.to_string());
                    let mut all = nodes;
                    let down = self.unavailable(&cordoned, state).into_iter();
                    all.extend(down.filter(|uid| pool_of(&members, uid, state.version) == Some(pool)));
                    let in_use = if used >= k {
                        format!("{used} of {k} berths were held or offered")
                    } else if all.len() >= k && !all.contains(&uid) && !self.is_repaired(&cordoned, state, offer) {
                        format!("berths and cordoned nodes used {} of the capacity of {k}", all.len())
                    } else {
                        continue;
                    };
                    wrong.push(opened(state, offer, &in_use));
                }
                _ => {}
            }
        }
        wrong
    }

    /// Finds berths that were opened beyond the fleet's limit. The limit applies to the berths and unavailable members
    /// of all pools together.
    pub(super) fn beyond_fleet(&self, history: &History) -> Vec<Violation> {
        let Some(limit) = self.fleet else { return vec![] };
        let (cordoned, members) = (self.cordoned(), self.members());
        let mut now: BTreeMap<String, &RecordedState> = BTreeMap::new();
        let mut wrong = vec![];
        for state in in_order(history) {
            let lease = state.berth.name();
            let before = now.insert(lease.clone(), state).map(|s| &s.berth.state);
            let was_offered = matches!(before, Some(BerthState::Offered(_)));
            let Some(offer) = state.berth.offer().filter(|_| !was_offered) else {
                continue;
            };
            let others = now.iter().filter(|(name, s)| **name != lease && self.lasts(s));
            let Others { nodes, .. } = Others::of(others.map(|(_, s)| *s));
            let (used, uid) = (nodes.len(), offer.uid.to_string());
            let mut all = nodes;
            let down = self.unavailable(&cordoned, state).into_iter();
            all.extend(down.filter(|uid| pool_of(&members, uid, state.version).is_some_and(|pool| !pool.is_empty())));
            let is_down = all.contains(&uid) || self.is_repaired(&cordoned, state, offer);
            if used >= limit || all.len() >= limit && !is_down {
                let in_use = format!(
                    "berths and cordoned nodes used {} of the fleet's limit of {limit}",
                    all.len()
                );
                wrong.push(opened(state, offer, &in_use));
            }
        }
        wrong
    }

    /// Returns the published capacities: pool, resourceVersion, capacity.
    fn totals(&self) -> Vec<(String, u64, usize)> {
        let pools = self.writes("bootcnodepools/status").iter();
        let totals = pools.filter_map(|(version, record, object)| {
            let total = usize::try_from(total(object)?).ok()?;
            Some((record.name.clone(), *version, total))
        });
        totals.collect()
    }

    /// Returns the largest capacity in the unanswered writes that the API server may have stored before this state.
    fn perhaps_published(&self, pool: &str, state: &RecordedState) -> usize {
        let lost = self.doubtful("bootcnodepools/status").filter(|r| r.name == pool);
        let lost = lost.filter(|r| r.received <= state.at);
        let totals = lost.filter_map(|r| total(r.request.as_ref()?));
        usize::try_from(totals.max().unwrap_or(0)).unwrap_or(usize::MAX)
    }

    /// Returns the published memberships: UID of the Node, resourceVersion, pool.
    fn members(&self) -> Vec<(String, u64, String)> {
        let nodes = self.writes("bootcnodes").iter();
        let members = nodes.filter_map(|(version, _, object)| {
            let pool = text(object, "/spec/poolName").unwrap_or_default();
            Some((text(object, "/spec/nodeUID")?.to_owned(), *version, pool.to_owned()))
        });
        members.collect()
    }

    fn cordoned(&self) -> Vec<Cordoned> {
        let nodes = self.writes("nodes").iter();
        let states = nodes.filter_map(|(version, record, object)| {
            Some(Cordoned {
                version: *version,
                at: record.at,
                uid: text(object, "/metadata/uid")?.to_owned(),
                is_cordoned: record.unschedulable() == Some(true) || our_cordon(object),
            })
        });
        states.collect()
    }

    /// Returns the UIDs of Nodes that had been cordoned for longer than the lag. By then, Berth must have counted
    /// these Nodes as unavailable.
    fn unavailable(&self, cordoned: &[Cordoned], state: &RecordedState) -> BTreeSet<String> {
        let mut since: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for change in cordoned.iter().take_while(|c| c.version < state.version) {
            // If the log misses writes here, the node may have been uncordoned.
            if change.is_cordoned && !self.misses(change.version, state.version) {
                since.entry(&change.uid).or_insert(change.at);
            } else {
                since.remove(change.uid.as_str());
            }
        }
        let long = since.iter().filter(|(_, at)| **at + self.lag < state.received);
        long.map(|(uid, _)| (*uid).to_owned())
            .filter(|uid| !self.vanished(uid, state))
            .collect()
    }

    /// True if Berth may have counted the offered node itself as unavailable. Such a node may be offered a berth
    /// regardless of other unavailable nodes.
    fn is_repaired(&self, cordoned: &[Cordoned], state: &RecordedState, offer: &Offer) -> bool {
        let uid = offer.uid.to_string();
        self.lately_cordoned(cordoned, state, &uid)
            || self.lately_joined(state, &uid)
            || self.claims_not_ready(offer.node.as_str(), state)
    }

    /// True if the node was cordoned when this state was written, or until less than the lag before. Berth may then have counted it as
    /// unavailable.
    fn lately_cordoned(&self, cordoned: &[Cordoned], state: &RecordedState, uid: &str) -> bool {
        let earlier = cordoned.iter().take_while(|c| c.version < state.version);
        let mut last: Option<&Cordoned> = None;
        let mut ended: Option<Timestamp> = None;
        for change in earlier.filter(|c| c.uid == uid) {
            if last.is_some_and(|last| last.is_cordoned) && !change.is_cordoned {
                ended = Some(change.at);
            }
            last = Some(change);
        }
        last.is_some_and(|last| last.is_cordoned || self.misses(last.version, state.version))
            || ended.is_some_and(|at| at + self.lag >= state.received)
    }

    /// True if the Node is so new that Berth may not have seen it Ready yet. Berth may then have counted it as
    /// unavailable.
    pub(super) fn lately_joined(&self, state: &RecordedState, uid: &str) -> bool {
        let joined = self.writes("nodes").iter().find(|(_, record, object)| {
            record.verb == "create" && text(object, "/metadata/uid") == Some(uid) && record.at <= state.received
        });
        joined.is_some_and(|(_, record, _)| {
            let mut later = self.of_host(&record.name).iter().filter(|e| e.at >= record.received);
            let ready = later.find(|e| matches!(e.change, HostChange::Ready { .. }));
            ready.is_none_or(|e| e.at + self.lag >= state.received)
        })
    }

    /// True if the Node with this UID was deleted before this state.
    pub(super) fn vanished(&self, uid: &str, state: &RecordedState) -> bool {
        let name = self.name_of_uid(uid);
        name.is_some_and(|name| self.was_deleted(name, state.at))
    }
}

fn opened(state: &RecordedState, offer: &Offer, in_use: &str) -> Violation {
    let (lease, node, at) = (state.berth.name(), &offer.node, state.at);
    let text = format!("{lease} was opened for {node} at {at} while {in_use}");
    Violation::of_write("I1b", state, text)
}

fn total(object: &Value) -> Option<u64> {
    object.pointer("/status/berths/total")?.as_u64()
}

/// Returns a violation if a node takes a second berth. A node may hold only one, even after it has changed its pool.
fn second_berth(
    now: &BTreeMap<String, &RecordedState>,
    lease: &str,
    state: &RecordedState,
    lasts: impl Fn(&RecordedState) -> bool,
) -> Option<Violation> {
    let taken = state.berth.holding().filter(|h| h.phase == HoldPhase::Taken)?;
    let (_, other) = now
        .iter()
        .find(|(name, s)| *name != lease && lasts(s) && s.berth.holding().is_some_and(|h| h.uid == taken.uid))?;
    let text = format!(
        "{} took {} at {} while the node already held {}",
        taken.node,
        state.berth.name(),
        state.at,
        other.berth.name()
    );
    Some(Violation::of_write("I1", state, text).and(&other.audit_id))
}

/// Returns a violation if a node is offered a berth while it has another berth of the same pool.
fn second_offer(
    now: &BTreeMap<String, &RecordedState>,
    lease: &str,
    state: &RecordedState,
    lasts: impl Fn(&RecordedState) -> bool,
) -> Option<Violation> {
    let offer = state.berth.offer()?;
    let (_, other) = now.iter().find(|(name, s)| {
        let has_it = s.berth.node().is_some_and(|(_, uid)| *uid == offer.uid);
        *name != lease && s.berth.pool == state.berth.pool && lasts(s) && has_it
    })?;
    let text = format!(
        "{lease} was opened for {} at {} while the node already had {}",
        offer.node,
        state.at,
        other.berth.name()
    );
    Some(Violation::of_write("I1", state, text).and(&other.audit_id))
}

/// Returns the pool of a Node before this resourceVersion.
fn pool_of<'a>(members: &'a [(String, u64, String)], uid: &str, version: u64) -> Option<&'a str> {
    members
        .iter()
        .rfind(|(of, at, _)| of == uid && *at < version)
        .map(|(_, _, pool)| pool.as_str())
}

/// Returns a pool's capacity before this resourceVersion, and the resourceVersion that published it. `None` if none
/// was published yet.
fn published(totals: &[(String, u64, usize)], pool: &str, version: u64) -> Option<(u64, usize)> {
    totals
        .iter()
        .rfind(|(name, at, _)| name == pool && *at < version)
        .map(|(_, at, total)| (*at, *total))
}
