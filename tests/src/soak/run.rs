//! A run of the soak: a cluster and consecutive rollouts on it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use kube::api::ListParams;
use serde_json::json;

use super::attack::{Attack, Report};
use super::draw::{CAPACITY, CONTROLLERS};
use super::fault::{Fault, Rescue};
use super::inject::Injector;
use super::judge::{Judge, Verdict};
use super::plan::Plan;
use super::pools::{LABEL_SPARE, POOL, SPARE};
use crate::cluster::{Cluster, ClusterOptions, Published};
use crate::hosts::sim::Settings;
use crate::programs::{self, Programs};

/// Number of hosts of a soak.
pub const HOSTS: usize = 12;
/// Timeout for a rollout to settle after its last fault.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(150);
/// Timeout for a rollout to settle if the agent must notice a lost reboot. The agent needs a minute, and waits another
/// minute before it retries.
const LOST_REBOOT_TIMEOUT: Duration = Duration::from_secs(200);
/// Number of pods to drain from node to node.
const PODS: usize = 6;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Deliberate bug of agents and controllers.
    pub bug: Option<String>,
    /// Number of hosts.
    pub hosts: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bug: None,
            hosts: HOSTS,
        }
    }
}

/// Result of a rollout.
#[derive(Debug)]
pub struct Outcome {
    /// Duration of the rollout with its faults.
    pub took: Duration,
    /// Findings of the judge. A rollout that did not settle violates I10.
    pub verdict: Verdict,
    /// State of the cluster, if there was a violation.
    pub state: Option<String>,
    /// The liar's acts, if there was one.
    pub attack: Option<Report>,
}

/// A cluster for rollouts.
#[derive(Debug)]
pub struct Soak {
    /// The cluster.
    pub cluster: Cluster,
    judge: Judge,
    /// Image that all hosts should run before the rollout.
    before: Published,
}

impl Soak {
    /// Starts the cluster.
    pub async fn start(options: &Options) -> Result<Self> {
        let cluster = Cluster::start(cluster_options(options)?).await?;
        for number in 0..CONTROLLERS {
            cluster.controllers.start(number)?;
        }
        cluster.deploy("web", PODS).await?;
        let before = cluster.publish("1.0.0").await?;
        let judge = Judge::new(&cluster)?;
        Ok(Self { cluster, judge, before })
    }

    /// Runs and judges a rollout with all faults of its plan.
    pub async fn rollout(&mut self, plan: &Plan) -> Result<Outcome> {
        let target = self.cluster.publish(&format!("{}.0.0", plan.rollout + 2)).await?;
        let bad = self.bad_image(plan).await?;
        let injector = Injector {
            cluster: &self.cluster,
            target: &target,
            other: &self.before,
            bad: bad.as_ref(),
        };
        injector.cordon_all(&plan.cordoned.0, true).await?;
        if let Some(order) = plan.order {
            injector.move_away(order.node).await?;
        }
        Attack::prepare(&self.cluster, plan).await?;
        self.judge.next(&self.cluster)?;
        let start = Instant::now();
        self.ask_for(&target, plan).await?;
        let attack = Attack::start(&self.cluster, plan, [&target, &self.before]).await?;
        let struck = injector.run(plan).await;
        injector.calm().await?;
        let settled = match (struck, &attack) {
            (Ok(()), _) => self.settle(&target, plan, attack.as_ref()).await,
            // With a liar, a command of an admin that fails is a violation.
            (Err(error), Some(_)) => Err(error),
            (Err(error), None) => return Err(error),
        };
        let outcome = judged(&self.cluster, &mut self.judge, plan, settled, start.elapsed(), attack).await?;
        injector.cordon_all(&plan.cordoned.0, false).await?;
        for node in plan.moved_to_the_end() {
            injector.move_back(node).await?;
        }
        self.before = target;
        Ok(outcome)
    }

    async fn bad_image(&self, plan: &Plan) -> Result<Option<Published>> {
        if !plan.all_faults().any(|fault| matches!(fault, Fault::BadImage(_))) {
            return Ok(None);
        }
        let bad = self.cluster.publish(&format!("{}.6.6", plan.rollout + 2)).await?;
        for host in &self.cluster.fleet.hosts {
            host.settings(|s| s.never_ready.insert(bad.digest.to_string()));
        }
        Ok(Some(bad))
    }

