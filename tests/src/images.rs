//! Reproducible OCI images: the same input gives the same bytes, and so the same digests.
//!
//! Built without external tools: a test decides the content of an image and knows its digest before the push.

mod image;
mod layer;
mod push;

pub use image::{INDEX, Image, ImageSpec, Index, MANIFEST, VERSION_LABEL, digest};
pub use layer::{Compression, Entry, Layer};
pub use push::{Manifest, RegistryClient};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_repeat() {
        let one = Index::tiny_os("1", b"bytes").unwrap();
        let other = Index::tiny_os("1", b"bytes").unwrap();
        assert_eq!(one.digest, other.digest);
        assert_ne!(one.digest, Index::tiny_os("1", b"other bytes").unwrap().digest);
        assert_ne!(one.images[0].digest, one.images[1].digest);
    }

    #[test]
    fn a_compressed_layer_has_two_digests() {
        let entry = [Entry::file("a/b".to_owned(), vec![7; 10_000])];
        let plain = Layer::from_entries(&entry, Compression::None).unwrap();
        let packed = Layer::from_entries(&entry, Compression::Gzip).unwrap();
        assert_eq!(plain.digest, plain.diff_id);
        assert_eq!(plain.diff_id, packed.diff_id);
        assert_ne!(packed.digest, packed.diff_id);
        assert!(packed.size < plain.size);
    }

    #[test]
    fn a_layer_from_a_tar_file_is_the_same_layer() {
        let entry = [Entry::file("a/b".to_owned(), vec![7; 10_000])];
        let memory = Layer::from_entries(&entry, Compression::None).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), layer::tar_of(&entry).unwrap()).unwrap();
        let plain = Layer::from_tar(file.path(), Compression::None).unwrap();
        assert_eq!((memory.digest, memory.size), (plain.digest, plain.size));
        let packed = Layer::from_tar(file.path(), Compression::Gzip).unwrap();
        let expected = Layer::from_entries(&entry, Compression::Gzip).unwrap();
        assert_eq!(packed.digest, expected.digest);
    }
}
