//! References of images, with the prefix that says how an image is verified.

use serde::{Deserialize, Serialize};

/// An image as a client names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reference {
    /// All of it, as it stands in the origin.
    pub refspec: String,
    /// The image in its registry, with the digest where one is known: `quay.io/os@sha256:…`.
    pub image: String,
    /// The manifest digest, where one is named.
    pub digest: Option<String>,
    /// The signature policy of the host must accept it.
    pub signed: bool,
}

/// The prefixes that lead to a registry, and whether each asks for a signature.
const PREFIXES: &[(&str, bool)] = &[
    ("ostree-unverified-registry:", false),
    ("ostree-unverified-image:docker://", false),
    ("ostree-unverified-image:registry:", false),
    ("ostree-image-signed:docker://", true),
    ("ostree-image-signed:registry:", true),
];

impl Reference {
    /// Reads a reference. A revision is a digest that counts instead of the one in the reference.
    ///
    /// # Errors
    /// The words of the daemon about a reference that it cannot use.
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

    /// The same image under another digest, as `deploy` asks for it.
    ///
    /// # Errors
    /// The words of the daemon about a revision that is no digest.
    pub fn at(&self, revision: &str) -> Result<Self, String> {
        let refspec = self.refspec.split('@').next().unwrap_or_default();
        let mut other = Self::parse(refspec, Some(revision))?;
        other.refspec = format!("{refspec}@{revision}");
        Ok(other)
    }

    /// The reference for an image that bootc staged.
    pub fn of_image(image: &str, signed: bool) -> String {
        match signed {
            true => format!("ostree-image-signed:docker://{image}"),
            false => format!("ostree-unverified-registry:{image}"),
        }
    }
}

fn is_digest(text: &str) -> bool {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

/// An image's name without its tag; a port is none.
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
    fn a_revision_counts_instead_of_the_tag() {
        let d = digest('2');
        let read = Reference::parse("ostree-unverified-registry:r.test:5000/os:stable", Some(&d)).unwrap();
        assert_eq!(read.image, format!("r.test:5000/os@{d}"));
        assert_eq!(read.refspec, "ostree-unverified-registry:r.test:5000/os:stable");
        let other = digest('3');
        let pinned = Reference::parse(&format!("ostree-unverified-registry:r.test/os@{d}"), None).unwrap();
        assert_eq!(pinned.at(&other).unwrap().image, format!("r.test/os@{other}"));
    }
}