    async fn ask_for(&self, target: &Published, plan: &Plan) -> Result<()> {
        let rollout = json!({
            "maxStaging": "100%",
            // Short, so that a holder that does not come back is sometimes overdue: that must have no effect.
            "rebootTimeout": "5s",
            // Nodes that vanish after their commit count as failures of the image; the new token retries them.
            "maxFailures": max_failures(plan), "retryToken": format!("rollout-{}", plan.rollout), "paused": false,
        });
        if self.cluster.pools().get_opt(POOL).await?.is_none() {
            self.cluster
                .pool(POOL, &self.before.reference, json!({ "maxUnavailable": CAPACITY }))
                .await?;
            let others = json!({ "matchExpressions": [{ "key": LABEL_SPARE, "operator": "DoesNotExist" }] });
            self.cluster.patch_pool(POOL, json!({ "nodeSelector": others })).await?;
            let spare = json!({ LABEL_SPARE: "true" });
            self.cluster
                .pool_of(SPARE, spare, &self.before.reference, json!({ "maxUnavailable": 1 }))
                .await?;
        }
        let first = plan.order.map(|order| if order.spare_first { SPARE } else { POOL });
        self.cluster.limit_fleet(plan.fleet).await?;
        for (pool, capacity, other) in [(SPARE, 1, POOL), (POOL, CAPACITY, SPARE)] {
            let mut rollout = rollout.clone();
            let after = first.filter(|first| *first == other);
            (rollout["maxUnavailable"], rollout["after"]) = (json!(capacity), json!(Vec::from_iter(after)));
            let spec = json!({ "image": { "ref": target.reference }, "rollout": rollout });
            self.cluster.patch_pool(pool, spec).await?;
        }
        Ok(())
    }

    /// Checks I10: after the faults, all nodes are updated, all berths are given back, and only admins' cordons remain.
    async fn settle(&self, target: &Published, plan: &Plan, attack: Option<&Attack<'_>>) -> Result<()> {
        let token = json!({ "rollout": { "retryToken": format!("rollout-{}-again", plan.rollout) } });
        for pool in [POOL, SPARE] {
            self.cluster.patch_pool(pool, token.clone()).await?;
        }
        let alone = plan
            .all_faults()
            .any(|f| matches!(f, Fault::LostReboot(_, Rescue::Nothing, _)));
        if let Some(attack) = attack {
            return attack.settle(target, alone).await;
        }
        let limit = if alone { LOST_REBOOT_TIMEOUT } else { SETTLE_TIMEOUT };
        let start = Instant::now();
        self.cluster.until_all_run(target, limit).await?;
        let left = limit.saturating_sub(start.elapsed()).max(Duration::from_secs(1));
        self.cluster
            .until("every berth is closed and every cordon is undone", left, || {
                self.is_tidy(plan)
            })
            .await
    }

    async fn is_tidy(&self, plan: &Plan) -> Result<bool> {
        let params = ListParams::default().labels(berth_api::keys::LABEL_POOL);
        let berths = self.cluster.berths().list(&params).await?;
        for berth in berths {
            let holder = berth.spec.and_then(|spec| spec.holder_identity);
            if holder.is_none_or(|holder| !holder.starts_with("closed:")) {
                return Ok(false);
            }
        }
        let nodes = self.cluster.nodes().list(&ListParams::default()).await?;
        let cordoned: Vec<_> = plan.cordoned_to_the_end().iter().map(|n| format!("node{n}")).collect();
        let fine = nodes.iter().filter(|node| {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let unschedulable = node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
            let ours = node.metadata.annotations.as_ref();
            let ours = ours.is_some_and(|a| a.contains_key(berth_api::keys::ANNOTATION_CORDON));
            !ours && unschedulable == cordoned.iter().any(|c| c == name)
        });
        let all = self.cluster.fleet.hosts.len();
        Ok(nodes.items.len() == all && fine.count() == all)
    }
}

