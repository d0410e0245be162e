//! The command line.

use std::path::PathBuf;

use berth_core::agent::host_policy::registries;
use berth_core::firstboot;
use berth_shell::log::{self, LogFormat};
use clap::{Parser, Subcommand};

const AFTER: &str = "\
EXIT STATUS
  0  Ended by SIGTERM or SIGINT. A pull goes on without the agent, and the next one adopts it.
  1  Could not start, or lost something that only a restart brings back; standard error says what.
  2  The command line was wrong.
  Of `ready`: 0 if the agent is ready, 1 if not; standard error says why.
  Of `firstboot`: 0 if the boot goes on, 3 if the machine is refused and its kubelet held back; 2 if the configuration
  is wrong, 1 if the host did not let it work. Then the boot goes on as well.

FILES, as the host sees them
  /etc/kubernetes/kubelet.conf   the kubelet's identity, unless --kubelet-kubeconfig names another file
  /etc/berth/allowed-registries  prefixes of images that may be staged, one a line; without the file, all
  /etc/containers/policy.json, /usr/share/containers/policy.json   the signature policy, when the pool wants signatures
  /run/dbus/system_bus_socket    the system bus, unless --bus names another
  /run/rpm-ostree-transaction.sock  what rpm-ostree tells of its work, on hosts that it updates
  /run/ostree/auth.json          what --auth-file was given for the host's pulls
  /run/berth/                    lock, progress and output of host commands; goes with the boot
  /var/lib/berth/                digests that failed, how the last turn ended; outlives the BootcNode
  /etc/berth/firstboot.toml      what `firstboot` is to do; its outcome is in /var/lib/berth/firstboot.json
  /var/run/secrets/kubernetes.io/serviceaccount/  (in the pod)   the agent's identity without --kubeconfig

ENVIRONMENT
  NODE_NAME, BERTH_LOG           stand for --node-name and --log-level
  BERTH_READY_FILE               stands for --ready-file, and for the file of `ready`
  BERTH_AUTH_FILE                stands for --auth-file
  BERTH_METRICS_ADDRESS          stands for --metrics-address
  BERTH_HEALTH_ADDRESS           stands for --health-address
  HTTPS_PROXY, NO_PROXY          the proxy to the API server, and hosts that are reached without one, unless the
                                 kubeconfig names a proxy. Pulls are units of the host and do not see them: give
                                 berth-pull-.service a drop-in with Environment=; for `firstboot` berth-inspect-.service
                                 as well
  NOTIFY_SOCKET                  systemd is told when the agent is ready and, for its watchdog, that it lives

EXAMPLES
  In the pod of the shipped DaemonSet:
      berth-agent --node-name=$(NODE_NAME) --host-root=/host
  As a service of the host (systemd/berth-agent.service):
      berth-agent --node-name=worker-1 --kubeconfig=/etc/berth/agent.kubeconfig
  To see what a new machine would do on its first boot:
      berth-agent firstboot --dry-run
  To see why a node does not move:
      BERTH_LOG=info,berth_agent=debug berth-agent --node-name=worker-1 --kubeconfig=agent.kubeconfig";

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
    after_long_help = AFTER,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    /// Another thing to do than to be the agent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Name of the Node that this agent serves.
    #[arg(long, env = "NODE_NAME", value_name = "NAME", required = true)]
    pub node_name: Option<String>,
    /// Kubeconfig of the agent's own identity.
    ///
    /// Without it: the service account of the pod, at the API server that the kubelet's kubeconfig names. Its token
    /// must be bound to the agent's pod or Node, because the admission policies look at that.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the kubelet on this host. Files that it names are looked up under --host-root.
    #[arg(long, value_name = "FILE", default_value = "/etc/kubernetes/kubelet.conf")]
    pub kubelet_kubeconfig: PathBuf,
    /// Directory under which the host's file system is seen: / as a service, /host in the pod of the shipped DaemonSet.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// D-Bus address of the host's system bus. Default: its socket under --host-root.
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,
    /// Namespace of the berths.
    #[arg(long, value_name = "NAMESPACE", default_value = berth_api::keys::NAMESPACE)]
    pub namespace: String,
    /// Time between two signs of life in the BootcNode's status, in seconds, from 10 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(10..=3600))]
    pub heartbeat: u64,
    /// Take the host's clock for right without asking org.freedesktop.timedate1.
    ///
    /// For machines whose clock somebody else keeps, such as a hypervisor. Without it, a host that does not say that its
    /// clock is synchronised reboots under no pool that has windows or exclusions.
    #[arg(long)]
    pub trust_clock: bool,
    /// Update hosts with bootc's composefs backend as well. Experimental: tried on simulated hosts only.
    ///
    /// Such a host needs a bootc whose `bootc switch` has --download-only (releases after 1.16.9), since nothing else can
    /// lock an image there. Without this flag, or with an older bootc, the node says ComposefsNotSupported and nothing new
    /// is begun on the host.
    #[arg(long)]
    pub experimental_composefs: bool,
    /// Auth file to give to the host, for its pulls: JSON as in a Secret of type kubernetes.io/dockerconfigjson.
    ///
    /// While a pool has the node, the agent keeps its content in the host's /run/ostree/auth.json, and removes that when the
    /// file is gone or no pool has the node any more. The file may be missing. A file of somebody else in /run/ostree,
    /// /etc/ostree or /usr/lib/ostree is left alone, and NodeDegraded says ForeignAuthFile.
    #[arg(long, env = "BERTH_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Write over and hide auth files of the host that Berth did not write. What is written over is lost.
    #[arg(long, requires = "auth_file")]
    pub replace_auth_file: bool,
    /// Registry, or a registry and the beginning of a path such as quay.io/example, from which images may be staged. May be
    /// given several times.
    ///
    /// Any other image is refused, whoever publishes it: nothing is staged, and NodeDegraded says RegistryNotAllowed. The file
    /// /etc/berth/allowed-registries of the host sets a limit of its own; where there are both, an image needs both.
    #[arg(long = "allowed-registry", value_name = "PREFIX", value_parser = registries::prefix)]
    pub allowed_registries: Vec<String>,
    /// File to touch at the end of each turn of the loop, as long as the API server answers. `berth-agent ready` looks at it.
    #[arg(long, env = "BERTH_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Address on which metrics are served for Prometheus, as /metrics: HOST:PORT, or :PORT for every address. Empty: none.
    ///
    /// In a pod with the host's network this is an address of the node, and whoever reaches it may read: the node's pool,
    /// phase and images, and no secrets.
    #[arg(long, env = "BERTH_METRICS_ADDRESS", value_name = "ADDRESS", default_value = "")]
    pub metrics_address: String,
    /// Address on which /healthz and /readyz are served: HOST:PORT, or :PORT for every address. Empty: none.
    ///
    /// /healthz answers ok while the loop turns, /readyz as `berth-agent ready` does.
    #[arg(long, env = "BERTH_HEALTH_ADDRESS", value_name = "ADDRESS", default_value = "")]
    pub health_address: String,
    /// Form of log lines. They go to standard error.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,
    /// Lines that are logged: a level, or directives such as info,berth_agent=debug.
    #[arg(
        long,
        env = "BERTH_LOG",
        value_name = "FILTER",
        default_value = "info,kube_client=off",
        value_parser = log::filter
    )]
    pub log_level: log::Filter,
}

