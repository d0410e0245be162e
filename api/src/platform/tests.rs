use super::*;

const OWN: &str = keys::LABEL_VARIANT;
const AVX2: &str = "feature.node.kubernetes.io/cpu-cpuid.AVX2";
const FMA3: &str = "feature.node.kubernetes.io/cpu-cpuid.FMA3";

fn machine(architecture: &str, labels: &[(&str, &str)]) -> Machine {
    let labels = labels
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Machine::new(architecture, &labels.collect())
}

fn image(architecture: &str, variant: Option<&str>) -> PlatformDigest {
    PlatformDigest {
        architecture: architecture.to_owned(),
        variant: variant.map(str::to_owned),
        digest: format!("sha256:{}", "0".repeat(64)).parse().unwrap(),
    }
}

#[test]
fn the_variant_follows_label_and_agent_report() {
    use Variant::{Known, NotReported, Unknown};
    let nfd = [(AVX2, "true"), (FMA3, "true")];
    for (architecture, labels, reported, expected) in [
        ("amd64", &[][..], NotReported, NotReported),
        ("amd64", &[], Unknown, Unknown),
        ("amd64", &[], Known("v2"), Known("v2")),
        // Node-feature-discovery cannot report v2 and may report less than the agent.
        ("amd64", &nfd[..1], Unknown, Unknown),
        ("amd64", &nfd, Unknown, Known("v3")),
        ("amd64", &nfd, NotReported, NotReported),
        ("amd64", &nfd, Known("v4"), Known("v4")),
        ("arm64", &nfd, Unknown, Unknown),
        // On amd64 a label can lower the level but not raise it.
        ("amd64", &[(OWN, "v2")], Known("v3"), Known("v2")),
        ("amd64", &[(OWN, "v3")], Known("v2"), Known("v2")),
        ("amd64", &[(OWN, "v3")], Unknown, Known("v3")),
        ("amd64", &[(OWN, "v3")], NotReported, Known("v3")),
        ("amd64", &[(OWN, "nonsense")], Known("v3"), Known("nonsense")),
        // The agent may report less than an arm64 CPU supports.
        ("arm64", &[(OWN, "v9")], Known("v8.2"), Known("v9")),
        ("ppc64le", &[(OWN, "power9")], Unknown, Known("power9")),
    ] {
        let machine = machine(architecture, labels);
        let found = machine.platform(reported).variant;
        assert_eq!(found, expected, "{architecture} {labels:?} {reported:?}");
    }
    assert_eq!(
        machine("amd64", &[(OWN, "v3")]).platform(Unknown).to_string(),
        "amd64/v3"
    );
    assert_eq!(machine("amd64", &[]).platform(Unknown).to_string(), "amd64");
    assert_eq!(image("arm64", None).to_string(), "arm64");
    assert_eq!(image("amd64", Some("v2")).to_string(), "amd64/v2");
}

fn chosen(architecture: &str, variants: &[Option<&str>], variant: Variant<'_>) -> String {
    let images: Vec<_> = variants.iter().map(|variant| image(architecture, *variant)).collect();
    match (Platform { architecture, variant }).choose(&images) {
        Choice::Image(image) => image.variant.clone().unwrap_or_else(|| "any".to_owned()),
        Choice::VariantUnknown => "unknown".to_owned(),
        Choice::NoSuchPlatform => "none".to_owned(),
    }
}

#[test]
fn a_machine_gets_the_most_demanding_runnable_image() {
    use Variant::{Known, NotReported, Unknown};
    const ALL: &[Option<&str>] = &[None, Some("v2"), Some("v3")];
    const NO_BASELINE: &[Option<&str>] = &[Some("v2"), Some("v3")];
    for (variants, own, expected) in [
        (ALL, Known("v1"), "any"),
        (ALL, Known("v2"), "v2"),
        (ALL, Known("v3"), "v3"),
        (ALL, Known("v4"), "v3"),
        (ALL, Unknown, "any"),
        (ALL, NotReported, "unknown"),
        (NO_BASELINE, Known("v1"), "none"),
        (NO_BASELINE, Known("v2"), "v2"),
        (NO_BASELINE, Known("v4"), "v3"),
        (NO_BASELINE, Unknown, "unknown"),
        (NO_BASELINE, NotReported, "unknown"),
        (&[None], NotReported, "any"),
        (&[None], Known("nonsense"), "any"),
        (&[Some("v3")], NotReported, "unknown"),
        (&[Some("v3")], Known("nonsense"), "none"),
        (&[], Known("v3"), "none"),
    ] {
        assert_eq!(chosen("amd64", variants, own), expected, "{variants:?} {own:?}");
    }
    let arm = [None, Some("v9"), Some("v8.2"), Some("rva22")];
    assert_eq!(chosen("arm64", &arm, Known("v8")), "any");
    assert_eq!(chosen("arm64", &arm, Known("v8.4")), "v8.2");
    assert_eq!(chosen("arm64", &arm, Known("v9.2")), "v9");
    // A variant without a rank matches only the same name.
    let power = [Some("power9"), None, Some("power10")];
    assert_eq!(chosen("ppc64le", &power, Known("power10")), "power10");
    assert_eq!(chosen("ppc64le", &power, Unknown), "any");
    let other = Platform {
        architecture: "s390x",
        variant: Known("v3"),
    };
    assert_eq!(other.choose(&[image("amd64", None)]), Choice::NoSuchPlatform);
    let twice = [
        image("amd64", None),
        PlatformDigest {
            digest: format!("sha256:{}", "1".repeat(64)).parse().unwrap(),
            ..image("amd64", None)
        },
    ];
    let platform = Platform {
        architecture: "amd64",
        variant: Unknown,
    };
    assert_eq!(platform.choose(&twice), Choice::Image(&twice[0]), "the first of two");
}
