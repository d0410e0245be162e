//! Events of turns, found by comparing each berth with its last state. Pure. Durations are measured by this process's
//! clock. A duration that began under an earlier leader is unknown.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::berth::{BerthState, ClosedReason, HoldPhase, Holding, Outcome};
use berth_api::{Digest, NodeName, NodeUid, PoolName};

use crate::Moment;
use crate::controller::view::LeaseView;

/// How long an announcement of a reboot counts. If an event of the same turn announced the reboot in this period, the
/// event for a commit does not announce it again. The event for taking the berth is an announcement too.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Outcome of a turn that an admin or the controller ended before the commit: the Node is gone or excluded, or an admin
/// closed the berth.
pub const TAKEN_AWAY: &str = "TakenAway";

/// Event of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnNews {
    /// Pool of the berth.
    pub pool: PoolName,
    /// Name of the berth.
    pub berth: String,
    /// The node whose turn it is.
    pub node: NodeName,
    /// UID of the node.
    pub uid: NodeUid,
    /// The digest that the berth licenses.
    pub target: Digest,
    /// The event.
    pub what: Happened,
}

/// An event of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    /// A node took the berth.
    Taken,
    /// The holder committed. The agent may withdraw a commit and commit again.
    Committed {
        /// Duration of the drain: time since the berth was taken or, if a commit was withdrawn, since then. `None` if
        /// this process did not see the start.
        drain: Option<Duration>,
        /// True if an earlier event of this turn announced the reboot less than a minute ago.
        announced: bool,
    },
    /// The turn ended: the berth is closed.
    Ended {
        /// Outcome of the turn: an [`Outcome`], or [`TAKEN_AWAY`].
        outcome: &'static str,
        /// Time from the commit until the berth was closed. `None` if the target was not proven, or if this process did
        /// not see the commit.
        reboot: Option<Duration>,
        /// True if the holder gave the berth back. False if an admin or the controller closed it.
        given_back: bool,
    },
}

/// Turns that are in progress, found from the last seen state of each berth.
#[derive(Debug, Default)]
pub struct Turns {
    leases: BTreeMap<String, LastSeen>,
    /// True after the first call of [`Self::see`]. The first call cannot know when a held berth was taken, so it
    /// reports no take.
    began: bool,
}

#[derive(Debug)]
struct LastSeen {
    version: u64,
    turn: Option<Turn>,
}

#[derive(Debug, Clone)]
struct Turn {
    node: NodeName,
    uid: NodeUid,
    target: Digest,
    taken: Option<Moment>,
    /// Time of the last event that announced a reboot.
    announced: Option<Moment>,
    committed: Option<Moment>,
    is_committed: bool,
    outcome: Option<Outcome>,
}

impl Turn {
    fn new(holding: &Holding, taken: Option<Moment>) -> Self {
        Self {
            node: holding.node.clone(),
            uid: holding.uid.clone(),
            target: holding.target.clone(),
            taken,
            announced: taken,
            committed: None,
            is_committed: false,
            outcome: None,
        }
    }

    /// Returns the event for the end of the turn. `state`: state of the berth after the turn.
    fn ended(&self, state: &BerthState, now: Moment) -> Happened {
        let said = match state {
            BerthState::Closed(closed) => closed.outcome,
            _ => None,
        };
        let outcome = said.or(self.outcome);
        let proven = self.committed.filter(|_| outcome == Some(Outcome::Updated));
        let given_back = match state {
            BerthState::Closed(closed) => matches!(closed.reason, ClosedReason::Released | ClosedReason::Failed),
            // The watch did not show the closed berth: the berth is offered or held again already.
            _ => self.outcome.is_some(),
        };
        Happened::Ended {
            outcome: outcome.map_or(TAKEN_AWAY, Outcome::as_str),
            reboot: proven.map(|committed| now.since(committed)),
            given_back,
        }
    }
}

impl Turns {
    /// Records the current berths. Returns the events since the last call; none in the first call of a new leader.
    pub fn see(&mut self, leases: &[LeaseView], now: Moment) -> Vec<TurnNews> {
        let mut news = vec![];
        let mut before = std::mem::take(&mut self.leases);
        for lease in leases {
            let known = before.remove(lease.name());
            let version = version(lease);
            // The last state may come from a direct read, and the watch may then still show an older state.
            let is_new = known.as_ref().is_none_or(|known| version > known.version);
            let (Ok(berth), true) = (&lease.berth, is_new) else {
                self.leases.extend(known.map(|known| (lease.name().to_owned(), known)));
                continue;
            };
            let before = known.and_then(|known| known.turn);
            let (turn, events) = follow(before, &berth.state, self.began.then_some(now), now);
            news.extend(events.into_iter().map(|(turn, what)| TurnNews {
                pool: lease.pool.clone(),
                berth: lease.name().to_owned(),
                node: turn.node,
                uid: turn.uid,
                target: turn.target,
                what,
            }));
            self.leases.insert(lease.name().to_owned(), LastSeen { version, turn });
        }
        self.began = true;
        news
    }
}

