//! A stand-in for rpm-ostree's daemon on test hosts with a real systemd, D-Bus and ostree.
//!
//! Its D-Bus interface is [`berth_tests::rpmostreed`]. The daemon works on the host's own deployments: ostree stages,
//! locks, finalizes, pins and orders them, and skopeo talks to registries, with the same code as the stand-in for
//! bootc. Each change runs in a child process, which ends together with the daemon. For tests only.

use std::process::ExitCode;

use berth_tests::hosts::real::ostree;

mod daemon;
mod fetch;
mod layers;
mod relay;
mod verbs;

// The parts of the stand-in for bootc that read and write the repository. Some of their functions are unused here.
#[allow(dead_code)]
#[path = "../standin-bootc/image.rs"]
mod image;
#[path = "../standin-bootc/origin.rs"]
mod origin;
#[allow(dead_code)]
#[path = "../standin-bootc/progress.rs"]
mod progress;
#[path = "../standin-bootc/proxy.rs"]
mod proxy;
#[path = "../standin-bootc/pull.rs"]
mod pull;
#[path = "../standin-bootc/run.rs"]
mod run;
#[allow(dead_code)]
#[path = "../standin-bootc/sysroot.rs"]
mod sysroot;
#[path = "../standin-bootc/throttle.rs"]
mod throttle;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next();
    let done = match verb.as_deref() {
        None => daemon::serve(),
        Some("relay") => {
            let (listen, connect) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            relay::serve(&listen, &connect)
        }
        Some(verb) => verbs::dispatch(verb, words.next().as_deref()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
