//! The Helm charts: the same objects as the manifests, values that are checked, and a real API server that takes and gives them
//! back.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use berth_api::pool::BootcNodePool;
use berth_core::controller::installation::{OLDEST_KUBERNETES, POLICIES};
use berth_tests::controlplane::{Bound, ControlPlane, Options};
use berth_tests::manifests::{self, chart, is_hook, overlay, overlays, with_components};
use berth_tests::programs::{self, read, workspace_root};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Map, Value, json};
use tokio::process::Command;

use crate::overlays::{IMAGES, VERSION, add_foreign_kinds, containers, kustomization};
use crate::said::{Said, run};

const CHARTS: [&str; 2] = ["berth-crds", "berth"];
/// Annotation of the objects that Helm leaves in the cluster.
const POLICY: &str = "helm.sh/resource-policy";

/// Kind and name of each object, with the object.
type Objects = BTreeMap<String, Value>;

/// Objects in a form that can be compared: without Helm's own annotation, with one form for each number, and with volumes,
/// mounts and variables sorted, whose order means nothing.
fn comparable(objects: Vec<Value>) -> Result<Objects> {
    let mut all = Objects::new();
    for mut object in objects {
        if is_hook(&object) {
            continue;
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            let notes = metadata.get_mut("annotations").and_then(Value::as_object_mut);
            if notes.is_some_and(|notes| notes.remove(POLICY).is_some() && notes.is_empty()) {
                metadata.remove("annotations");
            }
        }
        sort(&mut object);
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key = format!("{} {namespace}/{name}", object["kind"].as_str().unwrap_or_default());
        ensure!(all.insert(key.clone(), object).is_none(), "{key} is there twice");
    }
    Ok(all)
}

fn sort(value: &mut Value) {
    match value {
        Value::Object(fields) => sort_fields(fields),
        Value::Array(items) => items.iter_mut().for_each(sort),
        // kustomize turns 0.0 of the generated CRDs into 0.
        Value::Number(number) => {
            if let Some(whole) = number.as_f64().filter(|float| float.fract() == 0.0) {
                *value = json!(whole);
            }
        }
        _ => {}
    }
}

fn sort_fields(fields: &mut Map<String, Value>) {
    for (name, field) in fields.iter_mut() {
        sort(field);
        let key = match name.as_str() {
            "volumes" | "env" => "name",
            "volumeMounts" => "mountPath",
            _ => continue,
        };
        if let Some(items) = field.as_array_mut() {
            items.sort_by_key(|item| item[key].as_str().unwrap_or_default().to_owned());
        }
    }
}

/// Values of a comment of an overlay: `# Helm: --set a=b,c=d`.
fn values(text: &str, prefix: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(prefix));
    line.into_iter()
        .flat_map(|line| line.split(','))
        .map(str::to_owned)
        .collect()
}

fn charts(of_crds: &[String], of_berth: &[String]) -> Result<Objects> {
    let of_crds: Vec<&str> = of_crds.iter().map(String::as_str).collect();
    let of_berth: Vec<&str> = of_berth.iter().map(String::as_str).collect();
    comparable([chart("berth-crds", &of_crds)?, chart("berth", &of_berth)?].concat())
}

/// The first difference of the chart's object, with its path.
fn difference(expected: &Value, found: &Value) -> Option<String> {
    let parts: Vec<(String, &Value, &Value)> = match (expected, found) {
        (Value::Object(fields), Value::Object(others)) if fields.keys().eq(others.keys()) => fields
            .iter()
            .map(|(name, field)| (name.clone(), field, &others[name]))
            .collect(),
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => items
            .iter()
            .zip(others)
            .enumerate()
            .map(|(n, (item, other))| (n.to_string(), item, other))
            .collect(),
        _ if expected == found => return None,
        _ => return Some(format!("{expected}, and the chart has {found}")),
    };
    for (name, expected, found) in parts {
        if let Some(inner) = difference(expected, found) {
            return Some(format!("{name}/{inner}"));
        }
    }
    None
}

/// Fails at the first object that differs.
fn ensure_same(what: &str, expected: &Objects, found: &Objects) -> Result<()> {
    let names: Vec<_> = expected.keys().collect();
    ensure!(
        names == found.keys().collect::<Vec<_>>(),
        "{what}: {names:?}, {:?}",
        found.keys()
    );
    for (key, object) in expected {
        if let Some(difference) = difference(object, &found[key]) {
            bail!("{what}, {key}: {difference}");
        }
    }
    Ok(())
}

