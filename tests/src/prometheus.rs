//! Prometheus: its server scrapes the programs under test, and promtool checks metrics, alerts and queries.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ports::Port;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::tools::find_program;

/// Interval of scrapes and of rule evaluations.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs promtool in this directory with this standard input; returns its output.
pub fn promtool(directory: &Path, args: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(program("promtool")?)
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run promtool")?;
    child
        .stdin
        .take()
        .context("promtool has no stdin")?
        .write_all(input.as_bytes())?;
    let output = child.wait_with_output()?;
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success(), "promtool {args:?}: {out}{error}");
    Ok(out.into_owned())
}

fn program(name: &str) -> Result<std::path::PathBuf> {
    find_program(name)
        .with_context(|| format!("{name} is not on PATH; make test fetches it, or see https://prometheus.io/download"))
}

/// A running server. Dropping it ends it and removes its files.
#[derive(Debug)]
pub struct Prometheus {
    url: String,
    begin: Timestamp,
    process: Process,
    _port: Port,
    directory: Scratch,
}

/// A series in a query's result.
#[derive(Debug, Clone, Deserialize)]
pub struct Series {
    /// Labels of the series.
    pub metric: std::collections::BTreeMap<String, String>,
    /// Values with their times.
    pub values: Vec<(f64, String)>,
}

impl Prometheus {
    /// Starts a server that scrapes these addresses and evaluates a rule file's `groups`.
    pub fn start(addresses: &[&str], rules: &Value) -> Result<Self> {
        let program = program("prometheus")?;
        let directory = Scratch::new("berth-prometheus-")?;
        let port = Port::reserve()?;
        let address = format!("127.0.0.1:{}", port.number());
        let interval = format!("{}s", INTERVAL.as_secs());
        let config = json!({
            "global": { "scrape_interval": interval, "scrape_timeout": interval, "evaluation_interval": interval },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [
                { "job_name": "berth", "static_configs": [{ "targets": addresses }] },
                { "job_name": "prometheus", "static_configs": [{ "targets": [&address] }] },
            ],
        });
        // JSON is also YAML.
        fs::write(directory.path().join("prometheus.yaml"), config.to_string())?;
        fs::write(directory.path().join("rules.yaml"), rules.to_string())?;
        let mut command = Command::new(program);
        command.current_dir(directory.path()).args([
            "--config.file=prometheus.yaml",
            "--storage.tsdb.path=data",
            "--log.level=warn",
            &format!("--web.listen-address={address}"),
        ]);
        let process = Process::start("prometheus", &command, &directory.path().join("prometheus.log"))?;
        Ok(Self {
            url: format!("http://{address}"),
            begin: Timestamp::now(),
            process,
            _port: port,
            directory,
        })
    }

    /// Returns the result of a query, second by second, since the server's start.
    pub fn range(&mut self, query: &str) -> Result<Vec<Series>> {
        self.process.check()?;
        let [start, end] = [self.begin, Timestamp::now()].map(|time| time.as_second().to_string());
        let (start, end) = (format!("--start={start}"), format!("--end={end}"));
        let args = [
            "query",
            "range",
            "--format=json",
            "--step=1s",
            &start,
            &end,
            &self.url,
            query,
        ];
        let answer = promtool(self.directory.path(), &args, "")?;
        serde_json::from_str(&answer).with_context(|| format!("{query}: {answer}"))
    }
}
