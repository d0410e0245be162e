//! Registries that misbehave.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

mod credentials;
mod mirrors;
mod server;

/// The answer to one path: status, headers, body. If `endless`, more data follows for as long as the client reads.
#[derive(Clone)]
pub(in crate::resolve) struct Page {
    status: u16,
    header: String,
    body: Vec<u8>,
    endless: bool,
    hangs: bool,
}

fn page(body: impl ToString) -> Page {
    Page {
        status: 200,
        header: String::new(),
        body: body.to_string().into_bytes(),
        endless: false,
        hangs: false,
    }
}

fn endless() -> Page {
    Page {
        endless: true,
        ..page("")
    }
}

type Pages = Arc<Mutex<BTreeMap<String, Page>>>;

/// A registry that serves these pages. Counts the bytes sent of endless pages, and records the requests. A page for
/// `HEAD path` answers only that request.
pub(in crate::resolve) struct Registry {
    pub(in crate::resolve) address: String,
    pages: Pages,
    requests: Arc<Mutex<Vec<String>>>,
    sent: Arc<AtomicUsize>,
}

pub(in crate::resolve) async fn registry(pages: impl FnOnce(&str) -> Vec<(String, Page)>) -> Registry {
    berth_shell::install_crypto();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let pages = Pages::new(Mutex::new(pages(&address).into_iter().collect()));
    let registry = Registry {
        address,
        pages: pages.clone(),
        requests: Arc::default(),
        sent: Arc::default(),
    };
    let (requests, sent) = (registry.requests.clone(), registry.sent.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, pages.clone(), requests.clone(), sent.clone()));
        }
    });
    registry
}

async fn answer(mut stream: TcpStream, pages: Pages, requests: Arc<Mutex<Vec<String>>>, sent: Arc<AtomicUsize>) {
    let mut lines = BufReader::new(&mut stream).lines();
    let first = lines.next_line().await.unwrap().unwrap_or_default();
    while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
    let (method, rest) = first.split_once(' ').unwrap_or_default();
    let path = rest.split([' ', '?']).next().unwrap_or_default();
    requests.lock().unwrap().push(format!("{method} {path}"));
    let missing = Page {
        status: 404,
        ..page("")
    };
    let page = {
        let pages = pages.lock().unwrap();
        let own = pages.get(&format!("{method} {path}"));
        own.or(pages.get(path)).cloned().unwrap_or(missing)
    };
    if page.hangs && method == "HEAD" {
        // Wait until the client closes the connection.
        let _ = stream.read(&mut [0]).await;
        return;
    }
    let head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n{}\r\n", page.status, page.header);
    stream.write_all(head.as_bytes()).await.unwrap();
    if page.hangs {
        let _ = stream.read(&mut [0]).await;
    }
    if method == "HEAD" {
        return;
    }
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
        self.poll(&[]).await
    }

    async fn poll(&self, known: &[Target]) -> Result<Target, ResolveError> {
        let config = RegistryConfig {
            plain_http: vec![self.address.clone()],
            ..RegistryConfig::default()
        };
        let text = format!("{}/os:1", self.address);
        resolve(&config, &text.parse().unwrap(), known, None).await
    }

    pub(in crate::resolve) fn set(&self, pages: Vec<(String, Page)>) {
        *self.pages.lock().unwrap() = pages.into_iter().collect();
    }

    pub(in crate::resolve) fn add(&self, pages: Vec<(String, Page)>) {
        self.pages.lock().unwrap().extend(pages);
    }

    pub(in crate::resolve) fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }

    pub(in crate::resolve) fn count(&self, method: &str, path: &str) -> usize {
        let request = format!("{method} {path}");
        self.requests().iter().filter(|r| **r == request).count()
    }

    /// Number of bytes of endless pages sent so far, including bytes in the kernel's buffers that the client has not
    /// read.
    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

fn digest_text(body: &str) -> String {
    digest_of(body.as_bytes()).to_string()
}

/// Returns the pages of an index with this tag: the index, and the manifest and config of its only image, with this
/// version.
pub(in crate::resolve) fn image_of(tag: &str, version: &str) -> Vec<(String, Page)> {
    labelled(
        tag,
        &json!({ "containers.bootc": "1", "org.opencontainers.image.version": version }),
    )
}

/// Like `image_of`, but for an image with these labels.
fn labelled(tag: &str, labels: &serde_json::Value) -> Vec<(String, Page)> {
    sized(tag, labels, 100)
}

