//! Whether a holder's boot is proven, judged from its berth and its agent's report. Pure.

use berth_api::berth::{HoldPhase, Holding};

use crate::controller::view::Report;

/// True if the holder's current boot is known to be unproven, and its berth does not license another reboot.
///
/// The boot is known to be unproven in two cases: its boot ID differs from the boot ID in the berth, or the node runs
/// another image than before its turn. An agent that commits again after a reboot writes the new boot ID into the
/// berth, so then only the image counts.
pub fn is_unproven(holding: &Holding, report: &Report) -> bool {
    if matches!(holding.phase, HoldPhase::Releasing(_)) {
        return false;
    }
    let is_another_boot = is_another_boot(holding, report);
    let runs_another = holding.from.is_some() && report.images.booted.is_some() && report.images.booted != holding.from;
    is_another_boot || runs_another && !is_licensed(holding, report)
}

fn is_another_boot(holding: &Holding, report: &Report) -> bool {
    let boot = report.host.boot_id.as_ref();
    boot.is_some_and(|boot| *boot != holding.boot_id)
}

/// True if the holder has committed to a reboot and has not rebooted yet.
pub fn is_licensed(holding: &Holding, report: &Report) -> bool {
    let is_another_boot = is_another_boot(holding, report);
    holding.phase == HoldPhase::Committed && !is_another_boot && report.images.staged.as_ref() == Some(&holding.target)
}

#[cfg(test)]
mod tests {
    use berth_api::BootId;
    use berth_api::berth::Outcome;

    use super::*;
    use crate::controller::plan::tests::{committed, digest};

    #[test]
    fn a_boot_is_unproven_until_the_give_back() {
        let berth = committed(0, "n1");
        let held = berth.holding().unwrap();
        let (here, there) = (held.boot_id.clone(), BootId::from("another"));
        let from = held.from.clone().unwrap();
        let (taken, committed) = (HoldPhase::Taken, HoldPhase::Committed);
        let mut cases = vec![
            ("the holder drains", &taken, &here, 1, Some(2), false),
            ("about to reboot", &committed, &here, 1, Some(2), false),
            ("licensed again", &committed, &here, 9, Some(2), false),
            ("the licensed image is not staged", &committed, &here, 9, None, true),
            ("the reboot was refused", &taken, &here, 9, Some(2), true),
        ];
        let releasing = HoldPhase::Releasing(Outcome::Updated);
        for booted in [1, 2, 9] {
            cases.push(("rebooted", &committed, &there, booted, None, true));
            cases.push(("rebooted uncommitted", &taken, &there, booted, None, true));
            cases.push(("the outcome is decided", &releasing, &there, booted, None, false));
        }
        for (what, phase, boot_id, booted, staged, expected) in cases {
            let holding = Holding {
                phase: phase.clone(),
                from: Some(from.clone()),
                ..held.clone()
            };
            let mut report = Report::default();
            report.host.boot_id = Some(boot_id.clone());
            report.images.booted = Some(if booted == 1 { from.clone() } else { digest(booted) });
            report.images.staged = staged.map(digest);
            assert_eq!(is_unproven(&holding, &report), expected, "{what} with {booted}");
        }
    }
}
