//! The Go modules that pin the versions of the tools: `tests/controlplane`.

use anyhow::{Context, Result};

#[derive(Debug)]
pub(super) struct GoModule {
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// Source file of the module's own program, with the directory of its package.
    pub(super) program: (&'static str, &'static str),
}

pub(super) static KUBERNETES: GoModule = GoModule {
    go_mod: include_str!("../../controlplane/go.mod"),
    go_sum: include_str!("../../controlplane/go.sum"),
    program: ("servers", include_str!("../../controlplane/servers/main.go")),
};

pub(super) static REGISTRY: GoModule = GoModule {
    go_mod: include_str!("../../controlplane/registry/go.mod"),
    go_sum: include_str!("../../controlplane/registry/go.sum"),
    program: ("registry", include_str!("../../controlplane/registry/main.go")),
};

impl GoModule {
    /// Version (without `v`) of a module that `go.mod` requires.
    pub(super) fn version(&self, module: &str) -> Result<&'static str> {
        self.go_mod
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '))
            .find(|(name, _)| *name == module)
            .and_then(|(_, rest)| rest.split_whitespace().next()?.strip_prefix('v'))
            .with_context(|| format!("go.mod does not require {module}"))
    }
}
