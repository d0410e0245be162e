//! The deployments of a simulated host, as ostree and bootc 1.16 would change them.
//!
//! A pure state machine without time, processes or files, so that its rules can be tested one by one. It is the ground
//! truth of "nothing armed by accident" (I3): only [`Deployments::shut_down`] applies a staged image.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::catalog::digest_of;
use crate::bootc::document::{BootEntry, Host, ImageReference, ImageStatus, Listed, OstreeEntry};

pub(super) const STATEROOT: &str = "default";

/// A deployed image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Reference given to `bootc switch`.
    pub image: String,
    /// Manifest digest.
    pub digest: String,
    /// Version label.
    pub version: String,
    /// Time label.
    pub timestamp: String,
    /// OCI architecture.
    pub architecture: String,
    /// True if staged with an enforced signature policy.
    pub signed: bool,
    /// Names of the packages that rpm-ostree layered on the image.
    pub packages: Vec<String>,
    /// Distinguishes deployments of the same image.
    pub serial: u32,
}

impl Deployment {
    /// Simulated ostree commit of the image, with the length of a real one. Equal images have equal commits.
    pub(super) fn base(&self) -> String {
        self.digest.trim_start_matches("sha256:").chars().rev().collect()
    }

    /// Simulated ostree commit that is checked out: the image's, or one with layered packages.
    pub(super) fn checksum(&self) -> String {
        if self.packages.is_empty() {
            return self.base();
        }
        let layered = digest_of(&format!("{} {}", self.digest, self.packages.join(" ")));
        layered.trim_start_matches("sha256:").to_owned()
    }

    /// True if bootc leaves the deployment to rpm-ostree.
    fn is_layered(&self) -> bool {
        !self.packages.is_empty()
    }

    fn deleted(&self) -> String {
        format!("Deleted deployment {}.{}", self.checksum(), self.serial)
    }

    /// Simulated name of a composefs deployment.
    fn verity(&self) -> String {
        self.checksum().repeat(2)
    }
}

/// A staged deployment and its locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    /// The staged deployment.
    pub deployment: Deployment,
    /// Finalization is locked in the state of the staged deployment, which `bootc status` shows.
    pub locked: bool,
    /// Finalization is locked by a separate file beside the state. bootc ignores this file.
    pub lock_file: bool,
}

impl Staged {
    /// True if a shutdown discards the deployment.
    pub fn is_locked(&self) -> bool {
        self.locked || self.lock_file
    }
}

/// Properties that change the output of `bootc status` besides the deployments.
#[derive(Debug, Clone, Copy, Default)]
pub struct View {
    /// The host was not installed with bootc.
    pub not_bootc: bool,
    /// The deployments are in composefs.
    pub composefs: bool,
    /// The boot loader finds UKIs through boot loader entries.
    pub uki: bool,
    /// bootc reports a queued rollback as not queued, and the other way round.
    pub inverts_rollback: bool,
    /// bootc is older than 1.12 and has no `downloadOnly` and no `softRebootCapable`.
    pub old: bool,
    /// Staged images are capable of a soft reboot.
    pub soft_reboot_capable: bool,
}

/// All deployments of a host.
#[derive(Debug, Clone)]
pub struct Deployments {
    staged: Option<Staged>,
    /// Deployments in boot order: the boot loader starts the first one.
    finalized: Vec<Deployment>,
    booted: usize,
    /// Images whose layers are on the disk: staging them downloads nothing.
    cached: BTreeSet<String>,
    /// Images with a ref in the repository. For these images, the registry and the signature policy are skipped.
    present: BTreeSet<String>,
    finalization_failed: bool,
    /// True if the staged deployment is mounted for a soft reboot.
    next_root: bool,
}

impl Deployments {
    /// Deployments of a host installed with this image.
    pub fn new(booted: Deployment) -> Self {
        Self {
            cached: BTreeSet::from([booted.digest.clone()]),
            present: BTreeSet::from([booted.digest.clone()]),
            staged: None,
            finalized: vec![booted],
            booted: 0,
            finalization_failed: false,
            next_root: false,
        }
    }

    /// True if a deployment is mounted for a soft reboot.
    pub fn has_next_root(&self) -> bool {
        self.next_root
    }

