//! Columns of a plain `kubectl get` in the middle of a rollout.

use std::process::Command;

use anyhow::bail;
use berth_tests::tools::{Tool, Tools};

use super::*;

/// The tables of all pools and nodes. A fixed word replaces each word that differs between runs.
async fn get(cluster: &Cluster, holder: &str) -> Result<String> {
    let tools = Tools::ensure(&[Tool::Kubectl])?;
    let kubectl = tools.path(Tool::Kubectl)?.to_owned();
    let config = cluster.control_plane.kubeconfig_for("tom", &["system:masters"])?;
    let output = tokio::task::spawn_blocking(move || {
        let get = ["get", "bnp,bn", "--request-timeout=20s", "--kubeconfig"];
        Command::new(kubectl).args(get).arg(&config.path).output()
    })
    .await??;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "kubectl get: {error}");
    let text = String::from_utf8(output.stdout)?;
    let lines = text.lines().map(|line| {
        let words: Vec<String> = line
            .split_whitespace()
            .map(|word| same_word(cluster, holder, word))
            .collect();
        words.join(" ") + "\n"
    });
    let mut lines: Vec<String> = lines.collect();
    // The nodes have no fixed order among them: either may go first.
    let nodes = lines
        .iter()
        .position(|l| l.starts_with("bootcnode."))
        .unwrap_or(lines.len());
    if let Some(nodes) = lines.get_mut(nodes..) {
        nodes.sort();
    }
    Ok(lines.concat())
}

fn same_word(cluster: &Cluster, holder: &str, word: &str) -> String {
    let is_age = word.ends_with(['s', 'm', 'h']) && word.chars().all(|c| c.is_ascii_digit() || "smh".contains(c));
    if is_age {
        return "AGE".to_owned();
    }
    if let Some((name, end)) = word
        .split_once("default/web-")
        .map(|(_, name)| (name, name.ends_with(':')))
    {
        return format!("default/web-POD{}", if end && !name.is_empty() { ":" } else { "" });
    }
    let word = word.replace(&cluster.registry.host(), "REGISTRY");
    match word.strip_prefix("bootcnode.berth.dev/") {
        Some(name) if name == holder => "bootcnode.berth.dev/HOLDER".to_owned(),
        Some(_) => "bootcnode.berth.dev/OTHER".to_owned(),
        None => word.replace(holder, "HOLDER"),
    }
}

/// Checks that the tables show the image, version, phase, time of the phase, berth and trouble.
pub(super) async fn show_the_rollout(cluster: &Cluster, holder: &str) -> Result<()> {
    let wanted = include_str!("../../golden/columns.txt");
    let mut seen = String::new();
    // The controller's sums follow the nodes a little later.
    for _ in 0..40 {
        seen = get(cluster, holder).await?;
        if seen == wanted {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    bail!("kubectl get shows\n{seen}\nexpected\n{wanted}")
}
