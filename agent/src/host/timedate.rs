use std::time::Duration;

use super::bus::{Bus, BusError, TIMEDATE};

/// Timeout of the query, so that a hung timedated does not block the agent.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn is_synchronized(bus: &Bus) -> Result<bool, BusError> {
    const PROPERTY: &str = "NTPSynchronized";
    tokio::time::timeout(TIMEOUT, bus.property(TIMEDATE, PROPERTY))
        .await
        .unwrap_or_else(|_| {
            Err(BusError::Lost {
                method: PROPERTY.to_owned(),
                why: "timedated did not answer in time".to_owned(),
            })
        })
}
