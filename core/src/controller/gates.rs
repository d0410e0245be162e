//! Decides which gate of a pool is closed because of a pause, a window or an exclusion. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::condition::{self, Verdict};
use berth_api::pool::{BootcNodePoolSpec, Rollout};
use berth_api::windows::{ClosedCause, Opening, Schedule, WindowSpec};
use berth_api::{PoolName, Written};
use jiff::{SignedDuration, Timestamp};

use crate::controller::gate::{FleetGate, Gate, GateReason};
use crate::controller::time_left::Openness;

/// Input for judging the gates of one pool.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// The pool.
    pub pool: &'a PoolName,
    /// Spec of the pool.
    pub spec: &'a BootcNodePoolSpec,
    /// The BootcFleet's gate, which closes all pools; `None` if it is open.
    pub fleet: Option<FleetGate>,
    /// True if the clock of the controller's machine is synchronized.
    pub clock_synchronized: bool,
    /// Expected duration of a drain plus a reboot in this pool, from measurements.
    pub needed: Duration,
    /// Current time, by the clock of the controller's machine.
    pub now: Timestamp,
}

/// State of one pool's gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gates {
    /// The most important closed gate. `None` if all are open.
    pub gate: Option<Gate>,
    /// Time when the open window ends or the next exclusion begins. No reboot may start later. `None` if there is no
    /// such time, or if no window is open.
    pub closes: Option<Timestamp>,
    /// Next time when a window or an exclusion begins or ends. `None` if no such time is known.
    pub changes: Option<Timestamp>,
    /// The condition `WindowOpen`.
    pub window: Verdict,
}

/// Cached gates of all pools. An entry is valid until an input changes, or until a window or an exclusion begins or
/// ends. Without the cache, parsing the schedules would cost more than the rest of a pass.
#[derive(Debug, Default)]
pub struct GateCache(BTreeMap<PoolName, Judged>);

#[derive(Debug)]
struct Judged {
    rollout: Rollout,
    fleet: Option<FleetGate>,
    clock_synchronized: bool,
    needed: Duration,
    at: Timestamp,
    gates: Gates,
}

impl Judged {
    fn is_current(&self, rollout: &Rollout, inputs: &Inputs<'_>) -> bool {
        self.rollout == *rollout
            && self.fleet == inputs.fleet
            && self.clock_synchronized == inputs.clock_synchronized
            && self.needed == inputs.needed
            && self.at <= inputs.now
            && self.gates.changes.is_none_or(|changes| inputs.now < changes)
    }
}

impl GateCache {
    /// Returns the current gates of one pool.
    pub fn gates(&mut self, inputs: Inputs<'_>) -> Gates {
        let rollout = inputs.spec.rollout();
        let judged = self.0.get(inputs.pool);
        if let Some(judged) = judged.filter(|judged| judged.is_current(rollout, &inputs)) {
            return judged.gates.clone();
        }
        let gates = gates(inputs);
        let judged = Judged {
            rollout: rollout.clone(),
            fleet: inputs.fleet,
            clock_synchronized: inputs.clock_synchronized,
            needed: inputs.needed,
            at: inputs.now,
            gates: gates.clone(),
        };
        self.0.insert(inputs.pool.clone(), judged);
        gates
    }

    /// Keeps only the cached gates of the pools that `is_there` accepts.
    pub fn keep(&mut self, is_there: impl Fn(&PoolName) -> bool) {
        self.0.retain(|pool, _| is_there(pool));
    }
}

/// Returns the state of one pool's gates, without a cache.
pub fn gates(inputs: Inputs<'_>) -> Gates {
    let window = window(inputs);
    let gate = pause(inputs).or(window.gate.clone());
    Gates { gate, ..window }
}

/// Openings of a pool's gate, read once to be judged at many times. [`gates`] reads the schedule each time.
#[derive(Debug)]
pub enum Openings<'a> {
    /// Turns may begin at any time.
    Always,
    /// Only an admin can open the gate, or no opening is long enough for a turn.
    Never,
    /// Turns may begin in the windows of this schedule. The pool's name determines the splay.
    Scheduled(Schedule, &'a PoolName),
}

