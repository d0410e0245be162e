//! The work of a transaction.

use super::beneath::{Beneath, Deployment, Tell, Teller, Undeploy, Wanted};
use super::reference::Reference;

/// One transaction's work, as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// `Rebase`: another reference.
    Rebase {
        refspec: String,
        revision: Option<String>,
        stage: Stage,
    },
    /// `Deploy`: another digest of the same image.
    Deploy { revision: String, stage: Stage },
    /// `Upgrade`: whatever the reference leads to now.
    Upgrade,
    /// `PkgChange`: other layered packages on the same image.
    Packages {
        added: Vec<String>,
        removed: Vec<String>,
        idempotent: bool,
        stage: Stage,
    },
    /// `FinalizeDeployment`: unlocks and reboots.
    Finalize {
        checksum: Option<String>,
        allow_missing: bool,
        allow_unlocked: bool,
    },
    /// `Cleanup` of these elements.
    Cleanup(Vec<String>),
    /// `Rollback`.
    Rollback { reboot: bool },
}

/// Options of everything that stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) lock: bool,
    pub(super) reboot: bool,
    pub(super) newer_only: bool,
}

impl Order {
    /// Title of a transaction that does this, unless its client gives one.
    pub(super) fn title(&self) -> &'static str {
        match self {
            Self::Rebase { .. } => "rebase",
            Self::Deploy { .. } => "deploy",
            Self::Upgrade => "upgrade",
            Self::Packages { added, .. } if !added.is_empty() => "install",
            Self::Packages { .. } => "uninstall",
            Self::Finalize { .. } => "finalize-deployment",
            Self::Cleanup(_) => "cleanup",
            Self::Rollback { .. } => "rollback",
        }
    }

    /// Title until the work begins. What makes a deployment does not say before that what it is.
    pub(super) fn first_title(&self) -> &'static str {
        match self {
            Self::Finalize { .. } | Self::Cleanup(_) | Self::Rollback { .. } => self.title(),
            _ => "new-deployment",
        }
    }

    /// Does it. Answers whether a reboot follows.
    pub(super) async fn execute(self, beneath: &dyn Beneath, teller: &Teller) -> Result<bool, String> {
        match self {
            Self::Rebase {
                refspec,
                revision,
                stage,
            } => {
                let merge = merge(beneath).await?;
                if refspec == merge.refspec && revision.is_none() {
                    return Err(format!("Old and new refs are equal: {refspec}"));
                }
                let reference = Reference::parse(&refspec, revision.as_deref())?;
                put(beneath, teller, reference, merge.packages, stage).await
            }
            Self::Deploy { revision, stage } => {
                let merge = merge(beneath).await?;
                if revision == merge.digest {
                    return Ok(unchanged(teller, "No change."));
                }
                let reference = Reference::parse(&merge.refspec, None)?.at(&revision)?;
                put(beneath, teller, reference, merge.packages, stage).await
            }
            // Every reference here is by digest.
            Self::Upgrade => Ok(unchanged(teller, "No upgrade available.")),
            Self::Packages {
                added,
                removed,
                idempotent,
                stage,
            } => {
                let merge = merge(beneath).await?;
                let packages = change(merge.packages.clone(), &added, &removed, idempotent)?;
                if packages == merge.packages {
                    return Ok(unchanged(teller, "No change."));
                }
                let reference = Reference::parse(&merge.refspec, None)?;
                put(beneath, teller, reference, packages, stage).await
            }
            Self::Finalize {
                checksum,
                allow_missing,
                allow_unlocked,
            } => finalize(beneath, checksum, allow_missing, allow_unlocked).await,
            Self::Cleanup(elements) => cleanup(beneath, teller, elements).await,
            Self::Rollback { reboot } => {
                let staged = deployments(beneath).await?.iter().any(|d| d.staged);
                if staged {
                    return Err("Staged deployment (remove with cleanup -p)".to_owned());
                }
                beneath.roll_back().await?;
                Ok(reboot)
            }
        }
    }
}

