//! Machines that are held back on their first boot. They have no Node, so only their events report them, and the API
//! server keeps events for an hour. The BootcFleet's status keeps the machines until they become nodes or an admin
//! dismisses them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::condition::one_line;
use berth_api::fleet::{BootcFleetStatus, HeldMachine, JoinedMachine, MAX_HELD};
use jiff::Timestamp;

use crate::whole_seconds;

/// Event that reports that a machine is held back on its first boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the Node that the machine would become.
    pub machine: String,
    /// Message of the event.
    pub message: String,
    /// Time of the report, by the API server's clock.
    pub at: Timestamp,
}

/// Returns the new value of the annotation [`berth_api::keys::ANNOTATION_DISMISSED`]: the value `before` plus an entry
/// for `machine`. If the list becomes too long, its oldest entries are dropped.
pub fn dismissed_also(before: &str, machine: &HeldMachine) -> String {
    let own = format!("{}@{:.0}", machine.name, machine.last_time.0);
    let of_it = format!("{}@", machine.name);
    let others = before.split(',').map(str::trim);
    let others = others.filter(|entry| !entry.is_empty() && !entry.starts_with(&of_it));
    let mut entries: Vec<&str> = others.collect();
    entries.push(&own);
    let oldest = entries.len().saturating_sub(MAX_HELD);
    entries.get(oldest..).unwrap_or_default().join(",")
}

/// Parses the annotation. Returns, for each dismissed machine, the time of the newest report that an admin dismissed.
/// Invalid entries are ignored.
fn dismissed(annotation: &str) -> BTreeMap<&str, Timestamp> {
    let entries = annotation.split(',').filter_map(|entry| entry.trim().split_once('@'));
    entries
        .filter_map(|(machine, at)| Some((machine, at.parse().ok()?)))
        .collect()
}

/// Machines that were held back on their first boot, as in the status of the BootcFleet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machines {
    /// Machines that are held back now, by name.
    pub held: Vec<HeldMachine>,
    /// Machines that have become nodes, by name. A machine stays listed while the API server keeps its event.
    pub joined: Vec<JoinedMachine>,
}

impl Machines {
    /// Returns the machines that the status of the BootcFleet lists.
    pub fn of(status: &BootcFleetStatus) -> Self {
        Self {
            held: status.held_machines.clone(),
            joined: status.joined_machines.clone(),
        }
    }
}

/// Returns the machines that are held back now, and the machines that have joined. `known` is the previous result.
/// `reported` has the events; `None` until the controller has listed them. Without the events, no joined machine is
/// dropped. All compared times come from the API server's clock.
pub fn machines(
    known: &Machines,
    reported: Option<&[Refusal]>,
    is_node: impl Fn(&str) -> bool,
    annotation: &str,
) -> Machines {
    let all = last_reports(&known.held, reported.unwrap_or_default());
    let mut joined: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for machine in &known.joined {
        joined.insert(&machine.name, machine.last_time.0);
    }
    for machine in all.values().filter(|machine| is_node(&machine.name)) {
        joined.insert(&machine.name, machine.last_time.0);
    }
    if let Some(reported) = reported {
        let names: BTreeSet<&str> = reported.iter().map(|refusal| refusal.machine.as_str()).collect();
        joined.retain(|name, _| names.contains(name));
    }
    let dismissed = dismissed(annotation);
    let held = all.values().filter(|machine| {
        let name = machine.name.as_str();
        let ends = [joined.get(name), dismissed.get(name)];
        let is_over = is_node(name) || ends.into_iter().flatten().any(|end| machine.last_time.0 <= *end);
        !is_over
    });
    let joined = joined.iter().map(|(name, at)| JoinedMachine {
        name: (*name).to_owned(),
        last_time: (*at).into(),
    });
    Machines {
        held: held.take(MAX_HELD).cloned().collect(),
        joined: joined.take(MAX_HELD).collect(),
    }
}

/// Returns the newest report of each machine, by machine name.
fn last_reports(known: &[HeldMachine], reported: &[Refusal]) -> BTreeMap<String, HeldMachine> {
    let mut all: BTreeMap<String, HeldMachine> = known.iter().map(|m| (m.name.clone(), m.clone())).collect();
    for refusal in reported {
        let at = whole_seconds(refusal.at);
        let is_older = all.get(&refusal.machine).is_some_and(|known| known.last_time >= at);
        if is_older || !is_node_name(&refusal.machine) {
            continue;
        }
        let machine = HeldMachine {
            name: refusal.machine.clone(),
            message: one_line(&refusal.message),
            last_time: at,
        };
        all.insert(refusal.machine.clone(), machine);
    }
    all
}

