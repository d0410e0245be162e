//! Kubeconfigs in files.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::config::KubeConfigOptions;
use kube::{Client, Config};

/// A kubeconfig file with certificates and tokens embedded, so that the text works anywhere.
#[derive(Debug, Clone)]
pub struct Kubeconfig {
    /// Path of the file, in the control plane's directory.
    pub path: PathBuf,
    /// Text of the file.
    pub text: String,
}

impl Kubeconfig {
    pub(super) fn write(directory: &Path, name: &str, text: String) -> Result<Self> {
        let safe: String = name
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "-.".contains(c) {
                    c
                } else {
                    '_'
                }
            })
            .collect();
        let path = directory.join(format!("{safe}.kubeconfig"));
        replace(&path, &text).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { path, text })
    }

    /// A client with this identity.
    pub async fn client(&self) -> Result<Client> {
        crate::install_crypto();
        let parsed = kube::config::Kubeconfig::from_yaml(&self.text)?;
        let config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }
}

/// Replaces a file atomically, because other parts of a scenario may be reading it.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let readable = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(drop).map_err(std::io::Error::from)
}
