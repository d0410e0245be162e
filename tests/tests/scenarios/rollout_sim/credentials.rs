//! Credentials that change in mid-turn: tokens of kubelets that a program issues, as on EKS, and the token of an agent
//! outside a pod.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_tests::controlplane::NodeTokens;
use jiff::Timestamp;

use super::*;

const NODES: [&str; 2] = ["node1", "node2"];

/// Options of two hosts whose kubelets get tokens of this lifetime from a program.
async fn with_tokens(lifetime: Duration) -> Result<(Arc<NodeTokens>, ClusterOptions)> {
    let tokens = Arc::new(NodeTokens::start().await?);
    let mut options = lively(NODES.len());
    options.node_tokens = Some(tokens.clone());
    options.settings.credentials.lifetime = lifetime;
    Ok((tokens, options))
}

/// Fails if a token is in an agent's log, in a BootcNode, or left in a file of the host.
async fn ensure_no_token_is_shown(cluster: &Cluster) -> Result<()> {
    for host in &cluster.fleet.hosts {
        let log = std::fs::read_to_string(host.agent_log())?;
        ensure!(!log.contains("node-token"), "the log of {}", host.name());
        soon(cluster, "no file with a credential is left", async || {
            let names = std::fs::read_dir(host.root().join("run/berth"))?;
            let names: Result<Vec<_>, _> = names.map(|entry| entry.map(|e| e.file_name())).collect();
            Ok(names?
                .iter()
                .all(|name| !name.to_string_lossy().starts_with("credential.")))
        })
        .await?;
        let status = serde_json::to_string(&cluster.node_status(host.name()).await?)?;
        ensure!(!status.contains("node-token"), "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn tokens_expire_and_are_revoked_in_mid_turn() -> Result<()> {
    let (tokens, options) = with_tokens(Duration::from_secs(12)).await?;
    scenario(options, async |cluster| {
        cluster.deploy("web", 2).await?;
        cluster.budget("web", 2).await?;
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let n = some_in(cluster, "Draining").await?;
        let node = cluster.host(n).name();
        // The drain outlives the first token.
        let before = tokens.accepted(node);
        soon(
            cluster,
            "a later token",
            async || Ok(tokens.accepted(node) > before + 1),
        )
        .await?;
        ensure!(tokens.refused(node) == 0, "a token was used after its expiry");
        // A long-lived one ends early: only the API server's answer shows it.
        cluster.settings(|s| s.credentials.lifetime = Duration::from_secs(600));
        let before = tokens.accepted(node);
        soon(cluster, "a long-lived token", async || {
            Ok(tokens.accepted(node) > before)
        })
        .await?;
        tokens.revoke(node);
        soon(cluster, "the refusal of the revoked token", async || {
            Ok(tokens.refused(node) == 1)
        })
        .await?;
        let before = tokens.accepted(node);
        soon(cluster, "a token after the revoked one", async || {
            Ok(tokens.accepted(node) > before)
        })
        .await?;
        cluster.remove_budget("web").await?;
        cluster.until_all_run(&v2, LONG).await?;
        ensure!(
            NODES.iter().all(|node| tokens.accepted(node) > 1),
            "one token for each node"
        );
        let boots = cluster.boots();
        ensure!(boots.values().all(|&n| n == 2), "one reboot for each host: {boots:?}");
        ensure_no_token_is_shown(cluster).await
    })
    .await
}

#[tokio::test]
async fn a_program_that_issues_no_credential_is_named() -> Result<()> {
    let (tokens, mut options) = with_tokens(Duration::from_secs(600)).await?;
    let words = "Unable to locate credentials\n{\"token\": \"node-token.1\"}";
    options.settings.credentials.failure = Some(words.to_owned());
    scenario(options, async |cluster| {
        let v2 = roll_to(cluster, "2.0.0", 1).await?;
        let said = "the program aws, which issues the kubelet's credentials, failed with exit status 255: Unable to locate \
                    credentials; run it on the host as root";
        for node in NODES {
            until_degraded(cluster, node, "CredentialProgramFailed", said).await?;
            ensure!(tokens.accepted(node) == 0);
        }
        let runs = cluster.host(1).commands().iter().filter(|c| c.contains("aws eks")).count();
        ensure!(runs < 30, "the program ran {runs} times");
        ensure_no_token_is_shown(cluster).await?;
        cluster.settings(|s| s.credentials.failure = None);
        cluster.until_all_run(&v2, LONG).await?;
        for node in NODES {
            ensure!(tokens.accepted(node) >= 1);
        }
        ensure_no_token_is_shown(cluster).await
    })
    .await
}

/// The agent's own copy of its token on a host.
fn kept(host: &SimHost) -> PathBuf {
    host.root().join("var/lib/berth/agent.token")
}

/// Waits until the agent keeps another token than these, and returns the new one.
async fn other_than(cluster: &Cluster, host: &SimHost, old: &[&str]) -> Result<String> {
    cluster
        .until("another token of the agent", LONG, async || {
            let token = std::fs::read_to_string(kept(host));
            Ok(token.is_ok_and(|token| !old.iter().any(|old| token.trim() == old.trim())))
        })
        .await?;
    Ok(std::fs::read_to_string(kept(host))?)
}

/// Returns the ID of a token, as the audit log shows it.
fn id(token: &str) -> Result<String> {
    let payload = token.split('.').nth(1).context("no payload")?;
    let payload: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload)?)?;
    Ok(format!("JTI={}", payload["jti"].as_str().context("no ID")?))
}

/// Waits until the agent uses this token for its objects.
async fn until_used(cluster: &Cluster, token: &str) -> Result<()> {
    let id = id(token)?;
    cluster
        .until("a request with the token", Duration::from_secs(120), async || {
            let log = std::fs::read_to_string(cluster.control_plane.audit_log())?;
            let mut lines = log.lines().filter(|line| line.contains(&id));
            Ok(lines.any(|line| line.contains("bootcnodes") || line.contains("leases")))
        })
        .await
}

