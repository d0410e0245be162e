//! The route to the API server: direct, or through a proxy.
//!
//! Like kube, Berth takes the proxy from `proxy-url` of the kubeconfig, or else from `HTTPS_PROXY`. But kube compares
//! `NO_PROXY` with the name of the proxy instead of the API server, so Berth has its own support for proxies.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::bail;
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use kube::Config;
use kube::client::ConfigExt;
use kube::config::AuthInfo;
use tokio::net::TcpStream;
use tower::Service;

/// The proxy, and the hosts to reach without it, from the environment variables `HTTPS_PROXY` and `NO_PROXY`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    proxy: Option<Uri>,
    no_proxy: String,
}

impl Environment {
    pub(crate) fn new(https_proxy: &str, no_proxy: &str) -> Self {
        Self {
            proxy: https_proxy.parse().ok(),
            no_proxy: no_proxy.to_owned(),
        }
    }

    /// Reads the environment variables that kube reads, in upper or lower case.
    pub(crate) fn of_this_process() -> Self {
        let proxy = first_variable(["HTTPS_PROXY", "https_proxy"]);
        let no_proxy = first_variable(["NO_PROXY", "no_proxy"]);
        Self::new(&proxy, &no_proxy)
    }

    /// True if requests to this server must not use the proxy from the environment. Loopback addresses never use it.
    fn bypasses_proxy(&self, server: &Uri) -> bool {
        let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_own = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        is_own || through("http://any", &self.no_proxy, server).is_none()
    }
}

fn first_variable(names: [&str; 2]) -> String {
    let mut values = names.iter().filter_map(|name| std::env::var(name).ok());
    values.find(|value| !value.is_empty()).unwrap_or_default()
}

fn through(proxy: &str, no_proxy: &str, server: &Uri) -> Option<Intercept> {
    Matcher::builder().all(proxy).no(no_proxy).build().intercept(server)
}

#[derive(Debug, Clone)]
pub(crate) enum Route {
    Direct(HttpConnector),
    Tunnel(Tunnel<HttpConnector>),
    /// Through a proxy that is itself reached over TLS.
    SecureTunnel(Tunnel<HttpsConnector<HttpConnector>>),
    Socks(SocksV5<HttpConnector>),
}

