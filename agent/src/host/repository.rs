//! The images in the host's ostree repository.
//!
//! bootc and rpm-ostree give each image that they pull a ref. They stage an image whose ref is there without asking the registry,
//! or the signature policy, about it.

use berth_api::Digest;

use super::HostError;
use super::tools::Tools;

const OSTREE: &str = "/usr/bin/ostree";
const REPOSITORY: &str = "--repo=/sysroot/ostree/repo";
/// Prefix of the refs of images.
const IMAGES: &str = "ostree/container/image";

/// Removes the refs of an image, so that its next pull is checked against the signature policy. Its layers stay, so that they are
/// not downloaded again. Deployments stay as well: ostree keeps their commits by refs of its own.
///
/// # Errors
/// When a ref may still be there.
pub(super) async fn forget_image(tools: &Tools, digest: &Digest) -> Result<(), HostError> {
    let list = tools
        .run("list-images", &[OSTREE, "refs", REPOSITORY, "--list", IMAGES])
        .await?;
    for name in refs_of(&list, digest) {
        tools
            .run("forget-image", &[OSTREE, "refs", REPOSITORY, "--delete", name])
            .await?;
        tracing::info!(name, "the image is pulled again, so that its signature is checked");
    }
    Ok(())
}

/// The refs of images by this digest, whatever their repository is.
fn refs_of<'a>(list: &'a str, digest: &Digest) -> Vec<&'a str> {
    // In refs, characters other than letters, digits and hyphens are `_XX_`.
    let end = format!("_40_{}", digest.to_string().replace(':', "_3A_"));
    let names = list.lines().map(str::trim);
    names
        .filter(|name| name.starts_with(IMAGES) && name.ends_with(&end))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_its_digest_in_any_repository() {
        let hex = "0f".repeat(32);
        let digest: Digest = format!("sha256:{hex}").parse().unwrap();
        let ours = format!("ostree/container/image/docker_3A__2F__2F_quay_2E_io/a__b/os_40_sha256_3A_{hex}");
        let mirror = format!("ostree/container/image/docker_3A__2F__2F_r_3A_5000/os_40_sha256_3A_{hex}");
        let tag = "ostree/container/image/docker_3A__2F__2F_quay_2E_io/a__b/os_3A_v1";
        let other = ours.replace("0f0f", "1f0f");
        let layer = format!("ostree/container/blob/sha256_3A_{hex}");
        let list = [ours.as_str(), tag, &other, &layer, &mirror].join("\n");
        assert_eq!(refs_of(&list, &digest), [ours.as_str(), mirror.as_str()]);
        assert!(refs_of("", &digest).is_empty());
    }
}
