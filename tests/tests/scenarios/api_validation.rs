//! A real API server refuses wrong pools and nodes, and accepts right ones. Messages of our rules say how to fix the
//! error.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of a test fail like the test"
)]

use std::path::PathBuf;

use anyhow::{Context, Result};
use berth_tests::controlplane::{ControlPlane, Options};
use berth_tests::programs::workspace_root;
use kube::Client;
use serde_json::Value;

const POOLS: &str = "/apis/berth.dev/v1alpha1/bootcnodepools";
const FLEETS: &str = "/apis/berth.dev/v1alpha1/bootcfleets";
const NODES: &str = "/apis/berth.dev/v1alpha1/bootcnodes";

const HEX: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

const NO_REFERENCE: &str =
    "image.ref is not an image reference; write one without spaces or options, such as quay.io/example/os:stable";
const NO_REGISTRY: &str = "image.ref names no registry; write the whole reference, such as quay.io/example/os:stable";
const NO_TAG: &str = "image.ref has neither a tag nor a digest; add one, such as :stable or @sha256:…";
const NO_DIGEST: &str =
    "the part of image.ref after @ is not a digest; write @sha256: followed by 64 lower-case hex digits";
const NO_REPOSITORY: &str = "image.ref has an invalid repository or tag; write repositories in lower case, and tags with letters, digits, '.', '_' and '-'";
const UNAVAILABLE: &str =
    "maxUnavailable must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%";
const STAGING: &str =
    "maxStaging must be a whole number from 1 to 1000000, or a percentage from 1% to 100%, such as 25%";
const REBOOT: &str = "rebootTimeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h";
const DRAIN: &str = "drain.timeout must be a duration above zero: a whole number and a unit, such as 90s, 15m or 1h";
const VALUES: &str = "the operators In and NotIn need values; Exists and DoesNotExist must not have any";
const INTERVAL: &str = "progressInterval must be a duration: 0, or a whole number and a unit, such as 5s or 1m";

const CRON: &str = "windows[].schedule must be five cron fields (minute hour day month weekday), such as '0 22 * * 5'";
const LASTS: &str = "windows[].duration must be from 1m to 168h, such as 90m or 8h";
const ZONE: &str = "windows[].timeZone must be an IANA time zone, such as Europe/Berlin or UTC";
const SPLAY: &str = "windows[].splay must be a duration: 0, or a whole number and a unit, such as 10m";
const UNITS: &str = "health.ignoredUnits must be full names of units, such as a.service, or prefixes followed by *";
const SOAK: &str = "soakTime must be a duration: 0, or a whole number and a unit, such as 30m or 12h";
const RESERVED: &str =
    "a wave cannot be named rest or control-plane, the names of the built-in last waves; choose another name";
const WAVE_NAME: &str = "the name of a wave must be lower-case letters, digits and '-', such as canary";
const WAVE_SELECTOR: &str = "waves[].nodeSelector is missing; write the labels of the wave's nodes";
const BACKWARDS: &str = "exclusions[].from must be before exclusions[].to";
const POLL: &str = "pollInterval must be 0, or a duration of at least 1m, such as 15m or 12h";
const SECRET: &str = "pullSecret must be the name of a Secret in the controller's namespace";
const MANUAL: &str = "bootImage.manual is required with source: Manual and forbidden otherwise";
const PREFIXES: &str =
    "each entry of allowedRegistries must be the beginning of an image reference, without scheme, tag, digest";
const ONE_FLEET: &str = "the only BootcFleet must be named cluster; write metadata.name: cluster";

