//! The Helm charts: the same objects as the manifests, values that are checked, and a real API server that takes and gives them
//! back.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use berth_api::pool::BootcNodePool;
use berth_core::controller::installation::{OLDEST_KUBERNETES, POLICIES};
use berth_tests::manifests::{self, chart};
use berth_tests::programs::read;
use serde_json::{Value, json};

use crate::overlays::{IMAGES, VERSION, containers};
use crate::said::Said;

mod on_server;
mod same;

const CHARTS: [&str; 2] = ["berth-crds", "berth"];

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
