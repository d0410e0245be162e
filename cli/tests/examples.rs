//! Each `examples/NAME.yaml` (a snapshot, a time and a width) must print `examples/NAME.txt`. To add a case, write
//! the first and run `BERTH_BLESS=1 cargo test -p kubectl-berth`, which writes the second; then read it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail like the test")]

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kubectl_berth::{Snapshot, previews, render, render_preview, views};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    now: Timestamp,
    /// Columns of the terminal; 0 is a file.
    #[serde(default)]
    width: usize,
    show: Show,
    snapshot: Snapshot,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Show {
    Status,
    Preview,
    Json,
    PreviewJson,
}

impl Example {
    fn print(&self) -> String {
        let (snapshot, now) = (&self.snapshot, self.now);
        match self.show {
            Show::Status => render(snapshot, now, self.width),
            Show::Preview => render_preview(snapshot, now, self.width),
            Show::Json => serde_json::to_string_pretty(&views(snapshot, now)).unwrap() + "\n",
            Show::PreviewJson => serde_json::to_string_pretty(&previews(snapshot, now)).unwrap() + "\n",
        }
    }
}

fn examples() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/examples");
    let files = fs::read_dir(directory).unwrap().map(|f| f.unwrap().path());
    let mut inputs: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "yaml")).collect();
    inputs.sort();
    inputs
}

#[test]
fn every_example_prints_what_it_should() {
    let mut wrong = Vec::new();
    let inputs = examples();
    assert!(!inputs.is_empty());
    for input in inputs {
        let text = fs::read_to_string(&input).unwrap();
        let example: Example =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", input.display()));
        let printed = example.print();
        if example.width > 0 {
            let widest = printed.lines().map(|l| l.chars().count()).max();
            assert!(widest <= Some(example.width), "{}", input.display());
        }
        let output = input.with_extension("txt");
        if std::env::var_os("BERTH_BLESS").is_some() {
            fs::write(&output, &printed).unwrap();
        }
        let expected = fs::read_to_string(&output).unwrap_or_default();
        if printed != expected {
            wrong.push(format!("--- {} should print\n{expected}\n--- but prints\n{printed}", input.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
