//! The command line of bootc, as far as tests need it.

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

/// The newest release that the stand-ins play.
pub const LATEST: &str = "1.17.5";

/// A release of bootc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The version as numbers; a part that is not a number counts as 0.
    pub numbers: [u32; 3],
    /// True if `switch` has the hidden flag `--progress-fd`.
    pub has_progress_fd: bool,
}

impl Release {
    /// The release with this version.
    pub fn new(version: &str) -> Self {
        let mut numbers = [0; 3];
        for (number, part) in numbers.iter_mut().zip(version.split('.')) {
            *number = part.parse().unwrap_or(0);
        }
        Self {
            numbers,
            has_progress_fd: true,
        }
    }

    /// True if `bootc status` shows locks, and `upgrade --from-downloaded` removes them.
    pub fn has_locks(&self) -> bool {
        self.numbers >= [1, 12, 0]
    }

    /// Returns a flag on this command line that the release does not have.
    fn unknown_flag(&self, verb: &Verb) -> Option<&'static str> {
        match verb {
            Verb::Switch(switch) if switch.download_only && !self.has_download_only() => Some("--download-only"),
            Verb::Switch(switch) if switch.from_downloaded && !self.has_download_only() => Some("--from-downloaded"),
            Verb::Switch(switch) if switch.progress_fd.is_some() && !self.has_progress_fd => Some("--progress-fd"),
            Verb::Upgrade(_) if !self.has_locks() => Some("--from-downloaded"),
            _ => None,
        }
    }

    /// True if `switch` has `--download-only` and `--from-downloaded`.
    fn has_download_only(&self) -> bool {
        self.numbers >= [1, 16, 10]
    }

    /// True if the status reports a queued rollback as not queued, and the other way round, where UKIs have boot loader
    /// entries.
    pub fn inverts_rollback(&self) -> bool {
        self.numbers < [1, 16, 11]
    }

    /// Parses a command line, which begins with the name of the program.
    pub fn parse<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> clap::error::Result<Verb> {
        let is_hidden = !self.has_download_only();
        let mut command = Cli::command().mut_subcommand("switch", |switch| {
            let hide = |flag: clap::Arg| flag.hide(is_hidden);
            switch.mut_arg("download_only", hide).mut_arg("from_downloaded", hide)
        });
        let cli = Cli::from_arg_matches(&command.try_get_matches_from_mut(words)?)?;
        match self.unknown_flag(&cli.verb) {
            None => Ok(cli.verb),
            Some(flag) => {
                let text = format!("unexpected argument '{flag}' found");
                Err(command.error(ErrorKind::UnknownArgument, text))
            }
        }
    }
}

#[derive(Debug, Parser)]
#[command(name = "bootc")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

/// Commands of bootc.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Change the staged image
    #[command(alias = "update")]
    Upgrade(Upgrade),
    /// Target a new container image reference to boot
    Switch(Switch),
    /// Change the bootloader entry ordering
    Rollback,
    /// Display status
    Status(Status),
}

impl Verb {
    /// First word of the command's errors.
    pub fn title(&self) -> &'static str {
        match self {
            Self::Upgrade(_) => "Upgrading",
            Self::Switch(_) => "Switching",
            Self::Rollback => "Rollback",
            Self::Status(_) => "Status",
        }
    }
}

/// Flags of `bootc upgrade`. The stand-ins never look for updates.
#[derive(Debug, Args)]
pub struct Upgrade {
    /// Apply the image that was staged with --download-only
    #[arg(long, required = true)]
    pub from_downloaded: bool,
}

/// Flags of `bootc switch`.
#[derive(Debug, Args)]
pub struct Switch {
    /// Don't display progress
    #[arg(long)]
    pub quiet: bool,
    /// Require a default policy that requires signatures
    #[arg(long)]
    pub enforce_container_sigpolicy: bool,
    /// Retain reference to currently booted image
    #[arg(long)]
    pub retain: bool,
    /// Stage the image without applying it on reboot
    #[arg(long)]
    pub download_only: bool,
    /// Apply the image that was staged with --download-only
    #[arg(long, conflicts_with_all = ["download_only", "target"])]
    pub from_downloaded: bool,
    /// File descriptor of the pipe for progress
    #[arg(long, hide = true)]
    pub progress_fd: Option<u32>,
    /// Target image to use for the next boot
    #[arg(required_unless_present = "from_downloaded")]
    pub target: Option<String>,
}

/// Flags of `bootc status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Print JSON
    #[arg(long, hide = true)]
    pub json: bool,
    /// The output format
    #[arg(long, conflicts_with = "json", value_parser = ["json", "yaml", "humanreadable"])]
    pub format: Option<String>,
    /// The desired format version
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=1))]
    pub format_version: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(version: &str, args: &[&str]) -> i32 {
        let parsed = Release::new(version).parse(args.iter().copied());
        parsed.map_or_else(|error| error.exit_code(), |_| 0)
    }

    fn code(args: &[&str]) -> i32 {
        code_of("1.16.9", args)
    }

    #[test]
    fn newer_releases_can_stage_locked() {
        let switch = ["bootc", "switch", "--download-only", "--", "q.io/a@sha256:1"];
        for (version, code, flag) in [
            (LATEST, 0, true),
            ("1.17.0", 0, true),
            ("1.16.10", 0, true),
            ("1.16.9", 2, false),
        ] {
            assert_eq!(code_of(version, &switch), code);
            assert_eq!(code_of(version, &["bootc", "switch", "--from-downloaded"]), code);
            let help = Release::new(version).parse(["bootc", "switch", "--help"]).unwrap_err();
            for name in ["      --download-only", "      --from-downloaded"] {
                assert_eq!(help.to_string().contains(name), flag, "{version} {name}");
            }
        }
        assert_eq!(code_of(LATEST, &["bootc", "switch"]), 2);
        assert_eq!(
            code_of(LATEST, &["bootc", "switch", "--from-downloaded", "q.io/a@sha256:1"]),
            2
        );
    }

    #[test]
    fn a_flag_that_1_16_9_lacks_is_a_usage_error() {
        assert_eq!(code(&["bootc", "switch"]), 2);
        assert_eq!(code(&["bootc", "upgrade", "--check", "--download-only"]), 2);
        assert_eq!(code(&["bootc", "upgrade", "--from-downloaded", "--download-only"]), 2);
        assert_eq!(code_of("1.11.0", &["bootc", "upgrade", "--from-downloaded"]), 2);
        assert_eq!(code(&["bootc", "status", "--format-version=2"]), 2);
    }

    #[test]
    fn the_agents_calls_are_accepted() {
        assert_eq!(code(&["bootc", "switch", "--progress-fd", "3", "q.io/a@sha256:1"]), 0);
        assert_eq!(code(&["bootc", "switch", "--quiet", "--retain", "/x"]), 0);
        assert_eq!(code(&["bootc", "status", "--format=json", "--format-version=1"]), 0);
        assert_eq!(code(&["bootc", "status", "--json"]), 0);
        assert_eq!(code(&["bootc", "upgrade", "--from-downloaded"]), 0);
        assert_eq!(code(&["bootc", "rollback"]), 0);
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(Release::new("1.16.9").numbers, [1, 16, 9]);
        assert!(Release::new("1.16").has_locks() && !Release::new("1.5.0").has_locks());
    }
}
