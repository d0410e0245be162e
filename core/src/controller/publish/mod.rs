//! Publishes the spec of each node's BootcNode, and releases nodes that leave. Pure.

use std::collections::BTreeMap;

use berth_api::node::{BootcNodeSpec, DesiredImage};
use berth_api::platform::Platform;
use berth_api::pool::Target;
use berth_api::{Digest, NodeName, NodeUid, PoolName, keys};

use crate::controller::view::{BootcNodeView, NodeView, is_leaving, is_stale, made_for};

mod facts;
mod staging;
mod terms;
#[cfg(test)]
mod tests;
mod write;

use facts::Draft;
pub use facts::{PublishFacts, Terms};
pub use terms::terms;
pub use write::{BootcNodeWrite, object, patch, release};

/// Returns the writes to BootcNodes that are needed now.
pub fn publish(facts: &PublishFacts<'_>) -> Vec<BootcNodeWrite> {
    let mut writes = vec![];
    let mut drafts: BTreeMap<Option<&PoolName>, Vec<Draft<'_>>> = BTreeMap::new();
    let mut forms = Forms::default();
    for (name, entry) in facts.bootc_nodes {
        writes.extend(finalize(facts, name, &entry.view));
    }
    for entry in facts.nodes.values() {
        let node = entry.view.as_ref();
        let host = facts.bootc_nodes.get(node.name.as_str()).map(|h| h.view.as_ref());
        if let Some((pool, draft)) = draft(facts, node, host, &mut forms) {
            drafts.entry(pool).or_default().push(draft);
        }
    }
    for (pool, mut drafts) in drafts {
        if let Some(terms) = pool.and_then(|p| facts.terms.get(p)) {
            staging::allow(facts, terms, &mut drafts);
        }
        writes.extend(drafts.into_iter().filter_map(|draft| due(facts, draft)));
    }
    writes
}

/// Returns the write that removes a BootcNode whose node is released or gone: a deletion or, if the BootcNode is being
/// deleted already, the removal of Berth's finalizer. `None` if there is nothing to do.
fn finalize(facts: &PublishFacts<'_>, name: &str, host: &BootcNodeView) -> Option<BootcNodeWrite> {
    if !is_leaving(host) && facts.confirmed_gone.is_empty() {
        return None;
    }
    let node = facts.nodes.get(name).map(|n| n.view.as_ref());
    let gone =
        is_stale(host, node) && made_for(host).is_some_and(|uid| facts.confirmed_gone.contains(&NodeUid::from(uid)));
    if !gone {
        let wanted = facts.membership.pool_of(&NodeName::from(name)).is_some()
            || facts.membership.conflicts.contains_key(&NodeName::from(name));
        let settled = is_leaving(host) && is_settled(facts, host, node);
        if !settled || (wanted && !host.deleting) || occupied(facts, name, host) {
            return None;
        }
    }
    let uid = host.uid.clone();
    let name = name.to_owned();
    if !host.deleting {
        return Some(BootcNodeWrite::Delete { name, uid });
    }
    let rest: Vec<_> = host
        .finalizers
        .iter()
        .filter(|f| *f != keys::FINALIZER_NODE)
        .cloned()
        .collect();
    (rest.len() < host.finalizers.len()).then_some(BootcNodeWrite::Release {
        late: !gone && !host.is_released(),
        version: facts
            .bootc_nodes
            .get(&name)
            .map(|h| h.version.clone())
            .unwrap_or_default(),
        name,
        uid,
        finalizers: rest,
    })
}

/// True if the BootcNode is no longer needed: the agent has released the node, or the release deadline has passed and
/// the node does not use up capacity.
fn is_settled(facts: &PublishFacts<'_>, host: &BootcNodeView, node: Option<&NodeView>) -> bool {
    host.is_released() || facts.overdue.contains(&host.uid) && !counts_still(facts, host, node)
}

/// True if the BootcNode must stay: its node has left its pool, but is down and still counts as unavailable there. Only
/// the label of the BootcNode still names that pool.
fn counts_still(facts: &PublishFacts<'_>, host: &BootcNodeView, node: Option<&NodeView>) -> bool {
    let label = host.pool_label.as_deref().map(PoolName::from);
    if !label.is_some_and(|pool| facts.lasting.contains(&pool)) {
        return false;
    }
    let Some(node) = node else {
        // The BootcNode stays until a live read shows that the Node is gone.
        return made_for(host).is_some();
    };
    let is_excluded = node.labels.contains_key(keys::LABEL_EXCLUDE);
    let is_member = facts.membership.pool_of(&node.name).is_some();
    !is_stale(host, Some(node)) && !is_excluded && !is_member && node.down().is_some()
}

/// True if the node holds a berth, is offered one, or is named by an unreadable Lease.
fn occupied(facts: &PublishFacts<'_>, name: &str, host: &BootcNodeView) -> bool {
    facts.unclear.contains(NodeName::from(name).label().as_ref())
        || made_for(host).is_some_and(|uid| facts.occupied.contains_key(&NodeUid::from(uid)))
}

/// For each pool and platform, the part of the spec that all its BootcNodes share.
type Forms<'a> = BTreeMap<(&'a PoolName, Platform<'a>), BootcNodeSpec>;