impl Route {
    /// Returns the route to the API server of this configuration. `NO_PROXY` applies only if the proxy comes from the
    /// environment. A proxy from the kubeconfig is always used, as in `kubectl`.
    pub(crate) fn to(config: &Config, environment: &Environment) -> anyhow::Result<Self> {
        let server = &config.cluster_url;
        let Some(url) = &config.proxy_url else {
            return Ok(Self::Direct(connector()));
        };
        if environment.proxy.as_ref() == Some(url) && environment.bypasses_proxy(server) {
            return Ok(Self::Direct(connector()));
        }
        // The URL may contain credentials, so errors show only its host.
        let shown = url.host().unwrap_or_default();
        let Some(proxy) = through(&url.to_string(), "", server) else {
            bail!(
                "the proxy {shown:?} cannot be used: write http://HOST:PORT, https://HOST:PORT or socks5://HOST:PORT"
            );
        };
        let to = proxy.uri().clone();
        match (to.scheme_str(), proxy.basic_auth(), proxy.raw_auth()) {
            (Some("http"), Some(auth), _) => Ok(Self::Tunnel(Tunnel::new(to, connector()).with_auth(auth.clone()))),
            (Some("http"), None, _) => Ok(Self::Tunnel(Tunnel::new(to, connector()))),
            (Some("https"), auth, _) => {
                let tunnel = Tunnel::new(to, secure_connector(config)?);
                Ok(Self::SecureTunnel(match auth {
                    Some(auth) => tunnel.with_auth(auth.clone()),
                    None => tunnel,
                }))
            }
            (Some("socks5" | "socks5h"), _, Some((user, password))) => {
                let socks = SocksV5::new(to, connector());
                Ok(Self::Socks(socks.with_auth(user.to_owned(), password.to_owned())))
            }
            (Some("socks5" | "socks5h"), ..) => Ok(Self::Socks(SocksV5::new(to, connector()))),
            (scheme, ..) => bail!(
                "the proxy {shown:?} uses the scheme {}, which is not supported: use http://, https:// or socks5://",
                scheme.unwrap_or_default()
            ),
        }
    }
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // Accept `https` URLs, although this connector itself does no TLS: a connector above it does.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

/// Returns a connector to a proxy over TLS. Like `kubectl`, it verifies the proxy's certificate with the certificate
/// authority of the kubeconfig, or else with the system's. It sends the proxy no client certificate.
fn secure_connector(config: &Config) -> anyhow::Result<HttpsConnector<HttpConnector>> {
    let mut of_proxy = config.clone();
    of_proxy.auth_info = AuthInfo::default();
    // This name belongs to the API server's certificate, not to the proxy's.
    of_proxy.tls_server_name = None;
    Ok(of_proxy.rustls_https_connector_with_connector(connector())?)
}

/// A connection to the API server, or to its proxy.
pub(crate) type Connection = MaybeHttpsStream<TokioIo<TcpStream>>;

type Connecting = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;

impl Service<Uri> for Route {
    type Response = Connection;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Direct(connector) => connector.poll_ready(context).map_err(io::Error::other),
            Self::Tunnel(tunnel) => tunnel.poll_ready(context).map_err(io::Error::other),
            Self::SecureTunnel(tunnel) => tunnel.poll_ready(context).map_err(io::Error::other),
            Self::Socks(socks) => socks.poll_ready(context).map_err(io::Error::other),
        }
    }

    fn call(&mut self, server: Uri) -> Connecting {
        match self {
            Self::Direct(connector) => {
                let connecting = connector.call(server);
                Box::pin(async { connecting.await.map(Connection::from).map_err(io::Error::other) })
            }
            Self::Tunnel(tunnel) => {
                let connecting = tunnel.call(server);
                Box::pin(async { connecting.await.map(Connection::from).map_err(io::Error::other) })
            }
            Self::SecureTunnel(tunnel) => {
                let connecting = tunnel.call(server);
                Box::pin(async { connecting.await.map_err(io::Error::other) })
            }
            Self::Socks(socks) => {
                let connecting = socks.call(server);
                Box::pin(async { connecting.await.map(Connection::from).map_err(io::Error::other) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn route(server: &str, proxy: &str, environment: &Environment) -> anyhow::Result<Route> {
        let mut config = Config::new(server.parse().unwrap());
        config.proxy_url = Some(proxy.parse().unwrap());
        Route::to(&config, environment)
    }

    #[tokio::test]
    async fn connections_disable_nagles_algorithm() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let config = Config::new(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap());
        let mut route = Route::to(&config, &Environment::default()).unwrap();
        let Connection::Http(connection) = route.call(config.cluster_url).await.unwrap() else {
            panic!("no TLS was asked for");
        };
        assert!(connection.inner().nodelay().unwrap());
    }

    #[test]
    fn no_proxy_matches_hosts_domains_and_networks() {
        const PROXY: &str = "http://proxy.test:3128";
        for (no_proxy, server, straight) in [
            ("", "https://api.cluster.test:6443", false),
            ("cluster.test", "https://api.cluster.test:6443", true),
            (".cluster.test", "https://api.cluster.test:6443", true),
            ("other.test, api.cluster.test,", "https://api.cluster.test:6443", true),
            ("uster.test", "https://api.cluster.test:6443", false),
            ("proxy.test", "https://api.cluster.test:6443", false),
            ("*", "https://api.cluster.test:6443", true),
            ("10.0.0.0/8", "https://10.1.2.3:6443", true),
            ("10.0.0.0/8", "https://192.0.2.1:6443", false),
            ("2001:db8::/32", "https://[2001:db8::1]:6443", true),
            ("", "https://127.0.0.1:6443", true),
            ("", "https://[::1]:6443", true),
            ("", "https://localhost:6443", true),
        ] {
            let environment = Environment::new(PROXY, no_proxy);
            let route = route(server, PROXY, &environment).unwrap();
            assert_eq!(matches!(route, Route::Direct(_)), straight, "{no_proxy:?} {server}");
        }
    }

    #[test]
    fn a_kubeconfig_proxy_ignores_no_proxy() {
        let environment = Environment::new("http://proxy.test:3128", "*");
        let own = route("https://127.0.0.1:6443", "http://bastion.test:8080", &environment).unwrap();
        assert!(matches!(own, Route::Tunnel(_)));
    }

    #[test]
    fn an_unusable_proxy_is_refused_without_its_password() {
        let server = "https://api.cluster.test:6443";
        for proxy in ["socks4://me:secret@proxy.test", "ftp://me:secret@proxy.test"] {
            let refused = route(server, proxy, &Environment::default()).unwrap_err().to_string();
            assert!(
                refused.contains("proxy.test") && refused.contains("socks5://"),
                "{refused}"
            );
            assert!(!refused.contains("secret"), "{refused}");
        }
        assert!(matches!(
            route(server, "proxy.test:3128", &Environment::default()).unwrap(),
            Route::Tunnel(_)
        ));
        assert!(matches!(
            route(server, "socks5h://proxy.test", &Environment::default()).unwrap(),
            Route::Socks(_)
        ));
        crate::install_crypto();
        assert!(matches!(
            route(server, "https://me:secret@proxy.test", &Environment::default()).unwrap(),
            Route::SecureTunnel(_)
        ));
    }
}
