//! Input for a pool's status.

use std::time::Duration;

use berth_api::NodeName;
use berth_api::berth::Holding;
use berth_api::boot_image::{BootImagePolicy, BootImageStatus};
use berth_api::membership::Conflict;
use berth_api::platform::Platform;
use berth_api::pool::{BootcNodePoolSpec, BootcNodePoolStatus};

use crate::controller::gates::Gates;
use crate::controller::image::{self, Answers};
use crate::controller::implausible::Implausible;
use crate::controller::plan::Plan;
use crate::controller::unwritable::Unwritable;
use crate::controller::view::{BootcNodeView, NodeView};

/// Input about one member.
#[derive(Debug)]
pub struct MemberView<'a> {
    /// Node of the member.
    pub node: &'a NodeView,
    /// BootcNode of the member, if there is one.
    pub host: Option<&'a BootcNodeView>,
    /// Berth that the member holds.
    pub holding: Option<&'a Holding>,
    /// True if the member holds a berth and its agent has been silent for too long, for example after a failed reboot.
    pub overdue: bool,
    /// True if the member's agent reported recently.
    pub heard: bool,
    /// Set if the member's reports cannot be true.
    pub implausible: Option<&'a Implausible>,
}

impl<'a> MemberView<'a> {
    pub(super) fn platform(&self) -> Platform<'a> {
        self.node.platform(self.host)
    }
}

/// Registry answers about a pool's image.
#[derive(Debug)]
pub struct Polled<'a> {
    /// The answers.
    pub answers: &'a Answers,
    /// True if the controller polls the image's tag.
    pub polled: bool,
    /// Time since the image in `status.available` was first seen, by this or an earlier leader.
    pub available_seen: Duration,
    /// Last poll request that the controller has served: a value of the pool's annotation for polls.
    pub poll_request: Option<String>,
}

/// Input about a pool's boot image, besides the members.
#[derive(Debug, Clone, Copy)]
pub struct BootImageInputs<'a> {
    /// `spec.bootImage`
    pub policy: &'a BootImagePolicy,
    /// Current `status.bootImage`.
    pub before: Option<&'a BootImageStatus>,
    /// Excluded nodes that would be members otherwise. Their earlier reports do not count either.
    pub excluded: &'a [&'a NodeName],
}

/// Input for a pool's status.
#[derive(Debug)]
pub struct PoolStatusFacts<'a> {
    /// Generation of the pool's spec.
    pub generation: Option<i64>,
    /// The pool's spec.
    pub spec: &'a BootcNodePoolSpec,
    /// Current status.
    pub old: &'a BootcNodePoolStatus,
    /// Name of the pool.
    pub pool: &'a str,
    /// Why the image reference is not allowed; `None` if it is allowed.
    pub refused: Option<&'a str>,
    /// Registry answers about the image.
    pub polled: Polled<'a>,
    /// Gates of the pool; `None` if this pass did not evaluate them.
    pub gates: Option<&'a Gates>,
    /// Excluded nodes that would be members otherwise.
    pub excluded: &'a [&'a NodeName],
    /// True if the pool is being deleted.
    pub deleting: bool,
    /// Error in the pool's node selector; `None` if the selector is valid.
    pub bad_selector: Option<&'a str>,
    /// The members.
    pub members: &'a [MemberView<'a>],
    /// Nodes that hold a berth of the pool but are no longer members.
    pub away: &'a [MemberView<'a>],
    /// Nodes that both this pool and another pool select.
    pub conflicts: Vec<&'a Conflict>,
    /// Plan of the pool's berths.
    pub plan: &'a Plan,
    /// A message for each Lease of the pool that cannot be read.
    pub unreadable: Vec<&'a str>,
    /// Leases of the pool that cannot be written.
    pub unwritable: Vec<&'a Unwritable>,
}

impl<'a> PoolStatusFacts<'a> {
    pub(super) fn boot_image(&self) -> BootImageInputs<'a> {
        BootImageInputs {
            policy: self.spec.boot_image(),
            before: self.old.boot_image.as_ref(),
            excluded: self.excluded,
        }
    }

    pub(super) fn image(&self) -> image::ImageFacts<'a> {
        image::ImageFacts {
            reference: self.spec.image_ref(),
            minimum_age: self.spec.minimum_age(),
            target: self.old.target.as_ref(),
            available: self.old.available.as_ref(),
            seen: self.polled.available_seen,
            answers: self.polled.answers,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MemberState {
    Updated,
    Rebooting,
    Draining,
    Staged,
    Staging,
    Pending,
}
