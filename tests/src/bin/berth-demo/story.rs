//! The rollout in plain sentences, from the ground truth: the harness's record of the hosts, and the audit log. Berth's own
//! reports are not used.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use berth_api::Digest;
use berth_tests::cluster::Site;
use berth_tests::hosts::{HostChange, HostEvent};
use jiff::Timestamp;

#[derive(Debug, Default, Clone, PartialEq)]
struct Part {
    /// Pulls that staged the image: start and seconds.
    pulls: Vec<(Timestamp, f64)>,
    downs: Vec<Timestamp>,
    boots: Vec<(Timestamp, String, String)>,
}

fn parts(events: &[HostEvent], from: Timestamp) -> BTreeMap<String, Part> {
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    let mut pulling: BTreeMap<String, Timestamp> = BTreeMap::new();
    for event in events.iter().filter(|event| event.at >= from) {
        let part = parts.entry(event.host.clone()).or_default();
        match &event.change {
            HostChange::PullStarted { .. } => drop(pulling.insert(event.host.clone(), event.at)),
            HostChange::PullEnded { .. } => {
                if let Some(began) = pulling.remove(&event.host) {
                    part.pulls.push((began, seconds(began, event.at)));
                }
            }
            HostChange::Down => part.downs.push(event.at),
            HostChange::Up { digest, version, .. } => {
                part.boots.push((event.at, digest.clone(), version.clone()));
            }
            HostChange::Ready { .. } => {}
        }
    }
    parts
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// Returns a sentence such as `node1  pulled for 3.0 s from 0.4 s on, went down at 8.1 s and booted 2.0.0 at 10.2 s`.
fn sentence(host: &str, part: &Part, from: Timestamp) -> String {
    let mut words: Vec<String> = part
        .pulls
        .iter()
        .map(|(at, took)| format!("pulled for {took:.1} s from {:.1} s on", seconds(from, *at)))
        .collect();
    let boots = part.downs.iter().zip(&part.boots);
    words.extend(boots.map(|(down, (up, _, version))| {
        format!(
            "went down at {:.1} s and booted {version} at {:.1} s",
            seconds(from, *down),
            seconds(from, *up)
        )
    }));
    format!("  {host}  {}", words.join(", "))
}

/// Prints the story of the rollout that began at `from`, and the judge's verdict.
pub(crate) fn print(site: &Site, from: Timestamp, hosts: usize, old: &Digest, new: &Digest) -> Result<()> {
    let parts = parts(&site.log.events(), from);
    println!("\nWhat the hosts did, from the harness's own record (seconds since the change):");
    for (host, part) in &parts {
        println!("{}", sentence(host, part, from));
    }
    ensure!(
        parts.len() == hosts,
        "only {} of {hosts} hosts have events",
        parts.len()
    );
    let new = new.to_string();
    for part in parts.values() {
        let is_once = matches!(part.boots.as_slice(), [(_, digest, _)] if *digest == new);
        ensure!(is_once, "each host should go from {old} to {new} with one boot");
    }
    site.judge().context("the judge found a violation")?;
    let reboots: usize = parts.values().map(|part| part.downs.len()).sum();
    println!(
        "\nThe judge, from that record and the API server's audit log: no violation.\n  \
         {reboots} reboots, each under a committed berth for that node, digest and boot; never two nodes updating at\n  \
         once; no cordon or eviction without a berth; no boot of an image other than the berth's."
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_s_part_reads_as_a_sentence() {
        let from: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let digest = "sha256:x".to_owned();
        let [first, second] = ["1", "2"].map(|version| HostChange::Up {
            boot_id: String::new(),
            digest: digest.clone(),
            version: version.to_owned(),
        });
        let ended = HostChange::PullEnded {
            digest: digest.clone(),
            ok: true,
        };
        let events = [
            (-5, first),
            (1, HostChange::PullStarted { digest }),
            (4, ended),
            (5, HostChange::Down),
            (7, second),
        ];
        let events = events.map(|(second, change)| HostEvent {
            at: from + jiff::SignedDuration::from_secs(second),
            host: "node1".to_owned(),
            change,
        });
        let parts = parts(&events, from);
        assert_eq!(
            sentence("node1", &parts["node1"], from),
            "  node1  pulled for 3.0 s from 1.0 s on, went down at 5.0 s and booted 2 at 7.0 s"
        );
    }
}
