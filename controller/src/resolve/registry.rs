//! Questions to a registry about an image: its manifest, and for people the version in its configuration.

use std::time::Duration;

use berth_api::pool::{PlatformDigest, Target};
use berth_api::{Digest, ImageRef};
use oci_client::Reference;
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
    OciDescriptor,
};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Certificate, Client, RequestBuilder};
use ring::digest::{SHA256, digest};

use super::document::{self, Document};
use super::fetch::{Answer, MAX_DOCUMENT, fetch, mismatch, refusal, too_large, unavailable, words};
use super::{ResolveError, ResolveReason, token};

/// Longest wait for a connection, and for the next bytes of an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that all requests may take which an image cannot be resolved without.
const NEEDED: Duration = Duration::from_secs(20);
/// Longest time for the version, which is for people only.
const VERSION: Duration = Duration::from_secs(5);
const ACCEPTED: [&str; 4] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];

/// Settings for talking to registries.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// Registries (`host:port`) without TLS.
    pub plain_http: Vec<String>,
    /// A PEM bundle that is trusted besides the system's.
    pub ca: Option<Vec<u8>>,
}

impl RegistryConfig {
    fn client(&self) -> Result<Client, ResolveError> {
        let setup = |e: reqwest::Error| ResolveError::new(ResolveReason::ClientSetup, words(&e));
        let mut client = Client::builder()
            .connect_timeout(REQUEST_TIMEOUT)
            .read_timeout(REQUEST_TIMEOUT)
            .user_agent(concat!("berth-controller/", env!("CARGO_PKG_VERSION")));
        if let Some(ca) = &self.ca {
            client = client.tls_certs_merge(Certificate::from_pem_bundle(ca).map_err(setup)?);
        }
        client.build().map_err(setup)
    }
}

/// One attempt: a client, where the image is, and the credentials.
struct Attempt {
    client: Client,
    /// Such as `https://quay.io/v2/example/os`.
    repository: String,
    token: Option<HeaderValue>,
}

/// Resolves a reference. `text` is the reference as it was asked about; images that are `known` are not fetched again.
pub(super) async fn resolve(
    config: &RegistryConfig,
    reference: &ImageRef,
    text: &str,
    known: &[Target],
) -> Result<Target, ResolveError> {
    let needed = async {
        let attempt = Attempt::new(config, reference).await?;
        if let Some(same) = attempt.unchanged(reference, known).await? {
            return Ok((attempt, Err(same)));
        }
        let found = attempt.image(reference).await?;
        Ok((attempt, Ok(found)))
    };
    let slow = || {
        ResolveError::new(
            ResolveReason::RegistryUnavailable,
            format!("no answer within {} s", NEEDED.as_secs()),
        )
    };
    let (attempt, found) = tokio::time::timeout(NEEDED, needed).await.map_err(|_| slow())??;
    let (digest, platforms, version) = match found {
        Ok(found) => found,
        Err(same) => return Ok(same.clone()),
    };
    let version = match (version, platforms.first()) {
        (None, Some(first)) if first.digest != digest => attempt.version_of(&first.digest).await,
        (version, _) => version,
    };
    Ok(Target {
        image: text.to_owned(),
        digest,
        version,
        platforms,
        publish_time: None,
    })
}

impl Attempt {
    async fn new(config: &RegistryConfig, reference: &ImageRef) -> Result<Self, ResolveError> {
        let image = Reference::try_from(reference.to_string())
            .map_err(|e| ResolveError::new(ResolveReason::InvalidReference, e.to_string()))?;
        let (host, name) = (image.resolve_registry(), image.repository());
        let scheme = match config.plain_http.iter().any(|plain| plain == host) {
            true => "http",
            false => "https",
        };
        let client = config.client()?;
        Ok(Self {
            token: token::token(&client, &format!("{scheme}://{host}/v2/"), name).await?,
            repository: format!("{scheme}://{host}/v2/{name}"),
            client,
        })
    }

    fn get(&self, path: &str) -> RequestBuilder {
        let request = self.client.get(format!("{}/{path}", self.repository));
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }

