//! What a wave waits for. The rules are the controller's.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::condition;
use berth_api::keys;
use berth_api::node::Phase;
use berth_api::pool::{BootcNodePool, Target, WaveState};
use berth_api::text;
use berth_api::waves::Waves;
use kube::ResourceExt;

use crate::members::Member;

/// So many nodes are named.
const NAMED: usize = 3;

/// The wave that keeps the later ones from beginning, and why.
pub(crate) struct Holdup {
    /// Its number.
    wave: usize,
    /// What the later ones wait for, for people.
    pub(crate) waits: String,
    /// Its members that are not proven, those first that somebody should look at; empty when it only soaks.
    unproven: Vec<String>,
    /// Somebody should look.
    stuck: bool,
}

impl Holdup {
    /// The first wave that is not proven or has not soaked, when anybody comes after it.
    pub(crate) fn of(
        pool: &BootcNodePool,
        waves: &Waves,
        members: &[Member<'_>],
        target: Option<&Target>,
    ) -> Option<Self> {
        let status = pool.status.iter().flat_map(|s| &s.waves);
        let soaking: BTreeSet<&str> = status
            .filter(|wave| wave.state == WaveState::Soaking)
            .map(|wave| wave.name.as_str())
            .collect();
        let mut used: BTreeMap<usize, Vec<(bool, String)>> = BTreeMap::new();
        for member in members {
            let of_wave = used.entry(waves.number(member.node.labels())).or_default();
            of_wave.extend(unproven(member, target).map(|(help, why)| (!help, format!("{} ({why})", member.name))));
        }
        let last = *used.keys().next_back()?;
        let (wave, mut unproven) = used
            .into_iter()
            .find(|(wave, left)| !left.is_empty() || soaking.contains(waves.name(*wave)))?;
        unproven.sort();
        let name = waves.name(wave);
        let waits = match unproven.is_empty() {
            true => format!("waits until wave {name} has soaked"),
            false => format!("waits for wave {name}"),
        };
        let stuck = unproven.first().is_some_and(|(goes_on, _)| !goes_on);
        let unproven = unproven.into_iter().map(|(_, who)| who).collect();
        (wave < last).then_some(Self {
            wave,
            waits,
            unproven,
            stuck,
        })
    }

    /// Whether a member of that wave waits.
    pub(crate) fn keeps(&self, wave: usize) -> bool {
        wave > self.wave
    }

    /// The same as [`Self::words`], when it does not go on by itself.
    pub(crate) fn trouble(&self, waves: &Waves) -> Option<String> {
        self.words(waves).filter(|_| self.stuck)
    }

    /// `wave canary is not proven: n3 (the image has no manifest for arm64) and 4 more`.
    pub(crate) fn words(&self, waves: &Waves) -> Option<String> {
        let named = text::names(self.unproven.iter().take(NAMED), self.unproven.len());
        let name = waves.name(self.wave);
        (!self.unproven.is_empty()).then(|| format!("wave {name} is not proven: {named}"))
    }
}

fn is_turn(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Draining | Phase::Rebooting | Phase::Proving | Phase::Releasing
    )
}

/// Why a member keeps the later waves waiting, and whether somebody should look at it.
fn unproven(member: &Member<'_>, target: Option<&Target>) -> Option<(bool, String)> {
    let digest = member.wanted(target);
    if target.is_some() && digest.is_none() {
        return Some((true, format!("the image has no manifest for {}", member.architecture())));
    }
    let status = member.status();
    let ours = member.node.annotations().contains_key(keys::ANNOTATION_CORDON);
    if member.up_to_date(target) {
        return match (member.ready(), ours) {
            (false, _) => Some((true, "NotReady".to_owned())),
            (true, true) => Some((false, "still cordoned by Berth".to_owned())),
            (true, false) => None,
        };
    }
    if digest.is_some_and(|digest| status.failed_digests.contains(digest)) {
        return Some((true, "the image failed there".to_owned()));
    }
    if let Some(phase) = status.phase.filter(|phase| is_turn(*phase)) {
        return Some((false, phase.as_str().to_lowercase()));
    }
    if !member.ready() {
        return Some((true, "NotReady".to_owned()));
    }
    if let Some(degraded) =
        condition::find(&status.conditions, condition::node::NODE_DEGRADED).filter(|c| c.status == "True")
    {
        return Some((true, degraded.reason.clone()));
    }
    match (member.bootc.and_then(|b| b.spec.hold.as_ref()), status.phase) {
        (Some(hold), _) => Some((false, hold.reason.clone())),
        (None, Some(phase)) => Some((false, phase.as_str().to_lowercase())),
        (None, None) => Some((true, "no word from an agent yet".to_owned())),
    }
}
