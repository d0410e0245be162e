//! Verdict of invariant I11 on a node of the control plane.

use berth_api::reasons;

reasons! {
    /// Reason that stands against taking down a node of the control plane.
    #[derive(PartialOrd, Ord)]
    pub enum Cause {
        /// Another one holds a berth, or is offered one.
        OtherAtWork = "OtherControlPlaneNode",
        /// Another one is not Ready, or cordoned.
        OtherUnavailable = "ControlPlaneUnavailable",
        /// The others would be no majority of the API servers or etcd members.
        NoMajority,
        /// No other API server answers.
        NoOtherServer = "NoOtherAPIServer",
        /// Not all API servers have been asked yet.
        NotKnown = "APIServersNotKnown",
        /// The API servers have not been listed yet, so any node may run one.
        NotListed = "APIServersNotListed",
        /// A write of a former leader, or one of unknown fate, may still open a berth of any pool.
        Unfenced = "Fencing",
    }
}

impl Cause {
    /// Words for people, to stand behind the node's name.
    pub fn words(self) -> &'static str {
        match self {
            Self::OtherAtWork => "waits until another control plane node is updated",
            Self::OtherUnavailable => "waits until every other control plane node is Ready and schedulable",
            Self::NoMajority => "waits until the other control plane nodes are a majority without it",
            Self::NoOtherServer => "waits until another API server answers /readyz",
            Self::NotKnown => "waits until the API servers have been asked for /readyz",
            Self::NotListed => "waits until the API servers have been listed (EndpointSlices of default/kubernetes)",
            Self::Unfenced => "waits for the new leader",
        }
    }
}

/// Verdict of I11 on one node of the control plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Why it is offered no berth.
    pub withhold: Option<Cause>,
    /// Why its offer is withdrawn, or its berth asked back as long as it can give that back: only what is known for
    /// certain, never that something is not known yet.
    pub ask_back: Option<Cause>,
    /// Why it does not go on to another image under a boot that cannot be proven. What others hold is no reason: two that
    /// are stuck would keep each other from going on for ever (I10).
    pub stay: Option<Cause>,
}

/// Loss while a node of a small control plane is down: with one or two members no majority can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// The only API server, and the only etcd member.
    Everything,
    /// One of two etcd members, so that the other cannot write.
    Majority,
}

impl Meanwhile {
    /// Loss with one of so many members away; `None` where the rest is a majority.
    pub fn of(members: usize) -> Option<Self> {
        match members {
            1 => Some(Self::Everything),
            2 => Some(Self::Majority),
            _ => None,
        }
    }

    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Everything => "the only control plane node: while it is down no API server answers",
            Self::Majority => {
                "one of two control plane nodes: while it is down etcd has no majority, and the API fails"
            }
        }
    }
}
