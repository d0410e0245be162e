//! Fuzzes the parser of `firstboot.toml`, and the texts about a first boot.

use std::path::Path;

use berth_core::firstboot::config::Config;
use berth_core::firstboot::node::has_kubelet_port;
use berth_core::firstboot::{Verdict, messages};
use berth_core::skew::ignition;

use crate::text::{are_lines, is_line};

/// Parses the input as `firstboot.toml`. Panics if a valid file has a path that is not absolute or a name of several
/// lines, or if a text for the console, the journal or the cluster has a line that was not meant to be one.
pub fn firstboot(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let config = Config::parse(data);
    let verdict = match &config {
        Ok(config) => {
            let files = [Some(&config.override_file), config.kubeconfig.as_ref()];
            let files = files.into_iter().flatten().chain(&config.signs.files);
            files.for_each(|path| assert!(path.is_absolute(), "{path:?}"));
            if let Some(name) = &config.node_name {
                is_line(name, 253);
            }
            assert!(!config.deadline.is_zero() && config.deadline.as_secs() <= 24 * 3600);
            config.signs.is_kubelet(&text, data);
            Verdict::host_failed(&text)
        }
        Err(error) => Verdict::invalid_config(&error.to_string()),
    };
    for verdict in [verdict.clone(), verdict.overridden_by(Path::new(&*text))] {
        printed(config.as_ref().ok(), &verdict);
    }
    has_kubelet_port(&text);
    if let Some(time) = ignition::provisioned(data) {
        assert!(time.as_second() > 0);
    }
}

fn printed(config: Option<&Config>, verdict: &Verdict) {
    is_line(&verdict.message(), 1025);
    for (name, value) in messages::journal(config, verdict) {
        is_line(&value, 1200);
        assert!(!name.contains('='));
    }
    if let Some(notice) = messages::notice(config, verdict) {
        are_lines(&notice);
        assert!(!notice.contains('\\'), "getty would interpret a backslash: {notice:?}");
    }
}