/// True if a Node can have this name: a DNS subdomain. Reports with other names are ignored, because `,` and `@`
/// separate the entries in the annotation of dismissed machines.
fn is_node_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 253
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn refusal(machine: &str, second: i64) -> Refusal {
        Refusal {
            machine: machine.to_owned(),
            message: format!("{machine}: installed from 9.0, older than 9.2"),
            at: at(second),
        }
    }

    fn names(machines: &[HeldMachine]) -> Vec<(&str, i64)> {
        machines
            .iter()
            .map(|machine| (machine.name.as_str(), machine.last_time.0.as_second()))
            .collect()
    }

    fn held(
        known: &[HeldMachine],
        reported: &[Refusal],
        is_node: impl Fn(&str) -> bool,
        annotation: &str,
    ) -> Vec<HeldMachine> {
        let known = Machines {
            held: known.to_vec(),
            joined: vec![],
        };
        machines(&known, Some(reported), is_node, annotation).held
    }

    fn nobody(_: &str) -> bool {
        false
    }

    #[test]
    fn a_machine_whose_node_goes_is_not_held() {
        let reports = [refusal("m7", 100), refusal("m8", 90)];
        let joined = machines(&Machines::default(), Some(&reports), |name| name == "m7", "");
        assert_eq!(names(&joined.held), [("m8", 90)]);
        assert_eq!((joined.joined[0].name.as_str(), joined.joined.len()), ("m7", 1));
        // The Node is deleted while the API server still keeps the machine's event.
        assert_eq!(machines(&joined, Some(&reports), nobody, ""), joined);
        assert_eq!(
            machines(&joined, None, nobody, ""),
            joined,
            "without listed events, no machine is dropped"
        );
        let again = machines(&joined, Some(&[refusal("m7", 101)]), nobody, "");
        assert_eq!(names(&again.held), [("m7", 101), ("m8", 90)], "m7 was refused again");
        let forgotten = machines(&joined, Some(&[]), nobody, "");
        assert_eq!((names(&forgotten.held), forgotten.joined), (vec![("m8", 90)], vec![]));
    }

    #[test]
    fn a_machine_is_held_until_joined_or_dismissed() {
        let first = held(
            &[],
            &[refusal("m7", 100), refusal("m8", 90), refusal("m7", 50)],
            nobody,
            "",
        );
        assert_eq!(
            names(&first),
            [("m7", 100), ("m8", 90)],
            "each machine is listed once, with its last report"
        );
        assert_eq!(first[0].message, "m7: installed from 9.0, older than 9.2");
        // The events have expired, and the next leader has only the status.
        assert_eq!(held(&first, &[], nobody, ""), first);
        let joined = held(&first, &[refusal("m7", 100)], |name| name == "m7", "");
        assert_eq!(names(&joined), [("m8", 90)]);
        let word = dismissed_also("", &first[0]);
        assert_eq!(word, "m7@1970-01-01T00:01:40Z");
        let dismissed = held(&first, &[refusal("m7", 100), refusal("m8", 90)], nobody, &word);
        assert_eq!(
            names(&dismissed),
            [("m8", 90)],
            "m7 stays dismissed while its event is still kept"
        );
        let again = held(&dismissed, &[refusal("m7", 200)], nobody, &word);
        assert_eq!(
            names(&again),
            [("m7", 200), ("m8", 90)],
            "m7 was started and refused again"
        );
    }

    #[test]
    fn an_invalid_annotation_dismisses_nothing() {
        let known = held(&[], &[refusal("m7", 100)], |_| false, "");
        for annotation in [
            "m7",
            "m7@",
            "m7@soon",
            "@1970-01-01T00:01:40Z",
            ",,",
            "m7@1970-01-01T00:01:39Z",
        ] {
            assert_eq!(held(&known, &[], |_| false, annotation), known, "{annotation}");
        }
        let both = dismissed_also("m8@1970-01-01T00:01:30Z, m7@1970-01-01T00:00:01Z", &known[0]);
        assert_eq!(both, "m8@1970-01-01T00:01:30Z,m7@1970-01-01T00:01:40Z");
    }

    #[test]
    fn only_a_name_of_a_node_is_kept() {
        let long = "m".repeat(254);
        for name in ["", "m7,m8", "m7@now", "M7", &long] {
            assert_eq!(held(&[], &[refusal(name, 100)], |_| false, ""), [], "{name}");
        }
        let kept = held(
            &[],
            &[refusal("m-7.example", 100), refusal(&long[1..], 90)],
            |_| false,
            "",
        );
        assert_eq!(kept.len(), 2);
    }

    #[test]
    fn the_number_of_machines_is_limited() {
        let many: Vec<Refusal> = (0..200).map(|n| refusal(&format!("m{n:03}"), n)).collect();
        let held = held(&[], &many, |_| false, "");
        assert_eq!(held.len(), MAX_HELD);
        let word = held
            .iter()
            .fold(String::new(), |word, machine| dismissed_also(&word, machine));
        let again = dismissed_also(
            &word,
            &HeldMachine {
                name: "one-more".to_owned(),
                ..held[0].clone()
            },
        );
        assert_eq!(again.split(',').count(), MAX_HELD);
        assert!(!again.contains("m000@") && again.contains("m001@") && again.contains("one-more@"));
    }

    #[test]
    fn a_machine_has_a_nodes_name() {
        for (length, is_kept) in [(1, true), (253, true), (254, false), (0, false)] {
            let machines = held(&[], &[refusal(&"m".repeat(length), 1)], nobody, "");
            assert_eq!(!machines.is_empty(), is_kept, "{length}");
        }
    }
}
