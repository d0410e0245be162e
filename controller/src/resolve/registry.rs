//! Fetches the manifest and the config of an image from a registry.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use berth_api::condition::one_line;
use berth_api::pool::{PlatformDigest, Target};
use berth_api::{Digest, ImageRef};
use berth_core::registries::conf::Source;
use berth_core::registries::credentials::Credentials;
use berth_core::registries::document::{self, Config, Document};
use berth_shell::locked;
use berth_shell::sha256;
use oci_client::Reference;
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};

use super::access::{Redirects, RegistryConfig, Trust};
use super::fetch::{Answer, MAX_DOCUMENT, mismatch, read, refusal, too_large, unavailable};
use super::reason::{ResolveError, ResolveReason};
use super::secret::PullSecret;
use super::token::Challenge;

/// Timeout for all requests that are needed to resolve an image.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for fetching the image config of one platform of an index.
const DESCRIPTION_TIMEOUT: Duration = Duration::from_secs(5);
const ACCEPTED: [&str; 4] = [
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
];

/// An attempt to resolve a reference at one registry: client, location of the image, and credentials.
struct Attempt<'a> {
    config: &'a RegistryConfig,
    client: Client,
    trust: Trust,
    /// Address of the registry, for example `https://quay.io`.
    base: Url,
    /// Repository, for example `example/os`.
    name: String,
    secret: Option<&'a PullSecret>,
    credentials: Option<Credentials>,
    /// `Authorization` header that was last sent.
    authorization: Mutex<Option<HeaderValue>>,
}

/// Resolves a reference with the credentials of a Secret. Images in `known` are not fetched again.
pub(super) async fn resolve(
    config: &RegistryConfig,
    reference: &ImageRef,
    known: &[Target],
    secret: Option<&PullSecret>,
) -> Result<Target, ResolveError> {
    let sources = config.sources(reference)?;
    let begin = Instant::now();
    let mut failures: Vec<ResolveError> = vec![];
    for source in &sources {
        // If a source fails early, the remaining sources share the time that is left.
        let left = RESOLVE_TIMEOUT.saturating_sub(begin.elapsed());
        let share = left / u32::try_from(sources.len() - failures.len()).unwrap_or(u32::MAX);
        let asked = async {
            let attempt = Attempt::new(config, source, secret).await?;
            if let Some(same) = attempt.unchanged(&source.reference, known).await? {
                return Ok((attempt, Err(same)));
            }
            let found = attempt.image(&source.reference).await?;
            Ok((attempt, Ok(found)))
        };
        let answer = tokio::time::timeout(share, asked).await.unwrap_or_else(|_| {
            let words = format!("the registry gave no answer within {} s", share.as_secs());
            Err(ResolveError::new(ResolveReason::RegistryUnavailable, words))
        });
        match answer {
            Ok((_, Err(same))) => return Ok(same.clone()),
            Ok((attempt, Ok((digest, found)))) => return target(&attempt, digest, found, reference).await,
            Err(error) => failures.push(error),
        }
    }
    Err(combined(&sources, failures))
}

/// Returns the error of the original registry, which is the last source. The error's message also contains the mirrors'
/// errors.
fn combined(sources: &[Source], mut failures: Vec<ResolveError>) -> ResolveError {
    let last = failures
        .pop()
        .unwrap_or_else(|| ResolveError::new(ResolveReason::ClientSetup, "there is no registry to ask for the image"));
    let mirrors = sources.iter().zip(&failures);
    let mirrors = mirrors.map(|(source, error)| format!("; mirror {}: {}", source.reference.registry(), error.message));
    ResolveError {
        message: one_line(&(last.message + &mirrors.collect::<String>())),
        ..last
    }
}

async fn target(
    attempt: &Attempt<'_>,
    digest: Digest,
    found: Found,
    reference: &ImageRef,
) -> Result<Target, ResolveError> {
    let (platforms, version, metadata) = match found {
        Found::Image(config) => (vec![config.platform], config.version, Some(config.metadata)),
        Found::Index { platforms, version } => {
            // All platforms come from one build: the config of the first platform counts for all.
            let first = match platforms.first() {
                Some(first) => attempt.described(&first.digest).await?,
                None => None,
            };
            let (label, metadata) = first
                .map(|config| (config.version, Some(config.metadata)))
                .unwrap_or_default();
            (platforms, version.or(label), metadata)
        }
    };
    Ok(Target {
        image: reference.clone().into(),
        digest,
        version,
        metadata,
        platforms,
        publish_time: None,
    })
}

