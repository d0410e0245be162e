//! The files of a release that an admin downloads, made by `scripts/dist.sh` as for a release, but of programs in the profile of the
//! tests, and for this machine only.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::Result;

use crate::dist::{VERSION, run_script};
use crate::images::{Compression, Entry, ImageSpec, Layer, RegistryClient};
use crate::programs::{kubectl, static_agent, static_controller};
use crate::tools::{Tool, Tools, ensure_packages};

/// Host in the names of the shipped images.
pub const IMAGE_HOST: &str = "ghcr.io";
const IMAGE_REPOSITORY: &str = "berth-dev";
/// Certificate authorities that the controller trusts.
const CERTIFICATES: &str = "etc/ssl/certs/ca-certificates.crt";

/// User of the controller's image, as in the Containerfile.
const CONTROLLER_USER: &str = "65532:65532";

const FILES: &str = r#"
    programs=$1 builds=$2 to=$3
    architectures=(amd64)
    static_program() { echo "$programs/$2"; }
    need_kubectl
    need_helm
    plugin_archives "$to"
    install_files "$to"
    chart_archives "$to"
"#;

/// Writes the archives of plugin and charts, and the install files, into a directory.
pub fn write_files(to: &Path) -> Result<()> {
    ensure_packages(&["curl"])?;
    Tools::ensure(&[Tool::Kubectl, Tool::Helm])?;
    let work = tempfile::tempdir()?;
    let programs = work.path().join("programs");
    fs::create_dir(&programs)?;
    symlink(kubectl()?, programs.join("kubectl-berth"))?;
    run_script(FILES, &[&programs, work.path(), to])
}

/// The images of agent and controller. The controller trusts registries by these certificates, in PEM.
pub fn images(certificates: &str) -> Result<[(&'static str, ImageSpec); 2]> {
    let agent = ImageSpec::program(&static_agent()?, &[])?;
    let mut controller = ImageSpec::program(&static_controller()?, &[])?;
    let trusted = Entry::file(CERTIFICATES.to_owned(), certificates.as_bytes().to_vec());
    CONTROLLER_USER.clone_into(&mut controller.user);
    controller
        .layers
        .push(Layer::from_entries(&[trusted], Compression::None)?);
    Ok([("berth-agent", agent), ("berth-controller", controller)])
}

/// Pushes the images to a registry by the names that they have at [`IMAGE_HOST`].
pub async fn push(images: [(&str, ImageSpec); 2], registry: &RegistryClient) -> Result<()> {
    for (name, image) in images {
        let repository = format!("{IMAGE_REPOSITORY}/{name}");
        registry.push_image(&repository, Some(VERSION), &image.build()?).await?;
    }
    Ok(())
}
