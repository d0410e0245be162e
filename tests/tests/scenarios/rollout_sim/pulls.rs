//! Restrictions of the images that hosts may pull, and the credentials for pulls.

use std::fs;
use std::path::Path;

use berth_tests::cluster::Part;
use berth_tests::scratch::Scratch;

use super::*;

const RUN: &str = "run/ostree/auth.json";
const ETC: &str = "etc/ostree/auth.json";
const DEGRADED: &str = "NodeDegraded";

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
    let name = "a_host_pulls_with_the_credentials";
    scenario(name, options, |cluster| {
        Box::pin(async move {
            let part = Part::new(cluster, "workers", [1]).await?;
            let (host, node) = (part.host(1), part.node(1));
            let run = async |auth: &'static str| {
                let same = async || Ok(has(host, RUN, auth));
                cluster.until(&format!("the host has {auth}"), SOON, same).await
            };
            let gone = async || Ok(!host.root().join(RUN).exists());

            let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
            let says = (
                DEGRADED,
                "True",
                "Unauthorized",
                "the host pulled without credentials: it has none of /run",
            );
            part.until_node_says(node, says, SOON).await?;
            // New credentials reset the backoff of the pull.
            give(&secret, one)?;
            part.until_all_run(&v2, SOON).await?;
            ensure!(
                has(host, RUN, one),
                "the reboot clears /run, and the agent writes the file again"
            );

            // The password is changed in the registry first.
            host.settings(|s| s.login = Some(two.to_owned()));
            let v3 = part.roll_to("3.0.0", json!({ "maxUnavailable": 1 })).await?;
            let says = (
                DEGRADED,
                "True",
                "Unauthorized",
                "the host pulled with /run/ostree/auth.json, which Berth wrote",
            );
            part.until_node_says(node, says, SOON).await?;
            give(&secret, two)?;
            part.until_all_run(&v3, SOON).await?;

            // A killed agent leaves the file, and the next agent knows it.
            host.kill_agent();
            give(&secret, three)?;
            run(three).await?;
            fs::write(&secret, r#"{"credsStore": "pass"}"#)?;
            let says = (
                DEGRADED,
                "True",
                "InvalidAuthFile",
                "it names credential helpers (credHelpers, credsStore)",
            );
            part.until_node_says(node, says, SOON).await?;
            ensure!(has(host, RUN, three), "the working credentials stay");
            // An agent that starts looks at once.
            fs::remove_file(&secret)?;
            host.kill_agent();
            cluster.until("the file goes with the Secret", SOON, gone).await?;
            give(&secret, three)?;
            host.kill_agent();
            run(three).await?;
            part.leave(host).await?;
            cluster.until("the file goes with the pool", SOON, gone).await?;

            // The host's own file remains the one for its pulls.
            fs::create_dir_all(host.root().join("etc/ostree"))?;
            fs::write(host.root().join(ETC), "four")?;
            host.settings(|s| s.login = Some("four".to_owned()));
            part.join(host).await?;
            let v4 = part.roll_to("4.0.0", json!({ "maxUnavailable": 1 })).await?;
            part.until_all_run(&v4, SOON).await?;
            let says = (
                DEGRADED,
                "True",
                "ForeignAuthFile",
                "the host has /etc/ostree/auth.json, which Berth did not write",
            );
            part.until_node_says(node, says, SOON).await?;
            ensure!(
                !host.root().join(RUN).exists(),
                "Berth's file must not hide the host's own file"
            );
            fs::remove_file(host.root().join(ETC))?;
            host.kill_agent();
            run(three).await
        })
    })
    .await
}

