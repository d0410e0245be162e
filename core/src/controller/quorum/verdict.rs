//! Verdict of invariant I11 on a control plane node.

use berth_api::reasons;

reasons! {
    /// Why a control plane node must not be taken down.
    #[derive(PartialOrd, Ord)]
    pub enum Cause {
        /// Another control plane node holds a berth or is offered one.
        OtherAtWork = "OtherControlPlaneNode",
        /// Another control plane node is not Ready, or cordoned.
        OtherUnavailable = "ControlPlaneUnavailable",
        /// The others would not be a majority of the API servers or etcd members.
        NoMajority,
        /// No other API server answers.
        NoOtherServer = "NoOtherAPIServer",
        /// Some API servers have not answered or failed yet.
        NotKnown = "APIServersNotKnown",
        /// The API servers have not been listed yet, so any node may run one.
        NotListed = "APIServersNotListed",
        /// A write of an earlier leader, or one of unknown result, may still open a berth in some pool.
        Unfenced = "Fencing",
    }
}

impl Cause {
    /// Words that follow the node's name.
    pub fn words(self) -> &'static str {
        match self {
            Self::OtherAtWork => "waits until another control plane node is updated",
            Self::OtherUnavailable => "waits until every other control plane node is Ready and schedulable",
            Self::NoMajority => "waits until the other control plane nodes are a majority without it",
            Self::NoOtherServer => "waits until another API server answers /readyz",
            Self::NotKnown => "waits until all API servers have been queried for /readyz",
            Self::NotListed => "waits until the API servers have been listed (EndpointSlices of default/kubernetes)",
            Self::Unfenced => "waits for the new leader to fence the berths",
        }
    }
}

/// Verdict of I11 on a control plane node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why it is offered no berth.
    pub withhold: Option<Cause>,
    /// Why its offer is withdrawn, or its berth asked back while it can still be given back. Only known reasons count,
    /// never missing knowledge.
    pub ask_back: Option<Cause>,
    /// Why it must not continue to another image under a boot that cannot be proven. Berths of others are not a reason:
    /// two stuck nodes would block each other forever (I10).
    pub stay: Option<Cause>,
}

/// Loss while a node of a small control plane is down: with one or two members no majority can remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// The node is the only API server and etcd member.
    Everything,
    /// The node is one of two etcd members; the other cannot write alone.
    Majority,
}

impl Meanwhile {
    /// Returns the loss with one of this many members down; `None` if the rest is a majority.
    pub fn of(members: usize) -> Option<Self> {
        match members {
            1 => Some(Self::Everything),
            2 => Some(Self::Majority),
            _ => None,
        }
    }

    /// Words for the admin.
    pub fn words(self) -> &'static str {
        match self {
            Self::Everything => "the only control plane node: while it is down no API server answers",
            Self::Majority => {
                "one of two control plane nodes: while it is down etcd has no majority, and the API fails"
            }
        }
    }
}