impl<'a> Openings<'a> {
    /// Reads the openings from `inputs.now` on.
    pub fn of(inputs: Inputs<'a>) -> Self {
        if pause(inputs).is_some() {
            return Self::Never;
        }
        match Windows::of(inputs) {
            Windows::None => Self::Always,
            Windows::Invalid(_) | Windows::NoClock => Self::Never,
            Windows::Scheduled(schedule) if too_short(&schedule, inputs).is_some() => Self::Never,
            Windows::Scheduled(schedule) => Self::Scheduled(schedule, inputs.pool),
        }
    }

    /// Returns whether turns may begin at a time.
    pub fn at(&self, time: Timestamp) -> Openness {
        match self {
            Self::Always => Openness::Open(None),
            Self::Never => Openness::Closed(None),
            Self::Scheduled(schedule, pool) => match schedule.at(time, pool.as_str()) {
                Opening::Open { until } => Openness::Open(until),
                Opening::Closed { next, .. } => Openness::Closed(next),
            },
        }
    }
}

fn pause(inputs: Inputs<'_>) -> Option<Gate> {
    let (reason, message) = if inputs.spec.is_paused() {
        (GateReason::Paused, "rollout.paused is true: no node is offered a berth")
    } else {
        match inputs.fleet? {
            FleetGate::Paused => (
                GateReason::FleetPaused,
                "spec.paused of BootcFleet cluster is true: no node of any pool is offered a berth",
            ),
            FleetGate::Unreadable => (
                GateReason::FleetUnreadable,
                "BootcFleet cluster cannot be read, and may be paused: no node of any pool is offered a berth; repair or delete it",
            ),
        }
    };
    let message = message.to_owned();
    Some(Gate { reason, message })
}

fn open(reason: condition::CommonReason, message: &str) -> Gates {
    Gates {
        gate: None,
        closes: None,
        changes: None,
        window: Verdict::yes(reason, message),
    }
}

fn closed(reason: GateReason, message: String, changes: Option<Timestamp>) -> Gates {
    Gates {
        gate: Some(Gate {
            reason,
            message: message.clone(),
        }),
        closes: None,
        changes,
        window: Verdict::no(reason, message),
    }
}

/// The windows and exclusions of a pool's spec.
enum Windows {
    None,
    /// A window is not valid, for this reason.
    Invalid(String),
    /// The controller's clock is not synchronized, so no window can be judged.
    NoClock,
    Scheduled(Schedule),
}

impl Windows {
    fn of(inputs: Inputs<'_>) -> Self {
        let rollout = inputs.spec.rollout();
        if rollout.windows.is_empty() && rollout.exclusions.is_empty() {
            return Self::None;
        }
        match schedule(inputs.spec) {
            Err(error) => Self::Invalid(error),
            Ok(_) if !inputs.clock_synchronized => Self::NoClock,
            Ok(schedule) => Self::Scheduled(schedule),
        }
    }
}

fn window(inputs: Inputs<'_>) -> Gates {
    match Windows::of(inputs) {
        Windows::None => open(condition::CommonReason::AlwaysOpen, ""),
        Windows::Invalid(error) => closed(GateReason::InvalidWindow, error, None),
        Windows::NoClock => {
            let message = "the controller's clock is not synchronized, so all windows count as closed; synchronize the \
                           clock of the controller's machine, or start the controller with --trust-clock if a hypervisor \
                           keeps that clock right";
            closed(GateReason::ClockNotSynchronized, message.to_owned(), None)
        }
        Windows::Scheduled(schedule) => scheduled(&schedule, inputs),
    }
}

