//! The images of a simulated world, shared by all its hosts.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use crate::locked::locked;

/// A registry's data about a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogImage {
    /// Label `org.opencontainers.image.version`.
    pub version: String,
    /// Bytes that a first pull downloads.
    pub size: u64,
    /// OCI architecture, such as `amd64`.
    pub architecture: String,
    /// Label `org.opencontainers.image.created`, RFC 3339.
    pub timestamp: String,
    /// True if the image has a signature that satisfies every policy.
    pub signed: bool,
}

impl CatalogImage {
    /// An amd64 image of 300 MB with this version.
    pub fn new(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            size: 300_000_000,
            architecture: "amd64".to_owned(),
            timestamp: "2026-11-01T00:00:00Z".to_owned(),
            signed: false,
        }
    }
}

/// All existing manifests, by digest. Cheap to clone; all clones share the images.
///
/// Repositories are ignored: an existing digest can be pulled from every repository.
#[derive(Debug, Clone, Default)]
pub struct Catalog(Arc<Mutex<BTreeMap<String, CatalogImage>>>);

impl Catalog {
    /// Adds an image with this digest (`sha256:…`).
    pub fn insert(&self, digest: &str, image: CatalogImage) {
        self.map().insert(digest.to_owned(), image);
    }

    /// Adds an ordinary image with this version; returns its digest, which depends only on the version.
    pub fn publish(&self, version: &str) -> String {
        let digest = digest_of(version);
        self.insert(&digest, CatalogImage::new(version));
        digest
    }

    /// Removes an image, like a registry's garbage collection.
    pub fn remove(&self, digest: &str) {
        self.map().remove(digest);
    }

    /// The image with this digest.
    pub fn get(&self, digest: &str) -> Option<CatalogImage> {
        self.map().get(digest).cloned()
    }

    fn map(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, CatalogImage>> {
        // Poisoned only if another thread panicked; the map itself is valid.
        locked(&self.0)
    }
}

/// A made-up digest for a text: well-formed, stable within a run, and different for different texts.
pub fn digest_of(text: &str) -> String {
    let mut digest = String::from("sha256:");
    for part in 0..4u8 {
        let mut hasher = DefaultHasher::new();
        (part, text).hash(&mut hasher);
        digest.push_str(&format!("{:016x}", hasher.finish()));
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_digests_are_well_formed_and_differ() {
        let (one, two) = (digest_of("1.0.0"), digest_of("2.0.0"));
        assert_eq!(one.len(), 71);
        assert_ne!(one, two);
        assert_eq!(one, digest_of("1.0.0"));
    }

    #[test]
    fn clones_share_their_images() {
        let catalog = Catalog::default();
        let digest = catalog.clone().publish("1.0.0");
        assert_eq!(catalog.get(&digest).unwrap().version, "1.0.0");
        catalog.remove(&digest);
        assert!(catalog.get(&digest).is_none());
    }
}
