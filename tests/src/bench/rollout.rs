//! Rollouts of ten nodes, one at a time: the time that Berth adds to staging and reboots, and its writes.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use super::figure::{Figure, median, round};
use super::fleet::{Fleet, HOSTS, Span};
use super::settings::{Run, runs};
use super::turns;
use crate::writes::{Kind, Writes};

pub(super) const BENCHES: [&str; 6] = [
    "rollout-overhead",
    "rollout-writes",
    "rollout-lease-writes",
    "rollout-pool-writes",
    "rollout-events",
    "proof-after-ready",
];

#[derive(Debug, Default)]
struct Measured {
    overhead: Vec<f64>,
    floor: Vec<f64>,
    seconds: Vec<f64>,
    writes: Vec<f64>,
    leases: Vec<f64>,
    pool: Vec<f64>,
    events: Vec<f64>,
    refused: Vec<f64>,
    causes: BTreeMap<String, Vec<f64>>,
    stretches: BTreeMap<&'static str, Vec<f64>>,
}

pub(super) async fn measure(fleet: &Fleet, run: &Run) -> Result<()> {
    let (selected, progress) = (run, run.progress);
    let mut all = Measured::default();
    for run in 0..runs() {
        progress.say("rebooting every host without Berth, one after the other");
        let mut plain = vec![];
        for host in &fleet.cluster.fleet.hosts {
            plain.push(fleet.plain_reboot(host).await?);
        }
        let image = fleet.cluster.publish(&format!("2.{run}.0")).await?;
        // The agents must see their hosts up again before the next change.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        progress.say("rolling out, one node at a time");
        let span = fleet.roll(&image).await?;
        progress.say(&format!(
            "took {:.2} s; plain reboots {:.2} s",
            span.seconds,
            plain.iter().sum::<f64>()
        ));
        all.add(fleet, span, &plain)?;
    }
    all.print(selected);
    Ok(())
}

impl Measured {
    fn add(&mut self, fleet: &Fleet, span: Span, plain: &[f64]) -> Result<()> {
        let nodes = HOSTS as f64;
        // All pulls run at the same time, before the first reboot.
        let staging = fleet.cluster.host(1).settings(|s| s.pull_time.as_secs_f64());
        self.overhead
            .push((span.seconds - staging - plain.iter().sum::<f64>()) / nodes);
        self.floor.push(median(plain));
        self.seconds.push(span.seconds);
        let records = fleet.requests(span.begin, span.end)?;
        let writes = Writes::of(records.iter())?;
        for (kind, runs) in [
            (Kind::Node, &mut self.writes),
            (Kind::Berth, &mut self.leases),
            (Kind::Pool, &mut self.pool),
            (Kind::Event, &mut self.events),
            (Kind::Refused, &mut self.refused),
        ] {
            runs.push(writes.count(kind) as f64 / nodes);
        }
        for (cause, share) in writes.per_node(HOSTS) {
            self.causes.entry(cause).or_default().push(share);
        }
        for (name, lengths) in turns::stretches(&records, &fleet.cluster.log.events(), span.begin) {
            self.stretches.entry(name).or_default().extend(lengths);
        }
        Ok(())
    }

    fn print(&self, run: &Run) {
        if run.wants("rollout-overhead") {
            let stretches: BTreeMap<_, _> = self
                .stretches
                .iter()
                .map(|(name, runs)| (name, round_median(runs)))
                .collect();
            Figure::new("rollout-overhead", "s per node", &self.overhead)
                .aim(0.2)
                .peer(0.4)
                .floor(&self.floor)
                .detail("whole rollout, s", json!(round_median(&self.seconds)))
                .detail("stretches of a turn, s", json!(stretches))
                .print();
        }
        if let Some(proofs) = self
            .stretches
            .get(turns::PROOF)
            .filter(|_| run.wants("proof-after-ready"))
        {
            Figure::new(
                "proof-after-ready",
                "s from a Ready Node to the end of its proof",
                proofs,
            )
            .aim(0.1)
            .print();
        }
        let causes = self.causes.iter().map(|(cause, runs)| (cause, round_median(runs)));
        let causes: BTreeMap<_, _> = causes.collect();
        if run.wants("rollout-writes") {
            Figure::new("rollout-writes", "BootcNode and Node writes per node", &self.writes)
                .aim(8.0)
                .peer(20.3)
                .detail("refused", json!(round_median(&self.refused)))
                .detail("per node", json!(causes))
                .print();
        }
        for (name, unit, runs, aim) in [
            (BENCHES[2], "writes of berths per node", &self.leases, 5.0),
            (BENCHES[3], "writes of the pool's status per node", &self.pool, 1.5),
            (BENCHES[4], "events per node", &self.events, 2.2),
        ] {
            if run.wants(name) {
                Figure::new(name, unit, runs).aim(aim).print();
            }
        }
    }
}

fn round_median(runs: &[f64]) -> f64 {
    round(median(runs))
}
