//! Whatever the members report, as far as the schema of a BootcNode allows it, the pool's status is within the schema of
//! a BootcNodePool, and does not change again.

use kube::CustomResourceExt;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

const EXTREME_TIMES: [&str; 10] = [
    // In UTC, this is a negative year.
    "0000-01-01T00:00:00+23:59",
    "0000-01-01T00:00:00Z",
    "1969-12-31T23:59:59.999Z",
    "1970-01-01T00:00:00.5Z",
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.123456789+05:30",
    "9998-12-31T23:59:59.9Z",
    "9999-01-01T00:00:00Z",
    "9999-12-30T22:00:00Z",
    "9999-12-31T23:59:59-23:59",
];

fn schema_of<K: CustomResourceExt>() -> Value {
    let crd = serde_json::to_value(K::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
}

/// Draws values that a schema allows, mostly extreme ones.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % u64::try_from(limit).unwrap()).unwrap()
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn value(&mut self, name: &str, schema: &Value) -> Value {
        if let Some(allowed) = schema["enum"].as_array() {
            return allowed[self.below(allowed.len())].clone();
        }
        match schema["type"].as_str().unwrap() {
            "object" => self.object(schema),
            "array" => {
                let most = usize::try_from(schema["maxItems"].as_u64().unwrap_or(3)).unwrap();
                let items = self.one_of(&[0, 1, most]);
                (0..items).map(|_| self.value(name, &schema["items"])).collect()
            }
            "string" => self.string(name, schema).into(),
            "boolean" => (self.below(2) == 0).into(),
            "integer" if schema["format"] == "uint32" => self.one_of(&[0, 1, 61, u32::MAX]).into(),
            "integer" => self.one_of(&[0, 1, i64::MAX]).into(),
            other => panic!("{name} is {other}"),
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut object = Map::new();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str()) || self.below(4) != 0 {
                object.insert(name.clone(), self.value(name, schema));
            }
        }
        object.into()
    }

    fn string(&mut self, name: &str, schema: &Value) -> String {
        if schema["format"] == "date-time" {
            return self.one_of(&EXTREME_TIMES).to_owned();
        }
        if schema["pattern"] == "^sha256:[0-9a-f]{64}$" {
            return digest(self.one_of(&[1, 2, 3, 4])).to_string();
        }
        if let Some(known) = match name {
            "pool" => Some("p"),
            "nodeUID" => Some("u"),
            "outcome" => Some("DrainTimeout"),
            "status" => Some(self.one_of(&["True", "False", "Unknown"])),
            "type" => Some(self.one_of(condition::node::ALL)),
            _ => None,
        } {
            return known.to_owned();
        }
        let most = usize::try_from(schema["maxLength"].as_u64().unwrap_or(4000)).unwrap();
        let length = self.one_of(&[0, 1, most]);
        self.one_of(&["x", "9", "\u{1}", "\n", "ü", "𝕏", "\u{202e}"])
            .repeat(length)
    }
}

/// Fails if the API server would refuse the value. Rules in CEL are not checked.
fn check(schema: &Value, value: &Value, at: &str) {
    let limit = |key: &str| usize::try_from(schema[key].as_u64().unwrap_or(u64::MAX)).unwrap();
    match value {
        Value::Object(fields) => {
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                assert!(fields.contains_key(name), "{at} lacks {name}");
            }
            for (name, value) in fields {
                let known = &schema["properties"][name];
                let schema = if known.is_null() {
                    &schema["additionalProperties"]
                } else {
                    known
                };
                assert!(!schema.is_null(), "{at}.{name} is unknown");
                check(schema, value, &format!("{at}.{name}"));
            }
        }
        Value::Array(items) => {
            assert!(items.len() <= limit("maxItems"), "{at} has {} items", items.len());
            items
                .iter()
                .for_each(|item| check(&schema["items"], item, &format!("{at}[]")));
        }
        Value::String(text) if schema["format"] == "date-time" => {
            let year = text.split('-').next().unwrap_or_default();
            let is_time = year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit());
            assert!(is_time && text.parse::<Timestamp>().is_ok(), "{at} is {text}");
        }
        Value::String(text) => assert!(text.chars().count() <= limit("maxLength"), "{at} is {text}"),
        Value::Number(number) => {
            let most = schema["maximum"].as_f64().unwrap_or(f64::MAX);
            assert!(number.as_f64().is_some_and(|number| number <= most), "{at} is {number}");
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// Returns the pool's status as the API server stores it.
fn stored(status: &BootcNodePoolStatus) -> BootcNodePoolStatus {
    serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap()
}

fn view(status: &Value) -> BootcNodeView {
    let object = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNode", "metadata": { "name": "n" },
        "spec": { "poolName": "p", "nodeUID": "u" }, "status": status,
    });
    BootcNodeView::of(serde_json::from_value(object).unwrap())
}