/// Object by object, the charts are the base, and with the values of its comment each overlay.
#[test]
fn the_charts_are_the_manifests() -> Result<()> {
    let base = comparable(with_components(&[])?)?;
    ensure_same("base", &base, &charts(&[], &[])?)?;
    for name in overlays()? {
        let text = kustomization(&name)?;
        let found = charts(
            &values(&text, "# Helm, berth-crds: --set "),
            &values(&text, "# Helm: --set "),
        )?;
        ensure_same(&name, &comparable(overlay(&name)?)?, &found)?;
    }
    let impersonating = comparable(with_components(&["impersonation"])?)?;
    let found = charts(&[], &["impersonation=true".to_owned()])?;
    ensure_same("impersonation", &impersonating, &found)
}

/// Runs Helm in `charts/`.
fn helm(arguments: &[&str]) -> Result<Said> {
    let home = tempfile::tempdir()?;
    let output = manifests::helm(home.path())?
        .args(arguments)
        .output()
        .context("running helm")?;
    Ok(Said::of(&output))
}

#[test]
fn the_charts_pass_helms_own_lint() -> Result<()> {
    for name in CHARTS {
        helm(&["lint", "--strict", "--namespace", "berth-system", name])?.well(&["0 chart(s) failed"])?;
    }
    let all = "distribution=openshift,impersonation=true,monitoring.enabled=true,images.pullSecrets={a},agent.tokenAudiences={b}";
    helm(&["lint", "--strict", "--namespace", "berth-system", "berth", "--set", all])?.well(&["0 chart(s) failed"])?;
    Ok(())
}

/// The schema refuses wrong values, and its message names the value.
#[test]
fn wrong_values_are_refused() -> Result<()> {
    for (name, values, words) in [
        ("berth", "distribution=talos", "'/distribution': value must be one of"),
        ("berth", "onControlPane=true", "'onControlPane' not allowed"),
        (
            "berth",
            "agent.enable=false",
            "'/agent': additional properties 'enable' not allowed",
        ),
        (
            "berth",
            "controller.replicas=0",
            "'/controller/replicas': minimum: got 0, want 1",
        ),
        (
            "berth",
            "impersonation=yes",
            "'/impersonation': got string, want boolean",
        ),
        (
            "berth",
            "agent.image.digest=sha256:1",
            "'/agent/image/digest': 'sha256:1' does not match",
        ),
        (
            "berth",
            "images.registry=https://a/b",
            "'/images/registry': 'https://a/b' does not match",
        ),
        ("berth", "agent.extraArgs={heartbeat=1m}", "'/agent/extraArgs/0'"),
        ("berth", "controller.extraEnv[0].name=A", "missing property 'value'"),
        ("berth", "agent.tokenAudiences={a'b}", "'/agent/tokenAudiences/0'"),
        ("berth", "registries.ca=x", "'/registries/ca'"),
        (
            "berth-crds",
            "namespace.name=x",
            "'/namespace': additional properties 'name' not allowed",
        ),
        ("berth-crds", "keep=1", "'/keep': got number, want boolean"),
    ] {
        let arguments = ["template", "x", name, "--namespace", "berth-system", "--set", values];
        helm(&arguments)?.fails(&[words]).with_context(|| values.to_owned())?;
    }
    helm(&["template", "x", "berth", "--namespace", "default"])?.fails(&["add --namespace berth-system"])
}

fn object(objects: &[Value], kind: &str, name: &str) -> Result<Value> {
    let found = objects
        .iter()
        .find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.cloned().with_context(|| format!("no {kind} {name}"))
}

