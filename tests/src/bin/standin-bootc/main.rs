//! A stand-in for `bootc`, for test hosts without a real one.
//!
//! A thin layer over the real `ostree` and `skopeo`: ostree does everything that Berth depends on (staging, finalization locks,
//! the merge of /etc, the order of boot entries), and skopeo talks to registries. [`berth_tests::bootc`] has bootc's command line,
//! JSON, messages and progress protocol, of bootc 1.16.9 or of the newest release. For tests only.

mod bound;
mod image;
mod install;
mod origin;
mod progress;
mod proxy;
mod pull;
mod run;
mod status;
mod sysroot;
mod throttle;
mod verbs;

use std::path::Path;
use std::process::ExitCode;

use berth_tests::bootc::cli::{LATEST, Release};
use berth_tests::hosts::real::ostree;

/// File that selects the newest release of bootc.
const NEXT: &str = "/etc/standin-bootc-next";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let version = if Path::new(NEXT).exists() { LATEST } else { "1.16.9" };
    let done = match words.as_slice() {
        [_, "--version"] => {
            println!("bootc {version}");
            Ok(())
        }
        [_, "standin-install", sysroot, source, target] => install::run(Path::new(sysroot), source, target),
        _ => match Release::new(version).parse(words) {
            Ok(verb) => verbs::run(&verb),
            // On a usage error clap exits with status 2, as bootc does.
            Err(error) => error.exit(),
        },
    };
    if let Err(error) = done {
        eprintln!("error: {error:#}");
        return ExitCode::from(1);
    }
    ExitCode::SUCCESS
}
