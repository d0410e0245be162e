//! A TCP proxy in front of the API server: a test can cut off or slow down one client without touching the server. TLS passes
//! through unchanged.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::ports::Port;

/// State of the network between a client and the API server, as a proxy simulates it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Weather {
    /// Connections are cut and new ones are refused. Data in flight is lost, in both directions.
    pub down: bool,
    /// Connections stay open but carry no data. When this becomes false, they continue without loss.
    pub stalled: bool,
    /// Additional delay in each direction.
    pub latency: Duration,
}

/// A proxy, on a loopback port or another address of this machine. Dropping it cuts its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    weather: watch::Sender<Weather>,
    server: AbortHandle,
    _port: Option<Port>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// Starts a proxy for `target` that passes everything on.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let port = Port::reserve()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let mut proxy = Self::start_on(address, target).await?;
        proxy._port = Some(port);
        Ok(proxy)
    }

    /// Starts a proxy on this address of the machine.
    pub async fn start_on(address: SocketAddr, target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address} for a proxy"))?;
        let (weather, seen) = watch::channel(Weather::default());
        let server = tokio::spawn(serve(listener, target, seen)).abort_handle();
        Ok(Self {
            address,
            weather,
            server,
            _port: None,
        })
    }

    /// Address of the proxy.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state of the network immediately, also for data in flight.
    pub fn weather(&self, change: impl FnOnce(&mut Weather)) {
        self.weather.send_modify(change);
    }
}

async fn serve(listener: TcpListener, target: SocketAddr, weather: watch::Receiver<Weather>) {
    // Dropped with its tasks when this task is aborted.
    let mut connections = JoinSet::new();
    loop {
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                tracing::debug!(%error, "proxy: cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        if !weather.borrow().down {
            connections.spawn(connect(client, target, weather.clone()));
        }
    }
}

/// Serves a connection until one side closes it or the network goes down.
async fn connect(client: TcpStream, target: SocketAddr, weather: watch::Receiver<Weather>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    // The connection carries small messages that wait for each other.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let mut cut = weather.clone();
    tokio::select! {
        _ = async { tokio::join!(pump(from_client, to_server, weather.clone()), pump(from_server, to_client, weather)) } => {}
        // Also ends when the proxy is dropped.
        _ = cut.wait_for(|w| w.down) => {}
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut weather: watch::Receiver<Weather>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        let latency = weather.borrow().latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        // An error means that the proxy is dropped; `connect` sees that too.
        let _ = weather.wait_for(|w| !w.stalled).await;
        match buffer.get(..count) {
            None | Some([]) => return to.shutdown().await,
            Some(bytes) => to.write_all(bytes).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// A server that answers each byte with the byte plus one.
    async fn adder() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    while let Ok(byte) = stream.read_u8().await {
                        stream.write_u8(byte + 1).await.unwrap();
                    }
                });
            }
        });
        address
    }

    async fn ask(stream: &mut TcpStream, byte: u8) -> io::Result<u8> {
        stream.write_u8(byte).await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn an_outage_cuts_and_refuses_connections() {
        let proxy = Proxy::start(adder().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream, 1).await.unwrap(), 2);
        proxy.weather(|w| w.down = true);
        assert!(ask(&mut stream, 1).await.is_err());
        let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(ask(&mut refused, 1).await.is_err());
        proxy.weather(|w| w.down = false);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream, 7).await.unwrap(), 8);
    }

    #[tokio::test]
    async fn slow_and_stalled_ways_lose_nothing() {
        let proxy = Proxy::start(adder().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(ask(&mut stream, 1).await.unwrap(), 2);
        proxy.weather(|w| w.latency = Duration::from_millis(50));
        let start = Instant::now();
        assert_eq!(ask(&mut stream, 3).await.unwrap(), 4);
        assert!(
            start.elapsed() >= Duration::from_millis(100),
            "there and back: {:?}",
            start.elapsed()
        );
        proxy.weather(|w| {
            *w = Weather {
                stalled: true,
                ..Weather::default()
            }
        });
        let silent = tokio::time::timeout(Duration::from_millis(100), ask(&mut stream, 5)).await;
        assert!(silent.is_err(), "no byte passes");
        proxy.weather(|w| w.stalled = false);
        assert_eq!(stream.read_u8().await.unwrap(), 6, "a byte sent before arrives now");
    }
}
