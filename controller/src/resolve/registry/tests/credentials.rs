//! Registries that ask for authentication.

use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::Client;
use serde_json::json;

use super::super::*;
use super::server::{Reply, Request, Server, reply};
use super::{image, page};

const ME: &str = "Basic bWU6aHVzaA==";

/// Answer of a registry that requires no authentication.
fn open(request: &Request) -> Reply {
    let pages = image(page(""));
    let found = pages.into_iter().find(|(path, _)| *path == request.path);
    found.map_or(reply(404, ""), |(_, page)| {
        reply(200, String::from_utf8(page.body).unwrap())
    })
}

/// A registry that requires this `Authorization` header. To requests without it, the registry sends this challenge.
fn guarded(wanted: &'static str, challenge: String) -> impl Fn(&Request) -> Reply {
    move |request| {
        if request.authorization.as_deref() == Some(wanted) {
            return open(request);
        }
        reply(401, "").with("WWW-Authenticate", &challenge)
    }
}

fn secret(key: &str, entry: serde_json::Value) -> PullSecret {
    PullSecret::of(&json!({ "auths": { key: entry } }))
}

fn hush(key: &str) -> PullSecret {
    secret(key, json!({"username": "me", "password": "hush"}))
}

async fn ask(server: &Server, secret: Option<&PullSecret>) -> Result<Target, ResolveError> {
    let config = RegistryConfig {
        plain_http: vec![server.address.clone()],
        ..RegistryConfig::default()
    };
    let text = format!("{}/os:1", server.address);
    let answer = resolve(&config, &text.parse().unwrap(), &[], secret).await;
    if let Err(error) = &answer {
        assert!(
            !error.message.contains("hush") && !error.message.contains("bWU6"),
            "{error}"
        );
    }
    answer
}

#[tokio::test]
async fn a_password_is_sent_when_asked_for() {
    let server = Server::start(guarded(ME, "Basic realm=\"r\"".into())).await;
    let target = ask(&server, Some(&hush(&server.address))).await.unwrap();
    assert_eq!(target.version.as_deref(), Some("2"), "the configuration as well");
    let seen = server.seen();
    assert_eq!(
        seen.iter().filter(|r| r.authorization.is_none()).count(),
        1,
        "asked for once: {seen:?}"
    );
    assert_eq!(server.told(), [ME]);
}

#[tokio::test]
async fn a_refused_password_is_sent_once() {
    let server = Server::start(|request| {
        if request.path.contains("/blobs/") {
            return reply(401, "").with("WWW-Authenticate", "Basic realm=\"r\"");
        }
        guarded(ME, "Basic realm=\"r\"".into())(request)
    })
    .await;
    let target = ask(&server, Some(&hush(&server.address))).await.unwrap();
    assert_eq!(target.version, None, "the configuration cannot be read");
    let blobs = server
        .seen()
        .into_iter()
        .filter(|request| request.path.contains("/blobs/"));
    assert_eq!(blobs.count(), 1);
}

#[tokio::test]
async fn a_refusal_says_which_credentials_were_used() {
    let server = Server::start(guarded(ME, "Basic realm=\"r\"".into())).await;
    let wrong = secret(&server.address, json!({"username": "me", "password": "hush2"}));
    let token = secret(&server.address, json!({"identitytoken": "hush"}));
    for (secret, expected, requests) in [
        (None, "name a Secret with credentials in image.pullSecret", 1),
        (
            Some(hush("other.example")),
            "Secret berth-system/pull has no entry for",
            1,
        ),
        (Some(wrong), "the request used the credentials that Secret", 2),
        (Some(token), "the request used the credentials that Secret", 1),
    ] {
        let before = server.seen().len();
        let error = ask(&server, secret.as_ref()).await.unwrap_err();
        assert_eq!(error.reason, ResolveReason::Unauthorized);
        assert!(error.message.contains(expected), "{error}");
        assert_eq!(server.seen().len() - before, requests, "{expected}");
    }
}

/// A token service at `/token`. Requests with this `Authorization` header get the tokens `t0`, `t1`, and so on.
fn tokens(wanted: Option<&'static str>) -> impl Fn(&Request) -> Reply {
    let given = AtomicUsize::new(0);
    move |request| {
        if request.authorization.as_deref() != wanted {
            return reply(401, "no");
        }
        let number = given.fetch_add(1, Ordering::Relaxed);
        reply(200, json!({"token": format!("t{number}")}))
    }
}

fn bearer(service: &Server) -> String {
    format!("Bearer realm=\"http://{}/token?a=b\",service=\"s\"", service.address)
}

#[tokio::test]
async fn credentials_and_token_go_to_their_own_hosts() {
    let service = Server::start(tokens(Some(ME))).await;
    let server = Server::start(guarded("Bearer t0", bearer(&service))).await;
    ask(&server, Some(&hush(&server.address))).await.unwrap();
    assert_eq!(server.told(), ["Bearer t0"]);
    assert_eq!(service.told(), [ME]);
    let seen = service.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].query, "a=b&scope=repository%3Aos%3Apull&service=s");
    let error = ask(
        &server,
        Some(&secret(&server.address, json!({"username": "a", "password": "hush"}))),
    )
    .await;
    let error = error.unwrap_err();
    assert_eq!(error.reason, ResolveReason::Unauthorized);
    assert!(error.message.contains("Secret berth-system/pull"), "{error}");
}

