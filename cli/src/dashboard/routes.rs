//! Answers of the dashboard to HTTP requests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use form_urlencoded::parse;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderName, HeaderValue,
    REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, StatusCode, Uri};
use kube::Client;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::access::{Access, Asked, Keeper};
use super::drawer::{Assumed, drawer, pool_of};
use super::events;
use super::hub::SharedHub;
use super::page::{self, File};
use crate::supposed::accepted;
use crate::timeline::picture;
use crate::what_if::WhatIf;

/// Maximum number of pages that get events. A browser opens at most six connections to one port, and a page needs one
/// more for its other requests.
const STREAMS: usize = 4;
/// Number of a timeline's rows in one answer, unless the request says otherwise.
const ROWS: usize = 60;
/// Maximum number of a timeline's rows in one answer.
const ROWS_MAX: usize = 1_000;

/// Answer to the right token. A redirect would not do: if the address was opened from another site, the browser would
/// follow the redirect without the new cookie, because of SameSite.
const ENTRY: &str = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Berth dashboard</title>\n\
                     <link rel=\"icon\" type=\"image/svg+xml\" href=\"/assets/icon.svg\">\n\
                     <meta http-equiv=\"refresh\" content=\"0; url=/\">\n<p><a href=\"/\">Dashboard</a></p>\n</html>\n";

/// Headers of each answer. The page runs its own files only, in no frame, and names and messages in it cannot become
/// code.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

const TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

/// Everything that answers are made from.
#[derive(Clone)]
pub(super) struct Desk {
    hub: SharedHub,
    keeper: Arc<Mutex<Keeper>>,
    streams: Arc<Semaphore>,
    /// Client of the API server, for dry runs.
    client: Client,
    deadline: Duration,
}

/// Returns the dashboard's routes.
pub(super) fn routes(hub: SharedHub, keeper: Keeper, client: Client, deadline: Duration) -> Router {
    let desk = Desk {
        hub,
        keeper: Arc::new(Mutex::new(keeper)),
        streams: Arc::new(Semaphore::new(STREAMS)),
        client,
        deadline,
    };
    Router::new()
        .route("/", get(index))
        .route("/assets/{name}", get(asset))
        .route("/api/events", get(stream))
        .route("/api/nodes/{name}", get(node))
        .route("/api/timeline/{pool}", get(timeline))
        .fallback(nothing)
        .layer(from_fn_with_state(desk.clone(), guard))
        .with_state(desk)
}

/// Answers a request only if it may be answered. Adds the headers to each answer.
async fn guard(State(desk): State<Desk>, request: Request, next: Next) -> Response {
    let mut response = match judge(&desk, &request) {
        Access::Granted => next.run(request).await,
        refused => answer_to(refused),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn judge(desk: &Desk, request: &Request) -> Access {
    let token = parameters(request.uri(), "token").into_iter().next();
    let cookies = request.headers().get_all(COOKIE).iter();
    let cookies: Vec<&str> = cookies.filter_map(|cookie| cookie.to_str().ok()).collect();
    let asked = Asked {
        host: only(request.headers(), &HOST),
        method: request.method().as_str(),
        path: request.uri().path(),
        token: token.as_deref(),
    };
    let mut keeper = desk.keeper.lock().unwrap_or_else(PoisonError::into_inner);
    keeper.judge(asked, &cookies)
}

/// Returns the value of a header that occurs once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    if values.next().is_some() {
        return None;
    }
    first.to_str().ok()
}

/// Returns the answer to a request that is not passed on.
fn answer_to(access: Access) -> Response {
    match access {
        Access::Granted | Access::Unused => with_text(StatusCode::OK, TEXT, ""),
        Access::LogIn(cookie) => {
            let mut response = with_text(StatusCode::OK, HTML, ENTRY);
            insert(&mut response, SET_COOKIE, &cookie);
            response
        }
        Access::ForeignHost => with_text(
            StatusCode::FORBIDDEN,
            TEXT,
            "this dashboard answers only to 127.0.0.1 and localhost, with its port\n",
        ),
        Access::WrongMethod => {
            let mut response = with_text(
                StatusCode::METHOD_NOT_ALLOWED,
                TEXT,
                "the dashboard changes nothing: use GET or HEAD\n",
            );
            insert(&mut response, ALLOW, "GET, HEAD");
            response
        }
        Access::WrongToken => with_text(
            StatusCode::FORBIDDEN,
            HTML,
            &lost("The address was used before, or is wrong."),
        ),
        Access::NoCookie => with_text(
            StatusCode::FORBIDDEN,
            HTML,
            &lost("This browser has not opened the dashboard's address."),
        ),
    }
}

/// Returns a small page that says how to open the dashboard.
fn lost(why: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Berth dashboard</title>\n<h1>No access</h1>\n\
         <p>{why} The address of a dashboard works once. Start it again, and open the new address:</p>\n\
         <pre>kubectl berth dashboard</pre>\n</html>\n"
    )
}

async fn index() -> Response {
    asset(Path(page::INDEX.to_owned())).await
}

