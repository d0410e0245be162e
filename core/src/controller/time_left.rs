//! Estimates how long a pool's rollout still takes, from the durations that its members measured. Pure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// Maximum number of openings to look at. A rollout that needs more of them has no estimate.
const MAX_OPENINGS: usize = 1_000;

/// Work that is left in a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of members that may be updated at once.
    pub capacity: usize,
    /// Expected duration of a turn: the drain and the reboot.
    pub turn: Duration,
    /// Waves with work left, in order.
    pub waves: Vec<WaveWork>,
}

/// Work that is left in one wave.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WaveWork {
    /// For each member in a turn: expected time until the turn ends.
    pub running: Vec<Duration>,
    /// For each member whose turn has not begun: expected time until its image is staged.
    pub waiting: Vec<Duration>,
    /// Time that the wave must still soak after its last turn.
    pub soak: Duration,
}

/// Whether turns may begin at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Openness {
    /// Turns may begin. A turn must be over at this time; `None` if there is no such time.
    Open(Option<Timestamp>),
    /// No turn may begin before this time; `None` if no such time is known.
    Closed(Option<Timestamp>),
}

/// Returns the expected time until the last turn ends. `openness` returns whether turns may begin at a time. `None` if
/// the time is not known: without capacity, or if no opening is long enough.
pub fn time_left(work: &Work, now: Timestamp, openness: impl Fn(Timestamp) -> Openness) -> Option<Duration> {
    let turn = SignedDuration::try_from(work.turn).ok()?;
    let mut openings = Openings {
        openness,
        open_until: None,
        looks: 0,
    };
    let (mut begin, mut end) = (now, now);
    for wave in &work.waves {
        end = wave_end(work.capacity, turn, wave, now, begin, &mut openings)?;
        begin = later(end, wave.soak)?;
    }
    Duration::try_from(end.duration_since(now)).ok()
}

/// Returns the end of the wave's last turn. Its turns begin at `begin` or later, each as soon as a berth is free.
fn wave_end(
    capacity: usize,
    turn: SignedDuration,
    wave: &WaveWork,
    now: Timestamp,
    begin: Timestamp,
    openings: &mut Openings<impl Fn(Timestamp) -> Openness>,
) -> Option<Timestamp> {
    let mut end = begin;
    let mut berths = BinaryHeap::new();
    for left in &wave.running {
        let free = later(now, *left)?;
        end = end.max(free);
        berths.push(Reverse(free));
    }
    while berths.len() < capacity.min(wave.running.len() + wave.waiting.len()) {
        berths.push(Reverse(begin));
    }
    // After the limit was lowered, more members may be in a turn than may begin one.
    for _ in capacity..berths.len() {
        berths.pop();
    }
    let mut waiting = wave.waiting.clone();
    waiting.sort();
    for staged in waiting {
        let Reverse(free) = berths.pop()?;
        let start = free.max(begin).max(later(now, staged)?);
        let over = openings.fit(start, turn)?.checked_add(turn).ok()?;
        end = end.max(over);
        berths.push(Reverse(over));
    }
    Some(end)
}

fn later(time: Timestamp, wait: Duration) -> Option<Timestamp> {
    time.checked_add(SignedDuration::try_from(wait).ok()?).ok()
}

/// Finds openings. Remembers the last one, since the times that are asked for mostly grow.
struct Openings<F> {
    openness: F,
    /// Start and end of the last opening.
    open_until: Option<(Timestamp, Option<Timestamp>)>,
    looks: usize,
}

impl<F: Fn(Timestamp) -> Openness> Openings<F> {
    /// Returns the first time from `start` on when a turn may begin that is over before the opening ends.
    fn fit(&mut self, start: Timestamp, turn: SignedDuration) -> Option<Timestamp> {
        let mut at = start;
        loop {
            let known = self.open_until.filter(|(from, _)| *from <= at);
            match known {
                Some((_, None)) => return Some(at),
                Some((_, Some(until))) if at.checked_add(turn).ok()? <= until => return Some(at),
                _ => {}
            }
            self.looks += 1;
            if self.looks > MAX_OPENINGS {
                return None;
            }
            match (self.openness)(at) {
                Openness::Closed(next) => at = next.filter(|next| *next > at)?,
                Openness::Open(until) => {
                    self.open_until = Some((at, until));
                    if let Some(until) = until
                        && at.checked_add(turn).ok()? > until
                    {
                        at = Some(until).filter(|until| *until > at)?;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const TURN: Duration = Duration::from_secs(600);

    fn now() -> Timestamp {
        "2026-03-01T12:00:00Z".parse().unwrap()
    }

    fn work(capacity: usize, waves: Vec<WaveWork>) -> Work {
        Work {
            capacity,
            turn: TURN,
            waves,
        }
    }

    fn wave(running: &[Duration], waiting: &[Duration], soak: Duration) -> WaveWork {
        WaveWork {
            running: running.to_vec(),
            waiting: waiting.to_vec(),
            soak,
        }
    }

    fn minutes(work: &Work) -> Option<u64> {
        time_left(work, now(), |_| Openness::Open(None)).map(|left| left.as_secs() / 60)
    }

    #[test]
    fn members_share_the_berths() {
        let none = Duration::ZERO;
        for (capacity, running, waiting, expected) in [
            (1, &[][..], &[][..], Some(0)),
            (1, &[], &[none; 3], Some(30)),
            (2, &[], &[none; 3], Some(20)),
            (1, &[MINUTE], &[none; 3], Some(31)),
            (2, &[MINUTE], &[none; 3], Some(20)),
            (1, &[MINUTE, MINUTE * 2], &[none], Some(12)),
            (2, &[], &[none, MINUTE * 5], Some(15)),
            (0, &[MINUTE], &[], Some(1)),
            (0, &[], &[none], None),
        ] {
            let work = work(capacity, vec![wave(running, waiting, none)]);
            assert_eq!(minutes(&work), expected, "{work:?}");
        }
    }

    #[test]
    fn waves_soak_before_the_next_begins() {
        let none = Duration::ZERO;
        let two = vec![wave(&[], &[none], MINUTE * 30), wave(&[], &[none; 2], MINUTE * 30)];
        assert_eq!(
            minutes(&work(1, two)),
            Some(60),
            "the soak of the last wave does not count"
        );
        let soaking = vec![wave(&[], &[], MINUTE * 3), wave(&[], &[none], none)];
        assert_eq!(minutes(&work(1, soaking)), Some(13));
    }

    #[test]
    fn turns_begin_only_in_openings() {
        let none = Duration::ZERO;
        // Open in the first 25 minutes of each hour, but not in the first hour.
        fn hourly(at: Timestamp) -> Openness {
            let minute = at.as_second() / 60 % 60;
            let hour = at.as_second() - minute * 60;
            let next = Timestamp::from_second(hour + 3600).unwrap();
            if minute >= 25 || at < "2026-03-01T13:00:00Z".parse().unwrap() {
                return Openness::Closed(Some(next));
            }
            Openness::Open(Some(Timestamp::from_second(hour + 25 * 60).unwrap()))
        }
        let three = work(1, vec![wave(&[], &[none; 3], none)]);
        let left = time_left(&three, now(), hourly).unwrap();
        assert_eq!(left.as_secs() / 60, 60 + 60 + 10, "two turns fit into one opening");
        let long = Work {
            turn: MINUTE * 26,
            ..three.clone()
        };
        assert_eq!(time_left(&long, now(), hourly), None, "no opening is long enough");
        assert_eq!(time_left(&three, now(), |_| Openness::Closed(None)), None);
    }
}
