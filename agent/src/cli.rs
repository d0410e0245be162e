//! The command line.

use std::path::PathBuf;

use berth_core::agent::host_policy::registries;
use berth_core::firstboot;
use berth_shell::log::{self, LogFormat};
use clap::{Parser, Subcommand, ValueEnum};

const AFTER: &str = "\
EXIT STATUS
  0  Ended by SIGTERM or SIGINT. A running pull continues, and the next agent adopts it.
  1  Could not start, or stopped because it must be restarted; standard error has the reason.
  2  The command line was wrong.
  `ready`: 0 if the agent is ready, 1 if not; standard error has the reason.
  `firstboot`: 0 if the boot continues, 3 if the machine is refused and its kubelet held back, 2 if the configuration
  is invalid, 1 if the host failed. After 1 and 2 the boot continues too.
  `remove`: 0 if Berth is removed from the host, 1 if not; standard error has the reason.

FILES, as the host sees them
  /etc/kubernetes/kubelet.conf   the kubelet's identity, unless --kubelet-kubeconfig names another file; not read with
                                 --node-identity=impersonate
  /etc/berth/allowed-registries  prefixes of images that may be staged, one per line; without the file, all images may
  /etc/containers/policy.json, /usr/share/containers/policy.json   the signature policy, if the pool requires signatures
  /run/dbus/system_bus_socket    the system bus, unless --bus is given
  /run/rpm-ostree-transaction.sock  progress of rpm-ostree, on hosts where it updates the OS
  /run/ostree/auth.json          copy of --auth-file, for the host's pulls
  /run/berth/                    lock, progress and output of host commands; cleared by a reboot
  /var/lib/berth/agent.token     the agent's current token, if --kubeconfig names a file with a token bound to the Node
  /var/lib/berth/                failed digests, result of the last turn; kept when the BootcNode is deleted
  /etc/berth/firstboot.toml      configuration of `firstboot`; its outcome is in /var/lib/berth/firstboot.json
  /var/run/secrets/kubernetes.io/serviceaccount/  the agent's identity in a pod, without --kubeconfig

ENVIRONMENT
  NODE_NAME, BERTH_LOG           same as --node-name and --log-level
  BERTH_READY_FILE               same as --ready-file; also the file that `ready` checks
  BERTH_AUTH_FILE                same as --auth-file
  BERTH_NODE_IDENTITY            same as --node-identity
  BERTH_METRICS_ADDRESS          same as --metrics-address
  BERTH_HEALTH_ADDRESS           same as --health-address
  HTTPS_PROXY, NO_PROXY          proxy for the API server, and hosts to reach without a proxy; a proxy in the
                                 kubeconfig takes precedence. Pulls run as systemd units of the host, which do not
                                 get these variables: set them with Environment= in a drop-in for
                                 berth-pull-.service, and for `firstboot` also in one for berth-inspect-.service
  KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT
                                 the API server in a pod, with --node-identity=impersonate
  NOTIFY_SOCKET                  socket for notifying systemd that the agent is ready, and its watchdog that it is alive

EXAMPLES
  In the pod of the shipped DaemonSet:
      berth-agent --node-name=$(NODE_NAME) --host-root=/host
  As a service of the host (systemd/berth-agent.service):
      berth-agent --node-name=worker-1 --kubeconfig=/etc/berth/agent.kubeconfig
  To see what a new machine would do on its first boot:
      berth-agent firstboot --dry-run
  To remove an agent that is a service, with all its files, after the node has left its pool:
      berth-agent remove
  To see why a node is not updated:
      BERTH_LOG=info,berth_agent=debug berth-agent --node-name=worker-1 --kubeconfig=agent.kubeconfig";

