//! Requests to the API server. Each request has a timeout, and writes are sent only while this process leads. Errors
//! are classified by whether the write may have been stored.

use std::fmt::Debug;
use std::time::Duration;

use berth_api::decode::Decoded;
use berth_shell::request::{NoAnswer, within};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ObjectList, Status};
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::leader::{Leadership, Lost};
use crate::store::PAGE;

/// Field manager of the controller's server-side apply.
pub const MANAGER: &str = "berth-controller";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may be silent before the client closes it. Every watch ends earlier (by default after 290 s).
/// The store's lists and watches have no other timeout. Without this timeout, a server that accepts a connection but
/// never answers would block them forever.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(300);

/// Sets the connection options of the controller's clients: no retries, and a timeout for a silent server.
pub fn settled(mut config: Config, silence: Duration) -> Config {
    // A failed write is not resent: a later pass plans it again from the current state.
    config.default_retry = false;
    config.read_timeout = Some(silence);
    // Idle time in the connection pool does not count as silence of the server.
    config.reset_reader_on_write = true;
    // With this header, the API server's audit log shows the program, not only the user.
    let agent = concat!("berth-controller/", env!("CARGO_PKG_VERSION"));
    config
        .headers
        .push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    config
}

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// This process may no longer be the leader. Nothing was sent.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The object has changed since it was read, or is gone. Nothing was written; read it again.
    #[error("the object has changed: {0}")]
    Conflict(String),
    /// The server refused this write and would refuse it again. Nothing was written.
    #[error("the API server refused the request: {0}")]
    Refused(String),
    /// The server currently rejects every request of this process. Nothing was written.
    #[error("the API server rejects requests for now: {0}")]
    NotNow(String),
    /// The write may have been stored, or may still be in flight.
    #[error("the API server did not confirm the request: {0}")]
    Unknown(String),
}

/// A kind whose objects can be deserialized.
pub trait Object: Clone + DeserializeOwned + Debug {}

impl<K: Clone + DeserializeOwned + Debug> Object for K {}

/// Client of the API server that writes only while this process leads.
#[derive(Clone)]
pub struct Kube {
    client: Client,
    namespace: String,
    leadership: Leadership,
}

impl Debug for Kube {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kube")
            .field("namespace", &self.namespace)
            .field("leadership", &self.leadership)
            .finish_non_exhaustive()
    }
}

fn classified(status: &Status) -> CallError {
    let message = status.message.clone();
    match status.code {
        404 | 409 => CallError::Conflict(message),
        // No longer authenticated, or too many requests.
        401 | 429 => CallError::NotNow(message),
        408 => CallError::Unknown(message),
        code if (400..500).contains(&code) => CallError::Refused(message),
        // The server may fail after it has stored the write.
        _ => CallError::Unknown(message),
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => classified(&status),
            error => Self::Unknown(error.to_string()),
        }
    }
}

impl From<NoAnswer> for CallError {
    fn from(error: NoAnswer) -> Self {
        Self::Unknown(error.to_string())
    }
}