/// Wrong values of `rollout`, and text that the refusal must contain.
const WRONG_ROLLOUTS: &[(&str, &str)] = &[
    ("windows: [{schedule: '0 0 22 * * 5', duration: 8h}]", CRON),
    ("windows: [{schedule: '22 * * 5', duration: 8h}]", CRON),
    ("windows: [{schedule: '@daily', duration: 8h}]", CRON),
    ("windows: [{schedule: ' 0 22 * * 5', duration: 8h}]", CRON),
    (
        "windows: [{duration: 8h}]",
        "windows[].schedule is missing; write five cron fields, such as '0 22 * * 5'",
    ),
    (
        "windows: [{schedule: '0 22 * * 5'}]",
        "windows[].duration is missing; write how long the window lasts, such as 90m or 8h",
    ),
    (
        "exclusions: [{from: '2026-12-27T00:00:00Z', to: '2026-12-20T00:00:00Z'}]",
        BACKWARDS,
    ),
    (
        "exclusions: [{from: '2026-12-20T00:00:00Z', to: '2026-12-20T00:00:00Z'}]",
        BACKWARDS,
    ),
    (
        "exclusions: [{from: '2026-12-20T00:00:00Z'}]",
        "spec.rollout.exclusions[0].to: Required value",
    ),
    (
        "exclusions: [{from: '2026-12-20', to: '2026-12-27'}]",
        "spec.rollout.exclusions[0].from",
    ),
    ("waves: [{name: canary}]", WAVE_SELECTOR),
    (
        "waves: [{nodeSelector: {}}]",
        "spec.rollout.waves[0].name: Required value",
    ),
    ("waves: [{name: rest, nodeSelector: {}}]", RESERVED),
    ("waves: [{name: control-plane, nodeSelector: {}}]", RESERVED),
    ("waves: [{name: Canary, nodeSelector: {}}]", WAVE_NAME),
    ("waves: [{name: '', nodeSelector: {}}]", WAVE_NAME),
    (
        "waves: [{name: a, nodeSelector: {}}, {name: a, nodeSelector: {}}]",
        "Duplicate value",
    ),
    ("waves: [{name: a, nodeSelector: {}, soakTime: 1.5h}]", SOAK),
    (
        "waves: [{name: a, nodeSelector: {matchExpressions: [{key: a, operator: In}]}}]",
        VALUES,
    ),
    ("soakTime: '30'", SOAK),
    ("maxFailures: 0", "should be greater than or equal to 1"),
    ("maxFailures: 65", "should be less than or equal to 64"),
    ("retryToken: LONGTAG", "may not be more than 64"),
];

/// Wrong fields beside a window's `schedule` and `duration`, and text that the refusal must contain.
const WRONG_WINDOWS: &[(&str, &str)] = &[
    ("timeZone: '+01:00'", ZONE),
    ("timeZone: ''", ZONE),
    ("timeZone: '../etc/localtime'", ZONE),
    ("splay: soon", SPLAY),
    ("start: x", "unknown field \"spec.rollout.windows[0].start\""),
];

const WRONG_DURATIONS: &[&str] = &["169h", "10081m", "59s", "8h30m", "1d"];

const RIGHT_ROLLOUTS: &[&str] = &[
    "windows: [{schedule: '0 22 * * 5', duration: 8h, timeZone: Europe/Berlin, splay: 10m}]",
    "windows: [{schedule: '*/5 0-6,22 1,15 JAN-MAR sun', duration: 168h, timeZone: Etc/GMT+5, splay: '0'}]",
    "windows: [{schedule: '* * * * *', duration: 1m}, {schedule: '* * * * *', duration: 60s}]",
    "exclusions: [{from: '2026-12-20T00:00:00Z', to: '2027-01-02T08:00:00+01:00'}]",
    "soakTime: '0', waves: []",
    "soakTime: 30m, waves: [{name: canary, nodeSelector: {matchLabels: {a: b}}, soakTime: 12h}, \
      {name: late-1, nodeSelector: {}, includeControlPlane: true}]",
    "maxFailures: 1, retryToken: again, zoneKey: example.com/rack",
    "maxFailures: 64, retryToken: ''",
];

