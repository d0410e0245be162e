//! Waves. A wave begins when all earlier waves are proven and have soaked.

use std::time::Duration;

use berth_api::NodeName;
use berth_api::pool::{WaveState, WaveStatus};

use super::facts::{Member, PoolFacts, Wave};
use crate::text::rounded;

/// State of each wave, and which wave is active.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    total: Vec<u32>,
    proven: Vec<u32>,
    states: Vec<WaveState>,
    /// Index of the first wave that is not done; `usize::MAX` if all waves are done. Members of later waves wait.
    active: usize,
    /// True if unavailable members use up the pool's whole capacity, or unavailable nodes use up the fleet's whole
    /// limit. Available nodes then get no offers until an unavailable node recovers.
    starved: bool,
}

/// True if the member is proven: its agent reports that it runs the target, and the Node is Ready without Berth's
/// cordon. The agent need not have reported on other published changes, such as new drain settings.
pub(in crate::controller) fn is_proven(member: &Member) -> bool {
    member.desired.is_some()
        && member.agent.booted == member.desired
        && member.published.uid == member.uid
        && member.node.ready
        && !member.node.our_cordon
}

impl Progress {
    pub(super) fn of(facts: &PoolFacts) -> Self {
        let count = facts.waves.len();
        let (mut total, mut proven) = (vec![0u32; count], vec![0u32; count]);
        for member in facts.members.iter().filter(|member| !member.abandoned) {
            if let (Some(total), Some(proven)) = (total.get_mut(member.place.wave), proven.get_mut(member.place.wave)) {
                *total += 1;
                *proven += u32::from(is_proven(member));
            }
        }
        let unavailable = facts.members.iter().filter(|m| m.node.is_unavailable()).count();
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

    /// True if a later wave has members. Otherwise this wave does not have to soak.
    fn follows(&self, index: usize) -> bool {
        self.total.iter().skip(index + 1).any(|n| *n > 0)
    }

    /// Returns the state of the active wave if the member must wait for that wave; `None` otherwise.
    pub(super) fn waits(&self, member: &Member) -> Option<WaveState> {
        // I10: the earlier wave may be unable to continue until this broken node is repaired. The new image may repair
        // the node.
        if self.starved && !member.node.ready {
            return None;
        }
        (member.place.wave > self.active).then(|| self.states.get(self.active).copied().unwrap_or(WaveState::Active))
    }

    /// Returns the members of the active wave that are not proven.
    pub(super) fn unproven(&self, facts: &PoolFacts) -> Vec<NodeName> {
        let active = facts.members.iter().filter(|member| member.place.wave == self.active);
        let unproven = active.filter(|member| !member.abandoned && !is_proven(member));
        unproven.map(|member| member.name.clone()).collect()
    }

    /// Returns the waves for the pool's status. Empty if the spec names no wave and all members are in one wave.
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
        // A wave that has soaked once does not soak again after one of its nodes was down.
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
    /// True if some member still needs an update: the member is not proven, or the pool's current image is not resolved
    /// yet. Abandoned members do not count.
    pub fn has_left(&self) -> bool {
        self.left().next().is_some()
    }

    /// Members that still need an update.
    pub(in crate::controller) fn left(&self) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(|member| !member.abandoned && (self.unresolved || !is_proven(member)))
    }
}
