//! A stand-in for rpm-ostree's daemon on test hosts with a real systemd, D-Bus and ostree.
//!
//! Clients see [`berth_tests::rpmostreed`]. Beneath are the host's own deployments: ostree stages, locks, finalizes,
//! pins and orders them, and skopeo talks to registries, by the same code as in the stand-in for bootc. Whatever touches them
//! is a process of its own below the daemon, so that it ends with the daemon, however that ends. It never runs outside of tests.

use std::process::ExitCode;

use berth_tests::hosts::real::ostree;

mod daemon;
mod fetch;
mod layers;
mod relay;
mod verbs;

// The parts of the other stand-in that read and write the repository. It has more uses for some of them.
#[allow(dead_code)]
#[path = "../standin-bootc/host.rs"]
mod host;
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
            let mut path = || words.next().unwrap_or_default();
            relay::serve(&path(), &path())
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
