//! Writes log lines to standard error.

use std::borrow::Cow;
use std::io::{self, Write};

use berth_api::foreign::{printable, scrubbed};
use berth_api::text::truncated;
use clap::ValueEnum;
use serde_json::{Map, Value};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Maximum length of a log line, in bytes. An API server that refuses a write may quote the whole object.
const LONGEST_LINE: usize = 16 * 1024;
/// Maximum number of characters of a longer line, or of each field of a longer line in JSON.
const LONGEST_TEXT: usize = 4 * 1024;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Human,
    /// JSON, one object per line.
    Json,
}

/// Selects the log lines to write: a minimum level for all modules, and other levels for some modules.
pub type Filter = Targets;

/// Parses the value of `--log-level`, for clap. Fails if the text is neither a level nor a list of directives. A word
/// without `=` must be a level. Otherwise the library would take a misspelled level for a module, and log only that
/// module.
pub fn filter(text: &str) -> Result<Filter, String> {
    for word in text.split(',').filter(|word| !word.contains('=')) {
        if word.is_empty() || word.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{word:?} is not a log level; use error, warn, info, debug, trace or off, or MODULE=LEVEL for one module"
            ));
        }
    }
    text.parse()
        .map_err(|error| format!("{error}; use log directives such as info,kube=debug"))
}

/// Starts logging in this format. Lines that the filter rejects are not written.
pub fn start(format: LogFormat, filter: &Filter) {
    let lines = tracing_subscriber::fmt::layer().with_writer(|| OneLine(io::stderr()));
    let lines = match format {
        LogFormat::Human => lines.with_ansi(false).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(filter.clone()).init();
}

/// Writes each event as one line of limited length, whatever its fields contain, and without credentials. So text of a
/// registry or a tool cannot look like another event.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    /// Writes an event. tracing-subscriber passes each event as a whole.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = scrubbed(printable(&text).trim_end());
        let line = shortened(&line);
        self.0.write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Cuts a line that is too long. A line in JSON stays JSON: its fields are cut.
fn shortened(line: &str) -> Cow<'_, str> {
    if line.len() <= LONGEST_LINE {
        return Cow::Borrowed(line);
    }
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(line) else {
        return Cow::Owned(truncated(line, LONGEST_TEXT));
    };
    for field in fields.values_mut() {
        if let Value::String(text) = field {
            *text = truncated(text, LONGEST_TEXT);
        }
    }
    Cow::Owned(Value::Object(fields).to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::Level;

    use super::*;

    #[test]
    fn an_unknown_level_is_refused() {
        for text in ["info", "WARN", "off", "info,kube_client=off", "warn,berth_agent=debug"] {
            assert!(filter(text).is_ok(), "{text}");
        }
        for text in [
            "loud",
            "info,berth_agent",
            "",
            "info,",
            "berth_agent=loud",
            "info,[pass{pool=a}]=debug",
        ] {
            let refused = filter(text).unwrap_err();
            assert!(refused.contains("use "), "{text}: {refused}");
        }
    }

    #[test]
    fn the_last_directive_for_a_module_applies() {
        let filter = filter("info,berth_agent=debug,kube_client=off").unwrap();
        assert!(filter.would_enable("berth_agent::run", &Level::DEBUG));
        assert!(!filter.would_enable("berth_core", &Level::DEBUG) && filter.would_enable("berth_core", &Level::INFO));
        assert!(!filter.would_enable("kube_client::client", &Level::ERROR));
    }

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns what `events` logs.
    fn logged(format: LogFormat, events: impl FnOnce()) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let lines = tracing_subscriber::fmt::layer().with_writer(move || OneLine(writer.clone()));
        let lines = match format {
            LogFormat::Human => lines.with_ansi(false).with_target(false).boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), events);
        let bytes = kept.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Logs two events with hostile fields.
    fn hostile() {
        let error = "no\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J\u{202e}";
        tracing::info!(error, %error, "first");
        let why = "Get \"https://me:hush@r.io/?token=hush\": Authorization: Basic aHVzaA==";
        tracing::info!(why, %why, "second");
    }

    #[test]
    fn a_long_line_is_cut() {
        fn long() {
            tracing::warn!(error = "ä".repeat(1_000_000), node = "n1", "refused");
        }
        let text = logged(LogFormat::Human, long);
        assert!(
            text.len() < LONGEST_LINE && text.contains("refused") && text.ends_with("…\n"),
            "{}",
            text.len()
        );
        let text = logged(LogFormat::Json, long);
        let fields: Map<String, Value> = serde_json::from_str(&text).unwrap();
        assert!(
            text.len() < LONGEST_LINE && fields["message"] == "refused" && fields["node"] == "n1",
            "{fields:?}"
        );
        assert!(fields["error"].as_str().unwrap().ends_with('…'));
    }

    #[test]
    fn an_event_is_one_line_without_credentials() {
        for format in [LogFormat::Human, LogFormat::Json] {
            let text = logged(format, hostile);
            assert_eq!(text.matches('\n').count(), 2, "{text}");
            assert!(!text.contains(['\u{1b}', '\u{202e}']), "{text}");
            assert!(!text.contains("hush") && !text.contains("aHVzaA"), "{text}");
            assert!(text.contains("r.io/?token=***"), "{text}");
            if format == LogFormat::Json {
                assert!(
                    text.lines().all(|line| line.starts_with('{') && line.ends_with('}')),
                    "{text}"
                );
            }
        }
    }
}
