//! A transaction: its socket and its signals to clients.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zbus::object_server::Interface;
use zbus::{Connection, DynamicType, Guid};

use super::backend::ProgressEvent;
use super::faults::SharedFaults;
use crate::locked::locked;

/// Interface of the object `/` on the socket.
const INTERFACE: &str = "org.projectatomic.rpmostree1.Transaction";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) method: String,
    /// Method and all arguments. A call with the same fingerprint joins the transaction.
    pub(super) fingerprint: String,
    pub(super) title: String,
    /// Title for display before the work begins.
    pub(super) first_title: String,
    pub(super) sender: String,
    pub(super) path: String,
    /// If true, progress goes to the daemon's journal instead of to clients.
    pub(super) output_to_self: bool,
}

/// A transaction, from the call until its clients have disconnected.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) names: Names,
    /// Address of the socket for clients on the host.
    pub(super) address: String,
    started: AtomicBool,
    cancelled: watch::Sender<bool>,
    finished: Mutex<Option<(bool, String)>>,
    peers: Mutex<Vec<Connection>>,
    clients: watch::Sender<usize>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Transaction {
    /// Binds the socket, replacing an existing one, and accepts clients. `shown` is the path of the socket on the host.
    pub(super) fn open<F: Interface>(
        names: Names,
        socket: &Path,
        shown: &str,
        faults: SharedFaults,
        face: impl Fn(Arc<Self>, watch::Receiver<bool>) -> F + Send + Sync + 'static,
    ) -> std::io::Result<Arc<Self>> {
        match std::fs::remove_file(socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
        let guid = Guid::generate();
        // The real address has no GUID either.
        let transaction = Arc::new(Self {
            names,
            address: format!("unix:path={shown}"),
            started: AtomicBool::new(false),
            cancelled: watch::Sender::new(false),
            finished: Mutex::default(),
            peers: Mutex::default(),
            clients: watch::Sender::new(0),
            tasks: Mutex::default(),
        });
        let accept = tokio::spawn(accept(listener, guid, faults, transaction.clone(), Arc::new(face)));
        transaction.keep(accept.abort_handle());
        Ok(transaction)
    }

    /// Aborts this task when the transaction ends.
    pub(super) fn keep(&self, task: AbortHandle) {
        locked(&self.tasks).push(task);
    }

    /// Records a client's request to run; `true` for the first one.
    pub(super) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::SeqCst)
    }

    pub(super) fn is_started(&self) -> bool {
        self.started.load(Ordering::SeqCst)
    }

    pub(super) fn title(&self) -> &str {
        if self.is_started() {
            return &self.names.title;
        }
        &self.names.first_title
    }

    pub(super) async fn is_left(&self) {
        // The sender lives as long as `self`.
        let _ = self.clients.subscribe().wait_for(|clients| *clients == 0).await;
    }

    pub(super) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub(super) async fn is_cancelled(&self) {
        // The sender lives as long as `self`.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    pub(super) fn finished(&self) -> Option<(bool, String)> {
        locked(&self.finished).clone()
    }

    /// Records the end and sends it to all clients.
    pub(super) async fn finish(&self, result: (bool, String)) {
        *locked(&self.finished) = Some(result.clone());
        for peer in self.peers() {
            Self::send_end(&peer, &result).await;
        }
    }

    pub(super) async fn send_end(peer: &Connection, result: &(bool, String)) {
        emit(peer, "Finished", result).await;
    }

    pub(super) async fn send(&self, event: &ProgressEvent) {
        if self.names.output_to_self {
            return;
        }
        for peer in self.peers() {
            match event {
                ProgressEvent::Message(text) => emit(&peer, "Message", &(text,)).await,
                ProgressEvent::TaskBegin(text) => emit(&peer, "TaskBegin", &(text,)).await,
                ProgressEvent::TaskEnd(text) => emit(&peer, "TaskEnd", &(text,)).await,
                ProgressEvent::Percent(text, percent) => emit(&peer, "PercentProgress", &(text, percent)).await,
                ProgressEvent::ProgressEnd => emit(&peer, "ProgressEnd", &()).await,
            }
        }
    }

    fn peers(&self) -> Vec<Connection> {
        locked(&self.peers).clone()
    }

    /// Ends the work, the socket, and the connections of the clients.
    pub(super) fn close(&self) {
        for task in locked(&self.tasks).drain(..) {
            task.abort();
        }
        self.leave();
    }

    /// Closes the connections of the clients. The work continues.
    pub(super) fn leave(&self) {
        let peers: Vec<_> = locked(&self.peers).drain(..).collect();
        // Without a runtime the whole process is ending.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            for peer in peers {
                runtime.spawn(peer.close());
            }
        }
    }
}

/// Sends a signal to a client. An error only means that the client is gone.
async fn emit<B: Serialize + DynamicType>(peer: &Connection, signal: &str, body: &B) {
    let sent = peer.emit_signal(None::<&str>, "/", INTERFACE, signal, body).await;
    if let Err(error) = sent {
        tracing::debug!(signal, %error, "a transaction's client has disconnected");
    }
}

async fn accept<F: Interface>(
    listener: UnixListener,
    guid: Guid<'static>,
    faults: SharedFaults,
    transaction: Arc<Transaction>,
    face: Arc<dyn Fn(Arc<Transaction>, watch::Receiver<bool>) -> F + Send + Sync>,
) {
    let mut unanswered = vec![];
    while let Ok((stream, _)) = listener.accept().await {
        if faults.with(|f| f.mute_sockets) {
            unanswered.push(stream);
            continue;
        }
        let (listed, is_listed) = watch::channel(false);
        let (guid, transaction, face) = (guid.clone(), transaction.clone(), face(transaction.clone(), is_listed));
        // A client that does not authenticate must not block others.
        let greeting = tokio::spawn(async move {
            match greet(stream, guid, face, transaction.clone()).await {
                Ok(peer) => {
                    locked(&transaction.peers).push(peer);
                    listed.send_replace(true);
                }
                Err(error) => tracing::debug!(%error, "cannot accept a transaction's client"),
            }
        });
        drop(greeting);
    }
}

async fn greet<F: Interface>(
    client: UnixStream,
    guid: Guid<'static>,
    face: F,
    transaction: Arc<Transaction>,
) -> zbus::Result<Connection> {
    // A client that this process cannot see, such as a test outside the host, has no process ID, which is an error for
    // zbus and for the real daemon's GDBus. To serve such tests, zbus gets our own socket pair instead, for clients of
    // the same user.
    let (ours, theirs) = UnixStream::pair().map_err(zbus::Error::from)?;
    let (peer, us) = (client.peer_cred(), ours.peer_cred());
    if peer.map_err(zbus::Error::from)?.uid() != us.map_err(zbus::Error::from)?.uid() {
        return Err(zbus::Error::Failure("a client of another user".to_owned()));
    }
    transaction.clients.send_modify(|clients| *clients += 1);
    drop(tokio::spawn(async move {
        relay(client, theirs).await;
        transaction.clients.send_modify(|clients| *clients -= 1);
    }));
    let stream = ours.into_std().map_err(zbus::Error::from)?;
    zbus::connection::Builder::unix_stream(stream)
        .server(guid)
        .p2p()
        .serve_at("/", face)
        .build()
        .await
}

/// Copies in both directions until one side closes.
async fn relay(mut client: UnixStream, mut server: UnixStream) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    // An error means that one side has closed.
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}