/// Like `labelled`, but the image's manifest claims that the config has this size.
fn sized(tag: &str, labels: &serde_json::Value, size: usize) -> Vec<(String, Page)> {
    let config = json!({ "architecture": "amd64", "os": "linux", "config": { "Labels": labels } }).to_string();
    let descriptor = json!({ "mediaType": "a/b", "digest": digest_text(&config), "size": size });
    let annotations = json!({ "org.opencontainers.image.version": "annotated" });
    let manifest = json!({ "schemaVersion": 2, "config": descriptor, "layers": [], "annotations": annotations });
    let manifest = manifest.to_string();
    let platform = json!({ "os": "linux", "architecture": "amd64" });
    let entry = json!({ "mediaType": MANIFEST, "digest": digest_text(&manifest), "size": 1, "platform": platform });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
    let named = Page {
        header: format!("Docker-Content-Digest: {}\r\n", digest_text(&index)),
        ..page(&index)
    };
    vec![
        (format!("/v2/os/manifests/{tag}"), named.clone()),
        (format!("/v2/os/manifests/{}", digest_text(&index)), named),
        (format!("/v2/os/manifests/{}", digest_text(&manifest)), page(&manifest)),
        (format!("/v2/os/blobs/{}", digest_text(&config)), page(&config)),
    ]
}

/// Like `image_of` for tag `1` and version `2`, but the registry names no digest for the tag. If the page `config` is
/// not empty, it replaces the page of the image's config.
fn image(config: Page) -> Vec<(String, Page)> {
    let mut pages = image_of("1", "2");
    if config.status != 200 || config.endless || !config.body.is_empty() {
        pages[3].1 = config;
    }
    pages[0].1.header.clear();
    pages
}

