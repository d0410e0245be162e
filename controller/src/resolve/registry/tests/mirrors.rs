//! Images that are resolved at a mirror or at the origin, which is the original registry.

use std::fs;

use super::super::super::access::Mounted;
use super::super::*;
use super::server::{Reply, Request, Server, reply};
use super::{image, image_of, page};

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
    poll(conf, text, &[]).await
}

async fn poll(conf: &str, text: &str, known: &[Target]) -> Result<Target, ResolveError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("registries.conf");
    fs::write(&path, conf).unwrap();
    let config = RegistryConfig {
        conf: Some(Mounted::registries_conf(&path)),
        ..RegistryConfig::default()
    };
    resolve(&config, &text.parse().unwrap(), known, None).await
}

#[tokio::test]
async fn a_mirror_serves_while_the_origin_is_away() {
    // The mirror has no TLS. The configuration says only that it is insecure, so the client tries TLS first.
    let mirror = Server::start(has(&["copy/os"])).await;
    let conf = format!(
        "[[registry]]\nprefix = \"127.0.0.1:1/a\"\n[[registry.mirror]]\nlocation = \"{}/copy\"\ninsecure = true",
        mirror.address
    );
    let target = ask(&conf, "127.0.0.1:1/a/os:1").await.unwrap();
    assert_eq!(target.image, "127.0.0.1:1/a/os:1".into(), "nodes get the origin's name");
    let error = ask(&conf, "127.0.0.1:1/a/os:2").await.unwrap_err();
    assert_eq!(error.reason, ResolveReason::RegistryUnavailable, "the origin's");
    assert!(
        error.message.contains(&format!("; mirror {}: ", mirror.address)),
        "{error}"
    );
}

#[tokio::test]
async fn the_origin_serves_images_its_mirror_lacks() {
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
async fn a_plain_registry_must_be_named_insecure() {
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

/// A registry where the tag `1` points to an image of this version. HEAD requests get this status.
fn at(version: &str, head: u16) -> impl Fn(&Request) -> Reply + use<> {
    let pages = image_of("1", version);
    let digest = pages[1].0.rsplit('/').next().unwrap().to_owned();
    move |request| match request.method.as_str() {
        "HEAD" if head == 200 => reply(200, "").with("Docker-Content-Digest", &digest),
        "HEAD" => reply(head, ""),
        _ => {
            let found = pages.iter().find(|(path, _)| *path == request.path);
            found.map_or(reply(404, ""), |(_, page)| {
                reply(200, String::from_utf8(page.body.clone()).unwrap())
            })
        }
    }
}

/// Returns the methods of the requests for the tag.
fn asked(server: &Server) -> String {
    let of_tag = server.seen().into_iter().filter(|r| r.path == "/v2/os/manifests/1");
    of_tag.map(|r| r.method).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn a_poll_asks_the_origin_after_its_mirror() {
    let first = Server::start(at("1.0", 200)).await;
    let plain = format!("[[registry]]\nlocation = \"{}\"\ninsecure = true", first.address);
    let known = ask(&plain, &format!("{}/os:1", first.address)).await.unwrap();
    for (mirror, origin, settings, version, of_mirror, of_origin) in [
        // The answer of a mirror counts, even if the mirror is older than the origin.
        (("1.0", 200), ("2.0", 200), "", "1.0", "HEAD", ""),
        (("2.0", 200), ("1.0", 200), "", "2.0", "HEAD GET", ""),
        (("2.0", 404), ("1.0", 200), "", "2.0", "HEAD GET", ""),
        (("2.0", 405), ("1.0", 200), "", "2.0", "HEAD GET", ""),
        (("2.0", 429), ("1.0", 200), "", "1.0", "HEAD", "HEAD"),
        (("1.0", 503), ("2.0", 200), "", "2.0", "HEAD", "HEAD GET"),
        (("1.0", 503), ("2.0", 405), "", "2.0", "HEAD", "HEAD GET"),
        (
            ("1.0", 200),
            ("2.0", 200),
            "mirror-by-digest-only = true",
            "2.0",
            "",
            "HEAD GET",
        ),
    ] {
        let case = format!("{mirror:?} {origin:?} {settings}");
        let mirror = Server::start(at(mirror.0, mirror.1)).await;
        let origin = Server::start(at(origin.0, origin.1)).await;
        let conf = format!(
            "[[registry]]\nlocation = \"{}\"\ninsecure = true\n{settings}\n[[registry.mirror]]\nlocation = \"{}\"\ninsecure = true",
            origin.address, mirror.address
        );
        let found = poll(&conf, &format!("{}/os:1", origin.address), std::slice::from_ref(&known)).await;
        assert_eq!(found.unwrap().version.as_deref(), Some(version), "{case}");
        assert_eq!(
            (asked(&mirror).as_str(), asked(&origin).as_str()),
            (of_mirror, of_origin),
            "{case}"
        );
    }
}
