//! The command line of `kubectl berth`. A part of the library, so that tests can compare the documentation with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Shows the state of the pools of bootc nodes, and lets an admin decide when a node does not come back.
///
/// A BootcNodePool names the OS image that its nodes should run. This program shows the progress of each pool and each
/// node, what a node waits for, and what would happen before it happens. status, node, timeline and history only read. poll asks the controller
/// to look at a registry. Each of the other commands changes one thing: it says what it will do and what that means, and then asks.
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

  The same in the words of oc adm upgrade status:
      kubectl berth status --insights

  One node: what it is doing and why, what it went through, what to do:
      kubectl berth node worker-3

  Who was in which phase when, and as a picture for a report:
      kubectl berth timeline workers
      kubectl berth timeline workers --svg rollout.svg

  What the pool workers ran before, and one of its nodes:
      kubectl berth history workers
      kubectl berth history --node worker-3

  The table again every two seconds:
      watch -n 2 kubectl berth status

  A node is lost, and its pool shall go on without it; and back again:
      kubectl berth exclude worker-3
      kubectl berth include worker-3

  A node is up, but runs an image that its agent cannot prove, and keeps its berth:
      kubectl berth release worker-3

  The cause of a failed update is mended:
      kubectl berth retry workers

  A tag was moved, and shall be looked at now; and, where the pool is pinned, adopted:
      kubectl berth poll workers
      kubectl berth approve workers

  All pools are to stop at once (BootcFleet is the switch; paused: false lets them go on):
      kubectl patch bootcfleet cluster --type=merge -p '{\"spec\":{\"paused\":true}}'
  If there is no BootcFleet yet:
      kubectl create -f manifests/samples/fleet-paused.yaml

FILES
  ~/.kube/config
      Used unless --kubeconfig or the variable KUBECONFIG names another. Inside a pod
      without any of these: the pod's service account.

ENVIRONMENT
  HTTPS_PROXY, NO_PROXY
      The proxy to the API server, and hosts that are reached without one, unless the
      kubeconfig names a proxy.

EXIT STATUS
  0  Done, or there was nothing to do, or --dry-run has said what would be done.
  1  The cluster could not be read, or refused a change, or a registry did not answer,
     or approve --print has nothing to print; standard error says why.
  2  The command line is wrong, or --yes is missing where nobody can be asked.
  3  You did not say yes; nothing was changed.

