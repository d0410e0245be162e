//! ostree's state file of the staged deployment.

use berth_core::agent::staged::is_locked;

/// Reads the lock from a state file. A locked state contains the key and the type code of a boolean.
pub fn staged(data: &[u8]) {
    let has = |part: &[u8]| data.windows(part.len()).any(|window| window == part);
    if is_locked(data) == Ok(true) {
        assert!(
            has(b"locked\0") && has(b"\x01\0b"),
            "a lock that the state file does not have"
        );
    }
}