/// Another thing to do than to be the agent.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Say whether the agent that touches this file is ready, for the readiness probe of its pod.
    Ready {
        /// The file that it was started with as --ready-file.
        #[arg(env = "BERTH_READY_FILE", value_name = "FILE")]
        file: PathBuf,
        /// Longest age of the file, in seconds. An idle agent touches it every 20 seconds, and a host command may take a
        /// minute.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        within: u64,
    },
    /// Compare this machine with the image that it is to run, before its kubelet runs. See docs/boot-images.md.
    ///
    /// For berth-firstboot.service, and for people: a machine that is refused may be asked again by hand.
    Firstboot {
        /// Say what would be done, and do nothing.
        #[arg(long)]
        dry_run: bool,
        /// The configuration file.
        #[arg(long, value_name = "FILE", default_value = firstboot::config::PATH)]
        config: PathBuf,
        /// D-Bus address of the system bus. Default: its socket.
        #[arg(long, value_name = "ADDRESS")]
        bus: Option<String>,
        /// Directory under which the host's file system is seen.
        #[arg(long, value_name = "DIR", default_value = "/")]
        host_root: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_needs_no_more_than_its_file() {
        let parsed = Args::try_parse_from(["berth-agent", "ready", "/ready/turned"]).unwrap();
        assert!(
            matches!(parsed.command, Some(Command::Ready { within: 120, .. })),
            "{parsed:?}"
        );
        assert!(
            Args::try_parse_from(["berth-agent", "--log-level=info"]).is_err(),
            "the agent needs its name"
        );
        let alone = Args::try_parse_from(["berth-agent", "--node-name=a"]).unwrap();
        assert!(alone.metrics_address.is_empty() && alone.health_address.is_empty());
        let both = ["berth-agent", "--node-name=a", "ready", "/ready/turned"];
        assert!(Args::try_parse_from(both).is_err());
        let first = Args::try_parse_from(["berth-agent", "firstboot"]).unwrap().command;
        assert!(
            matches!(first, Some(Command::Firstboot { dry_run: false, .. })),
            "{first:?}"
        );
    }

    #[test]
    fn a_registry_that_no_image_can_come_from_is_refused() {
        let parse =
            |flag: &str| Args::try_parse_from(["berth-agent", "--node-name=a", flag, "--allowed-registry=r:5000/"]);
        let allowed = parse("--allowed-registry=quay.io/example").unwrap().allowed_registries;
        assert_eq!(allowed, ["quay.io/example", "r:5000"]);
        let refused = parse("--allowed-registry=https://quay.io").unwrap_err().to_string();
        assert!(
            refused.contains("is not the beginning of an image reference"),
            "{refused}"
        );
    }

    #[test]
    fn a_log_level_that_does_not_exist_is_refused() {
        let parse = |level| Args::try_parse_from(["berth-agent", "--node-name=a", "--log-level", level]);
        assert!(parse("info,berth_agent=debug").is_ok());
        let refused = parse("loud").unwrap_err().to_string();
        assert!(
            refused.contains("--log-level") && refused.contains("\"loud\" is not a level"),
            "{refused}"
        );
    }
}
