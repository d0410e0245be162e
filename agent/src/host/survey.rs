//! Surveys the host: chooses its backend, and reads the deployments from that backend.

use berth_api::backend::{Backend, BackendRule};
use berth_core::agent::backend::{self, Bootc as BootcFinding, Choice, CommonReason, Options};
use berth_core::agent::facts::{Deployments, Os};
use berth_core::agent::storage::{Means, Storage, Version, refusal};

use super::bootc::{BootcStatus, BootcVersion};
use super::driver::HostStatus;
use super::error::HostError;
use super::failure::Reason;
use super::handle::Host;
use super::stranded::link_without_unit;

/// Parameters of a survey.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// Rule for choosing the backend.
    pub rule: BackendRule,
    /// Backend of an update that has begun but not ended; `None` if no update has begun.
    pub begun: Option<Backend>,
}

/// Result of a survey.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// The deployments, or why the host cannot be updated.
    pub os: Os,
    /// Version of bootc, if the host has a supported one.
    pub bootc_version: Option<String>,
    /// Policy of rpm-ostree's own automatic updates, if rpm-ostree is the backend and reports it.
    pub policy: Option<String>,
}

struct BootcAnswer {
    seen: BootcFinding,
    version: Option<String>,
    numbers: Version,
    download_only: Option<bool>,
    status: Option<HostStatus>,
}

impl BootcAnswer {
    /// Creates the result for a bootc that is missing, too old, or does not answer.
    fn without_status(seen: BootcFinding) -> Self {
        Self {
            seen,
            version: None,
            numbers: Version::default(),
            download_only: None,
            status: None,
        }
    }
}

impl Host {
    /// Chooses the backend and reads the deployments from it. Changes to the host use this backend until the next
    /// survey. Fails with [`HostError::Busy`] while a pull or another host tool runs. Errors of the backends
    /// are in the result, as [`Os::Unusable`].
    pub async fn survey(&self, terms: &Terms) -> Result<Survey, HostError> {
        self.refuse_while_pulling().await?;
        let bootc = self.ask_bootc().await?;
        // Most hosts have a usable bootc. There, rpm-ostree is queried only if the rule or a begun update names it.
        let may_be_rpm_ostree = !matches!(bootc.seen, BootcFinding::Usable | BootcFinding::Composefs)
            || terms.rule == BackendRule::RpmOstree
            || terms.begun == Some(Backend::RpmOstree);
        let asked = if may_be_rpm_ostree && self.rpm_ostree.exists().await? {
            Some(self.rpm_ostree.status().await)
        } else {
            None
        };
        let packages = match &asked {
            Some(Ok(status)) => status.layered_packages.clone(),
            _ => vec![],
        };
        let choice = backend::choose(&Options {
            bootc: &bootc.seen,
            rpm_ostree: asked.is_some(),
            rule: terms.rule,
            begun: terms.begun,
            packages: &packages,
        });
        let version = bootc.version.clone();
        let (os, policy) = match choice {
            Choice::Refuse(reason, message) => (Os::Unusable { reason, message }, None),
            Choice::Take(Backend::Bootc, why) => {
                self.choose(Backend::Bootc);
                (self.bootc_os(bootc, why), None)
            }
            Choice::Take(Backend::RpmOstree, why) => {
                self.choose(Backend::RpmOstree);
                match asked {
                    Some(Ok(status)) => (self.rpm_ostree_os(status, why), self.rpm_ostree.policy().await),
                    Some(Err(error @ (HostError::Busy(_) | HostError::Bus(_)))) => return Err(error),
                    Some(Err(error)) => (unanswered(&error), None),
                    None => (
                        unusable(Reason::StatusFailed, "the agent did not query rpm-ostree"),
                        None,
                    ),
                }
            }
        };
        Ok(Survey {
            os,
            bootc_version: version,
            policy,
        })
    }