async fn asset(Path(name): Path<String>) -> Response {
    match page::file(&name) {
        Some(file) => with_file(file),
        None => nothing().await,
    }
}

fn with_file(file: File) -> Response {
    with_text(StatusCode::OK, file.content_type(), file.text)
}

async fn nothing() -> Response {
    failed(StatusCode::NOT_FOUND, "there is nothing at this address")
}

async fn stream(State(desk): State<Desk>) -> Response {
    let Ok(permit) = desk.streams.clone().try_acquire_owned() else {
        let why = format!("{STREAMS} pages are open already; close one of them");
        return failed(StatusCode::SERVICE_UNAVAILABLE, &why);
    };
    let mut response = Response::new(events::stream(desk.hub, permit));
    insert(&mut response, CONTENT_TYPE, "text/event-stream");
    response
}

async fn node(State(desk): State<Desk>, Path(name): Path<String>, uri: Uri) -> Response {
    if !is_name(&name) {
        return unknown(&name);
    }
    let words = parameters(&uri, "whatIf");
    let parsed: Result<Vec<WhatIf>, String> = words.iter().map(|text| text.parse()).collect();
    let settings = match parsed {
        Ok(settings) => settings,
        Err(why) => return failed(StatusCode::BAD_REQUEST, &why),
    };
    let (pool, note) = match checked(&desk, &name, &settings).await {
        Ok(checked) => checked,
        Err(why) => return failed(StatusCode::BAD_REQUEST, &why),
    };
    let assumed = Assumed {
        words: &words,
        settings: &settings,
        pool: &pool,
        note,
    };
    let found = desk
        .hub
        .lock()
        .look_with_frame(|snapshot, about, shown, now| drawer(snapshot, (about, shown), &name, &assumed, now));
    match found {
        Ok(Some(drawer)) => with_json(StatusCode::OK, &drawer),
        Ok(None) => unknown(&name),
        Err(why) => failed(StatusCode::BAD_REQUEST, &why),
    }
}

fn unknown(node: &str) -> Response {
    failed(StatusCode::NOT_FOUND, &format!("there is no node {node:?}"))
}

/// Returns the pool of the node, and a note if the API server could not check the settings. Fails if a setting is wrong.
async fn checked(desk: &Desk, node: &str, settings: &[WhatIf]) -> Result<(String, Option<String>), String> {
    if settings.is_empty() {
        return Ok((String::new(), None));
    }
    let pool = desk
        .hub
        .lock()
        .look(|snapshot, _, now| pool_of(snapshot, node, settings, now))?;
    let note = accepted(&desk.client, desk.deadline, &pool, settings).await;
    let note = note.map_err(|error| format!("{error:#}"))?;
    Ok((pool, note))
}

async fn timeline(State(desk): State<Desk>, Path(pool): Path<String>, uri: Uri) -> Response {
    let (from, rows) = match (number(&uri, "from", 0), number(&uri, "rows", ROWS)) {
        (Some(from), Some(rows)) => (from, rows.min(ROWS_MAX)),
        _ => return failed(StatusCode::BAD_REQUEST, "from and rows are whole numbers"),
    };
    let drawn = desk.hub.lock().look(|snapshot, _, now| picture(snapshot, &pool, now));
    match drawn {
        Ok(picture) => {
            let svg = picture.svg_part(from..from.saturating_add(rows));
            let mut response = with_text(StatusCode::OK, "image/svg+xml", &svg);
            let rows = HeaderName::from_static("berth-rows");
            insert(&mut response, rows, &picture.rows.len().to_string());
            if let Some(row) = picture.first_running() {
                insert(
                    &mut response,
                    HeaderName::from_static("berth-running"),
                    &row.to_string(),
                );
            }
            response
        }
        Err(why) => failed(StatusCode::NOT_FOUND, &why),
    }
}

/// True if the text can be the name of a Node.
fn is_name(text: &str) -> bool {
    let is_short = (1..=253).contains(&text.len());
    is_short
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
}

/// Returns the values of a query's parameter.
fn parameters(uri: &Uri, name: &str) -> Vec<String> {
    let pairs = parse(uri.query().unwrap_or_default().as_bytes());
    let values = pairs.filter(|(key, _)| key == name);
    values.map(|(_, value)| value.into_owned()).collect()
}

/// Returns a parameter as a number, or `default` if it is absent; `None` if it is not a number.
fn number(uri: &Uri, name: &str, default: usize) -> Option<usize> {
    match parameters(uri, name).first() {
        Some(text) => text.parse().ok(),
        None => Some(default),
    }
}

fn failed(status: StatusCode, why: &str) -> Response {
    with_json(status, &json!({ "error": why }))
}

fn with_json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => with_text(status, "application/json", &text),
        Err(error) => with_text(StatusCode::INTERNAL_SERVER_ERROR, TEXT, &error.to_string()),
    }
}

fn with_text(status: StatusCode, content_type: &'static str, text: &str) -> Response {
    let mut response = Response::new(Body::from(text.to_owned()));
    *response.status_mut() = status;
    insert(&mut response, CONTENT_TYPE, content_type);
    response
}

/// Sets a header. The values that the dashboard sends are always valid.
fn insert(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