/// Returns the pool of a node and the new spec of its BootcNode, without the permit to pull. `None` if the BootcNode
/// must not be changed, or if the node needs no BootcNode.
fn draft<'a>(
    facts: &PublishFacts<'a>,
    node: &'a NodeView,
    host: Option<&'a BootcNodeView>,
    forms: &mut Forms<'a>,
) -> Option<(Option<&'a PoolName>, Draft<'a>)> {
    let pool = facts.membership.pool_of(&node.name);
    let old = match host {
        Some(host) if is_stale(host, Some(node)) => return None,
        // The controller does not change a BootcNode whose spec it cannot read.
        Some(host) => Some(host.spec()?),
        None => None,
    };
    let deleting = host.is_some_and(|h| h.deleting);
    let pool = pool.filter(|_| !deleting);
    // While a node holds or is offered a berth, its pool and image do not change.
    let moves = old.is_some_and(|old| !old.pool_name.is_empty() && old.pool_name != pool.map_or("", PoolName::as_str));
    if moves && host.is_some_and(|h| occupied(facts, node.name.as_str(), h)) {
        return None;
    }
    let Some(pool) = pool else {
        return Some((None, draft_without_pool(facts, node, host)?));
    };
    let terms = facts.terms.get(pool)?;
    if old.is_none() && terms.target.is_none() && terms.resolving {
        return None;
    }
    // While the target's image is invalid, BootcNodes stay as they are. `ImageResolved` reports the error.
    if terms.target.as_ref().is_some_and(|target| target.image.get().is_err()) {
        return None;
    }
    // The status has the CPU's variant. While it cannot be read, the image of an index with several variants is unknown,
    // and a new spec would have no image. The node is offered no berth until then, so it keeps its spec.
    let is_unread = host.is_some_and(|host| host.error().is_some());
    if is_unread && old.is_some_and(|old| old.pool_name == pool.as_str()) {
        return None;
    }
    let platform = node.platform(host);
    let form = forms.entry((pool, platform)).or_insert_with(|| BootcNodeSpec {
        image: desired_image(terms, platform),
        paused: terms.spec.paused || facts.fleet_paused,
        ..terms.spec.clone()
    });
    let spec = BootcNodeSpec {
        node_uid: node.uid.to_string(),
        ..form.clone()
    };
    Some((
        Some(pool),
        Draft {
            node,
            host,
            spec,
            label: Some(pool.to_string()),
        },
    ))
}

/// Returns the draft for a node that belongs to no pool, or whose BootcNode is being deleted.
fn draft_without_pool<'a>(
    facts: &PublishFacts<'a>,
    node: &'a NodeView,
    host: Option<&'a BootcNodeView>,
) -> Option<Draft<'a>> {
    // A node that several pools select gets a BootcNode too, which shows the conflict.
    let deleting = host.is_some_and(|h| h.deleting);
    let in_conflict = facts.membership.conflicts.contains_key(&node.name) && !deleting;
    if host.is_none() && !in_conflict {
        return None;
    }
    // The pool label stays until the node is released, because its previous pool counts it until then.
    let leaving = host.filter(|host| !in_conflict || !is_settled(facts, host, Some(node)));
    let label = leaving.and_then(|host| host.pool_label.clone());
    let node_uid = node.uid.to_string();
    let spec = BootcNodeSpec {
        node_uid,
        ..BootcNodeSpec::default()
    };
    Some(Draft {
        node,
        host,
        spec,
        label,
    })
}

/// True if the BootcNode's spec must be written. A change of only the estimates is not written. If the node already
/// runs its image, a change of only the pause is not written either.
fn is_outdated(host: &BootcNodeView, before: &BootcNodeSpec, wanted: &BootcNodeSpec) -> bool {
    let desired = wanted.image.as_ref().map(|image| &image.digest);
    let booted = host.report().and_then(|report| report.images.booted.as_ref());
    let is_updated = desired.is_some() && booted == desired;
    let paused = if is_updated { before.paused } else { wanted.paused };
    let needed = BootcNodeSpec {
        paused,
        estimates: before.estimates,
        ..wanted.clone()
    };
    needed != *before
}

/// Returns the target's digest for a platform.
pub fn desired_digest<'a>(target: Option<&'a Target>, platform: Platform<'_>) -> Option<&'a Digest> {
    target.and_then(|t| t.digest_for(platform))
}

fn desired_image(terms: &Terms, platform: Platform<'_>) -> Option<DesiredImage> {
    let target = terms.target.as_ref()?;
    let digest = target.digest_for(platform)?;
    let reference = target.image.get().ok()?;
    Some(DesiredImage {
        reference: reference.at(digest).into(),
        digest: digest.clone(),
        index_digest: target.digest.clone(),
        version: target.version.clone(),
        signature: terms.signature,
    })
}

/// Returns the write that makes the BootcNode equal the draft; `None` if they are equal.
fn due(facts: &PublishFacts<'_>, draft: Draft<'_>) -> Option<BootcNodeWrite> {
    let name = draft.node.name.as_str();
    let Some(host) = draft.host else {
        let name = name.to_owned();
        return Some(BootcNodeWrite::Create {
            name,
            spec: draft.spec,
            label: draft.label,
        });
    };
    let before = host.spec()?;
    let finalizer = host.finalizers.iter().any(|f| f == keys::FINALIZER_NODE);
    let same = !is_outdated(host, before, &draft.spec)
        && host.pool_label == draft.label
        && (host.deleting || (finalizer && host.owner.as_deref() == Some(draft.node.uid.as_str())));
    if same {
        return None;
    }
    let version = facts.bootc_nodes.get(name).map(|h| h.version.clone());
    let mut finalizers = host.finalizers.clone();
    if !finalizer && !host.deleting {
        finalizers.push(keys::FINALIZER_NODE.to_owned());
    }
    Some(BootcNodeWrite::Update {
        name: name.to_owned(),
        uid: host.uid.clone(),
        version: version.unwrap_or_default(),
        before: Box::new(before.clone()),
        spec: draft.spec,
        label: draft.label,
        finalizers,
    })
}
