//! Fuzzes the parser of image references.

use berth_api::ImageRef;
use berth_api::image_ref::{MAX_LENGTH, allowed};

/// Parses an image reference. Panics if a valid reference is printed differently, cannot be rebuilt from its parts, or
/// looks like a command-line option.
pub fn image_ref(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let reference: ImageRef = match text.parse() {
        Ok(reference) => reference,
        Err(error) => {
            let length = error.to_string().len();
            assert!(length < 2000, "an error of {length} bytes");
            return;
        }
    };
    assert_eq!(reference.to_string(), text);
    assert!(text.len() <= MAX_LENGTH);
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.starts_with('-'));
    assert!(reference.tag().is_some() || reference.digest().is_some());
    if let Some(digest) = reference.digest() {
        let pinned = reference.at(digest);
        assert_eq!(pinned.to_string().parse().as_ref(), Ok(&pinned));
    }
    if let Some(tag) = reference.without_digest() {
        assert_eq!(tag.to_string().parse().as_ref(), Ok(&tag));
    }
    let name = format!("{}/{}", reference.registry(), reference.repository());
    assert!(allowed(&[&name], &reference), "{name} does not allow itself");
    assert!(allowed(&[reference.registry()], &reference));
    assert!(!allowed(&[format!("{name}x")], &reference));
}
