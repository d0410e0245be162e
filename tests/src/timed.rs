//! Time that a scenario took, for the table at the end of `make test`.

use std::time::Instant;

/// Prints a line `time NAME SECONDS` on standard error when dropped.
///
/// NAME is that of the thread, which the test runner names after the test. Elsewhere nothing is printed. The test runner
/// captures the line, and `--show-output` prints it on a line of its own. Past the capture it would land behind `test NAME ...`,
/// which a runner of one test at a time prints first, and hide how the test ended.
#[derive(Debug)]
pub(crate) struct Timed {
    test: Option<String>,
    begin: Instant,
}

impl Timed {
    /// Begins to measure.
    pub(crate) fn begin() -> Self {
        let thread = std::thread::current();
        let test = thread.name().filter(|name| name.contains("::"));
        Self {
            test: test.map(str::to_owned),
            begin: Instant::now(),
        }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        if let Some(test) = &self.test {
            eprintln!("time {test} {:.1}", self.begin.elapsed().as_secs_f64());
        }
    }
}
