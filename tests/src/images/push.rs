//! A client for pushing to a registry and for reading from it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use berth_api::Digest;
use bytes::Bytes;
use futures::stream::{self, TryStreamExt};
use http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::AsyncReadExt;

use super::image::{INDEX, Image, Index, MANIFEST, digest};
use super::layer::{Content, Layer};

type Body = BoxBody<Bytes, std::io::Error>;

/// A manifest from a registry.
#[derive(Debug, Clone)]
pub struct Manifest {
    /// Digest, computed here.
    pub digest: Digest,
    /// Media type that the registry returned.
    pub media_type: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// A client for a registry over plain HTTP. Pushes each blob in one request and skips existing ones.
#[derive(Debug, Clone)]
pub struct RegistryClient {
    url: String,
    http: Client<HttpConnector, Body>,
}

impl RegistryClient {
    /// A client for the registry at `http://address:port`.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.trim_end_matches('/').to_owned(),
            http: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// Pushes an image; returns its digest. Without a tag it can only be found by digest.
    pub async fn push_image(&self, repository: &str, tag: Option<&str>, image: &Image) -> Result<Digest> {
        for layer in &image.spec.layers {
            self.push_layer(repository, layer).await?;
        }
        if !self.has_blob(repository, &image.config_digest).await? {
            let body = full(image.config.clone());
            self.upload(repository, &image.config_digest, image.config.len() as u64, body)
                .await?;
        }
        self.put_manifest(repository, tag, &image.digest, MANIFEST, &image.manifest)
            .await?;
        Ok(image.digest.clone())
    }

    /// Pushes an index with all its images; returns the index's digest.
    pub async fn push_index(&self, repository: &str, tag: Option<&str>, index: &Index) -> Result<Digest> {
        for image in &index.images {
            self.push_image(repository, None, image).await?;
        }
        self.put_manifest(repository, tag, &index.digest, INDEX, &index.manifest)
            .await?;
        Ok(index.digest.clone())
    }

    /// Points a tag to an existing manifest.
    pub async fn tag(&self, repository: &str, tag: &str, digest: &Digest) -> Result<()> {
        let found = self.manifest(repository, &digest.to_string()).await?;
        let found = found.with_context(|| format!("{repository}@{digest} does not exist"))?;
        self.put_manifest(repository, Some(tag), digest, &found.media_type, &found.bytes)
            .await
    }

    /// Manifest or index of a tag or digest; `None` if it is missing.
    pub async fn manifest(&self, repository: &str, reference: &str) -> Result<Option<Manifest>> {
        let request = Request::get(self.path(repository, "manifests", reference))
            .header(ACCEPT, format!("{MANIFEST}, {INDEX}"))
            .body(full(Bytes::new()))?;
        let response = self.send(request).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let response = expect(response, StatusCode::OK).await?;
        let media_type = header(&response, CONTENT_TYPE)?;
        let bytes = response.into_body().collect().await?.to_bytes();
        Ok(Some(Manifest {
            digest: digest(&bytes)?,
            media_type,
            bytes,
        }))
    }

    /// Content of a blob; `None` if it is missing.
    pub async fn blob(&self, repository: &str, digest: &Digest) -> Result<Option<Bytes>> {
        let url = self.path(repository, "blobs", &digest.to_string());
        let response = self.send(Request::get(url).body(full(Bytes::new()))?).await?;
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let response = expect(response, StatusCode::OK).await?;
        Ok(Some(response.into_body().collect().await?.to_bytes()))
    }

    async fn push_layer(&self, repository: &str, layer: &Layer) -> Result<()> {
        if self.has_blob(repository, &layer.digest).await? {
            return Ok(());
        }
        let body = match (&layer.content, layer.file()) {
            (Content::Memory(bytes), _) => full(bytes.clone()),
            (_, Some(file)) => from_file(file).await?,
            (_, None) => bail!("the layer has no content"),
        };
        self.upload(repository, &layer.digest, layer.size, body).await
    }

    async fn has_blob(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let url = self.path(repository, "blobs", &digest.to_string());
        let request = Request::head(url).body(full(Bytes::new()))?;
        Ok(self.send(request).await?.status() == StatusCode::OK)
    }

    async fn upload(&self, repository: &str, digest: &Digest, size: u64, body: Body) -> Result<()> {
        let begin = Request::post(self.path(repository, "blobs", "uploads/"))
            .header(CONTENT_LENGTH, 0)
            .body(full(Bytes::new()))?;
        let begun = expect(self.send(begin).await?, StatusCode::ACCEPTED).await?;
        let mut location = header(&begun, LOCATION)?;
        if location.starts_with('/') {
            location.insert_str(0, &self.url);
        }
        let joint = if location.contains('?') { '&' } else { '?' };
        let request = Request::put(format!("{location}{joint}digest={digest}"))
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, size)
            .body(body)?;
        expect(self.send(request).await?, StatusCode::CREATED).await?;
        Ok(())
    }

    async fn put_manifest(
        &self,
        repository: &str,
        tag: Option<&str>,
        digest: &Digest,
        media_type: &str,
        bytes: &Bytes,
    ) -> Result<()> {
        let reference = tag.map_or_else(|| digest.to_string(), str::to_owned);
        let request = Request::builder()
            .method(Method::PUT)
            .uri(self.path(repository, "manifests", &reference))
            .header(CONTENT_TYPE, media_type)
            .body(full(bytes.clone()))?;
        expect(self.send(request).await?, StatusCode::CREATED).await?;
        Ok(())
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Incoming>> {
        // Distinguishes the harness in the registry's log from the programs under test.
        let agent = HeaderValue::from_static("berth-tests");
        request.headers_mut().insert(USER_AGENT, agent);
        let what = format!("{} {}", request.method(), request.uri());
        self.http.request(request).await.context(what)
    }

    fn path(&self, repository: &str, kind: &str, rest: &str) -> String {
        format!("{}/v2/{repository}/{kind}/{rest}", self.url)
    }
}

/// Returns the response if it has this status; otherwise an error with the registry's answer.
async fn expect(response: Response<Incoming>, status: StatusCode) -> Result<Response<Incoming>> {
    if response.status() == status {
        return Ok(response);
    }
    let got = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    bail!("the registry answered {got}: {}", String::from_utf8_lossy(&body))
}

fn header(response: &Response<Incoming>, name: http::HeaderName) -> Result<String> {
    let value = response.headers().get(&name);
    let value = value.with_context(|| format!("the registry sent no {name}"))?;
    Ok(value.to_str()?.to_owned())
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

async fn from_file(path: &Path) -> Result<Body> {
    let file = tokio::fs::File::open(path).await?;
    let parts = stream::try_unfold(file, async |mut file| {
        let mut part = bytes::BytesMut::with_capacity(1 << 18);
        let count = file.read_buf(&mut part).await?;
        Ok((count > 0).then(|| (part.freeze(), file)))
    });
    Ok(BodyExt::boxed(StreamBody::new(parts.map_ok(Frame::data))))
}
