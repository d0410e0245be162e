//! Probes of two real API servers by the controller's own identity.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use berth_controller::readyz::Readyz;
use berth_controller::store::Store;
use berth_core::controller::quorum::{self, Cause};
use berth_core::controller::servers::Answers;
use berth_core::controller::view::{NodeView, Urgency};
use berth_tests::controlplane::{Bound, ControlPlane, Options};
use berth_tests::hosts::real::{Bridge, bridge, unavailable};
use berth_tests::ports::Port;
use berth_tests::wait::eventually;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::json;

/// Time limit for the start of a server, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// The source address of this machine's outgoing traffic, if it has a network. Nothing is sent.
fn routed_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("198.51.100.1:9").context("no route")?;
    let address = socket.local_addr()?.ip();
    ensure!(!address.is_loopback(), "only {address}");
    Ok(address)
}

/// An address of this machine other than loopback, as a list of API servers requires. Without a network it belongs to a
/// bridge that is removed after the test; `None` if none can be created.
fn own_address() -> Result<Option<(IpAddr, Option<Bridge>)>> {
    if let Ok(address) = routed_address() {
        return Ok(Some((address, None)));
    }
    if unavailable().is_some() {
        return Ok(None);
    }
    let bridge = bridge()?;
    Ok(Some((bridge.gateway().into(), Some(bridge))))
}

/// Adds a server to the list, as API servers with different addresses do themselves.
async fn list(client: Client, server: SocketAddr) -> Result<()> {
    let name = format!("kubernetes-{}", server.port());
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [server.ip()]}],
        "ports": [{"name": "https", "port": server.port(), "protocol": "TCP"}],
    }))?;
    let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
    slices
        .create(&PostParams::default(), &slice)
        .await
        .context("cannot list an API server")?;
    Ok(())
}

/// Waits until the answers satisfy the condition.
async fn until(readyz: &Readyz, what: &str, wanted: impl Fn(&Answers) -> bool) -> Result<Duration> {
    let start = Instant::now();
    while start.elapsed() < LONG {
        if wanted(&readyz.answers(true)) {
            return Ok(start.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("not within {LONG:?}: {what}: {:?}", readyz.answers(true))
}

fn control_plane_node() -> Result<NodeView> {
    let node = serde_json::from_value(json!({
        "metadata": {"name": "a", "uid": "a", "labels": {"node-role.kubernetes.io/control-plane": ""}},
        "status": {"addresses": [{"type": "InternalIP", "address": "198.51.100.1"}]},
    }))?;
    Ok(NodeView::of(&node))
}

/// Why the node's berth is withheld; `None` if it is not.
fn withheld(node: &NodeView, answers: &Answers) -> Option<Cause> {
    let control_plane = quorum::ControlPlane::of([node].into_iter(), answers, berth_controller::time::now());
    control_plane.verdict(&node.uid).and_then(|verdict| verdict.withhold)
}

async fn probes(plane: &ControlPlane, store: &Store) -> Result<Readyz> {
    let own = plane
        .service_account_kubeconfig("berth-system", "berth-controller", Bound::Nothing)
        .await?;
    let config = Kubeconfig::from_yaml(&own.text)?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
    Ok(Readyz::start(config, own.client().await?, store.clone()))
}

/// The answers are dropped when the controller does not need them any more.
async fn answers_are_forgotten(readyz: &Readyz) -> Result<()> {
    readyz.answers(false);
    eventually("they are forgotten", LONG, async || Ok(!readyz.answers(false).listed)).await
}

#[tokio::test]
async fn an_api_server_goes_and_comes_back() -> Result<()> {
    let Some((address, _bridge)) = own_address()? else {
        println!(
            "SKIPPED: this machine has no address besides loopback, which API servers cannot be listed by; run as root"
        );
        return Ok(());
    };
    // The certificates contain only the names of the Service, not that address.
    let apiserver_arguments = vec!["--bind-address=0.0.0.0".to_owned()];
    let options = Options {
        apiserver_arguments,
        controller_manager: false,
        ..Options::default()
    };
    let plane = ControlPlane::start(options).await?;
    plane
        .apply_files(&["base/namespace.yaml", "base/crds.yaml", "base/rbac.yaml"])
        .await?;
    let first: SocketAddr = plane.url().trim_start_matches("https://").parse()?;
    let first = SocketAddr::new(address, first.port());
    let port = Port::reserve()?;
    let second = SocketAddr::new(address, port.number());
    let store = Store::default();
    let readyz = probes(&plane, &store).await?;

    // No probes are sent before the first query.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!readyz.answers(false).listed);
    let node = control_plane_node()?;
    assert_eq!(withheld(&node, &readyz.answers(true)), Some(Cause::NotKnown));
    until(&readyz, "no server is listed", |a| a.listed && a.servers.is_empty()).await?;
    assert!(withheld(&node, &readyz.answers(true)).is_none());

    list(plane.admin_client(), first).await?;
    list(plane.admin_client(), second).await?;
    until(&readyz, "the first answers", |a| {
        a.servers.get(&first).is_some_and(|asked| asked.ready.is_some())
    })
    .await?;
    assert!(
        withheld(&node, &readyz.answers(true)).is_some(),
        "the second server does not run: {:?}",
        readyz.answers(true)
    );
    let mut server = plane.another_apiserver(port.number())?;
    let took = until(&readyz, "both answer", |a| withheld(&node, a).is_none()).await?;
    println!("a second API server is seen after {took:?}");
    tokio::time::timeout(LONG, store.news().wait(Urgency::Later))
        .await
        .context("the waiting task was not woken")?;

    server.stop(Duration::from_secs(5));
    let took = until(&readyz, "the second is missed", |a| {
        withheld(&node, a) == Some(Cause::NoOtherServer)
    })
    .await?;
    println!("it is missed after {took:?}");
    // An answer counts for 15 s; then comes a round of at most 7 s.
    ensure!(took < Duration::from_secs(40), "missed too late: {took:?}");
    let _again = plane.another_apiserver(port.number())?;
    until(&readyz, "it is back", |a| withheld(&node, a).is_none()).await?;

    answers_are_forgotten(&readyz).await
}