fn status_after(old: &BootcNodePoolStatus, members: &[MemberView<'_>], news: &Answers) -> BootcNodePoolStatus {
    let (plan, now) = (Plan::default(), "2026-06-01T12:00:00.5Z".parse().unwrap());
    let facts = PoolStatusFacts {
        members,
        spec: &V3,
        ..of_empty_pool(old, news, &plan)
    };
    stored(&status(&facts, now))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_report_makes_a_status_that_is_refused_or_never_rests(seed in any::<u64>(), count in 1usize..4) {
        let (of_node, of_pool) = (schema_of::<berth_api::node::BootcNode>(), schema_of::<berth_api::pool::BootcNodePool>());
        let mut draw = Draw(seed);
        let nodes: Vec<NodeView> = (0..count).map(|n| node(&format!("n{n}"))).collect();
        let hosts: Vec<BootcNodeView> = (0..count).map(|_| view(&draw.value("", &of_node))).collect();
        let members: Vec<_> = nodes.iter().zip(&hosts).map(|(node, host)| member(node, host)).collect();
        let news = answered(&Target { image: "quay.io/os:v3".into(), digest: digest(3), ..target() });
        let first = status_after(&BootcNodePoolStatus::default(), &members, &news);
        check(&of_pool, &serde_json::to_value(&first).unwrap(), "status");
        let second = status_after(&first, &members, &news);
        check(&of_pool, &serde_json::to_value(&second).unwrap(), "status");
        prop_assert_eq!(&status_after(&second, &members, &news), &second);
        for seconds in [
            second.phase_durations.staging_seconds,
            second.phase_durations.drain_seconds,
            second.phase_durations.reboot_seconds,
        ] {
            prop_assert!(seconds.is_none_or(|seconds| seconds <= 24 * 3600), "{:?}", second.phase_durations);
        }
    }
}

#[test]
fn a_time_before_the_year_0_is_left_out() {
    let lie = json!({
        "booted": { "digest": digest(2) },
        "bootImage": { "source": "/x", "version": "9.4", "provisionedTime": EXTREME_TIMES[0] },
        "deployments": [{ "pool": "p", "digest": digest(2), "manifest": digest(2), "deployedTime": EXTREME_TIMES[0] }],
    });
    let (node, host) = (node("n"), view(&lie));
    let members = [member(&node, &host)];
    let news = answered(&Target {
        image: "quay.io/os:v3".into(),
        ..target()
    });
    let status = status_after(&BootcNodePoolStatus::default(), &members, &news);
    assert_eq!(status.deploy_history.len(), 1);
    assert_eq!(status.deploy_history[0].last_deployed, None);
    assert_eq!(status.boot_image.unwrap().provisioned_time, None);
    let fraction = lie.to_string().replace(EXTREME_TIMES[0], "2026-01-01T00:00:00.5Z");
    let host = view(&serde_json::from_str(&fraction).unwrap());
    let members = [member(&node, &host)];
    let status = status_after(&BootcNodePoolStatus::default(), &members, &news);
    let time = status.deploy_history[0].last_deployed.as_ref().unwrap();
    assert_eq!(time.0.to_string(), "2026-01-01T00:00:00Z");
}
