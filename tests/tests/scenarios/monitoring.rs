//! Checks that metrics, alerts, runbooks and the page on monitoring match, with Prometheus's own tool.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, ensure};
use berth_api::berth::Outcome;
use berth_api::condition::{CommonReason, Reason as _, fleet, pool};
use berth_api::node::Phase;
use berth_core::agent::reason::Reason;
use berth_tests::programs::{read, workspace_root};
use berth_tests::prometheus::{Prometheus, Series, promtool};
use serde_json::{Value, json};

const COMPONENT: &str = "manifests/components/monitoring";

/// The rule file for Prometheus from the PrometheusRule.
pub(super) fn rules() -> Result<Value> {
    let mut object: Value = serde_saphyr::from_str(&read(&format!("{COMPONENT}/alerts.yaml"))?)?;
    Ok(object["spec"].take())
}

fn alerts() -> Result<Vec<(String, Value)>> {
    let mut alerts = vec![];
    for group in rules()?["groups"].as_array().context("no groups")? {
        for rule in group["rules"].as_array().context("no rules")? {
            let name = rule["alert"].as_str().context("a rule is not an alert")?;
            alerts.push((name.to_owned(), rule.clone()));
        }
    }
    ensure!(!alerts.is_empty(), "no alerts");
    Ok(alerts)
}

/// Names of all series that the controller and the agent serve.
fn served() -> BTreeSet<String> {
    let controller = berth_controller::metrics::Metrics::default().families();
    let agent = berth_agent::metrics::Metrics::default().families();
    let names = controller.names().iter().chain(agent.names());
    names.cloned().collect()
}

fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'));
    words.filter(|word| is_metric(word)).map(str::to_owned).collect()
}

/// True if a metric could have this name. A digit after the prefix is the version in the name of a package.
fn is_metric(word: &str) -> bool {
    let rest = word.strip_prefix("berth_").unwrap_or_default();
    rest.starts_with(|c: char| c.is_ascii_lowercase()) && !rest.ends_with('_')
}

/// Names of crates, which look like series names.
const OTHERS: [&str; 4] = ["berth_agent", "berth_api", "berth_controller", "berth_core"];

#[test]
fn alerts_are_valid_and_tested() -> Result<()> {
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("rules.yaml"), serde_json::to_string(&rules()?)?)?;
    let tests = read(&format!("{COMPONENT}/alerts-test.yaml"))?;
    fs::write(directory.path().join("alerts-test.yaml"), &tests)?;
    promtool(directory.path(), &["check", "rules", "rules.yaml"], "")?;
    promtool(directory.path(), &["test", "rules", "alerts-test.yaml"], "")?;
    let tests: Value = serde_saphyr::from_str(&tests)?;
    for (alert, _) in alerts()? {
        let cases = tests["tests"].as_array().context("no tests")?.iter();
        let checks = cases.filter_map(|case| case["alert_rule_test"].as_array()).flatten();
        let checks: Vec<_> = checks.filter(|check| check["alertname"] == alert.as_str()).collect();
        let firing = checks
            .iter()
            .filter(|check: &&&Value| check["exp_alerts"].as_array().is_some_and(|all| !all.is_empty()))
            .count();
        ensure!(
            firing > 0 && firing < checks.len(),
            "{alert} has no test, or only one kind"
        );
    }
    Ok(())
}

#[test]
fn alerts_and_runbooks_match() -> Result<()> {
    let directory = workspace_root().join("docs/runbooks");
    let pages = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let pages: BTreeSet<String> = pages.collect::<Result<_>>()?;
    let mut expected = BTreeSet::new();
    for (alert, rule) in alerts()? {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap_or_default();
        ensure!(url.ends_with(&format!("/docs/runbooks/{alert}.md")), "{alert}: {url}");
        for part in ["summary", "description"] {
            ensure!(rule["annotations"][part].is_string(), "{alert} has no {part}");
        }
        let severity = rule["labels"]["severity"].as_str().unwrap_or_default();
        ensure!(
            ["critical", "warning", "info"].contains(&severity),
            "{alert}: {severity}"
        );
        let page = read(&format!("docs/runbooks/{alert}.md"))?;
        for part in ["\n```\nkubectl ", "\n**Meaning.** ", "\n**Fix.**", "\n**Do not** "] {
            ensure!(page.contains(part), "the runbook of {alert} has no {part}");
        }
        ensure!(page.starts_with(&format!("# {alert}: ")), "{alert}.md has no title");
        expected.insert(format!("{alert}.md"));
    }
    ensure!(pages == expected, "runbooks {pages:?}, alerts {expected:?}");
    Ok(())
}

