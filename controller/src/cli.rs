//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use berth_api::{duration, keys};
use berth_shell::log::{self, LogFormat};
use clap::Parser;

use crate::leader::Timing;
use crate::reconcile::Settings;

const ABOUT: &str = "Publishes desired OS images to nodes and decides which of them may reboot, and when";

const LONG_ABOUT: &str = "\
berth-controller is the cluster's half of Berth. For each BootcNodePool it resolves the image reference to digests, \
decides which nodes are members, publishes to each what it should run (a BootcNode named as the Node), keeps the \
pool's berths and adds up what the nodes report in the pool's status.

It never touches a host, a pod or a cordon. A node is disrupted only by its own agent, and only while that agent \
holds a berth: a Lease in the namespace of Berth, which the controller offers to one node after the other.

Several controllers may run. One of them leads, by the Lease berth-controller; the others wait. While none runs, \
nodes that hold a berth finish, and no other node starts.";

const AFTER: &str = "\
EXIT STATUS
  0  Ended by SIGTERM or SIGINT; leadership was given up.
  1  Could not start, or leadership was lost. Whoever started it should start it again.
  2  The command line was wrong.

FILES AND ENVIRONMENT
  Without --kubeconfig: $KUBECONFIG, then ~/.kube/config, then the service account of the pod.
  HTTPS_PROXY, HTTP_PROXY and NO_PROXY hold for requests to registries; with a kubeconfig, HTTPS_PROXY and NO_PROXY
  hold for those to the API server, too.
  The system's certificates (/etc/ssl/certs, or what SSL_CERT_FILE names) say which registries are trusted.

EXAMPLES
  In a pod, with its service account:
      berth-controller
  By hand, against a cluster, with logs for people:
      berth-controller --kubeconfig admin.conf --log-format human
  With a registry on this machine that has no TLS:
      berth-controller --registry-plain-http 127.0.0.1:5000

DURATIONS are a whole number and a unit: 90s, 15m, 12h.";

/// The command line of `berth-controller`.
#[derive(Debug, Clone, Parser)]
#[command(name = "berth-controller", version, about = ABOUT, long_about = LONG_ABOUT, after_long_help = AFTER)]
pub struct Cli {
    /// Kubeconfig file to reach the API server with.
    ///
    /// Without it the usual places are tried, and then the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Namespace of the berths and of the leader's Lease.
    #[arg(long, value_name = "NAME", env = "BERTH_NAMESPACE", default_value = keys::NAMESPACE)]
    pub namespace: String,

    /// Name of this process in the leader's Lease.
    ///
    /// A random part is put behind it, so that no two processes ever have the same. Default: the host's name.
    #[arg(long, value_name = "NAME", env = "BERTH_IDENTITY")]
    pub identity: Option<String>,

    /// Form of log lines, which go to standard error.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "json")]
    pub log_format: LogFormat,

    /// Lines that are logged: error, warn, info, debug, trace, or a filter such as info,kube=debug.
    #[arg(
        long,
        value_name = "FILTER",
        env = "BERTH_LOG",
        default_value = "info,kube_client=off",
        value_parser = log::filter
    )]
    pub log_level: log::Filter,

    /// A registry (HOST:PORT) that is spoken to without TLS. Give it once for each.
    ///
    /// Meant for a registry on the same machine. The nodes have a configuration of their own.
    #[arg(long, value_name = "HOST")]
    pub registry_plain_http: Vec<String>,

    /// PEM file with certificates that registries may be signed by, besides the system's.
    ///
    /// It is read anew whenever a registry is asked, so that a change needs no restart. A file that does not exist has
    /// none; while it makes no sense, what it said before holds.
    #[arg(long, value_name = "FILE")]
    pub registry_ca: Option<PathBuf>,

    /// File that names mirrors, and registries that are insecure or blocked, in the format of registries.conf.
    ///
    /// Mirrors are asked first, so that an image is found while the registry that it comes from is away. The file is
    /// read anew whenever a registry is asked, as that of --registry-ca is.
    #[arg(long, value_name = "FILE")]
    pub registries_conf: Option<PathBuf>,

    /// Time without a change of the leader's Lease after which its holder counts as dead.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = positive)]
    pub leader_lease_duration: Duration,

    /// Time without a successful renewal of its Lease after which a leader stops. Must be less than the lease duration.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive)]
    pub leader_renew_deadline: Duration,

    /// Time between two tries to get or renew the Lease. Must be less than the renew deadline.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    pub leader_retry_period: Duration,

    /// Time without a report of its agent after which a node is offered no berth.
    ///
    /// Agents report every two minutes, unless their --heartbeat says otherwise; this should be several times that. The fleet's
    /// condition AgentsHealthy names an agent after three tenths of it, and not before 270 s have passed.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = positive)]
    pub agent_silence: Duration,

    /// Longest time that a node which leaves its pool may take to undo what Berth did there.
    ///
    /// After that its BootcNode is let go all the same, with a warning, unless the node still holds a berth, or is down and so
    /// counts for its former pool's capacity.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = positive)]
    pub release_deadline: Duration,

    /// Address on which metrics are served for Prometheus, as /metrics: HOST:PORT, or :PORT for every address. Empty:
    /// none.
    ///
    /// A controller that waits for leadership serves them too.
    #[arg(long, value_name = "ADDRESS", env = "BERTH_METRICS_ADDRESS", default_value = "")]
    pub metrics_address: String,

    /// Address on which /healthz and /readyz are served: HOST:PORT, or :PORT for every address. Empty: none.
    ///
    /// /healthz answers ok unless the passes of a leader hang. /readyz answers ok while the API server answers this
    /// controller as well, whether it leads or waits.
    #[arg(long, value_name = "ADDRESS", env = "BERTH_HEALTH_ADDRESS", default_value = "")]
    pub health_address: String,

    /// Take this machine's clock for synchronised, whatever its kernel says.
    ///
    /// For machines whose clock is kept by something that the kernel does not know of, such as a hypervisor. Without
    /// it, the windows of all pools stay closed while the kernel says that nobody keeps the clock.
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

impl Cli {
    /// The times of leader election.
    ///
    /// # Errors
    /// When they contradict each other.
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
            "--leader-retry-period ({}s) must be less than --leader-renew-deadline ({}s), and that less than --leader-lease-duration ({}s)",
            timing.retry_period.as_secs(),
            timing.renew_deadline.as_secs(),
            timing.duration.as_secs()
        ))
    }

    /// Settings of the reconciler.
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
    fn a_log_level_that_does_not_exist_is_refused() {
        assert!(parse(&["--log-level=warn,kube=debug"]).is_ok());
        let refused = parse(&["--log-level=loud"]).unwrap_err().to_string();
        assert!(
            refused.contains("--log-level") && refused.contains("\"loud\" is not a level"),
            "{refused}"
        );
    }

    #[test]
    fn nothing_is_served_and_no_clock_is_trusted_unasked() {
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