SEE ALSO
  kubectl get bootcnodepools, kubectl get bootcnodes, kubectl get leases -n berth-system"
)]
pub struct Arguments {
    /// Cluster to talk to.
    #[command(flatten)]
    pub cluster: Cluster,
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Cluster to talk to.
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

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the state of pools and nodes.
    ///
    /// For each pool: its image and the digest of it, how many nodes run it, who holds its berths, what it waits for
    /// and since when, and the conditions that need a look. For each node: its phase and since when, the booted and the
    /// desired version, the progress of its pull, and a message: a failure and the time of the next try, the pod that
    /// blocks the drain, the reason for which nothing happens, or the outcome of its last turn.
    ///
    /// Versions are the images' version labels; an image without one shows the first digits of its digest, and two
    /// images of the same version show both.
    #[command(long_about)]
    Status(Status),
    /// Tell the story of one node: what it is doing, why, what it went through, and what to do.
    ///
    /// Shows the node's phase and images, its berth, the conditions that say why it does not go on, the pods that block its
    /// drain, the time of the next try; the chapters of its newest update, and of the last one before that which went as far
    /// as a reboot; its last turns with a berth; and what a person can do. Times are of the node's own clock.
    #[command(long_about)]
    Node(NodeStory),
    /// Draw who was in which phase when, in the newest rollout of a pool.
    ///
    /// One row for each node, in the order in which they went. A column of the terminal shows the last chapter in it, so that
    /// a short one is not lost. Times are of each node's own clock.
    #[command(long_about)]
    Timeline(Timeline),
    /// Show what a pool ran before, or one node.
    ///
    /// Lists the images that nodes were deployed to, the newest first: version, how many nodes, when the last one was
    /// proven, and the digest, which the pool's image.ref takes behind an @ to go back. A pool keeps historyLimit of them
    /// (3), a node the last 3. An image "found there" is one that nodes ran when they joined.
    #[command(long_about)]
    History(History),
    /// Take a node out of its pool, so that the others go on without it.
    ///
    /// Puts the label berth.dev/exclude on the Node. It is then no member of any pool and is not counted: whether it
    /// is Ready or not, it uses up no capacity. This is the word for a node that is lost. A berth that it holds is
    /// closed by the controller when the Node is NotReady; when the Node is Ready, its own agent gives back. An update
    /// that it had committed and never proven counts as a failure of that image. Nothing is done to the host.
    #[command(long_about)]
    Exclude(Exclude),
    /// Let an excluded node be a member of its pool again.
    ///
    /// Takes the label berth.dev/exclude off the Node.
    #[command(long_about)]
    Include(OfNode),
    /// Close the berth of a node that is up, but cannot be proven.
    ///
    /// A node that came back with a third image, neither its target nor the one that it ran before, keeps its berth for
    /// ever, since nobody can say that it is well. You can: look at the host first. The berth is closed as
    /// closed:admin, the agent uncordons the node, and an update that was committed and never proven counts as a
    /// failure of that image. For a node that is NotReady, exclude is the right command.
    #[command(long_about)]
    Release(OfNode),
    /// Try again the images that have failed in a pool.
    ///
    /// Sets rollout.retryToken of the pool to a new value. Nodes then try the images that failed on them once more, and
    /// a rollout that was halted goes on. Where the pool is applied from a repository, write a new token there instead:
    /// the next apply would take this one back.
    #[command(long_about)]
    Retry(Retry),
    /// Have the tag of a pool's image looked at now.
    ///
    /// Sets the annotation berth.dev/poll-requested-at of the pool, waits until the controller has asked the registry, and
    /// prints what it found. A tag that is followed and has moved is adopted, once image.minimumAge allows it. When the
    /// registry does not answer, the pool keeps its image, and the exit status is 1.
    #[command(long_about)]
    Poll(Poll),
    /// Adopt the image that the tag of a pinned pool points at.
    ///
    /// A pool whose image.ref has a tag and a digest stays at the digest; status.available shows what the tag points at
    /// meanwhile. This writes that digest into image.ref, unless the pool or what is available has changed since it was
    /// shown to you. Where the pool is applied from a repository, use --print and put the result there: the next apply
    /// would take this back.
    #[command(long_about)]
    Approve(Approve),
    /// Print the version of this program and of the API that it reads.
    Version,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Show this pool only.
    pub pool: Option<String>,
    /// Show what would happen instead: which nodes would go, to what, in which order, and what blocks.
    ///
    /// Names what blocks a whole pool (it is paused, its image is not resolved, nodes that are NotReady, cordoned
    /// or at work use up its capacity) and what blocks one node (two pools select it, it has not staged the image,
    /// the digest failed there before, its agent is silent). A pool that is paused when its image is changed can
    /// be looked at like this, with everything staged, before anything reboots. The order is the controller's own plan,
    /// made from the same objects; what it takes for granted, and what only the controller knows, is said above it.
    #[arg(long)]
    pub preview: bool,
    /// Show instead how each pool and node fares, in the words and columns of oc adm upgrade status.
    ///
    /// Assessments: Degraded, Unavailable, Progressing, Excluded (held back by a pause), Outdated, Completed. EST is the
    /// time to go by what was measured in the pool lately: ? where nobody can tell. Ten nodes of each pool are shown, and
    /// those that need a look; --details=nodes shows all.
    #[arg(long, conflicts_with = "preview")]
    pub insights: bool,
    /// Amount to show with --insights.
    #[arg(long, value_enum, value_name = "WHAT", requires = "insights", default_value_t = Details::None)]
    pub details: Details,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Amount of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Details {
    /// Ten nodes of each pool, and those that need a look.
    None,
    /// All nodes.
    Nodes,
}

/// Arguments of `node`.
#[derive(Debug, Args)]
pub struct NodeStory {
    /// Name of the node.
    pub node: String,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `timeline`.
#[derive(Debug, Args)]
pub struct Timeline {
    /// Name of the pool.
    pub pool: String,
    /// Write a picture to this file instead.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
#[group(required = true)]
pub struct History {
    /// Name of the pool.
    pub pool: Option<String>,
    /// Show what this node ran instead.
    #[arg(long, value_name = "NAME", conflicts_with = "pool")]
    pub node: Option<String>,
}

/// Arguments of `exclude`.
#[derive(Debug, Args)]
pub struct Exclude {
    /// Name of the Node.
    pub node: String,
    /// Take the label off instead, as include does.
    #[arg(long)]
    pub undo: bool,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of commands for one node.
#[derive(Debug, Args)]
pub struct OfNode {
    /// Name of the Node.
    pub node: String,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `retry`.
#[derive(Debug, Args)]
pub struct Retry {
    /// Name of the pool.
    pub pool: String,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `poll`.
#[derive(Debug, Args)]
pub struct Poll {
    /// Name of the pool.
    pub pool: String,
    /// Longest time to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = berth_api::duration::parse)]
    pub timeout: Duration,
}

/// Arguments of `approve`.
#[derive(Debug, Args)]
pub struct Approve {
    /// Name of the pool.
    pub pool: String,
    /// Print the change for a repository, and change nothing.
    #[arg(long, conflicts_with_all = ["yes", "dry_run"])]
    pub print: bool,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Consent to a plan before anything is changed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Consent {
    /// Do not ask.
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Say what would be done, and change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Table for people, as wide as the terminal.
    Table,
    /// JSON for programs, with the same facts.
    Json,
}
