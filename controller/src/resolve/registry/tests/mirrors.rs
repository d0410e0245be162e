//! Images that are asked for in more than one place.

use std::fs;

use super::super::super::access::Mounted;
use super::super::*;
use super::server::{Reply, Request, Server, reply};
use super::{image, page};

/// A registry that has the image under these names.
fn has(names: &'static [&'static str]) -> impl Fn(&Request) -> Reply {
    move |request| {
        let pages = image(page(""));
        let path = names
            .iter()
            .find_map(|name| request.path.strip_prefix(&format!("/v2/{name}/")));
        let path = path.map(|rest| format!("/v2/os/{rest}"));
        let found = pages.into_iter().find(|(known, _)| Some(known) == path.as_ref());
        found.map_or(reply(404, ""), |(_, page)| {
            reply(200, String::from_utf8(page.body).unwrap())
        })
    }
}

async fn ask(conf: &str, text: &str) -> Result<Target, ResolveError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("registries.conf");
    fs::write(&path, conf).unwrap();
    let config = RegistryConfig {
        conf: Some(Mounted::registries_conf(&path)),
        ..RegistryConfig::default()
    };
    resolve(&config, &text.parse().unwrap(), text, &[], None).await
}

#[tokio::test]
async fn a_mirror_serves_while_the_origin_is_away() {
    // It says nowhere that it has no TLS: an insecure registry is asked with it first.
    let mirror = Server::start(has(&["copy/os"])).await;
    let conf = format!(
        "[[registry]]\nprefix = \"127.0.0.1:1/a\"\n[[registry.mirror]]\nlocation = \"{}/copy\"\ninsecure = true",
        mirror.address
    );
    let target = ask(&conf, "127.0.0.1:1/a/os:1").await.unwrap();
    assert_eq!(
        target.image, "127.0.0.1:1/a/os:1",
        "the origin's name is what nodes are told"
    );
    let error = ask(&conf, "127.0.0.1:1/a/os:2").await.unwrap_err();
    assert_eq!(error.reason, ResolveReason::RegistryUnavailable, "the origin's");
    assert!(
        error.message.contains(&format!("; mirror {}: ", mirror.address)),
        "{error}"
    );
}

#[tokio::test]
async fn the_origin_serves_what_its_mirror_does_not() {
    let origin = Server::start(has(&["os"])).await;
    let mirror = Server::start(has(&[])).await;
    let conf = format!(
        "[[registry]]\nlocation = \"{}\"\ninsecure = true\n[[registry.mirror]]\nlocation = \"{}\"\ninsecure = true",
        origin.address, mirror.address
    );
    ask(&conf, &format!("{}/os:1", origin.address)).await.unwrap();
    assert!(mirror.seen().iter().any(|request| request.path == "/v2/os/manifests/1"));
}

#[tokio::test]
async fn a_registry_without_tls_that_is_not_named_insecure_is_not_asked() {
    let origin = Server::start(has(&["os"])).await;
    let error = ask("", &format!("{}/os:1", origin.address)).await.unwrap_err();
    assert_eq!(error.reason, ResolveReason::RegistryUnavailable);
    let conf = format!(
        "[[registry]]\nlocation = \"{}\"\nblocked = true\ninsecure = true",
        origin.address
    );
    let error = ask(&conf, &format!("{}/os:1", origin.address)).await.unwrap_err();
    assert_eq!(error.reason, ResolveReason::RegistryBlocked);
    let error = ask("[[registry", &format!("{}/os:1", origin.address))
        .await
        .unwrap_err();
    assert_eq!(error.reason, ResolveReason::ClientSetup);
    assert!(error.message.contains("registries.conf cannot be used"), "{error}");
    assert!(origin.seen().is_empty());
}
