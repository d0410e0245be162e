//! The command lines of bootc 1.16.9 and of the next release, as far as a test host needs them.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

/// Releases of bootc that differ in what Berth uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Release {
    /// bootc 1.16.9.
    Known,
    /// The next one, with `bootc switch --download-only`.
    Next,
}

impl Release {
    /// The release that this host's configuration selects.
    pub(crate) fn of_host() -> Self {
        match std::path::Path::new("/etc/standin-bootc-next").exists() {
            true => Self::Next,
            false => Self::Known,
        }
    }

    fn command(self) -> Command {
        let is_known = self == Self::Known;
        let hide = |switch: Command| switch.mut_arg("download_only", |arg| arg.hide(is_known));
        let version = if is_known { "1.16.9" } else { "1.17.0" };
        Cli::command().version(version).mut_subcommand("switch", hide)
    }

    /// Parses a command line.
    pub(crate) fn parse<I, T>(self, words: I) -> clap::error::Result<Cli>
    where
        I: IntoIterator<Item = T>,
        T: Into<std::ffi::OsString> + Clone,
    {
        let mut command = self.command();
        let cli = Cli::from_arg_matches(&command.try_get_matches_from_mut(words)?)?;
        match &cli.verb {
            Verb::Switch(switch) if switch.download_only && self == Self::Known => Err(command.error(
                ErrorKind::UnknownArgument,
                "unexpected argument '--download-only' found",
            )),
            _ => Ok(cli),
        }
    }
}

/// Deploy and transactionally in-place with bootable container images.
#[derive(Debug, Parser)]
#[command(name = "bootc")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Download and queue an updated container image to apply.
    #[command(alias = "update")]
    Upgrade(Upgrade),
    /// Target a new container image reference to boot.
    Switch(Switch),
    /// Change the bootloader entry ordering.
    Rollback(Rollback),
    /// Display status.
    Status(Status),
    /// (Of the stand-in only.) Make a sysroot with an image deployed, without a booted system.
    #[command(hide = true, name = "standin-install")]
    Install(Install),
}

/// Flags of `bootc upgrade`.
#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// Don't display progress.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Check if an update is available without applying it.
    #[arg(long, conflicts_with = "apply")]
    pub(crate) check: bool,
    /// Restart or reboot into the new target image.
    #[arg(long)]
    pub(crate) apply: bool,
    /// Download and stage the update without applying it.
    #[arg(long, conflicts_with_all = ["check", "apply"])]
    pub(crate) download_only: bool,
    /// Apply a staged deployment that was previously downloaded with --download-only.
    #[arg(long, conflicts_with_all = ["check", "download_only"])]
    pub(crate) from_downloaded: bool,
    #[arg(long, hide = true)]
    pub(crate) progress_fd: Option<u32>,
}

/// Flags of `bootc switch`.
#[derive(Debug, Args)]
pub(crate) struct Switch {
    /// Don't display progress.
    #[arg(long)]
    pub(crate) quiet: bool,
    /// Restart or reboot into the new target image.
    #[arg(long)]
    pub(crate) apply: bool,
    /// The transport; e.g. registry, oci, oci-archive.
    #[arg(long, default_value = "registry")]
    pub(crate) transport: String,
    /// Enforce that /etc/containers/policy.json has a default policy which requires signatures.
    #[arg(long)]
    pub(crate) enforce_container_sigpolicy: bool,
    /// Retain reference to the currently booted image.
    #[arg(long)]
    pub(crate) retain: bool,
    /// Stage the image without applying it on reboot.
    #[arg(long, conflicts_with = "apply")]
    pub(crate) download_only: bool,
    #[arg(long, hide = true)]
    pub(crate) progress_fd: Option<u32>,
    /// Target image to use for the next boot.
    pub(crate) target: String,
}

/// Flags of `bootc rollback`.
#[derive(Debug, Args)]
pub(crate) struct Rollback {
    /// Restart or reboot into the rollback image.
    #[arg(long)]
    pub(crate) apply: bool,
}

/// Output formats of `bootc status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Output in human readable form.
    Humanreadable,
    /// Output in YAML format.
    Yaml,
    /// Output in JSON format.
    Json,
}

/// Flags of `bootc status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[arg(long, hide = true)]
    pub(crate) json: bool,
    /// The output format.
    #[arg(long, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
    /// The desired format version.
    #[arg(long)]
    pub(crate) format_version: Option<u32>,
    /// Only display status for the booted deployment.
    #[arg(long)]
    pub(crate) booted: bool,
}

/// Flags of the stand-in's own verb that creates the first sysroot.
#[derive(Debug, Args)]
pub(crate) struct Install {
    /// Directory of the sysroot; created and initialised if it is missing.
    #[arg(long)]
    pub(crate) sysroot: PathBuf,
    /// Source to pull from, in skopeo's syntax (`oci:DIR`).
    #[arg(long)]
    pub(crate) source: String,
    /// Reference for the deployment's origin.
    pub(crate) target: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(release: Release, args: &[&str]) -> i32 {
        match release.parse(args) {
            Ok(_) => 0,
            Err(e) => e.exit_code(),
        }
    }

    fn code(args: &[&str]) -> i32 {
        code_of(Release::Known, args)
    }

    #[test]
    fn the_next_release_can_stage_locked() {
        let switch = ["bootc", "switch", "--download-only", "--", "q.io/a@sha256:1"];
        assert_eq!(code_of(Release::Next, &switch), 0);
        let help = |release: Release| release.parse(["bootc", "switch", "--help"]).unwrap_err().to_string();
        assert!(help(Release::Next).contains("      --download-only"));
        assert!(!help(Release::Known).contains("--download-only"));
    }

    #[test]
    fn a_flag_that_1_16_9_lacks_is_a_usage_error() {
        assert_eq!(code(&["bootc", "switch", "--download-only", "q.io/a@sha256:1"]), 2);
        assert_eq!(code(&["bootc", "switch"]), 2);
        assert_eq!(code(&["bootc", "upgrade", "--check", "--download-only"]), 2);
        assert_eq!(code(&["bootc", "upgrade", "--from-downloaded", "--download-only"]), 2);
    }

    #[test]
    fn the_agents_calls_are_accepted() {
        assert_eq!(code(&["bootc", "--version"]), 0);
        assert_eq!(code(&["bootc", "switch", "--progress-fd", "3", "q.io/a@sha256:1"]), 0);
        assert_eq!(
            code(&["bootc", "switch", "--quiet", "--retain", "--transport", "oci", "/x"]),
            0
        );
        assert_eq!(code(&["bootc", "status", "--format=json", "--format-version=1"]), 0);
        assert_eq!(code(&["bootc", "status", "--json"]), 0);
        assert_eq!(code(&["bootc", "upgrade", "--from-downloaded"]), 0);
        assert_eq!(code(&["bootc", "rollback"]), 0);
    }
}
