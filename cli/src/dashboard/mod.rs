//! `dashboard`: serves a page on this machine that shows the pools, the nodes and a rollout while it runs. Read-only: the
//! page shows the commands that would change something.

mod about;
mod access;
mod browser;
mod change;
mod commands;
mod drawer;
mod estimate;
mod events;
mod frame;
mod gate;
mod growth;
mod hub;
mod page;
mod routes;
mod runbook;
mod server;

use std::future::Future;
use std::io::Write;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use kube::Client;
use tokio::net::TcpListener;

use self::access::Keeper;
use self::hub::{Hub, SharedHub};
use crate::watch::{all_events, begin, follow};

pub use self::about::About;

/// Choice of what to serve, and how.
#[derive(Debug)]
pub struct Dashboard {
    /// The cluster, and the only pool to show.
    pub about: About,
    /// Namespace of the berths.
    pub namespace: String,
    /// Port on 127.0.0.1; 0 for any free port.
    pub port: u16,
    /// True to open a browser.
    pub opens: bool,
    /// Maximum wait for the first status, and for the check of a setting.
    pub limit: Duration,
}

/// Serves the dashboard until `end`. Prints its address on `out`.
pub async fn serve(
    client: &Client,
    dashboard: Dashboard,
    mut out: impl Write,
    end: impl Future<Output = ()>,
) -> Result<()> {
    let mut events = pin!(all_events(client, &dashboard.namespace));
    let mut end = pin!(end);
    let only = dashboard.about.only.clone();
    let live = tokio::select! {
        () = &mut end => return Ok(()),
        begun = begin(&mut events, only, dashboard.limit) => begun?,
    };
    let listener = listen(dashboard.port).await?;
    let port = listener
        .local_addr()
        .context("cannot read the dashboard's address")?
        .port();
    let secrets = Keeper::new(port).zip(access::secret());
    let ((keeper, token), run) = secrets.context("the operating system provides no random bytes")?;
    let address = format!("http://127.0.0.1:{port}/?token={token}");
    let text = announcement(&dashboard.about, &address);
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .context("cannot print the dashboard's address")?;
    if dashboard.opens {
        browser::open(&address);
    }
    let mut hub = SharedHub::of(Hub::of(dashboard.about, live, run));
    let routes: Router = routes::routes(hub.clone(), keeper, client.clone(), dashboard.limit);
    tokio::select! {
        () = end => Ok(()),
        followed = follow(events, &mut hub) => followed,
        () = server::serve(listener, routes) => Ok(()),
    }
}

async fn listen(port: u16) -> Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    listener.with_context(|| format!("cannot listen on port {port} of 127.0.0.1; choose another port with --port"))
}

fn announcement(about: &About, address: &str) -> String {
    let what = match &about.only {
        Some(pool) => format!("pool {pool} of {}", about.cluster),
        None => about.cluster.clone(),
    };
    format!(
        "Dashboard of {what}:\n\n  {address}\n\nThe address works once, on this machine, with your own rights. The page \
         changes nothing.\nCtrl-C ends the dashboard.\n"
    )
}