/// Wrong references, and text that the refusal must contain. `HEX` stands for 64 digits.
const WRONG_REFERENCES: &[(&str, &str)] = &[
    ("", NO_REFERENCE),
    ("quay.io/e/os:v1 --apply", NO_REFERENCE),
    ("--option", NO_REFERENCE),
    ("-v.io/e/os:v1", NO_REFERENCE),
    ("quay.io/e/os:v1\\n", NO_REFERENCE),
    ("quay.io/e/os:v1;reboot", NO_REFERENCE),
    ("docker://quay.io/e/os:v1", NO_REPOSITORY),
    ("os:v1", NO_REGISTRY),
    ("library/os:v1", NO_REGISTRY),
    ("quay.io/e/os", NO_TAG),
    ("localhost:5000/os", NO_TAG),
    ("quay.io/e/os@sha256:abc", NO_DIGEST),
    ("quay.io/e/os@md5:HEX", NO_DIGEST),
    ("quay.io/e/os@sha256:HEX0", NO_DIGEST),
    ("quay.io/e/os:v1@", NO_DIGEST),
    ("quay.io/Example/os:v1", NO_REPOSITORY),
    ("quay.io//os:v1", NO_REPOSITORY),
    ("quay.io/e/os:.v1", NO_REPOSITORY),
    ("quay.io/e/os:LONGTAG", NO_REPOSITORY),
    ("quay.io/LONGPATH:v1", "may not be more than 512"),
];

/// Wrong fields beside `image.ref`, and text that the refusal must contain.
const WRONG_IMAGES: &[(&str, &str)] = &[
    ("pollInterval: 59s", POLL),
    ("pollInterval: 5", "spec.image.pollInterval"),
    ("pollInterval: daily", POLL),
    (
        "minimumAge: -1h",
        "minimumAge must be a duration: 0, or a whole number and a unit, such as 30m or 12h",
    ),
    ("pullSecret: 'a/b'", SECRET),
    ("digest: 'sha256:HEX'", "unknown field \"spec.image.digest\""),
];

const WRONG_UNAVAILABLE: &[&str] = &["0", "-1", "'0%'", "'150%'", "'two'", "'2'", "''", "99999999999"];

const WRONG_TIMEOUTS: &[&str] = &["'12'", "'-5m'", "'0s'", "'1h30m'"];

/// Wrong fields beside `nodeSelector` and `image`, and text that the refusal must contain.
const WRONG_FIELDS: &[(&str, &str)] = &[
    ("host: {signature: Always}", "spec.host.signature"),
    (
        "toleratedUpdaters: [zincati]",
        "toleratedUpdaters accepts only bootc-fetch-apply-updates.timer, ",
    ),
    ("bootImage: {source: Manual}", MANUAL),
    ("bootImage: {manual: {version: '9.6'}}", MANUAL),
    ("bootImage: {source: Nodes, manual: {version: '9.6'}}", MANUAL),
    (
        "bootImage: {source: Manual, manual: {}}",
        "bootImage.manual.version is missing; write an OS version, such as 9.6.20251023-0",
    ),
    (
        "bootImage: {source: Manual, manual: {version: latest}}",
        "bootImage.manual.version must be an OS version, such as 9.6.20251023-0 or 42.20250901.3.0",
    ),
    (
        "bootImage: {minimumVersion: '>=9.6'}",
        "bootImage.minimumVersion must be an OS version, such as 9.6 or 42.20250901.3.0",
    ),
    ("bootImage: {minimumVersion: 'LONGTAG'}", "may not be more than 128"),
    ("bootImage: {enforcement: Strict}", "spec.bootImage.enforcement"),
    ("rollout: {maxUnavailable: 1.5}", "spec.rollout.maxUnavailable"),
    ("rollout: {maxUnavailable: true}", "spec.rollout.maxUnavailable"),
    ("rollout: {maxStaging: 0}", STAGING),
    ("rollout: {maxStaging: '101%'}", STAGING),
    ("drain: {timeout: 'soon'}", DRAIN),
    ("drain: {timeout: '1.5h'}", DRAIN),
    ("rollout: {progressInterval: '5'}", INTERVAL),
    ("rollout: {progressInterval: '-1s'}", INTERVAL),
    ("drain: {timeout: 900}", "spec.drain.timeout"),
    ("rollout: {paused: 'yes'}", "spec.rollout.paused"),
    (
        "rollout: {maxUnavailble: 1}",
        "unknown field \"spec.rollout.maxUnavailble\"",
    ),
    (
        "rollout: {after: [infra, workers]}",
        "rollout.after names the pool itself, so the pool would never be updated",
    ),
    ("rollout: {after: ['']}", "spec.rollout.after[0]"),
    (
        "rollout: {after: [infra, infra]}",
        "spec.rollout.after[1]: Duplicate value",
    ),
    ("maxUnavailable: 1", "unknown field \"spec.maxUnavailable\""),
    (
        "health: {deadline: '0'}",
        "health.deadline must be a duration above zero",
    ),
    (
        "health: {soakTime: 10m}",
        "health.soakTime must be shorter than health.deadline",
    ),
    ("health: {ignoredUnits: [cloud-init]}", UNITS),
    ("health: {ignoredUnits: ['*.service']}", UNITS),
    (
        "health: {checks: [{name: a}]}",
        "must have exactly one of podsReady, httpGet and nodeCondition",
    ),
    (
        "health: {checks: [{name: a, httpGet: {port: 80}, nodeCondition: {type: Ready}}]}",
        "must have exactly one of podsReady, httpGet and nodeCondition",
    ),
    (
        "health: {checks: [{name: a, httpGet: {port: 80}}, {name: a, httpGet: {port: 81}}]}",
        "the checks of health.checks must have different names",
    ),
    (
        "health: {checks: [{name: a, httpGet: {port: 80, path: 'a b'}}]}",
        "httpGet.path must begin with a slash",
    ),
];

