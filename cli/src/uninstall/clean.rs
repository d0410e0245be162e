//! The third step: removes Berth's traces from Nodes.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::context::Context;
use super::facts::list;
use super::node::traces;
use super::progress::Progress;
use super::requests::{Failed, Format};
use crate::text::count;

/// Maximum number of attempts to change a Node that other clients write at the same time.
const TRIES: usize = 10;

/// Removes the traces from all Nodes.
pub(super) async fn clean(context: &Context, progress: &mut Progress<'_>) -> Result<()> {
    let nodes = list(&context.server, "/api/v1/nodes", None).await?;
    let (mut changed, mut uncordoned) = (0, vec![]);
    for node in nodes {
        let Some(found) = traces(&node) else { continue };
        progress.show(&format!("cleaning Node {}", found.name))?;
        if found.is_uncordoned {
            uncordoned.push(found.name.clone());
        }
        clean_node(context, node).await?;
        changed += 1;
    }
    let words = match uncordoned.as_slice() {
        [] => String::new(),
        names => format!("; uncordoned: {}", names.join(", ")),
    };
    Ok(progress.end(&format!("done: {} changed{words}", count(changed, "Node")))?)
}

/// Removes the traces from one Node. After a conflict, reads the Node again.
async fn clean_node(context: &Context, mut node: Value) -> Result<()> {
    let name = node["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let path = format!("/api/v1/nodes/{name}");
    for _ in 0..TRIES {
        let Some(found) = traces(&node) else { return Ok(()) };
        let mut done = Ok(());
        if let Some(patch) = &found.patch {
            done = patch_node(context, &path, Format::Merge, patch).await;
        }
        if let (Ok(()), Some(patch)) = (&done, &found.status) {
            done = patch_node(context, &format!("{path}/status"), Format::Strategic, patch).await;
        }
        match done {
            Ok(()) => return Ok(()),
            Err(Failed::Conflict(_)) => {}
            Err(error) => return Err(error.while_doing(format!("change Node {name}"))),
        }
        let again = context.server.get(&path).await;
        match again.map_err(|error| error.while_doing(format!("read Node {name}")))? {
            Some(again) => node = again,
            None => return Ok(()),
        }
    }
    bail!("Node {name} was not changed, because other programs keep changing it; run the command again")
}

/// Patches a Node. A compromised kubelet can write times that the API server cannot parse again, so that it refuses each
/// patch of that Node. The second attempt therefore replaces the managed fields and, in the Node itself, leaves out the
/// status.
async fn patch_node(context: &Context, path: &str, format: Format, patch: &Value) -> Result<(), Failed> {
    match context.server.patch(path, format, patch).await {
        Err(Failed::Invalid(_)) => {}
        done => return done,
    }
    let mut patch = patch.clone();
    patch["metadata"]["managedFields"] = json!([{}]);
    if format == Format::Merge {
        patch["status"] = Value::Null;
    }
    context.server.patch(path, format, &patch).await
}