/// Values with characters that mean something to YAML or to the templates come out as they are.
#[test]
fn values_are_quoted() -> Result<()> {
    let strange = "a: b # {{ c }} \"d\" 'e' yes";
    let digest = format!("sha256:{}", "0".repeat(64));
    let values = json!({
        "images": { "registry": "localhost:5000/a", "pullSecrets": ["1"], "pullPolicy": "Never" },
        "agent": {
            "image": { "tag": "1.0", "digest": digest },
            "extraArgs": [format!("--x={strange}")],
            "nodeSelector": { "a": "true" },
            "tokenAudiences": ["https://one", "two"],
        },
        "controller": { "extraEnv": [{ "name": "A", "value": strange }], "image": { "tag": "2" } },
        "registries": { "ca": "-----BEGIN CERTIFICATE-----\nA\n", "conf": format!("# {strange}\n[[registry]]\n") },
        "monitoring": { "enabled": true, "labels": { "release": "1" } },
    });
    let home = tempfile::tempdir()?;
    let file = home.path().join("values.json");
    std::fs::write(&file, values.to_string())?;
    let text = file.to_string_lossy().into_owned();
    let said = helm(&[
        "template",
        "x",
        "berth",
        "--namespace",
        "berth-system",
        "--values",
        &text,
    ])?
    .well(&[])?;
    let objects = manifests::objects(&said.out)?;
    let agent = object(&objects, "DaemonSet", "berth-agent")?;
    let pod = &agent["spec"]["template"]["spec"];
    ensure!(pod["containers"][0]["image"] == format!("localhost:5000/a/berth-agent:1.0@{digest}"));
    ensure!(pod["containers"][0]["imagePullPolicy"] == "Never" && pod["imagePullSecrets"] == json!([{"name": "1"}]));
    ensure!(pod["containers"][0]["args"][3] == format!("--x={strange}"), "{agent}");
    ensure!(pod["nodeSelector"] == json!({"a": "true", "kubernetes.io/os": "linux"}));
    let controller = object(&objects, "Deployment", "berth-controller")?;
    let container = &controller["spec"]["template"]["spec"]["containers"][0];
    ensure!(container["image"] == "localhost:5000/a/berth-controller:2");
    ensure!(
        container["env"][1] == json!({"name": "A", "value": strange}),
        "{container}"
    );
    let registries = object(&objects, "ConfigMap", "berth-registries")?;
    ensure!(registries["data"]["registries.conf"] == values["registries"]["conf"]);
    ensure!(registries["data"]["ca.crt"] == values["registries"]["ca"]);
    let policy = object(&objects, "ValidatingAdmissionPolicy", "berth-agent-own-token")?;
    ensure!(
        policy["spec"]["variables"][0]["expression"] == "['https://one', 'two']",
        "{policy}"
    );
    for (kind, name) in [("PodMonitor", "berth-agent"), ("PrometheusRule", "berth")] {
        let monitor = object(&objects, kind, name)?;
        ensure!(monitor["metadata"]["labels"]["release"] == "1", "{monitor}");
    }
    Ok(())
}

fn yaml(path: &str) -> Result<Value> {
    serde_saphyr::from_str(&read(path)?).context(path.to_owned())
}

#[test]
fn the_charts_have_the_version_of_the_programs() -> Result<()> {
    for name in CHARTS {
        let chart = yaml(&format!("charts/{name}/Chart.yaml"))?;
        ensure!(chart["version"] == VERSION && chart["appVersion"] == VERSION, "{chart}");
        let (major, minor) = OLDEST_KUBERNETES;
        ensure!(chart["kubeVersion"] == format!(">={major}.{minor}.0-0"), "{chart}");
    }
    let chart = yaml("charts/berth/Chart.yaml")?;
    let images = chart["annotations"]["artifacthub.io/images"]
        .as_str()
        .unwrap_or_default();
    for program in ["berth-agent", "berth-controller"] {
        let image = format!("image: {IMAGES}/{program}:{VERSION}\n");
        ensure!(images.contains(&image), "{images}");
    }
    for key in [
        "artifacthub.io/crds",
        "artifacthub.io/crdsExamples",
        "artifacthub.io/links",
    ] {
        let text = chart["annotations"][key].as_str().context(key)?;
        let list: Vec<Value> = serde_saphyr::from_str(text).context(key)?;
        ensure!(!list.is_empty(), "{key}");
    }
    let example = chart["annotations"]["artifacthub.io/crdsExamples"]
        .as_str()
        .unwrap_or_default();
    let pools: Vec<BootcNodePool> = serde_saphyr::from_str(example)?;
    ensure!(
        pools.iter().all(|pool| pool.spec.is_paused()),
        "the example rolls out at once"
    );
    Ok(())
}

