//! Files of mirrors.

use berth_core::registries::conf::{RegistriesConf, SourceError};

use crate::reference_and_file;

/// Reads a `registries.conf` and asks it about an image: there is always a place to ask, each keeps the digest and the tag, and
/// an image is blocked only by a file that says so.
pub fn registries_conf(data: &[u8]) {
    let Some((image, file)) = reference_and_file(data) else {
        return;
    };
    let Ok(text) = std::str::from_utf8(file) else { return };
    let Ok(conf) = RegistriesConf::parse(text) else { return };
    match conf.sources(&image) {
        Ok(sources) => {
            assert!(!sources.is_empty());
            for source in sources {
                let parts = |image: &berth_api::ImageRef| (image.tag().map(str::to_owned), image.digest().cloned());
                assert_eq!(parts(&source.reference), parts(&image), "{}", source.reference);
                assert!(!source.insecure || text.contains("insecure"));
            }
        }
        Err(SourceError::Blocked(_)) => assert!(text.contains("blocked")),
        Err(SourceError::NoReference(_)) => assert!(text.contains("location")),
    }
}
