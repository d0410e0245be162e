//! One transaction: the socket on which its clients meet it, and what they are told.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use zbus::object_server::Interface;
use zbus::{Connection, DynamicType, Guid};

use super::beneath::Tell;
use super::faults::SharedFaults;

/// The interface of the object at `/` of the socket.
const INTERFACE: &str = "org.projectatomic.rpmostree1.Transaction";

/// Subject of a transaction, and who asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    /// The method, such as `Rebase`.
    pub(super) method: String,
    /// The method with all its arguments: an identical call joins.
    pub(super) fingerprint: String,
    /// Text for people.
    pub(super) title: String,
    /// The same until the work begins.
    pub(super) first_title: String,
    /// The caller's name on the bus.
    pub(super) sender: String,
    /// The object on which it was called.
    pub(super) path: String,
    /// Progress goes to the daemon's journal, and to no client.
    pub(super) output_to_self: bool,
}

/// A transaction, from the call until its clients are gone.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) names: Names,
    /// Address of the socket for clients on the host.
    pub(super) address: String,
    started: AtomicBool,
    cancelled: watch::Sender<bool>,
    finished: Mutex<Option<(bool, String)>>,
    peers: Mutex<Vec<Connection>>,
    /// Number of clients that are connected.
    clients: watch::Sender<usize>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Transaction {
    /// Binds the socket anew, whatever was there before, and lets clients in. On the host `socket` has the path `shown`.
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
        // The real address has no guid either.
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

    /// Ends this task with the transaction.
    pub(super) fn keep(&self, task: AbortHandle) {
        locked(&self.tasks).push(task);
    }

    /// Notes that a client wants it to run; `true` for the first one.
    pub(super) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::SeqCst)
    }

    pub(super) fn is_started(&self) -> bool {
        self.started.load(Ordering::SeqCst)
    }

    /// Text for people, as of now.
    pub(super) fn title(&self) -> &str {
        match self.is_started() {
            true => &self.names.title,
            false => &self.names.first_title,
        }
    }

    /// Waits until no client is connected.
    pub(super) async fn is_left(&self) {
        // The sender lives as long as `self`.
        let _ = self.clients.subscribe().wait_for(|clients| *clients == 0).await;
    }

    pub(super) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    /// Waits until somebody cancels it.
    pub(super) async fn is_cancelled(&self) {
        // The sender lives as long as `self`.
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    pub(super) fn finished(&self) -> Option<(bool, String)> {
        locked(&self.finished).clone()
    }

    /// Notes the end and tells it.
    pub(super) async fn finish(&self, result: (bool, String)) {
        *locked(&self.finished) = Some(result.clone());
        for peer in self.peers() {
            Self::tell_end(&peer, &result).await;
        }
    }

    /// Tells one client about the end.
    pub(super) async fn tell_end(peer: &Connection, result: &(bool, String)) {
        emit(peer, "Finished", result).await;
    }

    /// Tells all clients what happens.
    pub(super) async fn tell(&self, tell: &Tell) {
        if self.names.output_to_self {
            return;
        }
        for peer in self.peers() {
            match tell {
                Tell::Message(text) => emit(&peer, "Message", &(text,)).await,
                Tell::TaskBegin(text) => emit(&peer, "TaskBegin", &(text,)).await,
                Tell::TaskEnd(text) => emit(&peer, "TaskEnd", &(text,)).await,
                Tell::Percent(text, percent) => emit(&peer, "PercentProgress", &(text, percent)).await,
                Tell::ProgressEnd => emit(&peer, "ProgressEnd", &()).await,
            }
        }
    }

    fn peers(&self) -> Vec<Connection> {
        locked(&self.peers).clone()
    }

    /// Ends everything that belongs to it: its work, its socket, and the connections of its clients.
    pub(super) fn close(&self) {
        for task in locked(&self.tasks).drain(..) {
            task.abort();
        }
        self.leave();
    }

    /// Ends the connections of its clients. Its work goes on.
    pub(super) fn leave(&self) {
        let peers: Vec<_> = locked(&self.peers).drain(..).collect();
        // Without a runtime all of the process is going down.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            for peer in peers {
                runtime.spawn(peer.close());
            }
        }
    }
}

/// An error means that the client is gone, and hears nothing anyhow.
async fn emit<B: Serialize + DynamicType>(peer: &Connection, signal: &str, body: &B) {
    let sent = peer.emit_signal(None::<&str>, "/", INTERFACE, signal, body).await;
    if let Err(error) = sent {
        tracing::debug!(signal, %error, "a client of a transaction has left");
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
        let (met, is_met) = watch::channel(false);
        let (guid, transaction, face) = (guid.clone(), transaction.clone(), face(transaction.clone(), is_met));
        // A client that does not say who it is keeps nobody out.
        let greeting = tokio::spawn(async move {
            match greet(stream, guid, face, transaction.clone()).await {
                Ok(peer) => {
                    locked(&transaction.peers).push(peer);
                    met.send_replace(true);
                }
                Err(error) => tracing::debug!(%error, "no client of a transaction"),
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
    // A client that this process does not see, such as a test outside of the host, has no process ID, which zbus takes for a
    // fault, as the real daemon's GDBus does. So that such a test can be run, zbus gets a socket of our own, for clients that are
    // who we are.
    let (ours, theirs) = UnixStream::pair().map_err(zbus::Error::from)?;
    let user = |stream: &UnixStream| stream.peer_cred().map(|peer| peer.uid()).map_err(zbus::Error::from);
    if user(&client)? != user(&ours)? {
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

/// Lets each side hear the other until one of them leaves.
async fn relay(mut client: UnixStream, mut server: UnixStream) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    // An error means that one of them has left, too.
    tokio::select! {
        _ = tokio::io::copy(&mut from_client, &mut to_server) => {}
        _ = tokio::io::copy(&mut from_server, &mut to_client) => {}
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
