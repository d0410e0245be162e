//! Lists and reads the files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root directory of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns all files below a directory, sorted, with paths relative to the repository's root. Skips hidden files,
/// hidden directories and `target`.
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

/// Returns the text of a file; `None` if it is not UTF-8.
pub fn text(path: &Path) -> Option<String> {
    String::from_utf8(fs::read(root().join(path)).unwrap()).ok()
}
