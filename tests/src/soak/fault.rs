//! Faults of a rollout.

use std::fmt;
use std::time::Duration;

/// Programs whose connection to the API server has a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// All agents and controllers.
    Everybody,
    /// The agent of the node with this number, from 1.
    Agent(usize),
    /// The controller with this number, from 0.
    Controller(usize),
    /// All controllers.
    Controllers,
    /// The controller that leads when the fault starts.
    Leader,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everybody => f.write_str("all programs"),
            Self::Agent(node) => write!(f, "agent of node{node}"),
            Self::Controller(number) => write!(f, "controller {number}"),
            Self::Controllers => f.write_str("controllers"),
            Self::Leader => f.write_str("the leader"),
        }
    }
}

/// Help for a host whose reboot was accepted but never happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rescue {
    /// An admin reboots the host.
    Reboot,
    /// The power of the host is cut.
    PowerCut,
    /// The agent is killed, and the next one requests the reboot again.
    AgentKill,
    /// No help. The agent must notice that the host did not reboot.
    Nothing,
}

/// How a node vanishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vanish {
    /// The host loses power, and the Node is deleted.
    PowerLoss,
    /// Agent and kubelet are stopped, and the Node is deleted.
    Stopped,
}

/// A fault. Nodes are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The agent is killed (SIGKILL) and restarted at once.
    KillAgent(usize),
    /// A second agent runs for a while.
    SecondAgent(usize, Duration),
    /// The host's message bus is restarted.
    RestartBus(usize),
    /// A controller is killed (SIGKILL) and restarted after this time.
    KillController(usize, Duration),
    /// A controller is stopped (SIGTERM) and restarted after this time.
    StopController(usize, Duration),
    /// A controller is frozen (SIGSTOP) for this time.
    FreezeController(usize, Duration),
    /// Connections to the API server are cut and refused for this time.
    Outage(Who, Duration),
    /// Connections to the API server carry no data for this time, then everything at once.
    Stall(Who, Duration),
    /// Requests have the first duration as additional latency. The fault lasts for the second duration.
    Latency(Who, Duration, Duration),
    /// An admin pauses the pool for a while.
    Pause(Duration),
    /// An admin sets `maxUnavailable` to the first value, later to the second value, and finally to the original value.
    Resize(u64, u64, Duration),
    /// An admin cordons the node for a while.
    Cordon(usize, Duration),
    /// An admin sets a label of the Node and changes it several times.
    Label(usize),
    /// An admin deletes the BootcNode.
    DeleteBootcNode(usize),
    /// An admin sets another image, and reverts the change after a while.
    Retarget(Duration),
    /// The next reboot request is accepted but not executed. Help comes after a while.
    LostReboot(usize, Rescue, Duration),
    /// The power of the host is cut.
    PowerCut(usize),
    /// The node vanishes for a while, then comes back with the same name and another UID.
    Vanish(usize, Vanish, Duration),
    /// An admin moves the node to another pool, and back after a while or at the end of the rollout.
    Move(usize, Option<Duration>),
    /// An admin sets an image whose nodes never become Ready, and reverts the change after a while.
    BadImage(Duration),
    /// The next shutdown of the host fails to finalize the staged image.
    FailFinalization(usize),
    /// The controllers' writes of berths are rejected for a while, as by a failing admission webhook.
    RefuseBerths(Duration),
}

/// Declares the kinds of faults, each with its name in statistics and its weight. A kind's probability is its share of
/// the sum of all weights.
macro_rules! kinds {
    ($($kind:ident $name:literal $weight:literal)*) => {
        /// Kinds of faults, for statistics.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $(#[doc = $name] $kind,)*
        }

        /// All kinds with their weights.
        pub(super) const WEIGHTS: &[(Kind, u64)] = &[$((Kind::$kind, $weight)),*];

        impl Kind {
            /// Name of the kind in statistics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }

        impl Fault {
            /// Returns the kind of the fault.
            pub fn kind(&self) -> Kind {
                match self {
                    $(Self::$kind(..) => Kind::$kind,)*
                }
            }
        }
    };
}

