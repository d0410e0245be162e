//! Writes log lines to standard error.

use clap::ValueEnum;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

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
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Human => lines.with_ansi(false).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry().with(lines).with(filter.clone()).init();
}

#[cfg(test)]
mod tests {
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
}
