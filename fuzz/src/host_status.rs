//! Properties of a host's deployments, whichever tool reports them.

use std::sync::LazyLock;

use berth_agent::host::HostStatus;
use berth_api::backend::Backend;
use berth_api::node::{BootcNode, BootcNodeSpec, BootcNodeStatus};
use berth_core::agent::backend::{CommonReason, shown};
use serde_json::json;

use crate::schema::Schema;
use crate::text::{is_line, is_printable};

static SCHEMA: LazyLock<Schema> = LazyLock::new(Schema::of::<BootcNode>);

/// Panics if the deployments do not fit into a BootcNode's status, or if a part of them that becomes an argument of a
/// command or a path is not a plain word.
pub fn fits(status: &HostStatus) {
    let backend = shown(Backend::RpmOstree, CommonReason::LayeredHost, &status.layered_packages);
    let reported = BootcNodeStatus {
        booted: Some(status.booted.clone()),
        staged: status.staged.clone(),
        rollback: status.rollback.clone(),
        backend: Some(backend),
        ..BootcNodeStatus::default()
    };
    let json = serde_json::to_value(&reported).unwrap_or_default();
    is_printable(&json);
    let object = json!({"metadata": {"name": "n"}, "spec": BootcNodeSpec::default(), "status": json});
    assert_eq!(SCHEMA.refuses(&object), None);
    for commit in [&status.booted_commit, &status.staged_commit].into_iter().flatten() {
        assert!(commit.len() == 64 && is_hex(commit), "{commit:?}");
    }
    if let Some(name) = &status.staged_verity {
        assert!(
            is_hex(name) && [64, 128].contains(&name.len()),
            "{name:?} is an argument of a command"
        );
    }
    if let Some(files) = &status.staged_files {
        let path = files.display().to_string();
        assert!(
            path.starts_with("/sysroot/ostree/deploy/") && !path.contains("/../"),
            "{path:?}"
        );
    }
    if let Some(why) = &status.unreadable_lock {
        is_line(why, usize::MAX);
    }
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
