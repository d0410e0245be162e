//! Parsers of rpm-ostreed's replies, for [`crate::host::parsers`].

use berth_api::node::Progress;

use super::deployments::{self, Entry};
use super::lock::Lock;
use super::tally::Tally;
use super::transaction::{self, Signal};
use crate::host::driver::HostStatus;
use crate::host::root::HostRoot;

pub(in crate::host) fn deployments(entries: &[Entry]) -> Result<HostStatus, String> {
    deployments::parse(entries, Lock::Unlocked)
}

pub(in crate::host) fn progress<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Progress> {
    let mut tally = Tally::default();
    for text in texts {
        tally.add(&Signal::Said(text.to_owned()));
    }
    tally.progress()
}

pub(in crate::host) fn address(address: &str) -> Option<(String, String)> {
    let (address, path) = transaction::under(&HostRoot::new("/host"), address)?;
    Some((address, path.display().to_string()))
}
