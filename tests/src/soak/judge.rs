//! The judge of a soak. It checks the ground truth of one rollout at a time, so that long runs do not slow down.

use std::collections::BTreeMap;

use anyhow::Result;
use jiff::Timestamp;

use super::liar::Liar;
use super::plan::Plan;
use super::pools::{POOL, SPARE};
use crate::audit::{AuditLog, Record};
use crate::cluster::Cluster;
use crate::hosts::{HostChange, HostEvent};
use berth_judge::{Evidence, Truth};

/// Reads the records of a run rollout by rollout.
#[derive(Debug)]
pub struct Judge {
    audit: AuditLog,
    /// Number of host events that were judged so far.
    events: usize,
    /// Last judged boot of each host, with its Ready event.
    boots: BTreeMap<String, Vec<HostEvent>>,
    /// Last judged write of each object: later writes are compared with it.
    kept: Vec<Record>,
    /// Start of the events that are judged next.
    since: Timestamp,
    /// Liars of the rollouts so far, each with the end of its rollout.
    liars: Vec<(String, Timestamp)>,
}

/// Findings of the judge for a rollout.
#[derive(Debug, Default)]
pub struct Verdict {
    /// All violations, one sentence each.
    pub violations: Vec<String>,
    /// Number of licensed reboots.
    pub licensed: usize,
    /// Requests during the rollout.
    pub records: Vec<Record>,
    /// Events of the hosts during the rollout, and each host's last boot before it.
    pub hosts: Vec<HostEvent>,
}

impl Judge {
    /// Starts with events from now.
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let audit = AuditLog::read(&cluster.control_plane.audit_log())?;
        let mut judge = Self {
            audit,
            events: 0,
            boots: BTreeMap::new(),
            kept: vec![],
            since: Timestamp::now(),
            liars: vec![],
        };
        judge.next(cluster)?;
        Ok(judge)
    }

    /// Restarts from now: earlier events are skipped.
    pub fn next(&mut self, cluster: &Cluster) -> Result<()> {
        self.audit.refresh()?;
        let mut records = std::mem::take(&mut self.kept);
        records.extend(self.audit.take());
        self.kept = last_writes(&records);
        let events = self.new_events(cluster);
        self.keep_boots(&events);
        self.since = Timestamp::now();
        Ok(())
    }

    fn keep_boots(&mut self, events: &[HostEvent]) {
        for event in events {
            let boot = self.boots.entry(event.host.clone()).or_default();
            match event.change {
                HostChange::Up { .. } => *boot = vec![event.clone()],
                HostChange::Ready { .. } => boot.push(event.clone()),
                _ => {}
            }
        }
    }

    fn new_events(&mut self, cluster: &Cluster) -> Vec<HostEvent> {
        let all = cluster.log.events();
        let new = all.get(self.events..).unwrap_or_default().to_vec();
        self.events = all.len();
        new
    }

    /// Judges the events since the last call, with `most` allowed holders and the plan of the rollout.
    pub fn judge(&mut self, cluster: &Cluster, most: usize, plan: &Plan) -> Result<Verdict> {
        self.audit.refresh()?;
        let mut records = std::mem::take(&mut self.kept);
        records.extend(self.audit.take());
        let before = std::mem::take(&mut self.boots);
        let hosts: Vec<_> = before.into_values().flatten().chain(self.new_events(cluster)).collect();
        self.keep_boots(&hosts);
        let excused: Vec<_> = cluster
            .excused()
            .into_iter()
            .filter(|(_, at)| *at >= self.since)
            .collect();
        let capacity = BTreeMap::from([(POOL.to_owned(), most), (SPARE.to_owned(), 1)]);
        let liars: Vec<_> = plan.liar.iter().map(Liar::name).collect();
        let truth = Truth {
            hosts: &hosts,
            audit: &records,
            excused: &excused,
            swapped: &[],
            liars: &liars,
            earlier_liars: &self.liars,
            capacity,
            fleet: plan.fleet,
            evidence: &Evidence::of_harness(),
            lag: plan.lag(),
        };
        let violations = truth.violations().iter().map(ToString::to_string).collect();
        let licensed = truth.licensed_reboots();
        self.kept = last_writes(&records);
        self.since = Timestamp::now();
        self.liars.extend(liars.into_iter().map(|liar| (liar, self.since)));
        Ok(Verdict {
            violations,
            licensed,
            records,
            hosts,
        })
    }
}

/// Last write of each berth, Node, BootcNode, pool and pool status: later writes are compared with them. Also the
/// bindings of the pods that exist.
fn last_writes(records: &[Record]) -> Vec<Record> {
    let mut last: BTreeMap<(String, String), &Record> = BTreeMap::new();
    for record in records.iter().filter(|r| r.is_write() && r.succeeded()) {
        let key = (
            "pods/binding".to_owned(),
            format!("{}/{}", record.namespace, record.name),
        );
        match record.target().as_str() {
            "pods/binding" => {
                last.insert(key, record);
            }
            "pods" if record.verb == "delete" => {
                last.remove(&key);
            }
            _ => {}
        }
    }
    for record in records
        .iter()
        .filter(|r| r.is_write() && r.succeeded() && r.response.is_some())
    {
        let of_interest = [
            "leases",
            "nodes",
            "bootcnodes",
            "bootcnodepools",
            "bootcnodepools/status",
        ];
        if of_interest.contains(&record.target().as_str()) {
            let name = record
                .response
                .as_ref()
                .and_then(|o| o.pointer("/metadata/name"))
                .and_then(|n| n.as_str());
            last.insert((record.target(), name.unwrap_or_default().to_owned()), record);
        }
    }
    last.into_values().cloned().collect()
}
