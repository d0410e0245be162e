//! The host's system bus: one connection, rebuilt when it breaks, and the signals that wake the agent.
//!
//! There are no generated proxies, because the agent calls only about a dozen methods, each with a timeout and its own
//! rule for a lost reply. Also, a proxy's property cache could be stale after a reconnect.

use std::sync::Arc;
use std::time::Duration;

use berth_api::condition::one_line;
use futures::StreamExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, broadcast, watch};
use zbus::connection::Builder;
use zbus::{Connection, DBusError, DynamicType, MatchRule, MessageStream, OwnedObjectPath, OwnedVariant, Type};

/// Timeout of a call. A later reply counts as lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy)]
pub(super) struct Target<'a> {
    pub(super) service: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
}

pub(super) const SYSTEMD: Target<'static> = Target {
    service: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

pub(super) const LOGIND: Target<'static> = Target {
    service: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};

pub(super) const TIMEDATE: Target<'static> = Target {
    service: "org.freedesktop.timedate1",
    path: "/org/freedesktop/timedate1",
    interface: "org.freedesktop.timedate1",
};

/// Error of a call.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BusError {
    /// The call was not sent, since there is no connection.
    #[error("cannot reach the system bus: {0}")]
    Unreachable(String),
    /// The call was sent, but its result is unknown.
    #[error("no reply to {method}: {why}")]
    Lost {
        /// The called method.
        method: String,
        /// Error of the connection.
        why: String,
    },
    /// The service answered with an error.
    #[error("{name}: {message}")]
    Refused {
        /// Name of the D-Bus error.
        name: String,
        /// Text of the error.
        message: String,
    },
    /// The reply cannot be parsed.
    #[error("cannot parse the reply to {method}: {why}")]
    Malformed {
        /// The called method.
        method: String,
        /// Error of parsing the reply.
        why: String,
    },
}

impl BusError {
    /// True if the service returned a D-Bus error whose name ends with `ending`.
    pub fn is(&self, ending: &str) -> bool {
        matches!(self, Self::Refused { name, .. } if name.ends_with(ending))
    }
}

/// Wakes tasks that wait for a change on the host. Clones share their state.
#[derive(Debug, Clone)]
pub(super) struct Changes(Arc<watch::Sender<u64>>);

