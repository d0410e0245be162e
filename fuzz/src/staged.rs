//! Fuzzes the parser of ostree's state file for the staged deployment.

use berth_core::agent::staged::is_locked;

/// Reads the lock from a state file. Panics if the parser finds a lock in a file without the key `locked` or without
/// the type code of a boolean.
pub fn staged(data: &[u8]) {
    let parts: [&[u8]; 2] = [b"locked\0", b"\x01\0b"];
    let mut has = parts
        .map(|part| data.windows(part.len()).any(|window| window == part))
        .into_iter();
    if is_locked(data) == Ok(true) {
        assert!(has.all(|is_there| is_there), "a lock that the state file does not have");
    }
}
