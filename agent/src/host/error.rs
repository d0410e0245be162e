use super::bus::BusError;
use super::failure::{Failure, Reason};

/// Error of a request to the host.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// A host command or a pull runs. A second command would wait, or would read a state that is about to change.
    #[error("the host is busy: {0}")]
    Busy(String),
    /// A host tool failed.
    #[error("{}", .0.message)]
    Tool(Failure),
    /// A host tool did not end in time.
    #[error("{0}")]
    Timeout(String),
    /// The system bus, systemd, logind or another D-Bus service failed.
    #[error("{0}")]
    Bus(#[from] BusError),
    /// logind or rpm-ostreed refused to reboot.
    #[error("{0}")]
    RebootRefused(String),
    /// A file of the agent cannot be read or written.
    #[error("{0}")]
    Io(String),
}

impl HostError {
    pub(super) fn tool_failed(why: &str) -> Self {
        Self::Tool(Failure::new(Reason::HostToolFailed, why))
    }

    /// Returns the reason to report in a condition.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Busy(_) => Reason::HostBusy,
            Self::Tool(failure) => failure.reason,
            Self::Timeout(_) => Reason::HostToolTimedOut,
            Self::Bus(_) => Reason::HostUnreachable,
            Self::RebootRefused(_) => Reason::RebootRefused,
            Self::Io(_) => Reason::HostToolFailed,
        }
    }
}
