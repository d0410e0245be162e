//! Reservation of free TCP ports.

use std::fs::File;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result, bail};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A port reserved among test processes while this value lives.
///
/// The port is outside of the kernel's range for outgoing connections. Any client could take a port in this range while
/// a test has stopped the server. A client that retries could even connect to itself.
#[derive(Debug)]
pub struct Port {
    number: u16,
    // The lock on this file is the reservation. Closing the file releases it.
    _lock: File,
}

impl Port {
    /// Reserves a port without a listener.
    pub fn reserve() -> Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        // Each user has a directory, because files of another user cannot be opened. `bind` detects ports of another
        // user's run.
        let directory = std::env::temp_dir().join(format!("berth-ports-{}", nix::unistd::getuid()));
        std::fs::create_dir_all(&directory).with_context(|| format!("making {}", directory.display()))?;
        // Processes that start together begin at distant ports.
        let offset = u16::try_from(std::process::id() % 1200)? * 10;
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = FIRST + offset.wrapping_add(step) % COUNT;
            let lock = File::create(directory.join(number.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind(("0.0.0.0", number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        bail!("no free port between {FIRST} and {}", FIRST + COUNT)
    }

    /// Returns the port number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_reservations_differ() {
        let (one, other) = (Port::reserve().unwrap(), Port::reserve().unwrap());
        assert_ne!(one.number(), other.number());
    }
}
