//! What this process remembers of what it has seen, by its own clock: never another machine's. A controller that
//! starts anew begins to count anew; nothing that must not go wrong depends on it. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use berth_api::Digest;
use berth_api::node::{Phase, Staging};

use crate::store::Objects;
use crate::view::HostView;

/// Leave to pull that was not used for so long counts as not used. More than an agent's longest backoff, so that one
/// that fails gets to its next try within its turn.
const LEAVE: Duration = Duration::from_secs(15 * 60);

/// How often members had leave to pull and did not use it. There is no good reason for that, and so no list of
/// reasons: whoever it is goes behind those that have yet to have their turn.
#[derive(Debug, Default)]
pub struct Leaves(BTreeMap<String, Leave>);

#[derive(Debug)]
struct Leave {
    digest: Digest,
    idle_since: Option<Instant>,
    unused: u32,
}

impl Leaves {
    /// Takes in what is published and reported now.
    pub fn see(&mut self, hosts: &Objects<HostView>, now: Instant) {
        self.0.retain(|name, _| hosts.contains_key(name));
        for (name, host) in hosts {
            let (Some(spec), Some(report)) = (host.view.spec(), host.view.report()) else {
                continue;
            };
            let digest = spec.image.as_ref().map(|i| &i.digest);
            let Some(digest) =
                digest.filter(|d| report.staged.as_ref() != Some(d) && report.booted.as_ref() != Some(d))
            else {
                self.0.remove(name);
                continue;
            };
            let new = || Leave { digest: digest.clone(), idle_since: None, unused: 0 };
            let leave = self.0.entry(name.clone()).or_insert_with(new);
            if leave.digest != *digest {
                *leave = new();
            }
            let idle = spec.staging == Staging::Allowed && report.phase != Some(Phase::Staging);
            match (idle, leave.idle_since) {
                (true, None) => leave.idle_since = Some(now),
                (true, Some(since)) if now.saturating_duration_since(since) >= LEAVE => {
                    leave.unused += 1;
                    leave.idle_since = Some(now);
                }
                (true, Some(_)) => {}
                (false, _) => leave.idle_since = None,
            }
        }
    }

    /// How often the node did not use its leave to pull that digest.
    pub fn unused(&self, name: &str, digest: &Digest) -> u32 {
        self.0.get(name).filter(|leave| leave.digest == *digest).map_or(0, |leave| leave.unused)
    }
}
