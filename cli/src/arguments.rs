//! Command line of `kubectl berth`. Part of the library so that tests can compare the documentation with it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

use crate::completion::Shell;
use crate::render::Detail;
use crate::what_if::WhatIf;

/// Shows the state of pools of bootc nodes, and controls their updates.
///
/// A BootcNodePool names the OS image that its nodes should run. This program shows the progress of each pool and node,
/// why a node waits, and a preview of an update. status, dashboard, node, explain, timeline, history and doctor change
/// nothing; verify reads files. poll asks the controller to check a registry. Commands that make a change first show the change
/// and its effect, and ask for consent.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-berth",
    bin_name = "kubectl berth",
    version,
    disable_help_subcommand = true,
    after_long_help = "\
EXAMPLES
  Show all pools and the state of their nodes:
      kubectl berth status

  Preview the update of pool workers, and what blocks it:
      kubectl berth status workers --preview

  The same preview with two nodes down at once; this changes nothing:
      kubectl berth status workers --preview --what-if rollout.maxUnavailable=2

  Why a node gets no berth now, when it may get one, and which change would help:
      kubectl berth explain worker-3

  Is the cluster ready for Berth, is Berth well, and which commands mend it:
      kubectl berth doctor
      kubectl berth doctor --fix

  Problems, their impact, and what to do:
      kubectl berth status --details=health

  Follow the status until Ctrl-C:
      kubectl berth status --watch

  The same in a browser, with the timeline of the rollout:
      kubectl berth dashboard

  One node: its state, its past updates, and what to do:
      kubectl berth node worker-3

  The phases of each node over time, on the terminal and as a picture:
      kubectl berth timeline workers
      kubectl berth timeline workers --svg rollout.svg

  Past images of pool workers, and of one node:
      kubectl berth history workers
      kubectl berth history --node worker-3

  Check past reboots against the rules, from audit logs:
      kubectl berth verify --audit-log audit-1.log.gz --audit-log audit.log

  Take a lost node out of its pool; and put it back:
      kubectl berth exclude worker-3
      kubectl berth include worker-3

  Hold back the update of a node; and release it:
      kubectl berth hold worker-3
      kubectl berth unhold worker-3

  Stop reporting a deleted machine that never joined:
      kubectl berth dismiss worker-7

  Close the berth of a node that is up, but runs an image that its agent cannot prove:
      kubectl berth release worker-3

  Retry after the cause of a failed update is fixed:
      kubectl berth retry workers

  Check a moved tag now; and adopt its image in a pinned pool:
      kubectl berth poll workers
      kubectl berth approve workers

  Pause one pool, or all pools; and resume:
      kubectl berth pause workers
      kubectl berth pause --all
      kubectl berth resume --all

  Remove Berth from the cluster and its hosts:
      kubectl berth uninstall

FILES
  ~/.kube/config
      Used unless --kubeconfig or the variable KUBECONFIG names another file. A pod
      without any of these uses its service account.

ENVIRONMENT
  HTTPS_PROXY, NO_PROXY
      Proxy to the API server, and hosts that need no proxy. A proxy in the kubeconfig
      takes precedence.
  NO_COLOR
      Turns colors off if it is not empty. Only terminals get colors.

EXIT STATUS
  0  Done, or nothing to do, or --dry-run has shown the plan.
  1  The cluster could not be read or refused a change, a registry did not answer, an
     audit log cannot be judged, or approve --print has nothing to print. Standard error
     has the reason. For doctor: a check is broken.
  2  The command line is wrong, or --yes is missing and standard input is not a terminal.
     For doctor: no check is broken, but a check could not be made.
  3  You declined; nothing was changed.
  4  verify found a broken rule.

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
    /// Context in the kubeconfig; by default its current context.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Namespace that Berth is installed in.
    #[arg(long, global = true, value_name = "NAME", default_value = berth_api::keys::NAMESPACE)]
    pub namespace: String,
    /// Timeout for reading all objects from the API server, and also for writing the changes.
    ///
    /// A number of seconds, or a number with a unit, such as 90s or 2m.
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = request_timeout)]
    pub request_timeout: Duration,
}

