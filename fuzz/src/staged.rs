//! ostree's state of the staged deployment.

use berth_core::agent::staged::is_locked;

/// Looks for the lock in a state: only a state that has the key and the type of a boolean is locked.
pub fn staged(data: &[u8]) {
    let has = |part: &[u8]| data.windows(part.len()).any(|window| window == part);
    if is_locked(data) == Ok(true) {
        assert!(
            has(b"locked\0") && has(b"\x01\0b"),
            "a lock that the state does not have"
        );
    }
}
