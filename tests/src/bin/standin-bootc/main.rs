//! A stand-in for `bootc`, for test hosts without a real one.
//!
//! A thin layer over the real `ostree` and `skopeo`: ostree does everything that Berth depends on (staging, finalization locks,
//! the merge of /etc, the order of boot entries), and skopeo talks to registries. This program adds bootc's command line, JSON,
//! messages, exit codes, locking and progress protocol, of bootc 1.16.9 or of the next release. For tests only.

mod bound;
mod cli;
mod host;
mod image;
mod install;
mod origin;
// Compiled in rather than linked: otherwise a change elsewhere in the harness would change the binary, and with it the OS images.
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
    // On a usage error clap exits with status 2, as bootc does.
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