/// Makes the agent's token as old as two days, so that the agent renews it.
fn make_old(host: &SimHost) -> Result<()> {
    let file = std::fs::File::options().write(true).open(kept(host))?;
    file.set_modified(SystemTime::now() - Duration::from_secs(2 * 24 * 3600))?;
    Ok(())
}

async fn until_logged(cluster: &Cluster, host: &SimHost, words: &str) -> Result<()> {
    let what = format!("the agent logs: {words}");
    cluster
        .until(&what, Duration::from_secs(120), async || {
            Ok(std::fs::read_to_string(host.agent_log())?.contains(words))
        })
        .await
}

/// A drain that a PodDisruptionBudget blocks, so that the turn continues while the token changes.
async fn blocked_turn(cluster: &Cluster) -> Result<Published> {
    cluster.deploy("web", 1).await?;
    cluster.budget("web", 1).await?;
    let v2 = roll_to(cluster, "2.0.0", 1).await?;
    some_in(cluster, "Draining").await?;
    Ok(v2)
}

/// Ends a [`blocked_turn`], and checks that it needed one reboot and that no token is in the agent's log.
async fn end_turn(cluster: &Cluster, v2: &Published, tokens: &[&str]) -> Result<()> {
    cluster.remove_budget("web").await?;
    cluster.until_all_run(v2, LONG).await?;
    let boots = cluster.boots();
    ensure!(boots.values().all(|&n| n == 2), "one reboot: {boots:?}");
    let log = std::fs::read_to_string(cluster.host(1).agent_log())?;
    for token in tokens {
        ensure!(!log.contains(token.trim()), "a token is in the agent's log");
    }
    Ok(())
}

fn service() -> ClusterOptions {
    ClusterOptions {
        token_files: true,
        ..lively(1)
    }
}

/// An agent outside a pod renews its own token: at its start, when the token is a day old, and after an admin has
/// written a new one.
#[tokio::test]
async fn an_agent_outside_a_pod_renews_its_token() -> Result<()> {
    scenario(service(), async |cluster| {
        let host = cluster.host(1);
        let given = std::fs::read_to_string(cluster.control_plane.agent_token_file(host.name()))?;
        let first = other_than(cluster, host, &[&given]).await?;
        let v2 = blocked_turn(cluster).await?;
        make_old(host)?;
        let renewed = other_than(cluster, host, &[&given, &first]).await?;
        until_used(cluster, &renewed).await?;
        let mode = std::fs::metadata(kept(host))?.permissions().mode();
        ensure!(mode & 0o777 == 0o600, "{mode:o}");
        cluster.control_plane.agent_service_kubeconfig(host.name()).await?;
        let second = std::fs::read_to_string(cluster.control_plane.agent_token_file(host.name()))?;
        let after = other_than(cluster, host, &[&renewed, &second]).await?;
        until_used(cluster, &after).await?;
        end_turn(cluster, &v2, &[&given, &first, &renewed, &second, &after]).await
    })
    .await
}

/// The token expires in mid-turn, while the API server is away. The admin's token is still valid.
#[tokio::test]
async fn a_token_that_expires_in_an_outage_is_replaced() -> Result<()> {
    scenario(service(), async |cluster| {
        let host = cluster.host(1);
        let given = std::fs::read_to_string(cluster.control_plane.agent_token_file(host.name()))?;
        let first = other_than(cluster, host, &[&given]).await?;
        let v2 = blocked_turn(cluster).await?;
        cluster.control_plane.stop_apiserver().await?;
        // The API server accepts a token for another minute after its expiry: this one for ten seconds.
        let now = Timestamp::now();
        let (issued, expires) = (now - Duration::from_secs(900), now - Duration::from_secs(50));
        let short = cluster.control_plane.with_times(&first, issued, expires)?;
        std::fs::write(kept(host), &short)?;
        make_old(host)?;
        until_logged(cluster, host, "cannot renew the agent's token").await?;
        while Timestamp::now() <= expires + Duration::from_secs(62) {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        cluster.control_plane.start_apiserver().await?;
        let renewed = other_than(cluster, host, &[&short, &given]).await?;
        until_logged(cluster, host, "the API server rejects the agent's token").await?;
        until_used(cluster, &renewed).await?;
        end_turn(cluster, &v2, &[&given, &first, &short, &renewed]).await
    })
    .await
}

/// In mid-turn, the agent's file cannot be written for a while, and is broken later.
#[tokio::test]
async fn a_token_file_that_is_unwritable_or_broken_is_repaired() -> Result<()> {
    scenario(service(), async |cluster| {
        let host = cluster.host(1);
        let given = std::fs::read_to_string(cluster.control_plane.agent_token_file(host.name()))?;
        let first = other_than(cluster, host, &[&given]).await?;
        let v2 = blocked_turn(cluster).await?;
        // A directory in place of the temporary file makes the file unwritable, even for root.
        let temporary = kept(host).with_extension("tmp");
        std::fs::create_dir(&temporary)?;
        make_old(host)?;
        until_logged(cluster, host, "cannot write").await?;
        ensure!(std::fs::read_to_string(kept(host))? == first, "the token stays");
        std::fs::remove_dir(&temporary)?;
        let renewed = other_than(cluster, host, &[&first, &given]).await?;
        std::fs::write(kept(host), "broken")?;
        let repaired = other_than(cluster, host, &["broken", &renewed, &given]).await?;
        until_used(cluster, &repaired).await?;
        end_turn(cluster, &v2, &[&given, &first, &renewed, &repaired]).await
    })
    .await
}
