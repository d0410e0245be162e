//! Requests of the doctor: each has a timeout, and an answer that is missing is a fact too.

use std::time::Duration;

use berth_shell::request::{NoAnswer, within};
use http::{Method, Request};
use kube::Client;
use kube::api::ListParams;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::seen::{Seen, Unseen};
use crate::snapshot::words;

/// Objects in one page of a list.
const PAGE: u32 = 500;

/// Error of a request.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) enum Failure {
    Kube(#[from] kube::Error),
    NoAnswer(#[from] NoAnswer),
    Http(#[from] http::Error),
    Json(#[from] serde_json::Error),
    Task(#[from] tokio::task::JoinError),
}

impl Failure {
    /// Returns the API server's status; `None` if it did not answer with one.
    pub(super) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// Returns the fact that something is not known. `permission` is what the request needs.
    pub(super) fn unseen(&self, what: &str, permission: &str) -> Unseen {
        let why = match self {
            Self::Kube(error) => words(error),
            other => other.to_string(),
        };
        let is_refused = self.status().is_some_and(|status| matches!(status.code, 401 | 403));
        Unseen {
            what: what.to_owned(),
            why,
            permission: is_refused.then(|| permission.to_owned()),
        }
    }
}

/// A thing to read, and the permission that it takes.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) path: String,
    pub(super) what: String,
    pub(super) permission: String,
}

impl Wanted {
    pub(super) fn new(path: &str, what: &str, permission: &str) -> Self {
        Self {
            path: path.to_owned(),
            what: what.to_owned(),
            permission: permission.to_owned(),
        }
    }
}

impl Wanted {
    /// Returns an object of Berth's namespace.
    pub(super) fn of(group: &str, resource: &str, namespace: &str, name: &str) -> Self {
        let path = format!("/apis/{group}/v1/namespaces/{namespace}/{resource}/{name}");
        let permission = format!("get {resource}.{group} in namespace {namespace}");
        Self::new(&path, &format!("{resource} {name}"), &permission)
    }

    /// Returns the objects of all namespaces.
    pub(super) fn all_of(group: &str, resource: &str) -> Self {
        let permission = format!("list {resource}.{group} in all namespaces");
        Self::new(&format!("/apis/{group}/v1/{resource}"), resource, &permission)
    }
}

/// Page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    items: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PageMeta {
    r#continue: String,
}

/// Sends requests to the cluster.
#[derive(Clone)]
pub(super) struct Asker {
    pub(super) client: Client,
    /// Timeout of each request.
    pub(super) deadline: Duration,
}

impl Asker {
    /// Sends a request.
    pub(super) async fn send(&self, request: Request<Vec<u8>>) -> Result<String, Failure> {
        within(self.deadline, self.client.request_text(request)).await
    }

    async fn get<T>(&self, path: &str, accept: Option<&str>) -> Result<T, Failure>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let mut request = Request::builder().method(Method::GET).uri(path);
        if let Some(accept) = accept {
            request = request.header(http::header::ACCEPT, accept);
        }
        self.decoded(request.body(vec![])?).await
    }

    async fn decoded<T>(&self, request: Request<Vec<u8>>) -> Result<T, Failure>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let answer = self.send(request).await?;
        // A list of a large cluster takes a while, and the other answers arrive meanwhile.
        Ok(spawn_blocking(move || serde_json::from_str(&answer)).await??)
    }

    /// Reads an object. `None` if it does not exist, or if the API server does not know its kind.
    pub(super) async fn read<T>(&self, wanted: &Wanted) -> Seen<Option<T>>
    where
        T: DeserializeOwned + Send + 'static,
    {
        self.read_as(wanted, None).await
    }

    async fn read_as<T>(&self, wanted: &Wanted, accept: Option<&str>) -> Seen<Option<T>>
    where
        T: DeserializeOwned + Send + 'static,
    {
        match self.get(&wanted.path, accept).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.status().is_some_and(|status| status.code == 404) => Ok(None),
            Err(failure) => Err(failure.unseen(&wanted.what, &wanted.permission)),
        }
    }

    /// Reads the type of a Secret. The API server returns it in a table, without the Secret's content.
    pub(super) async fn secret_type(&self, wanted: &Wanted) -> Seen<Option<String>> {
        let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let table: Option<Value> = self.read_as(wanted, Some(accept)).await?;
        let Some(table) = table else { return Ok(None) };
        let mut columns = table["columnDefinitions"].as_array().into_iter().flatten();
        let column = columns.position(|column| column["name"] == "Type");
        let cell = column.and_then(|column| table["rows"][0]["cells"][column].as_str());
        match cell {
            Some(type_) => Ok(Some(type_.to_owned())),
            None => Err(Unseen {
                what: wanted.what.clone(),
                why: "the API server returned no table".to_owned(),
                permission: None,
            }),
        }
    }

    /// Lists objects in one request, as in [`crate::Snapshot::read`].
    pub(super) async fn list<T>(&self, wanted: &Wanted) -> Seen<Vec<T>>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let page: Result<Page<T>, Failure> = self.get(&wanted.path, None).await;
        match page {
            Ok(page) => Ok(page.items),
            Err(failure) => Err(failure.unseen(&wanted.what, &wanted.permission)),
        }
    }

    /// Lists objects in at most this many pages. Also returns true if there are more.
    pub(super) async fn pages<T>(&self, wanted: &Wanted, selector: Option<&str>, most: usize) -> Seen<(Vec<T>, bool)>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let mut found = vec![];
        let mut params = ListParams {
            label_selector: selector.map(str::to_owned),
            ..ListParams::default().limit(PAGE)
        };
        for _ in 0..most {
            let page: Page<T> = self
                .page(&wanted.path, &params)
                .await
                .map_err(|failure| failure.unseen(&wanted.what, &wanted.permission))?;
            found.extend(page.items);
            if page.metadata.r#continue.is_empty() {
                return Ok((found, false));
            }
            params.continue_token = Some(page.metadata.r#continue);
        }
        Ok((found, true))
    }

    async fn page<T>(&self, path: &str, params: &ListParams) -> Result<Page<T>, Failure>
    where
        T: DeserializeOwned + Send + 'static,
    {
        let request = kube::api::Request::new(path).list(params);
        self.decoded(request.map_err(kube::Error::BuildRequest)?).await
    }
}
