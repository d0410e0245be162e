//! Description of the cluster that the dashboard shows, and the commands that reach the same cluster.

use serde::Serialize;

use crate::doctor::quoted;

/// Cluster that the dashboard shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// Name of the cluster: the context in the kubeconfig, or a word for a cluster without a context.
    pub cluster: String,
    /// Version of this program.
    pub version: &'static str,
    /// First words of each command of this program, such as `kubectl berth --context prod`.
    pub command: String,
    /// First words of each other command, such as `kubectl --context prod`.
    #[serde(skip)]
    pub kubectl: String,
    /// The only pool to show; `None` for all.
    pub only: Option<String>,
}

impl About {
    /// Returns a description of a cluster. Options that are `None` are not in its commands.
    pub fn of(cluster: String, kubeconfig: Option<&str>, context: Option<&str>, namespace: Option<&str>) -> Self {
        let cluster_flags = flags(&[("--kubeconfig", kubeconfig), ("--context", context)]);
        let own_flags = flags(&[("--namespace", namespace)]);
        Self {
            cluster,
            version: env!("CARGO_PKG_VERSION"),
            command: format!("kubectl berth{cluster_flags}{own_flags}"),
            kubectl: format!("kubectl{cluster_flags}"),
            only: None,
        }
    }

    /// Returns a command for this cluster: `command` begins with `kubectl`.
    pub(super) fn command_here(&self, command: &str) -> String {
        if let Some(rest) = command.strip_prefix("kubectl berth ") {
            return format!("{} {rest}", self.command);
        }
        match command.strip_prefix("kubectl ") {
            Some(rest) => format!("{} {rest}", self.kubectl),
            None => command.to_owned(),
        }
    }
}

fn flags(options: &[(&str, Option<&str>)]) -> String {
    let mut flags = String::new();
    for (name, value) in options {
        if let Some(value) = value {
            flags += &format!(" {name} {}", quoted(value));
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_the_cluster() {
        let usual = About::of("c".to_owned(), None, None, None);
        assert_eq!(usual.command_here("kubectl berth pause p"), "kubectl berth pause p");
        let other = About::of("c".to_owned(), Some("/my files/k"), Some("prod"), Some("berth"));
        assert_eq!(
            other.command_here("kubectl berth pause p"),
            "kubectl berth --kubeconfig '/my files/k' --context prod --namespace berth pause p"
        );
        assert_eq!(
            other.command_here("kubectl uncordon n1"),
            "kubectl --kubeconfig '/my files/k' --context prod uncordon n1"
        );
    }
}
