//! Pulls images and reports progress with rpm-ostree's messages.

use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use berth_tests::bootc::document::ImageReference;
use berth_tests::rpmostreed::ProgressEvent;
use serde_json::Value;

use crate::image::Image;
use crate::progress::Progress;
use crate::pull::{self, Pulled};
use crate::sysroot::Sysroot;
use crate::verbs::say;

/// Gets an image into the repository, unless `refuse` returns an error. Needs no registry if the image was pulled
/// before.
pub(crate) fn obtain(
    sysroot: &Sysroot,
    reference: &ImageReference,
    refuse: impl FnOnce(&Image) -> Result<()>,
) -> Result<Pulled> {
    if let Some(pulled) = pull::present(sysroot, reference).context("Importing")? {
        refuse(&pulled.image)?;
        return Ok(pulled);
    }
    let prepared = pull::prepare(&reference.skopeo()).context("Importing")?;
    refuse(&prepared.image)?;
    let (reader, writer) = std::io::pipe().context("creating the pipe for progress")?;
    let reporting = std::thread::spawn(move || {
        let mut reported = PullProgress::default();
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            reported.update(&line).iter().for_each(say);
        }
    });
    let pulled = {
        let mut progress = Progress::new(Some(u32::try_from(writer.as_raw_fd())?))?;
        drop(writer);
        pull::import(sysroot, reference, prepared, &mut progress)?
    };
    // The thread ends with the pipe and does not panic.
    let _ = reporting.join();
    Ok(pulled)
}

#[derive(Debug, Default)]
struct PullProgress {
    total: bool,
    begun: usize,
    ended: u64,
}

impl PullProgress {
    fn update(&mut self, line: &str) -> Vec<ProgressEvent> {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let mut events = vec![];
        let Some(layers) = event["subtasks"]
            .as_array()
            .filter(|_| event["type"] == "ProgressBytes")
        else {
            return events;
        };
        let steps = &event["stepsTotal"];
        if !self.total {
            self.total = true;
            let size = size(&event["bytesTotal"]);
            events.push(ProgressEvent::Message(format!(
                "custom layers needed: {steps} ({size})"
            )));
        }
        for layer in layers.iter().skip(self.begun) {
            self.begun += 1;
            let (id, size) = (layer["id"].as_str().unwrap_or_default(), size(&layer["bytesTotal"]));
            let text = format!("[{}/{steps}] Fetching layer {id} ({size})", self.begun);
            events.push(ProgressEvent::TaskBegin(text));
        }
        let ended = event["steps"].as_u64().unwrap_or_default();
        for _ in self.ended..ended {
            events.push(ProgressEvent::TaskEnd("done".to_owned()));
        }
        self.ended = ended;
        events
    }
}

/// Formats a size as GLib does, with a non-breaking space.
fn size(bytes: &Value) -> String {
    let bytes = bytes.as_f64().unwrap_or_default();
    match bytes {
        b if b >= 1e6 => format!("{:.1}\u{a0}MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1}\u{a0}kB", b / 1e3),
        b => format!("{b:.0}\u{a0}bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_layer_is_reported_once() {
        let event = |steps: u64, layers: &[&str]| {
            let layers: Vec<Value> = layers
                .iter()
                .map(|id| serde_json::json!({"id": id, "bytesTotal": 1_500_000}))
                .collect();
            serde_json::json!({
                "type": "ProgressBytes", "stepsTotal": 2, "steps": steps, "bytesTotal": 3_000_000, "subtasks": layers,
            })
            .to_string()
        };
        let mut reported = PullProgress::default();
        let begun = |n: u32, id: &str| ProgressEvent::TaskBegin(format!("[{n}/2] Fetching layer {id} (1.5\u{a0}MB)"));
        assert_eq!(
            reported.update(&event(0, &["aa"])),
            [
                ProgressEvent::Message("custom layers needed: 2 (3.0\u{a0}MB)".to_owned()),
                begun(1, "aa")
            ]
        );
        assert_eq!(reported.update(&event(0, &["aa"])), []);
        let done = ProgressEvent::TaskEnd("done".to_owned());
        assert_eq!(
            reported.update(&event(1, &["aa", "bb"])),
            [begun(2, "bb"), done.clone()]
        );
        assert_eq!(reported.update(&event(2, &["aa", "bb"])), [done]);
        assert_eq!(reported.update(r#"{"type":"ProgressSteps","subtasks":[]}"#), []);
    }
}
