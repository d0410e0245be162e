//! Restrictions of the images that hosts may pull, and the credentials for pulls.

use std::fs;
use std::path::Path;

use berth_tests::cluster::Part;
use berth_tests::scratch::Scratch;

use super::*;

const RUN: &str = "run/ostree/auth.json";
const ETC: &str = "etc/ostree/auth.json";

/// Replaces the auth file by one with this `auth`, as a kubelet does with a Secret.
fn give(file: &Path, auth: &str) -> Result<()> {
    let text = json!({ "auths": { "registry.test": { "auth": auth } } }).to_string();
    let new = file.with_extension("new");
    fs::write(&new, text)?;
    Ok(fs::rename(new, file)?)
}

fn has(host: &SimHost, place: &str, auth: &str) -> bool {
    fs::read_to_string(host.root().join(place)).is_ok_and(|text| text.contains(auth))
}

async fn the_file_goes_with_its_secret(part: &Part<'_>, secret: &Path, three: &'static str) -> Result<()> {
    let (cluster, host, node) = (part.cluster, part.host(1), part.node(1));
    // A killed agent leaves the file. The next agent recognizes the file as Berth's.
    host.kill_agent();
    give(secret, three)?;
    until_has(cluster, three).await?;
    fs::write(secret, r#"{"credsStore": "pass"}"#)?;
    until_degraded(
        cluster,
        node,
        "InvalidAuthFile",
        "the file names credential helpers (credHelpers, credsStore)",
    )
    .await?;
    ensure!(has(host, RUN, three), "the working credentials stay");
    // An agent checks for the Secret as soon as it starts.
    fs::remove_file(secret)?;
    host.kill_agent();
    until_gone(cluster).await?;
    give(secret, three)?;
    host.kill_agent();
    until_has(cluster, three).await?;
    part.leave(host).await?;
    until_gone(cluster).await?;
    the_hosts_own_file_counts(part, three).await
}

async fn the_hosts_own_file_counts(part: &Part<'_>, three: &'static str) -> Result<()> {
    let (cluster, host, node) = (part.cluster, part.host(1), part.node(1));
    // The host's pulls continue to use the host's own file.
    fs::create_dir_all(host.root().join("etc/ostree"))?;
    fs::write(host.root().join(ETC), "four")?;
    host.settings(|s| s.login = Some("four".to_owned()));
    part.join(host).await?;
    let v4 = part.roll_to("4.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_all_run(&v4, SOON).await?;
    until_degraded(
        cluster,
        node,
        "ForeignAuthFile",
        "the host has /etc/ostree/auth.json, which Berth did not write",
    )
    .await?;
    ensure!(!host.root().join(RUN).exists(), "Berth's file hides the host's");
    fs::remove_file(host.root().join(ETC))?;
    host.kill_agent();
    until_has(cluster, three).await
}

async fn until_has(cluster: &Cluster, auth: &str) -> Result<()> {
    until_so(cluster, &format!("the host has {auth}"), || {
        has(cluster.host(1), RUN, auth)
    })
    .await
}

async fn until_gone(cluster: &Cluster) -> Result<()> {
    let file = cluster.host(1).root().join(RUN);
    until_so(cluster, "the file is gone", || !file.exists()).await
}

#[tokio::test]
async fn a_host_pulls_with_its_agents_credentials() -> Result<()> {
    // The base64 of u:one, u:two and u:three.
    let [one, two, three] = ["dTpvbmU=", "dTp0d28=", "dTp0aHJlZQ=="];
    let scratch = Scratch::new("berth-credentials-")?;
    let secret = scratch.path().join("secret");
    let options = ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned(), format!("--auth-file={}", secret.display())],
        ..hosts_with(1, |s| s.login = Some(one.to_owned()))
    };
    scenario(options, async |cluster| {
        let part = Part::new(cluster, "workers", [1]).await?;
        let (host, node) = (part.host(1), part.node(1));
        let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
        until_degraded(
            cluster,
            node,
            "Unauthorized",
            "the host pulled without credentials: it has none of /run",
        )
        .await?;
        // New credentials reset the backoff of the pull.
        give(&secret, one)?;
        part.until_all_run(&v2, SOON).await?;
        ensure!(has(host, RUN, one), "the agent did not write the file again");

        // The password is changed in the registry first.
        host.settings(|s| s.login = Some(two.to_owned()));
        let v3 = part.roll_to("3.0.0", json!({ "maxUnavailable": 1 })).await?;
        until_degraded(
            cluster,
            node,
            "Unauthorized",
            "the host pulled with /run/ostree/auth.json, which Berth wrote",
        )
        .await?;
        give(&secret, two)?;
        part.until_all_run(&v3, SOON).await?;

        the_file_goes_with_its_secret(&part, &secret, three).await
    })
    .await
}

fn write(host: &SimHost, file: &str, text: &str) -> Result<()> {
    let path = host.root().join(file);
    fs::create_dir_all(path.parent().context("no directory")?)?;
    Ok(fs::write(path, text)?)
}

