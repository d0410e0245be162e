//! Requests to a registry. Each attempt has a client of its own, since a client keeps the first credentials it sees for
//! a registry.

use std::error::Error;
use std::time::Duration;

use berth_api::ImageRef;
use berth_api::condition::one_line;
use berth_api::pool::{PlatformDigest, Target};
use futures::StreamExt;
use oci_client::client::{Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciEnvelope, OciErrorCode};
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE,
    OciDescriptor,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

use super::document::{self, Document};
use super::{ResolveError, ResolveReason};

/// Largest manifest or configuration that is read; registries themselves stop at 4 MiB.
const MAX_DOCUMENT: usize = 4 << 20;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPTED: &[&str] = &[
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
        let ca = self.ca.iter().map(|data| Certificate {
            encoding: CertificateEncoding::Pem,
            data: data.clone(),
        });
        let config = ClientConfig {
            protocol: ClientProtocol::HttpsExcept(self.plain_http.clone()),
            extra_root_certificates: ca.collect(),
            platform_resolver: None,
            connect_timeout: Some(REQUEST_TIMEOUT),
            read_timeout: Some(REQUEST_TIMEOUT),
            user_agent: concat!("berth-controller/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        Client::try_from(config).map_err(|e| ResolveError::new(ResolveReason::ClientSetup, words(&e)))
    }
}

/// One attempt: a client, the image, and the credentials.
struct Attempt {
    client: Client,
    image: Reference,
    auth: RegistryAuth,
}

/// Resolves a reference. `text` is the reference as the admin wrote it.
pub(super) async fn resolve(config: &RegistryConfig, reference: &ImageRef, text: &str) -> Result<Target, ResolveError> {
    let image = Reference::try_from(reference.to_string())
        .map_err(|e| ResolveError::new(ResolveReason::InvalidReference, e.to_string()))?;
    let auth = authorize(config, &image).await?;
    let attempt = Attempt {
        client: config.client()?,
        image,
        auth,
    };
    let (bytes, digest) = attempt.manifest(&attempt.image).await?;
    let digest = document::digest(&digest)?;
    let (platforms, version) = match document::manifest(&bytes)? {
        Document::Index { platforms, version } => {
            let version = match version {
                Some(version) => Some(version),
                None => attempt.version_of(&platforms).await?,
            };
            (platforms, version)
        }
        Document::Image { config, version } => {
            let (architecture, label) = attempt.config(&config).await?;
            let platform = PlatformDigest {
                architecture,
                digest: digest.clone(),
            };
            (vec![platform], label.or(version))
        }
    };
    Ok(Target {
        image: text.to_owned(),
        digest,
        version,
        platforms,
        publish_time: None,
    })
}

/// Gets a token when the registry wants one. The token is asked for on its own, since the client would hide why it got
/// none. It is checked, since the client would panic on one that cannot be a header.
async fn authorize(config: &RegistryConfig, image: &Reference) -> Result<RegistryAuth, ResolveError> {
    let client = config.client()?;
    let token = client
        .auth(image, &RegistryAuth::Anonymous, RegistryOperation::Pull)
        .await
        .map_err(|e| error(&e))?;
    match token {
        None => Ok(RegistryAuth::Anonymous),
        Some(token) if token.bytes().all(|b| b.is_ascii_graphic()) => Ok(RegistryAuth::Bearer(token)),
        Some(_) => Err(ResolveError::new(
            ResolveReason::InvalidAnswer,
            "the registry's token has characters that no header may have",
        )),
    }
}

impl Attempt {
    /// Gets a manifest, checked against the digest that the registry names and, if the reference has one, against that.
    async fn manifest(&self, image: &Reference) -> Result<(Vec<u8>, String), ResolveError> {
        let answer = self.client.pull_manifest_raw(image, &self.auth, ACCEPTED).await;
        let (bytes, digest) = answer.map_err(|e| error(&e))?;
        if bytes.len() > MAX_DOCUMENT {
            return Err(too_large());
        }
        Ok((bytes.to_vec(), digest))
    }

    /// Architecture and version of one image, from its configuration, whose digest is checked.
    async fn config(&self, descriptor: &OciDescriptor) -> Result<(String, Option<String>), ResolveError> {
        document::digest(&descriptor.digest)?;
        if usize::try_from(descriptor.size).map_or(true, |size| size > MAX_DOCUMENT) {
            return Err(too_large());
        }
        // Nobody but the registry is asked, whatever other places its answer names.
        let descriptor = OciDescriptor {
            urls: None,
            ..descriptor.clone()
        };
        let answer = self.client.pull_blob_stream(&self.image, &descriptor).await;
        let mut stream = answer.map_err(|e| error(&e))?;
        let mut bytes = vec![];
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|e| ResolveError::new(ResolveReason::InvalidAnswer, words(&e)))?;
            if bytes.len() + chunk.len() > MAX_DOCUMENT {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        document::config(&bytes)
    }

    /// Version of an index: that of one of its images. It is for people only; when that image is not there, the index
    /// has no version, but is resolved all the same.
    async fn version_of(&self, platforms: &[PlatformDigest]) -> Result<Option<String>, ResolveError> {
        let Some(first) = platforms.first() else {
            return Ok(None);
        };
        let image = self.image.clone_with_digest(first.digest.to_string());
        let label = async {
            let (bytes, _) = self.manifest(&image).await?;
            match document::manifest(&bytes)? {
                Document::Image { config, version } => Ok(self.config(&config).await?.1.or(version)),
                Document::Index { version, .. } => Ok(version),
            }
        };
        match label.await {
            Ok(version) => Ok(version),
            Err(ResolveError {
                reason: ResolveReason::ImageNotFound | ResolveReason::InvalidAnswer | ResolveReason::NoSuchPlatform,
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn too_large() -> ResolveError {
    ResolveError::new(
        ResolveReason::InvalidAnswer,
        format!("the registry's answer is larger than {MAX_DOCUMENT} bytes"),
    )
}

/// Describes an error with its causes in one line, without repetition.
fn words(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    one_line(&text)
}

fn error(error: &OciDistributionError) -> ResolveError {
    use OciDistributionError as E;
    let reason = match error {
        E::RequestError(_) | E::IoError(_) => ResolveReason::RegistryUnavailable,
        E::UnauthorizedError { .. } | E::AuthenticationFailure(_) => ResolveReason::Unauthorized,
        E::ImageManifestNotFoundError(_) => ResolveReason::ImageNotFound,
        E::RegistryError { envelope, .. } => envelope_reason(envelope),
        E::ServerError { code, .. } => match code {
            401 | 403 => ResolveReason::Unauthorized,
            404 => ResolveReason::ImageNotFound,
            429 => ResolveReason::RateLimited,
            500.. => ResolveReason::RegistryUnavailable,
            _ => ResolveReason::RegistryRefused,
        },
        E::DigestError(_) => ResolveReason::DigestMismatch,
        _ => ResolveReason::InvalidAnswer,
    };
    let message = match error {
        E::RegistryError { envelope, url } => format!("{url}: {}", envelope_words(envelope)),
        E::UnauthorizedError { url } => format!("{url}: the registry asks for credentials"),
        error => words(error),
    };
    ResolveError::new(reason, one_line(&message))
}

fn envelope_reason(envelope: &OciEnvelope) -> ResolveReason {
    use OciErrorCode as C;
    match envelope.errors.first().map(|e| &e.code) {
        Some(C::ManifestUnknown | C::NameUnknown | C::NotFound | C::BlobUnknown | C::ManifestBlobUnknown) => {
            ResolveReason::ImageNotFound
        }
        Some(C::Unauthorized | C::Denied) => ResolveReason::Unauthorized,
        Some(C::Toomanyrequests) => ResolveReason::RateLimited,
        _ => ResolveReason::RegistryRefused,
    }
}

fn envelope_words(envelope: &OciEnvelope) -> String {
    let word = |code: &OciErrorCode| {
        let value = serde_json::to_value(code).unwrap_or_default();
        value.as_str().unwrap_or("UNKNOWN").to_owned()
    };
    envelope
        .errors
        .iter()
        .map(|e| format!("{}: {}", word(&e.code), e.message))
        .collect::<Vec<_>>()
        .join("; ")
}
