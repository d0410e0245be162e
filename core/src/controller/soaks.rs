//! Soak times of waves, measured by this process and recorded by earlier leaders. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::pool::{WaveState, WaveStatus};
use berth_api::{Digest, PoolName};

use crate::Moment;

/// How long each wave has soaked, including the time recorded by earlier leaders.
#[derive(Debug, Default)]
pub struct Soaks(BTreeMap<(PoolName, String), Soak>);

#[derive(Debug)]
struct Soak {
    target: Digest,
    /// Soak time that earlier leaders recorded.
    before: Duration,
    since: Moment,
    seen: Duration,
}

impl Soaks {
    /// Records the progress of a pool's waves towards the target.
    pub fn see(&mut self, pool: &PoolName, target: &Digest, waves: &[WaveStatus], now: Moment) {
        self.0.retain(|(of, wave), soak| {
            of != pool || (soak.target == *target && waves.iter().any(|w| w.name == *wave && is_proven(w)))
        });
        for wave in waves.iter().filter(|w| is_proven(w)) {
            let soak = self.0.entry((pool.clone(), wave.name.clone()));
            let soak = soak.or_insert_with(|| Soak {
                target: target.clone(),
                before: Duration::from_secs(wave.soaked_seconds),
                since: now,
                seen: Duration::ZERO,
            });
            soak.seen = now.since(soak.since);
        }
    }

    /// Returns the wave's soak time with this target, as of the last call of [`Self::see`].
    pub fn soaked(&self, pool: &PoolName, target: &Digest, wave: &str) -> Duration {
        let soak = self
            .0
            .get(&(pool.clone(), wave.to_owned()))
            .filter(|soak| soak.target == *target);
        soak.map_or(Duration::ZERO, |soak| soak.before.saturating_add(soak.seen))
    }
}

fn is_proven(wave: &WaveStatus) -> bool {
    matches!(wave.state, WaveState::Soaking | WaveState::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::after(Duration::from_secs(seconds))
    }

    fn digest(n: u8) -> Digest {
        format!("sha256:{}", n.to_string().repeat(64)).parse().unwrap()
    }

    fn wave(name: &str, state: WaveState, soaked_seconds: u64) -> WaveStatus {
        WaveStatus {
            name: name.to_owned(),
            total: 1,
            updated: 1,
            state,
            soaked_seconds,
        }
    }

    #[test]
    fn another_image_soaks_from_zero() {
        let mut soaks = Soaks::default();
        let pool = PoolName::from("p");
        soaks.see(&pool, &digest(1), &[wave("canary", WaveState::Soaking, 30)], at(0));
        soaks.see(&pool, &digest(1), &[wave("canary", WaveState::Done, 30)], at(60));
        assert_eq!(
            soaks.soaked(&pool, &digest(1), "canary").as_secs(),
            90,
            "the soak time of an earlier leader counts"
        );
        // A plan for another target is made before [`Soaks::see`] gets that target, so the soak time must be zero
        // already.
        assert_eq!(soaks.soaked(&pool, &digest(2), "canary"), Duration::ZERO);
        soaks.see(&pool, &digest(2), &[wave("canary", WaveState::Active, 30)], at(61));
        assert_eq!(soaks.soaked(&pool, &digest(1), "canary"), Duration::ZERO);
    }

    #[test]
    fn a_wave_soaks_only_while_proven() {
        let mut soaks = Soaks::default();
        let pool = PoolName::from("p");
        let target = digest(0);
        for (now, canary, soaked) in [
            (0, WaveState::Active, 0),
            (10, WaveState::Active, 0),
            (20, WaveState::Soaking, 0),
            (50, WaveState::Soaking, 30),
            // A member is no longer proven.
            (60, WaveState::Active, 0),
            (70, WaveState::Soaking, 0),
            (75, WaveState::Done, 5),
        ] {
            let waves = [wave("canary", canary, 0), wave("other", WaveState::Soaking, 0)];
            soaks.see(&pool, &target, &waves, at(now));
            assert_eq!(soaks.soaked(&pool, &target, "canary").as_secs(), soaked, "{now}");
        }
    }
}
