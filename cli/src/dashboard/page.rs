//! Files of the page. They are part of the program.

/// A file of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct File {
    pub(super) name: &'static str,
    pub(super) text: &'static str,
}

/// Lists files of the folder `page`.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(File { name: $name, text: include_str!(concat!("page/", $name)) }),*]
    };
}

/// All files of the folder `page`, sorted by name.
const FILES: &[File] = &files![
    "app.js",
    "connection.js",
    "copy.js",
    "dom.js",
    "drawer.js",
    "filter.js",
    "fit.js",
    "headline.js",
    "health.js",
    "icon.svg",
    "index.html",
    "legend.js",
    "list.js",
    "looks.js",
    "pools.js",
    "route.js",
    "sort.js",
    "store.js",
    "stream.js",
    "style.css",
    "tiles.js",
    "timeline.js",
    "waves.js",
    "words.js",
];

/// File that the root shows.
pub(super) const INDEX: &str = "index.html";

/// Returns the file with this name.
pub(super) fn file(name: &str) -> Option<File> {
    FILES.iter().copied().find(|file| file.name == name)
}

impl File {
    /// Returns the value of the header Content-Type.
    pub(super) fn content_type(self) -> &'static str {
        match self.name.rsplit('.').next().unwrap_or_default() {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_of_the_folder_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/dashboard/page");
        let mut there: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        assert_eq!(FILES.iter().map(|file| file.name).collect::<Vec<_>>(), there);
        for file in FILES {
            assert_ne!(file.content_type(), "text/plain; charset=utf-8", "{}", file.name);
        }
        assert!(file(INDEX).is_some());
    }

    #[test]
    fn the_page_needs_no_inline_code_and_no_other_server() {
        for file in FILES {
            for forbidden in ["<style", " style=", "<script>", "javascript:", "innerHTML", "eval("] {
                assert!(!file.text.contains(forbidden), "{}: {forbidden}", file.name);
            }
            let text = file.text.replace("http://www.w3.org/", "");
            assert!(!text.contains("http://") && !text.contains("//cdn"), "{}", file.name);
        }
    }
}
