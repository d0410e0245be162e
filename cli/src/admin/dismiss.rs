//! `dismiss`: stops reporting a machine that is held back on its first boot.

use berth_api::fleet::HeldMachine;
use berth_api::keys::ANNOTATION_DISMISSED;
use berth_api::text::names;
use berth_core::controller::fleet::held::dismissed_also;
use kube::ResourceExt;

use super::plan::{Change, NoPlan, Plan};
use crate::snapshot::Snapshot;
use crate::text::clean;

/// Maximum number of machines named in an error.
const NAMED: usize = 10;

/// Plans to dismiss a machine. A dismissed machine is reported again only if it boots and is refused again.
pub fn dismiss(snapshot: &Snapshot, machine: &str) -> Result<Plan, NoPlan> {
    if let Some(error) = &snapshot.fleet_unread {
        return Err(NoPlan::NoFleet(clean(error)));
    }
    let fleet = snapshot.fleet.as_ref();
    let held: &[HeldMachine] = fleet
        .and_then(|fleet| fleet.status.as_ref())
        .map_or(&[], |status| &status.held_machines);
    let found = held.iter().find(|held| held.name == machine);
    let (Some(fleet), Some(found)) = (fleet, found) else {
        let known = held.iter().take(NAMED).map(|held| clean(&held.name));
        return Err(NoPlan::NoMachine {
            name: machine.to_owned(),
            known: match held.len() {
                0 => "none".to_owned(),
                count => names(known, count),
            },
        });
    };
    let before = fleet.annotations().get(ANNOTATION_DISMISSED);
    let value = dismissed_also(before.map_or("", String::as_str), found);
    Ok(Plan {
        head: format!(
            "Dismiss machine {}: the machine is no longer reported as held back.",
            clean(machine)
        ),
        facts: vec![
            clean(&found.message),
            "Nothing changes on the machine: its kubelet stays off. Berth reports the machine again if it is held back again."
                .to_owned(),
        ],
        changes: vec![Change::Dismiss {
            uid: fleet.uid().unwrap_or_default(),
            machine: machine.to_owned(),
            value,
        }],
        ..Plan::default()
    })
}
