//! Progress of a transaction, computed from its signals. Does no I/O.
//!
//! For a container image, rpm-ostree reports only text: the size to fetch, and each layer when its download begins.
//! Other texts are ignored.

use berth_api::node::Progress;

use super::transaction::Signal;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    done: u64,
    total: u64,
    per_second: u64,
    /// Size of the layer that is being downloaded.
    current: u64,
    seen: bool,
}

impl Tally {
    /// Processes a signal. True if the progress changed.
    pub(super) fn add(&mut self, signal: &Signal) -> bool {
        let before = self.clone();
        match signal {
            Signal::Download { bytes, per_second } => {
                (self.done, self.per_second, self.seen) = (*bytes, *per_second, true);
            }
            Signal::Said(text) => self.read(text),
            Signal::Finished { .. } | Signal::Other => {}
        }
        *self != before
    }

    pub(super) fn progress(&self) -> Option<Progress> {
        self.seen.then_some(Progress {
            bytes: self.done,
            bytes_total: self.total,
            bytes_per_second: self.per_second,
        })
    }

    fn read(&mut self, text: &str) {
        let lower = text.to_lowercase();
        let Some(size) = size(&lower) else { return };
        if lower.contains("layers needed:") {
            // rpm-ostree may print two such lines, for different kinds of layers.
            self.total = self.total.saturating_add(size);
            self.seen = true;
        } else if lower.contains("fetching ") {
            self.done = self.done.saturating_add(self.current);
            self.current = size;
            self.seen = true;
        }
    }
}

/// Parses the size in the last parentheses of a text, in GLib's format with a no-break space: `(15.1 MB)`.
fn size(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once('(')?;
    let (inside, _) = rest.split_once(')')?;
    let mut words = inside
        .split(|c: char| c.is_whitespace() || c == '\u{a0}')
        .filter(|w| !w.is_empty());
    let number: f64 = words.next()?.parse().ok()?;
    let unit = match words.next()? {
        "byte" | "bytes" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => return None,
    };
    let bytes = number * unit;
    // Ignore negative, infinite and absurdly large values. The cast is safe in this range.
    (bytes.is_finite() && (0.0..1e15).contains(&bytes)).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Signal {
        Signal::Said(text.to_owned())
    }

    #[test]
    fn layers_are_added_up() {
        let mut tally = Tally::default();
        assert_eq!(tally.progress(), None);
        tally.add(&said("ostree chunk layers already present: 60"));
        assert_eq!(tally.progress(), None);
        for text in [
            "ostree chunk layers needed: 2 (30.5\u{a0}MB)",
            "custom layers needed: 1 (500\u{a0}kB)",
            "[0/3] Fetching ostree chunk aabb (20.5\u{a0}MB)...done",
            "[1/3] Fetching ostree chunk ccdd (10.0 MB)",
            "Staging deployment",
            "nonsense (1e400 MB)",
            "fetching nonsense (x MB)",
        ] {
            tally.add(&said(text));
        }
        let progress = tally.progress().unwrap();
        assert_eq!((progress.bytes, progress.bytes_total), (20_500_000, 31_000_000));
    }

    #[test]
    fn sizes_are_read_in_all_units() {
        for (text, bytes) in [
            ("x (1 byte)", Some(1)),
            ("x (12 bytes)", Some(12)),
            ("x (1.5 kb)", Some(1_500)),
            ("x (2 mb)", Some(2_000_000)),
            ("x (1.5\u{a0}gb)", Some(1_500_000_000)),
            ("x (5 tb)", None),
            ("x (-1 mb)", None),
            ("x (1e20 mb)", None),
            ("x (1e400 mb)", None),
            ("x 5 mb", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn reported_bytes_count() {
        let mut tally = Tally::default();
        assert!(tally.add(&Signal::Download {
            bytes: 7,
            per_second: 3
        }));
        assert!(!tally.add(&Signal::Other));
        let expected = Progress {
            bytes: 7,
            bytes_total: 0,
            bytes_per_second: 3,
        };
        assert_eq!(tally.progress(), Some(expected));
    }
}
