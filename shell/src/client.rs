//! Client of the API server that turns Nagle's algorithm off and supports proxies.
//!
//! kube's own client leaves Nagle's algorithm on (<https://github.com/kube-rs/kube/issues/2056>). The first request on
//! a new connection then waits until the server acknowledges the end of the TLS handshake, which the server delays by
//! 40 ms. An agent that has waited an hour for a berth would lose these 40 ms, since it needs a new connection.

use anyhow::Context;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use crate::proxy::{Environment, Route};

/// Creates a client for this configuration. The client does not retry requests.
pub fn client(config: Config) -> anyhow::Result<Client> {
    client_in(config, &Environment::of_this_process(), |_| {})
}

/// Like [`client`]; `note` receives the status code of each answer.
pub fn noting_client(config: Config, note: impl Fn(StatusCode) + Clone + Send + 'static) -> anyhow::Result<Client> {
    client_in(config, &Environment::of_this_process(), note)
}

/// Creates a client for this configuration that uses no proxy, for servers on this machine.
pub fn direct_client(config: Config) -> anyhow::Result<Client> {
    client_in(config, &Environment::default(), |_| {})
}

/// Header with the name of the user that a request impersonates.
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");

/// Returns a client that impersonates a user: it sends each request with `client`, and adds the user's name.
///
/// # Errors
/// If the name has characters that a header cannot have.
pub fn impersonating_client(client: &Client, user: &str) -> anyhow::Result<Client> {
    let value = HeaderValue::from_str(user).context("the user's name is invalid")?;
    let namespace = client.default_namespace().to_owned();
    let client = client.clone();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(IMPERSONATE_USER, value.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    Ok(Client::new(service, namespace))
}

fn client_in(
    config: Config,
    environment: &Environment,
    note: impl Fn(StatusCode) + Clone + Send + 'static,
) -> anyhow::Result<Client> {
    let route = Route::to(&config, environment)?;
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(route)?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .map_response(move |response: Response<_>| {
            note(response.status());
            response
        })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::{Arc, Mutex};

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_rustls::TlsAcceptor;

    use super::*;

    async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut lines = BufReader::with_capacity(1, stream).lines();
        let first = lines.next_line().await.unwrap().unwrap_or_default();
        while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
        first
    }

    async fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                head(&mut stream).await;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached";
                stream.write_all(answer).await.unwrap();
            }
        });
        address
    }

    /// Starts a proxy that connects all clients to this server. Returns its address and the log of its requests.
    async fn proxy(server: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(vec![]));
        let log = asked.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let line = match stream.peek(&mut [0]).await {
                    Ok(1) if first_byte(&stream).await == 5 => socks(&mut stream).await,
                    _ => {
                        let line = head(&mut stream).await;
                        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                        line
                    }
                };
                log.lock().unwrap().push(line);
                let mut onward = TcpStream::connect(server).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut onward).await });
            }
        });
        (address, asked)
    }

    /// Starts a TLS proxy that connects all clients to this server. Returns its port, the certificate authority of its
    /// certificate for `localhost`, and the log of its requests.
    async fn secure_proxy(server: SocketAddr) -> (u16, Vec<u8>, Arc<Mutex<Vec<String>>>) {
        crate::install_crypto();
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let of_authority = authority.self_signed(&authority_key).unwrap();
        let issuer = Issuer::new(authority, authority_key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned()];
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let chain = vec![certificate.der().clone()];
        let key = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let tls = rustls::ServerConfig::builder().with_no_client_auth();
        let acceptor = TlsAcceptor::from(Arc::new(tls.with_single_cert(chain, key).unwrap()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(vec![]));
        let log = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that does not trust the proxy disconnects.
                let Ok(mut stream) = acceptor.accept(stream).await else {
                    continue;
                };
                let line = head(&mut stream).await;
                log.lock().unwrap().push(line);
                stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                let mut onward = TcpStream::connect(server).await.unwrap();
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut onward).await });
            }
        });
        (port, of_authority.der().to_vec(), asked)
    }

    async fn first_byte(stream: &TcpStream) -> u8 {
        let mut byte = [0];
        stream.peek(&mut byte).await.unwrap();
        byte[0]
    }

    /// Performs a SOCKS 5 handshake without credentials, for a host name. Returns the log entry.
    async fn socks(stream: &mut TcpStream) -> String {
        let mut greeting = [0; 3];
        stream.read_exact(&mut greeting).await.unwrap();
        stream.write_all(&[5, 0]).await.unwrap();
        let mut request = [0; 5];
        stream.read_exact(&mut request).await.unwrap();
        let mut name = vec![0; usize::from(request[4]) + 2];
        stream.read_exact(&mut name).await.unwrap();
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
        name.truncate(name.len() - 2);
        format!("SOCKS {}", String::from_utf8(name).unwrap())
    }

    /// Returns the configuration that kube makes from a kubeconfig with this server if HTTPS_PROXY has this value.
    fn config(server: &str, proxy: &str) -> Config {
        crate::install_crypto();
        let mut config = Config::new(server.parse().unwrap());
        config.proxy_url = Some(proxy.parse().unwrap());
        config
    }

    async fn ask(config: Config, environment: &Environment) -> String {
        let client = client_in(config, environment, |_| {}).unwrap();
        let request = http::Request::get("/version").body(vec![]).unwrap();
        client.request_text(request).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_goes_through_the_proxy_of_the_environment() {
        let (proxy, asked) = proxy(server().await).await;
        for scheme in ["http", "socks5"] {
            let proxy = format!("{scheme}://{proxy}");
            let environment = Environment::new(&proxy, "other.test,10.0.0.0/8");
            // Only the proxy can resolve this name.
            let answer = ask(config("http://api.cluster.test:6443", &proxy), &environment).await;
            assert_eq!(answer, "reached");
        }
        let asked = asked.lock().unwrap().clone();
        assert_eq!(
            asked,
            ["CONNECT api.cluster.test:6443 HTTP/1.1", "SOCKS api.cluster.test"]
        );
    }

    #[tokio::test]
    async fn a_tls_proxy_needs_a_trusted_certificate() {
        let (port, authority, asked) = secure_proxy(server().await).await;
        fn with(proxy: &str, authority: Vec<u8>) -> Config {
            let mut config = config("http://api.cluster.test:6443", proxy);
            config.root_cert = Some(vec![authority]);
            // This is the API server's name, not the proxy's.
            config.tls_server_name = Some("api.cluster.test".to_owned());
            config
        }
        let proxy = format!("https://localhost:{port}");
        let answer = ask(with(&proxy, authority.clone()), &Environment::default()).await;
        assert_eq!(answer, "reached");
        let line = "CONNECT api.cluster.test:6443 HTTP/1.1";
        assert_eq!(asked.lock().unwrap().clone(), [line]);
        // A proxy under another name, or with another authority, is not trusted.
        let (_, other, _) = secure_proxy(server().await).await;
        let by_address = format!("https://127.0.0.1:{port}");
        for (proxy, authority) in [(&by_address, authority), (&proxy, other)] {
            let client = client_in(with(proxy, authority), &Environment::default(), |_| {}).unwrap();
            let request = http::Request::get("/version").body(vec![]).unwrap();
            assert!(client.request_text(request).await.is_err(), "{proxy} is not trusted");
        }
        assert_eq!(asked.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_host_of_no_proxy_is_reached_directly() {
        let server = server().await;
        let (proxy, asked) = proxy(server).await;
        let proxy = format!("http://{proxy}");
        // The server is on this host, but its address is not a loopback address: those never use a proxy.
        let address = format!("http://0.0.0.0:{}", server.port());
        let environment = Environment::new(&proxy, "cluster.test,0.0.0.0/32");
        assert_eq!(ask(config(&address, &proxy), &environment).await, "reached");
        assert!(asked.lock().unwrap().is_empty());
        let environment = Environment::new(&proxy, "cluster.test");
        assert_eq!(ask(config(&address, &proxy), &environment).await, "reached");
        assert_eq!(asked.lock().unwrap().len(), 1);
    }
}
