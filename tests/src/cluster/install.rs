//! Installing Berth on a control plane, as an admin does.

use anyhow::{Context, Result};

use crate::controlplane::ControlPlane;
use crate::programs;

/// Applies what an admin applies: everything in `manifests/` but the workloads, which the harness runs itself.
pub(super) async fn install(control_plane: &ControlPlane) -> Result<()> {
    let manifests = programs::workspace_root().join("manifests");
    for file in ["namespace.yaml", "crds.yaml", "rbac.yaml", "admission-policies.yaml"] {
        control_plane
            .apply_manifests(&manifests.join(file))
            .await
            .with_context(|| format!("cannot apply {file}"))?;
    }
    Ok(())
}