/// Returns the current turn of a berth, and the new events: the end of the previous turn, and changes of the current
/// turn. `taken`: start time for a new turn. `None` in the first call of a new leader, which did not see the start.
fn follow(
    before: Option<Turn>,
    state: &BerthState,
    taken: Option<Moment>,
    now: Moment,
) -> (Option<Turn>, Vec<(Turn, Happened)>) {
    let mut events = vec![];
    let held = match state {
        BerthState::Held(holding) => Some(holding),
        _ => None,
    };
    let (goes_on, over) = match before {
        Some(turn) if held.is_some_and(|holding| holding.uid == turn.uid) => (Some(turn), None),
        over => (None, over),
    };
    if let Some(turn) = over {
        let end = turn.ended(state, now);
        events.push((turn, end));
    }
    let Some(holding) = held else {
        return (None, events);
    };
    let is_found = goes_on.is_none() && taken.is_none();
    let mut turn = match goes_on {
        Some(turn) => turn,
        None => {
            let turn = Turn::new(holding, taken);
            if taken.is_some() {
                events.push((turn.clone(), Happened::Taken));
            }
            turn
        }
    };
    // The agent may have changed the target of its berth to a newer image.
    turn.target.clone_from(&holding.target);
    match holding.phase {
        HoldPhase::Taken => {
            if turn.is_committed {
                // The agent has withdrawn its commit, so its drain starts again.
                turn.taken = Some(now);
            }
            (turn.committed, turn.is_committed) = (None, false);
        }
        HoldPhase::Committed if !turn.is_committed => {
            turn.is_committed = true;
            if !is_found {
                turn.committed = Some(now);
                let announced = turn.announced.is_some_and(|at| now.since(at) < ANNOUNCE_TIMEOUT);
                if !announced {
                    turn.announced = Some(now);
                }
                let drain = turn.taken.map(|taken| now.since(taken));
                events.push((turn.clone(), Happened::Committed { drain, announced }));
            }
        }
        HoldPhase::Committed => {}
        HoldPhase::Releasing(outcome) => turn.outcome = Some(outcome),
    }
    (Some(turn), events)
}

