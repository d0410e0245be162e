//! I1(b) and (c): when a berth may be opened, and when it may be taken, by the capacity that was published.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::berth::{BerthState, HoldPhase};
use jiff::Timestamp;
use serde_json::Value;

use super::Violation;
use super::history::{History, Seen, in_order, text};
use crate::audit::Record;
use crate::hosts::{HostChange, HostEvent};
use crate::judge::{Judge, Write};

/// Nodes that somebody else had made unschedulable, and since when.
struct Cordoned {
    version: u64,
    at: Timestamp,
    uid: String,
    unschedulable: bool,
}

impl Judge<'_> {
    /// Every opening and every taking of a berth, in the server's own order.
    pub(super) fn beyond_capacity(&self, history: &History) -> Vec<Violation> {
        let totals = self.totals();
        let cordoned = self.cordoned();
        let members = self.members();
        let mut now: BTreeMap<String, &Seen> = BTreeMap::new();
        let mut wrong = vec![];
        for seen in in_order(history) {
            let pool = seen.berth.pool.as_str();
            let lease = seen.berth.name();
            wrong.extend(second_berth(&now, &lease, seen, |s| self.lasts(s)));
            let before = now.insert(lease.clone(), seen).map(|s| &s.berth.state);
            let Some((since, k)) = published(&totals, pool, seen.version) else {
                continue;
            };
            let most = self.most(pool).filter(|_| self.misses(since, seen.version));
            let k = k.max(most.unwrap_or(0)).max(self.perhaps_published(pool, seen));
            let others = || {
                let others = now.iter().filter(|(name, s)| **name != lease && self.lasts(s));
                others.map(|(_, s)| s).filter(|s| s.berth.pool.as_str() == pool)
            };
            let held = others().filter(|s| s.berth.holding().is_some()).count();
            match (before, &seen.berth.state) {
                (Some(BerthState::Offered(_)), BerthState::Held(h)) if h.phase == HoldPhase::Taken && held >= k => {
                    let text = format!(
                        "{} took {} at {} while {held} of {k} were held",
                        h.node,
                        seen.berth.name(),
                        seen.at
                    );
                    wrong.push(Violation::of_write("I1c", seen, text));
                }
                (Some(BerthState::Closed(_)) | None, BerthState::Offered(offer)) => {
                    let in_use: BTreeSet<_> = others()
                        .filter_map(|s| s.berth.node())
                        .map(|(_, uid)| uid.to_string())
                        .collect();
                    let used = in_use.len();
                    if used >= k {
                        let text = format!(
                            "{} was opened for {} at {} while {used} of {k} were held or open",
                            seen.berth.name(),
                            offer.node,
                            seen.at
                        );
                        wrong.push(Violation::of_write("I1b", seen, text));
                        continue;
                    }
                    let unavailable = self.unavailable(&cordoned, seen);
                    let is_member = |uid: &String| pool_of(&members, uid, seen.version) == Some(pool);
                    let mut all = in_use;
                    all.extend(unavailable.into_iter().filter(is_member));
                    let offered = offer.uid.to_string();
                    if all.len() >= k && !all.contains(&offered) && !self.is_repaired(&cordoned, seen, &offered) {
                        let text = format!(
                            "{} was opened for {} at {} while {} of {k} were held, open or cordoned",
                            seen.berth.name(),
                            offer.node,
                            seen.at,
                            all.len()
                        );
                        wrong.push(Violation::of_write("I1b", seen, text));
                    }
                }
                _ => {}
            }
        }
        wrong
    }

    /// Every opening of a berth that went beyond the limit of the fleet: the berths and members of all pools count.
    pub(super) fn beyond_fleet(&self, history: &History) -> Vec<Violation> {
        let Some(limit) = self.fleet else { return vec![] };
        let cordoned = self.cordoned();
        let members = self.members();
        let mut now: BTreeMap<String, &Seen> = BTreeMap::new();
        let mut wrong = vec![];
        for seen in in_order(history) {
            let lease = seen.berth.name();
            let before = now.insert(lease.clone(), seen).map(|s| &s.berth.state);
            let (false, BerthState::Offered(offer)) =
                (matches!(before, Some(BerthState::Offered(_))), &seen.berth.state)
            else {
                continue;
            };
            let others = now.iter().filter(|(name, s)| **name != lease && self.lasts(s));
            let worked_on: BTreeSet<_> = others
                .filter_map(|(_, s)| s.berth.node())
                .map(|(_, uid)| uid.to_string())
                .collect();
            let is_member = |uid: &String| pool_of(&members, uid, seen.version).is_some_and(|pool| !pool.is_empty());
            let mut all = worked_on.clone();
            all.extend(self.unavailable(&cordoned, seen).into_iter().filter(is_member));
            let offered = offer.uid.to_string();
            let is_down = || all.contains(&offered) || self.is_repaired(&cordoned, seen, &offered);
            if worked_on.len() >= limit || all.len() >= limit && !is_down() {
                let text = format!(
                    "{} was opened for {} at {} while {} of the fleet's {limit} were held, open or cordoned",
                    seen.berth.name(),
                    offer.node,
                    seen.at,
                    all.len()
                );
                wrong.push(Violation::of_write("I1b", seen, text));
            }
        }
        wrong
    }

    /// Capacities that were published: pool, place in the order, capacity.
    fn totals(&self) -> Vec<(String, u64, usize)> {
        let pools = self.writes("bootcnodepools/status");
        let total = |object: &Value| usize::try_from(object.pointer("/status/berths/total")?.as_u64()?).ok();
        pools
            .iter()
            .filter_map(|(version, record, object)| Some((record.name.clone(), *version, total(object)?)))
            .collect()
    }

    /// The largest capacity that may have been published before a state, without an answer.
    fn perhaps_published(&self, pool: &str, seen: &Seen) -> usize {
        let lost = self.doubtful("bootcnodepools/status").filter(|r| r.name == pool);
        let total = |r: &Record| {
            let total = r.request.as_ref()?.pointer("/status/berths/total")?.as_u64()?;
            (r.received <= seen.at).then_some(total)
        };
        let totals = lost.filter_map(total);
        usize::try_from(totals.max().unwrap_or(0)).unwrap_or(usize::MAX)
    }

    /// Memberships that were published of each Node: its UID, place in the order, pool.
    fn members(&self) -> Vec<(String, u64, String)> {
        let nodes = self.writes("bootcnodes");
        let member = |(version, _, object): &Write<'_>| {
            let pool = text(object, "/spec/poolName").unwrap_or_default();
            Some((text(object, "/spec/nodeUID")?.to_owned(), *version, pool.to_owned()))
        };
        nodes.iter().filter_map(member).collect()
    }

    fn cordoned(&self) -> Vec<Cordoned> {
        let nodes = self.writes("nodes");
        let state = |(version, record, object): &Write<'_>| {
            Some(Cordoned {
                version: *version,
                at: record.at,
                uid: text(object, "/metadata/uid")?.to_owned(),
                unschedulable: record.unschedulable() == Some(true),
            })
        };
        nodes.iter().filter_map(state).collect()
    }

    /// UIDs of the nodes that were unschedulable for so long that every view of the cluster had seen it.
    fn unavailable(&self, cordoned: &[Cordoned], seen: &Seen) -> BTreeSet<String> {
        let mut since: BTreeMap<&str, Timestamp> = BTreeMap::new();
        for change in cordoned.iter().take_while(|c| c.version < seen.version) {
            match change.unschedulable {
                // Somebody may have uncordoned it where the log misses writes.
                true if self.misses(change.version, seen.version) => drop(since.remove(change.uid.as_str())),
                true => drop(since.entry(&change.uid).or_insert(change.at)),
                false => drop(since.remove(change.uid.as_str())),
            }
        }
        let long = since.iter().filter(|(_, at)| **at + self.lag < seen.received);
        long.map(|(uid, _)| (*uid).to_owned())
            .filter(|uid| !self.vanished(uid, seen))
            .collect()
    }

    /// Says whether the node may count as unavailable itself: then it may be offered a berth whatever else is away.
    fn is_repaired(&self, cordoned: &[Cordoned], seen: &Seen, uid: &str) -> bool {
        self.lately_cordoned(cordoned, seen, uid) || self.lately_joined(seen, uid)
    }

    /// Says whether the node was unschedulable at some moment shortly before: then it may count as unavailable.
    fn lately_cordoned(&self, cordoned: &[Cordoned], seen: &Seen, uid: &str) -> bool {
        let mut last = false;
        for change in cordoned
            .iter()
            .take_while(|c| c.version < seen.version)
            .filter(|c| c.uid == uid)
        {
            if change.unschedulable || (last && change.at + self.lag >= seen.received) {
                return true;
            }
            last = change.unschedulable;
        }
        false
    }

    /// Says whether the Node is so new that it may not have been seen Ready yet: then it may count as unavailable.
    pub(super) fn lately_joined(&self, seen: &Seen, uid: &str) -> bool {
        let joined = self.writes("nodes").iter().find(|(_, record, object)| {
            record.verb == "create" && text(object, "/metadata/uid") == Some(uid) && record.at <= seen.received
        });
        joined.is_some_and(|(_, record, _)| {
            let ready = |e: &&&HostEvent| e.at >= record.received && matches!(e.change, HostChange::Ready { .. });
            let ready = self.of_host(&record.name).iter().find(ready);
            ready.is_none_or(|e| e.at + self.lag >= seen.received)
        })
    }

    /// Says whether a Node of another UID has taken that one's place, or none.
    pub(super) fn vanished(&self, uid: &str, seen: &Seen) -> bool {
        let name = self.name_of_uid(uid);
        name.is_some_and(|name| self.was_deleted(name, seen.at))
    }
}

