//! Checks the golden file with pool states that tools wait for. The scenarios run the Argo CD and Flux checks of
//! `docs/gitops.md` on that file.

use std::path::Path;

use berth_api::condition::{Verdict, Word, set};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::{Map, json};

use crate::controller::aggregate::summary::summary;

type Said = (&'static str, &'static str, &'static str);

const WAITS: [Said; 2] = [
    ("Updated", "False", "NotAllUpdated"),
    ("Progressing", "False", "OutsideWindow"),
];

/// Returns these conditions, and the conditions derived from them.
fn conditions(of: &[Said]) -> Vec<Condition> {
    let mut all = vec![];
    for (type_, status, reason) in of {
        let verdict = match *status {
            "True" => Verdict::yes(Word::stored(reason), "words"),
            "False" => Verdict::no(Word::stored(reason), "words"),
            _ => Verdict::unknown(Word::stored(reason), "words"),
        };
        set(&mut all, type_, verdict, None, Timestamp::UNIX_EPOCH);
    }
    let told: Vec<_> = summary(&all, true).into();
    for (type_, verdict) in told {
        set(&mut all, type_, verdict, None, Timestamp::UNIX_EPOCH);
    }
    all
}

fn waiting(more: &[Said]) -> Vec<Condition> {
    conditions(&[&WAITS[..], more].concat())
}

#[test]
fn the_golden_states_match_the_conditions() {
    let mut states = Map::new();
    for (name, conditions) in [
        ("updated", conditions(&[("Updated", "True", "AllUpdated")])),
        ("without nodes", conditions(&[("Updated", "Unknown", "NoNodes")])),
        ("waits for its window", waiting(&[])),
        ("has degraded nodes", waiting(&[("Degraded", "True", "NodesDegraded")])),
        ("paused", waiting(&[("Paused", "True", "PausedByAdmin")])),
        (
            "paused when done",
            conditions(&[("Updated", "True", "AllUpdated"), ("Paused", "True", "PausedByAdmin")]),
        ),
        ("halted", waiting(&[("RolloutHalted", "True", "TooManyFailures")])),
        ("image refused", waiting(&[("ImageResolved", "False", "NotBootable")])),
    ] {
        states.insert(
            name.to_owned(),
            json!({"observedGeneration": 1, "conditions": conditions}),
        );
    }
    let text = format!("{:#}\n", json!(states));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests/golden/pool-states.json");
    if std::env::var_os("BERTH_BLESS").is_some() {
        std::fs::write(&file, text).unwrap();
        return;
    }
    let golden = std::fs::read_to_string(&file).unwrap();
    assert_eq!(golden, text, "BERTH_BLESS=1 writes {}", file.display());
}
