use super::*;

/// Returns the level found in a text in the format of `/proc/cpuinfo`.
fn variant(architecture: &str, text: &str) -> Option<&'static str> {
    let mut features = Features::default();
    for line in text.lines() {
        features.read(architecture, line);
    }
    features.variant(architecture)
}

/// Lines of real files: an Opteron of 2003, a Nehalem, a Haswell and a Skylake server.
const V1: &str = "flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 \
                  syscall nx mmxext lm 3dnowext 3dnow rep_good nopl";
const V2: &str = "flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr \
                  sse sse2 ss ht tm pbe syscall nx rdtscp lm constant_tsc arch_perfmon pebs bts rep_good nopl xtopology \
                  nonstop_tsc cpuid aperfmperf pni dtes64 monitor ds_cpl vmx est tm2 ssse3 cx16 xtpr pdcm sse4_1 sse4_2 \
                  popcnt lahf_lm pti tpr_shadow vnmi flexpriority ept vpid dtherm ida";
const V3: &str = "flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush dts acpi mmx fxsr \
                  sse sse2 ss ht tm pbe syscall nx pdpe1gb rdtscp lm constant_tsc arch_perfmon pebs bts rep_good nopl \
                  xtopology nonstop_tsc cpuid aperfmperf pni pclmulqdq dtes64 monitor ds_cpl vmx est tm2 ssse3 sdbg fma cx16 \
                  xtpr pdcm pcid sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave avx f16c rdrand lahf_lm abm \
                  cpuid_fault epb pti fsgsbase tsc_adjust bmi1 avx2 smep bmi2 erms invpcid xsaveopt dtherm ida arat pln pts";
const V4: &str = "flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx fxsr sse sse2 ss \
                  ht syscall nx pdpe1gb rdtscp lm constant_tsc rep_good nopl xtopology nonstop_tsc cpuid pni pclmulqdq ssse3 \
                  fma cx16 pcid sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave avx f16c rdrand hypervisor \
                  lahf_lm abm 3dnowprefetch pti fsgsbase tsc_adjust bmi1 hle avx2 smep bmi2 erms invpcid rtm mpx avx512f \
                  avx512dq rdseed adx smap clflushopt clwb avx512cd avx512bw avx512vl xsaveopt xsavec xgetbv1 xsaves arat";

#[test]
fn x86_64_levels_match_the_psabi() {
    for (line, level) in [(V1, "v1"), (V2, "v2"), (V3, "v3"), (V4, "v4")] {
        assert_eq!(variant("amd64", line), Some(level));
        assert_eq!(variant("arm64", line), None);
    }
    // If a CPU lacks one feature of a level, it has only the level below.
    for (n, (_, features)) in AMD64.iter().enumerate().skip(1) {
        for feature in *features {
            let without = V4.replace(&format!(" {feature} "), " ");
            assert_ne!(without, V4, "{feature}");
            assert_eq!(variant("amd64", &without), Some(AMD64[n - 1].0), "without {feature}");
        }
    }
    let [v2, v3, v4] =
        [V2, V3, V4].map(|flags| format!("processor\t: 0\nbugs\t\t: avx2\n{flags}\nvmx flags\t: vnmi\n\n"));
    assert_eq!(variant("amd64", &v3), Some("v3"));
    // If processors differ, the lowest level counts.
    assert_eq!(variant("amd64", &format!("{v3}{v2}")), Some("v2"));
    assert_eq!(variant("amd64", &format!("{v2}{v4}")), Some("v2"));
    for nothing in ["", "processor\t: 0\n", "flags\n", "flags: \n"] {
        assert_eq!(variant("amd64", nothing), None, "{nothing:?}");
    }
}

#[test]
fn the_architecture_has_its_oci_name() {
    let names = [
        ("x86_64", "amd64"),
        ("aarch64", "arm64"),
        ("s390x", "s390x"),
        ("riscv64", "riscv64"),
    ];
    for (rust, oci) in names {
        assert_eq!(architecture() == oci, std::env::consts::ARCH == rust, "{rust}");
    }
    assert!(!architecture().is_empty());
}

#[test]
fn an_arm64_version_needs_all_its_features() {
    // A Raspberry Pi 4, an AWS Graviton 2, a Graviton 3 and a Graviton 4.
    for (features, version) in [
        ("fp asimd evtstrm crc32 cpuid", "v8"),
        (
            "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs",
            "v8.2",
        ),
        (
            "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 asimddp \
             sha512 sve asimdfhm dit uscat ilrcpc flagm paca pacg dcpodp svei8mm svebf16 i8mm bf16 dgh rng",
            "v8.4",
        ),
        (
            "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm jscvt fcma lrcpc dcpop sha3 asimddp \
             sha512 sve asimdfhm dit uscat ilrcpc flagm sb paca pacg dcpodp sve2 sveaes svepmull svebitperm svesha3 flagm2 \
             frint svei8mm svebf16 i8mm bf16 dgh rng bti",
            "v9",
        ),
    ] {
        let text = format!("processor\t: 0\nFeatures\t: {features}\nCPU architecture: 8\n");
        assert_eq!(variant("arm64", &text), Some(version));
    }
    assert_eq!(variant("s390x", "features\t: esan3 zarch stfle\n"), None);
    assert_eq!(variant("riscv64", "isa\t: rv64imafdc\n"), None);
}
