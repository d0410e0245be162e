//! A client of the WebDriver protocol, as chromedriver speaks it. <https://www.w3.org/TR/webdriver2/>
//!
//! The crates that have such a client would change the programs under test: `thirtyfour` gives all of `serde_json` another order of
//! fields and adds operators to `String`; `fantoccini` brings a second `http`, thirteen other duplicates, and the MPL-2.0.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::Client;
use serde_json::{Value, json};

/// Name of the field with an element's reference, as the protocol defines it.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";
/// Timeout of a request. Chromium may need long to start on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A session: one browser with one window.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    url: String,
}

impl Session {
    /// Starts a browser with these capabilities.
    pub(super) async fn start(driver: &str, capabilities: Value) -> Result<Self> {
        let client = Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        let wanted = json!({ "capabilities": { "alwaysMatch": capabilities } });
        let started = post(&client, &format!("{driver}/session"), &wanted).await?;
        let id = started["sessionId"].as_str().context("the session has no ID")?;
        Ok(Self {
            url: format!("{driver}/session/{id}"),
            client,
        })
    }

    /// Sends a command with its parameters; returns its value.
    pub(super) async fn command(&self, name: &str, parameters: Value) -> Result<Value> {
        post(&self.client, &format!("{}/{name}", self.url), &parameters).await
    }

    /// Reads a property of the session, such as its `url`.
    pub(super) async fn property(&self, name: &str) -> Result<Value> {
        let answer = self.client.get(format!("{}/{name}", self.url)).send().await?;
        value(name, answer).await
    }

    /// Sends a command to the first element that a CSS selector matches.
    pub(super) async fn to_element(&self, selector: &str, name: &str, parameters: Value) -> Result<Value> {
        let wanted = json!({ "using": "css selector", "value": selector });
        let found = self.command("element", wanted).await?;
        let id = found[ELEMENT].as_str().context("the element has no reference")?;
        self.command(&format!("element/{id}/{name}"), parameters)
            .await
            .with_context(|| format!("{selector} in the page"))
    }
}

async fn post(client: &Client, url: &str, body: &Value) -> Result<Value> {
    let request = client.post(url).header("content-type", "application/json");
    let answer = request.body(body.to_string()).send().await?;
    value(url.rsplit('/').next().unwrap_or(url), answer).await
}

/// Returns the value of an answer, or its error in words.
async fn value(name: &str, answer: reqwest::Response) -> Result<Value> {
    let is_well = answer.status().is_success();
    let text = answer.text().await?;
    let mut answer: Value = serde_json::from_str(&text).with_context(|| format!("{name}: {text}"))?;
    let value = answer["value"].take();
    if !is_well {
        bail!("{name}: {}: {}", words(&value["error"]), words(&value["message"]));
    }
    Ok(value)
}

/// First line of a text: chromedriver adds a stack trace.
fn words(text: &Value) -> &str {
    text.as_str().unwrap_or_default().lines().next().unwrap_or_default()
}
