//! Pods to drain, as an application's owner would have them.

/// Image of the pods, and how they spread.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Image of the pods.
    pub image: String,
    /// `whenUnsatisfiable` of the spread constraint: `ScheduleAnyway` or `DoNotSchedule`.
    pub uneven: String,
}

impl Default for Workload {
    /// A workload for kubelets that run no containers.
    fn default() -> Self {
        Self {
            image: "registry.test/app:1".to_owned(),
            uneven: "ScheduleAnyway".to_owned(),
        }
    }
}
