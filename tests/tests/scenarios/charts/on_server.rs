//! Helm and the charts with a real API server.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use berth_api::pool::BootcNodePool;
use berth_tests::controlplane::{Bound, ControlPlane, Options};
use berth_tests::manifests::{self, chart, foreign_kinds, is_hook};
use berth_tests::programs::{self, read, workspace_root};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use tempfile::TempDir;
use tokio::process::Command;

use crate::said::{Said, berth_on, run};

/// A control plane, and an admin who has Helm.
struct Admin {
    plane: ControlPlane,
    home: TempDir,
}

impl Admin {
    async fn new() -> Result<Self> {
        let options = Options {
            controller_manager: false,
            ..Options::simulated_nodes()
        };
        let plane = ControlPlane::start(options).await?;
        for kind in foreign_kinds() {
            plane.apply_yaml(&kind.to_string()).await?;
        }
        let home = tempfile::tempdir()?;
        Ok(Self { plane, home })
    }

    /// Runs Helm with a command line without quotes.
    async fn helm(&self, line: &str) -> Result<Said> {
        let kubeconfig = self.plane.kubeconfig_for("tom", &["system:masters"])?;
        let mut command = Command::from(manifests::helm(self.home.path())?);
        command.args(line.split(' ')).arg("--kubeconfig").arg(&kubeconfig.path);
        run(command).await
    }

    async fn well(&self, line: &str) -> Result<Said> {
        let said = self.helm(line).await?;
        said.well(&[]).with_context(|| format!("helm {line}"))
    }

    /// Runs `berth-controller check` as the admin, or with this kubeconfig.
    async fn check(&self, kubeconfig: Option<&Path>) -> Result<Said> {
        let programs = tokio::task::spawn_blocking(programs::programs).await??;
        let admin = self.plane.kubeconfig_for("tom", &["system:masters"])?;
        let mut command = Command::new(programs.controller);
        command
            .args(["check", "--kubeconfig"])
            .arg(kubeconfig.unwrap_or(&admin.path));
        run(command).await
    }

    fn pools(&self) -> Api<BootcNodePool> {
        Api::all(self.plane.admin_client())
    }

    fn spaces(&self) -> Api<Namespace> {
        Api::all(self.plane.admin_client())
    }
}

async fn definitions(plane: &ControlPlane) -> Result<usize> {
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.admin_client());
    let all = definitions.list(&Default::default()).await?.items;
    let ours = all
        .iter()
        .filter(|one| one.spec.group == "berth.dev" && one.metadata.deletion_timestamp.is_none());
    Ok(ours.count())
}

async fn workloads(plane: &ControlPlane) -> Result<(Option<i32>, bool)> {
    let client = plane.admin_client();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "berth-system");
    let sets: Api<DaemonSet> = Api::namespaced(client, "berth-system");
    let controller = deployments.get_opt("berth-controller").await?;
    let replicas = controller.and_then(|deployment| deployment.spec?.replicas);
    Ok((replicas, sets.get_opt("berth-agent").await?.is_some()))
}

/// The account of `helm test` may read what the check reads.
async fn the_test_account_may_check(admin: &Admin) -> Result<()> {
    for object in chart("berth", &[])?
        .iter()
        .filter(|object| is_hook(object) && object["kind"] != "Pod")
    {
        admin.plane.apply_yaml(&object.to_string()).await?;
    }
    let account = admin
        .plane
        .service_account_kubeconfig("berth-system", "berth-test", Bound::Nothing)
        .await?;
    admin
        .check(Some(&account.path))
        .await?
        .well(&["has the CRDs and the admission policies of Berth"])?;
    Ok(())
}

/// The notes of the release have a pool to copy.
fn its_notes_have_a_paused_pool(said: &Said) -> Result<()> {
    let text = said.out.split("<<'EOF'\n").nth(1).context("no pool in the notes")?;
    let text = text.split("\nEOF\n").next().unwrap_or_default();
    let pool: BootcNodePool = serde_saphyr::from_str(text).context("the pool of the notes")?;
    ensure!(pool.spec.is_paused(), "{text}");
    said.says(&["kubectl berth status workers --preview", "kubectl berth resume workers"])
}

