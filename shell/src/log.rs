//! Log lines on standard error.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Text for people.
    Human,
    /// One JSON object per line.
    Json,
}

/// Checks the text of a `--log-level`, as a parser of clap. A lone word must be a level: the library would take any other
/// for the name of a module, log nothing else, and so say nothing at all about a level that is spelt wrong.
///
/// # Errors
/// When it is no level and no list of directives.
pub fn filter(text: &str) -> Result<String, String> {
    for word in text.split(',').filter(|word| !word.contains(['=', '['])) {
        if word.is_empty() || word.parse::<LevelFilter>().is_err() {
            return Err(format!(
                "{word:?} is no level; use error, warn, info, debug, trace or off, or for one module MODULE=LEVEL"
            ));
        }
    }
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; use directives such as info,kube=debug")),
    }
}

/// Starts to log what a [`filter`] lets through.
pub fn start(format: LogFormat, filter: &str) {
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Human => lines.with_ansi(false).with_target(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_does_not_exist_is_refused() {
        for text in [
            "info",
            "WARN",
            "off",
            "info,kube_client=off",
            "warn,berth_agent=debug",
            "info,[pass{pool=a}]=debug",
        ] {
            assert_eq!(filter(text).as_deref(), Ok(text));
        }
        for text in ["loud", "info,berth_agent", "", "info,", "berth_agent=loud"] {
            let refused = filter(text).unwrap_err();
            assert!(refused.contains("use "), "{text}: {refused}");
        }
    }
}
