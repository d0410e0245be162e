//! Pages of the documentation about findings.

use berth_core::finding::kind::Kind;
use serde::Serialize;

/// Address of the documentation's pages.
const DOCS: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/");

/// A page of the documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Runbook {
    /// Path of the page in the repository.
    text: String,
    url: String,
}

/// Returns the runbook about a finding; `None` if there is none.
pub(super) fn runbook(kind: Kind, reason: &str) -> Option<Runbook> {
    let text = format!("docs/runbooks/{}.md", alert(kind, reason)?);
    Some(Runbook {
        url: format!("{DOCS}{text}"),
        text,
    })
}

/// Returns the name of the alert about the same problem.
fn alert(kind: Kind, reason: &str) -> Option<&'static str> {
    Some(match kind {
        Kind::NodeDegraded if reason == "DrainTimeout" => "BerthDrainBlocked",
        Kind::DrainBlocked => "BerthDrainBlocked",
        Kind::NodeDegraded => "BerthNodesDegraded",
        Kind::RebootTimedOut => "BerthNodeDoesNotComeBack",
        Kind::Implausible => "BerthNodeImplausible",
        Kind::AgentSilent | Kind::AgentsSilent => "BerthAgentSilent",
        Kind::RolloutHalted => "BerthRolloutHalted",
        Kind::PoolDegraded => "BerthPoolStalled",
        Kind::ImageUnresolved => "BerthImageNotResolved",
        Kind::ImageNotAdopted | Kind::FeedRefused | Kind::FeedFailing | Kind::FeedInterrupted | Kind::TagUnchecked => {
            "BerthImageFeedFailing"
        }
        Kind::BootImageTooOld | Kind::BootImageRefused => "BerthBootImageSkew",
        Kind::BootImageUnknown => "BerthBootImageUnchecked",
        Kind::ObjectsUnreadable => "BerthControllerUnhealthy",
        Kind::RegistryAway => "BerthRegistryAway",
        Kind::Unguarded => "BerthUnguarded",
        Kind::MachinesHeld => "BerthMachinesHeld",
        Kind::FirstBootFailed => "BerthBootstrapUnhealthy",
        Kind::OfFleet
        | Kind::PoolPaused
        | Kind::OutdatedPaused
        | Kind::ImageAvailable
        | Kind::ImageChecked
        | Kind::AddressShared
        | Kind::SelectedTwice
        | Kind::BerthUnreadable
        | Kind::ControllerBehind
        | Kind::OfPool
        | Kind::BadTurn
        | Kind::PlatformUnsupported
        | Kind::NotReady
        | Kind::DiskPressure
        | Kind::NetworkUnavailable => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_runbook_exists() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for (kind, reason) in [
            (Kind::NodeDegraded, "DrainTimeout"),
            (Kind::NodeDegraded, "DigestFailed"),
            (Kind::DrainBlocked, ""),
            (Kind::RebootTimedOut, ""),
            (Kind::Implausible, ""),
            (Kind::AgentSilent, ""),
            (Kind::RolloutHalted, ""),
            (Kind::PoolDegraded, ""),
            (Kind::ImageUnresolved, ""),
            (Kind::FeedFailing, ""),
            (Kind::BootImageTooOld, ""),
            (Kind::BootImageUnknown, ""),
            (Kind::ObjectsUnreadable, ""),
            (Kind::RegistryAway, ""),
            (Kind::Unguarded, ""),
            (Kind::MachinesHeld, ""),
            (Kind::FirstBootFailed, ""),
        ] {
            let found = runbook(kind, reason).unwrap();
            assert!(repository.join(&found.text).is_file(), "{found:?}");
            assert!(found.url.ends_with(&found.text), "{found:?}");
        }
        assert_eq!(runbook(Kind::PoolPaused, ""), None);
    }
}
