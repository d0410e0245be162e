//! Reads ostree's lock from `/run/ostree/staged-deployment`, ostree's description of the staged deployment. libostree
//! writes it as a GVariant of type `a{sv}` and locks finalization with its boolean key `locked`. This module reads just
//! enough of the format to find that key. Bytes that do not follow the format are an error: the lock is then unknown.
//!
//! In this format, an array and an entry of a dictionary end with a table of offsets, which point to the ends of their
//! parts. The width of an offset depends on the length of the array or entry.

/// Maximum length in bytes of a file that is read. A long file consists mostly of kernel arguments.
pub const MAX_LENGTH: usize = 1 << 20;

const LOCKED: &[u8] = b"locked\0";
/// Alignment in bytes of dictionary entries, and of the values in them.
const ALIGNMENT: usize = 8;

/// Why the bytes are not a valid description of a staged deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The file is longer than [`MAX_LENGTH`] bytes.
    #[error("the file is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// The file is not a dictionary.
    #[error("the file is not a GVariant of type a{{sv}}")]
    Format,
    /// The value of the key `locked` is not a boolean.
    #[error("the key \"locked\" is not a boolean")]
    LockType,
}

/// True if the file has the key `locked` with the value true, so that finalization is locked. Fails if the bytes are
/// invalid, since the lock is then unknown.
pub fn is_locked(state: &[u8]) -> Result<bool, Malformed> {
    if state.is_empty() {
        return Err(Malformed::Empty);
    }
    if state.len() > MAX_LENGTH {
        return Err(Malformed::TooLong);
    }
    let mut is_locked = false;
    for entry in entries(state)? {
        let (key, value) = key_and_value(entry)?;
        if key == LOCKED {
            is_locked |= boolean(value)?;
        }
    }
    Ok(is_locked)
}

/// Splits a dictionary, which must not be empty, into its entries.
fn entries(dictionary: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    let width = offset_width(dictionary.len());
    // The last offset is the end of the last entry. The table of offsets begins there.
    let last = dictionary.len().checked_sub(width).ok_or(Malformed::Format)?;
    let end = offset(dictionary, last, width)?;
    let table = dictionary.len().checked_sub(end).ok_or(Malformed::Format)?;
    if table == 0 || table % width != 0 {
        return Err(Malformed::Format);
    }
    let mut found = vec![];
    let mut previous = 0;
    for index in 0..table / width {
        let entry_end = offset(dictionary, end + index * width, width)?;
        let entry = dictionary.get(aligned(previous)..entry_end.min(end));
        found.push(entry.ok_or(Malformed::Format)?);
        previous = entry_end;
    }
    Ok(found)
}

/// Splits an entry into its key, including the zero byte at its end, and its value.
fn key_and_value(entry: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let width = offset_width(entry.len());
    let end = entry.len().checked_sub(width).ok_or(Malformed::Format)?;
    let key_end = offset(entry, end, width)?;
    let key = entry.get(..key_end).ok_or(Malformed::Format)?;
    let value = entry.get(aligned(key_end)..end).ok_or(Malformed::Format)?;
    match key.iter().position(|byte| *byte == 0) {
        Some(zero) if zero + 1 == key.len() => Ok((key, value)),
        _ => Err(Malformed::Format),
    }
}

/// Reads a value that must be a boolean. Its bytes are the value, a zero byte, and `b`, the name of the type.
fn boolean(value: &[u8]) -> Result<bool, Malformed> {
    match value {
        [0, 0, b'b'] => Ok(false),
        [1, 0, b'b'] => Ok(true),
        _ => Err(Malformed::LockType),
    }
}

/// Returns the width in bytes of the offsets in an array or entry of this length, which is at most [`MAX_LENGTH`].
fn offset_width(length: usize) -> usize {
    match length {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        _ => 4,
    }
}

/// Reads the offset that begins at the byte `at`. Offsets are little-endian on every host.
fn offset(bytes: &[u8], at: usize, width: usize) -> Result<usize, Malformed> {
    let end = at.checked_add(width).ok_or(Malformed::Format)?;
    let bytes = bytes.get(at..end).ok_or(Malformed::Format)?;
    Ok(bytes
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | usize::from(*byte)))
}

fn aligned(at: usize) -> usize {
    at.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the description of a staged deployment in a file that GLib 2.74 wrote. The keys are the same as in
    /// libostree's `ostree_sysroot_stage_tree_with_options`.
    macro_rules! state {
        ($name:literal) => {
            include_bytes!(concat!("../../../fuzz/seeds/staged/", $name))
        };
    }

    #[test]
    fn the_lock_is_found_in_a_state_of_glib() {
        for (name, state, expected) in [
            ("staged locked", state!("locked.bin") as &[u8], Ok(true)),
            (
                "unlocked, with the key first or later",
                state!("unlocked.bin"),
                Ok(false),
            ),
            ("staged without a lock", state!("no-key.bin"), Ok(false)),
            ("entries and offsets of two bytes", state!("long.bin"), Ok(true)),
            ("one key alone", state!("small.bin"), Ok(true)),
            ("another type", state!("key-is-text.bin"), Err(Malformed::LockType)),
            ("no bytes", state!("empty.bin"), Err(Malformed::Empty)),
            ("no dictionary", b"staged", Err(Malformed::Format)),
            (
                "a number that is not a boolean",
                b"locked\0\0\x02\0b\x07\x0c",
                Err(Malformed::LockType),
            ),
            (
                "a key without an end",
                b"lockedx\0\x01\0b\x07\x0c",
                Err(Malformed::Format),
            ),
            (
                "a key with two ends",
                b"lock\0d\0\0\x01\0b\x07\x0c",
                Err(Malformed::Format),
            ),
            (
                "an entry beyond the end",
                b"locked\0\0\x01\0b\x07\x0d",
                Err(Malformed::Format),
            ),
        ] {
            assert_eq!(is_locked(state), expected, "{name}");
        }
        assert_eq!(is_locked(&vec![0; MAX_LENGTH + 1]), Err(Malformed::TooLong));
        assert_eq!(is_locked(&vec![0; MAX_LENGTH]), Err(Malformed::Format));
    }

    #[test]
    fn a_truncated_state_is_an_error() {
        for state in [
            state!("locked.bin") as &[u8],
            state!("unlocked.bin"),
            state!("long.bin"),
        ] {
            for length in 0..state.len() {
                assert!(
                    is_locked(&state[..length]).is_err(),
                    "{length} of {} bytes",
                    state.len()
                );
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer(state in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = is_locked(&state);
        }
    }
}
