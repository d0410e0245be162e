//! The harness that every Berth test stands on: a real control plane, a real registry, and real or simulated hosts.

pub mod audit;
pub mod bench;
pub mod cluster;
pub mod controlplane;
pub mod hosts;
pub mod images;
pub mod ports;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod registry;
pub mod scratch;
pub mod soak;
pub mod tools;
pub mod truth;

/// Chooses the process's TLS implementation. Call it before making any client; more than once is fine.
///
/// Two rustls providers in one program panic at first use, so the choice is explicit.
pub fn install_crypto() {
    // An error says that a provider is installed already, which is what we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
