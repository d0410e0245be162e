//! Words for people at the machine's console.

use super::Verdict;
use super::config::Config;

/// Fixed MESSAGE_ID of the journal's record about a first boot.
pub const MESSAGE_ID: &str = "710e011e9c8f467f88be55a92a3044c9";

/// Width of the text, in characters.
const WIDTH: usize = 78;

/// Text for the console and for those who log in; `None` where nobody has to look.
pub fn notice(config: Option<&Config>, verdict: &Verdict) -> Option<String> {
    if !verdict.outcome.is_trouble() {
        return None;
    }
    let head = match verdict.holds {
        true => "Berth: this machine does NOT join its cluster: its kubelet is held back",
        false => "Berth: the first boot of this machine needs a look",
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
    // In /etc/issue a backslash begins an escape of getty's.
    Some(text.replace('\\', "/"))
}

/// A label and words behind it, broken into lines.
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

/// Fields of the journal's record, each in one line.
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