    /// Runs `ostree admin prepare-soft-reboot 0`.
    pub fn prepare_soft_reboot(&mut self) -> Result<(), String> {
        if !self.is_armed() {
            return Err("Cannot set soft-reboot target: the deployment is locked or missing".to_owned());
        }
        self.next_root = true;
        Ok(())
    }

    /// Runs `ostree admin prepare-soft-reboot --reset`.
    pub fn reset_soft_reboot(&mut self) {
        self.next_root = false;
    }

    /// Performs the boot of a soft reboot, after the shutdown. Boots the deployment that is mounted for it, or else
    /// keeps the old root.
    pub fn soft_boot(&mut self) {
        if std::mem::take(&mut self.next_root) {
            self.booted = 0;
        }
    }

    /// The booted deployment; in practice never `None`.
    pub fn booted(&self) -> Option<&Deployment> {
        self.finalized.get(self.booted)
    }

    /// The staged deployment.
    pub fn staged(&self) -> Option<&Staged> {
        self.staged.as_ref()
    }

    /// True if a shutdown now would apply the staged deployment.
    pub fn is_armed(&self) -> bool {
        self.staged.as_ref().is_some_and(|s| !s.is_locked())
    }

    /// The first finalized deployment that is not booted.
    pub fn rollback(&self) -> Option<&Deployment> {
        self.finalized.get(usize::from(self.booted == 0))
    }

    /// True if the rollback deployment boots next.
    pub fn rollback_queued(&self) -> bool {
        self.booted > 0
    }

    /// True if the previous shutdown failed to finalize the staged deployment.
    pub fn finalization_failed(&self) -> bool {
        self.finalization_failed
    }

    /// True if a deployment of this digest is finalized.
    pub fn is_finalized(&self, digest: &str) -> bool {
        self.finalized.iter().any(|d| d.digest == digest)
    }

    /// True if staging this digest downloads nothing.
    pub fn is_cached(&self, digest: &str) -> bool {
        self.cached.contains(digest)
    }

    /// True if staging this digest uses neither the registry nor the signature policy.
    pub fn is_present(&self, digest: &str) -> bool {
        self.present.contains(digest)
    }

    /// Digests of the images with a ref in the repository.
    pub fn present(&self) -> impl Iterator<Item = &String> {
        self.present.iter()
    }

    /// Removes the ref of an image; its layers and deployments stay.
    pub fn forget_image(&mut self, digest: &str) {
        self.present.remove(digest);
    }

    /// Finalized deployments in boot order, and whether each is booted.
    pub fn finalized(&self) -> impl Iterator<Item = (&Deployment, bool)> {
        self.finalized.iter().enumerate().map(|(at, d)| (d, at == self.booted))
    }

    /// Adds packages to the booted deployment, as if it had always had them.
    pub fn layer(&mut self, packages: &[&str]) {
        if let Some(booted) = self.finalized.get_mut(self.booted) {
            booted.packages = packages.iter().map(|p| (*p).to_owned()).collect();
        }
    }

    /// Unlocks the staged deployment, like `FinalizeDeployment`; `false` if it was not locked.
    pub fn take_locks(&mut self) -> bool {
        let Some(staged) = &mut self.staged else { return false };
        let was_locked = staged.is_locked();
        (staged.locked, staged.lock_file) = (false, false);
        was_locked
    }

    /// Removes the lock file but no other lock.
    pub fn remove_lock_file(&mut self) {
        if let Some(staged) = &mut self.staged {
            staged.lock_file = false;
        }
    }

    /// Removes the staged deployment and the deployments before the booted one, like `Cleanup` with `pending-deploy`.
    /// Returns `false` if it removed nothing.
    pub fn remove_pending(&mut self) -> bool {
        let had_staged = self.staged.take().is_some();
        let queued: Vec<_> = self.finalized.drain(..self.booted).collect();
        self.booted = 0;
        for deployment in &queued {
            self.cached.remove(&deployment.digest);
        }
        had_staged || !queued.is_empty()
    }

