//! Images in the host's ostree repository, and the directories of its deployments.
//!
//! bootc and rpm-ostree create a ref for each pulled image. If an image has a ref, they stage it again without asking
//! the registry or checking the signature policy.

use std::path::PathBuf;

use berth_api::Digest;

use super::error::HostError;
use super::tools::Tools;

const OSTREE: &str = "/usr/bin/ostree";
const REPOSITORY: &str = "--repo=/sysroot/ostree/repo";
const IMAGES: &str = "ostree/container/image";

/// Returns the directory of a deployment's files, as a path on the host. `None` if the stateroot or checksum is
/// invalid.
pub(super) fn checkout(stateroot: &str, checksum: &str, serial: u32) -> Option<PathBuf> {
    let is_name = !stateroot.is_empty() && !stateroot.starts_with('.') && stateroot.bytes().all(is_ref);
    let is_name = is_name && !stateroot.contains('/');
    if !is_name || !is_commit(checksum) {
        return None;
    }
    Some(PathBuf::from(format!(
        "/sysroot/ostree/deploy/{stateroot}/deploy/{checksum}.{serial}"
    )))
}

/// True if the text has the form of an ostree commit's checksum: 64 hexadecimal digits.
pub(super) fn is_commit(checksum: &str) -> bool {
    checksum.len() == 64 && checksum.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Removes the refs of an image, so that the image's next pull checks the signature policy. The image's layers stay,
/// and are not downloaded again. Deployments stay too, because other refs keep their commits. After an error, some refs
/// of the image may remain.
pub(super) async fn forget_image(tools: &Tools, digest: &Digest) -> Result<(), HostError> {
    let list = tools
        .run("list-images", &[OSTREE, "refs", REPOSITORY, "--list", IMAGES])
        .await?;
    for name in refs_of(&list, digest) {
        tools
            .run("forget-image", &[OSTREE, "refs", REPOSITORY, "--delete", name])
            .await?;
        tracing::info!(
            name,
            "removed an ostree ref of the image, so that its next pull checks the signature"
        );
    }
    Ok(())
}

/// Returns the refs of images with this digest, in any registry repository.
pub(super) fn refs_of<'a>(list: &'a str, digest: &Digest) -> Vec<&'a str> {
    // Refs encode all characters except letters, digits and hyphens as `_XX_`.
    let end = format!("_40_{}", digest.to_string().replace(':', "_3A_"));
    let names = list.lines().map(str::trim);
    names
        .filter(|name| name.starts_with(IMAGES) && name.ends_with(&end) && name.bytes().all(is_ref))
        .collect()
}

/// True for a character that ostree allows in a ref. The ref becomes an argument of a command.
fn is_ref(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_deployment_has_a_checkout() {
        let checksum = "0f".repeat(32);
        let found = checkout("default", &checksum, 1).unwrap();
        assert_eq!(
            found.to_str().unwrap(),
            format!("/sysroot/ostree/deploy/default/deploy/{checksum}.1")
        );
        let short = checksum.split_at(63).0;
        for (stateroot, checksum) in [
            ("", checksum.as_str()),
            ("..", &checksum),
            ("a/b", &checksum),
            ("default", short),
        ] {
            assert_eq!(checkout(stateroot, checksum, 0), None, "{stateroot} {checksum}");
        }
        assert_eq!(checkout("default", &checksum.replace('f', "/"), 0), None);
    }

    #[test]
    fn an_image_is_found_by_its_digest_in_any_repository() {
        let hex = "0f".repeat(32);
        let digest: Digest = format!("sha256:{hex}").parse().unwrap();
        let ours = format!("ostree/container/image/docker_3A__2F__2F_quay_2E_io/a__b/os_40_sha256_3A_{hex}");
        let mirror = format!("ostree/container/image/docker_3A__2F__2F_r_3A_5000/os_40_sha256_3A_{hex}");
        let tag = "ostree/container/image/docker_3A__2F__2F_quay_2E_io/a__b/os_3A_v1";
        let other = ours.replace("0f0f", "1f0f");
        let layer = format!("ostree/container/blob/sha256_3A_{hex}");
        let odd = ours.replace("/a__b/", "/${HOME}/ --delete ");
        let list = [ours.as_str(), tag, &other, &layer, &mirror, &odd].join("\n");
        assert_eq!(refs_of(&list, &digest), [ours.as_str(), mirror.as_str()]);
        assert!(refs_of("", &digest).is_empty());
    }
}