kinds! {
    KillAgent "agent killed" 20
    SecondAgent "second agent" 4
    RestartBus "bus restarted" 4
    KillController "controller killed" 7
    StopController "controller stopped" 4
    FreezeController "controller frozen" 4
    Outage "API outage" 8
    Stall "API stall" 5
    Latency "API latency" 8
    Pause "pool paused" 5
    Resize "maxUnavailable edited" 6
    Cordon "node cordoned" 8
    Label "node relabelled" 6
    DeleteBootcNode "BootcNode deleted" 3
    Retarget "image changed and reverted" 3
    LostReboot "reboot lost" 8
    PowerCut "power cut" 4
    Vanish "node vanished and came back" 7
    Move "node moved to another pool and back" 5
    BadImage "bad image and back" 4
    FailFinalization "finalization failed" 4
    RefuseBerths "controllers' berths refused" 4
}

impl Kind {
    /// True if the fault disrupts the host or its turn. A node may have only one such fault in a rollout: after three
    /// turns without the new digest, the digest would correctly count as failed on the node.
    pub(super) fn is_violent(self) -> bool {
        matches!(
            self,
            Self::LostReboot | Self::PowerCut | Self::Vanish | Self::FailFinalization
        )
    }
}

impl Fault {
    /// Returns the affected node, if there is one.
    pub fn node(&self) -> Option<usize> {
        match self {
            Self::KillAgent(node)
            | Self::SecondAgent(node, _)
            | Self::RestartBus(node)
            | Self::Cordon(node, _)
            | Self::Label(node)
            | Self::DeleteBootcNode(node)
            | Self::LostReboot(node, ..)
            | Self::PowerCut(node)
            | Self::Vanish(node, ..)
            | Self::Move(node, _)
            | Self::FailFinalization(node) => Some(*node),
            _ => None,
        }
    }
}

pub(super) fn seconds(time: &Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KillAgent(node) => write!(f, "kill agent of node{node}"),
            Self::SecondAgent(node, lasts) => write!(f, "second agent on node{node} for {}", seconds(lasts)),
            Self::RestartBus(node) => write!(f, "restart bus of node{node}"),
            Self::KillController(number, lasts) => write!(f, "kill controller {number} for {}", seconds(lasts)),
            Self::StopController(number, lasts) => write!(f, "stop controller {number} for {}", seconds(lasts)),
            Self::FreezeController(number, lasts) => write!(f, "freeze controller {number} for {}", seconds(lasts)),
            Self::Outage(who, lasts) => write!(f, "no API server for {who} for {}", seconds(lasts)),
            Self::Stall(who, lasts) => write!(f, "API server stalls for {who} for {}", seconds(lasts)),
            Self::Latency(who, latency, lasts) => {
                let (latency, lasts) = (latency.as_millis(), seconds(lasts));
                write!(f, "{latency} ms latency to the API server for {who} for {lasts}")
            }
            Self::Pause(lasts) => write!(f, "pause for {}", seconds(lasts)),
            Self::Resize(first, second, lasts) => {
                write!(f, "maxUnavailable {first}, then {second}, each for {}", seconds(lasts))
            }
            Self::Cordon(node, lasts) => write!(f, "cordon node{node} for {}", seconds(lasts)),
            Self::Label(node) => write!(f, "relabel node{node}"),
            Self::DeleteBootcNode(node) => write!(f, "delete BootcNode node{node}"),
            Self::Retarget(lasts) => write!(f, "another image for {}", seconds(lasts)),
            Self::LostReboot(node, rescue, after) => {
                let rescue = match rescue {
                    Rescue::Reboot => "rebooted by an admin",
                    Rescue::PowerCut => "power cut",
                    Rescue::AgentKill => "agent killed",
                    Rescue::Nothing => return write!(f, "lose reboot of node{node}"),
                };
                write!(f, "lose reboot of node{node}, {rescue} {} later", seconds(after))
            }
            Self::PowerCut(node) => write!(f, "cut power of node{node}"),
            Self::Move(node, Some(lasts)) => write!(f, "move node{node} to another pool for {}", seconds(lasts)),
            Self::Move(node, None) => write!(f, "move node{node} to another pool for good"),
            Self::BadImage(lasts) => write!(f, "a bad image for {}", seconds(lasts)),
            Self::FailFinalization(node) => write!(f, "finalization fails on node{node}"),
            Self::RefuseBerths(lasts) => write!(f, "controllers' berths are refused for {}", seconds(lasts)),
            Self::Vanish(node, Vanish::PowerLoss, lasts) => {
                write!(f, "node{node} loses power and is deleted for {}", seconds(lasts))
            }
            Self::Vanish(node, Vanish::Stopped, lasts) => {
                write!(f, "node{node} stops and is deleted for {}", seconds(lasts))
            }
        }
    }
}