fn scheduled(schedule: &Schedule, inputs: Inputs<'_>) -> Gates {
    match schedule.at(inputs.now, inputs.pool.as_str()) {
        Opening::Open { until: None } => open(condition::CommonReason::Open, "reboots may start at any time"),
        Opening::Open { until: Some(until) } => Gates {
            closes: Some(until),
            changes: Some(until),
            ..open(
                condition::CommonReason::Open,
                &format!("reboots may start until {until}"),
            )
        },
        Opening::Closed { next, why } => {
            let what = match why {
                ClosedCause::Outside => "outside all windows",
                ClosedCause::Excluded => "an exclusion applies",
            };
            let next_words = next.map_or("no window is scheduled".to_owned(), |next| {
                format!("reboots may start at {next}")
            });
            if let Some(longest) = too_short(schedule, inputs) {
                let message = format!(
                    "the longest window is {}, but a drain and a reboot take {}; set a longer window",
                    words(longest),
                    words(inputs.needed)
                );
                return closed(GateReason::WindowTooShort, message, next);
            }
            let reason = match why {
                ClosedCause::Outside => GateReason::OutsideWindows,
                ClosedCause::Excluded => GateReason::Excluded,
            };
            closed(reason, format!("{what}; {next_words}"), next)
        }
    }
}

/// Returns the length of the longest window, if even this window is too short for a turn.
fn too_short(schedule: &Schedule, inputs: Inputs<'_>) -> Option<Duration> {
    let longest = schedule.longest(inputs.now, inputs.pool.as_str());
    longest.filter(|longest| *longest <= inputs.needed)
}

fn words(duration: Duration) -> String {
    SignedDuration::try_from(duration).map_or("forever".to_owned(), |d| format!("{d:#}"))
}

fn schedule(spec: &BootcNodePoolSpec) -> Result<Schedule, String> {
    let rollout = spec.rollout();
    let mut windows = vec![];
    for (index, window) in rollout.windows.iter().enumerate() {
        windows.push(WindowSpec {
            schedule: &window.schedule,
            duration: window_field(index, "duration", &window.duration)?,
            time_zone: window.time_zone.as_deref().unwrap_or("UTC"),
            splay: match &window.splay {
                Some(splay) => window_field(index, "splay", splay)?,
                None => Duration::ZERO,
            },
        });
    }
    let exclusions: Vec<_> = rollout.exclusions.iter().map(|e| (e.from.0, e.to.0)).collect();
    Schedule::parse(&windows, &exclusions).map_err(|e| e.to_string())
}

fn window_field(index: usize, name: &str, written: &Written<Duration>) -> Result<Duration, String> {
    let value = written.get().copied();
    value.map_err(|e| format!("windows[{index}].{name} is {written:?}: {e}"))
}

#[cfg(test)]
mod tests {
    use berth_api::pool::{Exclusion, Rollout, Window};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn friday(schedule: &str, duration: &str) -> Rollout {
        let window = Window {
            schedule: schedule.into(),
            duration: duration.into(),
            time_zone: Some("Europe/Berlin".into()),
            splay: None,
        };
        Rollout {
            windows: vec![window],
            ..Rollout::default()
        }
    }

    fn spec(rollout: Rollout) -> BootcNodePoolSpec {
        BootcNodePoolSpec {
            rollout: Some(rollout),
            ..BootcNodePoolSpec::default()
        }
    }

