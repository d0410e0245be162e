//! The Go modules that pin the versions of the tools: `tests/controlplane` and `tests/helm`.

use anyhow::{Context, Result};

#[derive(Debug)]
pub(super) struct GoModule {
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// Source file of the module's own program, with the directory of its package. `None` if the module only names
    /// programs of others.
    pub(super) program: Option<(&'static str, &'static str)>,
}

pub(super) static KUBERNETES: GoModule = GoModule {
    go_mod: include_str!("../../controlplane/go.mod"),
    go_sum: include_str!("../../controlplane/go.sum"),
    program: Some(("servers", include_str!("../../controlplane/servers/main.go"))),
};

pub(super) static REGISTRY: GoModule = GoModule {
    go_mod: include_str!("../../controlplane/registry/go.mod"),
    go_sum: include_str!("../../controlplane/registry/go.sum"),
    program: Some(("registry", include_str!("../../controlplane/registry/main.go"))),
};

pub(super) static HELM: GoModule = GoModule {
    go_mod: include_str!("../../helm/go.mod"),
    go_sum: include_str!("../../helm/go.sum"),
    program: None,
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
