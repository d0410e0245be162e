//! The browser of the harness, with a page of its own.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Result, ensure};
use berth_tests::browser::{Browser, Key, Look, Scheme, unavailable};
use berth_tests::files::FileServer;
use serde_json::json;

/// A page with the strict policy of the dashboard.
const PAGE: &str = r#"<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self'; style-src 'self'">
<title>Rig</title>
<button id="open" aria-label="Open it">+</button>
<button id="nameless"></button>
<input id="field" aria-label="Field">
<p id="said">nothing</p>
<script defer src="page.js"></script>
</html>"#;

const SCRIPT: &str = r"
const said = document.getElementById('said');
document.getElementById('open').addEventListener('click', () => { said.textContent = 'opened'; });
document.addEventListener('keydown', (event) => { if (event.key === 'Escape') said.textContent = 'closed'; });
";

#[tokio::test]
async fn a_page_is_driven_as_a_person_does() -> Result<()> {
    if let Some(why) = unavailable() {
        println!("{why}");
        return Ok(());
    }
    let site = tempfile::tempdir()?;
    fs::write(site.path().join("page.html"), PAGE)?;
    fs::write(site.path().join("page.js"), SCRIPT)?;
    let server = FileServer::start(Ipv4Addr::LOCALHOST.into(), site.path()).await?;
    let browser = Browser::start().await?;
    browser.open(&format!("{}/page.html", server.url())).await?;

    browser.focus("#open").await?;
    browser.press(Key::Enter).await?;
    browser.until_text("#said", "opened").await?;
    browser.press(Key::Escape).await?;
    browser.until_text("#said", "closed").await?;
    browser.click("#open").await?;
    browser.until_text("#said", "opened").await?;
    browser.write("#field", "a=b").await?;
    let value: String = browser
        .run("return document.querySelector('#field').value;", &[])
        .await?;
    ensure!(value == "a=b", "{value}");
    ensure!(browser.is_focused("#field").await? && browser.shows("#said").await?);
    ensure!(browser.count("button").await? == 2 && browser.attribute("#said", "class").await?.is_none());

    let named: Vec<_> = browser
        .accessible()
        .await?
        .into_iter()
        .filter(|e| e.role == "button")
        .collect();
    ensure!(
        named.len() == 2 && named[0].name == "Open it" && named[1].name.is_empty(),
        "{named:?}"
    );
    has_the_look(&browser).await?;
    complains_of_errors(&browser).await?;
    browser.measure_frames().await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let frames = browser.frames().await?;
    ensure!(
        frames.count > 2 && frames.half > 5.0 && frames.max >= frames.p99,
        "{frames:?}"
    );
    Ok(())
}

async fn has_the_look(browser: &Browser) -> Result<()> {
    let seen = "return [innerWidth, devicePixelRatio, matchMedia('(prefers-color-scheme: dark)').matches];";
    for (width, scale, scheme) in [(1280, 1.0, Scheme::Light), (360, 2.0, Scheme::Dark)] {
        let look = Look {
            scale,
            scheme,
            ..Look::of(width, 640)
        };
        browser.look(look).await?;
        let [inner, ratio, dark]: [serde_json::Value; 3] = browser.run(seen, &[]).await?;
        ensure!(inner == json!(width) && ratio.as_f64() == Some(scale) && dark == json!(scheme == Scheme::Dark));
        let picture = browser.picture().await?;
        ensure!(picture.starts_with(b"\x89PNG"), "not a picture");
    }
    ensure!(browser.too_wide().await?.is_empty());
    browser
        .run::<()>("document.querySelector('#field').style.width = '50rem';", &[])
        .await?;
    let wide = browser.too_wide().await?;
    ensure!(wide.iter().any(|element| element == "INPUT#field"), "{wide:?}");
    Ok(())
}

async fn complains_of_errors(browser: &Browser) -> Result<()> {
    browser.is_quiet().await?;
    // Inline code breaks the page's policy.
    browser
        .run::<()>(
            "setTimeout(() => { throw new Error('thrown'); }); console.error('wrong');",
            &[],
        )
        .await?;
    browser
        .run::<()>("document.body.setAttribute('style', 'color: red');", &[])
        .await?;
    let mut lines = vec![];
    browser
        .until("the console has three errors", async || {
            lines.extend(browser.console().await?);
            Ok(lines.len() >= 3)
        })
        .await?;
    for words in ["thrown", "wrong", "Content Security Policy"] {
        ensure!(lines.iter().any(|line| line.contains(words)), "{words}: {lines:?}");
    }
    browser.run::<()>("console.warn('expected');", &[]).await?;
    browser.is_quiet_but_for(&["expected"]).await
}
