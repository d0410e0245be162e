//! The programs that the harness runs: their files and versions.

use std::path::PathBuf;

use anyhow::Result;

use super::cache::cache_dir;
use super::modules::{self, GoModule};

/// A program that the harness runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tool {
    /// The API server's store.
    Etcd,
    /// The API server.
    KubeApiserver,
    /// Controllers for garbage collection, disruption budgets, service account tokens and node lifecycle.
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// The command line client.
    Kubectl,
    /// The kubelet, for real hosts.
    Kubelet,
    /// The image registry (CNCF distribution).
    Registry,
    /// Helm, which installs the charts.
    Helm,
}

impl Tool {
    /// All tools; cheap and frequently used ones first.
    pub const ALL: [Self; 8] = [
        Self::Etcd,
        Self::Registry,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubectl,
        Self::Kubelet,
        Self::KubeScheduler,
        Self::Helm,
    ];

    /// File name of the program.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kubelet => "kubelet",
            Self::Registry => "registry",
            Self::Helm => "helm",
        }
    }

    /// True for the programs of a control plane, whose versions must fit each other.
    pub(super) fn is_of_kubernetes(self) -> bool {
        !matches!(self, Self::Registry | Self::Helm)
    }

    /// Version that is built. A release binary must have the same version.
    pub(super) fn version(self) -> Result<&'static str> {
        match self {
            Self::Etcd => self.module().version("go.etcd.io/etcd/server/v3"),
            Self::Registry => self.module().version("github.com/distribution/distribution/v3"),
            Self::Helm => self.module().version("helm.sh/helm/v4"),
            _ => self.module().version("k8s.io/kubernetes"),
        }
    }

    pub(super) fn module(self) -> &'static GoModule {
        match self {
            Self::Registry => &modules::REGISTRY,
            Self::Helm => &modules::HELM,
            _ => &modules::KUBERNETES,
        }
    }

    /// Path of the tool in the cache; the directory name has the version.
    pub(super) fn cached(self) -> Result<PathBuf> {
        let name = match self {
            Self::Registry | Self::Helm => format!("{}-{}", self.file_name(), self.version()?),
            _ => format!(
                "controlplane-k8s-{}-etcd-{}",
                Self::KubeApiserver.version()?,
                Self::Etcd.version()?
            ),
        };
        Ok(cache_dir()?.join(name).join(self.file_name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        assert_eq!(Tool::Kubelet.version().unwrap(), "1.36.3");
        assert_eq!(Tool::Etcd.version().unwrap(), "3.6.8");
        assert_eq!(Tool::Registry.version().unwrap(), "3.0.0");
        assert_eq!(Tool::Helm.version().unwrap(), "4.3.2");
        assert!(modules::KUBERNETES.version("example.com/none").is_err());
    }
}
