//! The threads of the program.

use std::io;

use tokio::runtime::{Builder, Runtime};

/// Creates a runtime with two threads. The passes run on the thread that calls `block_on`: their decisions may take
/// long. Watches, requests and the renewals of leadership run on the other thread, so they need not wait for a
/// decision.
pub fn runtime() -> io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::tests::{QUICK, leader, server};

    #[test]
    fn a_long_decision_does_not_cost_leadership() {
        runtime().unwrap().block_on(async {
            let (candidate, leadership, lease) = leader(server(&[]), QUICK);
            let renewals = candidate.renew(leadership.clone(), lease);
            tokio::time::sleep(QUICK.retry_period).await;
            std::thread::sleep(QUICK.renew_deadline + QUICK.retry_period);
            assert_eq!(leadership.check().map(drop), Ok(()));
            assert!(!renewals.is_finished());
        });
    }
}
