//! Sets of nodes or berths: nothing when empty, which they mostly are.

use crate::state::No;

/// A set of numbers, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Set(Vec<No>);

impl Set {
    /// Says whether the number is in it.
    pub fn has(&self, number: impl Into<usize>) -> bool {
        let number = number.into();
        No::try_from(number).is_ok_and(|n| self.0.binary_search(&n).is_ok())
    }

    /// Puts a number in.
    pub fn add(&mut self, number: No) {
        if let Err(at) = self.0.binary_search(&number) {
            self.0.insert(at, number);
        }
    }

    /// Takes a number out.
    pub fn drop(&mut self, number: No) {
        if let Ok(at) = self.0.binary_search(&number) {
            self.0.remove(at);
        }
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of its members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// All that is in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = No> + '_ {
        self.0.iter().copied()
    }

    /// The set after each number was given another one.
    #[must_use]
    pub fn renamed(&self, to: &[No]) -> Self {
        self.iter().filter_map(|n| to.get(usize::from(n)).copied()).collect()
    }
}

impl FromIterator<No> for Set {
    fn from_iter<I: IntoIterator<Item = No>>(numbers: I) -> Self {
        let mut all: Vec<No> = numbers.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }
}
