//! Decisions of the controller, for all pools.
//!
//! A module imports only from modules that are earlier in this list:
//!
//! - [`usage`], [`gate`], [`servers`] and [`unwritable`]: types that all other modules share.
//! - [`view`] and [`snapshot`]: the watched objects. [`proof`], [`overdue`], [`offers`], [`soaks`],
//!   [`staging_permits`], [`implausible`], [`turns`], [`troubles`] and [`stagings`] are derived from them.
//! - [`membership`], [`occupied`], [`gates`] and [`quorum`]: members, holders, and reasons that keep berths closed.
//! - [`plan`]: the writes to the berths of one pool. [`ledger`] counts its offers. [`forecast`] and [`explain`] run it
//!   ahead of time.
//! - [`pool`], [`publish`] and [`round`]: one pool, the specs of the BootcNodes, and the plans of all pools.
//! - [`installation`]: objects of Berth that an API server has.
//! - [`image`], [`history`], [`aggregate`], [`fleet`], [`waiting`], [`silence`], [`statuses`] and
//!   [`gauges`]: status and metrics.

pub mod aggregate;
pub mod explain;
pub mod fleet;
pub mod forecast;
pub mod gate;
pub mod gates;
pub mod gauges;
pub mod history;
pub mod image;
pub mod implausible;
pub mod installation;
pub mod ledger;
pub mod membership;
pub mod occupied;
pub mod offers;
pub mod overdue;
pub mod plan;
pub mod pool;
pub mod proof;
pub mod publish;
pub mod quorum;
mod registry_guard;
pub mod round;
pub mod servers;
pub mod silence;
pub mod snapshot;
pub mod soaks;
pub mod staging_permits;
pub mod stagings;
pub mod statuses;
mod throttle;
pub mod time_left;
pub mod troubles;
pub mod turns;
pub mod unreadable;
pub mod unwritable;
pub mod usage;
pub mod view;
pub mod waiting;
