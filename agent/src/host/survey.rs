//! A look at the host: which backend it has, and its deployments in that one's words.

use berth_api::backend::{Backend, BackendRule};
use berth_core::agent::backend::{self, Bootc as Seen, Choice, Options, Why};
use berth_core::agent::facts::{Deployments, Os};
use berth_core::agent::storage::{Means, Storage, refusal};

use super::bootc::{BootcStatus, BootcVersion};
use super::driver::HostStatus;
use super::failure::Reason;
use super::stranded::link_without_unit;
use super::{Host, HostError};

/// Terms of a look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Terms {
    /// Rule by which the backend is chosen.
    pub rule: BackendRule,
    /// Backend of what was begun and has not ended.
    pub begun: Option<Backend>,
    /// Hosts with bootc's composefs backend are updated as well.
    pub experimental_composefs: bool,
}

/// Result of a look.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// The deployments, or why the host cannot be updated.
    pub os: Os,
    /// Version of bootc, where the host has a supported one.
    pub bootc_version: Option<String>,
    /// Action of rpm-ostree's own timer, where rpm-ostree is the backend and says it.
    pub policy: Option<String>,
}

/// Answers of the host's bootc.
struct BootcAnswer {
    seen: Seen,
    version: Option<String>,
    download_only: bool,
    status: Option<HostStatus>,
}

impl Host {
    /// Chooses the backend and asks it for the deployments. Everything that is done on the host afterwards is done with that
    /// backend, until another one is chosen.
    ///
    /// # Errors
    /// [`HostError::Busy`] while a pull or a tool of an earlier agent runs; or systemd cannot be asked. Any other trouble is part
    /// of the answer.
    pub async fn survey(&self, terms: &Terms) -> Result<Survey, HostError> {
        self.refuse_while_pulling().await?;
        let bootc = self.ask_bootc().await?;
        // On most hosts rpm-ostree is no choice, and is not even looked for.
        let may_be_rpm_ostree = !matches!(bootc.seen, Seen::Usable | Seen::Composefs)
            || terms.rule == BackendRule::RpmOstree
            || terms.begun == Some(Backend::RpmOstree);
        let asked = match may_be_rpm_ostree && self.rpm_ostree.exists().await? {
            true => Some(self.rpm_ostree.status().await),
            false => None,
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
                (self.bootcs(bootc, why, terms), None)
            }
            Choice::Take(Backend::RpmOstree, why) => {
                self.choose(Backend::RpmOstree);
                match asked {
                    Some(Ok(status)) => (self.rpm_ostrees(status, why), self.rpm_ostree.policy().await),
                    Some(Err(error @ (HostError::Busy(_) | HostError::Bus(_)))) => return Err(error),
                    Some(Err(error)) => (without_answer(&error), None),
                    None => (unusable(Reason::StatusFailed, "rpm-ostree was not asked"), None),
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
        let nothing = |seen| BootcAnswer {
            seen,
            version: None,
            download_only: false,
            status: None,
        };
        let (version, download_only) = match self.bootc.version().await? {
            BootcVersion::Version { version, download_only } => (version, download_only),
            BootcVersion::Missing => return Ok(nothing(Seen::Missing)),
            BootcVersion::TooOld(version) => return Ok(nothing(Seen::TooOld(version))),
            BootcVersion::Failed(message) => return Ok(nothing(Seen::Silent(Reason::BootcFailed, message))),
        };
        let (seen, status) = match self.bootc.status().await {
            Ok(BootcStatus::NotBootc) => (Seen::NotBooted, None),
            Ok(BootcStatus::Layered) => (Seen::Layered, None),
            Ok(BootcStatus::Host(status)) => {
                let seen = match (status.storage, status.staged_layers) {
                    (Storage::Composefs, _) => Seen::Composefs,
                    (Storage::Ostree, true) => Seen::LayersStaged,
                    (Storage::Ostree, false) => Seen::Usable,
                };
                (seen, Some(*status))
            }
            // A tool that we did not know of runs: its end is waited for, not taken for an answer.
            Err(error @ HostError::Busy(_)) => return Err(error),
            Err(error) => (Seen::Silent(Reason::StatusFailed, format!("{error:#}")), None),
        };
        Ok(BootcAnswer {
            seen,
            version: Some(version),
            download_only,
            status,
        })
    }

    fn bootcs(&self, answer: BootcAnswer, why: Why, terms: &Terms) -> Os {
        let Some(host) = answer.status else {
            return unusable(
                Reason::StatusFailed,
                "bootc status says nothing of the host's deployments",
            );
        };
        let means = Means {
            bootc: answer.version.as_deref().unwrap_or_default(),
            download_only: answer.download_only,
            experimental_composefs: terms.experimental_composefs,
        };
        let refusal = refusal(host.storage, &means);
        known(Deployments {
            stages_locked: answer.download_only,
            refusal,
            // bootc drops layered packages, so Berth removes a staged deployment that has some.
            staged_layers: false,
            ..self.deployments(Backend::Bootc, host, why)
        })
    }

    fn rpm_ostrees(&self, host: HostStatus, why: Why) -> Os {
        if let Some(unreadable) = &host.unreadable_lock {
            let message = format!("cannot tell whether the staged deployment is locked: {unreadable}");
            return unusable(Reason::StatusFailed, &message);
        }
        known(Deployments {
            stages_locked: true,
            ..self.deployments(Backend::RpmOstree, host, why)
        })
    }

    fn deployments(&self, name: Backend, host: HostStatus, why: Why) -> Deployments {
        Deployments {
            backend: backend::shown(name, why, &host.layered_packages),
            storage: host.storage,
            stages_locked: false,
            booted: host.booted,
            staged: host.staged,
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

fn without_answer(error: &HostError) -> Os {
    let reason = match error.reason() {
        Reason::NotBootcHost => Reason::NotBootcHost,
        _ => Reason::StatusFailed,
    };
    unusable(reason, &format!("{error:#}"))
}

fn known(deployments: Deployments) -> Os {
    Os::Bootc(Box::new(deployments))
}
