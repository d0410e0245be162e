//! Pending changes and their urgency.

use std::sync::Mutex;

use berth_core::controller::view::Urgency;
use berth_shell::locked;
use tokio::sync::Notify;

/// The most urgent change since the last pass.
#[derive(Debug, Default)]
pub struct WakeQueue {
    latest: Mutex<Option<Urgency>>,
    changed: Notify,
}

impl WakeQueue {
    /// Adds a change.
    pub fn add(&self, news: Urgency) {
        let mut latest = locked(&self.latest);
        *latest = (*latest).max(Some(news));
        self.changed.notify_one();
    }

    /// The most urgent change since [`Self::clear`].
    pub fn latest(&self) -> Option<Urgency> {
        *locked(&self.latest)
    }

    /// Waits for a change that is at least this urgent. Only one task may wait at a time.
    pub async fn wait(&self, news: Urgency) {
        while self.latest() < Some(news) {
            self.changed.notified().await;
        }
    }

    /// Marks all changes as handled.
    pub fn clear(&self) {
        *locked(&self.latest) = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use berth_api::BootId;
    use berth_api::berth::{Berth, Offer, Outcome, lease};
    use berth_core::controller::view::{LeaseView, View};
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_berth_given_back_is_handled_at_once() {
        let at = Timestamp::from_second(1).unwrap();
        let target = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let offer = Offer {
            node: "n1".into(),
            uid: "u".into(),
            target,
            open_until: None,
        };
        fn boot() -> BootId {
            BootId::from("b")
        }
        let new = Berth::new("p".into(), 0, 1);
        let offered = new.offered(offer).unwrap();
        let taken = offered.taken(&"n1".into(), &"u".into(), None, boot()).unwrap();
        let releasing = taken.releasing(Outcome::Revoked, boot()).unwrap();
        let closed = releasing.given_back().unwrap();
        let states = [&new, &offered, &taken, &releasing, &closed, &closed.stamped(2)];
        let states = states.map(|berth| LeaseView::of(lease::create(berth, "ns", Duration::from_secs(1), at)));
        let news: Vec<_> = states
            .iter()
            .zip(&states[1..])
            .map(|(old, new)| new.urgency(old))
            .collect();
        use Urgency::{Later, Now};
        assert_eq!(news, [Later, Later, Later, Now, Later].map(Some));
        assert_eq!(states[0].urgency(&states[0].clone()), None);
    }

    #[tokio::test]
    async fn a_less_urgent_change_wakes_no_waiter() {
        let board = WakeQueue::default();
        async fn hears(board: &WakeQueue, news: Urgency) -> bool {
            tokio::time::timeout(Duration::ZERO, board.wait(news)).await.is_ok()
        }
        assert!(!hears(&board, Urgency::Later).await);
        board.add(Urgency::Later);
        assert!(hears(&board, Urgency::Later).await && !hears(&board, Urgency::Soon).await);
        board.add(Urgency::Now);
        board.add(Urgency::Soon);
        assert!(hears(&board, Urgency::Now).await, "the most urgent counts");
        board.clear();
        assert!(!hears(&board, Urgency::Later).await);
    }

    #[tokio::test]
    async fn a_waiter_is_woken() {
        let board = Arc::new(WakeQueue::default());
        let waiting = tokio::spawn({
            let board = board.clone();
            async move { board.wait(Urgency::Now).await }
        });
        for news in [Urgency::Soon, Urgency::Now] {
            tokio::task::yield_now().await;
            board.add(news);
        }
        tokio::time::timeout(Duration::from_secs(10), waiting)
            .await
            .unwrap()
            .unwrap();
    }
}
