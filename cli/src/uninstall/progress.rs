//! Progress of a step, on one line.

use std::io::{Result, Write};

use crate::text::cut;

/// Writes the progress of the steps. On a terminal, a step has one line that changes. Elsewhere, each change is a line.
pub(super) struct Progress<'a> {
    out: &'a mut dyn Write,
    /// Width of the terminal; `None` if the output is not a terminal.
    width: Option<usize>,
    /// Number and title of the step, such as `[1/4] pools`.
    title: String,
    last: String,
}

impl<'a> Progress<'a> {
    pub(super) fn new(out: &'a mut dyn Write, width: Option<usize>) -> Self {
        Self {
            out,
            width,
            title: String::new(),
            last: String::new(),
        }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, number: usize, all: usize, title: &str) {
        self.title = format!("[{number}/{all}] {title}");
        self.last.clear();
    }

    /// Shows the state of the step.
    pub(super) fn show(&mut self, text: &str) -> Result<()> {
        if text == self.last {
            return Ok(());
        }
        self.last = text.to_owned();
        let line = format!("{}: {text}", self.title);
        match self.width {
            Some(width) => write!(self.out, "\r\x1b[K{}", cut(&line, width.saturating_sub(1)))?,
            None => writeln!(self.out, "{line}")?,
        }
        self.out.flush()
    }

    /// Shows the result of the step, and ends its line.
    pub(super) fn end(&mut self, text: &str) -> Result<()> {
        self.show(text)?;
        self.break_line()
    }

    /// Ends the line of a terminal, for example before an error.
    pub(super) fn break_line(&mut self) -> Result<()> {
        if self.width.is_some() && !self.last.is_empty() {
            self.last.clear();
            writeln!(self.out)?;
        }
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(width: Option<usize>) -> String {
        let mut out = vec![];
        let mut progress = Progress::new(&mut out, width);
        progress.begin(1, 2, "pools");
        for text in ["2 nodes", "2 nodes", "1 node"] {
            progress.show(text).unwrap();
        }
        progress.end("done").unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_step_is_one_line_on_a_terminal() {
        let text = written(Some(80));
        assert_eq!(text.matches('\n').count(), 1, "{text:?}");
        assert!(text.ends_with("[1/2] pools: done\n"), "{text:?}");
    }

    #[test]
    fn each_change_is_a_line_in_a_file() {
        let text = written(None);
        assert_eq!(text, "[1/2] pools: 2 nodes\n[1/2] pools: 1 node\n[1/2] pools: done\n");
    }
}
