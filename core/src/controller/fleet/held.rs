//! Machines that are held back on their first boot. They have no Node, so their events are all that the cluster knows of them, and
//! events are kept for an hour. The BootcFleet's status keeps them until they become nodes or an admin dismisses them. Pure.

use std::collections::BTreeMap;

use berth_api::condition::one_line;
use berth_api::fleet::{HeldMachine, MAX_HELD};
use jiff::Timestamp;

/// Report of a machine that is held back, from its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the Node that the machine would become.
    pub machine: String,
    /// Its words.
    pub message: String,
    /// Time of the report, by the API server's clock.
    pub at: Timestamp,
}

/// Value of [`berth_api::keys::ANNOTATION_DISMISSED`] after another machine was dismissed. The oldest entries give way.
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

/// Time of the dismissed report of each machine. What makes no sense dismisses nothing.
fn dismissed(annotation: &str) -> BTreeMap<&str, Timestamp> {
    let entries = annotation.split(',').filter_map(|entry| entry.trim().split_once('@'));
    entries
        .filter_map(|(machine, at)| Some((machine, at.parse().ok()?)))
        .collect()
}

/// The machines that are held back: those that were known, and those that events report. Times are compared only where they are of
/// the API server's clock.
pub fn held(
    known: &[HeldMachine],
    reported: &[Refusal],
    is_node: impl Fn(&str) -> bool,
    annotation: &str,
) -> Vec<HeldMachine> {
    let mut all: BTreeMap<&str, HeldMachine> = known.iter().map(|m| (m.name.as_str(), m.clone())).collect();
    for refusal in reported {
        let is_older = all
            .get(refusal.machine.as_str())
            .is_some_and(|known| known.last_time.0 >= whole(refusal.at));
        if is_older || refusal.machine.is_empty() || refusal.machine.len() > 253 {
            continue;
        }
        let machine = HeldMachine {
            name: refusal.machine.clone(),
            message: one_line(&refusal.message),
            last_time: whole(refusal.at).into(),
        };
        all.insert(&refusal.machine, machine);
    }
    let dismissed = dismissed(annotation);
    all.retain(|name, machine| {
        let is_dismissed = dismissed.get(name).is_some_and(|at| machine.last_time.0 <= *at);
        !is_node(name) && !is_dismissed
    });
    all.into_values().take(MAX_HELD).collect()
}

/// The time in whole seconds, as the status keeps it.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
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

    #[test]
    fn a_machine_is_held_until_it_is_a_node_or_dismissed() {
        let nobody = |_: &str| false;
        let first = held(
            &[],
            &[refusal("m7", 100), refusal("m8", 90), refusal("m7", 50)],
            nobody,
            "",
        );
        assert_eq!(
            names(&first),
            [("m7", 100), ("m8", 90)],
            "each once, by its last report"
        );
        assert_eq!(first[0].message, "m7: installed from 9.0, older than 9.2");
        // The events are gone, and another leader knows only the status.
        assert_eq!(held(&first, &[], nobody, ""), first);
        let joined = held(&first, &[refusal("m7", 100)], |name| name == "m7", "");
        assert_eq!(names(&joined), [("m8", 90)]);
        let word = dismissed_also("", &first[0]);
        assert_eq!(word, "m7@1970-01-01T00:01:40Z");
        let dismissed = held(&first, &[refusal("m7", 100), refusal("m8", 90)], nobody, &word);
        assert_eq!(names(&dismissed), [("m8", 90)], "its event is still there");
        let again = held(&dismissed, &[refusal("m7", 200)], nobody, &word);
        assert_eq!(names(&again), [("m7", 200), ("m8", 90)], "it was started once more");
    }

    #[test]
    fn a_word_of_an_admin_that_makes_no_sense_dismisses_nothing() {
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
    fn no_more_are_kept_than_there_is_room_for() {
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
}
