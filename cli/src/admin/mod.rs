//! Admin commands. For each command except `poll`, a pure function makes a [`Plan`] from a
//! [`Snapshot`](crate::Snapshot): the changes, and sentences that describe them and their effect. [`apply`] makes the
//! changes. Each change includes the UID of its object, so that a re-created object is not changed. A change of a berth
//! or of an image reference also includes the resourceVersion.

mod apply;
mod approve;
mod confirm;
mod dismiss;
mod exclude;
mod hold;
mod holder;
mod pause;
mod plan;
mod poll;
mod release;
mod retry;

pub use apply::{FIELD_MANAGER, apply, would_accept};
pub use approve::{approve, print};
pub use confirm::{Answer, ask};
pub use dismiss::dismiss;
pub use exclude::{exclude, include};
pub use hold::{hold, unhold};
pub use pause::{PauseTarget, pause, resume};
pub use plan::{Change, NoPlan, Plan, in_all_pools};
pub use poll::{found_words, poll};
pub use release::release;
pub use retry::retry;

pub use crate::mark::Mark;
