//! Finds the most demanding platform variant that all CPUs of a machine can run, from `/proc/cpuinfo`. Pure.

/// File that lists the features of each CPU.
pub const PATH: &str = "/proc/cpuinfo";

/// Levels of x86-64, as the x86-64 psABI defines them. Each entry has the features that the level adds to the level
/// before. Features have the kernel's names: `abm` is LZCNT, `pni` is SSE3, `cx16` is CMPXCHG16B. The kernel does not
/// list OSXSAVE, but it lists AVX only if it has enabled OSXSAVE.
const AMD64: [(&str, &[&str]); 4] = [
    ("v1", &["lm"]),
    ("v2", &["cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"]),
    (
        "v3",
        &["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"],
    ),
    ("v4", &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
];

/// Versions of Armv8-A and Armv9-A. Each entry has those features that the version adds and the kernel can report.
/// Hypervisors and kernels hide some features, so the result may be lower than the CPU's real version.
const ARM64: [(&str, &[&str]); 7] = [
    ("v8", &["fp", "asimd"]),
    ("v8.1", &["atomics", "asimdrdm", "crc32"]),
    ("v8.2", &["dcpop"]),
    ("v8.3", &["jscvt", "fcma", "lrcpc", "paca"]),
    ("v8.4", &["asimddp", "dit", "flagm", "ilrcpc", "uscat"]),
    ("v8.5", &["dcpodp", "flagm2", "frint", "sb"]),
    ("v9", &["sve2"]),
];

/// Levels that all CPUs of a machine support.
#[derive(Debug, Clone, Default)]
pub struct Features {
    /// Bit `n` is set if all CPUs read so far have the features in entry `n` of the architecture's table. `None` before
    /// the first CPU.
    levels: Option<u8>,
}

fn levels(architecture: &str) -> &'static [(&'static str, &'static [&'static str])] {
    match architecture {
        "amd64" => &AMD64,
        "arm64" => &ARM64,
        _ => &[],
    }
}

impl Features {
    /// Reads one line of the file. A machine may have several kinds of CPUs, so only levels that all CPUs support
    /// count.
    pub fn read(&mut self, architecture: &str, line: &str) {
        let Some((key, words)) = line.split_once(':') else {
            return;
        };
        if !matches!(key.trim(), "flags" | "Features") {
            return;
        }
        let words: Vec<&str> = words.split_ascii_whitespace().collect();
        let mut has = 0;
        for (bit, (_, features)) in levels(architecture).iter().enumerate() {
            if features.iter().all(|feature| words.contains(feature)) {
                has |= 1 << bit;
            }
        }
        self.levels = Some(self.levels.unwrap_or(u8::MAX) & has);
    }

    /// Returns the highest level that all CPUs support, together with all lower levels. `None` if the file listed
    /// no CPU, or if the architecture has no levels.
    pub fn variant(&self, architecture: &str) -> Option<&'static str> {
        let has = self.levels?;
        let mut variant = None;
        for (bit, (name, _)) in levels(architecture).iter().enumerate() {
            if has & (1 << bit) == 0 {
                break;
            }
            variant = Some(*name);
        }
        variant
    }
}

/// Returns the OCI name of the architecture that this program was compiled for, which is the machine's architecture.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests;
