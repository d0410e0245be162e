//! The command line of `kubectl berth`. A part of the library, so that tests can compare the documentation with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::completion::Shell;
use crate::{Detail, WhatIf};

/// Shows the state of the pools of bootc nodes, and lets an admin decide when a node does not come back.
///
/// A BootcNodePool names the OS image that its nodes should run. This program shows the progress of each pool and each
/// node, what a node waits for, and what would happen before it happens. status, node, explain, timeline and history only
/// read, verify reads files. poll asks the controller
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

  The same if two nodes might be down at once; nothing is changed:
      kubectl berth status workers --preview --what-if rollout.maxUnavailable=2

  Why a node is not updated now, when it may be, and which one change would let it go:
      kubectl berth explain worker-3

  What needs a look, what it means and what to do:
      kubectl berth status --details=health

  The status while it goes on, until Ctrl-C:
      kubectl berth status --watch

  One node: what it is doing and why, what it went through, what to do:
      kubectl berth node worker-3

  Who was in which phase when, and as a picture for a report:
      kubectl berth timeline workers
      kubectl berth timeline workers --svg rollout.svg

  What the pool workers ran before, and one of its nodes:
      kubectl berth history workers
      kubectl berth history --node worker-3

  Who was allowed to reboot what in the past, and was it proven?
      kubectl berth verify --audit-log audit-1.log.gz --audit-log audit.log

  A node is lost, and its pool shall go on without it; and back again:
      kubectl berth exclude worker-3
      kubectl berth include worker-3

  A node shall stay as it is for now, and count as before; and go on again:
      kubectl berth hold worker-3
      kubectl berth unhold worker-3

  A machine that never joined was deleted, and is to be forgotten:
      kubectl berth dismiss worker-7

  A node is up, but runs an image that its agent cannot prove, and keeps its berth:
      kubectl berth release worker-3

  The cause of a failed update is mended:
      kubectl berth retry workers

  A tag was moved, and shall be looked at now; and, where the pool is pinned, adopted:
      kubectl berth poll workers
      kubectl berth approve workers

  One pool is to stop, or all of them at once; and to go on:
      kubectl berth pause workers
      kubectl berth pause --all
      kubectl berth resume --all

FILES
  ~/.kube/config
      Used unless --kubeconfig or the variable KUBECONFIG names another. Inside a pod
      without any of these: the pod's service account.

ENVIRONMENT
  HTTPS_PROXY, NO_PROXY
      The proxy to the API server, and hosts that are reached without one, unless the
      kubeconfig names a proxy.
  NO_COLOR
      No colours, unless it is empty. Without it there are some on a terminal only.

EXIT STATUS
  0  Done, or there was nothing to do, or --dry-run has said what would be done.
  1  The cluster could not be read, or refused a change, or a registry did not answer,
     or an audit log cannot be judged, or approve --print has nothing to print;
     standard error says why.
  2  The command line is wrong, or --yes is missing where nobody can be asked.
  3  You did not say yes; nothing was changed.
  4  verify found that a rule was broken.

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
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of that file; its current one if not given.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace that Berth is installed in.
    #[arg(long, global = true, value_name = "NAME", default_value = berth_api::keys::NAMESPACE)]
    pub namespace: String,
    /// Longest time to wait for the API server: for all that is read before something is shown, and for each change.
    ///
    /// A number of seconds, or with a unit as in 90s or 2m.
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = request_timeout)]
    pub request_timeout: Duration,
}

