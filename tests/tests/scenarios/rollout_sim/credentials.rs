//! Kubelets whose credentials come from a program, as on EKS: the agents run the same program, and its tokens expire in
//! mid-turn.

use std::sync::Arc;

use berth_tests::controlplane::NodeTokens;

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
