//! Changes the machine to its target before the kubelet runs: stages the target locked, as in an update, unlocks it and
//! reboots.

use std::time::Duration;

use berth_api::ImageRef;
use berth_api::node::DesiredImage;
use berth_api::pool::SignatureRule;
use berth_core::agent::facts::{Deployments, Os};
use berth_core::agent::host_policy::Rules;
use berth_core::agent::storage::StagingLock;
use berth_core::firstboot::node::Signs;
use berth_core::firstboot::{Booted, PivotError, Target};
use tokio::time::Instant;

use super::node::is_node;
use super::retries::read_with_retries;
use crate::host::failure::{Failure, Reason};
use crate::host::{Host, HostError, PullState, Terms};

/// Longest time between two checks of a pull.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
const REBOOT_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout for reading the staged deployment before it is removed.
const DISARM_TIMEOUT: Duration = Duration::from_secs(60);

impl From<HostError> for PivotError {
    fn from(error: HostError) -> Self {
        trouble(error.to_string())
    }
}

fn trouble(message: impl Into<String>) -> PivotError {
    PivotError {
        message: message.into(),
        is_final: false,
    }
}

fn final_trouble(message: impl Into<String>) -> PivotError {
    PivotError {
        is_final: true,
        ..trouble(message)
    }
}

/// Returns the host's deployments. The inner error is the reason why this host cannot be changed. After an outer error,
/// a retry may help.
async fn read_deployments(host: &Host) -> Result<Result<Box<Deployments>, String>, HostError> {
    match host.survey(&Terms::default()).await?.os {
        Os::Bootc(known) => Ok(Ok(known)),
        Os::Unusable { reason, message } if matches!(reason, Reason::StatusFailed | Reason::BootcFailed) => {
            Err(HostError::Tool(Failure::new(reason, &message)))
        }
        Os::Unusable { message, .. } => Ok(Err(message)),
        Os::Unknown => Ok(Err("the host's deployments were not read".to_owned())),
    }
}

pub async fn booted(host: &Host) -> Result<Booted, HostError> {
    Ok(match read_deployments(host).await? {
        Ok(known) => match known.booted.digest {
            Some(digest) => Booted::Digest(digest),
            None => Booted::Unknown(format!(
                "{} reports no digest for the running image",
                known.backend.name.tool()
            )),
        },
        Err(message) => Booted::Unknown(message),
    })
}

/// Stages the target locked. If the pull does not end before `give_up`, cancels the pull and fails.
pub async fn stage(host: &Host, image: &ImageRef, target: &Target, give_up: Instant) -> Result<(), PivotError> {
    let desired = DesiredImage {
        reference: image.at(&target.digest).into(),
        digest: target.digest.clone(),
        index_digest: target.digest.clone(),
        version: target.version.clone(),
        signature: SignatureRule::AsBooted,
    };
    let rules = Rules {
        registries: host.registries(),
        policy: host.policy().0,
        ..Rules::default()
    };
    if let Some(objection) = rules.objection(&desired) {
        return Err(final_trouble(objection.message));
    }
    let lock = staging_lock(host).await?;
    host.start_pull(&desired, lock).await?;
    let mut changes = host.changes();
    let state = loop {
        match host.find_pull(Some(&target.digest)).await? {
            Some(pull) if pull.state != PullState::Running => break pull.state,
            Some(_) if Instant::now() < give_up => {
                let look = give_up.min(Instant::now() + LOOK_INTERVAL);
                let _ = tokio::time::timeout_at(look, changes.changed()).await;
            }
            Some(_) => {
                host.cancel_pull(&target.digest).await?;
                return Err(trouble("the pull did not end before the deadline"));
            }
            None => return Err(trouble("the pull can no longer be found, so its result is unknown")),
        }
    };
    host.forget_pull(&target.digest).await?;
    if let PullState::Failed { message } = state {
        return Err(trouble(message));
    }
    match is_staged(host, target).await? {
        Some(true) => Ok(()),
        Some(false) => Err(trouble("the staged target is not locked")),
        None => Err(trouble("the pull succeeded but staged another image")),
    }
}

