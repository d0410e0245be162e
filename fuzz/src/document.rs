//! Fuzzes the parsers of manifests, indexes and image configurations.

use berth_api::Digest;
use berth_api::pool::PlatformDigest;
use berth_core::registries::document::{Document, config, manifest};

/// Parses the input as a manifest and as an image configuration. Panics if a parsed field does not fit into a pool's
/// status.
pub fn document(data: &[u8]) {
    let image = Digest::from([7; 32]);
    if let Ok(document) = manifest(data) {
        let version = match document {
            Document::Index { platforms, version } => {
                assert!((1..=32).contains(&platforms.len()));
                platforms.iter().for_each(fits);
                let mut all: Vec<_> = platforms.iter().map(|p| (&p.architecture, &p.variant)).collect();
                all.sort();
                all.dedup();
                assert_eq!(all.len(), platforms.len(), "a platform has two images");
                version
            }
            Document::Image { version, .. } => version,
        };
        fits_in_a_line(version.as_deref(), 256);
    }
    if let Ok(config) = config(data, &image) {
        assert_eq!(config.platform.digest, image);
        fits(&config.platform);
        fits_in_a_line(config.version.as_deref(), 256);
        let metadata = config.metadata;
        fits_in_a_line(metadata.revision.as_deref(), 128);
        fits_in_a_line(metadata.source.as_deref(), 256);
        if let Some(limit) = &metadata.boot_image {
            fits_in_a_line(limit.minimum_version.as_deref(), 128);
            fits_in_a_line(limit.error.as_deref(), 256);
            assert!(limit.max_major_skew.is_none_or(|most| most <= 1000));
        }
        if let Some(created) = metadata.created {
            let text = serde_json::to_value(&created).ok();
            let again = text.and_then(|text| serde_json::from_value(text).ok());
            assert_eq!(again.as_ref(), Some(&created), "the API server would reject the time");
        }
    }
}

fn fits(platform: &PlatformDigest) {
    assert!((1..=32).contains(&platform.architecture.len()));
    let variant = platform.variant.as_ref().map(|variant| variant.chars().count());
    assert!(variant.is_none_or(|length| (1..=32).contains(&length)));
}

fn fits_in_a_line(text: Option<&str>, most: usize) {
    if let Some(text) = text {
        assert!((1..=most).contains(&text.chars().count()));
        assert!(!text.contains(['\n', '\r']), "{text:?} has several lines");
    }
}
