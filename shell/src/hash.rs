//! Hashes of bytes.

use ring::digest::{SHA256, digest};

/// Returns the SHA-256 hash of the bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    for (to, from) in hash.iter_mut().zip(digest(&SHA256, bytes).as_ref()) {
        *to = *from;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_known_one() {
        let text: String = sha256(b"test").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08");
    }
}
