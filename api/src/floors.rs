//! Property tests that also fail when too few of their cases reach the situation under test.
//!
//! A property with a precondition passes if no case meets the precondition. So each property names its preconditions,
//! counts the cases that meet each one, and sets a floor for each count: at most half of the average count per run.
//!
//! The tests of other crates include this file by its path, so it needs no cargo feature.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseResult, TestRunner};

/// Number of cases that reached each named situation.
#[derive(Debug, Default)]
pub(crate) struct Reached(RefCell<BTreeMap<&'static str, u32>>);

impl Reached {
    pub(crate) fn note(&self, name: &'static str) {
        *self.0.borrow_mut().entry(name).or_default() += 1;
    }

    fn check(&self, floors: &[(&'static str, u32)]) {
        let counts = self.0.borrow();
        for (name, floor) in floors {
            let count = counts.get(name).copied().unwrap_or_default();
            assert!(
                count >= *floor,
                "{name} was reached {count} times, fewer than {floor}: {counts:?}"
            );
        }
    }
}

/// Panics if the property fails for a value, or if the cases reached a situation fewer times than `floors` requires.
#[track_caller]
pub(crate) fn check<S: Strategy>(
    config: Config,
    values: S,
    floors: &[(&'static str, u32)],
    property: impl Fn(S::Value, &Reached) -> TestCaseResult,
) {
    let config = Config {
        source_file: Some(Location::caller().file()),
        ..config
    };
    let reached = Reached::default();
    let result = TestRunner::new(config).run(&values, |value| property(value, &reached));
    if let Err(why) = result {
        panic!("{why}");
    }
    reached.check(floors);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a property that counts even numbers. At least `floor` cases must be even. Returns an error if the check
    /// panics.
    fn even_numbers(floor: u32) -> std::thread::Result<()> {
        fn property(number: u8, reached: &Reached) -> TestCaseResult {
            if number.is_multiple_of(2) {
                reached.note("even");
            }
            Ok(())
        }
        std::panic::catch_unwind(|| check(Config::with_cases(100), 0u8..200, &[("even", floor)], property))
    }

    #[test]
    fn a_property_fails_below_its_floor() {
        assert!(even_numbers(10).is_ok());
        assert!(even_numbers(101).is_err());
    }
}
