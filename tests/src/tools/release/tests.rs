//! Tests with a local site that behaves correctly or not.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Site {
    Serves,
    /// Interrupts the transfer in the middle.
    Truncates,
    /// Sends a part of the file, then nothing more.
    Stops,
    /// Accepts the connection and never answers.
    Hangs,
    Lacks,
}

/// Starts a site on its own port; returns its address. The site runs until the test's process ends.
fn start(site: Site, body: Vec<u8>) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let body = body.clone();
            std::thread::spawn(move || answer(connection.unwrap(), site, &body));
        }
    });
    format!("http://{address}")
}

fn answer(connection: TcpStream, site: Site, body: &[u8]) {
    let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    let mut connection = connection;
    let half = &body[..body.len() / 2];
    let (status, sent) = match site {
        Site::Serves => ("200 OK", body),
        Site::Truncates | Site::Stops => ("200 OK", half),
        Site::Lacks => ("404 Not Found", body),
        Site::Hangs => return std::thread::sleep(Duration::from_secs(60)),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(sent).unwrap();
    if site == Site::Stops {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// A `tar.gz` with one file.
fn archive(path: &str, content: &[u8]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(vec![], Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len().try_into().unwrap());
    header.set_mode(0o644);
    archive.append_data(&mut header, path, content).unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

fn release(site: &str, digest: &str, member: Option<&str>) -> Release {
    Release {
        url: format!("{site}/etcd.tar.gz").parse().unwrap(),
        digest: digest.to_owned(),
        members: vec![(Tool::Etcd, member.map(str::to_owned))],
    }
}

/// Downloads and installs a release; returns the program's content.
async fn fetched(release: &Release) -> Result<Vec<u8>> {
    crate::install_crypto();
    let client = Client::builder()
        .connect_timeout(ANSWER_TIMEOUT)
        .read_timeout(Duration::from_secs(1))
        .build()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("etcd");
    let file = download(&client, release, directory.path()).await?;
    let (_, member) = &release.members[0];
    install(&file, member.as_deref(), directory.path(), &path)?;
    ensure!(
        fs::metadata(&path)?.permissions().mode() & 0o111 != 0,
        "the program is not executable"
    );
    Ok(fs::read(&path)?)
}

#[tokio::test]
async fn programs_are_downloaded_directly_or_in_archives() {
    let program = b"#!/bin/sh\necho etcd\n".to_vec();
    let alone = release(&start(Site::Serves, program.clone()), &sha256(&program), None);
    assert_eq!(fetched(&alone).await.unwrap(), program);
    let packed = archive("etcd-v3/etcd", &program);
    let site = start(Site::Serves, packed.clone());
    let inside = release(&site, &sha256(&packed), Some("etcd-v3/etcd"));
    assert_eq!(fetched(&inside).await.unwrap(), program);
    let elsewhere = release(&site, &sha256(&packed), Some("etcd"));
    let error = fetched(&elsewhere).await.unwrap_err();
    assert_eq!(error.to_string(), "the archive has no etcd");
}

#[tokio::test]
async fn files_that_are_not_pinned_are_discarded() {
    let program = b"a program".to_vec();
    for (site, digest, words) in [
        (Site::Serves, sha256(b"another program"), "discarded: its digest is "),
        (Site::Truncates, sha256(&program), "the download was interrupted"),
        (
            Site::Truncates,
            sha256(&program[..program.len() / 2]),
            "the download was interrupted",
        ),
        (Site::Stops, sha256(&program), "the download was interrupted"),
        (Site::Lacks, sha256(&program), "the site answers 404 Not Found"),
    ] {
        let error = fetched(&release(&start(site, program.clone()), &digest, None))
            .await
            .unwrap_err();
        assert!(error.to_string().starts_with(words), "{site:?}: {error:#}");
    }
}

#[tokio::test]
async fn a_silent_site_is_tried_once() {
    let site = start(Site::Hangs, vec![]);
    let begun = Instant::now();
    let two = [release(&site, &sha256(b""), None), release(&site, &sha256(b""), None)];
    let missing = fetch_all(&two, &[Tool::Etcd]).await.unwrap();
    assert_eq!(missing, [Tool::Etcd]);
    assert!(begun.elapsed() >= ANSWER_TIMEOUT, "{:?}", begun.elapsed());
    assert!(
        begun.elapsed() < 2 * ANSWER_TIMEOUT,
        "the site was tried twice: {:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn an_unreachable_site_is_tried_once() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = format!("http://{}", taken.local_addr().unwrap());
    drop(taken);
    let missing = fetch_all(&[release(&address, &sha256(b""), None)], &[Tool::Etcd, Tool::Kubelet])
        .await
        .unwrap();
    assert_eq!(missing, [Tool::Etcd, Tool::Kubelet]);
}

#[test]
fn pinned_releases_have_the_built_versions() {
    for arch in ["x86_64", "aarch64"] {
        for release in parse(PINNED, arch).unwrap() {
            for (tool, _) in &release.members {
                let version = tool.version().unwrap();
                assert!(
                    release.url.as_str().contains(&format!("v{version}/")),
                    "{}: {version}",
                    release.url
                );
            }
            assert_eq!(release.url.scheme(), "https");
        }
    }
}

#[test]
fn an_invalid_list_is_rejected() {
    let digest = "0".repeat(64);
    let parsed = parse(
        &format!("# words\n\nx86_64 https://a.test/b {digest} etcd=c/etcd kubelet\n"),
        "x86_64",
    )
    .unwrap();
    let members = vec![(Tool::Etcd, Some("c/etcd".to_owned())), (Tool::Kubelet, None)];
    assert_eq!(parsed[0].members, members);
    assert_eq!(
        parse(&format!("aarch64 https://a.test/b {digest} etcd"), "x86_64").unwrap(),
        []
    );
    for (line, words) in [
        ("x86_64", "the line has no address"),
        ("x86_64 b", "the address is invalid"),
        ("x86_64 https://a.test/b", "the line has no digest"),
        ("x86_64 https://a.test/b 12 etcd", "12 is not a SHA-256"),
        (&format!("x86_64 https://a.test/b {digest}"), "the line has no tools"),
        (&format!("aarch64 https://a.test/b {digest} ls"), "ls is not a tool"),
    ] {
        let error = format!("{:#}", parse(line, "x86_64").unwrap_err());
        assert!(error.contains(words) && error.contains(line), "{line}: {error}");
    }
}
