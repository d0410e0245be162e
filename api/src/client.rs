//! A client of the API server that sends each request at once.
//!
//! The client that kube makes leaves Nagle's algorithm on. The first request on a new connection then waits behind the
//! end of the TLS handshake until the server acknowledges it, and the server puts that off for 40 ms. An agent that has
//! waited an hour for a berth always takes it over a new connection.

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

/// Makes a client from this configuration. The client retries nothing.
///
/// # Errors
/// When the configuration makes no sense, or names a proxy.
pub fn client(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        // It says why not.
        return Client::try_from(config);
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(connector())?);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let http: legacy::Client<_, Body> = legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // TLS comes on top of it.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tower::Service;

    use super::*;

    #[tokio::test]
    async fn nothing_waits_to_be_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let connection = connector().call(address.parse().unwrap()).await.unwrap();
        assert!(connection.inner().nodelay().unwrap());
    }

    #[tokio::test]
    async fn a_proxy_is_refused_and_not_passed_by() {
        let mut config = Config::new("http://127.0.0.1:1".parse().unwrap());
        assert!(client(config.clone()).is_ok());
        config.proxy_url = Some("http://127.0.0.1:2".parse().unwrap());
        assert!(client(config).is_err());
    }
}