/// Reads `--request-timeout`, as kubectl does, but for 0: here every wait has an end.
fn request_timeout(text: &str) -> Result<Duration, String> {
    let seconds = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let with_unit = if seconds { format!("{text}s") } else { text.to_owned() };
    match berth_api::duration::parse(&with_unit) {
        Ok(Duration::ZERO) => Err("a wait without an end is not possible; write a longer time, such as 10m".to_owned()),
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the state of pools and nodes.
    ///
    /// A line for each pool, the worst first; then each pool that is not done: its image, who holds its berths, what it waits
    /// for and since when, and its nodes; and at the end what needs a look. The columns, their order and their words are those
    /// of oc adm upgrade status.
    ///
    /// Assessments: Degraded, Unavailable, Progressing, Excluded (held back by a pause), Outdated, Completed. EST is the time
    /// to go by what was measured in the pool lately: ? where nobody can tell. MESSAGE is the one thing to know: a failure and
    /// the time of the next try, the pod that blocks the drain, the reason for which nothing happens, or the outcome of the last turn.
    ///
    /// Ten nodes of each pool are shown, and those that need a look. A version is the image's version label, or the first
    /// digits of its digest.
    #[command(long_about)]
    Status(Status),
    /// Tell the story of one node: what it is doing, why, what it went through, and what to do.
    ///
    /// Shows the node's phase and images, its berth, the conditions that say why it does not go on, the pods that block its
    /// drain, the time of the next try; the chapters of its newest update, and of the last one before that which went as far
    /// as a reboot; its last turns with a berth; and what a person can do. Times are of the node's own clock.
    #[command(long_about)]
    Node(NodeStory),
    /// Explain why a node is offered no berth now, when it may be, and which change would get it one.
    ///
    /// Runs the controller's own plan of the node's pool, on the same objects, with one thing changed at a time: a turn that
    /// ends, a node that is Ready again, another number, a pause that is over. Names each change that alone is enough, the
    /// smallest first; when none is, the ones that are enough together. What only the controller knows is said, not guessed.
    #[command(long_about)]
    Explain(Explain),
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
    /// Judge a past rollout by the API server's audit log: who was allowed to reboot what, and was it proven?
    ///
    /// Reads audit logs and talks to no cluster. It puts the writes of berths, Nodes and BootcNodes side by side and says of
    /// each turn whether it was licensed, cordoned and proven, and of each write of a berth whether the protocol has it.
    /// Capacities, and failures on record, are read from the statuses of the pools in the log. What a log does not show is named, and does not pass as good. The API server needs
    /// an audit policy with the rules of manifests/audit-policy.yaml. The exit status is 4 when a rule was broken.
    #[command(long_about)]
    Verify(Verify),
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
    /// Offer a node no berth for now.
    ///
    /// Puts the label berth.dev/hold on the Node. It stays a member of its pool and counts as before; it stages its image,
    /// and is offered no berth, so that Berth neither drains nor reboots it. An offer that its agent has not taken is
    /// withdrawn; a turn that it has begun goes on to its end. Later waves, and pools that go after its own, wait for it.
    #[command(long_about)]
    Hold(OfNode),
    /// Let a node go that is held back.
    ///
    /// Takes the label berth.dev/hold off the Node: it is offered a berth in its turn.
    #[command(long_about)]
    Unhold(OfNode),
    /// Forget a machine that is held back on its first boot.
    ///
    /// A machine that is installed from a boot image which is too old does not start its kubelet and never becomes a node. The
    /// condition BootstrapHealthy of the BootcFleet names it until it joins. If it was deleted, or is not to join, dismiss it.
    /// It is reported again if it is started and refused again.
    #[command(long_about)]
    Dismiss(Dismiss),
    /// Close the berth of a node that is up, but cannot be proven.
    ///
    /// A node that came back with a third image, neither its target nor the one that it ran before, keeps its berth for
    /// ever, since nobody can say that it is well. You can: look at the host first. The berth is closed as
    /// closed:admin, the agent uncordons the node, and an update that was committed and never proven counts as a
    /// failure of that image. For a node that is NotReady, exclude is the right command.
    #[command(long_about)]
    Release(OfNode),
    /// Stop the rollout of a pool, or of all pools.
    ///
    /// Sets rollout.paused of the pool, or with --all paused of BootcFleet cluster, which is created if there is none. No node
    /// is offered a berth; a node that has not committed uncordons itself and gives its berth back; one that has committed
    /// finishes. A paused pool stages images all the same, a paused fleet does not. Where the pool or the fleet is applied
    /// from a repository, pause it there: the next apply would take this back.
    #[command(long_about)]
    Pause(Pause),
    /// Let a paused pool go on, or the paused fleet.
    ///
    /// Sets rollout.paused of the pool to false, or with --all paused of BootcFleet cluster. Each pause is taken back by
    /// itself: a pool that is paused stays so when the fleet goes on.
    #[command(long_about)]
    Resume(Pause),
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
    /// Print what a shell needs to complete commands, flags and the names of pools and nodes.
    ///
    /// For bash: source <(kubectl-berth completion bash). For kubectl berth itself, in any shell that kubectl completes in:
    /// kubectl berth completion kubectl > ~/bin/kubectl_complete-berth, executable and on the PATH.
    #[command(long_about)]
    Completion(Completion),
    /// Answer a shell that asks what may stand next.
    #[command(name = "__complete", hide = true)]
    Complete(Complete),
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
    /// Show what the plan would do if the pool had this setting, such as rollout.maxUnavailable=3; may be given more than once.
    ///
    /// FIELD is a field of the pool's spec. An empty VALUE takes it away; a list is written whole, as JSON. The API server is
    /// asked whether it would accept the change, and nothing is changed.
    #[arg(long, value_name = "FIELD=VALUE", requires = "preview", requires = "pool")]
    pub what_if: Vec<WhatIf>,
    /// Show instead what each pool's image says of itself: when and from what it was built, and its labels.
    ///
    /// At most 64 labels and 8 KiB of them are kept; how many are left out is said. The same stands in the output of
    /// -o json, under metadata.
    #[arg(long, conflicts_with_all = ["preview", "details", "watch", "output"])]
    pub labels: bool,
    /// Show more: all nodes, the whole of what needs a look, or both.
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "preview", default_value_t = Details::None)]
    pub details: Details,
    /// Go on showing it until Ctrl-C, as it changes.
    ///
    /// On a terminal the status is drawn again in its place, at most four times a second. Elsewhere a line is appended for
    /// each change. When the API server is away, it says since when what it shows is old, and goes on once it is back.
    #[arg(short, long, conflicts_with_all = ["preview", "output"])]
    pub watch: bool,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Amount of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Details {
    /// Ten nodes of each pool and those that need a look, and a line for each finding.
    None,
    /// All nodes of all pools.
    Nodes,
    /// The whole of each finding: reason, objects, and what to do.
    Health,
    /// Both.
    All,
}

