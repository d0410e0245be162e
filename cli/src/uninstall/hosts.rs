//! The second step: lets the pods of the agents' DaemonSet remove Berth from their hosts.

use anyhow::{Result, bail};
use berth_api::keys;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::{Context, INTERVAL};
use super::facts::{daemon_sets, list, namespaced, selector};
use super::progress::Progress;
use super::requests::{Failed, Format};
use super::template::{Hosts, hosts, is_removal, removal as removal_of};
use crate::text::count;

/// Maximum number of hosts that a line names.
const NAMED: usize = 3;

/// Changes the DaemonSets, and waits until their pods have succeeded on all hosts, except those to leave.
pub(super) async fn clean(context: &Context, progress: &mut Progress<'_>) -> Result<()> {
    let namespace = &context.options.namespace;
    let sets = daemon_sets(namespace);
    for set in list(&context.server, &sets, Some(&selector())).await? {
        change(context, &set).await?;
    }
    let give_up = context.deadline();
    loop {
        let mut all = Hosts::default();
        for set in list(&context.server, &sets, Some(&selector())).await? {
            check(&set)?;
            let found = hosts(&set, &pods(context, &set).await?, &context.options.leave);
            all.done.extend(found.done);
            all.waiting.extend(found.waiting);
            all.failed.extend(found.failed);
            all.missing += found.missing;
        }
        if all.are_done() {
            record(context).await?;
            return Ok(progress.end(&format!("done: {} clean", are(all.done.len())))?);
        }
        progress.show(&words(&all))?;
        let is_hopeless = all.missing == 0 && all.failed.len() == all.waiting.len();
        if is_hopeless || Instant::now() >= give_up {
            bail!("{}", failure(&all, namespace));
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

async fn change(context: &Context, set: &Value) -> Result<()> {
    let name = set["metadata"]["name"].as_str().unwrap_or_default();
    let path = format!("{}/{name}", daemon_sets(&context.options.namespace));
    let mut set = set.clone();
    loop {
        if is_removal(&set) {
            return Ok(());
        }
        match context.server.replace(&path, &removal_of(&set)?).await {
            Ok(()) | Err(Failed::Gone(_)) => return Ok(()),
            Err(Failed::Conflict(_)) => {}
            Err(error) => return Err(error.while_doing(format!("change DaemonSet {name}"))),
        }
        // The DaemonSet's controller writes its status at any time.
        let found = context.server.get(&path).await;
        match found.map_err(|error| error.while_doing(format!("read DaemonSet {name}")))? {
            Some(found) => set = found,
            None => return Ok(()),
        }
    }
}

/// Fails if another program has changed a DaemonSet back.
fn check(set: &Value) -> Result<()> {
    if !is_removal(set) {
        bail!(
            "another program has changed DaemonSet {} back to agents; stop that program (such as Flux or Argo CD), or remove \
             Berth from its repository, and run the command again",
            set["metadata"]["name"].as_str().unwrap_or_default()
        );
    }
    Ok(())
}

async fn pods(context: &Context, set: &Value) -> Result<Vec<Value>> {
    let labels = set["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
    let selector: Vec<String> = labels
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    let path = namespaced("/api/v1", &context.options.namespace, "pods");
    list(&context.server, &path, Some(&selector.join(","))).await
}

/// Records that the hosts are clean, in case this command is interrupted after the DaemonSet is gone.
async fn record(context: &Context) -> Result<()> {
    let path = format!("/api/v1/namespaces/{}", context.options.namespace);
    let patch = json!({ "metadata": { "annotations": { keys::ANNOTATION_HOSTS_CLEAN: "true" } } });
    let done = context.server.patch(&path, Format::Merge, &patch).await;
    done.map_err(|error| error.while_doing("write an annotation of the namespace"))
}

/// Returns the number of hosts and the verb.
fn are(hosts: usize) -> String {
    let verb = if hosts == 1 { "is" } else { "are" };
    format!("{} {verb}", count(hosts, "host"))
}

fn words(hosts: &Hosts) -> String {
    let missing = usize::try_from(hosts.missing).unwrap_or(usize::MAX);
    let waiting = hosts.waiting.len().saturating_add(missing);
    let mut named: Vec<String> = vec![];
    // Hosts that failed first.
    for (node, why) in hosts.waiting.iter().filter(|(node, _)| hosts.failed.contains(*node)) {
        named.push(format!("{node}: {why}"));
    }
    for (node, why) in hosts.waiting.iter().filter(|(node, _)| !hosts.failed.contains(*node)) {
        named.push(format!("{node}: {why}"));
    }
    let more = if named.len() > NAMED { "; …" } else { "" };
    named.truncate(NAMED);
    let named = if named.is_empty() {
        "their pods are being created".to_owned()
    } else {
        named.join("; ")
    };
    format!("{} clean, waiting for {waiting}: {named}{more}", are(hosts.done.len()))
}

fn failure(hosts: &Hosts, namespace: &str) -> String {
    let mut text = "Berth is not removed from all hosts".to_owned();
    for (node, why) in &hosts.waiting {
        text += &format!("; {node}: {why}");
    }
    if hosts.missing > 0 {
        text += &format!(
            "; {} of the DaemonSet do not exist: kubectl -n {namespace} describe daemonset",
            pods_word(hosts)
        );
    }
    if let Some(node) = hosts.waiting.keys().next() {
        text += &format!(
            ". The logs of the pods have more: kubectl -n {namespace} logs POD. Repair the hosts and run the command again. \
             Or continue without a host, which then keeps Berth's files: kubectl berth uninstall --leave {node}"
        );
    }
    text
}

fn pods_word(hosts: &Hosts) -> String {
    count(usize::try_from(hosts.missing).unwrap_or(usize::MAX), "pod")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_host_that_failed_is_named_first_and_with_a_remedy() {
        let waiting = [("a", "pod p is Pending"), ("b", "Read-only file system")];
        let hosts = Hosts {
            done: BTreeSet::from(["c".to_owned()]),
            waiting: BTreeMap::from(waiting.map(|(node, why)| (node.to_owned(), why.to_owned()))),
            failed: BTreeSet::from(["b".to_owned()]),
            missing: 1,
        };
        assert_eq!(
            words(&hosts),
            "1 host is clean, waiting for 3: b: Read-only file system; a: pod p is Pending"
        );
        let text = failure(&hosts, "berth-system");
        for words in ["b: Read-only file system", "--leave a", "1 pod of the DaemonSet"] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