fn unchanged(teller: &Teller, words: &str) -> bool {
    // An error means that nobody listens.
    let _ = teller.send(Tell::Message(words.to_owned()));
    false
}

async fn deployments(beneath: &dyn Beneath) -> Result<Vec<Deployment>, String> {
    beneath.deployments().await
}

/// The deployment whose origin the next one continues: the first in the boot order, be it staged, queued or running.
async fn merge(beneath: &dyn Beneath) -> Result<Deployment, String> {
    let first = deployments(beneath).await?.into_iter().next();
    first.ok_or_else(|| "No deployments found".to_owned())
}

async fn put(
    beneath: &dyn Beneath,
    teller: &Teller,
    reference: Reference,
    packages: Vec<String>,
    stage: Stage,
) -> Result<bool, String> {
    if stage.reboot && beneath.is_inhibited().await {
        return Err("Reboot blocked by a systemd inhibitor lock".to_owned());
    }
    let wanted = Wanted {
        reference,
        packages,
        lock: stage.lock,
        newer_only: stage.newer_only,
    };
    beneath.stage(wanted, teller.clone()).await?;
    Ok(stage.reboot)
}

/// The packages that are layered after a change.
fn change(
    mut packages: Vec<String>,
    added: &[String],
    removed: &[String],
    idempotent: bool,
) -> Result<Vec<String>, String> {
    for name in removed {
        if !packages.contains(name) && !idempotent {
            return Err(format!("Package/capability '{name}' is not currently requested"));
        }
        packages.retain(|p| p != name);
    }
    for name in added {
        if !packages.contains(name) {
            packages.push(name.clone());
        } else if !idempotent {
            return Err(format!("Package/capability '{name}' is already requested"));
        }
    }
    packages.sort();
    Ok(packages)
}

async fn finalize(
    beneath: &dyn Beneath,
    checksum: Option<String>,
    allow_missing: bool,
    allow_unlocked: bool,
) -> Result<bool, String> {
    let all = deployments(beneath).await?;
    let Some(staged) = all.first().filter(|d| d.staged) else {
        return Err("No pending staged deployment found".to_owned());
    };
    match checksum {
        None if !allow_missing => return Err("Missing expected checksum".to_owned()),
        Some(expected) if expected != staged.digest => {
            let found = &staged.digest;
            return Err(format!("Expected staged base checksum {expected}, but found {found}"));
        }
        _ => {}
    }
    if beneath.is_inhibited().await {
        return Err("Reboot blocked by a systemd inhibitor lock".to_owned());
    }
    if !beneath.unlock().await? && !allow_unlocked {
        return Err("Staged deployment already unlocked".to_owned());
    }
    Ok(true)
}

async fn cleanup(beneath: &dyn Beneath, teller: &Teller, elements: Vec<String>) -> Result<bool, String> {
    for element in elements {
        let gone = match element.as_str() {
            "base" | "repomd" => continue,
            "pending-deploy" => beneath.undeploy(Undeploy::Pending).await?,
            "rollback-deploy" => beneath.undeploy(Undeploy::Rollback).await?,
            other => return Err(format!("Invalid cleanup type: {other}")),
        };
        if !gone {
            unchanged(teller, "Deployments unchanged.");
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn packages_are_added_and_removed() {
        let change = |added: &[&str], removed: &[&str], idempotent| {
            change(names(&["htop", "vim"]), &names(added), &names(removed), idempotent)
        };
        assert_eq!(change(&["git"], &["vim"], false).unwrap(), ["git", "htop"]);
        assert!(change(&["vim"], &[], false).unwrap_err().contains("already requested"));
        assert!(change(&[], &["git"], false).unwrap_err().contains("not currently"));
        assert_eq!(change(&["vim"], &["git"], true).unwrap(), ["htop", "vim"]);
    }
}