impl Kube {
    /// Creates the client of a leader.
    pub fn new(client: Client, namespace: &str, leadership: Leadership) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            leadership,
        }
    }

    /// Namespace of the berths.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Epoch of this leader.
    pub fn epoch(&self) -> u64 {
        self.leadership.epoch()
    }

    /// Client for a cluster-scoped kind.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Client for the Leases of the berths.
    pub fn leases(&self) -> Api<Decoded<Lease>> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Sends a write. The write times out before another controller can become leader.
    async fn write<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
        let left = self.leadership.check()?;
        let answer = within(left.min(REQUEST_TIMEOUT), request).await;
        self.beat();
        answer
    }

    /// Records that the reconciler's passes make progress.
    pub fn beat(&self) {
        self.leadership.beat();
    }

    /// GET from etcd, not from the API server's cache. `None` if the object does not exist.
    pub async fn get<K: Object>(&self, api: &Api<K>, name: &str) -> Result<Option<K>, CallError> {
        let answer = within(REQUEST_TIMEOUT, api.get_opt(name)).await;
        self.beat();
        answer
    }

    /// LIST by label from etcd, not from the API server's cache.
    pub async fn list<K: Object>(&self, api: &Api<K>, label: &str) -> Result<Vec<K>, CallError> {
        let (mut params, mut items) = (ListParams::default().labels(label).limit(PAGE), vec![]);
        loop {
            let page: ObjectList<K> = within::<_, _, CallError>(REQUEST_TIMEOUT, api.list(&params)).await?;
            self.beat();
            items.extend(page.items);
            // All pages are of one resourceVersion, so together they are a consistent list.
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(items);
            }
        }
    }

    /// POST.
    pub async fn create<K: Object + Serialize>(&self, api: &Api<K>, object: &K) -> Result<K, CallError> {
        self.write(api.create(&PostParams::default(), object)).await
    }

    /// PUT. The object carries the UID and resourceVersion that it was read with.
    pub async fn replace<K: Object + Serialize>(&self, api: &Api<K>, name: &str, object: &K) -> Result<K, CallError> {
        self.write(api.replace(name, &PostParams::default(), object)).await
    }

    /// PUT of the status. The object carries the resourceVersion that it was read with.
    pub async fn replace_status<K: Object + Serialize>(
        &self,
        api: &Api<K>,
        name: &str,
        object: &K,
    ) -> Result<K, CallError> {
        self.write(api.replace_status(name, &PostParams::default(), object))
            .await
    }

    /// Server-side apply of a status as the given field manager. The body must name the object's UID, so that the write
    /// cannot change a newer object with the same name. Removes the fields that the manager applied before and
    /// the body leaves out. Fails if the body names a resourceVersion other than the object's current one.
    pub async fn apply_status<K: Object>(
        &self,
        manager: &str,
        api: &Api<K>,
        name: &str,
        body: Value,
    ) -> Result<K, CallError> {
        let params = PatchParams::apply(manager).force();
        self.write(api.patch_status(name, &params, &Patch::Apply(body))).await
    }

    /// Merge patch. The body carries the UID and resourceVersion that the object was read with.
    pub async fn merge<K: Object>(&self, api: &Api<K>, name: &str, body: Value) -> Result<K, CallError> {
        self.write(api.patch(name, &PatchParams::default(), &Patch::Merge(body)))
            .await
    }

    /// DELETE of the object with this UID and, if given, this resourceVersion.
    pub async fn delete<K: Object>(
        &self,
        api: &Api<K>,
        name: &str,
        uid: Option<String>,
        resource_version: Option<String>,
    ) -> Result<(), CallError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version }),
            ..DeleteParams::default()
        };
        self.write(api.delete(name, &params)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use k8s_openapi::api::core::v1::Node;
    use kube::runtime::watcher;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn an_idle_watch_is_not_cut() {
        // By default the server ends a watch after 290 s, and kube's watcher waits 5 s longer.
        assert_eq!(
            watcher::Config::default().timeout,
            None,
            "the library's default of 290 s holds"
        );
        assert!(SILENCE_TIMEOUT > Duration::from_secs(295));
        let config = settled(Config::new("http://127.0.0.1:1".parse().unwrap()), SILENCE_TIMEOUT);
        assert!(config.reset_reader_on_write && !config.default_retry);
    }

    #[test]
    fn errors_are_classified_by_status_code() {
        fn of(code: u16) -> String {
            let status = Status {
                code,
                message: "words".to_owned(),
                ..Status::default()
            };
            classified(&status).to_string()
        }
        for (codes, expected) in [
            (
                &[400, 403, 405, 413, 422][..],
                "the API server refused the request: words",
            ),
            (&[401, 429], "the API server rejects requests for now: words"),
            (&[404, 409], "the object has changed: words"),
            (
                &[408, 500, 503, 504],
                "the API server did not confirm the request: words",
            ),
        ] {
            for code in codes {
                assert_eq!(of(*code), expected, "{code}");
            }
        }
    }

    #[tokio::test]
    async fn a_server_that_never_answers_is_given_up() {
        berth_shell::install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut open = vec![];
            while let Ok((connection, _)) = listener.accept().await {
                open.push(connection);
            }
        });
        let config = settled(Config::new(url.parse().unwrap()), Duration::from_millis(200));
        let nodes = Api::<Node>::all(berth_shell::client::client(config).unwrap());
        let started = Instant::now();
        let params = ListParams::default();
        let list = tokio::time::timeout(Duration::from_secs(10), nodes.list(&params));
        assert!(list.await.expect("the list has an end").is_err());
        let params = kube::api::WatchParams::default();
        let watch = tokio::time::timeout(Duration::from_secs(10), nodes.watch(&params, "0"));
        assert!(watch.await.expect("the request for a watch has an end").is_err());
        assert!(started.elapsed() >= Duration::from_millis(400));
    }
}
