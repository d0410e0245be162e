//! Pods to drain, as a tenant of the cluster would have them.

/// Image of a tenant's pods, and the rule by which they spread.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Their image.
    pub image: String,
    /// Rule for a pod whose place would not be even: `ScheduleAnyway`, or `DoNotSchedule`.
    pub uneven: String,
}

impl Default for Workload {
    /// Workload for kubelets that run nothing.
    fn default() -> Self {
        Self {
            image: "registry.test/app:1".to_owned(),
            uneven: "ScheduleAnyway".to_owned(),
        }
    }
}
