//! Sets of nodes or berths. Most sets are empty, and an empty set allocates nothing.

use crate::number::Number;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Set(Vec<Number>);

impl Set {
    pub fn has(&self, number: impl Into<usize>) -> bool {
        let number = number.into();
        Number::try_from(number).is_ok_and(|n| self.0.binary_search(&n).is_ok())
    }

    pub fn add(&mut self, number: Number) {
        if let Err(at) = self.0.binary_search(&number) {
            self.0.insert(at, number);
        }
    }

    pub fn drop(&mut self, number: Number) {
        if let Ok(at) = self.0.binary_search(&number) {
            self.0.remove(at);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Number> + '_ {
        self.0.iter().copied()
    }

    /// Returns the set with each number `n` replaced by `to[n]`.
    #[must_use]
    pub fn renamed(&self, to: &[Number]) -> Self {
        self.iter().filter_map(|n| to.get(usize::from(n)).copied()).collect()
    }
}

impl FromIterator<Number> for Set {
    fn from_iter<I: IntoIterator<Item = Number>>(numbers: I) -> Self {
        let mut all: Vec<Number> = numbers.into_iter().collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }
}
