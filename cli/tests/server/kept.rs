//! Output of a command that runs in the test's process.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Output that is collected in memory.
#[derive(Clone, Default)]
pub struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Kept {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Waits until the output contains the text.
    pub async fn says(&self, text: &str) {
        for _ in 0..600 {
            if self.text().contains(text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{text:?} is not said:\n{}", self.text());
    }
}