/// The path of each value with its default as JSON. A map with keys of the admin's choice is one value.
fn leaves(path: &str, value: &Value, into: &mut BTreeMap<String, String>) {
    let free = ["resources", "nodeSelector", "labels"];
    let name = path.rsplit('.').next().unwrap_or_default();
    match value {
        Value::Object(fields) if !free.contains(&name) => {
            for (name, field) in fields {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(&path, field, into);
            }
        }
        _ => drop(into.insert(path.to_owned(), value.to_string())),
    }
}

/// docs/helm.md has a row for each value, with its default, and for no other.
#[test]
fn every_value_is_documented() -> Result<()> {
    let page = read("docs/helm.md")?;
    let mut found = BTreeMap::new();
    for name in CHARTS {
        let section = page.split_once(&format!("Values of `{name}`")).context("no section")?.1;
        let mut expected = BTreeMap::new();
        leaves("", &yaml(&format!("charts/{name}/values.yaml"))?, &mut expected);
        let rows = section
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'));
        found.clear();
        for row in rows.skip(2) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let (path, default) = match cells.as_slice() {
                [path, default, _] => (path.trim_matches(['|', '`', ' ']), default.trim_matches('`')),
                _ => bail!("not three cells: {row}"),
            };
            found.insert(path.to_owned(), default.to_owned());
        }
        ensure!(found == expected, "{name}: values.yaml has {expected:#?}");
    }
    Ok(())
}

/// Each value has a comment of its own above it.
#[test]
fn every_value_has_a_comment() -> Result<()> {
    for name in CHARTS {
        let text = read(&format!("charts/{name}/values.yaml"))?;
        let mut leaves_of_chart = BTreeMap::new();
        leaves("", &serde_saphyr::from_str(&text)?, &mut leaves_of_chart);
        let mut before = "";
        let mut commented = 0;
        for line in text.lines() {
            if before.trim_start().starts_with('#') && !line.trim_start().starts_with('#') {
                commented += 1;
            }
            before = line;
        }
        // Groups of values may have a comment, too.
        ensure!(
            commented >= leaves_of_chart.len(),
            "{name}: {commented} comments, {leaves_of_chart:?}"
        );
    }
    Ok(())
}

/// Pods of `helm test` and of the policies need nothing but Berth's own image.
#[test]
fn the_test_of_the_chart_uses_berths_image() -> Result<()> {
    let objects = chart("berth", &[])?;
    let pod = object(&objects, "Pod", "berth-test")?;
    let container = &pod["spec"]["containers"][0];
    ensure!(
        container["image"] == format!("{IMAGES}/berth-controller:{VERSION}") && container["args"] == json!(["check"])
    );
    ensure!(containers(&objects).len() == 2, "only the workloads of the manifests");
    let policies = read("manifests/base/admission-policies.yaml")?;
    let policies = manifests::objects(&policies)?;
    let names: Vec<_> = policies
        .iter()
        .filter(|object| object["kind"] == "ValidatingAdmissionPolicy")
        .map(|object| object["metadata"]["name"].as_str().unwrap_or_default())
        .collect();
    ensure!(names == POLICIES, "{names:?}");
    Ok(())
}

/// Helm with the admin's kubeconfig.
struct Admin<'a> {
    plane: &'a ControlPlane,
    home: &'a Path,
}

