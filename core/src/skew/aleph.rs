//! Reads the file that an installer writes to record the image that it installed. Any content is accepted; errors
//! become part of the result.
//!
//! `bootc install` writes `.bootc-aleph.json`. CoreOS images have `.coreos-aleph-version.json`. Newer osbuild images
//! have `.aleph-version.json`, and a link to it with the CoreOS name. The keys differ by format and version, and any
//! value may be null.

use berth_api::Digest;
use berth_api::boot_image::NodeBootImage;
use berth_api::foreign::bounded;
use serde_json::Value;

/// Paths on the host where the installer's file may be. The first existing file is used.
pub const PLACES: [&str; 3] = [
    "/sysroot/.bootc-aleph.json",
    "/sysroot/.coreos-aleph-version.json",
    "/sysroot/.aleph-version.json",
];
/// Longest file that is read, in bytes. The file may contain all labels of an image.
pub const MAX_LENGTH: usize = 512 * 1024;

const VERSION_LABEL: &str = "org.opencontainers.image.version";
const MAX_VERSION: usize = 128;
const MAX_IMAGE: usize = 512;
const MAX_ERROR: usize = 256;

/// Parses the installer's file. `note` is its content, or the error if it could not be read. `source` is its path.
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
        return Err(format!("the record is longer than {MAX_LENGTH} bytes"));
    }
    let note: Value = serde_json::from_slice(note).map_err(|error| format!("the record is not JSON: {error}"))?;
    if !note.is_object() {
        return Err("the record is not a JSON object".to_owned());
    }
    let labels = note.get("labels");
    let image_labels = note.pointer("/container-image/image-labels");
    let versions = [
        note.get("version"),
        // The oldest CoreOS files call the version `build`.
        note.get("build"),
        labels.and_then(|labels| labels.get(VERSION_LABEL)),
        image_labels.and_then(|labels| labels.get(VERSION_LABEL)),
    ];
    let version = versions.into_iter().find_map(|version| text(version, MAX_VERSION));
    let image = ["/target-image", "/image", "/container-image/image-name", "/ref"]
        .into_iter()
        .find_map(|pointer| text(note.pointer(pointer), MAX_IMAGE));
    let digest = text(note.get("digest"), MAX_IMAGE);
    Ok(NodeBootImage {
        version,
        image,
        // Do not use `container-image.image-digest`: it is the digest of the image's configuration, and registries have
        // no manifest with that digest.
        digest: digest.and_then(|digest| digest.parse::<Digest>().ok()),
        ..NodeBootImage::default()
    })
}

/// Returns a JSON string as one line of at most `most` characters; `None` if the value is missing, empty or not a
/// string.
fn text(value: Option<&Value>, most: usize) -> Option<String> {
    let text = shortened(value?.as_str()?, most);
    (!text.is_empty()).then_some(text)
}

fn shortened(text: &str, most: usize) -> String {
    bounded(text, most)
}

#[cfg(test)]
mod tests;
