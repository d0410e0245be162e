//! The parts that every Berth program with I/O has in common: the client of the API server, deadlines, retries, logs, hashes; and
//! with the feature `pages` the server of metrics and probes.

mod hash;

pub mod client;
pub mod listen;
pub mod log;
#[cfg(feature = "pages")]
pub mod pages;
mod proxy;
pub mod request;
pub mod retry;

pub use hash::sha256;

/// Chooses the implementation of TLS for this process. Call it before the first client is made; more than once is fine.
///
/// A program in which two implementations are compiled panics at first use unless one of them was chosen.
pub fn install_crypto() {
    // An error says that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
