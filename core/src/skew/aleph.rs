//! Reads the installer's file about the image that a machine was installed from. Parsing only: any content is accepted.
//!
//! `bootc install` writes `.bootc-aleph.json`. CoreOS images have `.coreos-aleph-version.json`, newer osbuild images
//! `.aleph-version.json` with a link from the former name. The keys differ by format and version, and any value may be null.

use berth_api::Digest;
use berth_api::boot_image::NodeBootImage;
use berth_api::condition::one_line;
use serde_json::Value;

/// Paths of these files on the host. The first existing file is used.
pub const PLACES: [&str; 3] = [
    "/sysroot/.bootc-aleph.json",
    "/sysroot/.coreos-aleph-version.json",
    "/sysroot/.aleph-version.json",
];
/// Longest file that is read, in bytes. It may contain all labels of an image.
pub const MAX_LENGTH: usize = 512 * 1024;

/// Label with an image's version.
const VERSION_LABEL: &str = "org.opencontainers.image.version";
const MAX_VERSION: usize = 128;
const MAX_IMAGE: usize = 512;
const MAX_ERROR: usize = 256;

/// Parses the content of the file `source`.
pub fn read(source: &str, note: Result<&[u8], String>) -> NodeBootImage {
    let empty = NodeBootImage {
        source: source.to_owned(),
        ..NodeBootImage::default()
    };
    match note.and_then(parse) {
        Ok(parsed) => NodeBootImage {
            source: source.to_owned(),
            ..parsed
        },
        Err(error) => NodeBootImage {
            error: Some(shortened(&error, MAX_ERROR)),
            ..empty
        },
    }
}

fn parse(note: &[u8]) -> Result<NodeBootImage, String> {
    if note.len() > MAX_LENGTH {
        return Err(format!("it is longer than {MAX_LENGTH} bytes"));
    }
    let note: Value = serde_json::from_slice(note).map_err(|error| format!("it is not JSON: {error}"))?;
    if !note.is_object() {
        return Err("it is not a JSON object".to_owned());
    }
    let text = |pointer: &str, most| {
        let text = note.pointer(pointer)?.as_str()?;
        let text = shortened(text, most);
        (!text.is_empty()).then_some(text)
    };
    let label = |labels: &str| {
        let text = note.pointer(labels)?.get(VERSION_LABEL)?.as_str()?;
        let text = shortened(text, MAX_VERSION);
        (!text.is_empty()).then_some(text)
    };
    // The oldest CoreOS files call it `build`.
    let version = text("/version", MAX_VERSION)
        .or_else(|| text("/build", MAX_VERSION))
        .or_else(|| label("/labels"))
        .or_else(|| label("/container-image/image-labels"));
    let image = ["/target-image", "/image", "/container-image/image-name", "/ref"]
        .into_iter()
        .find_map(|pointer| text(pointer, MAX_IMAGE));
    Ok(NodeBootImage {
        version,
        image,
        // `container-image.image-digest` is the digest of the configuration, which no registry can look up.
        digest: text("/digest", MAX_IMAGE).and_then(|digest| digest.parse::<Digest>().ok()),
        ..NodeBootImage::default()
    })
}

fn shortened(text: &str, most: usize) -> String {
    one_line(text).chars().take(most).collect()
}

#[cfg(test)]
mod tests;
