//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::{duration, keys};
use berth_shell::log::{self, LogFormat};
use clap::{Parser, Subcommand};

use crate::leader::Timing;
use crate::reconcile::Settings;

const ABOUT: &str = "Publishes desired OS images to nodes and decides which nodes may reboot, and when";

const LONG_ABOUT: &str = "\
berth-controller is the part of Berth that runs once per cluster; the agents run on the nodes. For each BootcNodePool \
it resolves the image reference to a digest, decides which nodes are members, publishes the image that each member \
should run (in a BootcNode with the Node's name), manages the pool's berths, and sums up the nodes' reports in the \
pool's status.

It never touches a host, a pod or a cordon. A node is disrupted only by its own agent, and only while that agent \
holds a berth: a Lease in Berth's namespace, which the controller offers to one node at a time.

Several controllers may run. The Lease berth-controller decides which one leads; the others wait. While no \
controller runs, nodes that hold a berth finish their update, and no other node starts one.";

const AFTER: &str = "\
EXIT STATUS
  0  Stopped by SIGTERM or SIGINT; leadership was released.
  1  Could not start, or lost leadership. Start it again.
  2  The command line was invalid.
  `check`: 0 if the API server has everything, 1 if not, or if it cannot be read; standard error has the reasons.

FILES AND ENVIRONMENT
  Without --kubeconfig: $KUBECONFIG, then ~/.kube/config, then the service account of the pod.
  HTTPS_PROXY, HTTP_PROXY and NO_PROXY apply to requests to registries; with a kubeconfig, HTTPS_PROXY and NO_PROXY
  also apply to requests to the API server.
  Registries are verified by the system's certificates (/etc/ssl/certs, or the file in SSL_CERT_FILE).

EXAMPLES
  In a pod, with its service account:
      berth-controller
  By hand, against a cluster, with logs that are easy to read:
      berth-controller --kubeconfig admin.conf --log-format human
  With a registry on this machine that has no TLS:
      berth-controller --registry-plain-http 127.0.0.1:5000
  Compare a cluster with this version:
      berth-controller check --kubeconfig admin.conf

DURATIONS are a whole number and a unit: 90s, 15m, 12h.";

/// The command line of `berth-controller`.
#[derive(Debug, Clone, Parser)]
#[command(name = "berth-controller", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = AFTER)]
pub struct Cli {
    /// Command to run instead of the controller.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Kubeconfig file to reach the API server with.
    ///
    /// Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account.
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace of the berths and of the leader's Lease.
    #[arg(long, value_name = "NAME", env = "BERTH_NAMESPACE", default_value = keys::NAMESPACE)]
    pub namespace: String,

    /// Name of this process in the leader's Lease.
    ///
    /// A random suffix is added, so that no two processes have the same name. Default: the host name.
    #[arg(long, value_name = "NAME", env = "BERTH_IDENTITY")]
    pub identity: Option<String>,

    /// Format of the log, which goes to standard error.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Log level: error, warn, info, debug or trace; or a filter such as info,kube=debug.
    #[arg(
        long,
        value_name = "FILTER",
        env = "BERTH_LOG",
        default_value = "info,kube_client=off",
        value_parser = log::filter
    )]
    pub log_level: log::Filter,

    /// Registry (HOST:PORT) to reach without TLS. May be given several times.
    ///
    /// Meant for a registry on the same machine. Nodes have their own configuration.
    #[arg(long, value_name = "HOST")]
    pub registry_plain_http: Vec<String>,

    /// PEM file with CA certificates for registries, in addition to the system's.
    ///
    /// The file is read again for each request, so that a change needs no restart. A missing file counts as empty.
    /// While the file is invalid, its last valid content is used.
    #[arg(long, value_name = "FILE")]
    pub registry_ca: Option<PathBuf>,

    /// File with mirrors, and with insecure or blocked registries, in the format of registries.conf.
    ///
    /// Mirrors are queried first, so that images can be resolved while the original registry is unavailable. This file
    /// is read again for each request, like the file of --registry-ca.
    #[arg(long, value_name = "FILE")]
    pub registries_conf: Option<PathBuf>,

    /// How long the leader's Lease must be unchanged before its holder counts as dead.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = positive)]
    pub leader_lease_duration: Duration,

    /// A leader stops if it could not renew the Lease for this long. Must be less than the lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive)]
    pub leader_renew_deadline: Duration,

    /// Time between two tries to get or renew the Lease. Must be less than the renew deadline.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    pub leader_retry_period: Duration,

    /// A node is offered no berth if its agent has been silent for this long.
    ///
    /// Agents report every two minutes, unless their --heartbeat sets another interval. Choose a time that is several
    /// times as long as that interval. The fleet's condition AgentsHealthy reports an agent that has been silent for
    /// three tenths of this time, but not before 270 s.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = positive)]
    pub agent_silence: Duration,

    /// How long a node that leaves its pool may take to undo Berth's changes.
    ///
    /// After that, the controller removes Berth's finalizer from the node's BootcNode and logs a warning. It waits
    /// longer if the node still holds a berth, or is down and so counts against its former pool's capacity.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = positive)]
    pub release_deadline: Duration,

    /// Address to serve metrics for Prometheus on, at /metrics: HOST:PORT, or :PORT for all addresses. Empty: off.
    ///
    /// A controller that waits for leadership serves them too.
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METRICS_ADDRESS", default_value = "")]
    pub metrics_address: String,

    /// Address to serve /healthz and /readyz on: HOST:PORT, or :PORT for all addresses. Empty: off.
    ///
    /// /healthz answers ok unless this controller leads and its reconcile loop hangs. /readyz also requires that the
    /// API server answers this controller, whether it leads or waits.
    #[arg(long, value_name = "ADDRESS", env = "BERTH_HEALTH_ADDRESS", default_value = "")]
    pub health_address: String,

    /// Treat this machine's clock as synchronized, whatever its kernel reports.
    ///
    /// Use this flag if the clock is synchronized without the kernel's knowledge, for example by a hypervisor. Without
    /// the flag, the windows of all pools stay closed while the kernel reports that the clock is not synchronized.
    #[arg(long, env = "BERTH_TRUST_CLOCK", value_parser = clap::builder::FalseyValueParser::new())]
    pub trust_clock: bool,
}