#[tokio::test]
async fn an_anonymous_token_is_fetched() {
    let service = Server::start(tokens(None)).await;
    let server = Server::start(guarded("Bearer t0", bearer(&service))).await;
    ask(&server, None).await.unwrap();
    assert_eq!(service.told(), [] as [&str; 0]);
}

#[tokio::test]
async fn an_expired_token_is_fetched_again() {
    let service = Server::start(tokens(None)).await;
    let challenge = bearer(&service);
    let asked = AtomicUsize::new(0);
    let lapsing = Server::start(move |request| match request.authorization.as_deref() {
        // The first token is valid for one request only.
        Some("Bearer t0") if asked.fetch_add(1, Ordering::Relaxed) == 0 => open(request),
        Some("Bearer t1") => open(request),
        _ => reply(401, "").with("WWW-Authenticate", &challenge),
    })
    .await;
    assert_eq!(ask(&lapsing, None).await.unwrap().version.as_deref(), Some("2"));
    assert_eq!(service.seen().len(), 2);
    let stubborn = Server::start(guarded("nothing", bearer(&service))).await;
    assert_eq!(
        ask(&stubborn, None).await.unwrap_err().reason,
        ResolveReason::Unauthorized
    );
    assert_eq!((service.seen().len(), stubborn.seen().len()), (3, 2));
}

#[tokio::test]
async fn a_refresh_token_is_sent_in_the_body() {
    let service = Server::start(|request| {
        if request.body.contains("refresh_token=hush%2B") {
            return reply(200, json!({"access_token": "t0"}));
        }
        reply(400, "")
    })
    .await;
    let server = Server::start(guarded("Bearer t0", bearer(&service))).await;
    let secret = secret(&server.address, json!({"auth": "YTo=", "identitytoken": "hush+"}));
    ask(&server, Some(&secret)).await.unwrap();
    let [request] = &service.seen()[..] else { panic!() };
    assert_eq!((request.method.as_str(), request.query.as_str()), ("POST", "a=b"));
    for part in [
        "grant_type=refresh_token",
        "service=s",
        "scope=repository%3Aos%3Apull",
        "client_id=berth-controller",
    ] {
        assert!(request.body.contains(part), "{}", request.body);
    }
    let elsewhere = Server::start(|_| reply(200, json!({"token": "t0"}))).await;
    let url = format!("http://{}/", elsewhere.address);
    let moved = Server::start(move |_| reply(307, "").with("Location", &url)).await;
    let server = Server::start(guarded("Bearer t0", bearer(&moved))).await;
    let secret = PullSecret::of(&json!({"auths": {&server.address: {"identitytoken": "hush+"}}}));
    assert!(ask(&server, Some(&secret)).await.is_err());
    assert_eq!(elsewhere.seen().len(), 0);
}

#[tokio::test]
async fn a_blob_store_gets_no_credentials() {
    for store_asks in [false, true] {
        let service = Server::start(tokens(Some(ME))).await;
        let challenge = bearer(&service);
        let store = Server::start(move |request| {
            if store_asks {
                return reply(401, "").with("WWW-Authenticate", &challenge);
            }
            open(request)
        })
        .await;
        let base = format!("http://{}", store.address);
        let guard = guarded(ME, "Basic realm=\"r\"".into());
        let server = Server::start(move |request| match guard(request) {
            found if found.status == 200 && request.path.contains("/blobs/") => {
                reply(307, "").with("Location", format!("{base}{}", request.path))
            }
            other => other,
        })
        .await;
        let target = ask(&server, Some(&hush(&server.address))).await.unwrap();
        assert_eq!(target.version.is_some(), !store_asks);
        assert_eq!((store.seen().len(), store.told()), (1, vec![]));
        assert_eq!(service.seen().len(), 0, "a challenge of another host is not answered");
    }
}

#[tokio::test]
async fn an_invalid_token_answer_is_reported() {
    for (answer, expected) in [
        ("<html>", "with JSON"),
        (r#"{"hush":1}"#, "without a token"),
        (r#"{"token":""}"#, "without a token"),
        (r#"{"token":"a\r\nb"}"#, "characters"),
        (r#"{"token":["hush"]}"#, "with JSON"),
    ] {
        let service = Server::start(move |_| reply(200, answer)).await;
        let server = Server::start(guarded("nothing", bearer(&service))).await;
        let error = ask(&server, None).await.unwrap_err();
        assert_eq!(error.reason, ResolveReason::InvalidAnswer);
        assert!(error.message.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn credentials_of_a_tls_registry_need_tls() {
    let service = Server::start(tokens(Some(ME))).await;
    let challenge = Challenge::Bearer {
        realm: format!("http://{}/token", service.address),
        service: None,
    };
    let credentials = Credentials::Basic {
        username: "me".into(),
        password: "hush".into(),
    };
    fn client(_: &Url) -> Result<Client, ResolveError> {
        Ok(Client::new())
    }
    let refused = challenge
        .answer(client, true, "os", Some(&credentials))
        .await
        .unwrap_err();
    assert!(refused.message.contains("HTTPS"), "{refused}");
    assert_eq!(service.seen().len(), 0);
    assert!(challenge.answer(client, false, "os", Some(&credentials)).await.is_ok());
}

#[tokio::test]
async fn redirects_are_limited() {
    let server = Server::start_with(|address| {
        let next = format!("http://{address}/v2/os/manifests/1");
        move |_: &Request| reply(307, "").with("Location", &next)
    })
    .await;
    let error = ask(&server, None).await.unwrap_err();
    assert!(error.message.contains("too many redirects"), "{error}");
    assert_eq!(server.seen().len(), 6);
}
