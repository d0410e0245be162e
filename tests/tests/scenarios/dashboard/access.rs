//! Requests without a browser: the token, the cookie, the host, and the end of the program.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_tests::cluster::SOON;
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::dashboard::Dashboard;
use berth_tests::process::Process;
use berth_tests::programs;
use berth_tests::scratch::Scratch;
use berth_tests::wait::eventually;
use reqwest::{Client, Method, RequestBuilder, Response};

/// Longest time from Ctrl-C to the end of the program.
pub const END: Duration = Duration::from_secs(1);

const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// A dashboard of a cluster without nodes.
pub struct Served {
    dashboard: Dashboard,
    client: Client,
    plane: ControlPlane,
}

pub async fn served() -> Result<Served> {
    let plane = ControlPlane::start(Options {
        controller_manager: false,
        ..Options::default()
    })
    .await?;
    plane.install().await?;
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = plane.kubeconfig_for("tom", &["system:masters"])?;
    let dashboard = Dashboard::start(&program, &config.path, &[]).await?;
    let client = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()?;
    Ok(Served {
        dashboard,
        client,
        plane,
    })
}

impl Served {
    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder> {
        Ok(self
            .client
            .request(method, format!("{}{path}", self.dashboard.origin()?)))
    }

    async fn get(&self, path: &str) -> Result<Response> {
        Ok(self.request(Method::GET, path)?.send().await?)
    }

    fn port(&self) -> Result<&str> {
        self.dashboard.origin()?.rsplit(':').next().context("no port")
    }

    fn token(&self) -> Result<&str> {
        let (_, token) = self.dashboard.address().split_once("/?token=").context("no token")?;
        Ok(token)
    }
}

/// Fails unless the answer has this status and all headers.
fn answers(answer: &Response, status: u16) -> Result<()> {
    ensure!(answer.status().as_u16() == status, "status {status}: {answer:?}");
    for (name, value) in HEADERS {
        let found = answer
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap_or_default());
        ensure!(found == Some(value), "{name} is {found:?}: {answer:?}");
    }
    Ok(())
}

/// Starts a dashboard with a desktop whose program to open an address writes the address to a file.
pub async fn a_browser_is_opened(served: &Served) -> Result<()> {
    let directory = Scratch::new("berth-desktop-")?;
    let (opener, opened) = (directory.path().join("xdg-open"), directory.path().join("opened"));
    fs::write(
        &opener,
        format!("#!/bin/sh\necho \"$1\" > {0}.new && mv {0}.new {0}\n", opened.display()),
    )?;
    fs::set_permissions(&opener, Permissions::from_mode(0o755))?;
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = served.plane.kubeconfig_for("tom", &["system:masters"])?;
    let path = std::env::var("PATH").unwrap_or_default();
    let log = directory.path().join("dashboard.log");
    let mut command = Dashboard::command(&program, &config.path);
    command
        .env("DISPLAY", ":0")
        .env("PATH", format!("{}:{path}", directory.path().display()));
    let process = Process::start("kubectl berth dashboard", &command, &log)?;
    eventually("the browser is opened", SOON, async || Ok(opened.exists()))
        .await
        .with_context(|| process.log_tail())?;
    let address = fs::read_to_string(&opened)?;
    let answer = served.client.get(address.trim()).send().await?;
    answers(&answer, 200)
}

pub async fn a_token_works_once(served: &Served) -> Result<()> {
    let token = served.token()?;
    ensure!(
        token.len() == 64 && token.bytes().all(|b| b.is_ascii_hexdigit()),
        "256 bits: {token}"
    );
    let wrong = "0".repeat(64);
    for path in ["/", "/api/events", "/api/nodes/x", "/assets/app.js", "/api/timeline/x"] {
        answers(&served.get(path).await?, 403)?;
    }
    answers(&served.get(&format!("/?token={wrong}")).await?, 403)?;
    answers(&served.get(&format!("/?token={}", &token[1..])).await?, 403)?;
    // A browser may look at the address before it opens it.
    let path = format!("/?token={token}");
    let head = served.request(Method::HEAD, &path)?.send().await?;
    ensure!(
        !head.headers().contains_key("set-cookie"),
        "HEAD gives no cookie: {head:?}"
    );
    let first = served.get(&path).await?;
    answers(&first, 200)?;
    let cookie = cookie_of(&first)?;
    for part in [
        &format!("berth-{}=", served.port()?),
        "HttpOnly",
        "SameSite=Strict",
        "Path=/",
    ] {
        ensure!(cookie.contains(part), "{part} is missing in {cookie}");
    }
    let again = served.get(&path).await?;
    answers(&again, 403)?;
    ensure!(
        again.text().await?.contains("kubectl berth dashboard"),
        "the page says what to do"
    );
    let pair = cookie.split(';').next().unwrap_or_default();
    let page = served.request(Method::GET, "/")?.header("cookie", pair).send().await?;
    answers(&page, 200)?;
    let unknown = served
        .request(Method::GET, "/assets/none.js")?
        .header("cookie", pair)
        .send()
        .await?;
    answers(&unknown, 404)?;
    let post = served.request(Method::POST, "/")?.header("cookie", pair).send().await?;
    answers(&post, 405)?;
    let foreign = served
        .request(Method::GET, "/")?
        .header("cookie", pair)
        .header("host", "rebound.example")
        .send();
    answers(&foreign.await?, 403)
}

pub async fn strangers_are_refused(served: &Served) -> Result<()> {
    let port = served.port()?;
    let none = format!("berth-{port}={}", "0".repeat(64));
    let answer = served
        .request(Method::GET, "/api/events")?
        .header("cookie", none)
        .send()
        .await?;
    answers(&answer, 403)?;
    let hosts = [
        format!("rebound.example:{port}"),
        "127.0.0.1:1".to_owned(),
        "127.0.0.1".to_owned(),
        format!("[::1]:{port}"),
    ];
    for host in hosts {
        let answer = served.request(Method::GET, "/")?.header("host", host).send().await?;
        answers(&answer, 403)?;
    }
    Ok(())
}

/// The cookie that an answer sets, with its attributes.
fn cookie_of(answer: &Response) -> Result<String> {
    let cookie = answer.headers().get("set-cookie").context("no cookie")?;
    Ok(cookie.to_str()?.to_owned())
}

/// Interrupts the program while a client reads events; returns the time until it has ended.
pub async fn ends_with_a_stream_open(served: &mut Served) -> Result<Duration> {
    // The token is used up, so another program is needed.
    let program = tokio::task::spawn_blocking(programs::kubectl).await??;
    let config = served.plane.kubeconfig_for("tom", &["system:masters"])?;
    served.dashboard = Dashboard::start(&program, &config.path, &[]).await?;
    let first = served.get(&format!("/?token={}", served.token()?)).await?;
    let cookie = cookie_of(&first)?;
    let pair = cookie.split(';').next().unwrap_or_default();
    let mut stream = served
        .request(Method::GET, "/api/events")?
        .header("cookie", pair)
        .send()
        .await?;
    answers(&stream, 200)?;
    let piece = stream.chunk().await?.context("no event")?;
    ensure!(
        String::from_utf8_lossy(&piece).contains("event: state"),
        "the first event is the state"
    );
    served.dashboard.interrupt().await
}
