//! The change to the target before the kubelet runs: staged and locked as in an update, unlocked, and rebooted into.

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
use super::patiently;
use crate::host::failure::{Failure, Reason};
use crate::host::{Host, HostError, PullState, Terms};

/// Time between two looks at a pull that says nothing.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time within which a reboot that was accepted begins.
const REBOOT_BEGINS: Duration = Duration::from_secs(60);
/// Time within which the host must say what is staged, so that it can be removed.
const DISARM_DEADLINE: Duration = Duration::from_secs(60);

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

fn hopeless(message: impl Into<String>) -> PivotError {
    PivotError {
        is_final: true,
        ..trouble(message)
    }
}

/// The host's deployments; or why it is of no use, in words.
///
/// # Errors
/// When its backend does not answer. That may change.
async fn look(host: &Host) -> Result<Result<Box<Deployments>, String>, HostError> {
    match host.survey(&Terms::default()).await?.os {
        Os::Bootc(known) => Ok(Ok(known)),
        Os::Unusable { reason, message } if matches!(reason, Reason::StatusFailed | Reason::BootcFailed) => {
            Err(HostError::Tool(Failure::new(reason, &message)))
        }
        Os::Unusable { message, .. } => Ok(Err(message)),
        Os::Unknown => Ok(Err("nothing is known of the host".to_owned())),
    }
}

/// Digest that the host runs.
///
/// # Errors
/// When its backend does not answer. That may change.
pub async fn booted(host: &Host) -> Result<Booted, HostError> {
    Ok(match look(host).await? {
        Ok(known) => match known.booted.digest {
            Some(digest) => Booted::Digest(digest),
            None => Booted::Unknown(format!("{} names no digest", known.backend.name.tool())),
        },
        Err(message) => Booted::Unknown(message),
    })
}

/// Stages the target, locked.
///
/// # Errors
/// When it is not there before the deadline; nothing is armed then.
pub async fn stage(host: &Host, image: &ImageRef, target: &Target, give_up: Instant) -> Result<(), PivotError> {
    let desired = DesiredImage {
        reference: image.at(&target.digest).to_string(),
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
        return Err(hopeless(objection.message));
    }
    let lock = staging_lock(host).await?;
    host.start_pull(&desired, lock).await?;
    let mut changes = host.changes();
    let state = loop {
        match host.find_pull(Some(&target.digest)).await? {
            Some(pull) if pull.state != PullState::Running => break pull.state,
            Some(_) if Instant::now() < give_up => {
                let look = give_up.min(Instant::now() + LOOK_EVERY);
                let _ = tokio::time::timeout_at(look, changes.changed()).await;
            }
            Some(_) => {
                host.cancel_pull(&target.digest).await?;
                return Err(trouble("the pull did not end before the deadline"));
            }
            None => return Err(trouble("the pull is gone, and nobody knows how it ended")),
        }
    };
    host.forget_pull(&target.digest).await?;
    if let PullState::Failed { message } = state {
        return Err(trouble(message));
    }
    match is_staged(host, target).await? {
        Some(true) => Ok(()),
        Some(false) => Err(trouble("what was staged is not locked")),
        None => Err(trouble("the pull ended well, and staged something else")),
    }
}

/// Way in which the target is locked while it is staged. A host without ostree's lock is not changed on its first boot.
async fn staging_lock(host: &Host) -> Result<StagingLock, PivotError> {
    let known = look(host).await?.map_err(hopeless)?;
    let lock = known.staging_lock().filter(|lock| lock.ostree().is_some());
    lock.ok_or_else(|| hopeless("hosts with composefs are not changed on their first boot"))
}

/// Says whether the target is staged, and locked.
///
/// # Errors
/// When the host does not answer, or the kubelet would never start under the staged image.
async fn is_staged(host: &Host, target: &Target) -> Result<Option<bool>, PivotError> {
    let known = look(host).await?.map_err(hopeless)?;
    if let Some(why) = known.unit_missing() {
        return Err(hopeless(why));
    }
    let staged = known
        .staged
        .filter(|staged| staged.digest.as_ref() == Some(&target.digest));
    Ok(staged.map(|staged| staged.locked))
}

/// Unlocks the staged target and reboots. Ends only with the process, or when it did not come to the reboot; then nothing is
/// armed, as far as the host lets us.
pub async fn reboot(host: &Host, target: &Target, signs: &Signs) -> PivotError {
    let why = match unlock_and_ask(host, target, signs).await {
        Ok(()) => {
            let begins = Instant::now() + REBOOT_BEGINS;
            loop {
                tokio::time::sleep(Duration::from_millis(500)).await;
                // A bus that is gone for so long is gone for another reason.
                let is_going = host.shutting_down().await.unwrap_or_else(|_| Instant::now() < begins);
                if !is_going && Instant::now() > begins {
                    break trouble("logind accepted the reboot, and none came");
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
        return Err(trouble("after the unlock the target is not what the next boot takes"));
    }
    check_no_node(host, signs)?;
    Ok(host.reboot().await?)
}

/// Refuses to go on where the machine became a node in the course of the pull or the unlock: a node reboots under a berth only
/// (I2). Not every kubelet waits for this check.
fn check_no_node(host: &Host, signs: &Signs) -> Result<(), PivotError> {
    match is_node(host.root(), signs) {
        true => Err(hopeless("a kubelet or an agent has started meanwhile")),
        false => Ok(()),
    }
}

/// Removes what is staged of the target, so that no later reboot of the machine applies it: it will be a node by then.
pub async fn disarm(host: &Host, target: &Target) {
    // Right after an unlock it must not fail for a read that did.
    let known = patiently(Instant::now() + DISARM_DEADLINE, async || look(host).await).await;
    let (storage, staged) = match known {
        Ok(Ok(known)) => (known.storage, known.staged),
        Ok(Err(_)) => return,
        Err(error) => {
            tracing::error!(error, digest = %target.digest, "cannot tell whether the next reboot applies the target");
            return;
        }
    };
    let Some(staged) = staged.filter(|staged| staged.digest.as_ref() == Some(&target.digest)) else {
        return;
    };
    if let Err(error) = host.unstage(&staged).await {
        tracing::warn!(%error, "cannot remove what is staged: locking it");
        let Some(lock) = storage.ostree_lock() else { return };
        if let Err(error) = host.lock(lock).await {
            tracing::error!(%error, image = staged.image, "the next reboot applies what is staged, and cannot be kept from it");
        }
    }
}
