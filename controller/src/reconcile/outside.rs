use crate::clock::Clock;
use crate::events::writer::Events;
use crate::firstboots::FirstBoots;
use crate::metrics::Metrics;
use crate::readyz::Readyz;
use crate::server_clock::ServerClock;

/// Services that the reconciler uses besides the watched objects.
#[derive(Debug)]
pub struct Outside {
    /// Writer of events.
    pub events: Events,
    /// Metrics for Prometheus.
    pub metrics: Metrics,
    /// Probes of the API servers.
    pub readyz: Readyz,
    /// Events of machines on their first boot.
    pub firstboots: FirstBoots,
    /// Clock of this machine.
    pub clock: Clock,
    /// Clock of the API server.
    pub server_clock: ServerClock,
}