impl Admin<'_> {
    async fn helm(&self, arguments: &[&str]) -> Result<Said> {
        let kubeconfig = self.plane.kubeconfig_for("tom", &["system:masters"])?;
        let mut command = Command::from(manifests::helm(self.home)?);
        command.args(arguments).arg("--kubeconfig").arg(&kubeconfig.path);
        run(command).await
    }

    async fn well(&self, arguments: &[&str]) -> Result<Said> {
        let said = self.helm(arguments).await?;
        said.well(&[]).with_context(|| format!("helm {}", arguments.join(" ")))
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
async fn the_test_account_may_check(admin: &Admin<'_>) -> Result<()> {
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

/// Both charts are installed, upgraded and uninstalled on a real API server. CRDs, and so pools, stay until `keep` is off.
#[tokio::test]
async fn helm_installs_upgrades_and_uninstalls() -> Result<()> {
    let options = Options {
        controller_manager: false,
        ..Options::simulated_nodes()
    };
    let plane = ControlPlane::start(options).await?;
    add_foreign_kinds(&plane).await?;
    let home = tempfile::tempdir()?;
    let admin = Admin {
        plane: &plane,
        home: home.path(),
    };
    let missing = [
        "CRD bootcnodepools.berth.dev is missing",
        "policy berth-node-labels is missing",
    ];
    admin.check(None).await?.ends(1, &missing)?;

    // The namespace of the first release exists in every cluster; its chart creates berth-system.
    admin
        .well(&["install", "berth-crds", "berth-crds", "--namespace", "kube-system"])
        .await?;
    let in_berth = ["--namespace", "berth-system"];
    let said = admin
        .well(&[&["install", "berth", "berth"][..], &in_berth].concat())
        .await?;
    its_notes_have_a_paused_pool(&said)?;
    ensure!(workloads(&plane).await? == (Some(2), true));
    the_test_account_may_check(&admin).await?;

    let pools: Api<BootcNodePool> = Api::all(plane.admin_client());
    let pool: BootcNodePool = serde_saphyr::from_str(&read("manifests/samples/pool.yaml")?)?;
    pools.create(&PostParams::default(), &pool).await?;
    let other = [
        "--set",
        "controller.replicas=3,agent.enabled=false,distribution=k3s,monitoring.enabled=true",
    ];
    admin
        .well(&[&["upgrade", "berth", "berth"][..], &in_berth, &other].concat())
        .await?;
    ensure!(workloads(&plane).await? == (Some(3), false));
    admin
        .well(&[&["rollback", "berth", "1"][..], &in_berth].concat())
        .await?;
    ensure!(workloads(&plane).await? == (Some(2), true));

    admin.well(&[&["uninstall", "berth"][..], &in_berth].concat()).await?;
    ensure!(workloads(&plane).await? == (None, false));
    ensure!(definitions(&plane).await? == 3 && pools.get_opt("workers").await?.is_some());
    let said = admin.check(None).await?;
    said.ends(1, &["policy berth-agent-own-berth is missing: upgrade the chart berth"])?;
    ensure!(!said.err.contains("CRD"), "{said:?}");

    let of_crds = ["--namespace", "kube-system"];
    admin
        .well(&[&["uninstall", "berth-crds"][..], &of_crds].concat())
        .await?;
    ensure!(definitions(&plane).await? == 3, "the CRDs stay");
    let spaces: Api<Namespace> = Api::all(plane.admin_client());
    ensure!(spaces.get("berth-system").await?.metadata.deletion_timestamp.is_none());
    // The chart takes the remaining objects back, and removes them without `keep`.
    let all = ["install", "berth-crds", "berth-crds", "--set", "keep=false"];
    admin.well(&[&all[..], &of_crds].concat()).await?;
    admin
        .well(&[&["uninstall", "berth-crds"][..], &of_crds].concat())
        .await?;
    ensure!(definitions(&plane).await? == 0);
    Ok(())
}

/// A cluster whose objects came from the manifests moves to Helm, and the first release may create its own namespace.
#[tokio::test]
async fn helm_takes_over_from_the_manifests() -> Result<()> {
    let options = Options {
        controller_manager: false,
        ..Options::simulated_nodes()
    };
    let plane = ControlPlane::start(options).await?;
    let home = tempfile::tempdir()?;
    let admin = Admin {
        plane: &plane,
        home: home.path(),
    };
    let first = [
        "install",
        "berth-crds",
        "berth-crds",
        "--namespace",
        "berth-system",
        "--create-namespace",
    ];
    admin.well(&first).await?;
    let spaces: Api<Namespace> = Api::all(plane.admin_client());
    let labels = spaces.get("berth-system").await?.metadata.labels.unwrap_or_default();
    ensure!(
        labels
            .get("pod-security.kubernetes.io/enforce")
            .is_some_and(|level| level == "privileged")
    );

    plane
        .apply_manifests(&workspace_root().join("manifests/overlays/kubeadm"))
        .await?;
    let second = [
        "install",
        "berth",
        "berth",
        "--namespace",
        "berth-system",
        "--set",
        "onControlPlane=true",
    ];
    admin.helm(&second).await?.fails(&["invalid ownership metadata"])?;
    admin
        .well(&[&second[..], &["--take-ownership", "--force-conflicts"]].concat())
        .await?;
    admin.check(None).await?.well(&[])?;
    Ok(())
}