/// A node works under one berth at a time, whichever pools it belonged to: its second one says which it took besides.
fn second_berth(
    now: &BTreeMap<String, &Seen>,
    lease: &str,
    seen: &Seen,
    lasts: impl Fn(&Seen) -> bool,
) -> Option<Violation> {
    let taken = seen.berth.holding().filter(|h| h.phase == HoldPhase::Taken)?;
    let (_, other) = now
        .iter()
        .find(|(name, s)| *name != lease && lasts(s) && s.berth.holding().is_some_and(|h| h.uid == taken.uid))?;
    let text = format!(
        "{} took {} at {} and holds {} already",
        taken.node,
        seen.berth.name(),
        seen.at,
        other.berth.name()
    );
    Some(Violation::of_write("I1", seen, text).and(&other.audit_id))
}

/// The pool that a Node belongs to at a place in the order.
fn pool_of<'a>(members: &'a [(String, u64, String)], uid: &str, version: u64) -> Option<&'a str> {
    members
        .iter()
        .rfind(|(of, at, _)| of == uid && *at < version)
        .map(|(_, _, pool)| pool.as_str())
}

/// The capacity in force at a place in the order, and since which one. Unknown before it was published for the first time.
fn published(totals: &[(String, u64, usize)], pool: &str, version: u64) -> Option<(u64, usize)> {
    totals
        .iter()
        .rfind(|(name, at, _)| name == pool && *at < version)
        .map(|(_, at, total)| (*at, *total))
}
