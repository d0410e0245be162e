//! The doctor's checks as text.

use super::check::{Check, Outcome};
use super::diagnosis::Diagnosis;
use crate::table::{Look, Tint};
use crate::text::{count as counted, wrapped};

/// Column that messages begin at.
const MESSAGE: usize = 11;
/// Indent of causes, remedies and commands.
const BELOW: usize = 13;

/// Returns the checks as text, grouped, in lines of at most the look's width; 0 means unlimited. Commands are not cut,
/// so that they can be copied.
pub fn render(diagnosis: &Diagnosis, look: Look) -> String {
    let mut out = String::new();
    let mut group = None;
    for check in &diagnosis.checks {
        if group != Some(check.group) {
            let gap = if group.is_some() { "\n" } else { "" };
            out += &format!("{gap}{}\n", check.group.heading());
            group = Some(check.group);
        }
        out += &line(check, look);
        if check.result != Outcome::Ok {
            out += &details(check, look.width);
        }
    }
    out.push('\n');
    out += &wrapped(&summary(diagnosis), look.width, 0);
    out
}

/// Returns the commands of all remedies, one in each line.
pub fn render_commands(diagnosis: &Diagnosis) -> String {
    diagnosis
        .commands()
        .into_iter()
        .map(|command| format!("{command}\n"))
        .collect()
}

/// Returns the line of a check: its result and its message.
fn line(check: &Check, look: Look) -> String {
    let word = check.result.word();
    let plain = format!("  {word:<room$}{}", check.message, room = MESSAGE - 2);
    let text = wrapped(&plain, look.width, MESSAGE);
    match tint(check.result).filter(|_| look.colours) {
        Some(tint) => text.replacen(word, &tint.painted(word), 1),
        None => text,
    }
}

const fn tint(result: Outcome) -> Option<Tint> {
    match result {
        Outcome::Ok => Some(Tint::Green),
        Outcome::Note => None,
        Outcome::Warning | Outcome::Unknown => Some(Tint::Yellow),
        Outcome::Broken => Some(Tint::Red),
    }
}

fn details(check: &Check, width: usize) -> String {
    let mut out = String::new();
    let cause = (!check.cause.is_empty()).then_some(("cause", &check.cause));
    let steps = check.remedy.iter().map(|step| ("fix", step));
    for (label, text) in cause.into_iter().chain(steps) {
        let text = format!("{:MESSAGE$}{label}: {text}", "");
        out += &wrapped(&text, width, BELOW);
    }
    for command in &check.commands {
        out += &format!("{:BELOW$}$ {command}\n", "");
    }
    out
}

/// Returns the number of checks with each result, and how to get the commands.
fn summary(diagnosis: &Diagnosis) -> String {
    let mut counts = vec![];
    for result in Outcome::ALL {
        let count = diagnosis.checks.iter().filter(|check| check.result == result).count();
        let words = match result {
            Outcome::Warning | Outcome::Note => counted(count, result.word()),
            _ => format!("{count} {}", result.word()),
        };
        counts.extend((count > 0).then_some(words));
    }
    let counts = counts.join(", ");
    if diagnosis.commands().is_empty() {
        return counts;
    }
    format!("{counts}; --fix prints the commands alone")
}