enum Found {
    Index {
        platforms: Vec<PlatformDigest>,
        version: Option<String>,
    },
    Image(Box<Config>),
}

impl<'a> Attempt<'a> {
    async fn new(
        config: &'a RegistryConfig,
        source: &Source,
        secret: Option<&'a PullSecret>,
    ) -> Result<Self, ResolveError> {
        let reference = &source.reference;
        // `Reference` resolves the address of Docker Hub and the names of its official images.
        let image = Reference::try_from(reference.to_string()).map_err(|e| invalid_reference(&e))?;
        let (host, name) = (image.resolve_registry(), image.repository());
        let trust = if source.insecure {
            Trust::Insecure
        } else {
            Trust::Verified
        };
        let client = config.client(Redirects::Follow, trust)?;
        let plain = config.plain_http.iter().any(|plain| plain == host);
        let scheme = if plain || (source.insecure && !speaks_tls(&client, host).await) {
            "http"
        } else {
            "https"
        };
        let credentials = secret.map(|secret| secret.credentials(image.registry(), name));
        Ok(Self {
            client,
            trust,
            base: Url::parse(&format!("{scheme}://{host}")).map_err(|e| invalid_reference(&e))?,
            name: name.to_owned(),
            credentials: credentials.transpose()?.flatten(),
            config,
            secret,
            authorization: Mutex::default(),
        })
    }

    fn repository(&self) -> String {
        format!("{}v2/{}", self.base, self.name)
    }

    /// Sends a request. If the registry asks for authentication, for example because a token has expired, repeats the
    /// request with a new `Authorization` header.
    async fn send(&self, method: Method, path: &str) -> Result<Response, ResolveError> {
        let sent = self.last_authorization().clone();
        let response = self.request(method.clone(), path, sent.as_ref()).await?;
        // The target of a redirect gets no credentials.
        let asks = response.status() == StatusCode::UNAUTHORIZED && response.url().origin() == self.base.origin();
        let Some(challenge) = Challenge::of(&response).filter(|_| asks) else {
            return Ok(response);
        };
        let secure = self.base.scheme() == "https";
        let credentials = self.credentials.as_ref();
        let answer = challenge.answer(|service| self.token_client(service), secure, &self.name, credentials);
        let answer = answer.await.map_err(|error| self.explained(error))?;
        if answer.is_none() || answer == sent {
            return Ok(response);
        }
        self.last_authorization().clone_from(&answer);
        self.request(method, path, answer.as_ref()).await
    }

