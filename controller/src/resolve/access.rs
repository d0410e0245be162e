//! Registry settings, and the HTTP clients created from them.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_api::ImageRef;
use berth_api::condition::one_line;
use berth_core::registries::conf::{RegistriesConf, Source, SourceError};
use berth_shell::locked;
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, Url};

use super::fetch::words;
use super::reason::{ResolveError, ResolveReason};
use super::secret::PullSecrets;

/// Timeout for connecting, and for each read of an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;
/// Longest mounted file that is read, in bytes. A ConfigMap has at most 1 MiB.
const MAX_FILE: usize = 4 << 20;

/// Registry settings.
#[derive(Debug, Clone, Default)]
pub struct RegistryConfig {
    /// Registries (`host:port`) without TLS.
    pub plain_http: Vec<String>,
    /// PEM bundle of certificates to trust in addition to the system's.
    pub ca: Option<Mounted<Vec<Certificate>>>,
    /// Mirrors, in the format of `registries.conf`.
    pub conf: Option<Mounted<Arc<RegistriesConf>>>,
    /// Secrets with registry credentials.
    pub secrets: Option<PullSecrets>,
}

/// Handling of certificates that cannot be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Reject them.
    Verified,
    /// Accept them: the registry is configured as insecure.
    Insecure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Redirects {
    /// Follow redirects, as downloads of blobs require. Send no credentials to another host, and never go from HTTPS
    /// to HTTP.
    Follow,
    /// Follow no redirect: the body or the headers of the request contain credentials.
    Refuse,
}

impl RegistryConfig {
    /// Returns the registries to query for an image, in order: the mirrors in the current `registries.conf`, then the
    /// original registry.
    pub(super) fn sources(&self, reference: &ImageRef) -> Result<Vec<Source>, ResolveError> {
        let conf = self.conf.as_ref().map(Mounted::read).transpose()?.flatten();
        let sources = conf.unwrap_or_default().sources(reference);
        sources.map_err(|error| {
            let reason = match error {
                SourceError::Blocked(_) => ResolveReason::RegistryBlocked,
                SourceError::NoReference(_) => ResolveReason::ClientSetup,
            };
            ResolveError::new(reason, error.to_string())
        })
    }

    pub(super) fn client(&self, redirects: Redirects, trust: Trust) -> Result<Client, ResolveError> {
        let mut client = Client::builder()
            .connect_timeout(REQUEST_TIMEOUT)
            .read_timeout(REQUEST_TIMEOUT)
            .redirect(match redirects {
                Redirects::Follow => Policy::custom(follow),
                Redirects::Refuse => Policy::none(),
            })
            .tls_danger_accept_invalid_certs(trust == Trust::Insecure)
            .user_agent(concat!("berth-controller/", env!("CARGO_PKG_VERSION")));
        if let Some(ca) = &self.ca {
            client = client.tls_certs_merge(ca.read()?.unwrap_or_default());
        }
        client
            .build()
            .map_err(|e| ResolveError::new(ResolveReason::ClientSetup, words(&e)))
    }
}

fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    match refused_redirect(attempt.previous(), attempt.url()) {
        Some(why) => attempt.error(why),
        None => attempt.follow(),
    }
}

/// Returns why a redirect to `next` is refused; `None` to follow it.
fn refused_redirect(previous: &[Url], next: &Url) -> Option<&'static str> {
    if previous.len() > MAX_REDIRECTS {
        return Some("too many redirects");
    }
    if previous.iter().any(|url| url.scheme() == "https") && next.scheme() != "https" {
        return Some("redirect from HTTPS to HTTP refused");
    }
    None
}

/// A file that is read again at each use, since it may change. While it is invalid, its last valid content is used.
pub struct Mounted<T> {
    path: PathBuf,
    parse: fn(&[u8]) -> Result<T, String>,
    good: Arc<Mutex<Option<T>>>,
}

impl<T> Clone for Mounted<T> {
    fn clone(&self) -> Self {
        Self {
            path: self.path.clone(),
            parse: self.parse,
            good: self.good.clone(),
        }
    }
}

impl<T> fmt::Debug for Mounted<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mounted").field(&self.path).finish()
    }
}

