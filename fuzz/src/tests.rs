use std::fs;
use std::path::Path;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 8] = [
    ("auth_file", super::auth_file),
    ("berth", super::berth),
    ("boot_image", super::boot_image),
    ("document", super::document),
    ("image_ref", super::image_ref),
    ("policy", super::policy),
    ("registries_conf", super::registries_conf),
    ("staged", super::staged),
];

fn names(directory: &Path) -> Vec<String> {
    let mut names = vec![];
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        names.push(path.file_stem().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    names
}

#[test]
fn each_target_is_a_program_and_has_seeds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let targets: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&root.join("fuzz_targets")), targets);
    assert_eq!(names(&root.join("seeds")), targets);
}

/// The seeds include inputs that once made a target panic.
#[test]
fn the_seeds_break_nothing() {
    for (name, target) in TARGETS {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
        let files = fs::read_dir(seeds).unwrap();
        let count = files
            .map(|file| target(&fs::read(file.unwrap().path()).unwrap()))
            .count();
        assert!(count > 1, "{name} has {count} seeds");
    }
}
