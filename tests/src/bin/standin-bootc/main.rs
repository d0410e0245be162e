//! A stand-in for `bootc`, for test hosts where no real one can be had.
//!
//! A thin face over the real `ostree` and `skopeo`: everything that Berth depends on (staging, finalization locks,
//! the merge of /etc, the order of boot entries) is done by ostree itself, and registries are talked to by skopeo.
//! What this program adds is bootc's command line, JSON, messages, exit codes, locking and progress protocol, as
//! bootc 1.16.9 has them, or the release after it. It never runs outside of tests.

mod bound;
mod cli;
mod host;
mod image;
mod install;
mod origin;
// Compiled in rather than linked: a change elsewhere in the harness would make another binary, and so other OS images.
#[path = "../../hosts/real/ostree.rs"]
mod ostree;
mod progress;
mod proxy;
mod pull;
mod run;
mod status;
mod sysroot;
mod throttle;
mod verbs;

use std::process::ExitCode;

fn main() -> ExitCode {
    // clap itself ends with status 2 on a usage error, as bootc does.
    let parsed = cli::Release::of_host().parse(std::env::args_os());
    let cli = parsed.unwrap_or_else(|error| error.exit());
    match verbs::dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}
