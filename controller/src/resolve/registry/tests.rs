//! Registries that misbehave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

mod credentials;
mod mirrors;
mod server;

/// The answer to one path: status, headers, body. One that is endless goes on after that body for as long as anybody reads.
#[derive(Clone)]
struct Page {
    status: u16,
    header: String,
    body: Vec<u8>,
    endless: bool,
}

fn page(body: impl ToString) -> Page {
    Page {
        status: 200,
        header: String::new(),
        body: body.to_string().into_bytes(),
        endless: false,
    }
}

fn endless() -> Page {
    Page {
        endless: true,
        ..page("")
    }
}

/// A registry of such pages; counts the bytes of endless ones that it could send.
struct Registry {
    address: String,
    sent: Arc<AtomicUsize>,
}

async fn registry(pages: impl FnOnce(&str) -> Vec<(String, Page)>) -> Registry {
    berth_shell::install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let pages: Arc<BTreeMap<_, _>> = Arc::new(pages(&address).into_iter().collect());
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, pages.clone(), counter.clone()));
        }
    });
    Registry { address, sent }
}

async fn answer(mut stream: TcpStream, pages: Arc<BTreeMap<String, Page>>, sent: Arc<AtomicUsize>) {
    let mut lines = BufReader::new(&mut stream).lines();
    let first = lines.next_line().await.unwrap().unwrap_or_default();
    while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
    let path = first.split(' ').nth(1).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let missing = Page {
        status: 404,
        ..page("")
    };
    let page = pages.get(path).cloned().unwrap_or(missing);
    let head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n{}\r\n", page.status, page.header);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&page.body).await.unwrap();
    if !page.endless {
        return;
    }
    while let Ok(more) = stream.write(&[b' '; 1 << 16]).await {
        sent.fetch_add(more, Ordering::Relaxed);
    }
}

impl Registry {
    async fn resolve(&self) -> Result<Target, ResolveError> {
        let config = RegistryConfig {
            plain_http: vec![self.address.clone()],
            ..RegistryConfig::default()
        };
        let text = format!("{}/os:1", self.address);
        resolve(&config, &text.parse().unwrap(), &text, None).await
    }

    /// Bytes that were sent in vain: what was read, and what the kernels hold.
    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest_text(body: &str) -> String {
    digest_of(body.as_bytes()).unwrap().to_string()
}

/// An index of one image, whose configuration is this page.
fn image(config: Page) -> Vec<(String, Page)> {
    labelled(
        r#"{"containers.bootc":"1","org.opencontainers.image.version":"2"}"#,
        config,
    )
}

/// The same with these labels.
fn labelled(labels: &str, config: Page) -> Vec<(String, Page)> {
    let text = &format!(r#"{{"architecture":"amd64","os":"linux","config":{{"Labels":{labels}}}}}"#);
    let config = if config.body.is_empty() && config.status == 200 && !config.endless {
        page(text)
    } else {
        config
    };
    let descriptor = json!({ "mediaType": "a/b", "digest": digest_text(text), "size": text.len() });
    let manifest = json!({ "schemaVersion": 2, "config": descriptor, "layers": [] }).to_string();
    let platform = json!({ "os": "linux", "architecture": "amd64" });
    let entry = json!({ "mediaType": MANIFEST, "digest": digest_text(&manifest), "size": 1, "platform": platform });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
    vec![
        ("/v2/os/manifests/1".to_owned(), page(&index)),
        (format!("/v2/os/manifests/{}", digest_text(&manifest)), page(&manifest)),
        (format!("/v2/os/blobs/{}", digest_text(text)), config),
    ]
}

#[tokio::test]
async fn an_endless_answer_is_read_no_further_than_to_its_limit() {
    let bearer = |realm: &str| Page {
        status: 401,
        header: format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\"\r\n"),
        ..page("")
    };
    let manifest = registry(|_| vec![("/v2/os/manifests/1".to_owned(), endless())]).await;
    let token = registry(|address| {
        let realm = format!("http://{address}/token");
        let guarded = ("/v2/os/manifests/1".to_owned(), bearer(&realm));
        vec![guarded, ("/token".to_owned(), endless())]
    })
    .await;
    let refusal = registry(|_| {
        let page = Page {
            status: 503,
            ..endless()
        };
        vec![("/v2/os/manifests/1".to_owned(), page)]
    })
    .await;
    for (registry, reason) in [
        (manifest, ResolveReason::InvalidAnswer),
        (token, ResolveReason::InvalidAnswer),
        (refusal, ResolveReason::RegistryUnavailable),
    ] {
        let error = registry.resolve().await.unwrap_err();
        assert_eq!(error.reason, reason, "{error}");
        // The kernel's buffers on loopback hold some megabytes.
        assert!(registry.sent() < MAX_DOCUMENT + (16 << 20), "{}", registry.sent());
    }
}

#[tokio::test]
async fn a_configuration_that_cannot_be_had_costs_the_version_alone() {
    let version = async |config: Page| {
        let target = registry(|_| image(config)).await.resolve().await.unwrap();
        assert_eq!(target.platforms.len(), 1);
        target.version
    };
    assert_eq!(version(page("")).await.as_deref(), Some("2"));
    for status in [401, 403, 404, 429, 500, 503] {
        let refused = Page { status, ..page("") };
        assert_eq!(version(refused).await, None, "{status}");
    }
    assert_eq!(version(page("something else")).await, None);
    assert_eq!(version(endless()).await, None);
}

#[tokio::test]
async fn an_image_that_no_host_can_boot_is_refused_within_an_index_and_alone() {
    let plain = || labelled(r#"{"a":"b"}"#, page(""));
    let index = registry(|_| plain()).await;
    let alone = registry(|_| {
        let mut pages = plain();
        pages[0].1 = pages[1].1.clone();
        pages
    })
    .await;
    for registry in [index, alone] {
        let error = registry.resolve().await.unwrap_err();
        assert_eq!(error.reason, ResolveReason::NotBootable, "{error}");
    }
}

#[tokio::test]
async fn a_wrong_digest_is_refused() {
    let wrong = registry(|_| {
        let index = Page {
            header: format!("Docker-Content-Digest: {}\r\n", digest_text("x")),
            ..image(page("")).remove(0).1
        };
        vec![("/v2/os/manifests/1".to_owned(), index)]
    })
    .await;
    assert_eq!(wrong.resolve().await.unwrap_err().reason, ResolveReason::DigestMismatch);
}