    /// Gets what the reference names: its digest, its platforms, and the version if that is at hand.
    async fn image(&self, reference: &ImageRef) -> Result<(Digest, Vec<PlatformDigest>, Option<String>), ResolveError> {
        let pinned = reference.digest().map(ToString::to_string);
        let name = pinned.as_deref().or(reference.tag()).unwrap_or_default();
        let (bytes, digest) = self.manifest(name).await?;
        if reference.digest().is_some_and(|pinned| *pinned != digest) {
            return Err(mismatch());
        }
        match document::manifest(&bytes)? {
            Document::Index { platforms, version } => Ok((digest, platforms, version)),
            Document::Image { config, version } => {
                // Only the configuration says for which platform it is.
                let (platform, label) = self.config(&config, &digest).await?;
                Ok((digest, vec![platform], label.or(version)))
            }
        }
    }

    /// The known image that a tag still points at, by a request without a body. `None`: it has to be fetched.
    async fn unchanged<'a>(
        &self,
        reference: &ImageRef,
        known: &'a [Target],
    ) -> Result<Option<&'a Target>, ResolveError> {
        let Some(tag) = reference
            .tag()
            .filter(|_| !known.is_empty() && reference.digest().is_none())
        else {
            return Ok(None);
        };
        let request = self.client.head(format!("{}/manifests/{tag}", self.repository));
        let request = request.header(ACCEPT, ACCEPTED.join(", "));
        let request = match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        };
        let response = request.send().await.map_err(|e| unavailable(&e))?;
        match response.status().as_u16() {
            200..=299 => {}
            // Some registries do not know HEAD.
            404 | 405 => return Ok(None),
            _ => return Err(refusal(response).await),
        }
        let digest = response.headers().get("docker-content-digest");
        let digest: Option<Digest> = digest.and_then(|d| d.to_str().ok()).and_then(|d| d.parse().ok());
        Ok(known.iter().find(|image| Some(&image.digest) == digest.as_ref()))
    }

    /// Gets a manifest and its digest, which must be the one that the registry names, if it names one.
    async fn manifest(&self, name: &str) -> Result<(Vec<u8>, Digest), ResolveError> {
        let accepted = ACCEPTED.join(", ");
        let request = self.get(&format!("manifests/{name}")).header(ACCEPT, accepted);
        let Answer { bytes, digest: named } = fetch(request, MAX_DOCUMENT).await?;
        let digest = digest_of(&bytes)?;
        match named {
            Some(named) if document::digest(&named)? != digest => Err(mismatch()),
            _ => Ok((bytes, digest)),
        }
    }

    /// Platform and version of the image with that digest, from its configuration, whose own digest is checked.
    async fn config(
        &self,
        descriptor: &OciDescriptor,
        image: &Digest,
    ) -> Result<(PlatformDigest, Option<String>), ResolveError> {
        let expected = document::digest(&descriptor.digest)?;
        if usize::try_from(descriptor.size).map_or(true, |size| size > MAX_DOCUMENT) {
            return Err(too_large(MAX_DOCUMENT));
        }
        let answer = fetch(self.get(&format!("blobs/{expected}")), MAX_DOCUMENT).await?;
        if digest_of(&answer.bytes)? != expected {
            return Err(mismatch());
        }
        document::config(&answer.bytes, image)
    }

    /// Version of an index: that of one of its images. It is for people only: whatever goes wrong, the image is resolved
    /// without it.
    async fn version_of(&self, digest: &Digest) -> Option<String> {
        let label = async {
            let (bytes, _) = self.manifest(&digest.to_string()).await?;
            match document::manifest(&bytes)? {
                Document::Image { config, version } => match self.config(&config, digest).await {
                    Ok((_, label)) => Ok(label.or(version)),
                    Err(error) => version.ok_or(error).map(Some),
                },
                Document::Index { version, .. } => Ok(version),
            }
        };
        match tokio::time::timeout(VERSION, label).await {
            Ok(Ok(version)) => version,
            Ok(Err(error)) => {
                tracing::warn!(image = self.repository, %error, "the image's version is not known");
                None
            }
            Err(_) => {
                tracing::warn!(
                    image = self.repository,
                    "the image's version is not known: no answer in time"
                );
                None
            }
        }
    }
}

fn digest_of(bytes: &[u8]) -> Result<Digest, ResolveError> {
    use std::fmt::Write;
    let mut text = "sha256:".to_owned();
    for byte in digest(&SHA256, bytes).as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    document::digest(&text)
}

#[cfg(test)]
pub(super) mod tests;