/// Ends the attack, if there is one, and judges the rollout.
async fn judged(
    cluster: &Cluster,
    judge: &mut Judge,
    plan: &Plan,
    settled: Result<()>,
    took: Duration,
    attack: Option<Attack<'_>>,
) -> Result<Outcome> {
    let mut state = None;
    if settled.is_err() {
        state = Some(cluster.describe().await);
    }
    let attack = match attack {
        Some(attack) => Some(attack.end().await?),
        None => None,
    };
    let mut verdict = judge.judge(cluster, most(plan), plan)?;
    if let Err(error) = settled {
        let what = format!("{error:#}");
        let line = what.lines().next().unwrap_or_default();
        verdict
            .violations
            .push(format!("I10: the rollout did not settle: {line}"));
    }
    let found = attack.iter().flat_map(|report| report.violations.clone());
    verdict.violations.extend(found);
    if state.is_none() && !verdict.violations.is_empty() {
        state = Some(cluster.describe().await);
    }
    Ok(Outcome {
        took,
        verdict,
        state,
        attack,
    })
}

/// `maxFailures` of a rollout. The liar's lies count as one failure at most. With one more than that and the honest
/// failures, nothing halts the rollout.
fn max_failures(plan: &Plan) -> usize {
    match plan.liar {
        Some(_) => 2 + plan.may_fail(),
        None => HOSTS,
    }
}

/// The largest capacity at any time of a rollout.
fn most(plan: &Plan) -> usize {
    let edited = plan.all_faults().map(|fault| match fault {
        Fault::Resize(first, second, _) => usize::try_from(*first.max(second)).unwrap_or(0),
        _ => 0,
    });
    edited.max().unwrap_or(0).max(CAPACITY)
}

fn cluster_options(options: &Options) -> Result<ClusterOptions> {
    let mut cluster = ClusterOptions {
        hosts: options.hosts,
        settings: Settings {
            reboot_time: Duration::from_millis(200),
            ..Settings::default()
        },
        proxied_controllers: CONTROLLERS,
        ..ClusterOptions::default()
    };
    if let Some(bug) = &options.bug {
        let env = vec![("BERTH_SEEDED_BUG".to_owned(), bug.clone())];
        let Programs { agent, controller } = programs::seeded()?;
        (cluster.agent, cluster.controller) = (Some(agent), Some(controller));
        (cluster.agent_env, cluster.controller_env) = (env.clone(), env);
    }
    Ok(cluster)
}

/// Writes the evidence of a rollout with a violation; returns its directory.
pub fn keep_evidence(soak: &Soak, run: u64, plan: &Plan, outcome: &Outcome) -> Result<PathBuf> {
    let directory = super::state::directory()?.join(format!("evidence-{run}-{}", plan.rollout));
    std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
    let verdict = &outcome.verdict;
    let hosts: Vec<_> = verdict.hosts.iter().map(|event| json!(event).to_string()).collect();
    let writes = verdict.records.iter().filter(|r| r.is_write() || !r.succeeded());
    let writes: Vec<_> = writes.map(|record| json!(record).to_string()).collect();
    let lies = outcome.attack.as_ref();
    let lies = lies.map(|report| format!("{}\n{}", report.tally, report.acts.join("\n")));
    for (name, text) in [
        ("plan.txt", format!("{plan}\n")),
        ("lies.txt", lies.unwrap_or_default()),
        ("violations.txt", verdict.violations.join("\n")),
        ("state.txt", outcome.state.clone().unwrap_or_default()),
        ("hosts.jsonl", hosts.join("\n")),
        ("writes.jsonl", writes.join("\n")),
    ] {
        let file = directory.join(name);
        std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
    }
    for host in &soak.cluster.fleet.hosts {
        copy_tail(&host.agent_log(), &directory.join(format!("agent-{}.log", host.name())))?;
    }
    for number in 0..CONTROLLERS {
        let log = format!("berth-controller-{number}.log");
        copy_tail(
            &soak.cluster.control_plane.directory().join(&log),
            &directory.join(&log),
        )?;
    }
    Ok(directory)
}

/// Copies the end of a log, at most 4 MiB, which is enough for a whole rollout.
fn copy_tail(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    const MOST: usize = 4 * 1024 * 1024;
    let text = std::fs::read(from).unwrap_or_default();
    let tail = text.get(text.len().saturating_sub(MOST)..).unwrap_or_default();
    std::fs::write(to, tail).with_context(|| format!("writing {}", to.display()))
}
