//! Compares the history of a node's conditions with a golden file. The history comes from the audit log, which has every write of
//! a BootcNode's status with its response; a watch may miss some.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::Digest;
use berth_api::condition::node::ALL;
use berth_api::node::BootcNode;
use serde_json::Value;

use crate::audit::{AuditLog, Record};
use crate::locked::locked;
use crate::programs::workspace_root;

const BLESS: &str = "BERTH_BLESS";

/// State that every turn must show: the agent reports it before it requests the reboot.
const REBOOTING: &str = "False/Rebooting";

/// Names of the golden files that this process has written. A later history with the same name is compared with its
/// file.
static BLESSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Statuses of a node's BootcNode, in the order of the writes, each with the program that wrote it.
pub fn statuses<'a>(records: &'a [Record], node: &str) -> Result<Vec<(&'a str, u64, BootcNode)>> {
    let mut found = vec![];
    for record in writes_of(records, "bootcnodes/status").filter(|r| r.name == node) {
        let body = record.response.clone().context("a status write has no body")?;
        let object: BootcNode = serde_json::from_value(body).context("cannot parse a BootcNode in the audit log")?;
        let version = object.metadata.resource_version.as_deref().unwrap_or_default();
        found.push((
            record.program(),
            version.parse().context("cannot parse a resourceVersion")?,
            object,
        ));
    }
    found.sort_by_key(|(_, version, _)| *version);
    Ok(found)
}

/// Successful writes of one kind of Berth's objects.
fn writes_of<'a>(records: &'a [Record], target: &str) -> impl Iterator<Item = &'a Record> {
    let writes = records.iter().filter(|r| r.is_write() && r.succeeded());
    writes.filter(move |r| r.group == "berth.dev" && r.target() == target)
}

/// Statuses since the spec last changed to the image, from the first status whose agent had read that spec. Includes
/// statuses from after the spec changed to yet another image.
fn since_asked_for<'a>(statuses: &'a [(&'a str, u64, BootcNode)], image: &Digest) -> Vec<&'a BootcNode> {
    let objects: Vec<_> = statuses.iter().map(|(_, _, object)| object).collect();
    let last = objects
        .iter()
        .rposition(|object| asks(object, image))
        .map_or(0, |last| last + 1);
    let asked = objects.iter().take(last).rposition(|object| !asks(object, image));
    let since = objects.into_iter().skip(asked.map_or(0, |before| before + 1));
    since.skip_while(|object| !has_read_spec(object)).collect()
}

fn asks(object: &BootcNode, image: &Digest) -> bool {
    object.spec.image.as_ref().is_some_and(|asked| asked.digest == *image)
}

fn has_read_spec(object: &BootcNode) -> bool {
    let read = object.status.as_ref().and_then(|s| s.observed_generation);
    read == object.metadata.generation
}

/// Returns every `status/reason` of each condition, one line per type. Two states that alternate count once, unless one
/// of them is True, because failed steps are retried.
fn walk<'a>(statuses: impl IntoIterator<Item = &'a BootcNode>, node: &str) -> Result<String> {
    let mut walks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for object in statuses {
        for condition in object.status.iter().flat_map(|s| &s.conditions) {
            ensure!(ALL.contains(&condition.type_.as_str()), "{node}: {condition:?}");
            let said = format!("{}/{}", condition.status, condition.reason);
            let walk = walks.entry(condition.type_.clone()).or_default();
            if walk.last() == Some(&said) {
                continue;
            }
            walk.push(said);
            if let [.., a, b, c, d] = walk.as_slice()
                && (a, b) == (c, d)
                && !(a.starts_with("True/") || b.starts_with("True/"))
            {
                walk.truncate(walk.len() - 2);
            }
        }
    }
    ensure!(!walks.is_empty(), "the audit log has no matching status of {node}");
    let lines = walks
        .iter()
        .map(|(type_, walk)| format!("{type_}: {}\n", walk.join(" ")));
    Ok(lines.collect())
}

/// Fails unless the golden file `tests/tests/golden/NAME.txt` allows the history. With `BERTH_BLESS=1`, writes the file
/// instead. A second history with the same name is compared with the first.
fn ensure_golden(name: &str, walk: &str) -> Result<()> {
    let file = workspace_root().join(format!("tests/tests/golden/{name}.txt"));
    let mut blessed = locked(&BLESSED);
    if std::env::var_os(BLESS).is_some() && blessed.insert(name.to_owned()) {
        if let Some(directory) = file.parent() {
            fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        }
        fs::write(&file, walk).with_context(|| format!("cannot write {}", file.display()))?;
        return Ok(());
    }
    let golden = fs::read_to_string(&file).with_context(|| format!("{} ({BLESS}=1 writes it)", file.display()))?;
    ensure!(
        allows(&golden, walk),
        "{} has\n{golden}\nbut the test saw\n{walk}",
        file.display()
    );
    Ok(())
}

/// True if a history matches the golden history: for each condition type, the same states in the same order, and the
/// same last state. Earlier states may be missing, except True states and [`REBOOTING`]. Agents write only their
/// current state, so a short state may be skipped, and a pull of less than a second is not reported.
fn allows(golden: &str, walk: &str) -> bool {
    let (golden, walk) = (lines_of(golden), lines_of(walk));
    golden.len() == walk.len()
        && golden
            .iter()
            .zip(&walk)
            .all(|((type_, whole), (found, seen))| type_ == found && allows_states(whole, seen))
}

/// States of each type, in the order of the lines.
fn lines_of(text: &str) -> Vec<(&str, Vec<&str>)> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(type_, states)| (type_, states.split(' ').collect()))
        .collect()
}

