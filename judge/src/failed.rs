//! I8: a digest that failed on a node is not offered to it again until an admin asks for a retry.

use std::collections::BTreeMap;

use berth_api::berth::{BerthState, HoldPhase, Outcome};
use jiff::Timestamp;

use crate::history::{History, RecordedState, in_order};
use crate::judge::Judge;
use crate::names::name_of;
use crate::violation::Violation;
use crate::write::text;

/// Changes of `rollout.retryToken` by pool: resourceVersion and time.
type Retries<'a> = BTreeMap<&'a str, Vec<(u64, Timestamp)>>;

impl Judge<'_> {
    /// Finds offers of a digest that an honest agent of the same node had reported as failed. Only a whole log has
    /// every retry.
    pub(super) fn failed_again(&self, history: &History) -> Vec<Violation> {
        if !self.evidence.whole {
            return vec![];
        }
        let retries = self.retries();
        // By pool, UID of the Node, and digest.
        let mut failed: BTreeMap<(String, String, String), &RecordedState> = BTreeMap::new();
        let mut wrong = vec![];
        for state in in_order(history) {
            let pool = state.berth.pool.to_string();
            match &state.berth.state {
                BerthState::Held(h)
                    if h.phase == HoldPhase::Releasing(Outcome::Failed) && !self.is_liar(h.node.as_str()) =>
                {
                    failed.insert((pool, h.uid.to_string(), h.target.to_string()), state);
                }
                BerthState::Offered(offer) => {
                    let failure = failed.get(&(pool, offer.uid.to_string(), offer.target.to_string()));
                    let Some(failure) = failure.filter(|failure| !self.is_retried(&retries, failure, state)) else {
                        continue;
                    };
                    let text = format!(
                        "{} was opened for {} at {} for {}, which had failed there at {}",
                        state.berth.name(),
                        offer.node,
                        state.at,
                        offer.target,
                        failure.at
                    );
                    wrong.push(Violation::of_write("I8", state, text).and(&failure.audit_id));
                }
                _ => {}
            }
        }
        wrong
    }

    fn retries(&self) -> Retries<'_> {
        let mut last: BTreeMap<&str, Option<&str>> = BTreeMap::new();
        let mut retries = Retries::new();
        for (version, record, object) in self.writes("bootcnodepools") {
            let (pool, token) = (name_of(record, object), text(object, "/spec/rollout/retryToken"));
            if last.insert(pool, token) != Some(token) {
                retries.entry(pool).or_default().push((*version, record.at));
            }
        }
        retries
    }

    /// True if an admin asked for a retry between a failure and an offer. A retry from less than the lag before the
    /// failure counts, because the controller may have seen the failure first.
    fn is_retried(&self, retries: &Retries<'_>, failure: &RecordedState, offer: &RecordedState) -> bool {
        let of_pool = retries.get(offer.berth.pool.as_str()).into_iter().flatten();
        let mut before = of_pool.filter(|(version, _)| *version < offer.version);
        before.any(|(version, at)| *version > failure.version || *at + self.lag >= failure.at)
    }
}