fn positive(text: &str) -> Result<Duration, String> {
    match duration::parse(text) {
        Ok(Duration::ZERO) => Err("it must be more than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(error.to_string()),
    }
}

/// Subcommands of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Check whether the API server has the CRDs and the admission policies of this version. The chart's `helm test` runs it.
    Check,
}

impl Cli {
    /// Returns the timing of leader election, or an error if the flags contradict each other.
    pub fn timing(&self) -> Result<Timing, String> {
        let timing = Timing {
            duration: self.leader_lease_duration,
            renew_deadline: self.leader_renew_deadline,
            retry_period: self.leader_retry_period,
        };
        if timing.retry_period < timing.renew_deadline && timing.renew_deadline < timing.duration {
            return Ok(timing);
        }
        Err(format!(
            "--leader-retry-period ({}s) must be less than --leader-renew-deadline ({}s), which must be less than --leader-lease-duration ({}s)",
            timing.retry_period.as_secs(),
            timing.renew_deadline.as_secs(),
            timing.duration.as_secs()
        ))
    }

    /// Returns the settings of the reconciler.
    pub fn settings(&self) -> Settings {
        Settings {
            agent_silence: self.agent_silence,
            release_deadline: self.release_deadline,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(["berth-controller"].iter().chain(args))
    }

    #[test]
    fn the_defaults_agree_with_each_other() {
        let cli = parse(&[]).unwrap();
        assert!(cli.timing().is_ok());
        assert_eq!(cli.namespace, "berth-system");
    }

    #[test]
    fn wrong_times_are_refused() {
        assert!(parse(&["--leader-lease-duration", "15"]).is_err());
        assert!(parse(&["--release-deadline", "0"]).is_err());
        let cli = parse(&["--leader-lease-duration", "5s"]).unwrap();
        assert!(cli.timing().unwrap_err().contains("must be less than"));
    }

    #[test]
    fn an_unknown_log_level_is_refused() {
        assert!(parse(&["--log-level=warn,kube=debug"]).is_ok());
        let refused = parse(&["--log-level=loud"]).unwrap_err().to_string();
        assert!(
            refused.contains("--log-level") && refused.contains("\"loud\" is not a log level"),
            "{refused}"
        );
    }

    #[test]
    fn the_defaults_serve_nothing_and_trust_no_clock() {
        let cli = parse(&[]).unwrap();
        assert!(cli.metrics_address.is_empty() && cli.health_address.is_empty() && !cli.trust_clock);
        let cli = parse(&["--metrics-address=:8080", "--trust-clock"]).unwrap();
        assert!(cli.metrics_address == ":8080" && cli.trust_clock);
    }

    #[test]
    fn help_reads_like_a_manual_page() {
        use clap::CommandFactory;
        let help = Cli::command().render_long_help().to_string();
        for part in ["EXIT STATUS", "EXAMPLES", "--kubeconfig", "--registry-plain-http"] {
            assert!(help.contains(part), "{part}");
        }
    }
}