fn policy(host: &SimHost, kind: &str) -> Result<()> {
    let text = json!({ "default": [{ "type": kind }] }).to_string();
    write(host, "etc/containers/policy.json", &text)
}

async fn until_staged(cluster: &Cluster, staged: bool) -> Result<()> {
    until_so(cluster, &format!("staged: {staged}"), || {
        cluster.host(1).facts().staged.is_some() == staged
    })
    .await
}

/// The host's pulls. An agent that starts also reads bootc's help, which is not a pull.
fn pulls_of(host: &SimHost) -> Vec<String> {
    let mut commands = host.commands();
    commands.retain(|command| command.contains(" switch --") && command.contains(" --progress-fd "));
    commands
}

/// True if the agent's state file contains a checked image, as it does between the end of a pull and the start of the
/// next pull.
fn is_verified(host: &SimHost) -> bool {
    fs::read_to_string(host.root().join("var/lib/berth/state.json"))
        .is_ok_and(|text| text.contains("\"verified\":{") || text.contains("\"verified\": {"))
}

async fn the_host_requires_a_signature(part: &Part<'_>, v2: &Published) -> Result<()> {
    let (cluster, host, node) = (part.cluster, part.host(1), part.node(1));
    // An image that was staged without the policy is staged again under the policy.
    part.patch(json!({ "host": { "signature": "Required" } })).await?;
    until_staged(cluster, false).await?;
    until_degraded(
        cluster,
        node,
        "SignatureNotEnforced",
        "the host has no signature policy",
    )
    .await?;
    // The image is in the repository, where bootc finds it without checking the policy.
    policy(host, "reject")?;
    until_degraded(cluster, node, "SignatureRejected", "is rejected by policy").await?;
    ensure!(host.facts().staged.is_none(), "a refused image is staged");
    cluster.sign(v2);
    policy(host, "sigstoreSigned")?;
    until_staged(cluster, true).await?;
    let switch = pulls_of(host).pop().unwrap_or_default();
    ensure!(switch.contains(" --enforce-container-sigpolicy "), "{switch}");

    // The agent's state file records that the image was checked, and the applied policy, so the next agent knows both.
    let so_far = pulls_of(host).len();
    host.kill_agent();
    policy(host, "signedBy")?;
    until_so(cluster, "the image is checked with the new policy too", || {
        pulls_of(host).len() > so_far && is_verified(host)
    })
    .await?;
    host.kill_agent();
    let so_far = pulls_of(host).len();
    part.rollout(json!({ "paused": false })).await?;
    part.until_all_run(v2, SOON).await?;
    ensure!(pulls_of(host).len() == so_far, "a checked image is pulled again");
    Ok(())
}

#[tokio::test]
async fn the_host_limits_its_images() -> Result<()> {
    scenario(lively(1), async |cluster| {
        let part = Part::new(cluster, "workers", [1]).await?;
        let (host, node) = (part.host(1), part.node(1));
        let list = "etc/berth/allowed-registries";
        write(host, list, "# ours\nquay.io/example\n")?;
        let v2 = part.roll_to("2.0.0", json!({ "paused": true })).await?;
        until_degraded(
            cluster,
            node,
            "RegistryNotAllowed",
            "matches no prefix in /etc/berth/allowed-registries of this host",
        )
        .await?;
        ensure!(host.facts().staged.is_none(), "nothing is staged");
        write(host, list, cluster.registry.host().to_string().as_str())?;
        until_staged(cluster, true).await?;
        write(host, list, "https://quay.io")?;
        until_staged(cluster, false).await?;
        until_degraded(
            cluster,
            node,
            "RegistryNotAllowed",
            "/etc/berth/allowed-registries: line 1: \"https://quay.io\"",
        )
        .await?;
        fs::remove_file(host.root().join(list))?;
        until_staged(cluster, true).await?;

        the_host_requires_a_signature(&part, &v2).await
    })
    .await
}

/// bootc's output of a failed pull may contain text from the registry, even line breaks. Such text must not make an
/// image count as failed.
#[tokio::test]
async fn registry_text_makes_no_image_fail() -> Result<()> {
    scenario(hosts(2), async |cluster| {
        let part = Part::new(cluster, "workers", [1, 2]).await?;
        for host in &part.hosts {
            host.settings(|s| {
                s.pull_failures = 2;
                s.pull_failure_text =
                    "Preparing import: Fetching manifest: failed to invoke method OpenImage: reading \
                         manifest v2 in r/os: denied: no\nerror: Image has architecture arm64; expected amd64"
                        .to_owned();
            });
        }
        let v2 = part
            .roll_to("2.0.0", json!({ "maxUnavailable": 1, "maxFailures": 1 }))
            .await?;
        until_degraded(cluster, part.node(1), "WrongArchitecture", "Image has architecture").await?;
        part.until_all_run(&v2, LONG).await?;
        let failures = part.status().await?.failures;
        ensure!(failures.is_empty(), "failures on record: {failures:?}");
        Ok(())
    })
    .await
}
