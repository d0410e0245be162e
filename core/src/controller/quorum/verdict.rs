//! Whether the control plane can spare a node (invariant I11), and why not.

use berth_api::reasons;

reasons! {
    /// Why a control plane node must not be taken down.
    #[derive(PartialOrd, Ord)]
    pub enum Cause {
        /// Another control plane node holds a berth, or is offered one.
        OtherAtWork = "OtherControlPlaneNode",
        /// Another control plane node is in a worse state: not Ready, or cordoned.
        OtherUnavailable = "ControlPlaneUnavailable",
        /// The other nodes would not be a majority of the API servers or etcd members.
        NoMajority,
        /// No other API server answers.
        NoOtherServer = "NoOtherAPIServer",
        /// Some API servers have neither answered nor timed out yet.
        NotKnown = "APIServersNotKnown",
        /// The API servers have not been listed yet, so any node may run one.
        NotListed = "APIServersNotListed",
        /// A late write may still open a berth for a control plane node: a write of an earlier leader, or a write of
        /// this leader whose result is unknown.
        Unfenced = "Fencing",
    }
}

impl Cause {
    /// Returns a verb phrase that follows the node's name in a message.
    pub fn words(self) -> &'static str {
        match self {
            Self::OtherAtWork => "waits until another control plane node is updated",
            Self::OtherUnavailable => "waits until every other control plane node is Ready and schedulable",
            Self::NoMajority => "waits until enough other control plane nodes are up for a majority without it",
            Self::NoOtherServer => "waits until another API server answers /readyz",
            Self::NotKnown => "waits until all API servers have been queried for /readyz",
            Self::NotListed => "waits until the API servers have been listed (EndpointSlices of default/kubernetes)",
            Self::Unfenced => "waits until the new leading controller has taken over all berths",
        }
    }
}

/// Steps that invariant I11 forbids for a control plane node, each with the cause. All fields are `None` if nothing is
/// forbidden.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why the node must not be offered a berth; `None` if it may be.
    pub withhold: Option<Cause>,
    /// Why the controller withdraws the node's offer, or asks for its uncommitted berth back; `None` if it does
    /// neither. An API server with an unknown state is not a cause.
    pub ask_back: Option<Cause>,
    /// Why a node that is stuck on an unproven boot must not update to another image; `None` if it may. A berth of
    /// another node is not a cause, because two stuck nodes would block each other forever (I10).
    pub stay: Option<Cause>,
}

/// Effect on a control plane of one or two nodes while one of them is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// The node is the only API server and etcd member.
    Everything,
    /// The node is one of two etcd members. The other member cannot write alone.
    Majority,
}

impl Meanwhile {
    /// Returns the effect on a control plane of `members` nodes while one of them is down; `None` if the others are a
    /// majority.
    pub fn of(members: usize) -> Option<Self> {
        match members {
            1 => Some(Self::Everything),
            2 => Some(Self::Majority),
            _ => None,
        }
    }

    /// Describes the effect, as a phrase after the node's name.
    pub fn words(self) -> &'static str {
        match self {
            Self::Everything => "the only control plane node: while it is down, no API server answers",
            Self::Majority => {
                "one of two control plane nodes: while it is down, etcd has no majority, and the API fails"
            }
        }
    }
}
