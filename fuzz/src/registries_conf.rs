//! Mirror configuration.

use berth_core::registries::conf::{RegistriesConf, SourceError};

use crate::input::reference_and_file;

/// Reads a `registries.conf` and looks up an image: there is at least one source, each source keeps digest and tag, and only
/// a file that contains `blocked` blocks an image.
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
                let found = &source.reference;
                assert_eq!((found.tag(), found.digest()), (image.tag(), image.digest()), "{found}");
                assert!(!source.insecure || text.contains("insecure"));
            }
        }
        Err(SourceError::Blocked(_)) => assert!(text.contains("blocked")),
        Err(SourceError::NoReference(_)) => assert!(text.contains("location")),
    }
}
