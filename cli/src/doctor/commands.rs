//! Commands of remedies: for the same cluster as this command, with the manifests that Berth was installed from.

/// Repository that the manifests of a release are in.
const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");
/// Version of this plugin.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Registry of the Helm charts.
const CHARTS: &str = "oci://ghcr.io/berth-dev/charts";
/// Chart with the CRDs alone.
const CRD_CHART: &str = "berth-crds";
/// Chart with everything else.
const CHART: &str = "berth";

/// Place of the manifests that Berth was installed from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Origin {
    /// The release of this plugin's version.
    #[default]
    Release,
    /// Directory with the files of `manifests/base`.
    Directory(String),
    /// Directory with a kustomization alone.
    Kustomization(String),
    /// File or address with everything.
    File(String),
}

/// Release of a Helm chart, from the annotations of an installed object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HelmRelease {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// Cluster that the commands are for, and the place of the manifests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Commands {
    /// Place of the manifests.
    pub origin: Origin,
    /// File with the cluster's address, if the user named one.
    pub kubeconfig: Option<String>,
    /// Context in the kubeconfig, if the user named one.
    pub context: Option<String>,
    /// True if Berth's namespace is the one that the release is made for.
    pub is_usual_namespace: bool,
}

impl Commands {
    /// Returns the command that applies the CRDs.
    pub(crate) fn crds(&self, helm: Option<&HelmRelease>) -> Vec<String> {
        match helm {
            Some(release) => vec![self.helm(release, CRD_CHART)],
            None => vec![self.apply("crds.yaml")],
        }
    }

    /// Returns the command that applies the admission policies. Empty if the release's manifests are for another
    /// namespace.
    pub(crate) fn policies(&self, helm: Option<&HelmRelease>) -> Vec<String> {
        match helm {
            Some(release) => vec![self.helm(release, CHART)],
            None if !self.fits() => vec![],
            None => vec![self.apply("admission-policies.yaml")],
        }
    }

    /// Returns the command that installs everything. Empty if the release's manifests are for another namespace.
    pub(crate) fn everything(&self, helm: Option<&HelmRelease>) -> Vec<String> {
        if let Some(release) = helm {
            return vec![self.helm(release, CHART)];
        }
        let kubectl = self.kubectl();
        match &self.origin {
            Origin::Release if !self.is_usual_namespace => vec![],
            Origin::Release => vec![format!(
                "{kubectl} apply --server-side -f {REPOSITORY}/releases/download/v{VERSION}/install.yaml"
            )],
            Origin::Directory(path) | Origin::Kustomization(path) => {
                vec![format!("{kubectl} apply --server-side -k {}", quoted(path))]
            }
            Origin::File(path) => vec![format!("{kubectl} apply --server-side -f {}", quoted(path))],
        }
    }

    /// True if the manifests are for Berth's namespace. Manifests of the user's own are assumed to be.
    fn fits(&self) -> bool {
        self.is_usual_namespace || self.origin != Origin::Release
    }

    fn apply(&self, file: &str) -> String {
        let kubectl = self.kubectl();
        // The file has the intended values, whichever program changed them.
        let apply = format!("{kubectl} apply --server-side --force-conflicts");
        match &self.origin {
            Origin::Release => {
                let files = REPOSITORY.replace("https://github.com/", "https://raw.githubusercontent.com/");
                format!("{apply} -f {files}/v{VERSION}/manifests/base/{file}")
            }
            Origin::Directory(path) => format!("{apply} -f {}", quoted(&format!("{path}/{file}"))),
            Origin::Kustomization(path) => format!("{apply} -k {}", quoted(path)),
            Origin::File(path) => format!("{apply} -f {}", quoted(path)),
        }
    }

    fn helm(&self, release: &HelmRelease, chart: &str) -> String {
        let flags = self.flags("--kube-context");
        let (name, namespace) = (quoted(&release.name), quoted(&release.namespace));
        format!(
            "helm{flags} upgrade {name} {CHARTS}/{chart} --version {VERSION} --namespace {namespace} --reuse-values"
        )
    }

    /// Returns `kubectl`, with the options that name the cluster.
    pub(crate) fn kubectl(&self) -> String {
        format!("kubectl{}", self.flags("--context"))
    }

    fn flags(&self, context: &str) -> String {
        let mut flags = String::new();
        for (name, value) in [("--kubeconfig", &self.kubeconfig), (context, &self.context)] {
            if let Some(value) = value {
                flags += &format!(" {name} {}", quoted(value));
            }
        }
        flags
    }
}

/// Returns a word that a shell reads as this text.
pub(crate) fn quoted(text: &str) -> String {
    let is_plain = !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_./:@=,+".contains(c));
    if is_plain {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(origin: Origin) -> Commands {
        Commands {
            origin,
            is_usual_namespace: true,
            ..Commands::default()
        }
    }

    #[test]
    fn commands_name_the_manifests() {
        let release = commands(Origin::Release);
        let crds = release.crds(None);
        let files = format!("https://raw.githubusercontent.com/berth-dev/berth/v{VERSION}/manifests/base");
        assert_eq!(
            crds,
            [format!(
                "kubectl apply --server-side --force-conflicts -f {files}/crds.yaml"
            )]
        );
        let install = format!("https://github.com/berth-dev/berth/releases/download/v{VERSION}/install.yaml");
        assert_eq!(
            release.everything(None),
            [format!("kubectl apply --server-side -f {install}")]
        );
        let own = commands(Origin::Directory("my manifests".to_owned()));
        let policies = "kubectl apply --server-side --force-conflicts -f 'my manifests/admission-policies.yaml'";
        assert_eq!(own.policies(None), [policies]);
        assert_eq!(own.everything(None), ["kubectl apply --server-side -k 'my manifests'"]);
        let overlay = commands(Origin::Kustomization("east".to_owned()));
        assert_eq!(
            overlay.crds(None),
            ["kubectl apply --server-side --force-conflicts -k east"]
        );
        let file = commands(Origin::File("install.yaml".to_owned()));
        assert_eq!(file.everything(None), ["kubectl apply --server-side -f install.yaml"]);
    }

    #[test]
    fn commands_are_for_the_same_cluster() {
        let there = Commands {
            kubeconfig: Some("/home/me/it's.yaml".to_owned()),
            context: Some("east".to_owned()),
            ..commands(Origin::Release)
        };
        assert_eq!(
            there.kubectl(),
            r"kubectl --kubeconfig '/home/me/it'\''s.yaml' --context east"
        );
        let release = HelmRelease {
            name: "berth".to_owned(),
            namespace: "berth-system".to_owned(),
        };
        let upgrade = format!(
            r"helm --kubeconfig '/home/me/it'\''s.yaml' --kube-context east upgrade berth oci://ghcr.io/berth-dev/charts/berth --version {VERSION} --namespace berth-system --reuse-values"
        );
        assert_eq!(there.policies(Some(&release)), [upgrade]);
        assert!(there.crds(Some(&release))[0].contains("/charts/berth-crds "));
    }

    #[test]
    fn a_release_is_not_applied_for_another_namespace() {
        let elsewhere = Commands::default();
        assert_eq!(elsewhere.policies(None).len() + elsewhere.everything(None).len(), 0);
        assert_eq!(elsewhere.crds(None).len(), 1, "CRDs have no namespace");
        let own = Commands {
            origin: Origin::Kustomization("mine".to_owned()),
            ..Commands::default()
        };
        assert_eq!(own.policies(None).len() + own.everything(None).len(), 2);
    }
}
