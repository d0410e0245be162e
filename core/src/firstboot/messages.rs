//! Messages about the result of a first-boot check, for the console and the journal.

use super::config::Config;
use super::verdict::Verdict;

/// MESSAGE_ID of the check's journal entry: `journalctl MESSAGE_ID=…` finds it.
pub const MESSAGE_ID: &str = "710e011e9c8f467f88be55a92a3044c9";

/// Width of a console line, in characters.
const WIDTH: usize = 78;

/// Returns the text for the console and the login screen. `None` if the outcome needs no action.
pub fn notice(config: Option<&Config>, verdict: &Verdict) -> Option<String> {
    if !verdict.outcome.is_trouble() {
        return None;
    }
    let head = if verdict.holds {
        "Berth: this machine does NOT join its cluster: its kubelet is held back"
    } else {
        "Berth: the first boot of this machine needs attention"
    };
    let mut text = format!("\n{head} ({}).\n", verdict.outcome.as_str());
    if let Some(config) = config {
        text.push_str(&paragraph("Target", &config.image.to_string()));
    }
    text.push_str(&paragraph("Found", &verdict.found));
    if !verdict.remedy.is_empty() {
        text.push_str(&paragraph("To do", &verdict.remedy));
    }
    text.push('\n');
    // The text goes to /etc/issue, where getty would interpret a backslash.
    Some(text.replace('\\', "/"))
}

/// Returns a label and its text as lines of at most [`WIDTH`] characters.
fn paragraph(label: &str, words: &str) -> String {
    let (mut text, mut width) = (format!("  {label}:"), label.len() + 3);
    let one_line = berth_api::condition::one_line(words);
    for word in one_line.split(' ') {
        let length = word.chars().count();
        if width + 1 + length > WIDTH && width > 10 {
            text.push_str("\n        ");
            width = 8;
        }
        text.push(' ');
        text.push_str(word);
        width += 1 + length;
    }
    text.push('\n');
    text
}

/// Returns the names and values of the journal entry's fields. No value has a line break.
pub fn journal(config: Option<&Config>, verdict: &Verdict) -> Vec<(&'static str, String)> {
    let priority = match (verdict.holds, verdict.outcome.is_trouble()) {
        (true, _) => "2",
        (false, true) => "4",
        (false, false) => "6",
    };
    vec![
        ("MESSAGE_ID", MESSAGE_ID.to_owned()),
        ("PRIORITY", priority.to_owned()),
        ("SYSLOG_IDENTIFIER", "berth-firstboot".to_owned()),
        (
            "MESSAGE",
            format!("first boot: {}: {}", verdict.outcome.as_str(), verdict.message()),
        ),
        ("BERTH_OUTCOME", verdict.outcome.as_str().to_owned()),
        (
            "BERTH_IMAGE",
            config.map(|config| config.image.to_string()).unwrap_or_default(),
        ),
        ("BERTH_KUBELET_HELD", verdict.holds.to_string()),
        ("BERTH_REMEDY", berth_api::condition::one_line(&verdict.remedy)),
    ]
}