/// Parses `--request-timeout` as kubectl does, but refuses 0. In kubectl, 0 means no timeout.
fn request_timeout(text: &str) -> Result<Duration, String> {
    let seconds = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let with_unit = if seconds { format!("{text}s") } else { text.to_owned() };
    match berth_api::duration::parse(&with_unit) {
        Ok(Duration::ZERO) => {
            Err("0 (no timeout) is not supported; give a long timeout instead, such as 10m".to_owned())
        }
        Ok(time) => Ok(time),
        Err(error) => Err(error.to_string()),
    }
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the state of pools and nodes.
    ///
    /// Prints a line for each pool, the worst first. For each pool that is not completed, then prints its image, the
    /// holders of its berths, why it waits, and its nodes. Ends with the health findings. The columns and words follow
    /// oc adm upgrade status.
    ///
    /// Assessments: Degraded, Unavailable, Progressing, Excluded (held back by a pause), Outdated, Completed. EST is
    /// the estimated time left, from recent measurements in the pool; ? means unknown. MESSAGE is the most important
    /// fact: a failure and the time of the next try, the pod that blocks the drain, the reason why nothing happens, or
    /// the outcome of the last turn.
    ///
    /// Shows ten nodes of each pool, and all nodes that need attention. VERSION is the image's version label, or the
    /// first digits of its digest.
    #[command(long_about)]
    Status(Status),
    /// Show pools, nodes and a running rollout in a browser.
    ///
    /// Serves a page on 127.0.0.1 until Ctrl-C, prints its address and opens a browser. The address works once, in one
    /// browser. The page reads the cluster with your rights, as status --watch does, and changes nothing: it shows the
    /// commands to copy. A what-if setting is sent to the API server in a dry run, to check that it is valid. Without a
    /// desktop, no browser is opened. From another machine, forward the port first, such as with ssh -L
    /// 8080:127.0.0.1:8080 and --port 8080.
    #[command(long_about)]
    Dashboard(Dashboard),
    /// Show one node: its state, why it waits, its past updates, and what to do.
    ///
    /// Shows the node's phase and images, its berth, the conditions that explain why it makes no progress, the pods
    /// that block its drain, and the time of the next try. Then shows the chapters of two updates: the newest, and the
    /// last earlier update that reached a reboot. Ends with the last turns and advice. Times are by the node's own
    /// clock.
    #[command(long_about)]
    Node(NodeStory),
    /// Explain why a node gets no berth now, when it may get one, and which change would help.
    ///
    /// Repeats the controller's plan for the node's pool, each time with one change: a turn has ended, a node is Ready
    /// again, a limit is higher, or a pause is over. Lists each change that is sufficient alone, the smallest first. If
    /// no single change is sufficient, lists changes that are sufficient together. Facts that only the controller knows
    /// are listed, not guessed.
    #[command(long_about)]
    Explain(Explain),
    /// Draw the phases of each node over time, in the newest rollout of a pool.
    ///
    /// Draws one row for each node, in the order of the nodes' turns. If several chapters fall into one column of the
    /// terminal, the column shows the last of these chapters. Times are by each node's own clock.
    #[command(long_about)]
    Timeline(Timeline),
    /// Show the images that a pool or a node has run.
    ///
    /// Lists the deployed images, the newest first: version, number of nodes, time of the latest proof on a node, and
    /// digest. To go back to an image, put its digest after an @ in the pool's image.ref. A pool keeps historyLimit
    /// images (3 by default); a node keeps the last 3. "found at join" marks an image that nodes already ran when they
    /// joined.
    #[command(long_about)]
    History(History),
    /// Check whether the cluster is ready for Berth, and whether Berth is well.
    ///
    /// Before Berth is installed: checks the version and features of the API server, the control plane, and the
    /// disruption budgets that would block drains. Afterwards, also checks the CRDs, the admission policies, the
    /// controller, an agent on every member, the hosts, the registries and their credentials. Names the cause and the
    /// remedy of each problem. docs/doctor.md describes each check.
    ///
    /// Results: ok; note (worth knowing); warning (slows updates down, or makes them riskier); broken (an admin has to
    /// act); unknown (the check could not be made, for example because your user may not read the objects). The exit
    /// status is 1 if a check is broken, otherwise 2 if a check is unknown, otherwise 0.
    ///
    /// Changes nothing. To test the admission policies, sends dry runs of writes that the API server must refuse, as an
    /// agent and as a kubelet. For this, your user must be allowed to impersonate them.
    #[command(long_about)]
    Doctor(Doctor),
    /// Check a past rollout against the rules, from the API server's audit logs.
    ///
    /// Reads audit logs and needs no cluster. Checks that in each turn the node was licensed, cordoned and proven.
    /// Checks that the protocol allows each write of a berth. For this, the log must contain the writes of berths,
    /// Nodes and BootcNodes. Capacities and recorded failures come from the pool statuses in the log. Facts that are
    /// missing in the log are listed; a check that needs a missing fact does not pass. The API server needs an audit
    /// policy with the rules of manifests/audit-policy.yaml. The exit status is 4 if a rule was broken.
    #[command(long_about)]
    Verify(Verify),
    /// Take a node out of its pool, so that the rollout continues without it.
    ///
    /// Adds the label berth.dev/exclude to the Node. The node is then not a member of any pool and uses no capacity,
    /// whether it is Ready or not. Use this for a lost node. If the Node is NotReady, the controller closes the berth
    /// that it holds; if the Node is Ready, its agent gives the berth back. An update that was committed and never
    /// proven counts as a failure of that image. Nothing changes on the host.
    #[command(long_about)]
    Exclude(Exclude),
    /// Put an excluded node back into its pool.
    ///
    /// Removes the label berth.dev/exclude from the Node.
    #[command(long_about)]
    Include(OfNode),
    /// Hold back a node: offer it no berth for now.
    ///
    /// Adds the label berth.dev/hold to the Node. The node stays a member of its pool, still counts for the pool's
    /// capacity, and stages its image. Berth offers the node no berth, so it neither drains nor reboots the node. The
    /// controller withdraws an offer that the agent has not taken; a turn that has begun continues to its end. Later
    /// waves, and pools that are updated after the node's pool, wait for the node.
    #[command(long_about)]
    Hold(OfNode),
    /// Release a node that is held back.
    ///
    /// Removes the label berth.dev/hold from the Node. The node is then offered a berth in its turn.
    #[command(long_about)]
    Unhold(OfNode),
    /// Stop reporting a machine that is held back on its first boot.
    ///
    /// A machine whose boot image is too old does not start its kubelet and never becomes a node. The condition
    /// BootstrapHealthy of the BootcFleet names such a machine until it joins. Dismiss the machine if it was deleted or
    /// should not join. A dismissed machine is reported again if it boots and is held back again.
    #[command(long_about)]
    Dismiss(Dismiss),
    /// Close the berth of a node that is up, but cannot be proven.
    ///
    /// After a reboot, a node may run an image that is neither its target nor its previous image. Its agent cannot
    /// prove such a boot, so the node keeps its berth. Look at the host, then vouch for the node with this command. The
    /// berth is closed as closed:admin, and the agent uncordons the node. An update that was committed and never proven
    /// counts as a failure of that image. For a node that is NotReady, use exclude.
    #[command(long_about)]
    Release(OfNode),
    /// Stop the rollout of a pool, or of all pools.
    ///
    /// Sets rollout.paused of the pool. With --all, sets paused of BootcFleet cluster, and creates the BootcFleet if it
    /// is missing. No node is offered a berth. A node that has not committed uncordons itself and gives its berth back;
    /// a node that has committed finishes. A paused pool still stages images, but a paused fleet does not. If the pool
    /// or the fleet is applied from a repository, pause it there: the next apply would undo this change.
    #[command(long_about)]
    Pause(Pause),
    /// Resume a paused pool, or the paused fleet.
    ///
    /// Sets rollout.paused of the pool to false. With --all, sets paused of BootcFleet cluster to false. The two
    /// settings are independent: a paused pool stays paused when the fleet is resumed.
    #[command(long_about)]
    Resume(Pause),
    /// Retry the images that have failed in a pool.
    ///
    /// Sets rollout.retryToken of the pool to a new value. Nodes then try the images that failed on them once more, and
    /// a halted rollout continues. If the pool is applied from a repository, write a new token there instead: the next
    /// apply would undo this change.
    #[command(long_about)]
    Retry(Retry),
    /// Check the tag of a pool's image now.
    ///
    /// Sets the annotation berth.dev/poll-requested-at of the pool, waits until the controller has queried the
    /// registry, and prints the result. If the pool follows the tag and the tag has moved, the pool adopts the tag's
    /// image as soon as image.minimumAge allows. If the registry does not answer, the pool keeps its image and the exit
    /// status is 1.
    #[command(long_about)]
    Poll(Poll),
    /// Adopt the image that the tag of a pinned pool points to.
    ///
    /// A pool whose image.ref has a tag and a digest stays at the digest; status.available shows the image that the tag
    /// points to. This command writes the digest of that image into image.ref, unless the pool or the available image
    /// has changed since you saw the plan. If the pool is applied from a repository, use --print and put the result
    /// there: the next apply would undo this change.
    #[command(long_about)]
    Approve(Approve),
    /// Remove Berth from this cluster and from its hosts.
    ///
    /// Deletes the pools, and waits until all nodes are given back. Then replaces the agents by pods that remove Berth's
    /// units and files from their hosts; removes Berth's marks from Nodes; and deletes everything that installed Berth.
    /// Shows its steps first and asks for consent. A run that was interrupted is continued by running the command
    /// again. Needs the rights of a cluster-admin. The hosts keep their OS images. docs/install/removal.md has what else
    /// stays.
    #[command(long_about)]
    Uninstall(Uninstall),
    /// Print a script that completes commands, flags, and names of pools and nodes in a shell.
    ///
    /// For bash: source <(kubectl-berth completion bash). For kubectl berth, in any shell with kubectl's own
    /// completion: kubectl berth completion kubectl > ~/bin/kubectl_complete-berth; the file must be executable and on
    /// the PATH.
    #[command(long_about)]
    Completion(Completion),
    /// Print the candidates for the next word.
    #[command(name = "__complete", hide = true)]
    Complete(Complete),
    /// Print the version of this program and of the API that it reads.
    Version,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Show only this pool.
    pub pool: Option<String>,
    /// Show a preview instead: the nodes to update, their images and order, and what blocks them.
    ///
    /// Names the reasons that block a whole pool: it is paused, its image is not resolved, or nodes that are NotReady,
    /// cordoned or being updated use up its capacity. Names the reasons that block one node: two pools select it, it
    /// has not staged the image, the digest failed there before, or its agent is silent. To see the preview with all
    /// images staged but before any reboot, pause the pool before you change its image. The order is the controller's
    /// own plan, made from the same objects. Above the order, the preview lists its assumptions, and facts that only
    /// the controller knows.
    #[arg(long)]
    pub preview: bool,
    /// Preview with another setting of the pool, such as rollout.maxUnavailable=3; may be given more than once.
    ///
    /// FIELD is a field of the pool's spec. An empty VALUE removes the field. Write a whole list as JSON. The setting
    /// is sent to the API server in a dry run, to check that it is valid; nothing is changed.
    #[arg(long, value_name = "FIELD=VALUE", requires = "preview", requires = "pool")]
    pub what_if: Vec<WhatIf>,
    /// Show each pool's image instead: its build time, its source and its labels.
    ///
    /// Berth keeps at most 64 labels, with 8 KiB in all; the number of omitted labels is shown. The output of -o json
    /// has the same facts under metadata.
    #[arg(long, conflicts_with_all = ["preview", "details", "watch", "output"])]
    pub labels: bool,
    /// Show more: all nodes, health findings in full, or both.
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "preview", default_value_t = Details::None)]
    pub details: Details,
    /// Follow the status until Ctrl-C.
    ///
    /// On a terminal, the status is redrawn in place, at most four times a second. In other output, a line is appended
    /// for each change. While the API server does not answer, the age of the data is shown. Updates continue as soon as
    /// the API server answers again.
    #[arg(short, long, conflicts_with_all = ["preview", "output"])]
    pub watch: bool,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Amount of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Details {
    /// Ten nodes of each pool and those that need attention, and a line for each finding.
    None,
    /// All nodes of all pools.
    Nodes,
    /// Each finding in full: reason, objects, and what to do.
    Health,
    /// All nodes, and each finding in full.
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

/// Arguments of `dashboard`.
#[derive(Debug, Args)]
pub struct Dashboard {
    /// Show only this pool.
    pub pool: Option<String>,
    /// Port on 127.0.0.1; 0 for any free port.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub port: u16,
    /// Do not open a browser; only print the address.
    #[arg(long)]
    pub no_open: bool,
}

/// Arguments of `node`.
#[derive(Debug, Args)]
pub struct NodeStory {
    /// Name of the node.
    pub node: String,
    /// Output format.
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
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `timeline`.
#[derive(Debug, Args)]
pub struct Timeline {
    /// Name of the pool.
    pub pool: String,
    /// Write the timeline as a picture to this file instead.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
#[group(required = true)]
pub struct History {
    /// Name of the pool.
    pub pool: Option<String>,
    /// Show this node instead.
    #[arg(long, value_name = "NAME", conflicts_with = "pool")]
    pub node: Option<String>,
    /// Show all pools instead, one after the other.
    #[arg(long, conflicts_with_all = ["pool", "node"])]
    pub all: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print only the commands that mend the cluster, one in each line; run nothing.
    ///
    /// Read the commands before you run them. The exit status is the same as without this option.
    #[arg(long, conflicts_with = "output")]
    pub fix: bool,
    /// Manifests that you installed Berth from: a directory, a file or an address. The commands apply these.
    ///
    /// By default, the commands apply the manifests of this plugin's version from its repository.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub manifests: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Audit log as JSON lines, plain or gzipped; - is standard input. Repeat the option for each file, including
    /// rotated logs and the logs of the other API servers.
    #[arg(long, value_name = "FILE", required = true)]
    pub audit_log: Vec<PathBuf>,
    /// Limit of the fleet during the whole log: maxUnavailable of the BootcFleet, as a number of nodes.
    #[arg(long, value_name = "N")]
    pub fleet_limit: Option<usize>,
    /// Longest time until every program has seen a write, including clock differences between API servers.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = berth_api::duration::parse)]
    pub lag: Duration,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t = Output::Table)]
    pub output: Output,
}

/// Arguments of `exclude`.
#[derive(Debug, Args)]
pub struct Exclude {
    /// Name of the Node.
    pub node: String,
    /// Remove the label instead, as include does.
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
    /// Name of the machine, as in the condition BootstrapHealthy.
    pub machine: String,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `pause` and `resume`.
#[derive(Debug, Args)]
pub struct Pause {
    /// The pool, or all pools.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// A single pool, or all pools.
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
    /// The pool, or all pools that have failures.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `poll`.
#[derive(Debug, Args)]
pub struct Poll {
    /// The pool, or all pools, one after the other.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Longest time to wait for the controller's answer.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = berth_api::duration::parse)]
    pub timeout: Duration,
}

/// Arguments of `approve`.
#[derive(Debug, Args)]
pub struct Approve {
    /// The pool, or all pinned pools that have an available image.
    #[command(flatten)]
    pub which: OneOrAll,
    /// Print the change as a file for a repository; change nothing.
    #[arg(long, conflicts_with_all = ["yes", "dry_run", "all"])]
    pub print: bool,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `uninstall`.
#[derive(Debug, Args)]
pub struct Uninstall {
    /// Do not wait for this node, such as a lost one; may be given more than once.
    ///
    /// Its host keeps Berth's units and files, and maybe a staged image.
    #[arg(long, value_name = "NODE")]
    pub leave: Vec<String>,
    /// Longest time that each step waits for nodes, hosts or objects.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = berth_api::duration::parse)]
    pub timeout: Duration,
    /// Consent to the plan.
    #[command(flatten)]
    pub consent: Consent,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct Completion {
    /// Shell to write the script for. With kubectl, the script completes kubectl berth in any shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Arguments of `__complete`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Complete {
    /// The words of the command line so far; the last word is completed.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

/// Consent to a plan before anything is changed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Consent {
    /// Do not ask for consent.
    #[arg(short, long, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Show the plan; change nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Table, as wide as the terminal.
    Table,
    /// JSON, with all facts of the table.
    Json,
    /// YAML, with all facts of the table.
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
    fn every_command_takes_a_finite_timeout() {
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
