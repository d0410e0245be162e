//! Rollouts of ten nodes, one at a time: the time that Berth adds to staging and reboots, and its writes.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use super::fleet::{Fleet, HOSTS, Span, by_agent, by_controller};
use super::{Figure, Progress, Selection, median, runs, turns};
use crate::audit::Record;

/// The figures of this module.
pub const BENCHES: [&str; 3] = ["rollout-overhead", "rollout-writes", "rollout-lease-writes"];

/// Measurements of the rollouts, run by run.
#[derive(Debug, Default)]
struct Measured {
    overhead: Vec<f64>,
    floor: Vec<f64>,
    seconds: Vec<f64>,
    writes: Vec<f64>,
    leases: Vec<f64>,
    refused: Vec<f64>,
    kinds: BTreeMap<String, Vec<f64>>,
    stretches: BTreeMap<&'static str, Vec<f64>>,
}

/// Measures all of it.
pub async fn measure(fleet: &Fleet, selection: &Selection, progress: Progress) -> Result<()> {
    let mut all = Measured::default();
    for run in 0..runs() {
        progress.say("plain reboots of every host, one after the other");
        let mut plain = vec![];
        for host in &fleet.cluster.fleet.hosts {
            plain.push(fleet.plain_reboot(host).await?);
        }
        let image = fleet.cluster.publish(&format!("2.{run}.0")).await?;
        // The agents have to see their hosts up again before the next change.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        progress.say("a rollout, one node at a time");
        let span = fleet.roll(&image).await?;
        progress.say(&format!(
            "took {:.2} s; plain reboots {:.2} s",
            span.seconds,
            plain.iter().sum::<f64>()
        ));
        all.add(fleet, span, &plain)?;
    }
    all.print(selection);
    Ok(())
}

impl Measured {
    fn add(&mut self, fleet: &Fleet, span: Span, plain: &[f64]) -> Result<()> {
        let nodes = HOSTS as f64;
        // All pulls run at the same time before the first reboot.
        let staging = fleet.cluster.host(1).settings(|s| s.pull_time.as_secs_f64());
        self.overhead
            .push((span.seconds - staging - plain.iter().sum::<f64>()) / nodes);
        self.floor.push(median(plain));
        self.seconds.push(span.seconds);
        let records = fleet.requests(span.begin, span.end)?;
        let ours = |r: &&Record| (by_agent(r) || by_controller(r)) && r.is_write() && r.stage == "ResponseComplete";
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let (mut writes, mut leases, mut refused) = (0, 0, 0);
        for record in records.iter().filter(ours) {
            let who = if by_agent(record) { "agent" } else { "controller" };
            let target = record.target();
            match target.as_str() {
                // The leader renews its Lease whether or not there is a rollout.
                "leases" if record.name == "berth-controller" => continue,
                _ if !record.succeeded() => refused += 1,
                "leases" => leases += 1,
                "bootcnodes" | "bootcnodes/status" | "nodes" | "nodes/status" => writes += 1,
                _ => {}
            }
            *kinds
                .entry(format!("{who} {} {target} {}", record.verb, record.code))
                .or_default() += 1;
        }
        self.writes.push(f64::from(writes) / nodes);
        self.leases.push(f64::from(leases) / nodes);
        self.refused.push(f64::from(refused) / nodes);
        for (kind, count) in kinds {
            self.kinds.entry(kind).or_default().push(count as f64 / nodes);
        }
        for (name, lengths) in turns::stretches(&records, &fleet.cluster.log.events(), span.begin) {
            self.stretches.entry(name).or_default().extend(lengths);
        }
        Ok(())
    }

    fn print(&self, selection: &Selection) {
        let rounded = |runs: &Vec<f64>| (median(runs) * 1000.0).round() / 1000.0;
        if selection.wants("rollout-overhead") {
            let stretches: BTreeMap<_, _> = self
                .stretches
                .iter()
                .map(|(name, runs)| (name, rounded(runs)))
                .collect();
            Figure::new("rollout-overhead", "s per node", &self.overhead)
                .aim(0.2)
                .peer(0.4)
                .floor(&self.floor)
                .detail("whole rollout, s", json!(rounded(&self.seconds)))
                .detail("stretches of a turn, s", json!(stretches))
                .print();
        }
        let kinds: BTreeMap<_, _> = self.kinds.iter().map(|(kind, runs)| (kind, rounded(runs))).collect();
        if selection.wants("rollout-writes") {
            Figure::new("rollout-writes", "BootcNode and Node writes per node", &self.writes)
                .aim(10.0)
                .peer(20.3)
                .detail("refused", json!(rounded(&self.refused)))
                .detail("per node", json!(kinds))
                .print();
        }
        if selection.wants("rollout-lease-writes") {
            Figure::new("rollout-lease-writes", "writes of berths per node", &self.leases)
                .aim(5.0)
                .print();
        }
    }
}
