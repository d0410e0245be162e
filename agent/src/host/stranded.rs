//! Finds a link in the host's `/etc` that would keep the kubelet from starting after an update to the staged image.
//!
//! The link makes the kubelet require the unit of the first-boot check. An update keeps the link in `/etc`, but
//! replaces the unit in `/usr`. If the new image lacks the unit, systemd never starts the kubelet.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::root::HostRoot;

const UNIT: &str = "berth-firstboot.service";
/// Unit directory of the host. An update keeps its content.
const ETC: &str = "/etc/systemd/system";
/// The image's version of `/etc`. A link in this directory belongs to the image, so an update replaces the link
/// together with the unit.
const IMAGE_ETC: &str = "usr/etc/systemd/system";
const OF_IMAGE: [&str; 4] = [
    IMAGE_ETC,
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
];

/// Finds a link that makes a unit require the first-boot check, although the image in the directory `image` lacks the
/// check's unit. Returns the link's path on the host. Returns `None` if the files cannot be read: only a unit that is
/// known to be missing prevents an update.
pub(super) fn link_without_unit(root: &HostRoot, image: &Path) -> Option<String> {
    let link = own_link(root)?;
    let image = root.path(image);
    let is_unit_missing = is_directory(&image)
        && is_absent(&root.path(ETC).join(UNIT))
        && OF_IMAGE
            .iter()
            .all(|directory| is_absent(&image.join(directory).join(UNIT)));
    is_unit_missing.then_some(link)
}

/// Returns a link that makes a unit require the first-boot check and is not part of the booted image. If there are
/// several links, returns the first by name.
fn own_link(root: &HostRoot) -> Option<String> {
    let mut links = vec![];
    for entry in fs::read_dir(root.path(ETC)).ok()? {
        let Ok(name) = entry.ok()?.file_name().into_string() else {
            continue;
        };
        if !name.ends_with(".requires") || is_absent(&root.path(ETC).join(&name).join(UNIT)) {
            continue;
        }
        if is_absent(&root.path("/").join(IMAGE_ETC).join(&name).join(UNIT)) {
            links.push(format!("{ETC}/{name}/{UNIT}"));
        }
    }
    links.into_iter().min()
}

fn is_directory(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// True if the path does not exist, even as a broken link. False if the agent cannot find out.
fn is_absent(path: &Path) -> bool {
    let error = path.symlink_metadata().err();
    error.is_some_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    const IMAGE: &str = "/sysroot/ostree/deploy/default/deploy/0f.0";

    struct Scratch {
        directory: tempfile::TempDir,
        root: HostRoot,
    }

    impl Scratch {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let root = HostRoot::new(directory.path());
            fs::create_dir_all(root.path(IMAGE)).unwrap();
            Self { directory, root }
        }

        fn link(&self, path: &str) -> PathBuf {
            let path = self.directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink("../berth-firstboot.service", &path).unwrap();
            path
        }

        fn found(&self) -> Option<String> {
            link_without_unit(&self.root, Path::new(IMAGE))
        }
    }

    #[test]
    fn a_link_without_its_unit_is_found() {
        let host = Scratch::new();
        assert_eq!(host.found(), None, "no link");
        host.link("etc/systemd/system/kubelet.service.wants/berth-firstboot.service");
        assert_eq!(host.found(), None, "who only wants a unit starts without it");
        host.link("etc/systemd/system/kubelet.service.requires/berth-firstboot.service");
        let link = "/etc/systemd/system/kubelet.service.requires/berth-firstboot.service";
        assert_eq!(host.found().as_deref(), Some(link));
        for directory in OF_IMAGE
            .map(|of| format!("{IMAGE}/{of}"))
            .iter()
            .map(|path| &path[1..])
            .chain(["etc/systemd/system"])
        {
            let unit = host.link(&format!("{directory}/berth-firstboot.service"));
            assert_eq!(host.found(), None, "the unit is in {directory}");
            fs::remove_file(unit).unwrap();
            assert!(host.found().is_some());
        }
    }

    #[test]
    fn a_link_of_the_image_goes_with_it() {
        let host = Scratch::new();
        let link = "systemd/system/k3s.service.requires/berth-firstboot.service";
        host.link(&format!("etc/{link}"));
        assert!(host.found().is_some());
        host.link(&format!("usr/etc/{link}"));
        assert_eq!(host.found(), None);
    }

    #[test]
    fn a_missing_image_has_no_fault() {
        let host = Scratch::new();
        host.link("etc/systemd/system/kubelet.service.requires/berth-firstboot.service");
        fs::remove_dir(host.root.path(IMAGE)).unwrap();
        assert_eq!(host.found(), None);
    }
}
