//! A browser with one page.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::accessible::Accessible;
use super::driver::Driver;
use super::frames::{self, Frames};
use super::look::Look;
use super::png;
use super::webdriver::Session;
use crate::cluster::SOON;
use crate::wait::eventually;

/// A key without a character of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// To the next element.
    Tab,
    /// Enter, as in a form.
    Enter,
    /// Esc.
    Escape,
    /// Arrow to the right.
    Right,
}

impl Key {
    /// Character that stands for the key in the protocol.
    fn character(self) -> char {
        match self {
            Self::Tab => '\u{E004}',
            Self::Enter => '\u{E007}',
            Self::Escape => '\u{E00C}',
            Self::Right => '\u{E014}',
        }
    }
}

/// Arguments of Chromium: no window, no sandbox (which root cannot have), and no traffic of the browser itself.
const ARGUMENTS: [&str; 14] = [
    "--headless",
    "--no-sandbox",
    "--no-proxy-server",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-service-autorun",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-lcd-text",
    "--disable-sync",
    "--hide-scrollbars",
];

/// Scripts get the arguments of a call as an array, and return a JSON value.
const ATTRIBUTE: &str =
    "const found = document.querySelector(arguments[0]); return found && found.getAttribute(arguments[1]);";
const COUNT: &str = "return document.querySelectorAll(arguments[0]).length;";
const TEXT: &str = "const found = document.querySelector(arguments[0]); return found && found.textContent;";
const VISIBLE: &str = "return [...document.querySelectorAll(arguments[0])].some((found) => found.checkVisibility());";
const GO: &str = "location.hash = arguments[0]; return null;";
const WHOLE_TEXT: &str = "return document.body ? document.body.innerText : '';";
const ACTIVE: &str = "return document.activeElement.matches(arguments[0]);";
const FOCUS: &str = "document.querySelector(arguments[0]).focus(); return null;";
const HIDDEN: &str =
    "const found = document.querySelector(arguments[0]); return found.scrollHeight - found.clientHeight;";
const TOO_WIDE: &str = r"
const width = document.documentElement.clientWidth;
const parts = [document.documentElement, ...document.querySelectorAll('dialog[open], dialog[open] > *')];
const scrolled = parts.find((part) => part.scrollWidth > part.clientWidth);
if (!scrolled) return [];
const wide = [...document.querySelectorAll('*')].filter((found) => found.getBoundingClientRect().right > width + 0.5);
const name = (found) => found.tagName + (found.id && '#' + found.id) + (found.className && '.' + found.className);
return [name(scrolled) + ' is ' + scrolled.scrollWidth + ' pixels wide', ...wide.slice(0, 20).map(name)];
";

/// Headless Chromium with one page. Dropping it ends Chromium.
#[derive(Debug)]
pub struct Browser {
    page: Session,
    _driver: Driver,
}

