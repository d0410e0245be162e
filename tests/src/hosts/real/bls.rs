//! Boot loader entries, in the form that ostree writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    version: u64,
    target: String,
}

/// Root of the deployment that a boot loader starts by default from this sysroot.
pub(super) fn default_deployment(sysroot: &Path) -> Result<PathBuf> {
    let mut all = deployments(sysroot)?.into_iter();
    all.next()
        .with_context(|| format!("no boot entry in {}", sysroot.display()))
}

/// Roots of the deployments of this sysroot, in the order of a boot loader.
pub(super) fn deployments(sysroot: &Path) -> Result<Vec<PathBuf>> {
    let directory = sysroot.join("boot/loader/entries");
    let mut entries = vec![];
    let files = fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?;
    for file in files {
        let path = file?.path();
        if path.extension().is_none_or(|e| e != "conf") {
            continue;
        }
        entries.extend(parse(&fs::read_to_string(&path)?));
    }
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.version));
    let mut roots = vec![];
    for entry in entries {
        let link = sysroot.join(entry.target.trim_start_matches('/'));
        roots.push(fs::canonicalize(&link).with_context(|| format!("following {}", link.display()))?);
    }
    Ok(roots)
}

fn parse(text: &str) -> Option<Entry> {
    let lines = text.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let values: BTreeMap<&str, &str> = lines.collect();
    let target = values
        .get("options")?
        .split_whitespace()
        .find_map(|word| word.strip_prefix("ostree="))?;
    Some(Entry {
        version: values.get("version")?.trim().parse().ok()?,
        target: target.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_its_deployment() {
        let text =
            "title Debian (ostree:0)\nversion 2\noptions rw ostree=/ostree/boot.1/default/ab/0\nlinux /ostree/x\n";
        let entry = parse(text).unwrap();
        assert_eq!(entry.version, 2);
        assert_eq!(entry.target, "/ostree/boot.1/default/ab/0");
        assert_eq!(parse("title x\nversion 1\n"), None);
    }

    #[test]
    fn the_highest_version_is_booted() {
        let root = tempfile::tempdir().unwrap();
        let entries = root.path().join("boot/loader/entries");
        fs::create_dir_all(&entries).unwrap();
        for (version, name) in [(1, "old"), (10, "new"), (2, "middle")] {
            fs::create_dir_all(root.path().join(name)).unwrap();
            let text = format!("version {version}\noptions ostree=/{name}\n");
            fs::write(entries.join(format!("ostree-{version}.conf")), text).unwrap();
        }
        assert_eq!(
            default_deployment(root.path()).unwrap(),
            fs::canonicalize(root.path().join("new")).unwrap()
        );
    }
}