    /// Stages an image, and replaces an already staged image. As with the real bootc, a shutdown applies the new image
    /// unless `locked` is true.
    pub fn stage(&mut self, mut deployment: Deployment, locked: bool) {
        let twins = self.finalized.iter().filter(|d| d.digest == deployment.digest);
        deployment.serial = twins.map(|d| d.serial + 1).max().unwrap_or(0);
        self.staged = Some(Staged {
            deployment,
            locked,
            lock_file: false,
        });
        // Staging ends with a cleanup that removes unused layers.
        let used = self.staged.iter().map(|s| &s.deployment).chain(&self.finalized);
        self.cached = used.map(|d| d.digest.clone()).collect();
        self.present.retain(|digest| self.cached.contains(digest));
        self.present
            .extend(self.staged.iter().map(|s| s.deployment.digest.clone()));
    }

    /// Runs `ostree admin lock-finalization`; returns its output.
    pub fn lock(&mut self) -> Result<&'static str, String> {
        let staged = self.staged.as_mut().ok_or("No staged deployment")?;
        Ok(if std::mem::replace(&mut staged.locked, true) {
            "Staged deployment is already finalization locked"
        } else {
            staged.lock_file = true;
            "Staged deployment is now finalization locked"
        })
    }

    /// Runs `ostree admin lock-finalization --unlock`; returns its output.
    pub fn unlock(&mut self) -> Result<&'static str, String> {
        let staged = self.staged.as_mut().ok_or("No staged deployment")?;
        Ok(if std::mem::replace(&mut staged.locked, false) {
            staged.lock_file = false;
            "Staged deployment is now queued to apply on shutdown"
        } else {
            "Staged deployment is already prepared for finalization"
        })
    }

    /// Creates the lock file of the staged deployment as a hard link to its state file.
    pub fn link_lock(&mut self) -> Result<(), String> {
        let staged = self.staged.as_mut().ok_or("No such file or directory")?;
        if std::mem::replace(&mut staged.lock_file, true) {
            return Err("File exists".to_owned());
        }
        Ok(())
    }

    /// Runs `bootc delete-deployment VERITY` on composefs. Only the staged deployment can be deleted here.
    pub fn delete(&mut self, verity: &str) -> Result<(), String> {
        if self.booted().is_some_and(|d| d.verity() == verity) {
            return Err("Cannot delete currently booted deployment".to_owned());
        }
        match self.staged.take_if(|s| s.deployment.verity() == verity) {
            Some(_) => Ok(()),
            None => Err(format!("Deployment {verity} not found")),
        }
    }

    /// Runs `ostree admin undeploy INDEX`; a staged deployment has index 0 and shifts the others by one.
    pub fn undeploy(&mut self, index: usize) -> Result<String, String> {
        if let Some(staged) = self.staged.take_if(|_| index == 0) {
            return Ok(staged.deployment.deleted());
        }
        let position = index - usize::from(self.staged.is_some());
        if position == self.booted {
            return Err(format!("Cannot undeploy currently booted deployment {index}"));
        }
        if position >= self.finalized.len() {
            return Err(format!(
                "Out of range deployment index {index}, expected < {}",
                self.finalized.len()
            ));
        }
        let deployment = self.finalized.remove(position);
        self.booted -= usize::from(position < self.booted);
        self.cached.remove(&deployment.digest);
        self.present.remove(&deployment.digest);
        Ok(deployment.deleted())
    }

    /// Swaps the first two deployments in the boot order, and discards the staged deployment. A second call restores
    /// the order.
    pub fn toggle_rollback(&mut self) -> Result<(), String> {
        if self.finalized.len() < 2 {
            return Err("No rollback available".to_owned());
        }
        let queued = self.rollback_queued();
        self.finalized.swap(0, 1);
        self.booted = usize::from(!queued);
        self.staged = None;
        Ok(())
    }

    /// An orderly shutdown. An unlocked staged deployment becomes the first in the boot order; a locked deployment is
    /// discarded.
    ///
    /// If `finalization_works` is false, an unlocked deployment is discarded as well, and the next boot reports the
    /// failure.
    pub fn shut_down(&mut self, finalization_works: bool) {
        let armed = self.staged.take().filter(|s| !s.is_locked());
        self.finalization_failed = false;
        let Some(staged) = armed else { return };
        if !finalization_works {
            self.finalization_failed = true;
            return;
        }
        // Only the booted deployment is kept besides the new one.
        let old = self.booted().cloned();
        self.finalized = std::iter::once(staged.deployment).chain(old).collect();
        // The old deployment stays the booted one until the boot; it is last now.
        self.booted = self.finalized.len() - 1;
    }

    /// A power cut: the staged deployment in `/run` is lost.
    pub fn cut_power(&mut self) {
        self.staged = None;
        self.finalization_failed = false;
    }

    /// The boot loader starts the first deployment whose boots do not hang, or else the last one. Returns the number of
    /// deployments that hang. They stay first in the boot order.
    pub fn boot(&mut self, hanging: &BTreeSet<String>) -> usize {
        self.next_root = false;
        let works = self.finalized.iter().position(|d| !hanging.contains(&d.digest));
        self.booted = works.unwrap_or(self.finalized.len() - 1);
        self.booted
    }

    /// The document of `bootc status`.
    pub fn host(&self, view: View) -> Host {
        if view.not_bootc {
            return Host::null();
        }
        let mut list = vec![];
        if let Some(staged) = &self.staged {
            list.push(Listed {
                booted: false,
                staged: true,
                entry: BootEntry {
                    soft_reboot_capable: view.soft_reboot_capable,
                    ..entry(&staged.deployment, staged.locked, view)
                },
            });
        }
        for (deployment, booted) in self.finalized() {
            list.push(Listed {
                booted,
                staged: false,
                entry: entry(deployment, false, view),
            });
        }
        let mut host = Host::of(list);
        host.status.kind = host.status.kind.filter(|_| !view.composefs);
        if view.inverts_rollback {
            host.invert_rollback();
        }
        host
    }

    /// Output of `ostree admin status`.
    pub fn listed(&self) -> String {
        let mut lines = vec![];
        if let Some(staged) = &self.staged {
            lines.push(line(' ', &staged.deployment, " (staged)"));
        }
        for (at, deployment) in self.finalized.iter().enumerate() {
            let (mark, is) = match at.cmp(&self.booted) {
                Ordering::Less => (' ', " (pending)"),
                Ordering::Equal => ('*', ""),
                Ordering::Greater => (' ', " (rollback)"),
            };
            lines.push(line(mark, deployment, is));
        }
        lines.join("\n")
    }

    /// Output of `bootc status --format=json`.
    pub fn status(&self, view: View) -> Value {
        let mut host = json!(self.host(view));
        for slot in ["booted", "staged", "rollback"] {
            if let Some(entry) = host["status"][slot].as_object_mut().filter(|_| view.old) {
                entry.remove("softRebootCapable");
                entry.remove("downloadOnly");
            }
        }
        host
    }
}

