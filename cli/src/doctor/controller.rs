//! Checks that a controller runs and reads its objects.

use super::check::{Check, Topic};
use super::facts::{CONTROLLER, Facts};
use super::findings;
use crate::health::HealthInsight;
use crate::text::clean;

/// Checks the controller.
pub(crate) fn check(facts: &Facts, health: &[HealthInsight]) -> Vec<Check> {
    let mut found = vec![runs(facts)];
    found.extend(findings::of(Topic::Controller, health));
    found
}

fn runs(facts: &Facts) -> Check {
    let deployment = match &facts.deployment {
        Err(unseen) => return unseen.check(Topic::Controller),
        Ok(deployment) => deployment,
    };
    let leader = match &facts.leader {
        Ok(leader) => leader.as_deref(),
        Err(_) => None,
    };
    let Some(deployment) = deployment else {
        return absent(facts, leader);
    };
    let available = deployment.status.as_ref().and_then(|status| status.available_replicas);
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let available = available.unwrap_or_default();
    let see = format!(
        "{} -n {} get pods -l app.kubernetes.io/name={CONTROLLER} -o wide",
        facts.commands.kubectl(),
        facts.namespace
    );
    let message = format!("controller: {available} of {wanted} pods are ready");
    if available == 0 {
        let check = Check::broken(Topic::Controller, &message)
            .because("without a controller no image is resolved and no berth is offered; nodes that reboot finish");
        return check.remedy(&format!("find out why: {see}; docs/runbooks/BerthControllerAway.md"));
    }
    if available < wanted {
        return Check::note(Topic::Controller, &message).remedy(&format!("find out why the others are not: {see}"));
    }
    match (leader, &facts.leader) {
        (Some(leader), _) => Check::ok(Topic::Controller, &format!("{message}, {} leads", clean(leader))),
        (None, Err(_)) => Check::ok(Topic::Controller, &message),
        (None, Ok(_)) => Check::warning(Topic::Controller, &format!("{message}, but none leads"))
            .because(&format!("Lease {CONTROLLER} has no holder"))
            .remedy(&format!(
                "read their logs: {} -n {} logs -l app.kubernetes.io/name={CONTROLLER}",
                facts.commands.kubectl(),
                facts.namespace
            )),
    }
}

fn absent(facts: &Facts, leader: Option<&str>) -> Check {
    if let Some(leader) = leader {
        let message = format!("controller: {} leads, without a Deployment {CONTROLLER}", clean(leader));
        return Check::ok(Topic::Controller, &message);
    }
    let message = format!(
        "the controller is not installed: namespace {} has no Deployment {CONTROLLER}",
        facts.namespace
    );
    let commands = facts.commands.everything(facts.release().as_ref());
    let remedy = if commands.is_empty() {
        "apply your copy of the manifests for this namespace"
    } else {
        "install Berth"
    };
    Check::broken(Topic::Controller, &message)
        .remedy(remedy)
        .commands(commands)
}