    async fn ask_bootc(&self) -> Result<BootcAnswer, HostError> {
        let (version, numbers, download_only) = match self.bootc.version().await? {
            BootcVersion::Version {
                version,
                numbers,
                download_only,
            } => (version, numbers, download_only),
            BootcVersion::Missing => return Ok(BootcAnswer::without_status(BootcFinding::Missing)),
            BootcVersion::TooOld(version) => return Ok(BootcAnswer::without_status(BootcFinding::TooOld(version))),
            BootcVersion::Failed(message) => {
                let finding = BootcFinding::Silent(Reason::BootcFailed, message);
                return Ok(BootcAnswer::without_status(finding));
            }
        };
        let (seen, status) = match self.bootc.status().await {
            Ok(BootcStatus::NotBootc) => (BootcFinding::NotBooted, None),
            Ok(BootcStatus::Layered) => (BootcFinding::Layered, None),
            Ok(BootcStatus::Host(status)) => {
                let seen = match (status.storage, status.staged_layers) {
                    (Storage::Composefs, _) => BootcFinding::Composefs,
                    (Storage::Ostree, true) => BootcFinding::LayersStaged,
                    (Storage::Ostree, false) => BootcFinding::Usable,
                };
                (seen, Some(*status))
            }
            // A host tool that an earlier agent process started still runs. The survey is repeated after its end.
            Err(error @ HostError::Busy(_)) => return Err(error),
            Err(error) => (BootcFinding::Silent(Reason::StatusFailed, format!("{error:#}")), None),
        };
        Ok(BootcAnswer {
            seen,
            version: Some(version),
            numbers,
            download_only,
            status,
        })
    }

    fn bootc_os(&self, answer: BootcAnswer, why: CommonReason) -> Os {
        let Some(host) = answer.status else {
            return unusable(Reason::StatusFailed, "bootc status lists no deployments");
        };
        let means = Means {
            bootc: answer.version.as_deref().unwrap_or_default(),
            numbers: answer.numbers,
            download_only: answer.download_only,
            uki_entries: host.uki_entries,
        };
        let refusal = refusal(host.storage, &means);
        known(Deployments {
            stages_locked: answer.download_only == Some(true),
            refusal,
            // False even if the staged deployment has layered packages: bootc drops them, so Berth may remove that
            // deployment.
            staged_layers: false,
            ..self.deployments(Backend::Bootc, host, why)
        })
    }

    fn rpm_ostree_os(&self, host: HostStatus, why: CommonReason) -> Os {
        if let Some(unreadable) = &host.unreadable_lock {
            let message = format!("cannot read whether the staged deployment is locked: {unreadable}");
            return unusable(Reason::StatusFailed, &message);
        }
        known(Deployments {
            stages_locked: true,
            ..self.deployments(Backend::RpmOstree, host, why)
        })
    }

    fn deployments(&self, name: Backend, host: HostStatus, why: CommonReason) -> Deployments {
        Deployments {
            backend: backend::shown(name, why, &host.layered_packages),
            storage: host.storage,
            stages_locked: false,
            booted: host.booted,
            booted_commit: host.booted_commit,
            staged: host.staged,
            staged_commit: host.staged_commit,
            staged_layers: host.staged_layers,
            staged_signed: host.staged_signed,
            rollback: host.rollback,
            rollback_queued: host.rollback_queued,
            link_without_unit: host
                .staged_files
                .and_then(|files| link_without_unit(&self.root, &files)),
            refusal: None,
        }
    }
}

fn unusable(reason: Reason, message: &str) -> Os {
    Os::Unusable {
        reason,
        message: message.to_owned(),
    }
}

fn unanswered(error: &HostError) -> Os {
    let reason = match error.reason() {
        Reason::NotBootcHost => Reason::NotBootcHost,
        _ => Reason::StatusFailed,
    };
    unusable(reason, &format!("{error:#}"))
}

fn known(deployments: Deployments) -> Os {
    Os::Bootc(Box::new(deployments))
}