/// Both charts are installed, upgraded, rolled back and uninstalled on a real API server.
#[tokio::test]
async fn helm_installs_upgrades_and_uninstalls() -> Result<()> {
    let admin = Admin::new().await?;
    let missing = [
        "CRD bootcnodepools.berth.dev is missing",
        "policy berth-node-labels is missing",
    ];
    admin.check(None).await?.ends(1, &missing)?;

    // The namespace of the first release exists in every cluster; its chart creates berth-system.
    admin
        .well("install berth-crds berth-crds --namespace kube-system")
        .await?;
    let said = admin.well("install berth berth --namespace berth-system").await?;
    its_notes_have_a_paused_pool(&said)?;
    ensure!(workloads(&admin.plane).await? == (Some(2), true));
    the_test_account_may_check(&admin).await?;

    let pool: BootcNodePool = serde_saphyr::from_str(&read("manifests/samples/pool.yaml")?)?;
    admin.pools().create(&PostParams::default(), &pool).await?;
    let values = "controller.replicas=3,agent.enabled=false,distribution=k3s,monitoring.enabled=true";
    admin
        .well(&format!("upgrade berth berth --namespace berth-system --set {values}"))
        .await?;
    ensure!(workloads(&admin.plane).await? == (Some(3), false));
    admin.well("rollback berth 1 --namespace berth-system").await?;
    ensure!(workloads(&admin.plane).await? == (Some(2), true));

    admin.well("uninstall berth --namespace berth-system").await?;
    ensure!(workloads(&admin.plane).await? == (None, false));
    let said = admin.check(None).await?;
    said.ends(1, &["policy berth-agent-own-berth is missing: upgrade the chart berth"])?;
    ensure!(!said.err.contains("CRD"), "{said:?}");
    definitions_stay_until_keep_is_off(&admin).await
}

/// The CRDs and the namespace, and so the pools, outlive both releases. Without `keep`, they go with the release.
async fn definitions_stay_until_keep_is_off(admin: &Admin) -> Result<()> {
    let uninstall = "uninstall berth-crds --namespace kube-system";
    let command = format!("helm {uninstall}");
    let plan = berth_on(&admin.plane, &["uninstall", "--dry-run"]).await?;
    plan.well(&[&command])?;
    admin.well(uninstall).await?;
    // Helm leaves the objects with the marks of the release, which no longer exists.
    let plan = berth_on(&admin.plane, &["uninstall", "--dry-run"]).await?;
    let plan = plan.well(&[
        "CustomResourceDefinition: bootcfleets.berth.dev",
        "Namespace: berth-system",
    ])?;
    ensure!(!plan.out.contains("helm"), "{plan:?}");
    ensure!(definitions(&admin.plane).await? == 3 && admin.pools().get_opt("workers").await?.is_some());
    let space = admin.spaces().get("berth-system").await?;
    ensure!(space.metadata.deletion_timestamp.is_none(), "the namespace goes");
    // The chart takes over the remaining objects.
    admin
        .well("install berth-crds berth-crds --namespace kube-system --set keep=false")
        .await?;
    admin.well(uninstall).await?;
    ensure!(definitions(&admin.plane).await? == 0);
    Ok(())
}

/// A cluster whose objects came from the manifests moves to Helm. The first release may create its own namespace.
#[tokio::test]
async fn helm_takes_over_from_the_manifests() -> Result<()> {
    let admin = Admin::new().await?;
    admin
        .well("install berth-crds berth-crds --namespace berth-system --create-namespace")
        .await?;
    let space = admin.spaces().get("berth-system").await?;
    let labels = space.metadata.labels.unwrap_or_default();
    let level = labels.get("pod-security.kubernetes.io/enforce").map(String::as_str);
    ensure!(level == Some("privileged"), "{labels:?}");

    let overlay = workspace_root().join("manifests/overlays/kubeadm");
    admin.plane.apply_manifests(&overlay).await?;
    let install = "install berth berth --namespace berth-system --set onControlPlane=true";
    admin.helm(install).await?.fails(&["invalid ownership metadata"])?;
    admin
        .well(&format!("{install} --take-ownership --force-conflicts"))
        .await?;
    admin.check(None).await?.well(&[])?;
    Ok(())
}
