//! `kubectl berth verify`: judges past rollouts from the API server's audit log.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use berth_judge::log::Log;
use berth_judge::turns::{Proof, Turn, Verdict};
use berth_judge::verdict::Report;
use flate2::bufread::MultiGzDecoder;

use crate::table::columns;
use crate::text::{clean, cut, seconds, wrapped};

/// Longest line that is read, in bytes. A line has at most two objects, each smaller than 2 MiB.
const MAX_LINE: u64 = 8 << 20;

const STDIN: &str = "-";

/// Reads audit logs: plain or gzipped files, and `-` for standard input.
pub fn read_logs(files: &[PathBuf], namespace: &str) -> Result<Log> {
    let mut log = Log::default();
    for file in files {
        let name = file.display().to_string();
        let opened = open(file).with_context(|| format!("cannot read the audit log {name}"))?;
        take_lines(&mut log, &name, opened, namespace).with_context(|| format!("cannot read the audit log {name}"))?;
    }
    Ok(log)
}

fn open(file: &Path) -> io::Result<Box<dyn BufRead>> {
    if file.as_os_str() == STDIN {
        return plain(BufReader::new(io::stdin()));
    }
    plain(BufReader::new(File::open(file)?))
}

fn plain<R: Read + 'static>(mut stream: BufReader<R>) -> io::Result<Box<dyn BufRead>> {
    let is_gzip = stream.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_gzip {
        Box::new(BufReader::new(MultiGzDecoder::new(stream)))
    } else {
        Box::new(stream)
    })
}

fn take_lines(log: &mut Log, name: &str, mut text: impl BufRead, namespace: &str) -> io::Result<()> {
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        if text.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        number += 1;
        if line.len() as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            while text.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)? > 0 && line.last() != Some(&b'\n') {
                line.clear();
            }
            line = b"too long".to_vec();
        }
        log.take(name, number, &line, namespace);
    }
}

/// Returns the verdict as text, in lines of at most `width` columns; 0 means unlimited. Sentences are wrapped.
pub fn render_report(report: &Report, width: usize) -> String {
    let mut text = cut(&head(report), width) + "\n";
    if !report.turns.is_empty() {
        let heads = ["NODE", "BERTH", "TAKEN", "TOOK", "FROM", "TO", "VERDICT", "PROOF"];
        let rows: Vec<_> = report.turns.iter().map(row).collect();
        text += &columns(&heads, &rows, width);
    }
    section(&mut text, width, "Violations", report.violations.iter(), |v| {
        let ids = match v.audit_ids.as_slice() {
            [] => "no audit ID: no single line of the log shows this violation".to_owned(),
            ids => format!("audit ID {}", ids.join(", ")),
        };
        format!("{v}\n{ids}")
    });
    section(
        &mut text,
        width,
        "Reboots without a berth, not attributed to Berth",
        report.others.iter(),
        |r| {
            let image = if r.other_image {
                "then booted another image"
            } else {
                "then booted the same image again"
            };
            format!("{} went down at {:.0} or earlier and {image}", r.node, r.at)
        },
    );
    section(&mut text, width, "Not judged", report.not_judged.iter(), String::clone);
    text + "\n" + &end(report)
}

fn head(report: &Report) -> String {
    let span = format!("{:.0} to {:.0}", report.from, report.until);
    match report.turns.len() {
        0 => format!("No turn from {span}"),
        1 => format!("1 turn from {span}"),
        n => format!("{n} turns from {span}"),
    }
}

fn end(report: &Report) -> String {
    match report.violations.len() {
        0 => "No violation.\n".to_owned(),
        1 => "1 violation.\n".to_owned(),
        n => format!("{n} violations.\n"),
    }
}

fn section<T>(text: &mut String, width: usize, title: &str, all: impl Iterator<Item = T>, words: impl Fn(T) -> String) {
    let lines: Vec<String> = all.map(words).collect();
    if lines.is_empty() {
        return;
    }
    *text += &format!("\n{}\n", cut(title, width));
    for line in lines {
        // Names in an audit log are not trusted. Clean each line separately, because `clean` removes line breaks.
        for (number, part) in line.split('\n').enumerate() {
            let indent = if number == 0 { 2 } else { 6 };
            *text += &wrapped(&format!("{:indent$}{}", "", clean(part)), width, 6);
        }
    }
}

fn row(turn: &Turn) -> Vec<String> {
    let took = turn.end.map(|end| {
        let seconds = end.as_second() - turn.start.as_second();
        u64::try_from(seconds).unwrap_or_default()
    });
    let verdict = match &turn.verdict {
        Verdict::Kept => "ok".to_owned(),
        Verdict::Violated { rules } => format!("violated {}", rules.join(", ")),
        Verdict::NotJudged => "not judged".to_owned(),
        Verdict::Open => "not ended".to_owned(),
    };
    let outcome = turn.outcome.unwrap_or("closed by the controller or an admin");
    let proof = match &turn.proof {
        Proof::NoReboot => format!("{outcome}: the berth was given back without a reboot"),
        Proof::Booted { digest, .. } => {
            let boot = clean(turn.final_boot.as_deref().unwrap_or_default());
            if *digest == turn.to {
                format!("{outcome}: Ready with the target in boot {boot}")
            } else {
                format!("{outcome}: Ready with {} in boot {boot}", digits(digest))
            }
        }
        Proof::Missing { what } => format!("{outcome}: the log lacks {what}"),
        Proof::Failed => format!("{outcome}: the update was not proven"),
        Proof::Open => "the berth is not given back yet".to_owned(),
    };
    vec![
        clean(&turn.node),
        clean(&turn.berth),
        format!("{:.0}", turn.start),
        took.map(seconds).unwrap_or_default(),
        turn.from.as_deref().map(digits).unwrap_or_default(),
        digits(&turn.to),
        verdict,
        proof,
    ]
}

fn digits(digest: &str) -> String {
    let digits = digest.strip_prefix("sha256:").unwrap_or(digest);
    clean(&digits.chars().take(12).collect::<String>())
}

#[cfg(test)]
mod tests;