/// Other wrong specs of a pool, and text that the refusal must contain.
const WRONG_POOLS: &[(&str, &str)] = &[
    (
        "{image: {ref: 'quay.io/e/os:v1'}}",
        "nodeSelector is missing; write the labels of the nodes, or nodeSelector: {} to select all nodes",
    ),
    (
        "{nodeSelector: {}}",
        "image is missing; write image.ref, such as quay.io/example/os:stable",
    ),
    (
        "{nodeSelector: {}, image: {}}",
        "image.ref is missing; write the whole reference, such as quay.io/example/os:stable",
    ),
    ("{}", "nodeSelector is missing"),
    (
        "{nodeSelector: workers, image: {ref: 'quay.io/e/os:v1'}}",
        "spec.nodeSelector",
    ),
    ("{nodeSelector: {}, image: 'quay.io/e/os:v1'}", "spec.image"),
    ("{nodeSelector: {}, image: {ref: 42}}", "spec.image.ref"),
    (
        "{nodeSelector: {matchExpressions: [{key: a, operator: Equals, values: [b]}]}, image: {ref: 'quay.io/e/os:v1'}}",
        "supported values: \"In\"",
    ),
    (
        "{nodeSelector: {matchExpressions: [{key: a, operator: In}]}, image: {ref: 'quay.io/e/os:v1'}}",
        VALUES,
    ),
    (
        "{nodeSelector: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}, image: {ref: 'quay.io/e/os:v1'}}",
        VALUES,
    ),
    (
        "{nodeSelector: {matchExpressions: [{operator: Exists}]}, image: {ref: 'quay.io/e/os:v1'}}",
        "spec.nodeSelector.matchExpressions",
    ),
];

const RIGHT_REFERENCES: &[&str] = &[
    "quay.io/example/os:stable",
    "quay.io/e/os@sha256:HEX",
    "quay.io/e/os:v1@sha256:HEX",
    "localhost:5000/os:v1",
    "localhost/os:v1",
    "10.0.0.1:5000/deep/er/a_b.c-d:_V1.0-x",
];

const RIGHT_IMAGES: &[&str] = &[
    "pollInterval: '0', minimumAge: '0', pullSecret: quay",
    "pollInterval: 0s, minimumAge: 90m",
    "pollInterval: 1m",
    "pollInterval: 999999h",
];

