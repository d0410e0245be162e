//! Secrets with registry credentials. Each is read by a single GET when it is needed; the controller neither lists
//! Secrets nor keeps their content.

use std::time::Duration;

use berth_core::registries::credentials::{AuthFile, Credentials, CredentialsError};
use berth_shell::request::{NoAnswer, within};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::reason::{ResolveError, ResolveReason};

/// Type that the Secrets must have, and the key of the credentials in them.
const TYPE: &str = "kubernetes.io/dockerconfigjson";
const KEY: &str = ".dockerconfigjson";
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The Secrets of one namespace.
#[derive(Debug, Clone)]
pub struct PullSecrets {
    api: Api<Secret>,
    namespace: String,
}

/// A Secret that was read.
#[derive(Debug)]
pub(super) struct PullSecret {
    /// Namespace and name.
    pub(super) name: String,
    file: AuthFile,
}

impl PullSecret {
    /// Returns the credentials for a repository, if the Secret has any.
    pub(super) fn credentials(&self, registry: &str, repository: &str) -> Result<Option<Credentials>, ResolveError> {
        let found = self.file.credentials(registry, repository);
        found.map_err(|error| invalid(&self.name, &error))
    }
}

fn invalid(name: &str, error: &CredentialsError) -> ResolveError {
    ResolveError::new(ResolveReason::InvalidPullSecret, format!("Secret {name}: {error}"))
}

fn unreadable(name: &str, words: &str) -> ResolveError {
    ResolveError::new(
        ResolveReason::PullSecretUnreadable,
        format!("cannot read Secret {name}: {words}"),
    )
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum Failure {
    Kube(#[from] kube::Error),
    NoAnswer(#[from] NoAnswer),
}

impl PullSecrets {
    /// Secrets of the controller's namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
        }
    }

    pub(super) async fn read(&self, name: &str) -> Result<PullSecret, ResolveError> {
        let name_shown = format!("{}/{name}", self.namespace);
        let found = within(READ_TIMEOUT, self.api.get_opt(name)).await;
        let found = found.map_err(|failure| match failure {
            Failure::Kube(kube::Error::Api(status)) if status.code == 403 => {
                let words = format!(
                    "{}; allow get of this Secret in the Role berth-controller of that namespace",
                    status.message
                );
                unreadable(&name_shown, &words)
            }
            other => unreadable(&name_shown, &other.to_string()),
        })?;
        let Some(secret) = found else {
            return Err(ResolveError::new(
                ResolveReason::PullSecretNotFound,
                format!("Secret {name_shown} does not exist; create it with kubectl create secret docker-registry"),
            ));
        };
        open(name_shown, secret)
    }
}

fn open(name: String, secret: Secret) -> Result<PullSecret, ResolveError> {
    let type_ = secret.type_.unwrap_or_default();
    let content = secret.data.unwrap_or_default().remove(KEY);
    let Some(content) = content.filter(|_| type_ == TYPE) else {
        return Err(ResolveError::new(
            ResolveReason::InvalidPullSecret,
            format!(
                "Secret {name} (type {type_}) has no usable credentials: it needs the type {TYPE} and the key {KEY}; \
                 create it with kubectl create secret docker-registry"
            ),
        ));
    };
    match AuthFile::parse(&content.0) {
        Ok(file) => Ok(PullSecret { name, file }),
        Err(error) => Err(invalid(&name, &error)),
    }
}

#[cfg(test)]
impl PullSecret {
    /// A Secret with this content.
    pub(super) fn of(json: &serde_json::Value) -> Self {
        Self {
            name: "berth-system/pull".into(),
            file: AuthFile::parse(json.to_string().as_bytes()).unwrap(),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(type_: &str, key: &str, content: &str) -> Secret {
        Secret {
            type_: Some(type_.into()),
            data: Some([(key.to_owned(), ByteString(content.into()))].into()),
            ..Secret::default()
        }
    }

    #[test]
    fn a_refused_secret_is_not_quoted() {
        for (type_, key, content) in [
            ("Opaque", KEY, r#"{"auths":{}}"#),
            ("kubernetes.io/dockercfg", ".dockercfg", "{}"),
            (TYPE, "other", r#"{"auths":{}}"#),
            (TYPE, KEY, "hush"),
        ] {
            let error = open("berth-system/pull".into(), secret(type_, key, content)).unwrap_err();
            assert_eq!(error.reason, ResolveReason::InvalidPullSecret);
            assert!(
                error.message.contains("berth-system/pull") && error.message.contains("kubectl create"),
                "{error}"
            );
            assert!(!error.message.contains("hush"), "{error}");
        }
        assert!(open("a/b".into(), secret(TYPE, KEY, r#"{"auths":{}}"#)).is_ok());
    }
}
