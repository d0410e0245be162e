use std::fs;
use std::path::Path;

type Target = fn(&[u8]);

const TARGETS: [(&str, Target); 17] = [
    ("audit_log", super::audit_log),
    ("auth_file", super::auth_file),
    ("berth", super::berth),
    ("boot_image", super::boot_image),
    ("bootc", super::bootc),
    ("cluster", super::cluster),
    ("document", super::document),
    ("firstboot", super::firstboot),
    ("image_ref", super::image_ref),
    ("kubectl", super::kubectl),
    ("memory", super::memory),
    ("policy", super::policy),
    ("registries_conf", super::registries_conf),
    ("rpm_ostree", super::rpm_ostree),
    ("staged", super::staged),
    ("tool_output", super::tool_output),
    ("written", super::written),
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

/// The seeds of the target `cluster` must reach the functions under test: the API server would store the changed objects.
#[test]
fn the_seeds_of_a_cluster_are_stored() {
    for seed in [
        "none",
        "statuses",
        "texts",
        "reasons",
        "leases",
        "boot-image",
        "windows",
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/cluster").join(seed);
        let data = fs::read(path).unwrap();
        let cluster = crate::edits::edited(&data).unwrap();
        let snapshot = crate::cluster::snapshot(&cluster);
        let counts = (snapshot.pools.len(), snapshot.bootc_nodes.len(), snapshot.nodes.len());
        assert_eq!(counts, (1, 2, 3), "{seed}: {}", crate::cluster::refusals(&cluster));
        let snapshot = crate::kubectl::snapshot(&data).unwrap();
        let counts = (snapshot.pools.len(), snapshot.bootc_nodes.len(), snapshot.nodes.len());
        assert_eq!(counts, (1, 2, 3), "{seed}");
    }
}
