//! Images bound to the OS image: bootc pulls them after it has staged the deployment, and fails if it cannot.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::pull;
use crate::sysroot::Sysroot;

/// Directory of links to the quadlets that name the bound images.
const BOUND: &str = "usr/lib/bootc/bound-images.d";

/// Asks the registry for every image that is bound to the staged deployment. Stores nothing, because no test runs such
/// an image.
pub(crate) fn pull(sysroot: &Sysroot) -> Result<()> {
    let staged = sysroot.deployments()?.into_iter().find(|d| d.staged);
    let Some(staged) = staged else { return Ok(()) };
    for image in images(&sysroot.root_of(&staged))? {
        pull::prepare(&format!("docker://{image}")).with_context(|| format!("Pulling bound image {image}"))?;
    }
    Ok(())
}

/// Images that are bound to the deployment with this root.
fn images(root: &Path) -> Result<Vec<String>> {
    let Ok(entries) = std::fs::read_dir(root.join(BOUND)) else {
        return Ok(vec![]);
    };
    let mut found = vec![];
    for entry in entries {
        let link = entry.context("reading bound-images.d")?.path();
        let target = std::fs::read_link(&link).with_context(|| format!("{} is not a link", link.display()))?;
        let quadlet = in_root(root, &link, &target);
        let text = std::fs::read_to_string(&quadlet).with_context(|| format!("reading {}", quadlet.display()))?;
        let image = text.lines().find_map(|line| line.trim().strip_prefix("Image="));
        found.push(
            image
                .with_context(|| format!("{} names no image", quadlet.display()))?
                .trim()
                .to_owned(),
        );
    }
    found.sort();
    Ok(found)
}

fn in_root(root: &Path, link: &Path, target: &Path) -> PathBuf {
    match target.strip_prefix("/") {
        Ok(inside) => root.join(inside),
        Err(_) => link.parent().unwrap_or(root).join(target),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn finds_the_images_of_quadlets_behind_links() {
        let root = std::env::temp_dir().join(format!("standin-bound-{}", std::process::id()));
        let (quadlets, bound) = (root.join("usr/share/containers/systemd"), root.join(BOUND));
        std::fs::create_dir_all(&quadlets).unwrap();
        assert_eq!(images(&root).unwrap(), Vec::<String>::new());
        std::fs::create_dir_all(&bound).unwrap();
        std::fs::write(quadlets.join("a.image"), "[Image]\nImage=registry.test/a:1\n").unwrap();
        std::fs::write(
            quadlets.join("b.container"),
            "[Container]\n Image=registry.test/b:2\nExec=x\n",
        )
        .unwrap();
        symlink("/usr/share/containers/systemd/a.image", bound.join("a.image")).unwrap();
        symlink(
            "../../../share/containers/systemd/b.container",
            bound.join("b.container"),
        )
        .unwrap();
        assert_eq!(images(&root).unwrap(), ["registry.test/a:1", "registry.test/b:2"]);
        symlink("/nowhere.image", bound.join("c.image")).unwrap();
        assert!(images(&root).is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