impl Mounted<Vec<Certificate>> {
    /// File with a PEM bundle.
    pub fn certificates(path: &Path) -> Self {
        Self::new(path, |bytes| match Certificate::from_pem_bundle(bytes) {
            Ok(found) if found.is_empty() => Err("the file has no PEM certificate".to_owned()),
            Ok(found) => Ok(found),
            Err(error) => Err(words(&error)),
        })
    }
}

impl Mounted<Arc<RegistriesConf>> {
    /// File in the format of `registries.conf`.
    pub fn registries_conf(path: &Path) -> Self {
        Self::new(path, |bytes| {
            let text = str::from_utf8(bytes).map_err(|_| "the file is not UTF-8 text".to_owned())?;
            RegistriesConf::parse(text).map(Arc::new).map_err(|e| e.to_string())
        })
    }
}

impl<T: Clone> Mounted<T> {
    fn new(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Self {
        Self {
            path: path.to_owned(),
            parse,
            good: Arc::default(),
        }
    }

    /// Reads the file. `None` if it does not exist.
    pub(super) fn read(&self) -> Result<Option<T>, ResolveError> {
        let mut good = locked(&self.good);
        let read = match bounded(&self.path) {
            Ok(bytes) if bytes.len() > MAX_FILE => Err(format!("the file is longer than {MAX_FILE} bytes")),
            Ok(bytes) => (self.parse)(&bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                *good = None;
                return Ok(None);
            }
            Err(error) => Err(error.to_string()),
        };
        let error = match read {
            Ok(now) => {
                *good = Some(now);
                return Ok(good.clone());
            }
            Err(error) => one_line(&format!("{} cannot be used: {error}", self.path.display())),
        };
        if good.is_none() {
            return Err(ResolveError::new(ResolveReason::ClientSetup, error));
        }
        tracing::warn!(error, "using the file's last valid content until the file is repaired");
        Ok(good.clone())
    }
}

/// Reads at most one byte more than [`MAX_FILE`], so that the caller notices a longer file.
fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = vec![];
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_invalid_file_keeps_its_last_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = Mounted::new(&path, |bytes| match bytes {
            b"bad" => Err("it is bad".to_owned()),
            good => Ok(good.to_vec()),
        });
        assert_eq!(file.read(), Ok(None), "no file");
        fs::write(&path, "bad").unwrap();
        let error = file.read().unwrap_err();
        assert_eq!(error.reason, ResolveReason::ClientSetup);
        assert!(
            error.message.contains(path.to_str().unwrap()) && error.message.contains("it is bad"),
            "{error}"
        );
        for (content, expected) in [("1", "1"), ("2", "2"), ("bad", "2"), ("3", "3")] {
            fs::write(&path, content).unwrap();
            assert_eq!(file.clone().read(), Ok(Some(expected.into())), "{content}");
        }
        fs::write(&path, vec![b'#'; MAX_FILE + 1]).unwrap();
        assert_eq!(file.read(), Ok(Some("3".into())), "too long");
        fs::remove_file(&path).unwrap();
        assert_eq!(file.read(), Ok(None), "taken away");
        fs::create_dir(&path).unwrap();
        assert_eq!(
            file.read().unwrap_err().reason,
            ResolveReason::ClientSetup,
            "a directory"
        );
    }

    #[test]
    fn a_bundle_has_at_least_one_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.crt");
        fs::write(&path, "# none yet\n").unwrap();
        let error = Mounted::certificates(&path).read().unwrap_err();
        assert!(error.message.contains("no PEM certificate"), "{error}");
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
        fs::write(&path, certificate.pem()).unwrap();
        assert_eq!(Mounted::certificates(&path).read().unwrap().unwrap().len(), 1);
    }

    #[test]
    fn a_redirect_never_leaves_tls() {
        let [plain, secure] = ["http://a.example", "https://b.example"].map(|url| Url::parse(url).unwrap());
        for (previous, next, is_followed) in [
            (&plain, &plain, true),
            (&plain, &secure, true),
            (&secure, &secure, true),
            (&secure, &plain, false),
        ] {
            let refused = refused_redirect(std::slice::from_ref(previous), next);
            assert_eq!(refused.is_none(), is_followed, "{previous} {next}");
        }
    }
}