impl Browser {
    /// Starts Chromium with an empty page. Installs Chromium first if it is missing.
    pub async fn start() -> Result<Self> {
        let driver = Driver::start().await?;
        let profile = format!("--user-data-dir={}", driver.profile().display());
        let arguments: Vec<&str> = ARGUMENTS.into_iter().chain([profile.as_str()]).collect();
        let capabilities = json!({
            "goog:chromeOptions": { "binary": driver.launcher(), "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let page = Session::start(&driver.url(), capabilities).await;
        let browser = Self {
            page: page.context("starting Chromium")?,
            _driver: driver,
        };
        browser.look(Look::default()).await?;
        Ok(browser)
    }

    /// Opens an address, and waits until the page is loaded.
    pub async fn open(&self, url: &str) -> Result<()> {
        let opened = self.page.command("url", json!({ "url": url })).await;
        opened.with_context(|| format!("opening {url}"))?;
        Ok(())
    }

    /// Goes to a fragment of the page, such as `#/health`.
    pub async fn go(&self, fragment: &str) -> Result<()> {
        self.run(GO, &[fragment]).await
    }

    /// Loads the page again.
    pub async fn reload(&self) -> Result<()> {
        self.page.command("refresh", json!({})).await?;
        Ok(())
    }

    /// Address of the page.
    pub async fn address(&self) -> Result<String> {
        let url = self.page.property("url").await?;
        Ok(url.as_str().unwrap_or_default().to_owned())
    }

    /// Sets the size and the preferences of the page.
    pub async fn look(&self, look: Look) -> Result<()> {
        let size = json!({
            "width": look.width, "height": look.height, "deviceScaleFactor": look.scale, "mobile": false,
        });
        self.devtools("Emulation.setDeviceMetricsOverride", size).await?;
        let features = json!([
            { "name": "prefers-color-scheme", "value": look.scheme.name() },
            { "name": "prefers-reduced-motion", "value": "reduce" },
        ]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }))
            .await?;
        Ok(())
    }

    /// Sends a command of the DevTools protocol.
    pub async fn devtools(&self, command: &str, parameters: Value) -> Result<Value> {
        let call = json!({ "cmd": command, "params": parameters });
        let answer = self.page.command("goog/cdp/execute", call).await;
        answer.with_context(|| format!("{command} in Chromium"))
    }

    /// Runs the body of a function in the page, and returns its value. The page's Content-Security-Policy does not apply to it.
    pub async fn run<T: DeserializeOwned>(&self, script: &str, arguments: &[&str]) -> Result<T> {
        let call = json!({ "script": script, "args": arguments });
        let answer = self.page.command("execute/sync", call).await;
        let answer = answer.with_context(|| format!("running in the page: {script}"))?;
        serde_json::from_value(answer).with_context(|| format!("the value of: {script}"))
    }

    /// Value of an attribute of the first element that a selector matches; `None` without such an element or attribute.
    pub async fn attribute(&self, selector: &str, name: &str) -> Result<Option<String>> {
        self.run(ATTRIBUTE, &[selector, name]).await
    }

    /// Text of the first element that a selector matches, also if it is not shown.
    pub async fn text(&self, selector: &str) -> Result<String> {
        let text: Option<String> = self.run(TEXT, &[selector]).await?;
        text.with_context(|| format!("the page has no {selector}"))
    }

    /// All text that the page shows.
    pub async fn whole_text(&self) -> Result<String> {
        self.run(WHOLE_TEXT, &[]).await
    }

    /// Number of elements that a selector matches.
    pub async fn count(&self, selector: &str) -> Result<usize> {
        self.run(COUNT, &[selector]).await
    }

    /// True if the page shows an element that a selector matches.
    pub async fn shows(&self, selector: &str) -> Result<bool> {
        self.run(VISIBLE, &[selector]).await
    }

    /// True if a selector matches the element that has the keyboard focus.
    pub async fn is_focused(&self, selector: &str) -> Result<bool> {
        self.run(ACTIVE, &[selector]).await
    }

    /// Elements that reach beyond the right edge, so that a person has to scroll to the side; empty if there are none.
    pub async fn too_wide(&self) -> Result<Vec<String>> {
        self.run(TOO_WIDE, &[]).await
    }

    /// Height that a person must scroll to see all of an element, in pixels.
    pub async fn hidden(&self, selector: &str) -> Result<f64> {
        self.run(HIDDEN, &[selector]).await
    }

    /// Clicks the first element that a selector matches, as with a mouse.
    pub async fn click(&self, selector: &str) -> Result<()> {
        self.page.to_element(selector, "click", json!({})).await?;
        Ok(())
    }

    /// Gives the keyboard focus to the first element that a selector matches.
    pub async fn focus(&self, selector: &str) -> Result<()> {
        self.run(FOCUS, &[selector]).await
    }

    /// Replaces the text of an input.
    pub async fn write(&self, selector: &str, text: &str) -> Result<()> {
        self.page.to_element(selector, "clear", json!({})).await?;
        self.page.to_element(selector, "value", json!({ "text": text })).await?;
        Ok(())
    }

    /// Presses a key, for the element that has the focus.
    pub async fn press(&self, key: Key) -> Result<()> {
        let key = key.character();
        let steps = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": steps });
        self.page.command("actions", json!({ "actions": [keyboard] })).await?;
        Ok(())
    }

    /// Waits until a query returns true. The error has what the page shows.
    pub async fn until(&self, what: &str, ask: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        self.within(SOON, what, ask).await
    }

    /// Like [`Self::until`], with another timeout.
    pub async fn within(&self, limit: Duration, what: &str, ask: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
        let Err(error) = eventually(what, limit, ask).await else {
            return Ok(());
        };
        let shown = self.whole_text().await.unwrap_or_else(|error| format!("{error:#}"));
        let console = self.console().await.unwrap_or_default();
        bail!(
            "{error:#}\nthe page shows:\n{shown}\nits console:\n{}",
            console.join("\n")
        )
    }

    /// Waits until an element has this attribute.
    pub async fn until_attribute(&self, selector: &str, name: &str, value: &str) -> Result<()> {
        self.until(&format!("{selector} has {name}={value}"), async || {
            Ok(self.attribute(selector, name).await?.as_deref() == Some(value))
        })
        .await
    }

    /// Waits until the text of an element contains these words.
    pub async fn until_text(&self, selector: &str, words: &str) -> Result<()> {
        self.until(&format!("{selector} says {words:?}"), async || {
            Ok(self.text(selector).await?.contains(words))
        })
        .await
    }

    /// Waits until the page shows an element that a selector matches.
    pub async fn until_shown(&self, selector: &str) -> Result<()> {
        self.until(&format!("{selector} is shown"), async || self.shows(selector).await)
            .await
    }

    /// A picture of the page, in PNG, with at most 256 colours.
    pub async fn picture(&self) -> Result<Vec<u8>> {
        let picture = self.page.property("screenshot").await?;
        let picture = STANDARD.decode(picture.as_str().unwrap_or_default());
        png::shrink(&picture.context("the picture is not in base64")?)
    }

    /// Lines of the console since the last call: errors, warnings, blocked requests and failed ones.
    pub async fn console(&self) -> Result<Vec<String>> {
        let entries = self.page.command("se/log", json!({ "type": "browser" })).await?;
        let entries = entries.as_array().into_iter().flatten();
        let field = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        Ok(entries
            .map(|entry| format!("{} {}", field(entry, "level"), field(entry, "message")))
            .collect())
    }

    /// Fails if the console has a line that does not contain one of these words.
    pub async fn is_quiet_but_for(&self, expected: &[&str]) -> Result<()> {
        let mut lines = self.console().await?;
        lines.retain(|line| !expected.iter().any(|words| line.contains(words)));
        ensure!(lines.is_empty(), "the console has:\n{}", lines.join("\n"));
        Ok(())
    }

    /// Fails if the console has a line.
    pub async fn is_quiet(&self) -> Result<()> {
        self.is_quiet_but_for(&[]).await
    }

    /// The accessibility tree, as a list.
    pub async fn accessible(&self) -> Result<Vec<Accessible>> {
        let tree = self.devtools("Accessibility.getFullAXTree", json!({})).await?;
        Ok(Accessible::all(&tree))
    }

    /// Starts to measure the times between frames.
    pub async fn measure_frames(&self) -> Result<()> {
        self.run::<Value>(frames::BEGIN, &[]).await?;
        Ok(())
    }

    /// Frames since [`Self::measure_frames`].
    pub async fn frames(&self) -> Result<Frames> {
        Ok(Frames::of(self.run(frames::END, &[]).await?))
    }
}
