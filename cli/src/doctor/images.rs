//! Checks of the pools' images, their registries, and the Secrets with credentials.

use berth_api::condition::{self, pool as types};
use berth_api::pool::BootcNodePool;
use berth_core::text::few;
use kube::ResourceExt;

use super::check::{Check, Topic};
use super::facts::{Facts, HOST_SECRET};
use super::findings;
use crate::health::HealthInsight;
use crate::text::{clean, count};

/// Type that Secrets with credentials must have.
const TYPE: &str = "kubernetes.io/dockerconfigjson";

/// Checks that the images of the pools are resolved, and that their registries answer.
pub(crate) fn registry(facts: &Facts, health: &[HealthInsight]) -> Vec<Check> {
    let mut found = findings::of(Topic::Registry, health);
    let Ok(snapshot) = &facts.snapshot else {
        return found;
    };
    let new = snapshot.pools.iter().filter(|pool| !is_asked(pool));
    let new: Vec<String> = new.map(|pool| clean(&pool.name_any())).collect();
    if !new.is_empty() {
        let message = format!("the images of these pools have not been queried yet: {}", few(new));
        found.push(Check::note(Topic::Registry, &message).remedy("if it stays, see the check of the controller"));
    }
    if found.is_empty() && !snapshot.pools.is_empty() {
        let message = format!(
            "the images of {} are resolved, and their tags can be polled",
            count(snapshot.pools.len(), "pool")
        );
        found.push(Check::ok(Topic::Registry, &message));
    }
    found
}

/// True if the controller has queried the pool's image.
fn is_asked(pool: &BootcNodePool) -> bool {
    let status = pool.status.as_ref();
    status.is_some_and(|status| condition::find(&status.conditions, types::IMAGE_RESOLVED).is_some())
}

/// Checks that Secrets with credentials exist and have the right type. Their content is not read.
pub(crate) fn secrets(facts: &Facts) -> Vec<Check> {
    let mut found = vec![];
    let mut good = vec![];
    for (name, type_) in &facts.secrets {
        let shown = clean(&format!("{}/{name}", facts.namespace));
        match type_ {
            Err(unseen) => found.push(unseen.check(Topic::PullSecrets)),
            Ok(None) if name == HOST_SECRET => {}
            Ok(None) => found.push(missing(facts, &shown, name)),
            Ok(Some(type_)) if type_ == TYPE => good.push(shown),
            Ok(Some(type_)) => found.push(wrong(facts, &shown, type_, name)),
        }
    }
    if !good.is_empty() {
        found.push(Check::ok(
            Topic::PullSecrets,
            &format!("pull secrets exist: {}", good.join(", ")),
        ));
    } else if found.is_empty() && facts.snapshot.as_ref().is_ok_and(|snapshot| !snapshot.pools.is_empty()) {
        found.push(Check::ok(Topic::PullSecrets, "no pool names a pull secret"));
    }
    found
}

fn missing(facts: &Facts, shown: &str, name: &str) -> Check {
    Check::broken(Topic::PullSecrets, &format!("Secret {shown} does not exist"))
        .because("a pool names it, so the controller cannot query the registry")
        .remedy(&create(facts, name))
}

fn wrong(facts: &Facts, shown: &str, type_: &str, name: &str) -> Check {
    let effect = if name == HOST_SECRET {
        "the agents' pods cannot mount it"
    } else {
        "the controller cannot use it"
    };
    Check::broken(
        Topic::PullSecrets,
        &format!("Secret {shown} has the type {}, not {TYPE}", clean(type_)),
    )
    .because(effect)
    .remedy(&format!("delete it, then {}", create(facts, name)))
}

fn create(facts: &Facts, name: &str) -> String {
    let kubectl = facts.commands.kubectl();
    let namespace = &facts.namespace;
    format!(
        "create it: {kubectl} -n {namespace} create secret docker-registry {} --docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD",
        clean(name)
    )
}
