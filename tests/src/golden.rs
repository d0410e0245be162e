//! Walk of a node through its conditions, write by write, beside a golden file. The audit log has every write of a BootcNode's
//! status with its answer, so that nothing is missed, as a watch may.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use berth_api::condition::node::ALL;
use berth_api::node::BootcNode;

use crate::audit::{AuditLog, Record};
use crate::programs::workspace_root;

/// Variable that makes [`ensure_golden`] write the files in place of comparing.
const BLESS: &str = "BERTH_BLESS";

/// Files that this process has written: what comes again under the same name is compared.
static BLESSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Statuses of a node's BootcNode, in the order of the writes, each with the program that wrote it.
pub fn statuses<'a>(records: &'a [Record], node: &str) -> Result<Vec<(&'a str, u64, BootcNode)>> {
    let of_node = |r: &&Record| {
        r.is_write() && r.succeeded() && r.group == "berth.dev" && r.target() == "bootcnodes/status" && r.name == node
    };
    let mut found = vec![];
    for record in records.iter().filter(of_node) {
        let body = record.response.clone().context("a status without its body")?;
        let object: BootcNode = serde_json::from_value(body).context("a BootcNode in the audit log")?;
        let version = object.metadata.resource_version.as_deref().unwrap_or_default();
        found.push((record.program(), version.parse().context("a resourceVersion")?, object));
    }
    found.sort_by_key(|(_, version, _)| *version);
    Ok(found)
}

/// Every `status/reason` that each condition of a node went through, one line for each type.
///
/// # Errors
/// When the log has no status of the node, or a condition of a type that nobody has documented.
pub fn walk(records: &[Record], node: &str) -> Result<String> {
    let statuses = statuses(records, node)?;
    ensure!(!statuses.is_empty(), "the audit log has no status of {node}");
    let mut walks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (_, _, object) in &statuses {
        for condition in object.status.iter().flat_map(|s| &s.conditions) {
            ensure!(ALL.contains(&condition.type_.as_str()), "{node}: {condition:?}");
            let said = format!("{}/{}", condition.status, condition.reason);
            let walk = walks.entry(condition.type_.clone()).or_default();
            if walk.last() != Some(&said) {
                walk.push(said);
            }
        }
    }
    let lines = walks
        .iter()
        .map(|(type_, walk)| format!("{type_}: {}\n", walk.join(" ")));
    Ok(lines.collect())
}

/// Fails unless the walk is one that `tests/tests/golden/NAME.txt` allows. With `BERTH_BLESS=1` it writes the file; the second
/// walk of that name is compared with the first one.
///
/// # Errors
/// When it is not allowed; the error shows both.
fn ensure_golden(name: &str, walk: &str) -> Result<()> {
    let file = workspace_root().join(format!("tests/tests/golden/{name}.txt"));
    let mut blessed = BLESSED.lock().unwrap_or_else(PoisonError::into_inner);
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
        "{} has\n{golden}\nand the test saw\n{walk}",
        file.display()
    );
    Ok(())
}

/// Says whether a walk has the types of the golden one, and of each the same states in the same order, from the first to the
/// last. A state between them may be missing, unless it is True: one that is over before the next write is never told.
fn allows(golden: &str, walk: &str) -> bool {
    let of = |text: &str| -> Vec<(String, Vec<String>)> {
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        let states = |states: &str| states.split(' ').map(str::to_owned).collect();
        lines.map(|(type_, said)| (type_.to_owned(), states(said))).collect()
    };
    let (golden, walk) = (of(golden), of(walk));
    golden.len() == walk.len()
        && golden.iter().zip(&walk).all(|((type_, whole), (found, seen))| {
            let mut rest = whole.iter();
            let in_order = seen.iter().all(|said| rest.any(|state| state == said));
            let truths = |states: &[String]| states.iter().filter(|s| s.starts_with("True/")).count();
            type_ == found
                && in_order
                && truths(whole) == truths(seen)
                && whole.first() == seen.first()
                && whole.last() == seen.last()
        })
}

/// Compares all conditions that a node has gone through with the golden file of that name. None of its agent's writes may have
/// said nothing.
///
/// # Errors
/// When the file does not allow the walk, or a write said nothing, or the audit log cannot be read.
pub fn ensure_walk(audit_log: &Path, node: &str, golden: &str) -> Result<()> {
    let audit = AuditLog::read(audit_log)?;
    let idle = idle_writes(audit.records(), node)?;
    ensure!(idle.is_empty(), "{idle:#?}");
    ensure_golden(golden, &walk(audit.records(), node)?)
}

/// Writes of statuses of a node by its agent that said nothing new. A sign of life is new.
///
/// # Errors
/// As [`statuses`].
pub fn idle_writes(records: &[Record], node: &str) -> Result<Vec<String>> {
    let statuses = statuses(records, node)?;
    let idle = statuses.windows(2).filter_map(|pair| {
        let [(_, before, old), (program, after, new)] = pair else {
            return None;
        };
        let is_same = old.status == new.status;
        is_same.then(|| format!("{program} wrote the status of {node} at {after} as it was at {before}"))
    });
    Ok(idle.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_may_be_missed_and_none_may_be_added_or_come_out_of_order() {
        let golden = "Cordoned: False/A True/B False/A\nUpdated: False/X False/Y True/Z\n";
        for (walk, allowed) in [
            (golden, true),
            ("Cordoned: False/A True/B False/A\nUpdated: False/X True/Z\n", true),
            ("Cordoned: False/A True/B False/A\nUpdated: False/X False/Y\n", false),
            ("Cordoned: False/A\nUpdated: False/X False/Y True/Z\n", false),
            ("Cordoned: False/A True/B False/A\nUpdated: False/Y True/Z\n", false),
            (
                "Cordoned: False/A True/B False/A\nUpdated: False/X False/W True/Z\n",
                false,
            ),
            (
                "Cordoned: False/A True/B True/C False/A\nUpdated: False/X True/Z\n",
                false,
            ),
            ("Cordoned: False/A True/B False/A\n", false),
        ] {
            assert_eq!(allows(golden, walk), allowed, "{walk}");
        }
    }
}
