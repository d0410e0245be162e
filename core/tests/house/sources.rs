//! Files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Directory that holds the whole repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns all files below a directory, in order, with paths relative to the repository. Skips hidden and built ones.
pub fn files(directory: &str) -> Vec<PathBuf> {
    let root = root();
    let mut found = vec![];
    let mut directories = vec![root.join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push(path.strip_prefix(&root).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Returns the text of a file; `None` where it is not UTF-8.
pub fn text(path: &Path) -> Option<String> {
    String::from_utf8(fs::read(root().join(path)).unwrap()).ok()
}
