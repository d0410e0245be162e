//! Requests with plain JSON bodies. The removal must also work on objects that this program cannot decode, such as
//! objects of another version.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Result, anyhow};
use berth_shell::request::{NoAnswer, within};
use kube::Client;
use kube::api::ListParams;
use kube::core::Status;
use serde_json::{Value, json};

/// Objects per page of a list.
const PAGE: u32 = 500;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failed {
    /// The request is not permitted.
    #[error("{0}")]
    Forbidden(String),
    /// Another client has changed the object since it was read.
    #[error("{0}")]
    Conflict(String),
    /// The API server refuses the content of the object.
    #[error("{0}")]
    Invalid(String),
    /// The object, or its kind, does not exist.
    #[error("{0}")]
    Gone(String),
    /// The request failed in another way.
    #[error("{0:#}")]
    Other(anyhow::Error),
}

impl From<kube::Error> for Failed {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of(*status),
            error => Self::Other(error.into()),
        }
    }
}

impl From<NoAnswer> for Failed {
    fn from(error: NoAnswer) -> Self {
        Self::Other(error.into())
    }
}

impl Failed {
    fn of(status: Status) -> Self {
        match status.code {
            401 | 403 => Self::Forbidden(status.message),
            404 => Self::Gone(status.message),
            409 => Self::Conflict(status.message),
            422 => Self::Invalid(status.message),
            _ => Self::Other(anyhow!("{}", status.message)),
        }
    }

    /// Returns the error of a step. The API server's message about a refusal names the missing right.
    pub(super) fn while_doing(self, what: impl Display) -> anyhow::Error {
        match self {
            Self::Forbidden(message) => anyhow!(
                "cannot {what}: {message}; a user who may do everything, such as a member of system:masters or a \
                 cluster-admin, has this right. Run the command again with it: it continues here"
            ),
            error => anyhow!("cannot {what}: {error}"),
        }
    }
}

/// The API server.
#[derive(Clone)]
pub(super) struct Server {
    client: Client,
    /// Time limit of one request.
    limit: Duration,
}

/// Format of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Merge,
    Strategic,
}

impl Server {
    pub(super) fn new(client: Client, limit: Duration) -> Self {
        Self { client, limit }
    }

    async fn send(&self, method: &str, path: &str, format: &str, body: &Value) -> Result<Value, Failed> {
        let bytes = if body.is_null() {
            vec![]
        } else {
            body.to_string().into_bytes()
        };
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("Content-Type", format).body(bytes);
        let request = request.map_err(|error| Failed::Other(error.into()))?;
        self.answer(request).await
    }

    async fn answer(&self, request: http::Request<Vec<u8>>) -> Result<Value, Failed> {
        within(self.limit, self.client.request::<Value>(request)).await
    }

    /// Reads an object, or other content; `None` if it does not exist.
    pub(super) async fn get(&self, path: &str) -> Result<Option<Value>, Failed> {
        match self.send("GET", path, "application/json", &Value::Null).await {
            Ok(found) => Ok(Some(found)),
            Err(Failed::Gone(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists the objects at this path that have this label; `None` for all. A kind that is not served has no objects.
    pub(super) async fn list(&self, path: &str, selector: Option<&str>) -> Result<Vec<Value>, Failed> {
        let mut params = ListParams {
            label_selector: selector.map(str::to_owned),
            ..ListParams::default().limit(PAGE)
        };
        let mut objects = vec![];
        loop {
            let request = kube::api::Request::new(path).list(&params);
            let request = request.map_err(kube::Error::BuildRequest)?;
            let mut page = match self.answer(request).await {
                Err(Failed::Gone(_)) => return Ok(objects),
                answer => answer?,
            };
            if let Some(items) = page["items"].as_array_mut() {
                objects.append(items);
            }
            let next = page["metadata"]["continue"].as_str().unwrap_or_default();
            if next.is_empty() {
                return Ok(objects);
            }
            params.continue_token = Some(next.to_owned());
        }
    }

    /// Deletes an object with this UID. An object that is gone or was created again counts as deleted.
    pub(super) async fn delete(&self, path: &str, uid: &str) -> Result<(), Failed> {
        self.delete_with(path, json!({ "preconditions": { "uid": uid } })).await
    }

    /// Deletes a pod at once, without its kubelet.
    pub(super) async fn delete_now(&self, path: &str, uid: &str) -> Result<(), Failed> {
        let options = json!({ "preconditions": { "uid": uid }, "gracePeriodSeconds": 0 });
        self.delete_with(path, options).await
    }

    async fn delete_with(&self, path: &str, mut options: Value) -> Result<(), Failed> {
        options["apiVersion"] = json!("v1");
        options["kind"] = json!("DeleteOptions");
        options["propagationPolicy"] = json!("Background");
        match self.send("DELETE", path, "application/json", &options).await {
            Err(Failed::Conflict(_) | Failed::Gone(_)) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    /// Patches an object. An object that does not exist needs no patch.
    pub(super) async fn patch(&self, path: &str, format: Format, body: &Value) -> Result<(), Failed> {
        let kind = match format {
            Format::Merge => "application/merge-patch+json",
            Format::Strategic => "application/strategic-merge-patch+json",
        };
        let path = format!("{path}?fieldManager={}", crate::admin::FIELD_MANAGER);
        match self.send("PATCH", &path, kind, body).await {
            Err(Failed::Gone(_)) => Ok(()),
            patched => patched.map(drop),
        }
    }

    /// Replaces an object if it still has the resourceVersion in `body`.
    pub(super) async fn replace(&self, path: &str, body: &Value) -> Result<(), Failed> {
        let path = format!("{path}?fieldManager={}", crate::admin::FIELD_MANAGER);
        self.send("PUT", &path, "application/json", body).await.map(drop)
    }
}
