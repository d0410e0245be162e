//! Prometheus: its server, which scrapes what runs, and its own tool, by which metrics, alerts and queries are judged.

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

/// Time between two scrapes, and between two evaluations of the rules.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs promtool in this directory, with this on its standard input. Answers what it said.
///
/// # Errors
/// When it is not on `PATH`, or finds something; with all that it said.
pub fn promtool(directory: &Path, args: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new(program("promtool")?)
        .args(args)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run promtool")?;
    child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
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

/// A running server. It ends when dropped, and its files go.
#[derive(Debug)]
pub struct Prometheus {
    url: String,
    begin: Timestamp,
    process: Process,
    _port: Port,
    directory: Scratch,
}

/// A series of a query's answer.
#[derive(Debug, Clone, Deserialize)]
pub struct Series {
    /// Its labels.
    pub metric: std::collections::BTreeMap<String, String>,
    /// Its values with their times.
    pub values: Vec<(f64, String)>,
}

impl Prometheus {
    /// Starts one that scrapes these addresses and evaluates a rule file's `groups`.
    ///
    /// # Errors
    /// When it is not on `PATH` or cannot be started.
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
        // Either is YAML as it is JSON.
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

    /// All that a query yields, second by second, from the server's start until now.
    ///
    /// # Errors
    /// When the server has ended, or refuses the query.
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