const RIGHT_FIELDS: &[&str] = &[
    "health: {deadline: 1m, soakTime: 30s, onFailure: Hold}",
    "health: {checks: [{name: a, httpGet: {port: 6443, scheme: HTTPS, path: '/livez?verbose'}}]}",
    "health: {checks: [{name: a, podsReady: {namespace: net, selector: {matchLabels: {app: cni}}}}]}",
    "health: {ignoredUnits: ['cloud-init*', 'a@b\\\\x2d1.service', 'var-lib.mount']}",
    "host: {signature: Required}",
    "bootImage: {}",
    "bootImage: {source: Nodes, minimumVersion: stream9.20250910.0}",
    "bootImage: {source: Manual, manual: {version: '13.1~rc2'}}",
    "rollout: {}, drain: {}",
    "rollout: {paused: true, maxUnavailable: 1, maxStaging: 5}",
    "rollout: {maxUnavailable: '1%', maxStaging: '100%', after: [infra]}",
    "rollout: {rebootTimeout: 90s, progressInterval: '0'}, drain: {timeout: 1h}",
    "rollout: {rebootTimeout: 15m, progressInterval: 0s}",
];

const RIGHT_POOLS: &[&str] = &[
    "{nodeSelector: {matchLabels: {a: b, 'node-role.kubernetes.io/worker': ''}}, image: {ref: 'quay.io/example/os:stable'}}",
    "{nodeSelector: {matchExpressions: [{key: a, operator: In, values: [b]}, {key: c, operator: Exists}]}, image: {ref: 'quay.io/e/os:v1'}}",
    "{nodeSelector: {matchExpressions: [{key: a, operator: NotIn, values: [b, c]}, {key: c, operator: DoesNotExist}]}, image: {ref: 'quay.io/e/os:v1'}}",
];

/// Wrong specs of the fleet, and text that the refusal must contain.
const WRONG_FLEETS: &[(&str, &str)] = &[
    ("{paused: sometimes}", "spec.paused"),
    ("{image: {pollInterval: 30s}}", POLL),
    ("{image: {pullSecret: Quay}}", SECRET),
    ("{allowedRegistries: ['https://quay.io/example']}", PREFIXES),
    ("{allowedRegistries: ['*.example.com']}", PREFIXES),
    ("{allowedRegistries: [quay.io, 'quay.io/example/os:v1']}", PREFIXES),
    ("{allowedRegistries: [example]}", PREFIXES),
    ("{allowedRegistries: ['']}", "spec.allowedRegistries[0]"),
    (
        "{allowedRegistries: [quay.io, quay.io]}",
        "spec.allowedRegistries[1]: Duplicate value",
    ),
    ("{maxUnavailable: 0}", UNAVAILABLE),
    ("{maxUnavailable: 101%}", UNAVAILABLE),
];

const RIGHT_FLEETS: &[&str] = &[
    "{}",
    "{paused: true}",
    "{maxUnavailable: 2}",
    "{maxUnavailable: 10%}",
    "{image: {pollInterval: '0', pullSecret: quay.io}}",
    "{allowedRegistries: [quay.io, quay.io/example/, 'localhost:5000', localhost/os, '10.0.0.1:5000/a/b-c_d']}",
];

/// Wrong specs of a BootcNode. The controller writes them; an admin may try to.
const WRONG_NODES: &[(&str, &str)] = &[
    (
        "{image: {ref: 'quay.io/e/os@sha256:HEX', digest: 'sha256:abc', indexDigest: 'sha256:HEX'}}",
        "spec.image.digest",
    ),
    (
        "{image: {ref: 'quay.io/e/os@sha256:HEX', digest: 'sha256:HEX'}}",
        "spec.image.indexDigest",
    ),
    ("{staging: Maybe}", "spec.staging"),
    ("{poolName: LONGTAG}", "spec.poolName"),
    ("{pool: workers}", "unknown field \"spec.pool\""),
    ("{hold: {reason: Paused}}", "unknown field \"spec.hold\""),
];

