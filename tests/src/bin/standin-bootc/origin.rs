//! Image references, and the origin files of ostree deployments.

use anyhow::{Context, Result, bail};
use berth_tests::bootc::document::ImageReference;

/// Key in an origin file with the image reference of the deployment.
const KEY: &str = "container-image-reference=";
/// Origin groups that only rpm-ostree writes: bootc does not update such a deployment.
const FOREIGN: [&str; 4] = ["[rpmostree]", "[packages]", "[overrides]", "[modules]"];

/// Content of an origin file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The image, if the deployment is from a container image.
    pub(crate) image: Option<ImageReference>,
    /// True if rpm-ostree changed the deployment locally.
    pub(crate) incompatible: bool,
}

impl Origin {
    /// Parses an origin file.
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

/// Text of an origin file for an image.
pub(crate) fn text(image: &ImageReference) -> String {
    let name = match image.transport.as_str() {
        "registry" => image.image.clone(),
        transport => format!("{transport}:{}", image.image),
    };
    let kind = match image.signature.as_deref() {
        Some(_) if image.transport == "registry" => format!("ostree-image-signed:docker://{name}"),
        Some(_) => format!("ostree-image-signed:{name}"),
        None if image.transport == "registry" => format!("ostree-unverified-registry:{name}"),
        None => format!("ostree-unverified-image:{name}"),
    };
    format!("[origin]\n{KEY}{kind}\n")
}

fn parse_reference(text: &str) -> Result<ImageReference> {
    let (kind, rest) = text
        .trim()
        .split_once(':')
        .with_context(|| format!("Parsing image reference {text}"))?;
    let signature = match kind {
        "ostree-unverified-registry" => return Ok(ImageReference::registry(rest, false)),
        "ostree-unverified-image" => None,
        "ostree-image-signed" => Some("containerPolicy".to_owned()),
        _ => bail!("Parsing image reference {text}: Invalid ostree image reference scheme {kind}"),
    };
    let (transport, image) = match rest.strip_prefix("docker://") {
        Some(image) => ("registry", image),
        None => rest
            .split_once(':')
            .with_context(|| format!("Parsing image reference {text}"))?,
    };
    Ok(ImageReference {
        image: image.to_owned(),
        signature,
        transport: transport.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_come_back_as_they_were_written() {
        let mut image = ImageReference::registry("q.io/a/os@sha256:11", false);
        for signature in [None, Some("containerPolicy".to_owned())] {
            for transport in ["registry", "oci"] {
                image.signature = signature.clone();
                image.transport = transport.to_owned();
                let origin = Origin::parse(&text(&image)).unwrap();
                assert_eq!(origin.image.as_ref(), Some(&image));
                assert!(!origin.incompatible);
            }
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
