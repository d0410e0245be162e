//! Fuzzes the parser of `registries.conf`.

use berth_core::registries::conf::{RegistriesConf, SourceError};

use crate::input::reference_and_file;

/// Parses a `registries.conf` and looks up an image. Panics if the image has no source, or if a source has another
/// digest or tag. Also panics if the image is blocked although the file does not contain `blocked`.
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
