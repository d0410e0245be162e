//! The pool of a BootcNode, and the finding about a BootcNode that cannot be decoded completely.

use berth_api::decode::Decoded;
use berth_api::keys;
use berth_api::node::BootcNode;
use berth_core::finding::{self, Finding, Subject};
use kube::ResourceExt;

/// Returns the pool of a BootcNode: from its spec or, if the spec cannot be decoded, from its label.
pub(crate) fn pool_of(bootc: &Decoded<BootcNode>) -> &str {
    if bootc.spec_error.is_none() {
        return &bootc.spec.pool_name;
    }
    bootc.labels().get(keys::LABEL_POOL).map_or("", String::as_str)
}

pub(crate) fn subject(bootc: &Decoded<BootcNode>) -> Subject {
    Subject::Node(bootc.name_any().as_str().into(), pool_of(bootc).into())
}

/// Returns a finding if the BootcNode cannot be decoded completely.
pub(crate) fn unreadable(bootc: &Decoded<BootcNode>) -> Option<Finding> {
    if let Some(error) = &bootc.spec_error {
        return Some(finding::node::unreadable_spec(subject(bootc), error));
    }
    let error = bootc.status_error.as_ref()?;
    Some(finding::node::unreadable_status(subject(bootc), error))
}
