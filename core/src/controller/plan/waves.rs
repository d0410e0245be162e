//! Waves: one begins when every earlier one is proven and has soaked.

use super::facts::{Member, PoolFacts, Wave};
use crate::text::rounded;
use berth_api::pool::{WaveState, WaveStatus};
use std::time::Duration;

/// Progress of the waves.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    total: Vec<u32>,
    proven: Vec<u32>,
    states: Vec<WaveState>,
    /// Members of later waves wait.
    active: usize,
    /// Unavailable members use up the whole capacity, or those of all pools the fleet's limit: nobody else can be offered a berth before one of them is repaired.
    starved: bool,
}

/// Proven: it runs the target, as the agent of this very Node says, and the Node is Ready and ours no more. That the agent
/// has yet to report on something else that was published, new drain settings for instance, takes nothing back.
pub(in crate::controller) fn is_proven(member: &Member) -> bool {
    member.desired.is_some()
        && member.booted == member.desired
        && member.published_uid == member.uid
        && member.ready
        && !member.our_cordon
}

impl Progress {
    pub(super) fn of(facts: &PoolFacts) -> Self {
        let count = facts.waves.len();
        let (mut total, mut proven) = (vec![0u32; count], vec![0u32; count]);
        for member in facts.members.iter().filter(|member| !member.abandoned) {
            if let (Some(total), Some(proven)) = (total.get_mut(member.wave), proven.get_mut(member.wave)) {
                *total += 1;
                *proven += u32::from(is_proven(member));
            }
        }
        let unavailable = facts.members.iter().filter(|m| m.unavailable()).count();
        let starved = unavailable >= facts.capacity.min(facts.published) || facts.is_fleet_starved();
        let mut this = Self {
            total,
            proven,
            states: vec![],
            active: usize::MAX,
            starved,
        };
        for (index, wave) in facts.waves.iter().enumerate() {
            let state = if this.active < index {
                WaveState::Waiting
            } else if !this.all_proven(index) {
                WaveState::Active
            } else if wave.is_short() && this.total.get(index) != Some(&0) && this.follows(index) {
                WaveState::Soaking
            } else {
                WaveState::Done
            };
            if matches!(state, WaveState::Active | WaveState::Soaking) {
                this.active = index;
            }
            this.states.push(state);
        }
        this
    }

    fn all_proven(&self, index: usize) -> bool {
        self.total.get(index) == self.proven.get(index)
    }

    /// Says whether anybody is in a later wave: nobody else waits for a soak.
    fn follows(&self, index: usize) -> bool {
        self.total.iter().skip(index + 1).any(|n| *n > 0)
    }

    /// State of the earlier wave that the member's wave waits for, if there is one.
    pub(super) fn waits(&self, member: &Member) -> Option<WaveState> {
        // I10: the wave before it cannot go on until it is repaired, and the image may be what repairs it.
        if self.starved && !member.ready {
            return None;
        }
        (member.wave > self.active).then(|| self.states.get(self.active).copied().unwrap_or(WaveState::Active))
    }

    /// Waves as the pool's status shows them. A pool whose spec names no wave, and whose nodes are all in one, shows
    /// none.
    pub(super) fn status(&self, facts: &PoolFacts) -> Vec<WaveStatus> {
        let used = self.total.iter().filter(|n| **n > 0).count();
        if used < 2 && facts.waves.iter().all(Wave::is_implied) {
            return vec![];
        }
        let waves = facts.waves.iter().enumerate();
        let shown = waves.filter(|(i, wave)| self.total.get(*i) != Some(&0) || !wave.is_implied());
        shown.map(|(index, wave)| self.one(index, wave)).collect()
    }

    fn one(&self, index: usize, wave: &Wave) -> WaveStatus {
        // A wave that was done once need not soak again because one of its nodes was down for a moment.
        let kept = self.all_proven(index) || wave.soaked >= wave.soak;
        let soaked = if kept {
            wave.soaked.min(wave.soak)
        } else {
            Duration::ZERO
        };
        WaveStatus {
            name: wave.name.clone(),
            total: self.total.get(index).copied().unwrap_or_default(),
            updated: self.proven.get(index).copied().unwrap_or_default(),
            state: self.states.get(index).copied().unwrap_or(WaveState::Waiting),
            soaked_seconds: rounded(soaked, wave.soak),
        }
    }
}

impl PoolFacts {
    /// Says whether the pool has a node left to update to what it wants now; whoever is not proven counts, as among waves.
    pub fn has_left(&self) -> bool {
        self.members
            .iter()
            .filter(|member| !member.abandoned)
            .any(|member| self.unresolved || !is_proven(member))
    }
}
