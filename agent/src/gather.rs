//! Before each decision, reads the host's facts that are cheap to read and may have changed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use berth_api::BootId;
use berth_api::decode::Decoded;
use berth_api::node::BootcNode;
use berth_api::pool::SignatureRule;
use berth_core::agent::facts::{Desired, HostHealth, PullFacts};
use berth_core::agent::host_policy::Rules;
use berth_core::agent::host_policy::credentials::Claim;
use berth_core::agent::host_policy::signatures::Policy;
use berth_core::agent::knowledge::{Event, HostFailure, PullReading, Services};

use crate::host::{HostError, PullState, failure};
use crate::run::Agent;

/// Delay between queries to a host that does not answer.
const SILENT_HOST_INTERVAL: Duration = Duration::from_secs(10);

impl Agent {
    /// Reads the facts that every decision needs: the BootcNode's spec, and the rules, services and pull of the host.
    pub(crate) async fn gather(&mut self, object: Option<&Decoded<BootcNode>>) -> Result<()> {
        self.take_over(object);
        self.read_rules();
        if self.is_known_to_be_silent() {
            return Ok(());
        }
        let (services, pull) = match self.ask_host().await {
            Ok(answers) => answers,
            Err(error) if is_silence(&error) => {
                tracing::warn!(error = format!("{error:#}"), "the host does not answer");
                self.learn(Event::Unreachable(format!("{error:#}")));
                self.contact.silent_at = Some(Instant::now());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.contact.silent_at = None;
        self.learn(Event::Services(services));
        self.learn(Event::Pull(pull));
        self.make_pool_checks().await;
        if self.knowledge.pulls.processed.is_some() || self.knowledge.has_fired_guard() {
            self.remember();
        }
        if self.knowledge.may_forget_fired_guard()
            && let Err(error) = self.host.forget_fired_guard()
        {
            tracing::warn!(%error, "cannot remove the rollback guard's record of a rollback; retrying");
        }
        if let Some(digest) = self.knowledge.pull_to_forget()
            && let Err(error) = self.host.forget_pull(digest).await
        {
            // The next pass finds the pull again, but does not log its end again.
            tracing::warn!(%error, %digest, "cannot clean up after the ended pull; retrying");
        }
        Ok(())
    }

    /// True if the host has not answered for long enough to report this, and its last unanswered query is younger than
    /// [`SILENT_HOST_INTERVAL`]. The agent then skips the queries. Otherwise each step of a turn would wait for
    /// timeouts: giving the berth back would take minutes, and the agent would act on an old read of the Node.
    fn is_known_to_be_silent(&self) -> bool {
        let facts = self.knowledge.facts(&self.timers.now());
        let is_told = facts.host.unreachable.is_some_and(|silence| silence.is_reportable());
        is_told
            && self
                .contact
                .silent_at
                .is_some_and(|at| at.elapsed() < SILENT_HOST_INTERVAL)
    }

    /// Stores the BootcNode's spec in the agent's knowledge. When the agent sees the object for the first time, also
    /// stores the history in the object's status. An earlier agent process wrote that history. If the status cannot be
    /// read, only the history in the host's own record remains.
    fn take_over(&mut self, object: Option<&Decoded<BootcNode>>) {
        let token = self.knowledge.past.retry_token.clone();
        let uid = object.map(|object| object.spec.node_uid.as_str().into());
        // A history of another Node with the same name does not belong to this Node.
        let status = object.and_then(|object| {
            let adopted = self.api.status.adopt(object);
            adopted.filter(|status| status.node_uid.as_deref() == Some(&object.spec.node_uid))
        });
        let desired = Desired::of(object.map(|object| &object.object));
        let event = Event::Published {
            desired,
            uid,
            status,
            is_unread: object.is_some_and(|object| object.status_error.is_some()),
        };
        self.knowledge.after(event, &self.timers.now());
        if self.knowledge.past.retry_token != token {
            tracing::info!(
                token = self.knowledge.past.retry_token,
                "new retry token: images that failed here may be tried again"
            );
        }
        self.remember();
    }

    /// Reads the host's rules and updates the credentials that Berth keeps on the host.
    fn read_rules(&mut self) {
        let claim = Claim::of(&self.knowledge.desired, &self.knowledge.cluster.node);
        let credentials = if claim == Claim::Unknown {
            self.knowledge.host.rules.credentials.clone()
        } else {
            let outcome = self.host.keep_auth(claim);
            if outcome.changed {
                self.learn(Event::NewCredentials);
            }
            outcome.objection
        };
        if credentials != self.knowledge.host.rules.credentials
            && let Some(objection) = &credentials
        {
            let reason = objection.reason.as_str();
            tracing::warn!(
                reason,
                message = objection.message,
                "problem with the host's credentials for pulls"
            );
        }
        // The policy matters only where signatures are required.
        let image = self.knowledge.desired.image();
        let needs_signature = image.is_some_and(|image| image.signature == SignatureRule::Required);
        let (policy, policy_digest) = if needs_signature {
            self.host.policy()
        } else {
            (Policy::Unread, None)
        };
        let rules = Rules {
            credentials,
            registries: self.host.registries(),
            policy,
            policy_digest,
        };
        self.learn(Event::Rules(Box::new(rules)));
    }

    async fn ask_host(&mut self) -> Result<(Services, PullReading)> {
        let services = self.ask_services().await?;
        // During a shutdown the bus stops answering, and pulls do not matter any more.
        let pull = if services.shutting_down {
            PullReading::None
        } else {
            self.look_at_pull().await?
        };
        Ok((services, pull))
    }

    async fn ask_services(&mut self) -> Result<Services> {
        let host = &self.host;
        let shutting_down = host
            .shutting_down()
            .await
            .context("cannot ask logind whether the host is shutting down")?;
        let soft_reboots = host.soft_reboots().await;
        let soft_reboots = soft_reboots.context("cannot ask systemd how often the host has soft-rebooted")?;
        let boot_id = host.boot_id()?;
        let mut services = Services::under(boot_id.clone());
        services.shutting_down = shutting_down;
        services.rollback_guard = host.guard_state()?;
        services.soft_reboots = soft_reboots;
        if shutting_down || !self.knowledge.is_reboot_ahead() {
            services.clock_synchronized = self.contact.clock.known();
            return Ok(services);
        }
        let inhibitors = host.inhibitors().await.context("cannot list logind's inhibitors")?;
        services.inhibitors = inhibitors.iter().map(ToString::to_string).collect();
        services.shutdown_scheduled = host
            .shutdown_scheduled()
            .await
            .context("cannot ask logind whether a shutdown is scheduled")?;
        if self.knowledge.is_in_turn() {
            services.health = Some(self.ask_health(&boot_id).await?);
        }
        let under_window = self.knowledge.cluster.is_under_window();
        services.clock_synchronized = self.contact.clock.is_synchronized(&self.host, under_window).await;
        Ok(services)
    }

    /// Reads the health of the running boot. Runs the host's checks only while the boot waits for its proof.
    async fn ask_health(&self, boot_id: &BootId) -> Result<HostHealth> {
        let health = self.host.boot_health().await;
        let mut health = health.context("cannot ask systemd whether this boot is healthy")?;
        if self.knowledge.turn.proving.is_some() {
            let node = self.knowledge.cluster.node.get();
            let is_ready = node.is_some_and(|node| node.is_ready(boot_id));
            health.checks = self.host.run_checks(boot_id, is_ready, health.boot_complete);
        }
        Ok(health)
    }

    async fn look_at_pull(&mut self) -> Result<PullReading> {
        let desired = self.knowledge.desired.digest();
        let found = self
            .host
            .find_pull(desired)
            .await
            .context("cannot look for a running pull")?;
        let Some(pull) = found else {
            return Ok(PullReading::None);
        };
        Ok(match pull.state {
            PullState::Running => PullReading::Running(PullFacts {
                progress: self.host.pull_progress(),
                digest: pull.digest,
            }),
            PullState::Succeeded => {
                if self.knowledge.pulls.is_news(&pull.digest) {
                    tracing::info!(digest = %pull.digest, "pull ended");
                }
                PullReading::Succeeded {
                    digest: pull.digest,
                    policy: pull.policy,
                }
            }
            PullState::Failed { message } => {
                let reason = failure::classify(&message).reason;
                if self.knowledge.pulls.is_news(&pull.digest) {
                    tracing::warn!(digest = %pull.digest, reason = reason.as_str(), message, "pull failed");
                }
                let failure = HostFailure { reason, message };
                PullReading::Failed {
                    digest: pull.digest,
                    failure,
                }
            }
        })
    }

    /// Passes the cached berths to the agent's knowledge.
    pub(crate) fn learn_berths(&mut self) {
        if let Some(berths) = self.api.berths.berths() {
            self.learn(Event::Berths(berths));
        }
    }

    /// Reads the berths from the API server's storage, independent of the watch.
    pub(crate) async fn refresh_berths(&mut self) -> Result<()> {
        let listed = self.api.berths.refresh().await;
        self.note_api_answer(listed.is_ok());
        listed.context("cannot list the berths of this node")?;
        self.timers.refresh.done();
        self.learn_berths();
        Ok(())
    }
}

/// True if the error is a [`HostError`], such as a timeout. The agent then reports the host as unreachable and keeps
/// running.
fn is_silence(error: &anyhow::Error) -> bool {
    error.downcast_ref::<HostError>().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{BusError, Failure};

    #[test]
    fn any_host_error_counts_as_silence() {
        fn asked(error: HostError) -> anyhow::Error {
            anyhow::Error::new(error).context("cannot look for a running pull")
        }
        for error in [
            HostError::Bus(BusError::Unreachable("no answer in time".to_owned())),
            HostError::Timeout("the transaction could not be joined within 15 s".to_owned()),
            HostError::Tool(Failure::new(
                failure::Reason::HostToolFailed,
                "cannot connect to the transaction",
            )),
            HostError::Busy("a transaction has just begun".to_owned()),
            HostError::Io("cannot remove /run/berth/pull.json".to_owned()),
        ] {
            assert!(is_silence(&asked(error.clone())), "{error}");
        }
        assert!(!is_silence(&anyhow::anyhow!("boot_id is empty")));
    }
}
