//! A web server for the files of a directory, as a site for downloads has them.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::ports::Port;

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct FileServer {
    address: SocketAddr,
    server: AbortHandle,
    _port: Port,
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl FileServer {
    /// Serves the files in this directory, on a free port of this address. It does not serve directories below it.
    pub async fn start(bind: IpAddr, directory: &Path) -> Result<Self> {
        let port = Port::reserve()?;
        let address = SocketAddr::from((bind, port.number()));
        let listener = TcpListener::bind(address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address} for downloads"))?;
        let server = tokio::spawn(serve(listener, Arc::new(directory.to_owned()))).abort_handle();
        Ok(Self {
            address,
            server,
            _port: port,
        })
    }

    /// `http://address:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn serve(listener: TcpListener, directory: Arc<PathBuf>) {
    // Dropped with its tasks when this task is aborted.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        connections.spawn(answer_all(client, Arc::clone(&directory)));
    }
}

async fn answer_all(client: TcpStream, directory: Arc<PathBuf>) {
    let answer = service_fn(|request| answer(request, &directory));
    // An error means that the client has gone.
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(client), answer)
        .await;
}

async fn answer(request: Request<Incoming>, directory: &Path) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    match read(directory, request.uri().path()).await {
        Some(content) => *response.body_mut() = Full::new(content.into()),
        None => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    Ok(response)
}

async fn read(directory: &Path, path: &str) -> Option<Vec<u8>> {
    let name = path.strip_prefix('/')?;
    if name.contains('/') {
        return None;
    }
    tokio::fs::read(directory.join(name)).await.ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[tokio::test]
    async fn a_file_is_served_and_none_below_the_directory() {
        crate::install_crypto();
        let site = tempfile::tempdir().unwrap();
        std::fs::create_dir(site.path().join("below")).unwrap();
        std::fs::write(site.path().join("below/secret"), "s").unwrap();
        std::fs::write(site.path().join("install.yaml"), "kind: Namespace").unwrap();
        let server = FileServer::start(Ipv4Addr::LOCALHOST.into(), site.path())
            .await
            .unwrap();
        let get = async |path: &str| {
            let answer = reqwest::get(format!("{}{path}", server.url())).await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        assert_eq!(get("/install.yaml").await, (200, "kind: Namespace".to_owned()));
        assert_eq!(get("/none").await.0, 404);
        assert_eq!(get("/below/secret").await.0, 404);
    }
}
