//! Memory of a process, by the kernel's account.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The memory of a process, in MiB.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    /// All that is resident.
    pub resident: f64,
    /// Part of it that is backed by no file: heap and stacks.
    pub anonymous: f64,
    /// Part of it that is the program's own text and data.
    pub file: f64,
    /// The most that was ever resident.
    pub peak: f64,
}

impl Memory {
    /// Reads the memory of a running process.
    pub fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let field = |name| field(&text, name).with_context(|| format!("{path} has no {name}"));
        Ok(Self {
            resident: field("VmRSS")?,
            anonymous: field("RssAnon")?,
            file: field("RssFile")?,
            peak: field("VmHWM")?,
        })
    }

    /// Lets a process' peak begin at what it has now.
    pub fn forget_peak(pid: u32) -> Result<()> {
        let path = format!("/proc/{pid}/clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("cannot write {path}"))
    }

    /// The same as JSON.
    pub fn json(self) -> Value {
        let round = |mib: f64| (mib * 100.0).round() / 100.0;
        json!({
            "resident": round(self.resident), "anonymous": round(self.anonymous), "file": round(self.file),
            "peak": round(self.peak),
        })
    }
}

/// The value of a line such as `VmRSS:      1234 kB`, in MiB.
fn field(status: &str, name: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_adds_up() {
        let memory = Memory::of(std::process::id()).unwrap();
        assert!(memory.resident > 0.5 && memory.peak >= memory.resident);
        assert!(memory.anonymous + memory.file <= memory.resident + 0.1);
    }
}
