//! Health checks that `docs/gitops.md` gives to tools that wait for a pool, run on the golden states of a pool: the
//! script for Argo CD by Lua, the expressions for Flux by the API server.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_api::pool::BootcNodePool;
use berth_tests::programs::read;
use berth_tests::tools::find_program;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::refusal;

/// Time limit until an admission policy takes effect.
const SOON: Duration = Duration::from_secs(30);

/// Each golden state: its health in Argo CD, and its status in Flux.
const STATES: [(&str, &str, Flux); 8] = [
    ("updated", "Healthy", Flux::Current),
    ("without nodes", "Healthy", Flux::Current),
    ("waits for its window", "Progressing", Flux::Waits),
    ("has degraded nodes", "Progressing", Flux::Waits),
    ("paused", "Suspended", Flux::Current),
    ("paused when done", "Healthy", Flux::Current),
    ("halted", "Degraded", Flux::Failed),
    ("image refused", "Degraded", Flux::Failed),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flux {
    Current,
    Failed,
    Waits,
}

fn golden() -> Result<BTreeMap<String, Value>> {
    let text = read("tests/tests/golden/pool-states.json")?;
    let states: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    let known: Vec<&str> = STATES.iter().map(|(name, ..)| *name).collect();
    let all = states.len() == known.len() && known.iter().all(|name| states.contains_key(*name));
    ensure!(all, "the golden states are {:?}, expected {known:?}", states.keys());
    Ok(states)
}

/// The script on the page, without its indentation.
fn script() -> Result<String> {
    let page = read("docs/gitops.md")?;
    let (_, rest) = page
        .split_once("health.berth.dev_BootcNodePool: |\n")
        .context("docs/gitops.md has no script")?;
    let (script, _) = rest.split_once("```").context("the script does not end")?;
    Ok(script.lines().map(|line| line.trim_start().to_owned() + "\n").collect())
}

fn lua(value: &Value) -> String {
    match value {
        Value::Null => "nil".to_owned(),
        Value::Array(all) => format!("{{{}}}", all.iter().map(lua).collect::<Vec<_>>().join(", ")),
        Value::Object(all) => {
            let fields = all.iter().map(|(key, value)| format!("[{key:?}] = {}", lua(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        plain => plain.to_string(),
    }
}

fn health(script: &str, generation: u64, status: &Value) -> Result<String> {
    let object = json!({"metadata": {"generation": generation}, "status": status});
    let program = find_program("lua5.1").context("lua5.1 is not on PATH; install Debian's package lua5.1")?;
    let mut child = Command::new(program)
        .arg("-")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run lua5.1")?;
    let whole = format!(
        "obj = {}\nlocal function health()\n{script}\nend\nlocal out = health()\nassert(out.message)\nprint(out.status)\n",
        lua(&object)
    );
    child.stdin.take().context("no stdin")?.write_all(whole.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "lua5.1: {output:?} for\n{whole}");
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[test]
fn argo_cd_reads_every_state() -> Result<()> {
    let (script, states) = (script()?, golden()?);
    for (name, expected, _) in STATES {
        let status = &states[name];
        let found = health(&script, 1, status)?;
        ensure!(found == expected, "{name}: Argo CD shows {found}, expected {expected}");
        let found = health(&script, 2, status)?;
        ensure!(found == "Progressing", "{name}, of an older spec: {found}");
    }
    for status in [Value::Null, json!({}), json!({"observedGeneration": 1})] {
        let found = health(&script, 1, &status)?;
        ensure!(found == "Progressing", "{status}: Argo CD shows {found}");
    }
    Ok(())
}

/// Returns an expression of the page with `object.` before its fields, as an admission policy needs them.
fn expression(page: &str, field: &str) -> Result<String> {
    let line = page
        .lines()
        .find_map(|line| line.trim().strip_prefix(&format!("{field}: \"")));
    let text = line.and_then(|line| line.strip_suffix('"'));
    let text = text.with_context(|| format!("docs/gitops.md has no {field}"))?;
    let mut out = String::new();
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        let begins = !(before.is_alphanumeric() || matches!(before, '.' | '_'));
        if begins && ["status.", "metadata."].iter().any(|root| text[at..].starts_with(root)) {
            out += "object.";
        }
        out.push(c);
        before = c;
    }
    Ok(out)
}

/// Fails unless Flux's expressions distinguish the golden states. The API server evaluates the expressions in a policy.
/// The policy refuses each status, and its message contains the results.
pub async fn flux_reads_every_state(client: &Client) -> std::result::Result<(), String> {
    flux(client).await.map_err(|error| format!("Flux: {error:#}"))
}

async fn flux(client: &Client) -> Result<()> {
    let page = read("docs/gitops.md")?;
    let [in_progress, failed, current] = ["inProgress", "failed", "current"].map(|field| expression(&page, field));
    let (in_progress, failed, current) = (in_progress?, failed?, current?);
    // As in Flux, the first expression that is true counts.
    let said =
        format!("'FLUX ' + (({in_progress}) ? 'waits' : ({failed}) ? 'failed' : ({current}) ? 'current' : 'waits')");
    let post = PostParams::default();
    let pools: Api<BootcNodePool> = Api::all(client.clone());
    let pool: BootcNodePool = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": {"name": "gitops"},
        "spec": {"nodeSelector": {}, "image": {"ref": "quay.io/e/os:v1"}},
    }))?;
    pools.create(&post, &pool).await.context("cannot create the pool")?;
    let validation = json!({"expression": "false", "messageExpression": said});
    refusal::create(
        client.clone(),
        "gitops",
        ("berth.dev", "bootcnodepools/status"),
        validation,
    )
    .await?;
    let states = golden()?;
    for (name, _, expected) in STATES {
        let status = &states[name];
        let found = found(&pools, status).await.context(name)?;
        ensure!(found == expected, "{name}: {found:?}, expected {expected:?}");
        let mut old = status.clone();
        old["observedGeneration"] = json!(7);
        let found = self::found(&pools, &old).await.context(name)?;
        ensure!(found == Flux::Waits, "{name}, of another spec: {found:?}");
    }
    let found = found(&pools, &json!({"observedGeneration": 1})).await?;
    ensure!(found == Flux::Waits, "without conditions: {found:?}");
    Ok(())
}

/// Returns the policy's result for a status. The write is a dry run, so the status is never stored.
async fn found(pools: &Api<BootcNodePool>, status: &Value) -> Result<Flux> {
    let begin = Instant::now();
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let patch = json!({"status": status});
    let patch = Patch::Merge(&patch);
    loop {
        match pools.patch_status("gitops", &params, &patch).await {
            Err(kube::Error::Api(refused)) if refused.message.contains("FLUX ") => {
                return match refused.message.split("FLUX ").nth(1).map(str::trim) {
                    Some("current") => Ok(Flux::Current),
                    Some("failed") => Ok(Flux::Failed),
                    Some("waits") => Ok(Flux::Waits),
                    _ => bail!("{}", refused.message),
                };
            }
            Err(error) => return Err(error).context("cannot ask the API server"),
            // The policy does not take effect yet.
            Ok(_) => ensure!(begin.elapsed() < SOON, "the policy does not take effect"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