/// Returns how to lock the target when it is staged. Fails on a composefs host, because the first-boot check changes no
/// composefs host.
async fn staging_lock(host: &Host) -> Result<StagingLock, PivotError> {
    let known = read_deployments(host).await?.map_err(final_trouble)?;
    let lock = known.staging_lock().filter(|lock| lock.ostree().is_some());
    lock.ok_or_else(|| final_trouble("Berth does not update hosts with the composefs backend on their first boot"))
}

/// Returns true if the staged target is locked, and false if it is unlocked; `None` if the target is not staged. Fails
/// if the kubelet could not start with the staged image.
async fn is_staged(host: &Host, target: &Target) -> Result<Option<bool>, PivotError> {
    let known = read_deployments(host).await?.map_err(final_trouble)?;
    if let Some(why) = known.unit_missing() {
        return Err(final_trouble(why));
    }
    let staged = known
        .staged
        .filter(|staged| staged.digest.as_ref() == Some(&target.digest));
    Ok(staged.map(|staged| staged.locked))
}

/// Unlocks the staged target and reboots. Does not return if the reboot begins. Otherwise tries to remove the staged
/// target, and returns the error.
pub async fn reboot(host: &Host, target: &Target, signs: &Signs) -> PivotError {
    let why = match unlock_and_ask(host, target, signs).await {
        Ok(()) => {
            let begins = Instant::now() + REBOOT_TIMEOUT;
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                // Before `begins`, an error counts as a reboot in progress, because a reboot also makes the bus
                // unreachable.
                let is_going = host.shutting_down().await.unwrap_or_else(|_| Instant::now() < begins);
                if !is_going && Instant::now() > begins {
                    break trouble("logind accepted the request, but the reboot did not begin");
                }
            }
        }
        Err(why) => why,
    };
    disarm(host, target).await;
    why
}

pub(super) async fn unlock_and_ask(host: &Host, target: &Target, signs: &Signs) -> Result<(), PivotError> {
    check_no_node(host, signs)?;
    host.unlock().await?;
    if is_staged(host, target).await? != Some(false) {
        return Err(trouble(
            "after the unlock, the target image is still locked or no longer staged",
        ));
    }
    check_no_node(host, signs)?;
    Ok(host.reboot().await?)
}

/// Fails if the machine has become a node, because a node reboots only under a berth (I2). A kubelet that does not wait
/// for the first-boot check may start during the pull or the unlock.
fn check_no_node(host: &Host, signs: &Signs) -> Result<(), PivotError> {
    if is_node(host.root(), signs) {
        return Err(final_trouble("a kubelet or an agent has started meanwhile"));
    }
    Ok(())
}

/// Removes the staged target. Otherwise a later reboot could apply it without a berth, after the machine has become a
/// node.
pub async fn disarm(host: &Host, target: &Target) {
    // Retried: a single failed read must not leave an unlocked target staged.
    let known = read_with_retries(Instant::now() + DISARM_TIMEOUT, async || read_deployments(host).await).await;
    let (storage, staged) = match known {
        Ok(Ok(known)) => (known.storage, known.staged),
        Ok(Err(_)) => return,
        Err(error) => {
            tracing::error!(error, digest = %target.digest, "cannot check whether the next reboot applies the target image");
            return;
        }
    };
    let Some(staged) = staged.filter(|staged| staged.digest.as_ref() == Some(&target.digest)) else {
        return;
    };
    if let Err(error) = host.unstage(&staged).await {
        tracing::warn!(%error, "cannot remove the staged deployment; locking it instead");
        let Some(lock) = storage.ostree_lock() else { return };
        if let Err(error) = host.lock(lock).await {
            tracing::error!(%error, image = staged.image, "cannot lock the staged deployment; the next reboot applies it");
        }
    }
}
