//! Which node's identity sent a request.

use crate::audit::Record;

/// A node's identity that sent a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender<'a> {
    /// The agent's token, bound to this node.
    Agent(&'a str),
    /// The kubelet's certificate of this node.
    Kubelet(&'a str),
}

impl<'a> Sender<'a> {
    pub(crate) fn node(self) -> &'a str {
        match self {
            Self::Agent(node) | Self::Kubelet(node) => node,
        }
    }
}

/// Returns the node's identity that sent a request; `None` if it was sent by another user. Other service accounts'
/// tokens may name a node too.
pub(crate) fn sender(record: &Record) -> Option<Sender<'_>> {
    if let Some(node) = record.user.strip_prefix("system:node:") {
        return Some(Sender::Kubelet(node));
    }
    let is_agent = record.user.ends_with(":berth-agent");
    record.node_claim.as_deref().filter(|_| is_agent).map(Sender::Agent)
}
