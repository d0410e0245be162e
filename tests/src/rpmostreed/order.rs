//! Work of a transaction.

use super::backend::{Backend, Deployment, ProgressEvent, ProgressSender, StageRequest, Undeploy};
use super::reference::Reference;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Order {
    /// `Rebase`: use another reference.
    Rebase {
        refspec: String,
        revision: Option<String>,
        stage: Stage,
    },
    /// `Deploy`: use another digest of the same image.
    Deploy { revision: String, stage: Stage },
    /// `PkgChange`: layer other packages on the same image.
    Packages {
        added: Vec<String>,
        removed: Vec<String>,
        idempotent: bool,
        stage: Stage,
    },
    /// `FinalizeDeployment`: unlock the staged deployment and reboot.
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

/// Options of work that stages a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) lock: bool,
    pub(super) reboot: bool,
    pub(super) newer_only: bool,
}

impl Order {
    /// Title of a transaction that does this work, unless its client sets another title.
    pub(super) fn title(&self) -> &'static str {
        match self {
            Self::Rebase { .. } => "rebase",
            Self::Deploy { .. } => "deploy",
            Self::Packages { added, .. } if !added.is_empty() => "install",
            Self::Packages { .. } => "uninstall",
            Self::Finalize { .. } => "finalize-deployment",
            Self::Cleanup(_) => "cleanup",
            Self::Rollback { .. } => "rollback",
        }
    }

    /// Title before the work begins. Transactions that create a deployment have a general title until then.
    pub(super) fn first_title(&self) -> &'static str {
        match self {
            Self::Finalize { .. } | Self::Cleanup(_) | Self::Rollback { .. } => self.title(),
            _ => "new-deployment",
        }
    }

    /// Does the work; returns true if a reboot follows.
    pub(super) async fn execute(self, backend: &dyn Backend, progress: &ProgressSender) -> Result<bool, String> {
        match self {
            Self::Rebase {
                refspec,
                revision,
                stage,
            } => {
                let merge = merge(backend).await?;
                if refspec == merge.refspec && revision.is_none() {
                    return Err(format!("Old and new refs are equal: {refspec}"));
                }
                let reference = Reference::parse(&refspec, revision.as_deref())?;
                put(backend, progress, reference, merge.packages, stage).await
            }
            Self::Deploy { revision, stage } => {
                let merge = merge(backend).await?;
                if revision == merge.digest {
                    return Ok(unchanged(progress, "No change."));
                }
                let reference = Reference::parse(&merge.refspec, None)?.at(&revision)?;
                put(backend, progress, reference, merge.packages, stage).await
            }
            Self::Packages {
                added,
                removed,
                idempotent,
                stage,
            } => {
                let merge = merge(backend).await?;
                let packages = change(merge.packages.clone(), &added, &removed, idempotent)?;
                if packages == merge.packages {
                    return Ok(unchanged(progress, "No change."));
                }
                let reference = Reference::parse(&merge.refspec, None)?;
                put(backend, progress, reference, packages, stage).await
            }
            Self::Finalize {
                checksum,
                allow_missing,
                allow_unlocked,
            } => finalize(backend, checksum, allow_missing, allow_unlocked).await,
            Self::Cleanup(elements) => cleanup(backend, progress, elements).await,
            Self::Rollback { reboot } => {
                let staged = backend.deployments().await?.iter().any(|d| d.staged);
                if staged {
                    return Err("Staged deployment (remove with cleanup -p)".to_owned());
                }
                backend.roll_back().await?;
                Ok(reboot)
            }
        }
    }
}

fn unchanged(progress: &ProgressSender, words: &str) -> bool {
    // An error means that the receiver is gone.
    let _ = progress.send(ProgressEvent::Message(words.to_owned()));
    false
}

/// Returns the deployment whose origin a new deployment inherits: the first in boot order, whether staged, queued or
/// booted.
async fn merge(backend: &dyn Backend) -> Result<Deployment, String> {
    let first = backend.deployments().await?.into_iter().next();
    first.ok_or_else(|| "No deployments found".to_owned())
}

async fn put(
    backend: &dyn Backend,
    progress: &ProgressSender,
    reference: Reference,
    packages: Vec<String>,
    stage: Stage,
) -> Result<bool, String> {
    if stage.reboot && backend.is_inhibited().await {
        return Err("Reboot blocked by a systemd inhibitor lock".to_owned());
    }
    let wanted = StageRequest {
        reference,
        packages,
        lock: stage.lock,
        newer_only: stage.newer_only,
    };
    backend.stage(wanted, progress.clone()).await?;
    Ok(stage.reboot)
}

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
    backend: &dyn Backend,
    checksum: Option<String>,
    allow_missing: bool,
    allow_unlocked: bool,
) -> Result<bool, String> {
    let all = backend.deployments().await?;
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
    if backend.is_inhibited().await {
        return Err("Reboot blocked by a systemd inhibitor lock".to_owned());
    }
    if !backend.unlock().await? && !allow_unlocked {
        return Err("Staged deployment already unlocked".to_owned());
    }
    Ok(true)
}

async fn cleanup(backend: &dyn Backend, progress: &ProgressSender, elements: Vec<String>) -> Result<bool, String> {
    for element in elements {
        let gone = match element.as_str() {
            "base" | "repomd" => continue,
            "pending-deploy" => backend.undeploy(Undeploy::Pending).await?,
            "rollback-deploy" => backend.undeploy(Undeploy::Rollback).await?,
            other => return Err(format!("Invalid cleanup type: {other}")),
        };
        if !gone {
            unchanged(progress, "Deployments unchanged.");
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
        for (added, removed, idempotent, expected) in [
            (&["git"][..], &["vim"][..], false, Ok("git htop")),
            (&["vim"], &[], false, Err("already requested")),
            (&[], &["git"], false, Err("not currently")),
            (&["vim"], &["git"], true, Ok("htop vim")),
        ] {
            let changed = change(names(&["htop", "vim"]), &names(added), &names(removed), idempotent);
            match (changed, expected) {
                (Ok(packages), Ok(expected)) => assert_eq!(packages.join(" "), expected),
                (Err(words), Err(expected)) => assert!(words.contains(expected), "{words}"),
                (changed, _) => panic!("{changed:?}"),
            }
        }
    }
}
