//! A small HTTP server for tests: the test defines its answers, and the server records the requests.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) authorization: Option<String>,
    pub(super) body: String,
}

#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) header: String,
    pub(super) body: String,
}

pub(super) fn reply(status: u16, body: impl ToString) -> Reply {
    Reply {
        status,
        header: String::new(),
        body: body.to_string(),
    }
}

impl Reply {
    pub(super) fn with(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.header.push_str(&format!("{name}: {value}\r\n"));
        self
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

pub(super) struct Server {
    pub(super) address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub(super) async fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(|_| handler).await
    }

    /// Starts a server whose answers may depend on its address.
    pub(super) async fn start_with<F>(make: impl FnOnce(&str) -> F) -> Self
    where
        F: Fn(&Request) -> Reply + Send + Sync + 'static,
    {
        berth_shell::install_crypto();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let handler: Arc<Handler> = Arc::new(make(&address));
        let seen = Arc::<Mutex<Vec<Request>>>::default();
        let remembered = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, handler.clone(), remembered.clone()));
            }
        });
        Self { address, seen }
    }

    pub(super) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }

    /// Returns the different `Authorization` headers in the requests.
    pub(super) fn told(&self) -> Vec<String> {
        let mut told: Vec<_> = self.seen().into_iter().filter_map(|r| r.authorization).collect();
        told.sort();
        told.dedup();
        told
    }
}

async fn answer(mut stream: TcpStream, handler: Arc<Handler>, seen: Arc<Mutex<Vec<Request>>>) -> Option<()> {
    let mut reader = BufReader::new(&mut stream);
    let mut line = String::new();
    reader.read_line(&mut line).await.ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut request = Request {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        ..Request::default()
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.to_owned()),
            "content-length" => length = value.parse().ok()?,
            _ => (),
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    request.body = String::from_utf8(body).ok()?;
    let Reply { status, header, body } = handler(&request);
    seen.lock().unwrap().push(request);
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{header}\r\n");
    stream.write_all((head + &body).as_bytes()).await.ok()
}