fn line(mark: char, deployment: &Deployment, is: &str) -> String {
    let (checksum, serial) = (deployment.checksum(), deployment.serial);
    format!(
        "{mark} {STATEROOT} {checksum}.{serial}{is}\n    Version: {}",
        deployment.version
    )
}

fn entry(deployment: &Deployment, locked: bool, view: View) -> BootEntry {
    let image = ImageStatus {
        architecture: deployment.architecture.clone(),
        image: ImageReference::registry(&deployment.image, deployment.signed),
        image_digest: deployment.digest.clone(),
        timestamp: Some(deployment.timestamp.clone()),
        version: Some(deployment.version.clone()),
    };
    let ostree = OstreeEntry {
        checksum: deployment.checksum(),
        deploy_serial: deployment.serial,
        stateroot: STATEROOT.to_owned(),
    };
    let composefs = json!({
        "verity": deployment.verity(), "bootType": if view.uki { "Uki" } else { "Bls" }, "bootloader": "systemd", "bootDigest": null,
        "missingVerityAllowed": false,
    });
    BootEntry {
        cached_update: None,
        composefs: view.composefs.then_some(composefs),
        download_only: locked,
        image: (!deployment.is_layered()).then_some(image),
        incompatible: deployment.is_layered(),
        ostree: (!view.composefs).then_some(ostree),
        pinned: false,
        soft_reboot_capable: false,
        store: (!view.composefs).then_some("ostreeContainer"),
    }
}

#[cfg(test)]
mod tests;
