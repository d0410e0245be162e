//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Updates the bootc host it runs on, under a berth.
///
/// The agent reads the BootcNode of its own node, has bootc stage the desired image with finalization locked, and
/// waits until the controller offers it a berth. It then takes the berth, cordons and drains its own node, commits,
/// unlocks the image and reboots. After the boot it proves what runs, uncordons, and gives the berth back. Every
/// step is found again from the objects and the host, so it may be stopped and started at any time.
///
/// It acts under two identities: its own, for the status of its BootcNode and for its berths, and the kubelet's,
/// for cordon and eviction, so that the API server confines it to its own node.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "berth-agent",
    version,
    after_help = "EXIT STATUS\n  0  stopped by SIGTERM or SIGINT\n  1  could not start, or lost something that only a restart brings back; standard error says what\n  2  the command line is wrong"
)]
pub struct Args {
    /// Name of the Node that this agent serves.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: String,
    /// Kubeconfig of the agent's own identity. Without it: the service account of the pod, at the API server that
    /// the kubelet's kubeconfig names.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the kubelet on this host. Files that it names are looked up under --host-root.
    #[arg(long, value_name = "FILE", default_value = "/etc/kubernetes/kubelet.conf")]
    pub kubelet_kubeconfig: PathBuf,
    /// Where the host's file system is seen: / as a service, /host in the pod of the shipped DaemonSet.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// D-Bus address of the host's system bus. Default: its socket under --host-root.
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,
    /// Namespace of the berths.
    #[arg(long, value_name = "NAMESPACE", default_value = berth_api::keys::NAMESPACE)]
    pub namespace: String,
    /// Time between two signs of life in the BootcNode's status, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3600))]
    pub heartbeat: u64,
    /// How log lines look.
    #[arg(long, value_enum, default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,
    /// What is logged: a level, or directives such as info,berth_agent=debug.
    #[arg(long, env = "BERTH_LOG", value_name = "FILTER", default_value = "info,kube_client=off")]
    pub log_level: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}
