//! Readings of the pool's checks: see [`berth_api::pool::PoolCheck`].

/// Reading of one of the pool's checks. A check of a Node condition has no reading, because the condition is in the
/// Node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReading {
    /// Name of the check.
    pub name: String,
    /// Answer of the API server or of the HTTP server.
    pub answer: CheckAnswer,
}

/// Answer to a check of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckAnswer {
    /// The pods on this node that match the check's selector.
    Pods(Vec<PodReading>),
    /// Status code of the HTTP answer.
    Http(u16),
    /// The HTTP server did not answer: the error message.
    NoHttp(String),
    /// The API server did not answer: the error message.
    Unread(String),
}

/// A pod on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReading {
    /// Namespace and name.
    pub name: String,
    /// True if the pod's condition `Ready` is True.
    pub ready: bool,
    /// True if the pod has ended or is being deleted. The check ignores such a pod.
    pub is_ending: bool,
    /// IDs of the pod's containers.
    pub containers: Vec<String>,
}