const RIGHT_NODES: &[&str] = &[
    "{}",
    "{poolName: workers, nodeUID: some-uid, staging: Allowed, drain: {timeout: 900s}, rebootTimeout: 900s, progressInterval: 5s, \
      image: {ref: 'quay.io/e/os@sha256:HEX', digest: 'sha256:HEX', indexDigest: 'sha256:HEX', version: v1}}",
];

/// An API server that receives the objects, and a list of its wrong responses.
struct Server {
    client: Client,
    wrong: Vec<String>,
}

impl Server {
    /// Sends a new object as a dry run with strict validation. Returns the server's refusal, or `None` if the server
    /// accepts the object.
    async fn offer(&self, collection: &str, object: &Value) -> Result<Option<String>> {
        let uri = format!("{collection}?fieldValidation=Strict&dryRun=All");
        let request = http::Request::post(uri)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(object)?)?;
        match self.client.request::<Value>(request).await {
            Ok(_) => Ok(None),
            Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
            Err(error) => Err(error).context("no answer"),
        }
    }

    async fn refuses(&mut self, collection: &str, object: &Value, words: &str) {
        let what = match self.offer(collection, object).await {
            Ok(Some(said)) if said.contains(words) => return,
            Ok(Some(said)) => format!("is refused, but not with {words:?}: {said}"),
            Ok(None) => "is accepted".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        self.wrong.push(format!("{object}\n    {what}"));
    }

    async fn accepts(&mut self, collection: &str, object: &Value) {
        let what = match self.offer(collection, object).await {
            Ok(None) => return,
            Ok(Some(said)) => format!("is refused: {said}"),
            Err(error) => format!("{error:#}"),
        };
        self.wrong.push(format!("{object}\n    {what}"));
    }
}

fn object(kind: &str, name: &str, spec: &str) -> Value {
    let spec = spec
        .replace("HEX", HEX)
        .replace("LONGTAG", &"a".repeat(129))
        .replace("LONGPATH", &"a".repeat(520));
    let spec: Value = serde_saphyr::from_str(&spec).expect("the test's own YAML");
    serde_json::json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
    })
}

fn pool(spec: &str) -> Value {
    object("BootcNodePool", "workers", spec)
}

fn pool_with_image(image: &str) -> Value {
    pool(&format!("{{nodeSelector: {{}}, image: {{{image}}}}}"))
}

/// A valid pool with these additional fields.
fn pool_with(fields: &str) -> Value {
    pool(&format!(
        "{{nodeSelector: {{}}, image: {{ref: 'quay.io/e/os:v1'}}, {fields}}}"
    ))
}

fn pool_with_rollout(rollout: &str) -> Value {
    pool_with(&format!("rollout: {{{rollout}}}"))
}

fn pool_with_window(window: &str) -> Value {
    pool_with_rollout(&format!("windows: [{{schedule: '0 22 * * 5', {window}}}]"))
}

fn fleet(spec: &str) -> Value {
    object("BootcFleet", "cluster", spec)
}

fn manifests(path: &str) -> PathBuf {
    workspace_root().join("manifests").join(path)
}

/// Samples for users must be valid.
fn samples() -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for file in std::fs::read_dir(manifests("samples"))? {
        all.push(serde_saphyr::from_str(&std::fs::read_to_string(file?.path())?)?);
    }
    Ok(all)
}