/// Updates the bootc host that this agent runs on, when the controller offers a berth.
///
/// The agent reads the BootcNode of its own node, and lets bootc stage the desired image. The staged image is locked,
/// so no reboot applies it yet. When the controller offers a berth, the agent takes the berth, cordons and drains its
/// own node, and records in the berth that the node will reboot. Then the agent unlocks the image and reboots. After
/// the boot, the agent checks that the node works with the new image, uncordons the node, and gives the berth back. The
/// agent may be stopped and started at any time, because it reads its state from the API objects and the host.
///
/// The agent uses two identities: its own for the status of its BootcNode and for its berths, and the kubelet's for
/// cordons and evictions. With both, the API server confines the agent to its own node. The kubelet's identity comes
/// from the kubelet's files, or the agent impersonates its node; see --node-identity.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "berth-agent",
    version,
    after_long_help = AFTER,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Args {
    /// Command to run instead of the agent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Name of the Node that this agent serves.
    #[arg(long, env = "NODE_NAME", value_name = "NAME", required = true)]
    pub node_name: Option<String>,
    /// Kubeconfig of the agent's own identity.
    ///
    /// Without this option, the agent uses the pod's service account, and takes the API server's address from the kubelet's
    /// kubeconfig. The account's token must be bound to the agent's pod or Node, because the admission policies check that.
    /// The agent renews a token that is bound to its Node and that the kubeconfig names as tokenFile.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Kubeconfig of the kubelet on this host. Paths in the file are looked up under --host-root.
    #[arg(long, value_name = "FILE", default_value = "/etc/kubernetes/kubelet.conf")]
    pub kubelet_kubeconfig: PathBuf,
    /// Source of the kubelet's identity.
    ///
    /// With `kubeconfig`, the agent uses the credentials that --kubelet-kubeconfig names. With `impersonate`, it needs
    /// none of the kubelet's files: it sends its own credentials and impersonates system:node:NAME. That requires
    /// Kubernetes 1.36 or newer and the role in manifests/components/impersonation. The agent's token must be bound to
    /// its pod or Node. In a pod, the agent then takes the API server's address from KUBERNETES_SERVICE_HOST and
    /// KUBERNETES_SERVICE_PORT.
    #[arg(
        long,
        env = "BERTH_NODE_IDENTITY",
        value_enum,
        value_name = "SOURCE",
        default_value_t = NodeIdentity::Kubeconfig
    )]
    pub node_identity: NodeIdentity,
    /// Directory where the host's root is mounted: / for a service, /host in the pod of the shipped DaemonSet.
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub host_root: PathBuf,
    /// D-Bus address of the host's system bus. Default: its socket under --host-root.
    #[arg(long, value_name = "ADDRESS")]
    pub bus: Option<String>,
    /// Namespace of the berths.
    #[arg(long, value_name = "NAMESPACE", default_value = berth_api::keys::NAMESPACE)]
    pub namespace: String,
    /// Time between two heartbeats in the BootcNode's status, in seconds, from 10 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(10..=3600))]
    pub heartbeat: u64,
    /// Trust the host's clock without asking org.freedesktop.timedate1.
    ///
    /// For machines with another source of time, such as a hypervisor. Without this flag, a host whose clock is not reported
    /// as synchronized does not reboot in pools with windows or exclusions.
    #[arg(long)]
    pub trust_clock: bool,
    /// Accepted and ignored: composefs hosts are updated without a flag. A later release rejects it.
    #[arg(long, hide = true)]
    pub experimental_composefs: bool,
    /// Auth file for the host's pulls: JSON as in a Secret of type kubernetes.io/dockerconfigjson.
    ///
    /// While the node is in a pool, the agent copies the file to the host's /run/ostree/auth.json. The agent removes
    /// the copy when the file is gone or the node leaves the pool. The file may be missing. If Berth did not write an
    /// auth file in /run/ostree, /etc/ostree or /usr/lib/ostree, the file stays and NodeDegraded reports
    /// ForeignAuthFile.
    #[arg(long, env = "BERTH_AUTH_FILE", value_name = "FILE")]
    pub auth_file: Option<PathBuf>,
    /// Overwrite or hide the host's auth files that Berth did not write. An overwritten file is lost.
    #[arg(long, requires = "auth_file")]
    pub replace_auth_file: bool,
    /// Prefix of images that may be staged: a registry, or a registry and the beginning of a path, such as
    /// quay.io/example. May be given several times.
    ///
    /// The agent stages no image without an allowed prefix. If the BootcNode names such an image, NodeDegraded reports
    /// RegistryNotAllowed. The host's file /etc/berth/allowed-registries is a second limit; if both exist, an image
    /// must satisfy both.
    #[arg(long = "allowed-registry", value_name = "PREFIX", value_parser = registries::prefix)]
    pub allowed_registries: Vec<String>,
    /// File to touch after each pass of the agent's loop, as long as the API server answers. `berth-agent ready` checks
    /// it.
    #[arg(long, env = "BERTH_READY_FILE", value_name = "FILE")]
    pub ready_file: Option<PathBuf>,
    /// Address for serving Prometheus metrics at /metrics: HOST:PORT, or :PORT for every address. Empty for none.
    ///
    /// In a pod with the host's network this is an address of the node. Every client that reaches it can read the node's pool,
    /// phase and images, but no secrets.
    #[arg(long, env = "BERTH_METRICS_ADDRESS", value_name = "ADDRESS", default_value = "")]
    pub metrics_address: String,
    /// Address for serving /healthz and /readyz: HOST:PORT, or :PORT for every address. Empty for none.
    ///
    /// /healthz succeeds while the agent's loop makes passes. /readyz succeeds while the agent is ready, as for
    /// `berth-agent ready`.
    #[arg(long, env = "BERTH_HEALTH_ADDRESS", value_name = "ADDRESS", default_value = "")]
    pub health_address: String,
    /// Format of log lines, which go to standard error.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Human)]
    pub log_format: LogFormat,
    /// Lines to log: a level, or directives such as info,berth_agent=debug.
    #[arg(
        long,
        env = "BERTH_LOG",
        value_name = "FILTER",
        default_value = "info,kube_client=off",
        value_parser = log::filter
    )]
    pub log_level: log::Filter,
}