#[tokio::test]
async fn the_host_limits_its_images() -> Result<()> {
    let name = "the_host_limits_its_images";
    let options = ClusterOptions {
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..hosts(1)
    };
    scenario(name, options, |cluster| {
        Box::pin(async move {
            let part = Part::new(cluster, "workers", [1]).await?;
            let (host, node) = (part.host(1), part.node(1));
            let write = |file: &str, text: &str| -> Result<()> {
                let path = host.root().join(file);
                fs::create_dir_all(path.parent().context("no directory")?)?;
                Ok(fs::write(path, text)?)
            };
            let list = "etc/berth/allowed-registries";
            let staged = async |yes: bool| {
                let as_asked = async || Ok(host.facts().staged.is_some() == yes);
                cluster.until(&format!("staged: {yes}"), SOON, as_asked).await
            };

            write(list, "# ours\nquay.io/example\n")?;
            let v2 = part.roll_to("2.0.0", json!({ "paused": true })).await?;
            let says = (
                DEGRADED,
                "True",
                "RegistryNotAllowed",
                "is refused by /etc/berth/allowed-registries of this host",
            );
            part.until_node_says(node, says, SOON).await?;
            ensure!(host.facts().staged.is_none(), "nothing is staged");
            write(list, cluster.registry.host().to_string().as_str())?;
            staged(true).await?;
            write(list, "https://quay.io")?;
            staged(false).await?;
            let says = (
                DEGRADED,
                "True",
                "RegistryNotAllowed",
                "/etc/berth/allowed-registries: line 1: \"https://quay.io\"",
            );
            part.until_node_says(node, says, SOON).await?;
            fs::remove_file(host.root().join(list))?;
            staged(true).await?;

            // An image that was staged without the policy is staged again under the policy.
            cluster
                .patch_pool(&part.name, json!({ "host": { "signature": "Required" } }))
                .await?;
            staged(false).await?;
            let says = (
                DEGRADED,
                "True",
                "SignatureNotEnforced",
                "the host has no signature policy",
            );
            part.until_node_says(node, says, SOON).await?;
            // The image is in the repository, where bootc finds it without checking the policy.
            let policy = |kind: &str| {
                let text = json!({ "default": [{ "type": kind }] }).to_string();
                write("etc/containers/policy.json", &text)
            };
            policy("reject")?;
            let says = (DEGRADED, "True", "SignatureRejected", "is rejected by policy");
            part.until_node_says(node, says, SOON).await?;
            ensure!(
                host.facts().staged.is_none(),
                "an image that the policy refuses is not staged"
            );
            cluster.sign(&v2);
            policy("sigstoreSigned")?;
            staged(true).await?;
            // An agent that starts reads bootc's help, which is not a pull.
            let is_pull = |command: &&String| command.contains(" switch --") && command.contains(" --progress-fd ");
            let pulls = || host.commands().iter().filter(is_pull).count();
            let switch = host.commands().iter().rfind(is_pull).cloned();
            let switch = switch.unwrap_or_default();
            ensure!(switch.contains(" --enforce-container-sigpolicy "), "{switch}");

            // The next agent knows that the image was checked, and which policy applied.
            let so_far = pulls();
            host.kill_agent();
            policy("signedBy")?;
            // The state file shows this only between the end of a pull and the start of the next one.
            let memory = host.root().join("var/lib/berth/state.json");
            let is_verified = || {
                fs::read_to_string(&memory)
                    .is_ok_and(|text| text.contains("\"verified\":{") || text.contains("\"verified\": {"))
            };
            let again = async || Ok(pulls() > so_far && is_verified());
            cluster
                .until("the image is checked with the new policy too", SOON, again)
                .await?;
            host.kill_agent();
            let so_far = pulls();
            part.rollout(json!({ "paused": false })).await?;
            part.until_all_run(&v2, SOON).await?;
            ensure!(pulls() == so_far, "a checked image is not pulled again");
            Ok(())
        })
    })
    .await
}

/// bootc's output of a failed pull may contain text from the registry, including line breaks. Such text makes no image fail.
#[tokio::test]
async fn registry_text_makes_no_image_fail() -> Result<()> {
    let name = "registry_text_makes_no_image_fail";
    scenario(name, hosts(2), |cluster| {
        Box::pin(async move {
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
            let says = (DEGRADED, "True", "WrongArchitecture", "Image has architecture");
            part.until_node_says(part.node(1), says, SOON).await?;
            part.until_all_run(&v2, LONG).await?;
            let failures = part.status().await?.failures;
            ensure!(
                failures.is_empty(),
                "registry text is on record as failures: {failures:?}"
            );
            Ok(())
        })
    })
    .await
}