impl From<Details> for Detail {
    fn from(details: Details) -> Self {
        Self {
            nodes: matches!(details, Details::Nodes | Details::All),
            health: matches!(details, Details::Health | Details::All),
        }
    }
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

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// Name of the node.
    pub node: String,
    /// Explain as if the node's pool had this setting, such as rollout.maxUnavailable=3; may be given more than once.
    #[arg(long, value_name = "FIELD=VALUE")]
    pub what_if: Vec<WhatIf>,
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
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
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
    /// Show all pools instead, one after the other.
    #[arg(long, conflicts_with_all = ["pool", "node"])]
    pub all: bool,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Audit log in JSON lines, gzipped or not; - is standard input. Give it once for each file: rotated ones, and those of
    /// each API server.
    #[arg(long, value_name = "FILE", required = true)]
    pub audit_log: Vec<PathBuf>,
    /// Limit of the fleet (maxUnavailable of the BootcFleet, as a number of nodes) that was in force all the time.
    #[arg(long, value_name = "N")]
    pub fleet_limit: Option<usize>,
    /// Longest time until a write was seen by all, and difference between the clocks of the API servers.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = berth_api::duration::parse)]
    pub lag: Duration,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
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

/// Arguments of `dismiss`.
#[derive(Debug, Args)]
pub struct Dismiss {
    /// Name of the machine, as the condition BootstrapHealthy gives it.
    pub machine: String,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct Pause {
    /// The pool, or all of them.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// One pool, or all of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct OneOrAll {
    /// Name of the pool.
    pub pool: Option<String>,
    /// All pools at once.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `retry`.
#[derive(Debug, Args)]
pub struct Retry {
    /// The pool, or all of them that have failures.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `poll`.
#[derive(Debug, Args)]
pub struct Poll {
    /// The pool, or all of them, one after the other.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Longest time to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = berth_api::duration::parse)]
    pub timeout: Duration,
}

/// Arguments of `approve`.
#[derive(Debug, Args)]
pub struct Approve {
    /// The pool, or all pinned ones for which an image is available.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Print the change for a repository, and change nothing.
    #[arg(long, conflicts_with_all = ["yes", "dry_run", "all"])]
    pub print: bool,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct Completion {
    /// Program that asks.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Arguments of `__complete`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Complete {
    /// The words so far; the last is to be completed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
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
    /// YAML, likewise.
    Yaml,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(arguments: &[&str]) -> Result<Duration, String> {
        let line = ["kubectl-berth"].iter().chain(arguments);
        let parsed = Arguments::try_parse_from(line).map_err(|error| error.to_string())?;
        Ok(parsed.cluster.request_timeout)
    }

    #[test]
    fn every_command_takes_a_timeout_and_none_waits_for_ever() {
        assert_eq!(timeout(&["status"]), Ok(Duration::from_secs(30)));
        assert_eq!(
            timeout(&["node", "n1", "--request-timeout=5"]),
            Ok(Duration::from_secs(5))
        );
        assert_eq!(
            timeout(&["--request-timeout=2m", "history", "p"]),
            Ok(Duration::from_secs(120))
        );
        for bad in ["0", "0s", "", "-1", "5x", "1h30m"] {
            let error = timeout(&["status", &format!("--request-timeout={bad}")]).unwrap_err();
            assert!(error.contains("--request-timeout"), "{error}");
        }
    }
}
