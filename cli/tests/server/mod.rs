//! An API server that answers reads from a table and records writes.

#![allow(dead_code, reason = "each test file needs a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

pub mod kept;
pub mod watched;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A write: method, path with its query, and body.
pub type Asked = (String, String, Value);

/// A server on a port of its own, until the test ends.
#[derive(Debug, Clone)]
pub struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Starts a server that answers GET requests for these paths, and accepts every write.
    pub fn start(answers: BTreeMap<&'static str, Value>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let this = Self {
            port: listener.local_addr().unwrap().port(),
            asked: Arc::default(),
        };
        let server = this.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                drop(stream.and_then(|stream| server.answer(stream, &answers)));
            }
        });
        this
    }

    /// Writes a kubeconfig for the server, in a directory for the tests.
    pub fn kubeconfig(&self, name: &str) -> PathBuf {
        kubeconfig(name, self.port)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn answer(&self, mut stream: TcpStream, answers: &BTreeMap<&'static str, Value>) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut words = line.split(' ').map(str::to_owned);
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let header = header.trim().to_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let path = target.split('?').next().unwrap_or_default();
        let (status, answer) = match method.as_str() {
            "GET" => match answers.get(path) {
                Some(answer) => ("200 OK", answer.clone()),
                None => ("404 Not Found", not_found()),
            },
            _ => {
                let body: Value = serde_json::from_slice(&body).unwrap();
                // The client needs only these fields of the object.
                let name = path.rsplit('/').next();
                let written = json!({"metadata": {"name": name}, "spec": {}});
                self.asked.lock().unwrap().push((method, target.clone(), body));
                ("200 OK", written)
            }
        };
        let text = answer.to_string();
        let head = "Content-Type: application/json\r\nConnection: close";
        write!(
            stream,
            "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
    }
}

fn not_found() -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not there"})
}

pub fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items})
}

/// Writes a kubeconfig for a port of this machine.
pub fn kubeconfig(name: &str, port: u16) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubeconfigs");
    fs::create_dir_all(&directory).unwrap();
    let file = directory.join(name);
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    fs::write(&file, text).unwrap();
    file
}
