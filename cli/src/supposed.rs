//! `--what-if`, with a check by the API server: only it checks all rules of a pool's spec.

use std::time::Duration;

use anyhow::Result;
use berth_shell::request::within;
use kube::Client;

use crate::admin::would_accept;
use crate::snapshot::Snapshot;
use crate::what_if::{WhatIf, patch, what_if};

/// Returns the snapshot with changed settings of a pool. Also sends the settings to the API server in a dry run.
pub async fn supposed(
    client: &Client,
    deadline: Duration,
    snapshot: &Snapshot,
    pool: &str,
    settings: &[WhatIf],
) -> Result<Snapshot> {
    let mut then = what_if(snapshot, pool, settings).map_err(anyhow::Error::msg)?;
    then.notes.extend(accepted(client, deadline, pool, settings).await?);
    Ok(then)
}

/// Sends changed settings of a pool to the API server in a dry run. Fails if the API server would refuse them. Returns a
/// note if the dry run itself fails.
pub(crate) async fn accepted(
    client: &Client,
    deadline: Duration,
    pool: &str,
    settings: &[WhatIf],
) -> Result<Option<String>> {
    let spec = patch(settings).map_err(anyhow::Error::msg)?;
    within::<_, _, anyhow::Error>(deadline, would_accept(client, pool, &spec)).await
}