impl Changes {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(super) fn bump(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Name prefix of pull units, the only units that wake the agent when they end.
pub(super) const PULL_UNIT_PREFIX: &str = "berth-pull-";

/// Unit of rpm-ostree's daemon. The agent starts it if needed, and waits until it runs.
pub(super) const RPM_OSTREED: &str = "rpm-ostreed.service";

#[derive(Debug, Clone)]
pub(super) struct JobEnd {
    /// Object path of the job.
    pub(super) job: OwnedObjectPath,
    pub(super) unit: String,
    /// `done`, `failed`, `canceled`, `timeout`, …
    pub(super) result: String,
}

#[derive(Debug)]
struct Live {
    connection: Connection,
    listener: Option<tokio::task::AbortHandle>,
}

impl Drop for Live {
    fn drop(&mut self) {
        // The task also holds the connection. If the task continued, the old connection would stay open beside the new
        // one.
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

#[derive(Debug)]
pub(super) struct Bus {
    address: String,
    deadline: Duration,
    /// True to listen to signals of systemd and logind.
    listens: bool,
    connection: Mutex<Option<Live>>,
    changes: Changes,
    jobs: broadcast::Sender<JobEnd>,
}

impl Bus {
    pub(super) fn new(address: String, changes: Changes) -> Self {
        Self {
            listens: true,
            ..Self::quiet(address, CALL_TIMEOUT, changes)
        }
    }

    /// Creates a bus that listens to no signals.
    pub(super) fn quiet(address: String, deadline: Duration, changes: Changes) -> Self {
        Self {
            address,
            deadline,
            listens: false,
            connection: Mutex::new(None),
            changes,
            jobs: broadcast::Sender::new(64),
        }
    }

    pub(super) fn address(&self) -> String {
        self.address.clone()
    }

    /// Subscribes to the ends of systemd's jobs for Berth's units and rpm-ostreed. A job that ends while the connection
    /// is down is missed.
    pub(super) fn jobs(&self) -> broadcast::Receiver<JobEnd> {
        self.jobs.subscribe()
    }

    /// Connects if needed, so that signals arrive.
    pub(super) async fn ensure(&self) -> Result<(), BusError> {
        self.live().await.map(drop)
    }

    async fn live(&self) -> Result<Connection, BusError> {
        let mut slot = self.connection.lock().await;
        if let Some(live) = slot.as_ref().filter(|live| !live.connection.is_closed()) {
            return Ok(live.connection.clone());
        }
        *slot = None;
        let open = tokio::time::timeout(CALL_TIMEOUT, self.open());
        let live = open
            .await
            .map_err(|_| self.unreachable("no answer in time"))?
            .map_err(|error| self.unreachable(&error.to_string()))?;
        let connection = live.connection.clone();
        *slot = Some(live);
        Ok(connection)
    }

    fn unreachable(&self, why: &str) -> BusError {
        BusError::Unreachable(format!("{} ({why})", self.address))
    }

    async fn open(&self) -> zbus::Result<Live> {
        let connection = Builder::address(self.address.as_str())
            .method_timeout(self.deadline)
            .build()
            .await?;
        if !self.listens {
            return Ok(Live {
                connection,
                listener: None,
            });
        }
        // Add the match rules first: a job that ends right after `Subscribe` must not be missed.
        let jobs = signals(&connection, SYSTEMD, "JobRemoved").await?;
        let shutdowns = signals(&connection, LOGIND, "PrepareForShutdown").await?;
        let subscribed = raw_call(&connection, SYSTEMD, "Subscribe", &()).await;
        // Only logged: if systemd is restarting, the agent's next calls to systemd fail and report that.
        if let Err(error) = subscribed {
            tracing::debug!(%error, "cannot subscribe to systemd's signals");
        }
        let listener = tokio::spawn(listen(jobs, shutdowns, self.changes.clone(), self.jobs.clone())).abort_handle();
        Ok(Live {
            connection,
            listener: Some(listener),
        })
    }

    /// Calls a method that may safely be called twice. Retries once on a new connection if the old one is broken.
    pub(super) async fn call<B, R>(&self, target: Target<'_>, method: &str, body: &B) -> Result<R, BusError>
    where
        B: Serialize + DynamicType,
        R: DeserializeOwned + Type,
    {
        match self.call_once(target, method, body).await {
            Err(BusError::Lost { method: lost, why }) => {
                tracing::debug!(
                    method = lost,
                    why,
                    "lost the reply on the system bus; retrying on a new connection"
                );
                self.drop_connection().await;
                self.call_once(target, method, body).await
            }
            result => result,
        }
    }

    /// Calls a method at most once. After [`BusError::Lost`], it is unknown whether the service has carried out the
    /// call.
    pub(super) async fn call_once<B, R>(&self, target: Target<'_>, method: &str, body: &B) -> Result<R, BusError>
    where
        B: Serialize + DynamicType,
        R: DeserializeOwned + Type,
    {
        let connection = self.live().await?;
        let reply = raw_call(&connection, target, method, body).await?;
        reply.body().deserialize().map_err(|error| BusError::Malformed {
            method: method.to_owned(),
            why: error.to_string(),
        })
    }

    pub(super) async fn property<T>(&self, target: Target<'_>, name: &str) -> Result<T, BusError>
    where
        T: TryFrom<OwnedVariant>,
        T::Error: std::fmt::Display,
    {
        let properties = Target {
            interface: "org.freedesktop.DBus.Properties",
            ..target
        };
        let value: OwnedVariant = self.call(properties, "Get", &(target.interface, name)).await?;
        T::try_from(value).map_err(|error| BusError::Malformed {
            method: format!("Get({name})"),
            why: error.to_string(),
        })
    }

    pub(super) async fn drop_connection(&self) {
        *self.connection.lock().await = None;
    }
}

async fn raw_call<B>(
    connection: &Connection,
    target: Target<'_>,
    method: &str,
    body: &B,
) -> Result<zbus::Message, BusError>
where
    B: Serialize + DynamicType,
{
    connection
        .call_method(Some(target.service), target.path, Some(target.interface), method, body)
        .await
        .map_err(|error| translate(method, error))
}

/// Converts the error of a call. Its text comes from the service, so it becomes one line.
pub(super) fn translate(method: &str, error: zbus::Error) -> BusError {
    let (name, message) = match &error {
        zbus::Error::MethodError(name, message, _) => (name.to_string(), message.as_deref().unwrap_or_default()),
        zbus::Error::FDO(known) if !matches!(**known, zbus::fdo::Error::ZBus(_)) => {
            (known.name().to_string(), known.description().unwrap_or_default())
        }
        other => {
            return BusError::Lost {
                method: method.to_owned(),
                why: one_line(&other.to_string()),
            };
        }
    };
    let message = one_line(message);
    // D-Bus returns these errors if the service stopped before it replied.
    if ["NoReply", "Disconnected", "Timeout", "TimedOut"]
        .iter()
        .any(|n| name == format!("org.freedesktop.DBus.Error.{n}"))
    {
        return BusError::Lost {
            method: method.to_owned(),
            why: message,
        };
    }
    BusError::Refused { name, message }
}

async fn signals(
    connection: &Connection,
    target: Target<'static>,
    member: &'static str,
) -> zbus::Result<MessageStream> {
    let rule = MatchRule::builder()
        .msg_type(zbus::message::Type::Signal)
        .sender(target.service)
        .path(target.path)
        .interface(target.interface)
        .member(member)
        .build()?;
    MessageStream::for_match_rule(rule, connection, None).await
}

/// Forwards signals until the connection ends. Also reports the end of the connection as a change, because signals may
/// have been missed.
async fn listen(
    mut jobs: MessageStream,
    mut shutdowns: MessageStream,
    changes: Changes,
    ends: broadcast::Sender<JobEnd>,
) {
    loop {
        tokio::select! {
            message = jobs.next() => {
                let Some(Ok(message)) = message else { break };
                let body = message.body();
                let Ok((_, job, unit, result)) = body.deserialize::<(u32, OwnedObjectPath, String, String)>() else { continue };
                if !unit.starts_with("berth-") && unit != RPM_OSTREED {
                    continue;
                }
                // Wake the agent's loop only for a pull unit. For another unit, the code that started the unit waits
                // for its end. If that end also woke the loop, each pass would cause the next one.
                if unit.starts_with(PULL_UNIT_PREFIX) {
                    changes.bump();
                }
                let _ = ends.send(JobEnd { job, unit, result });
            }
            message = shutdowns.next() => {
                let Some(Ok(_)) = message else { break };
                changes.bump();
            }
        }
    }
    tracing::debug!("the connection to the system bus ended");
    changes.bump();
}