    fn last_authorization(&self) -> MutexGuard<'_, Option<HeaderValue>> {
        locked(&self.authorization)
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        authorization: Option<&HeaderValue>,
    ) -> Result<Response, ResolveError> {
        let url = format!("{}/{path}", self.repository());
        let mut request = self.client.request(method, url).header(ACCEPT, ACCEPTED.join(", "));
        if let Some(value) = authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request.send().await.map_err(unavailable)
    }

    /// Creates a client for a token service. Accepts unverified certificates only from a registry configured as
    /// insecure.
    fn token_client(&self, service: &Url) -> Result<Client, ResolveError> {
        let trust = if service.origin() == self.base.origin() {
            self.trust
        } else {
            Trust::Verified
        };
        self.config.client(Redirects::Refuse, trust)
    }

    async fn get(&self, path: &str) -> Result<Answer, ResolveError> {
        let response = self.send(Method::GET, path).await?;
        read(response, MAX_DOCUMENT)
            .await
            .map_err(|error| self.explained(error))
    }

    /// If the error is `Unauthorized`, adds to its message which credentials were used.
    fn explained(&self, error: ResolveError) -> ResolveError {
        if error.reason != ResolveReason::Unauthorized {
            return error;
        }
        let image = format!("{}/{}", self.base.authority(), self.name);
        let used = match (self.secret, &self.credentials) {
            (None, _) => {
                "the request had no credentials; name a Secret with credentials in image.pullSecret".to_owned()
            }
            (Some(secret), None) => format!("Secret {} has no entry for {image}", secret.name),
            (Some(secret), Some(_)) => format!(
                "the request used the credentials that Secret {} has for {image}",
                secret.name
            ),
        };
        ResolveError {
            message: one_line(&format!("{}; {used}", error.message)),
            ..error
        }
    }

    /// Fetches the manifest of a reference. Returns its digest and content.
    async fn image(&self, reference: &ImageRef) -> Result<(Digest, Found), ResolveError> {
        let (bytes, digest) = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => (self.manifest_at(digest).await?, digest.clone()),
            (None, tag) => self.manifest(tag.unwrap_or_default()).await?,
        };
        let found = match document::manifest(&bytes)? {
            Document::Index { platforms, version } => Found::Index { platforms, version },
            Document::Image { config, size, version } => {
                // The manifest of a single image does not name the platform; the config does.
                let config = self.config(&config, size, version, &digest).await?;
                Found::Image(Box::new(config))
            }
        };
        Ok((digest, found))
    }

    /// Sends a HEAD request. Returns the known image that the tag points to; `None` if the image must be fetched.
    async fn unchanged<'k>(
        &self,
        reference: &ImageRef,
        known: &'k [Target],
    ) -> Result<Option<&'k Target>, ResolveError> {
        let is_asked = !known.is_empty() && reference.digest().is_none();
        let Some(tag) = reference.tag().filter(|_| is_asked) else {
            return Ok(None);
        };
        let response = self.send(Method::HEAD, &format!("manifests/{tag}")).await?;
        match response.status().as_u16() {
            200..=299 => {}
            // Some registries do not support HEAD.
            404 | 405 => return Ok(None),
            _ => return Err(self.explained(refusal(response).await)),
        }
        let digest = response.headers().get("docker-content-digest");
        let digest: Option<Digest> = digest.and_then(|d| d.to_str().ok()).and_then(|d| d.parse().ok());
        Ok(known.iter().find(|image| Some(&image.digest) == digest.as_ref()))
    }

    async fn manifest_at(&self, digest: &Digest) -> Result<Vec<u8>, ResolveError> {
        let (bytes, found) = self.manifest(&digest.to_string()).await?;
        if found == *digest { Ok(bytes) } else { Err(mismatch()) }
    }

    /// Fetches a manifest and computes its digest. Fails if the registry's header has a different digest.
    async fn manifest(&self, name: &str) -> Result<(Vec<u8>, Digest), ResolveError> {
        let Answer { bytes, digest: named } = self.get(&format!("manifests/{name}")).await?;
        let digest = digest_of(&bytes);
        match named {
            Some(named) if document::digest(&named)? != digest => Err(mismatch()),
            _ => Ok((bytes, digest)),
        }
    }

    /// Fetches the config of the image with digest `image`. `expected` and `size` are the config's digest and size.
    /// `version` comes from the manifest; a version in the config takes precedence.
    async fn config(
        &self,
        expected: &Digest,
        size: u64,
        version: Option<String>,
        image: &Digest,
    ) -> Result<Config, ResolveError> {
        if usize::try_from(size).map_or(true, |size| size > MAX_DOCUMENT) {
            return Err(too_large(MAX_DOCUMENT));
        }
        let answer = self.get(&format!("blobs/{expected}")).await?;
        if digest_of(&answer.bytes) != *expected {
            return Err(mismatch());
        }
        let config = document::config(&answer.bytes, image)?;
        Ok(Config {
            version: config.version.or(version),
            ..config
        })
    }

    /// Fetches the config, with the labels, of one image of an index. If the config cannot be fetched, the index is
    /// resolved without labels. Returns an error if no host can boot the image, or if the answer does not match the
    /// digest in the index: the limits in the labels must come from the image that nodes pull.
    async fn described(&self, digest: &Digest) -> Result<Option<Config>, ResolveError> {
        let asked = async {
            let bytes = self.manifest_at(digest).await?;
            match document::manifest(&bytes)? {
                Document::Image { config, size, version } => {
                    self.config(&config, size, version, digest).await.map(Some)
                }
                Document::Index { .. } => Ok(None),
            }
        };
        let error = match tokio::time::timeout(DESCRIPTION_TIMEOUT, asked).await {
            Ok(Ok(config)) => return Ok(config),
            Ok(Err(error)) if matches!(error.reason, ResolveReason::NotBootable | ResolveReason::DigestMismatch) => {
                return Err(error);
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the registry did not answer in time".to_owned(),
        };
        tracing::warn!(image = self.repository(), %error, "cannot read the image's labels; the image is resolved without them");
        Ok(None)
    }
}

/// True if a host accepts TLS connections.
async fn speaks_tls(client: &Client, host: &str) -> bool {
    let asked = client.get(format!("https://{host}/v2/")).send().await;
    !asked.is_err_and(|error| error.is_connect())
}

fn invalid_reference(error: &dyn std::error::Error) -> ResolveError {
    ResolveError::new(ResolveReason::InvalidReference, error.to_string())
}

fn digest_of(bytes: &[u8]) -> Digest {
    Digest::from(sha256(bytes))
}

#[cfg(test)]
pub(super) mod tests;