/// True if `seen` equals `whole` without some states that may be missing. Two equal states become one if the state
/// between them is missing.
fn allows_states(whole: &[&str], seen: &[&str]) -> bool {
    let last = whole.len().saturating_sub(1);
    // Possible numbers of states at the start of `seen` that the states of `whole` so far account for.
    let mut reached = BTreeSet::from([0]);
    for (n, state) in whole.iter().enumerate() {
        let may_be_missing = n != last && !state.starts_with("True/") && *state != REBOOTING;
        let mut next = BTreeSet::new();
        for &count in &reached {
            if may_be_missing {
                next.insert(count);
            }
            if seen.get(count) == Some(state) {
                next.insert(count + 1);
            }
            if count > 0 && seen.get(count - 1) == Some(state) {
                next.insert(count);
            }
        }
        reached = next;
    }
    reached.contains(&seen.len())
}

/// Compares all conditions of a node's history with a golden file. Also fails if a status write to the node, a pool or
/// the fleet changed nothing.
pub fn ensure_walk(audit_log: &Path, node: &str, golden: &str) -> Result<()> {
    soon(audit_log, node, golden, |statuses| {
        statuses.iter().map(|(_, _, object)| object).collect()
    })
}

/// Compares the statuses that `choose` selects with the golden file. Retries for 2 s, because a request appears in the
/// audit log shortly after its response.
fn soon(
    audit_log: &Path,
    node: &str,
    golden: &str,
    choose: impl for<'a> Fn(&'a [(&'a str, u64, BootcNode)]) -> Vec<&'a BootcNode>,
) -> Result<()> {
    let mut tries = 0;
    loop {
        let audit = AuditLog::read(audit_log)?;
        let walked = busy_statuses(&audit, node).and_then(|statuses| walk(choose(&statuses), node));
        let compared = walked.and_then(|walk| ensure_golden(golden, &walk));
        if compared.is_ok() || tries == 20 {
            return compared;
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Like [`ensure_walk`], for the conditions since the image was last set in the spec. The spec may already have another
/// image.
pub fn ensure_walk_to(audit_log: &Path, node: &str, image: &Digest, golden: &str) -> Result<()> {
    soon(audit_log, node, golden, |statuses| since_asked_for(statuses, image))
}

fn busy_statuses<'a>(audit: &'a AuditLog, node: &str) -> Result<Vec<(&'a str, u64, BootcNode)>> {
    let mut idle = idle_writes(audit.records(), node)?;
    for target in ["bootcnodepools/status", "bootcfleets/status"] {
        idle.extend(idle_writes_of(audit.records(), target)?);
    }
    ensure!(idle.is_empty(), "{idle:#?}");
    statuses(audit.records(), node)
}

/// Writes of a node's status that changed nothing, by any program. A heartbeat is a change.
pub fn idle_writes(records: &[Record], node: &str) -> Result<Vec<String>> {
    let statuses = statuses(records, node)?;
    let idle = statuses.windows(2).filter_map(|pair| {
        let [(_, before, old), (program, after, new)] = pair else {
            return None;
        };
        let is_same = old.status == new.status;
        is_same.then(|| format!("{program} wrote the status of {node} at {after} unchanged from {before}"))
    });
    Ok(idle.collect())
}

/// Writes of this kind of status (such as `bootcnodepools/status`) that changed nothing.
fn idle_writes_of(records: &[Record], target: &str) -> Result<Vec<String>> {
    let mut written: BTreeMap<&str, Vec<(u64, &Record, &Value)>> = BTreeMap::new();
    for record in writes_of(records, target) {
        let body = record.response.as_ref().context("a status write has no body")?;
        let version = body["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        let version = version.parse().context("cannot parse a resourceVersion")?;
        written
            .entry(&record.name)
            .or_default()
            .push((version, record, &body["status"]));
    }
    let mut idle = vec![];
    for (name, mut writes) in written {
        writes.sort_by_key(|(version, ..)| *version);
        idle.extend(writes.windows(2).filter_map(|pair| {
            let [(before, _, old), (after, record, new)] = pair else {
                return None;
            };
            let program = record.program();
            (old == new).then(|| format!("{program} wrote {target} of {name} at {after} unchanged from {before}"))
        }));
    }
    Ok(idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A written status: digest and generation of the spec, the observed generation, and the reason of `Updated`.
    fn status(digest: char, generation: i64, read: i64, reason: &str) -> (&'static str, u64, BootcNode) {
        let digest = format!("sha256:{}", digest.to_string().repeat(64));
        let time = "2026-01-01T00:00:00Z";
        let object = serde_json::json!({
            "metadata": {"name": "n1", "generation": generation},
            "spec": {"image": {"ref": "r", "digest": digest, "indexDigest": digest}},
            "status": {"observedGeneration": read, "conditions": [
                {"type": "Updated", "status": "False", "reason": reason, "message": "", "lastTransitionTime": time},
            ]},
        });
        ("berth-agent", 0, serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_walk_begins_when_the_image_was_last_read() {
        let statuses = [
            status('b', 1, 1, "Old"),
            status('a', 2, 2, "Updated"),
            status('b', 3, 2, "Updated"),
            status('b', 3, 3, "Staging"),
            status('b', 4, 4, "Pull"),
            status('b', 4, 4, "Staging"),
            status('b', 4, 4, "Pull"),
            status('b', 4, 4, "Staging"),
            status('b', 4, 4, "Pull"),
            status('a', 5, 4, "Pull"),
            status('a', 5, 5, "Back"),
        ];
        let image = statuses[0].2.spec.image.clone().unwrap().digest;
        let seen = walk(since_asked_for(&statuses, &image), "n1").unwrap();
        assert_eq!(seen, "Updated: False/Staging False/Pull False/Back\n");
        let whole = walk(statuses.iter().map(|(_, _, object)| object), "n1").unwrap();
        assert!(
            whole.starts_with("Updated: False/Old False/Updated False/Staging "),
            "{whole}"
        );
        let other = format!("sha256:{}", "c".repeat(64)).parse().unwrap();
        assert!(walk(since_asked_for(&[], &other), "n1").is_err());
    }

    #[test]
    fn states_may_be_missing_but_not_added_or_reordered() {
        let golden = "Cordoned: False/A True/B False/A\nUpdated: False/X False/Y False/Rebooting False/P True/Z\n";
        let cordoned = "Cordoned: False/A True/B False/A\n";
        for (walk, allowed) in [
            ("Updated: False/X False/Y False/Rebooting False/P True/Z\n", true),
            ("Updated: False/X False/Rebooting False/P True/Z\n", true),
            ("Updated: False/X False/Y False/Rebooting True/Z\n", true),
            ("Updated: False/X False/Rebooting True/Z\n", true),
            ("Updated: False/X False/Y False/P True/Z\n", false),
            ("Updated: False/X False/Y False/Rebooting False/P\n", false),
            ("Updated: False/Y False/Rebooting False/P True/Z\n", true),
            ("Updated: False/X False/W False/Rebooting True/Z\n", false),
            ("Updated: False/X False/Rebooting False/Y True/Z\n", false),
            ("", false),
        ] {
            assert_eq!(allows(golden, &format!("{cordoned}{walk}")), allowed, "{walk}");
        }
        for cordoned in ["Cordoned: False/A\n", "Cordoned: False/A True/B True/C False/A\n"] {
            let walk = format!("{cordoned}Updated: False/X False/Rebooting True/Z\n");
            assert!(!allows(golden, &walk), "{walk}");
        }
    }

    #[test]
    fn equal_states_merge_without_the_one_between() {
        let golden = "Pulled: Unknown/P True/A Unknown/N True/A\n";
        for (walk, allowed) in [
            ("Pulled: Unknown/P True/A Unknown/N True/A\n", true),
            ("Pulled: Unknown/P True/A\n", true),
            ("Pulled: Unknown/P\n", false),
            ("Pulled: Unknown/P True/A Unknown/N\n", false),
            ("Pulled: True/A\n", true),
            ("Pulled: Unknown/N\n", false),
        ] {
            assert_eq!(allows(golden, walk), allowed, "{walk}");
        }
    }
}
