//! A deployment in the format of the property `Deployments`.

use std::collections::{BTreeMap, HashMap};

use zbus::{OwnedVariant, Variant};

use super::backend::Deployment;
use super::faults::Broken;

/// Dictionary of strings and variants, `a{sv}` on D-Bus.
pub(super) type Dictionary = HashMap<String, OwnedVariant>;

/// Keys with an empty value in every deployment, and the type of the value.
const EMPTY: &[(&str, Empty)] = &[
    ("requested-local-packages", Empty::Texts),
    ("requested-local-fileoverride-packages", Empty::Texts),
    ("requested-base-removals", Empty::Texts),
    ("requested-base-local-replacements", Empty::Texts),
    ("base-removals", Empty::Values),
    ("base-local-replacements", Empty::Pairs),
    ("base-remote-replacements", Empty::Map),
];

#[derive(Debug, Clone, Copy)]
enum Empty {
    Texts,
    Values,
    Pairs,
    Map,
}

impl Empty {
    fn value(self) -> Variant<'static> {
        match self {
            Self::Texts => Variant::new(Vec::<String>::new()),
            Self::Values => Variant::new(Vec::<Variant<'static>>::new()),
            Self::Pairs => Variant::new(Vec::<(Variant<'static>, Variant<'static>)>::new()),
            Self::Map => Variant::new(HashMap::<String, Variant<'static>>::new()),
        }
    }
}

/// Returns the dictionary of a deployment. Keys in `broken` are missing or have a value of another type.
pub(super) fn of(deployment: &Deployment, broken: &BTreeMap<String, Broken>) -> Dictionary {
    let mut dictionary = Dictionary::new();
    for (key, value) in values(deployment) {
        let value = match broken.get(key) {
            Some(Broken::Missing) => continue,
            Some(Broken::Malformed) => Variant::new(vec![(4711_i64, "nonsense")]),
            None => value,
        };
        // Only file descriptors cannot be copied, and there are none here.
        if let Ok(value) = value.try_to_owned() {
            dictionary.insert(key.to_owned(), value);
        }
    }
    dictionary
}

fn text(text: &str) -> Variant<'static> {
    Variant::new(text.to_owned())
}

fn values(d: &Deployment) -> Vec<(&'static str, Variant<'static>)> {
    let mut values: Vec<_> = EMPTY.iter().map(|(key, empty)| (*key, empty.value())).collect();
    let meta = HashMap::from([("ostree.manifest-digest".to_owned(), text(&d.digest))]);
    values.extend([
        ("id", text(&format!("{}-{}.{}", d.osname, d.checksum, d.serial))),
        ("osname", text(&d.osname)),
        ("checksum", text(&d.checksum)),
        ("serial", Variant::new(i32::try_from(d.serial).unwrap_or(i32::MAX))),
        ("booted", Variant::new(d.booted)),
        ("staged", Variant::new(d.staged)),
        ("pinned", Variant::new(d.pinned)),
        ("unlocked", text("none")),
        ("requested-packages", Variant::new(d.packages.clone())),
        ("packages", Variant::new(d.packages.clone())),
        ("regenerate-initramfs", Variant::new(false)),
        ("base-commit-meta", Variant::new(meta)),
        ("timestamp", Variant::new(d.timestamp)),
        ("container-image-reference", text(&d.refspec)),
        ("container-image-reference-digest", text(&d.digest)),
    ]);
    if d.staged && d.lock_file {
        values.push(("finalization-locked", Variant::new(true)));
    }
    if let Some(version) = &d.version {
        values.push(("version", text(version)));
    }
    if let Some(base) = &d.base {
        values.extend([
            ("base-checksum", text(base)),
            ("base-timestamp", Variant::new(d.timestamp)),
            (
                "layered-commit-meta",
                Variant::new(HashMap::<String, Variant<'static>>::new()),
            ),
        ]);
        values.extend(d.version.as_ref().map(|version| ("base-version", text(version))));
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment() -> Deployment {
        Deployment {
            osname: "default".to_owned(),
            checksum: "aa".to_owned(),
            serial: 1,
            booted: false,
            staged: true,
            pinned: false,
            lock_file: true,
            version: Some("2.0.0".to_owned()),
            timestamp: 1_793_491_200,
            refspec: "ostree-unverified-registry:r.test/os@sha256:11".to_owned(),
            digest: "sha256:11".to_owned(),
            base: None,
            packages: Vec::new(),
        }
    }

    fn signatures(dictionary: &Dictionary) -> BTreeMap<String, String> {
        let pairs = dictionary.iter();
        pairs
            .map(|(k, v)| (k.clone(), v.value_signature().to_string()))
            .collect()
    }

    #[test]
    fn keys_have_the_types_of_the_real_ones() {
        let signatures = signatures(&of(&deployment(), &BTreeMap::new()));
        for (key, signature) in [
            ("id", "s"),
            ("serial", "i"),
            ("booted", "b"),
            ("timestamp", "t"),
            ("requested-packages", "as"),
            ("base-removals", "av"),
            ("base-local-replacements", "a(vv)"),
            ("base-commit-meta", "a{sv}"),
            ("finalization-locked", "b"),
        ] {
            assert_eq!(signatures.get(key).map(String::as_str), Some(signature), "{key}");
        }
        assert!(!signatures.contains_key("base-checksum"), "no package is layered");
    }

    #[test]
    fn a_lock_is_only_ever_true() {
        let mut unlocked = deployment();
        unlocked.lock_file = false;
        assert!(!of(&unlocked, &BTreeMap::new()).contains_key("finalization-locked"));
    }

    #[test]
    fn layers_show_their_base() {
        let mut layered = deployment();
        layered.base = Some("bb".to_owned());
        layered.packages = vec!["htop".to_owned()];
        let signatures = signatures(&of(&layered, &BTreeMap::new()));
        for key in ["base-checksum", "base-version", "base-timestamp", "layered-commit-meta"] {
            assert!(signatures.contains_key(key), "{key}");
        }
    }

    #[test]
    fn keys_break_one_by_one() {
        let broken = BTreeMap::from([
            ("serial".to_owned(), Broken::Missing),
            ("booted".to_owned(), Broken::Malformed),
        ]);
        let signatures = signatures(&of(&deployment(), &broken));
        assert!(!signatures.contains_key("serial"));
        assert_eq!(signatures["booted"], "a(xs)");
        assert_eq!(signatures["staged"], "b");
    }
}