#[test]
fn named_served_and_documented_metrics_match() -> Result<()> {
    let served = served();
    let mut texts = vec![
        (
            format!("{COMPONENT}/alerts.yaml"),
            read(&format!("{COMPONENT}/alerts.yaml"))?,
        ),
        (
            format!("{COMPONENT}/alerts-test.yaml"),
            read(&format!("{COMPONENT}/alerts-test.yaml"))?,
        ),
    ];
    for entry in fs::read_dir(workspace_root().join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "md") {
            texts.push((path.display().to_string(), fs::read_to_string(&path)?));
        }
    }
    for (file, text) in &texts {
        for name in named(text) {
            // A histogram is named without the suffixes of its series.
            let is_histogram = served.contains(&format!("{name}_bucket"));
            ensure!(
                served.contains(&name) || is_histogram || OTHERS.contains(&name.as_str()),
                "{file} names {name}, which nothing serves"
            );
        }
    }
    let page = named(&read("docs/monitoring.md")?);
    for name in &served {
        let histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|part| name.strip_suffix(part));
        let name = histogram.unwrap_or(name);
        ensure!(page.contains(name), "docs/monitoring.md does not have {name}");
    }
    Ok(())
}

#[test]
fn the_page_has_every_event() -> Result<()> {
    let page = read("docs/monitoring.md")?;
    let (_, section) = page.split_once("## Events").context("no such section")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let listed: Vec<&str> = cells
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`'))
        .collect();
    let unique: BTreeSet<&str> = listed.iter().copied().collect();
    ensure!(unique.len() == listed.len(), "an event is listed twice: {listed:?}");
    let known: BTreeSet<&str> = berth_controller::events::REASONS.into_iter().collect();
    ensure!(unique == known, "the page has {unique:?}, the code {known:?}");
    Ok(())
}

/// Queries of the dashboard, with values for Grafana's variables.
fn queries() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(&read(&format!("{COMPONENT}/dashboard.json"))?)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.filter_map(|target| target["expr"].as_str());
    let queries: Vec<_> = queries
        .map(|query| query.replace("$__rate_interval", "5m").replace("$pool", ".*"))
        .collect();
    ensure!(queries.len() > 10, "{} queries", queries.len());
    Ok(queries)
}

#[test]
fn dashboard_queries_use_served_metrics() -> Result<()> {
    let served = served();
    let mut rules = vec![];
    for (number, query) in queries()?.iter().enumerate() {
        ensure!(!query.contains('$'), "a variable that the test does not know: {query}");
        let named = named(query);
        ensure!(!named.is_empty(), "{query} uses no metric of Berth");
        for name in named {
            ensure!(served.contains(&name), "{query} names {name}, which nothing serves");
        }
        rules.push(json!({ "record": format!("query:{number}"), "expr": query }));
    }
    let file = json!({ "groups": [{ "name": "dashboard", "rules": rules }] });
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("queries.yaml"), file.to_string())?;
    promtool(directory.path(), &["check", "rules", "queries.yaml"], "").map(drop)
}

/// Panels that are empty for a healthy fleet whose pool has no windows and has measured only two turns. Medians need
/// three turns.
const EMPTY: [&str; 4] = [
    "berth_pool_degraded_nodes",
    "berth_node_degraded",
    "berth_pool_window_next_open_timestamp_seconds",
    "berth_pool_phase_median_seconds",
];

/// Metric whose panel may or may not be empty, because a node may have been blocked only between two scrapes.
const BRIEF: &str = "berth_node_blocked";

fn last_value(series: &[Series]) -> Option<String> {
    Some(series.first()?.values.last()?.1.clone())
}

/// Runs the dashboard's queries after a rollout was scraped. Each must return values, and no alert may have fired.
pub(super) fn the_dashboard_shows(prometheus: &mut Prometheus) -> Result<()> {
    let mut wrong = vec![];
    for query in queries()? {
        let (is_empty, named) = (prometheus.range(&query)?.is_empty(), named(&query));
        if is_empty != EMPTY.iter().any(|name| named.contains(*name)) && !named.contains(BRIEF) {
            wrong.push(query);
        }
    }
    ensure!(wrong.is_empty(), "panels that are empty, or should be: {wrong:#?}");
    let evaluated = last_value(&prometheus.range("sum(prometheus_rule_group_rules)")?);
    ensure!(evaluated == Some(alerts()?.len().to_string()), "{evaluated:?} rules");
    let failed = last_value(&prometheus.range("sum(prometheus_rule_evaluation_failures_total)")?);
    ensure!(failed.as_deref() == Some("0"), "{failed:?} evaluations have failed");
    let fired = prometheus.range(r#"ALERTS{alertstate="firing"}"#)?;
    ensure!(fired.is_empty(), "{fired:?}");
    Ok(())
}

/// Possible values of a label of a series, if the code defines them.
fn words(series: &str, label: &str) -> Option<Vec<&'static str>> {
    let others = CommonReason::ALL.iter().map(|why| why.word());
    let outcomes = Outcome::ALL.iter().map(|outcome| outcome.as_str());
    Some(match (series, label) {
        ("berth_fleet_condition", "condition") => fleet::ALL.to_vec(),
        (_, "condition") => pool::ALL.to_vec(),
        (_, "phase") => Phase::ALL.iter().map(|phase| phase.as_str()).collect(),
        ("berth_pool_degraded_nodes", "reason") => {
            let of_hosts = Reason::ALL.iter().map(|reason| reason.word());
            of_hosts.chain(others).chain(outcomes).collect()
        }
        _ => return None,
    })
}

/// Fails if a query compares a label that [`words`] knows with an impossible value. Returns the number of compared
/// values.
fn compared(query: &str) -> Result<usize> {
    let mut count = 0;
    for (at, _) in query.match_indices('{') {
        let (before, rest) = query.split_at(at);
        let series = before
            .rsplit(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
            .next()
            .unwrap_or_default();
        let matchers = rest.split('}').next().unwrap_or_default().trim_start_matches('{');
        for matcher in matchers.split(',') {
            let (label, values) = matcher.split_once('"').context("a matcher without a value")?;
            let label = label.trim_end_matches(['=', '!', '~']);
            let Some(known) = words(series, label) else {
                continue;
            };
            for value in values.trim_end_matches('"').split('|') {
                ensure!(
                    known.iter().any(|word: &&str| match value.strip_prefix(".*") {
                        Some(end) => word.ends_with(end),
                        None => *word == value,
                    }),
                    "{query}: no {label} of {series} is {value}"
                );
                count += 1;
            }
        }
    }
    Ok(count)
}

#[test]
fn label_values_in_queries_exist() -> Result<()> {
    let alerts = alerts()?;
    let alerts = alerts.iter().filter_map(|(_, rule)| rule["expr"].as_str());
    let mut counts = (0, 0);
    for query in alerts {
        counts.0 += compared(query)?;
    }
    for query in queries()? {
        counts.1 += compared(&query)?;
    }
    ensure!(counts.0 > 5 && counts.1 > 3, "too few are found: {counts:?}");
    ensure!(compared("max(berth_fleet_condition{condition=\"Unguarded\"})").is_err());
    ensure!(compared("berth_pool_degraded_nodes{pool=\"p\",reason!=\"Drained\"} > 0").is_err());
    Ok(())
}

#[test]
fn bad_names_and_missing_help_are_refused() -> Result<()> {
    let directory = tempfile::tempdir()?;
    promtool(
        directory.path(),
        &["check", "metrics"],
        "# HELP berth_leader 1 for the leader.\n# TYPE berth_leader gauge\nberth_leader 1\n",
    )?;
    ensure!(
        promtool(
            directory.path(),
            &["check", "metrics"],
            "# TYPE berth_turns counter\nberth_turns 1\n"
        )
        .is_err()
    );
    Ok(())
}
