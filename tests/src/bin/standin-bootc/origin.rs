//! Image references, and the origin files of ostree deployments.

use anyhow::{Context, Result};
use berth_tests::bootc::document::ImageReference;

/// Key in an origin file with the image reference of the deployment.
const KEY: &str = "container-image-reference=";
/// Schemes of references in an origin.
const SIGNED: &str = "ostree-image-signed:docker://";
const UNVERIFIED: &str = "ostree-unverified-registry:";
/// Origin groups that only rpm-ostree writes: bootc does not update such a deployment.
const FOREIGN: [&str; 4] = ["[rpmostree]", "[packages]", "[overrides]", "[modules]"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The image, if the deployment is from a container image.
    pub(crate) image: Option<ImageReference>,
    /// True if rpm-ostree changed the deployment locally.
    pub(crate) incompatible: bool,
}

impl Origin {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let incompatible = text.lines().any(|line| FOREIGN.contains(&line.trim()));
        let image = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(KEY))
            .map(parse_reference)
            .transpose()?;
        Ok(Self { image, incompatible })
    }
}

pub(crate) fn text(image: &ImageReference) -> String {
    let scheme = if image.signature.is_some() { SIGNED } else { UNVERIFIED };
    format!("[origin]\n{KEY}{scheme}{}\n", image.image)
}

fn parse_reference(text: &str) -> Result<ImageReference> {
    let text = text.trim();
    if let Some(image) = text.strip_prefix(SIGNED) {
        return Ok(ImageReference::registry(image, true));
    }
    let image = text.strip_prefix(UNVERIFIED);
    let image =
        image.with_context(|| format!("Parsing image reference {text}: Invalid ostree image reference scheme"))?;
    Ok(ImageReference::registry(image, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_come_back_as_they_were_written() {
        for signed in [false, true] {
            let image = ImageReference::registry("q.io/a/os@sha256:11", signed);
            let origin = Origin::parse(&text(&image)).unwrap();
            assert_eq!(origin.image, Some(image));
            assert!(!origin.incompatible);
        }
    }

    #[test]
    fn the_plain_form_is_the_one_bootc_writes() {
        assert_eq!(
            text(&ImageReference::registry("q.io/a/os@sha256:11", false)),
            "[origin]\ncontainer-image-reference=ostree-unverified-registry:q.io/a/os@sha256:11\n"
        );
    }

    #[test]
    fn layering_is_seen() {
        let origin = Origin::parse("[origin]\nrefspec=x:y\n\n[packages]\nrequested=vim;\n").unwrap();
        assert!(origin.incompatible);
        assert_eq!(origin.image, None);
    }
}