#[tokio::test]
async fn the_api_server_refuses_wrong_objects_with_advice() {
    let options = Options {
        controller_manager: false,
        ..Options::default()
    };
    let control_plane = ControlPlane::start(options).await.unwrap();
    control_plane
        .apply_manifests(&manifests("base/crds.yaml"))
        .await
        .unwrap();
    let mut server = Server {
        client: control_plane.admin_client(),
        wrong: vec![],
    };
    references_and_fields(&mut server).await;
    rollouts(&mut server).await;
    fleets_and_nodes(&mut server).await;
    names_and_samples(&mut server).await;
    let flux = super::gitops::flux_reads_every_state(&server.client).await;
    server.wrong.extend(flux.err());
    let wrong = server.wrong;
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

async fn references_and_fields(server: &mut Server) {
    for (reference, words) in WRONG_REFERENCES {
        let image = pool_with_image(&format!("ref: \"{reference}\""));
        server.refuses(POOLS, &image, words).await;
    }
    for (fields, words) in WRONG_IMAGES {
        let image = pool_with_image(&format!("ref: 'quay.io/e/os:v1', {fields}"));
        server.refuses(POOLS, &image, words).await;
    }
    for (fields, words) in WRONG_FIELDS {
        server.refuses(POOLS, &pool_with(fields), words).await;
    }
    for (spec, words) in WRONG_POOLS {
        server.refuses(POOLS, &pool(spec), words).await;
    }
    for reference in RIGHT_REFERENCES {
        let image = pool_with_image(&format!("ref: '{reference}'"));
        server.accepts(POOLS, &image).await;
    }
    for fields in RIGHT_IMAGES {
        let image = pool_with_image(&format!("ref: 'quay.io/e/os:v1', {fields}"));
        server.accepts(POOLS, &image).await;
    }
    for fields in RIGHT_FIELDS {
        server.accepts(POOLS, &pool_with(fields)).await;
    }
    for spec in RIGHT_POOLS {
        server.accepts(POOLS, &pool(spec)).await;
    }
}

async fn rollouts(server: &mut Server) {
    for value in WRONG_UNAVAILABLE {
        let rollout = pool_with_rollout(&format!("maxUnavailable: {value}"));
        server.refuses(POOLS, &rollout, UNAVAILABLE).await;
    }
    for value in WRONG_TIMEOUTS {
        let rollout = pool_with_rollout(&format!("rebootTimeout: {value}"));
        server.refuses(POOLS, &rollout, REBOOT).await;
    }
    for (fields, words) in WRONG_WINDOWS {
        let window = pool_with_window(&format!("duration: 8h, {fields}"));
        server.refuses(POOLS, &window, words).await;
    }
    for value in WRONG_DURATIONS {
        let window = pool_with_window(&format!("duration: {value}"));
        server.refuses(POOLS, &window, LASTS).await;
    }
    for (rollout, words) in WRONG_ROLLOUTS {
        server.refuses(POOLS, &pool_with_rollout(rollout), words).await;
    }
    for rollout in RIGHT_ROLLOUTS {
        server.accepts(POOLS, &pool_with_rollout(rollout)).await;
    }
}

async fn fleets_and_nodes(server: &mut Server) {
    for (name, spec) in [("default", "{}"), ("cluster2", "{paused: true}")] {
        let fleet = object("BootcFleet", name, spec);
        server.refuses(FLEETS, &fleet, ONE_FLEET).await;
    }
    for (spec, words) in WRONG_FLEETS {
        server.refuses(FLEETS, &fleet(spec), words).await;
    }
    for spec in RIGHT_FLEETS {
        server.accepts(FLEETS, &fleet(spec)).await;
    }
    for (spec, words) in WRONG_NODES {
        let node = object("BootcNode", "n1", spec);
        server.refuses(NODES, &node, words).await;
    }
    for spec in RIGHT_NODES {
        server.accepts(NODES, &object("BootcNode", "n1", spec)).await;
    }
}

async fn names_and_samples(server: &mut Server) {
    let right = "{nodeSelector: {}, image: {ref: 'quay.io/e/os:v1'}}";
    let long = object("BootcNodePool", &"p".repeat(64), right);
    let words = "the name of a BootcNodePool must have at most 63 characters";
    server.refuses(POOLS, &long, words).await;
    let longest = object("BootcNodePool", &"p".repeat(63), right);
    server.accepts(POOLS, &longest).await;
    let mut bare = pool(right);
    bare.as_object_mut().unwrap().remove("spec");
    server.refuses(POOLS, &bare, "spec").await;
    for sample in samples().unwrap() {
        let plural = if sample["kind"] == "BootcFleet" { FLEETS } else { POOLS };
        server.accepts(plural, &sample).await;
    }
}
