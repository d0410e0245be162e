//! Image references, with the prefix for the image's verification.

use serde::{Deserialize, Serialize};

/// An image reference from a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// The complete reference, as in the origin.
    pub refspec: String,
    /// Image in its registry, with the digest if known: `quay.io/os@sha256:…`.
    pub image: String,
    /// Manifest digest, if the reference has one.
    pub digest: Option<String>,
    /// True if the host's signature policy must accept it.
    pub signed: bool,
}

/// Prefixes of images in registries, and whether each requires a signature.
const PREFIXES: &[(&str, bool)] = &[
    ("ostree-unverified-registry:", false),
    ("ostree-unverified-image:docker://", false),
    ("ostree-unverified-image:registry:", false),
    ("ostree-image-signed:docker://", true),
    ("ostree-image-signed:registry:", true),
];

impl Reference {
    /// Parses a reference. A digest in `revision` replaces the reference's own.
    pub fn parse(refspec: &str, revision: Option<&str>) -> Result<Self, String> {
        let known = PREFIXES
            .iter()
            .find_map(|(prefix, signed)| Some((refspec.strip_prefix(prefix)?, *signed)));
        let Some((image, signed)) = known.filter(|(image, _)| image.contains('/')) else {
            return Err(format!("Invalid refspec {refspec}"));
        };
        let (name, own) = match image.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (image, None),
        };
        let digest = revision.or(own).map(str::to_owned);
        if let Some(wrong) = digest.as_ref().filter(|d| !is_digest(d)) {
            return Err(format!("Invalid checksum {wrong}"));
        }
        let image = match &digest {
            Some(digest) => format!("{}@{digest}", without_tag(name)),
            None => image.to_owned(),
        };
        Ok(Self {
            refspec: refspec.to_owned(),
            image,
            digest,
            signed,
        })
    }

    /// Returns the same image with another digest, as for `deploy`.
    pub fn at(&self, revision: &str) -> Result<Self, String> {
        let refspec = self.refspec.split('@').next().unwrap_or_default();
        let mut other = Self::parse(refspec, Some(revision))?;
        other.refspec = format!("{refspec}@{revision}");
        Ok(other)
    }

    /// Reference of an image that bootc staged.
    pub fn of_image(image: &str, signed: bool) -> String {
        let prefix = if signed {
            "ostree-image-signed:docker://"
        } else {
            "ostree-unverified-registry:"
        };
        format!("{prefix}{image}")
    }
}

fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Removes the tag from an image name, but keeps a port.
fn without_tag(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(digit: char) -> String {
        format!("sha256:{}", String::from(digit).repeat(64))
    }

    #[test]
    fn prefixes_say_how_an_image_is_verified() {
        let d = digest('1');
        let image = format!("r.test:5000/os@{d}");
        for (refspec, signed) in [
            (format!("ostree-unverified-registry:{image}"), false),
            (format!("ostree-unverified-image:docker://{image}"), false),
            (format!("ostree-image-signed:docker://{image}"), true),
            (format!("ostree-image-signed:registry:{image}"), true),
        ] {
            let read = Reference::parse(&refspec, None).unwrap();
            assert_eq!((read.image.as_str(), read.signed), (image.as_str(), signed));
            assert_eq!(read.digest.as_ref(), Some(&d));
            assert_eq!(read.refspec, refspec);
        }
        for wrong in [
            "fedora:fedora/x86_64/coreos",
            "ostree-unverified-registry:",
            "r.test/os",
        ] {
            assert!(Reference::parse(wrong, None).is_err(), "{wrong}");
        }
        assert!(Reference::parse("ostree-unverified-registry:r.test/os@sha256:12", None).is_err());
    }

    #[test]
    fn a_revision_replaces_the_tag() {
        let d = digest('2');
        let read = Reference::parse("ostree-unverified-registry:r.test:5000/os:stable", Some(&d)).unwrap();
        assert_eq!(read.image, format!("r.test:5000/os@{d}"));
        assert_eq!(read.refspec, "ostree-unverified-registry:r.test:5000/os:stable");
        let other = digest('3');
        let pinned = Reference::parse(&format!("ostree-unverified-registry:r.test/os@{d}"), None).unwrap();
        assert_eq!(pinned.at(&other).unwrap().image, format!("r.test/os@{other}"));
    }
}
