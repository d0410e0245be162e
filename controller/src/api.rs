//! Requests to the API server. Each has a deadline; a write is made only while this process leads; failures are sorted
//! by what they mean for the fate of the write.

use std::fmt::Debug;
use std::time::Duration;

use berth_shell::request::{NoAnswer, within};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, ObjectList, Status};
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::leader::{Leadership, Lost};
use crate::store::PAGE;

/// Field manager of the controller's server-side apply.
const MANAGER: &str = "berth-controller";
/// Longest time that a request may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Time after which a silent connection counts as dead. A watch ends by itself after 290 s, and its reader gives up 5 s
/// later, so this cuts no idle watch. A list and the request for a watch have no other deadline: without it, a server
/// that accepts and never answers would keep them waiting for ever.
pub const SILENCE: Duration = Duration::from_secs(300);

/// The connection settings of every client here: no retries, and an end to waiting for a silent server.
pub fn settled(mut config: Config, silence: Duration) -> Config {
    // What fails is planned anew from what is true then, not sent again as it was.
    config.default_retry = false;
    config.read_timeout = Some(silence);
    // The time that a pooled connection lay idle is not the server's silence.
    config.reset_reader_on_write = true;
    // The audit log then names the program, beside its user.
    let agent = concat!("berth-controller/", env!("CARGO_PKG_VERSION"));
    config
        .headers
        .push((http::header::USER_AGENT, http::HeaderValue::from_static(agent)));
    config
}

/// Error of a request.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// This process may no longer lead. Nothing was sent.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The object has changed since it was read, or is gone. Nothing was written; look again.
    #[error("the object has changed: {0}")]
    Conflict(String),
    /// The server refused this write, and would refuse it again. Nothing was written.
    #[error("refused: {0}")]
    Refused(String),
    /// The server takes nothing from this process now, whatever it is. Nothing was written.
    #[error("not now: {0}")]
    NotNow(String),
    /// The fate of the write is unknown: it may even still be on its way.
    #[error("no answer: {0}")]
    Unknown(String),
}

/// The API server, as the leader writes to it.
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

fn sorted(status: &Status) -> CallError {
    let message = status.message.clone();
    match status.code {
        404 | 409 => CallError::Conflict(message),
        // No longer authenticated, or too many requests.
        401 | 429 => CallError::NotNow(message),
        408 => CallError::Unknown(message),
        code if (400..500).contains(&code) => CallError::Refused(message),
        // A server error may come after the write was handed to storage.
        _ => CallError::Unknown(message),
    }
}

impl From<kube::Error> for CallError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => sorted(&status),
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
    /// The API server for a leader.
    pub fn new(client: Client, namespace: &str, leadership: Leadership) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            leadership,
        }
    }

    /// The namespace of the berths.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The epoch of this leader.
    pub fn epoch(&self) -> u64 {
        self.leadership.epoch()
    }

    /// The API of a cluster-scoped kind.
    pub fn all<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// The API of a cluster-scoped kind whose objects are read as they are, with fields that this program does not know.
    pub fn whole<K: Resource<DynamicType = ()>>(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<K>(&()))
    }

    /// The API of the berths.
    pub fn leases(&self) -> Api<k8s_openapi::api::coordination::v1::Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a write, with a deadline before another controller can lead.
    async fn write<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
        let left = self.leadership.check()?;
        let answer = within(left.min(DEADLINE), request).await;
        self.beat();
        answer
    }

    /// Notes that the passes go on.
    pub fn beat(&self) {
        self.leadership.beat();
    }

    /// GET, from storage. `None`: it does not exist.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn get<K>(&self, api: &Api<K>, name: &str) -> Result<Option<K>, CallError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let answer = within(DEADLINE, api.get_opt(name)).await;
        self.beat();
        answer
    }

    /// LIST by label, from storage.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn list<K>(&self, api: &Api<K>, label: &str) -> Result<Vec<K>, CallError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let (mut params, mut items) = (ListParams::default().labels(label).limit(PAGE), vec![]);
        loop {
            let page: ObjectList<K> = within::<_, _, CallError>(DEADLINE, api.list(&params)).await?;
            self.beat();
            items.extend(page.items);
            // All pages show the same moment.
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok(items);
            }
        }
    }

    /// POST.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<K, CallError>
    where
        K: Clone + DeserializeOwned + Serialize + Debug,
    {
        self.write(api.create(&PostParams::default(), object)).await
    }

    /// PUT. The object carries the UID and resourceVersion that it was read with.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn replace<K>(&self, api: &Api<K>, name: &str, object: &K) -> Result<K, CallError>
    where
        K: Clone + DeserializeOwned + Serialize + Debug,
    {
        self.write(api.replace(name, &PostParams::default(), object)).await
    }

    /// PUT of the status. The object carries the resourceVersion that it was read with.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn replace_status<K>(&self, api: &Api<K>, name: &str, object: &K) -> Result<K, CallError>
    where
        K: Clone + DeserializeOwned + Serialize + Debug,
    {
        self.write(api.replace_status(name, &PostParams::default(), object))
            .await
    }

    /// Server-side apply of fields of a status that are ours alone. The body names the object's UID, so that nothing is
    /// written to another one of that name.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn apply_status<K>(&self, api: &Api<K>, name: &str, body: Value) -> Result<K, CallError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.apply_status_as(MANAGER, api, name, body).await
    }

    /// Server-side apply of a status as that field manager. It takes away what the manager has applied before and the body leaves
    /// out. If the body names a resourceVersion, it must still be the object's.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn apply_status_as<K>(&self, manager: &str, api: &Api<K>, name: &str, body: Value) -> Result<K, CallError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let params = PatchParams::apply(manager).force();
        self.write(api.patch_status(name, &params, &Patch::Apply(body))).await
    }

    /// Merge patch. The body carries the UID and resourceVersion that the object was read with.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn merge<K>(&self, api: &Api<K>, name: &str, body: Value) -> Result<K, CallError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.write(api.patch(name, &PatchParams::default(), &Patch::Merge(body)))
            .await
    }

    /// DELETE of the object with that UID, and, if given, at that resourceVersion.
    ///
    /// # Errors
    /// As [`CallError`] says.
    pub async fn delete<K>(
        &self,
        api: &Api<K>,
        name: &str,
        uid: Option<String>,
        resource_version: Option<String>,
    ) -> Result<(), CallError>
    where
        K: Clone + DeserializeOwned + Debug,
    {
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
        // The server ends a watch after 290 s unless told otherwise, and its reader waits 5 s more.
        assert_eq!(
            watcher::Config::default().timeout,
            None,
            "the library's default of 290 s holds"
        );
        assert!(SILENCE > Duration::from_secs(295));
        let config = settled(Config::new("http://127.0.0.1:1".parse().unwrap()), SILENCE);
        assert!(config.reset_reader_on_write && !config.default_retry);
    }

    #[test]
    fn only_an_answer_about_the_write_itself_is_a_refusal() {
        let of = |code: u16| {
            let status = Status {
                code,
                message: "words".to_owned(),
                ..Status::default()
            };
            sorted(&status).to_string()
        };
        for (codes, expected) in [
            (&[400, 403, 405, 413, 422][..], "refused: words"),
            (&[401, 429], "not now: words"),
            (&[404, 409], "the object has changed: words"),
            (&[408, 500, 503, 504], "no answer: words"),
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