    fn look(rollout: Rollout, now: &str, change: impl FnOnce(&mut Inputs<'_>)) -> Gates {
        let spec = spec(rollout);
        let pool = PoolName::from("p");
        let mut inputs = Inputs {
            pool: &pool,
            spec: &spec,
            fleet: None,
            clock_synchronized: true,
            needed: Duration::from_secs(600),
            now: at(now),
        };
        change(&mut inputs);
        gates(inputs)
    }

    fn reason(gates: &Gates) -> &str {
        gates.gate.as_ref().map_or("", |g| g.reason.as_str())
    }

    #[test]
    fn a_pool_without_windows_is_open() {
        let gates = look(Rollout::default(), "2026-11-20T12:00:00Z", |i| {
            i.clock_synchronized = false
        });
        assert_eq!((reason(&gates), gates.closes, gates.changes), ("", None, None));
    }

    #[test]
    fn a_window_opens_and_closes_with_time() {
        let rollout = friday("0 22 * * 5", "8h");
        let before = look(rollout.clone(), "2026-11-20T20:59:59Z", |_| ());
        assert_eq!(reason(&before), "OutsideWindows");
        assert_eq!(before.changes, Some(at("2026-11-20T21:00:00Z")));
        assert!(
            before.window.message.contains("2026-11-20T21:00:00Z"),
            "{}",
            before.window.message
        );
        let open = look(rollout.clone(), "2026-11-20T21:00:00Z", |_| ());
        assert_eq!((reason(&open), open.closes), ("", Some(at("2026-11-21T05:00:00Z"))));
        let after = look(rollout, "2026-11-21T05:00:00Z", |_| ());
        assert_eq!(reason(&after), "OutsideWindows");
    }

    #[test]
    fn an_exclusion_closes_what_a_window_opens() {
        let mut rollout = friday("0 22 * * 5", "8h");
        let exclusion = Exclusion {
            from: Time(at("2026-11-20T22:00:00Z")),
            to: Time(at("2026-11-20T23:00:00Z")),
        };
        rollout.exclusions = vec![exclusion];
        let open = look(rollout.clone(), "2026-11-20T21:30:00Z", |_| ());
        assert_eq!(open.closes, Some(at("2026-11-20T22:00:00Z")));
        let closed = look(rollout, "2026-11-20T22:30:00Z", |_| ());
        assert_eq!(
            (reason(&closed), closed.changes),
            ("Excluded", Some(at("2026-11-20T23:00:00Z")))
        );
    }

    #[test]
    fn unjudged_windows_are_closed() {
        let inside = "2026-11-20T22:00:00Z";
        let clock = look(friday("0 22 * * 5", "8h"), inside, |i| i.clock_synchronized = false);
        assert_eq!(reason(&clock), "ClockNotSynchronized");
        for bad in ["0 0 31 2 *", "0 0 22 * * 5", "x"] {
            let gates = look(friday(bad, "8h"), inside, |_| ());
            assert_eq!(reason(&gates), "InvalidWindow", "{bad}");
            assert!(gates.window.message.contains("windows[0]"), "{}", gates.window.message);
        }
        let short = look(friday("0 22 * * 5", "5m"), "2026-11-20T12:00:00Z", |_| ());
        assert_eq!(reason(&short), "WindowTooShort");
        assert_eq!(
            short.window.message,
            "the longest window is 5m, but a drain and a reboot take 10m; set a longer window"
        );
    }

    #[test]
    fn openings_are_those_of_the_gates() {
        let pool = PoolName::from("p");
        let mut excluded = friday("0 22 * * 5", "8h");
        excluded.exclusions = vec![Exclusion {
            from: Time(at("2026-11-20T23:00:00Z")),
            to: Time(at("2026-11-21T01:00:00Z")),
        }];
        let paused = Rollout {
            paused: true,
            ..Rollout::default()
        };
        let short = friday("0 22 * * 5", "5m");
        for rollout in [excluded, paused, short, friday("x", "8h"), Rollout::default()] {
            let spec = BootcNodePoolSpec {
                rollout: Some(rollout),
                ..BootcNodePoolSpec::default()
            };
            let inputs = |now| Inputs {
                pool: &pool,
                spec: &spec,
                fleet: None,
                clock_synchronized: true,
                needed: Duration::from_secs(600),
                now,
            };
            let openings = Openings::of(inputs(at("2026-11-20T12:00:00Z")));
            for time in [
                "2026-11-20T12:00:00Z",
                "2026-11-20T22:00:00Z",
                "2026-11-21T00:00:00Z",
                "2026-11-21T02:00:00Z",
            ] {
                let expected = match gates(inputs(at(time))) {
                    Gates { gate: None, closes, .. } => Openness::Open(closes),
                    Gates {
                        gate: Some(gate),
                        changes,
                        ..
                    } => match gate.reason {
                        GateReason::OutsideWindows | GateReason::Excluded => Openness::Closed(changes),
                        _ => Openness::Closed(None),
                    },
                };
                assert_eq!(openings.at(at(time)), expected, "{:?} at {time}", spec.rollout);
            }
        }
    }

    #[test]
    fn judged_gates_are_cached_until_a_change() {
        let pool = PoolName::from("p");
        let mut keeper = GateCache::default();
        let rollout = friday("0 22 * * 5", "8h");
        for (what, rollout, now, needed, expected) in [
            ("before", &rollout, "2026-11-20T20:59:59Z", 1, "OutsideWindows"),
            ("it opens", &rollout, "2026-11-20T21:00:00Z", 1, ""),
            ("it closes", &rollout, "2026-11-21T05:00:00Z", 1, "OutsideWindows"),
            (
                "too short",
                &rollout,
                "2026-11-21T05:00:00Z",
                8 * 3600,
                "WindowTooShort",
            ),
            ("the clock was set back", &rollout, "2026-11-20T22:00:00Z", 8 * 3600, ""),
            ("no window", &Rollout::default(), "2026-11-20T22:00:00Z", 1, ""),
            (
                "invalid",
                &friday("x", "8h"),
                "2026-11-20T22:00:00Z",
                1,
                "InvalidWindow",
            ),
        ] {
            let gates = keeper.gates(Inputs {
                pool: &pool,
                spec: &spec(rollout.clone()),
                fleet: None,
                clock_synchronized: true,
                needed: Duration::from_secs(needed),
                now: at(now),
            });
            assert_eq!(reason(&gates), expected, "{what}");
        }
    }

    #[test]
    fn a_change_of_an_input_is_seen_at_once() {
        type Change = fn(&mut Inputs<'_>);
        let rows: [(Change, &str); 5] = [
            (|i| i.fleet = Some(FleetGate::Paused), "FleetPaused"),
            (|i| i.clock_synchronized = false, "ClockNotSynchronized"),
            (|i| i.now = at("2026-11-21T05:00:01Z"), "OutsideWindows"),
            (|i| i.now = at("2026-11-20T20:59:59Z"), "OutsideWindows"),
            (|_| (), ""),
        ];
        let (pool, spec) = (PoolName::from("p"), spec(friday("0 22 * * 5", "8h")));
        let open = Inputs {
            pool: &pool,
            spec: &spec,
            fleet: None,
            clock_synchronized: true,
            needed: Duration::from_secs(600),
            now: at("2026-11-20T22:00:00Z"),
        };
        for (change, expected) in rows {
            let mut keeper = GateCache::default();
            assert_eq!(reason(&keeper.gates(open)), "");
            let mut changed = open;
            change(&mut changed);
            assert_eq!(reason(&keeper.gates(changed)), expected);
        }
    }

    #[test]
    fn a_pool_that_is_gone_is_forgotten() {
        let spec = BootcNodePoolSpec::default();
        let mut keeper = GateCache::default();
        for name in ["p", "q"] {
            keeper.gates(Inputs {
                pool: &name.into(),
                spec: &spec,
                fleet: None,
                clock_synchronized: true,
                needed: Duration::ZERO,
                now: at("2026-11-20T22:00:00Z"),
            });
        }
        keeper.keep(|pool| pool.as_str() == "q");
        let names: Vec<&str> = keeper.0.keys().map(PoolName::as_str).collect();
        assert_eq!(names, ["q"]);
    }

    #[test]
    fn a_pause_comes_first() {
        let mut rollout = friday("0 0 31 2 *", "8h");
        let fleet = look(rollout.clone(), "2026-11-20T22:00:00Z", |i| {
            i.fleet = Some(FleetGate::Paused)
        });
        assert_eq!(reason(&fleet), "FleetPaused");
        let broken = look(rollout.clone(), "2026-11-20T22:00:00Z", |i| {
            i.fleet = Some(FleetGate::Unreadable)
        });
        assert_eq!(reason(&broken), "FleetUnreadable");
        rollout.paused = true;
        let both = look(rollout, "2026-11-20T22:00:00Z", |i| i.fleet = Some(FleetGate::Paused));
        assert_eq!(
            (reason(&both), both.window.reason.as_ref()),
            ("Paused", "InvalidWindow")
        );
    }
}