/// Returns the resourceVersion as a number. Versions of one kind of resource are ordered.
fn version(lease: &LeaseView) -> u64 {
    let version = lease.lease.metadata.resource_version.as_deref();
    version.and_then(|v| v.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use berth_api::BootId;
    use berth_api::berth::{Berth, ClosedReason, Offer, lease};

    use super::*;

    struct Story {
        turns: Turns,
        berth: Berth,
        version: u64,
    }

    impl Story {
        fn new() -> Self {
            let berth = Berth::new("p".into(), 0, 1);
            let turns = Turns::default();
            let mut story = Self {
                turns,
                berth,
                version: 1,
            };
            assert!(story.see(0).is_empty());
            story
        }

        fn lease(&self, version: u64) -> LeaseView {
            let now = jiff::Timestamp::UNIX_EPOCH;
            let mut lease = lease::create(&self.berth, "ns", Duration::from_secs(1), now);
            lease.metadata.resource_version = Some(version.to_string());
            LeaseView::of(lease)
        }

        fn see(&mut self, second: u64) -> Vec<(String, Happened)> {
            let leases = [self.lease(self.version)];
            let news = self.turns.see(&leases, Moment::after(Duration::from_secs(second)));
            news.into_iter().map(|n| (n.node.to_string(), n.what)).collect()
        }

        fn goes(&mut self, to: Berth, second: u64) -> Vec<(String, Happened)> {
            (self.berth, self.version) = (to, self.version + 1);
            self.see(second)
        }

        fn taken(&self) -> Berth {
            let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
            let offer = Offer {
                node: "n1".into(),
                uid: "u1".into(),
                target,
                open_until: None,
            };
            let offered = self.berth.offered(offer).unwrap();
            offered.taken(&"n1".into(), &"u1".into(), None, boot("b1")).unwrap()
        }
    }

    fn boot(id: &str) -> BootId {
        BootId::from(id)
    }

    fn commits(drain: u64, announced: bool) -> Happened {
        let drain = seconds(drain);
        Happened::Committed { drain, announced }
    }

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn n1(what: Happened) -> (String, Happened) {
        ("n1".to_owned(), what)
    }

    #[test]
    fn each_step_of_a_turn_is_reported_once() {
        let mut story = Story::new();
        assert_eq!(story.goes(story.taken(), 10), [n1(Happened::Taken)]);
        assert!(story.see(11).is_empty());
        let committed = story.berth.committed(boot("b1")).unwrap();
        assert_eq!(story.goes(committed.clone(), 40), [n1(commits(30, true))]);
        assert!(
            story.goes(committed.stamped(2), 41).is_empty(),
            "a new leader fences it"
        );
        let releasing = committed.releasing(Outcome::Updated, boot("b2")).unwrap();
        assert!(story.goes(releasing.clone(), 90).is_empty());
        let (outcome, reboot) = ("Updated", seconds(60));
        let end = Happened::Ended {
            outcome,
            reboot,
            given_back: true,
        };
        assert_eq!(story.goes(releasing.given_back().unwrap(), 100), [n1(end)]);
        assert!(story.see(101).is_empty());
    }

    #[test]
    fn a_new_turn_announces_its_reboot() {
        for (drain, announced) in [(0, true), (59, true), (60, false), (600, false)] {
            let mut story = Story::new();
            story.goes(story.taken(), 100);
            let committed = story.berth.committed(boot("b1")).unwrap();
            let news = story.goes(committed, 100 + drain);
            assert_eq!(news, [("n1".to_owned(), commits(drain, announced))]);
        }
        // A new leader did not see the start of the turn, so it has not announced the reboot.
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        story.turns = Turns::default();
        story.see(1);
        let committed = story.berth.committed(boot("b1")).unwrap();
        let expected = Happened::Committed {
            drain: None,
            announced: false,
        };
        assert_eq!(story.goes(committed, 2), [("n1".to_owned(), expected)]);
    }

    #[test]
    fn events_name_berth_node_and_current_target() {
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        let committed = story.berth.committed(boot("b1")).unwrap();
        let other: Digest = format!("sha256:{}", "1".repeat(64)).parse().unwrap();
        let anew = committed.relicensed(other.clone(), boot("b2")).unwrap();
        (story.berth, story.version) = (anew, story.version + 1);
        let leases = [story.lease(story.version)];
        let news = story.turns.see(&leases, Moment::default());
        let [news] = news.as_slice() else { panic!("{news:?}") };
        assert_eq!((news.berth.as_str(), news.uid.as_str()), ("p-0", "u1"));
        assert_eq!(news.target, other);
    }

    #[test]
    fn a_withdrawn_commit_is_not_a_reboot() {
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        let committed = story.berth.committed(boot("b1")).unwrap();
        story.goes(committed.clone(), 5);
        let back = committed.uncommitted().unwrap();
        assert!(story.goes(back.clone(), 100).is_empty());
        // The second drain is measured from its own start.
        let again = story.goes(back.committed(boot("b1")).unwrap(), 107);
        assert_eq!(
            again,
            [("n1".to_owned(), commits(7, false))],
            "the first announcement is too old"
        );
        assert!(story.goes(back.clone(), 108).is_empty());
        let releasing = back.releasing(Outcome::RebootBlocked, boot("b1")).unwrap();
        // The watch skipped the states between.
        let news = story.goes(releasing.given_back().unwrap(), 109);
        let end = Happened::Ended {
            outcome: "RebootBlocked",
            reboot: None,
            given_back: true,
        };
        assert_eq!(news, [("n1".to_owned(), end)]);
    }

    #[test]
    fn older_versions_report_nothing() {
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        let old = story.lease(story.version);
        let releasing = story.berth.releasing(Outcome::Revoked, boot("b1")).unwrap();
        assert_eq!(story.goes(releasing.given_back().unwrap(), 1).len(), 1);
        assert!(story.turns.see(&[old], Moment::default()).is_empty());
        assert!(story.see(2).is_empty());
    }

    #[test]
    fn a_new_leader_reports_only_later_events() {
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        story.berth = story.berth.committed(boot("b1")).unwrap();
        story.turns = Turns::default();
        assert!(story.see(5).is_empty());
        let gone = story.berth.ended(ClosedReason::Gone).unwrap();
        let failed = Happened::Ended {
            outcome: "Failed",
            reboot: None,
            given_back: false,
        };
        assert_eq!(story.goes(gone, 9), [("n1".to_owned(), failed)]);
    }

    #[test]
    fn a_berth_revoked_before_the_commit_is_reported() {
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        let admin = story.berth.ended(ClosedReason::Admin).unwrap();
        let taken_away = Happened::Ended {
            outcome: TAKEN_AWAY,
            reboot: None,
            given_back: false,
        };
        assert_eq!(story.goes(admin, 1), [("n1".to_owned(), taken_away)]);
    }

    #[test]
    fn a_fast_drain_hides_no_commit() {
        let mut story = Story::new();
        let committed = story.taken().committed(boot("b1")).unwrap();
        assert_eq!(story.goes(committed, 10), [n1(Happened::Taken), n1(commits(0, true))]);
    }

    #[test]
    fn each_commit_announces_for_a_minute() {
        let mut story = Story::new();
        story.goes(story.taken(), 0);
        let committed = story.berth.committed(boot("b1")).unwrap();
        let back = committed.uncommitted().unwrap();
        for (second, drain, announced) in [(100, 100, false), (159, 10, true), (160, 1, false)] {
            let told = story.goes(committed.clone(), second);
            assert_eq!(told, [("n1".to_owned(), commits(drain, announced))], "{second}");
            let taken_back = if second == 100 { 149 } else { second };
            story.goes(back.clone(), taken_back);
        }
    }
}
