//! Registries that the host itself allows: prefixes from the agent's flags and from a file on the host. A stolen
//! controller token can change neither, so it cannot make the host boot an untrusted image.

use berth_api::Written;
use berth_api::image_ref::{ImageRef, allowed};
use berth_api::node::DesiredImage;

use super::objection::Objection;
use crate::agent::reason::Reason;

/// File on the host with one prefix per line. Empty lines and lines that begin with `#` are ignored.
pub const FILE: &str = "/etc/berth/allowed-registries";
/// Longest file that is read, in bytes.
pub const MAX_LENGTH: usize = 1 << 20;

/// Registries that images for this host may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registries {
    /// Lists of prefixes, each with its source. An image must match a prefix of every list. Without any list, all
    /// images are allowed.
    Lists(Vec<(String, Vec<String>)>),
    /// A list is invalid or unreadable. Holds the error. No image is allowed until the list is fixed.
    Unusable(String),
}

impl Default for Registries {
    fn default() -> Self {
        Self::Lists(vec![])
    }
}

impl Registries {
    /// Reads the list of the flags and the list of the file, if they exist. `file` is the text of the file or the error
    /// of reading it; `None` if the file does not exist.
    pub fn new(flags: &[String], file: Option<Result<&str, String>>) -> Self {
        let mut lists = vec![];
        if !flags.is_empty() {
            lists.push(("--allowed-registry".to_owned(), flags.to_vec()));
        }
        match file.map(|text| text.and_then(parse)) {
            None => {}
            Some(Ok(prefixes)) => lists.push((FILE.to_owned(), prefixes)),
            Some(Err(why)) => return Self::Unusable(format!("{FILE}: {why}")),
        }
        Self::Lists(lists)
    }

    /// Returns why a list forbids this image; `None` if every list allows it.
    pub fn objection(&self, image: &DesiredImage) -> Option<Objection> {
        let why = match self {
            Self::Unusable(why) => format!("{why}; Berth stages no image until this problem is fixed"),
            Self::Lists(lists) => {
                let reference = &image.reference;
                let (source, _) = lists.iter().find(|(_, prefixes)| !is_allowed(prefixes, reference))?;
                format!(
                    "{reference} matches no prefix in {source} of this host, so the image is not staged. Add its registry to \
                     {source}, or set an allowed image in the pool"
                )
            }
        };
        Some(Objection::new(Reason::RegistryNotAllowed, why))
    }
}

fn is_allowed(prefixes: &[String], reference: &Written<ImageRef>) -> bool {
    // An empty list allows no image.
    let reference = reference.get();
    !prefixes.is_empty() && reference.is_ok_and(|reference| allowed(prefixes, reference))
}

fn parse(text: &str) -> Result<Vec<String>, String> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let prefixes = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    prefixes
        .map(|(number, line)| prefix(line).map_err(|why| format!("line {number}: {why}")))
        .collect()
}

/// Parses a prefix: a registry, or a registry and the beginning of a path. Returns the prefix without a trailing slash.
/// Fails if no image reference can begin with it.
pub fn prefix(text: &str) -> Result<String, String> {
    let trimmed = text.strip_suffix('/').unwrap_or(text);
    match format!("{trimmed}/x:x").parse::<ImageRef>() {
        Ok(_) => Ok(trimmed.to_owned()),
        Err(_) => {
            let shown: String = text.chars().take(120).collect();
            Err(format!(
                "{shown:?} is not the beginning of an image reference; write a registry or part of a path, such as quay.io/example"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_api::digest::Digest;
    use berth_api::pool::SignatureRule;
    use proptest::prelude::*;

    use super::*;

    fn image(name: &str) -> DesiredImage {
        let digest: Digest = format!("sha256:{}", "0f".repeat(32)).parse().unwrap();
        DesiredImage {
            reference: format!("{name}@{digest}").into(),
            index_digest: digest.clone(),
            digest,
            version: None,
            signature: SignatureRule::AsBooted,
        }
    }

    fn refused(registries: &Registries, name: &str) -> Option<String> {
        registries.objection(&image(name)).map(|o| o.message)
    }

    #[test]
    fn each_list_of_the_host_may_forbid() {
        let flags = ["quay.io/a".to_owned(), "r:5000".to_owned()];
        let file = "# ours\n\n  quay.io/a/b/\nquay.io/c\n";
        let none = Registries::default();
        let by_flags = Registries::new(&flags, None);
        let by_file = Registries::new(&[], Some(Ok(file)));
        let both = Registries::new(&flags, Some(Ok(file)));
        for (name, expected) in [
            ("quay.io/a/b/os", [true, true, true]),
            ("quay.io/a/os", [true, false, false]),
            ("quay.io/c/os", [false, true, false]),
            ("r:5000/os", [true, false, false]),
            ("quay.io/ab/os", [false, false, false]),
            ("evil.io/quay.io/a/b", [false, false, false]),
        ] {
            assert_eq!(refused(&none, name), None);
            let found = [&by_flags, &by_file, &both].map(|registries| refused(registries, name).is_none());
            assert_eq!(found, expected, "{name}");
        }
        let why = refused(&both, "quay.io/a/os").unwrap();
        assert!(
            why.contains("matches no prefix in /etc/berth/allowed-registries of this host"),
            "{why}"
        );
        assert!(
            refused(&both, "quay.io/c/os")
                .unwrap()
                .contains("matches no prefix in --allowed-registry")
        );
        let unparsable = DesiredImage {
            reference: "quay.io/a/b".into(),
            ..image("quay.io/a/b")
        };
        assert!(
            by_file.objection(&unparsable).is_some(),
            "an invalid reference is in no registry"
        );
    }

    #[test]
    fn an_invalid_list_allows_nothing() {
        for (text, words) in [
            ("quay.io\nhttps://quay.io\n", "line 2: \"https://quay.io\""),
            ("example/os", "line 1"),
            ("quay.io/os:1", "line 1"),
            ("quay.io *", "line 1"),
        ] {
            let why = refused(&Registries::new(&[], Some(Ok(text))), "quay.io/os").unwrap();
            assert!(why.contains(words), "{why}");
        }
        let unreadable = Registries::new(&["quay.io".to_owned()], Some(Err("permission denied".to_owned())));
        assert!(
            refused(&unreadable, "quay.io/os")
                .unwrap()
                .contains("permission denied")
        );
        let empty = Registries::new(&[], Some(Ok("# nothing yet\n")));
        assert!(refused(&empty, "quay.io/os").is_some(), "an empty list allows nothing");
    }

    proptest! {
        /// Every file limits the images, whatever its text. A valid file allows images under each of its prefixes.
        #[test]
        fn any_file_is_a_limit(text in "([a-z.:/# \t-]{0,20}\n){0,4}") {
            let registries = Registries::new(&[], Some(Ok(&text)));
            prop_assert!(registries != Registries::default());
            if let Registries::Lists(lists) = &registries {
                for prefix in lists.iter().flat_map(|(_, prefixes)| prefixes) {
                    prop_assert_eq!(refused(&registries, &format!("{prefix}/os")), None);
                }
            }
        }
    }
}