#[tokio::test]
async fn an_endless_answer_is_read_to_the_limit() {
    fn bearer(realm: &str) -> Page {
        Page {
            status: 401,
            header: format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\"\r\n"),
            ..page("")
        }
    }
    let manifest = registry(|_| vec![("/v2/os/manifests/1".to_owned(), endless())]).await;
    let token = registry(|address| {
        let realm = format!("http://{address}/token");
        let guarded = (ANY.to_owned(), bearer(&realm));
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
async fn without_the_config_only_the_version_is_missing() {
    async fn version(config: Page) -> Option<String> {
        let target = registry(|_| image(config)).await.resolve().await.unwrap();
        assert_eq!(target.platforms.len(), 1);
        target.version
    }
    assert_eq!(version(page("")).await.as_deref(), Some("2"));
    for status in [401, 403, 404, 429, 500, 503] {
        let refused = Page { status, ..page("") };
        assert_eq!(version(refused).await, None, "{status}");
    }
    assert_eq!(version(endless()).await, None);
}

#[tokio::test]
async fn a_configuration_has_a_largest_size() {
    for (size, version) in [(MAX_DOCUMENT, Some("annotated")), (MAX_DOCUMENT + 1, None)] {
        let pages = sized("1", &json!({ "containers.bootc": "1" }), size);
        let target = registry(|_| pages).await.resolve().await.unwrap();
        assert_eq!(target.version.as_deref(), version, "{size}");
    }
}

#[tokio::test]
async fn an_unbootable_image_is_refused() {
    fn plain() -> Vec<(String, Page)> {
        labelled("1", &json!({ "a": "b" }))
    }
    let index = registry(|_| plain()).await;
    let alone = registry(|_| {
        let mut pages = plain();
        pages[0].1 = pages[2].1.clone();
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

/// The index names an image with a limit for boot images, but the registry sends another image, without such a limit.
#[tokio::test]
async fn an_image_other_than_the_index_names_is_refused() {
    fn limited() -> Vec<(String, Page)> {
        let labels = json!({ "containers.bootc": "1", "berth.dev/min-boot-image": "9.4" });
        labelled("1", &labels)
    }
    let limit = registry(|_| limited()).await.resolve().await.unwrap().metadata;
    let limit = limit.unwrap().boot_image.unwrap().minimum_version;
    assert_eq!(limit.as_deref(), Some("9.4"));
    let other = image_of("1", "2");
    let asked = limited()[2].0.rsplit('/').next().unwrap_or_default().to_owned();
    // The registry sends the requested digest in a header, or no such header.
    for header in [format!("Docker-Content-Digest: {asked}\r\n"), String::new()] {
        let mut pages = limited();
        pages[2].1 = Page {
            header,
            ..other[2].1.clone()
        };
        pages.push(other[3].clone());
        let error = registry(|_| pages).await.resolve().await.unwrap_err();
        assert_eq!(error.reason, ResolveReason::DigestMismatch, "{error}");
    }
    let mut pages = limited();
    pages[3].1 = other[3].1.clone();
    let error = registry(|_| pages).await.resolve().await.unwrap_err();
    assert_eq!(
        error.reason,
        ResolveReason::DigestMismatch,
        "another configuration: {error}"
    );
}

/// Polls a tag that has moved from a known image (version 1.0) to another (2.0). `tag` gets the page of the new
/// manifest, and returns pages that replace the registry's pages. Returns the version or the reason of the failure, and
/// the methods of the requests for the tag's manifest.
async fn poll(tag: impl FnOnce(Page) -> Vec<(&'static str, Page)>) -> (Result<String, ResolveReason>, Vec<String>) {
    let registry = registry(|_| image_of("1", "1.0")).await;
    let known = registry.resolve().await.unwrap();
    let good = image_of("1", "2.0");
    let pages = tag(good[0].1.clone())
        .into_iter()
        .map(|(path, page)| (path.to_owned(), page));
    registry.add(good);
    registry.add(pages.collect());
    let before = registry.requests().len();
    let answer = registry.poll(&[known]).await;
    let requests = registry.requests().split_off(before);
    let of_tag = requests
        .into_iter()
        .filter(|r| r.ends_with(TAG))
        .map(|r| r.replace(TAG, ""));
    let version = answer.map(|image| image.version.unwrap_or_default());
    (version.map_err(|error| error.reason), of_tag.collect())
}

const TAG: &str = " /v2/os/manifests/1";
const HEAD: &str = "HEAD /v2/os/manifests/1";
const ANY: &str = "/v2/os/manifests/1";

#[tokio::test]
async fn a_poll_fetches_only_changed_manifests() {
    fn with(page: Page, status: u16) -> Page {
        Page {
            status,
            header: String::new(),
            ..page
        }
    }
    fn ok(version: &str) -> Result<String, ResolveReason> {
        Ok(version.to_owned())
    }
    assert_eq!(
        poll(|_| vec![(ANY, image_of("1", "1.0").remove(0).1)]).await,
        (ok("1.0"), vec!["HEAD".into()])
    );
    fn both() -> Vec<String> {
        vec!["HEAD".to_owned(), "GET".to_owned()]
    }
    assert_eq!(poll(|_| vec![]).await, (ok("2.0"), both()));
    assert_eq!(
        poll(|page| vec![(ANY, with(page, 200))]).await,
        (ok("2.0"), both()),
        "names no digest"
    );
    for status in [404, 405] {
        let (answer, requests) = poll(|page| vec![(HEAD, with(page, status))]).await;
        assert_eq!((answer, requests), (ok("2.0"), both()), "{status}");
    }
    for (status, reason) in [
        (429, ResolveReason::RateLimited),
        (503, ResolveReason::RegistryUnavailable),
        (401, ResolveReason::Unauthorized),
    ] {
        let (answer, requests) = poll(|page| vec![(HEAD, with(page, status))]).await;
        assert_eq!((answer, requests), (Err(reason), vec!["HEAD".into()]), "{status}");
    }
}

#[tokio::test]
async fn a_new_manifest_that_is_invalid_is_refused() {
    fn no_manifest(page: Page) -> Page {
        Page {
            body: b"<html>log in</html>".to_vec(),
            ..page
        }
    }
    fn truncated(page: Page) -> Page {
        let half = page.body[..page.body.len() / 2].to_vec();
        let header = format!("{}Content-Length: {}\r\n", page.header, page.body.len());
        Page {
            body: half,
            header,
            ..page
        }
    }
    async fn reason(tag: fn(Page) -> Page) -> ResolveReason {
        poll(|page| vec![(ANY, tag(page))]).await.0.unwrap_err()
    }
    assert_eq!(reason(no_manifest).await, ResolveReason::DigestMismatch);
    fn unnamed(page: Page) -> Page {
        Page {
            header: String::new(),
            ..no_manifest(page)
        }
    }
    assert_eq!(reason(unnamed).await, ResolveReason::InvalidAnswer);
    assert_eq!(reason(truncated).await, ResolveReason::RegistryUnavailable);
}

#[tokio::test]
async fn a_registry_that_hangs_is_given_up() {
    fn hangs(page: Page) -> Page {
        Page { hangs: true, ..page }
    }
    let began = std::time::Instant::now();
    let no_head = Page {
        status: 405,
        ..page("")
    };
    let (at_once, at_the_body) = tokio::join!(
        poll(|tag| vec![(HEAD, hangs(tag))]),
        poll(|tag| vec![(HEAD, no_head), (ANY, hangs(tag))]),
    );
    for (answer, requests) in [at_once, at_the_body] {
        assert_eq!(answer, Err(ResolveReason::RegistryUnavailable), "{requests:?}");
    }
    assert!(
        began.elapsed() < RESOLVE_TIMEOUT + Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn retry_after_is_read_from_a_refusal() {
    for (header, seconds) in [
        ("Retry-After: 120\r\n", Some(120)),
        (
            "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\nDate: Sun, 06 Nov 1994 08:48:37 GMT\r\n",
            Some(60),
        ),
        (
            "Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\nDate: Sun, 06 Nov 1994 08:59:37 GMT\r\n",
            None,
        ),
        ("Retry-After: soon\r\n", None),
        ("", None),
    ] {
        let limited = Page {
            status: 429,
            header: header.to_owned(),
            ..page("")
        };
        let registry = registry(|_| vec![(ANY.to_owned(), limited)]).await;
        let error = registry.resolve().await.unwrap_err();
        let after = error.retry_after.map(|after| after.as_secs());
        assert_eq!((error.reason, after), (ResolveReason::RateLimited, seconds), "{header}");
    }
}
