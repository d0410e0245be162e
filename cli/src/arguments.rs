//! The command line of `kubectl berth`. It lies in the library so that tests can hold the documentation to it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Shows what the pools of bootc nodes are doing.
///
/// A BootcNodePool says which OS image its nodes should run. This program shows how far each pool and each node
/// is, what a node waits for, and what would happen before it happens. It only reads.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-berth",
    bin_name = "kubectl berth",
    version,
    disable_help_subcommand = true,
    after_long_help = "\
EXAMPLES
  All pools, and where each node is:
      kubectl berth status

  What a change of the pool workers would do, and what blocks it:
      kubectl berth status workers --preview

  The table again every two seconds:
      watch -n 2 kubectl berth status

FILES
  ~/.kube/config
      Used unless --kubeconfig or the variable KUBECONFIG names another. Inside a pod
      without any of these: the pod's service account.

EXIT STATUS
  0  Done.
  1  The cluster could not be read; standard error says why.
  2  The command line is wrong.

SEE ALSO
  kubectl get bootcnodepools, kubectl get bootcnodes, kubectl get leases -n berth-system"
)]
pub struct Arguments {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster.
#[derive(Debug, Args)]
pub struct Cluster {
    /// File with the cluster's address and your credentials.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of that file; its current one if not given.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace that Berth is installed in.
    #[arg(long, global = true, value_name = "NAME", default_value = berth_api::keys::NAMESPACE)]
    pub namespace: String,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what pools and nodes are doing.
    ///
    /// For each pool: its image and what that is resolved to, how many nodes run it, who holds its berths, what it
    /// waits for since when, and the conditions that need a look. For each node: its phase, the version that it
    /// booted, the version that it should run, since when it is in that phase, how far its pull is, and a message:
    /// what failed and when it is tried again, which pod holds up the drain, why nothing happens, or how its last
    /// turn ended.
    ///
    /// Versions are the images' version labels; an image without one shows the first digits of its digest, and two
    /// images of the same version show both.
    #[command(long_about)]
    Status(Status),
    /// Print the version of this program and of the API that it reads.
    Version,
}

/// What to show.
#[derive(Debug, Args)]
pub struct Status {
    /// Show this pool only.
    pub pool: Option<String>,
    /// Show what would happen instead: which nodes would go, to what, in which order, and what blocks.
    ///
    /// Names what blocks a whole pool (it is paused, its image is not resolved, nodes that are NotReady, cordoned
    /// or at work use up its capacity) and what blocks one node (two pools select it, it has not staged the image,
    /// the digest failed there before, its agent is silent). A pool that is paused when its image is changed can
    /// be looked at like this, with everything staged, before anything reboots.
    #[arg(long)]
    pub preview: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people, as wide as the terminal.
    Table,
    /// For programs: the same facts as JSON.
    Json,
}