/// Source of the kubelet's identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NodeIdentity {
    /// The credentials in the kubelet's kubeconfig.
    Kubeconfig,
    /// Impersonation of the node by the agent.
    Impersonate,
}

/// Subcommands of the program.
#[derive(Debug, Clone, Subcommand)]
pub enum Command {
    /// Check whether an agent is ready, by the file that it touches. For the readiness probe of its pod.
    Ready {
        /// The agent's --ready-file.
        #[arg(env = "BERTH_READY_FILE", value_name = "FILE")]
        file: PathBuf,
        /// Maximum age of the file in seconds. If the file is older, the agent is not ready. An idle agent touches the
        /// file every 20 seconds, but a host command may take a minute.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        within: u64,
    },
    /// Check, before the kubelet runs, whether this machine's boot image is new enough for its target image. See
    /// docs/boot-images.md.
    ///
    /// Run by berth-firstboot.service. An admin may run it by hand to check a refused machine again.
    Firstboot {
        /// Print what would be done, but do nothing.
        #[arg(long)]
        dry_run: bool,
        /// The configuration file.
        #[arg(long, value_name = "FILE", default_value = firstboot::config::PATH)]
        config: PathBuf,
        /// D-Bus address of the system bus. Default: its socket under --host-root.
        #[arg(long, value_name = "ADDRESS")]
        bus: Option<String>,
        /// Directory where the host's root is mounted.
        #[arg(long, value_name = "DIR", default_value = "/")]
        host_root: PathBuf,
    },
    /// Remove Berth from this host: its units, links, drop-ins and files, and the credentials that it wrote. See
    /// docs/install/removal.md.
    ///
    /// `kubectl berth uninstall` runs this in the pods of the DaemonSet. Run it by hand, as root, on a host without such
    /// a pod. Stops an agent that is a service of the host. Does not change what the OS image contains under /usr, nor
    /// the host's images. Keeps /etc/berth/allowed-registries and /etc/berth/health.d, which an admin wrote.
    Remove {
        /// D-Bus address of the system bus. Default: its socket under --host-root.
        #[arg(long, value_name = "ADDRESS")]
        bus: Option<String>,
        /// Directory where the host's root is mounted.
        #[arg(long, value_name = "DIR", default_value = "/")]
        host_root: PathBuf,
        /// File to touch from the end of the removal on, for the readiness probe of a pod. The program then does not
        /// end.
        #[arg(long, env = "BERTH_READY_FILE", value_name = "FILE")]
        ready_file: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
        assert_eq!(alone.node_identity, NodeIdentity::Kubeconfig);
        let both = ["berth-agent", "--node-name=a", "ready", "/ready/turned"];
        assert!(Args::try_parse_from(both).is_err());
        let first = Args::try_parse_from(["berth-agent", "firstboot"]).unwrap().command;
        assert!(
            matches!(first, Some(Command::Firstboot { dry_run: false, .. })),
            "{first:?}"
        );
    }

    /// The arguments of an older DaemonSet must not keep a newer agent from starting.
    #[test]
    fn the_former_flag_for_composefs_hosts_is_accepted() {
        let old = Args::try_parse_from(["berth-agent", "--node-name=a", "--experimental-composefs"]).unwrap();
        assert!(old.experimental_composefs);
        let help = Args::command().render_long_help().to_string();
        assert!(!help.contains("experimental-composefs"));
    }

    #[test]
    fn a_removal_needs_no_name() {
        let parsed = Args::try_parse_from(["berth-agent", "remove", "--host-root=/host"])
            .unwrap()
            .command;
        let Some(Command::Remove {
            host_root, bus: None, ..
        }) = &parsed
        else {
            panic!("{parsed:?}")
        };
        assert_eq!(host_root, &PathBuf::from("/host"));
    }

    #[test]
    fn an_impossible_registry_is_refused() {
        let parse =
            |flag: &str| Args::try_parse_from(["berth-agent", "--node-name=a", flag, "--allowed-registry=r:5000/"]);
        let allowed = parse("--allowed-registry=quay.io/example").unwrap().allowed_registries;
        assert_eq!(allowed, ["quay.io/example", "r:5000"]);
        let refused = parse("--allowed-registry=https://quay.io").unwrap_err().to_string();
        assert!(refused.contains("https://quay.io"), "{refused}");
    }

    #[test]
    fn a_log_level_that_does_not_exist_is_refused() {
        fn parse(level: &str) -> Result<Args, clap::Error> {
            Args::try_parse_from(["berth-agent", "--node-name=a", "--log-level", level])
        }
        assert!(parse("info,berth_agent=debug").is_ok());
        let refused = parse("loud").unwrap_err().to_string();
        assert!(
            refused.contains("--log-level") && refused.contains("\"loud\""),
            "{refused}"
        );
    }
}
