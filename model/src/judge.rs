//! The invariants of the design, each by its number, as properties of states and of single moves. Nothing here asks
//! the code that ships what it thinks: the sets are counted anew from the world.

use berth_api::berth::{ClosedReason, Outcome};

use crate::decide::{Act, Put};
use crate::set::Set;
use crate::state::{
    Berth, BootImage, BootImages, Cordon, Held, Image, Lease, Look, NONE, No, Node, Object, Phase, Pool, Seen, Sight,
    Spec, State, Work, Write,
};
use crate::world::{Broken, Follows, World};

/// I1a a cordon of ours has a berth
pub const I1A_CORDON: Broken = Broken("I1a a cordon of ours has a berth");
/// I1a who is rebooted and unproven has a berth
pub const I1A_UNPROVEN: Broken = Broken("I1a who is rebooted and unproven has a berth");
/// I1a only its holder gives a berth away
pub const I1A_HOLDER: Broken = Broken("I1a only its holder gives a berth away");
/// I1a who goes down is cordoned and drained
pub const I1A_CLEAR: Broken = Broken("I1a who goes down is cordoned and drained");
/// I1b opened only within the capacity
pub const I1B_OPEN: Broken = Broken("I1b opened only within the capacity");
/// I1b only the controller opens, and only what is closed
pub const I1B_WHO: Broken = Broken("I1b only the controller opens, and only what is closed");
/// I1c nothing is taken above the published capacity
pub const I1C_TAKE: Broken = Broken("I1c nothing is taken above the published capacity");
/// I2 an offer is taken by its node, for what is desired
pub const I2_TAKE: Broken = Broken("I2 an offer is taken by its node, for what is desired");
/// I2 a reboot has a licence
pub const I2_REBOOT: Broken = Broken("I2 a reboot has a licence");
/// I2 a licence is for one boot
pub const I2_ONCE: Broken = Broken("I2 a licence is for one boot");
/// I2 commit only when cordoned, drained and staged with all that belongs to the image
pub const I2_COMMIT: Broken = Broken("I2 commit only when cordoned, drained and staged");
/// I3 nothing is armed without a licence
pub const I3_ARMED: Broken = Broken("I3 nothing is armed without a licence");
/// I3 nobody rests beside what is armed
pub const I3_REST: Broken = Broken("I3 nobody rests beside what is armed");
/// I4 the cordon is as it was before us
pub const I4_CORDON: Broken = Broken("I4 the cordon is as it was before us");
/// I5 what is committed under this boot is not given back
pub const I5_COMMITTED: Broken = Broken("I5 what is committed under this boot is not given back");
/// I5 given back only when proven
pub const I5_PROOF: Broken = Broken("I5 given back only when proven");
/// I5 giving back goes through Releasing
pub const I5_STICKY: Broken = Broken("I5 giving back goes through Releasing");
/// I11 one node of the control plane at a time, and a majority stays
pub const I11_QUORUM: Broken = Broken("I11 one node of the control plane at a time, and a majority stays");
/// nothing is offered while a gate is closed
pub const GATE: Broken = Broken("nothing is offered while a gate is closed");
/// a node that is held back is offered no berth
pub const HOLD: Broken = Broken("a node that is held back is offered no berth");
/// no new image comes into force while the boot image is too old for it
pub const BOOT_IMAGE: Broken = Broken("no new image comes into force while the boot image is too old for it");
/// a wave begins when the one before it is proven
pub const WAVE: Broken = Broken("a wave begins when the one before it is proven");
/// I1b opened only within the fleet's limit
pub const I1B_FLEET: Broken = Broken("I1b opened only within the fleet's limit");
/// a pool begins when those that go before it are proven
pub const ORDER: Broken = Broken("a pool begins when those that go before it are proven");
/// I7 one pull at a time, and none is aborted
pub const I7_PULL: Broken = Broken("I7 one pull at a time, and none is aborted");
/// I8 what failed here is not tried again
pub const I8_FAILED: Broken = Broken("I8 what failed here is not tried again");
/// I2 no licence is taken back while a shutdown is scheduled
pub const I2_SCHEDULED: Broken = Broken("I2 no licence is taken back while a shutdown is scheduled");
/// I2 no reboot is licensed while the next boot takes another image
pub const I2_QUEUED: Broken = Broken("I2 no reboot is licensed while the next boot takes another image");
/// I6 no berth is taken from an API server that does not guard it
pub const I6_GUARD: Broken = Broken("I6 no berth is taken from an API server that does not guard it");
/// a drain is given up only when its time is over
pub const DRAIN: Broken = Broken("a drain is given up only when its time is over");
/// I8 a turn begins only when its host remembers it
pub const I8_MEMORY: Broken = Broken("I8 a turn begins only when its host remembers it");
/// a tag is adopted only when it is old enough, and was confirmed after that
pub const ADOPTED: Broken = Broken("a tag is adopted only when it is old enough, and was confirmed after that");
/// a pinned image changes only by the admin's word
pub const PINNED: Broken = Broken("a pinned image changes only by the admin's word");
/// no more nodes may pull at once than the pool allows
pub const PERMITS: Broken = Broken("no more nodes may pull at once than the pool allows");
/// nothing is pulled without a permit
pub const PERMIT: Broken = Broken("nothing is pulled without a permit");
/// I8 a failure is on record before its berth reopens
pub const I8_RECORD: Broken = Broken("I8 a failure is on record before its berth reopens");

fn holder(state: &State, node: usize) -> Option<&Held> {
    let uid = state.nodes[node].object.uid;
    state
        .slots
        .iter()
        .filter_map(Lease::held)
        .find(|h| usize::from(h.node) == node && h.uid == uid)
}

/// Properties of every state.
pub fn state(world: &World, state: &State) -> Option<Broken> {
    (0..world.nodes).find_map(|number| node(state, number))
}

/// Properties of each node in every state.
pub fn node(state: &State, number: usize) -> Option<Broken> {
    {
        let node = &state.nodes[number];
        let held = holder(state, number);
        let object = &node.object;
        let counts = object.there && !object.excluded;
        if counts && !node.ghost.abandoned && object.cordon != Cordon::No && held.is_none() {
            return Some(I1A_CORDON);
        }
        if counts && node.ghost.unproven && held.is_none() {
            return Some(I1A_UNPROVEN);
        }
        let licensed = held.is_some_and(|h| licence(h, node.host.staged));
        let armed = node.ghost.armed == object.uid + 1 && node.host.staged != 0 && !node.host.locked;
        // An admin who excludes a node may take the licence over its head.
        if counts && armed && !licensed {
            return Some(I3_ARMED);
        }
        let before = match object.cordon {
            Cordon::No => object.unschedulable,
            Cordon::OverSchedulable => false,
            // Who uncordons during our turn has the last word.
            Cordon::OverCordoned => object.unschedulable,
        };
        if object.there && before != node.ghost.admin {
            return Some(I4_CORDON);
        }
    }
    None
}

fn licence(held: &Held, staged: u8) -> bool {
    held.phase == Phase::Committed && held.boot == 0 && held.target == staged
}

/// Properties after a patch of the Node: none beyond those of every state.
pub fn cordon(_: &State, _: usize) -> Option<Broken> {
    None
}

/// Properties of a request for a reboot by an agent.
pub fn reboot(state: &State, node: usize) -> Option<Broken> {
    let here = &state.nodes[node];
    // The Node may be deleted, and created anew, after the agent has read it: one of three windows that remain by
    // nature. The licence then is one for the Node that the agent saw.
    let uid = match here.agent.node {
        Seen::Is(seen, false) => seen.uid,
        _ => here.object.uid,
    };
    // As it was just read: what another updater did since then is its own affair.
    let armed = here.agent.os.filter(|os| !os.locked).map_or(0, |os| os.staged);
    let anew = uid != here.object.uid || !here.object.there;
    let mut holdings = state.slots.iter().filter_map(Lease::held);
    let held = holdings.find(|h| usize::from(h.node) == node && h.uid == uid);
    // As the agent last saw it: what becomes of it in that moment is no fault of the agent's.
    let cordoned = |seen: &Object| seen.cordon != Cordon::No && seen.unschedulable;
    let is_clear = here.agent.drained && matches!(&here.agent.node, Seen::Is(seen, _) if cordoned(seen));
    match held {
        Some(h) if licence(h, armed) => (!is_clear).then_some(I1A_CLEAR),
        None if anew => None,
        _ => Some(I2_REBOOT),
    }
}

/// Properties of an agent that has nothing to do: what it has seen staged is locked, or it has committed to it.
pub fn rest(state: &State, node: usize) -> Option<Broken> {
    let os = state.nodes[node].agent.os.filter(|os| os.staged != 0 && !os.locked)?;
    let mut holdings = state.slots.iter().filter_map(Lease::held);
    let licensed = holdings.any(|h| usize::from(h.node) == node && licence(h, os.staged));
    (!licensed).then_some(I3_REST)
}

/// Properties of an agent's start or stop of a pull.
pub fn pull(state: &State, node: usize, act: Act) -> Option<Broken> {
    let here = &state.nodes[node];
    let desired = here
        .spec
        .filter(|s| s.pool != NONE && !s.deleting)
        .map_or(0, |s| s.image);
    match act {
        Act::Pull(_) if here.host.pull != 0 => Some(I7_PULL),
        Act::Pull(_) if here.spec.is_none_or(|spec| !spec.may_pull) => Some(PERMIT),
        Act::Pull(image) if here.host.failed & (1 << image) != 0 => Some(I8_FAILED),
        // Under a boot that has to be proven a pull is in the way: what runs cannot be seen.
        Act::Cancel(image) if image == desired && holder(state, node).is_none_or(|h| h.boot == 0) => Some(I7_PULL),
        _ => None,
    }
}

/// Properties of an agent's write of a berth, by the state of its host and of the API server.
fn prevented(state: &State, node: usize, put: Put) -> Option<Broken> {
    let here = &state.nodes[node];
    let begins = matches!(put, Put::Take | Put::Commit | Put::Relicense);
    // As it was read last: a rollback may be queued in the next moment.
    let is_wanted = |image: Image| image != 0 && here.host.failed & (1 << image) == 0;
    let is_queued = here.agent.os.is_some_and(|os| is_wanted(os.queued));
    match put {
        Put::Uncommit if here.host.scheduled => Some(I2_SCHEDULED),
        Put::Release(Outcome::DrainTimeout) if !here.ghost.drain_over => Some(DRAIN),
        Put::Take if here.ghost.unguarded => Some(I6_GUARD),
        Put::Take | Put::Commit if is_queued => Some(I2_QUEUED),
        _ if begins && here.host.disk.is_some() => Some(I8_MEMORY),
        _ => None,
    }
}

/// Properties of an agent's write of a berth, by what it has just read.
pub fn decided(state: &State, node: usize, put: Put, slot: No, after: &Berth) -> Option<Broken> {
    if let Some(broken) = prevented(state, node, put) {
        return Some(broken);
    }
    let here = &state.nodes[node];
    let before = &state.slots[usize::from(slot)].is;
    let Berth::Held(new) = after else { return None };
    let failed = here.host.failed & (1 << new.target) != 0;
    let desired = here.spec.is_some_and(|s| s.pool != NONE && s.image == new.target);
    let staged = here.agent.os.is_some_and(|os| os.staged == new.target && os.locked);
    let seen = match here.agent.node {
        Seen::Is(seen, true) => Some(seen),
        _ => None,
    };
    match (before, new.phase) {
        (Berth::Offered(_), _) if failed => Some(I8_FAILED),
        (Berth::Offered(_), _) if !desired || seen.is_some_and(|o| o.uid != new.uid) => Some(I2_TAKE),
        (Berth::Held(old), Phase::Committed) => {
            let cordoned = seen.is_none_or(|o| o.cordon != Cordon::No && o.unschedulable && o.uid == new.uid);
            let complete = here.ghost.partial != new.target;
            let ready = staged && complete && desired && cordoned && here.agent.drained;
            match put {
                Put::Fence => None,
                _ if failed => Some(I8_FAILED),
                Put::Commit if old.boot != 0 || here.ghost.unproven => Some(I2_ONCE),
                // It runs already: no reboot follows, only its proof.
                Put::Relicense if here.host.booted == new.target => None,
                Put::Relicense if old.revoke != 0 => Some(I2_COMMIT),
                _ => (!ready).then_some(I2_COMMIT),
            }
        }
        (Berth::Held(old), Phase::Taken) if old.boot != 0 || here.ghost.unproven => Some(I2_ONCE),
        _ => None,
    }
}

/// Properties of the moment when an agent sends a PUT of a berth, beside [`decided`].
pub fn sent(state: &State, node: usize, slot: No, after: &Berth) -> Option<Broken> {
    match (&state.slots[usize::from(slot)].is, after) {
        (Berth::Held(old), Berth::Held(new)) => moved(state, node, old, new),
        (Berth::Held(old), Berth::Closed(_)) => proven(state, node, old),
        _ => None,
    }
}

/// Properties of the moment when an agent's PUT of a berth arrives, be it late.
pub fn agent_write(world: &World, state: &State, node: usize, slot: No, lease: &Lease) -> Option<Broken> {
    let before = &state.slots[usize::from(slot)].is;
    let mine = |n: No| usize::from(n) == node;
    match (before, &lease.is) {
        (Berth::Offered(o), Berth::Held(h)) if mine(o.node) && o.uid == h.uid && o.target == h.target => {
            let pool = world.pool_of(slot);
            let held = state.holders(world, pool).len();
            (held >= usize::from(state.pools[usize::from(pool)].published)).then_some(I1C_TAKE)
        }
        (Berth::Held(old), Berth::Held(new)) if mine(old.node) && old.uid == new.uid => None,
        (Berth::Held(old), Berth::Closed(_)) if mine(old.node) => {
            (!matches!(old.phase, Phase::Releasing(_))).then_some(I5_STICKY)
        }
        (_, Berth::Offered(_)) => Some(I1B_WHO),
        _ => Some(I1A_HOLDER),
    }
}

fn moved(state: &State, node: usize, old: &Held, new: &Held) -> Option<Broken> {
    match (old.phase, new.phase) {
        (Phase::Releasing(_), Phase::Releasing(_)) => None,
        (Phase::Releasing(_), _) => Some(I5_STICKY),
        (Phase::Committed, Phase::Releasing(_)) if old.boot == 0 && !state.nodes[node].ghost.unproven => {
            Some(I5_COMMITTED)
        }
        (_, Phase::Releasing(_)) => proven(state, node, old),
        _ => None,
    }
}

/// A new boot is proven: the target or what ran before, and the kubelet said Ready under it. An excluded node gives
/// back without proof.
fn proven(state: &State, node: usize, held: &Held) -> Option<Broken> {
    let here = &state.nodes[node];
    let runs = [held.target, held.from].contains(&here.host.booted);
    let free = here.object.excluded || !here.object.there || here.object.uid != held.uid;
    let new = held.boot != 0 || here.ghost.unproven;
    (new && !free && !(runs && here.ghost.ready)).then_some(I5_PROOF)
}

/// Properties of the moment when a controller's write of a berth arrives.
pub fn controller_write(
    world: &World,
    state: &State,
    slot: No,
    lease: &Lease,
    offer: Option<&Sight>,
) -> Option<Broken> {
    let before = &state.slots[usize::from(slot)].is;
    match (before, &lease.is) {
        (Berth::Held(old), Berth::Held(new)) => (Held {
            revoke: new.revoke,
            // It says until when a reboot may start.
            until: new.until,
            ..*old
        } != *new)
            .then_some(I1A_HOLDER),
        (Berth::Held(old), Berth::Closed(_)) => {
            let object = &state.nodes[usize::from(old.node)].object;
            let gone = !object.there || object.uid != old.uid;
            let excluded = object.excluded || offer.is_some_and(|sight| sight.excluded.has(old.node));
            (!gone && !excluded).then_some(I1A_HOLDER)
        }
        (Berth::Held(_), _) => Some(I1A_HOLDER),
        (Berth::Closed(closed), Berth::Offered(o)) => {
            let pool = world.pool_of(slot);
            let failures = &state.pools[usize::from(pool)].failures;
            let failed = closed.outcome == Some(Outcome::Failed);
            if failed
                && failures
                    .get(usize::from(closed.target))
                    .is_none_or(|n| !n.has(closed.last))
            {
                return Some(I8_RECORD);
            }
            let Some(sight) = offer else { return Some(I1B_OPEN) };
            // Who is a member may have changed since the watches showed it.
            quorum(state, o.node, sight).or_else(|| opened(world, &state.slots, pool, (o.node, o.uid), sight, &[]))
        }
        (Berth::Offered(old), Berth::Offered(new)) => (old != new).then_some(I1B_WHO),
        (Berth::Missing, Berth::Offered(_) | Berth::Held(_)) | (_, Berth::Held(_)) => Some(I1B_WHO),
        (Berth::Closed(c), Berth::Missing) if c.reason != ClosedReason::Shrunk => Some(I1A_HOLDER),
        _ => None,
    }
}

/// Returns the part of the world that a plan may be older than: who is unavailable, the capacity, the gates. `look` is the
/// world itself, as it was when the watches showed it to the controller.
pub fn sight(world: &World, look: &Look, pool: u8) -> Sight {
    let terms = &look.pools[usize::from(pool)];
    let members_of = |pool: u8| (0..).zip(&look.nodes).filter(move |(_, n)| is_member(n, pool));
    let members = || members_of(pool);
    let is_down = |n: &Node| !n.object.ready || n.object.unschedulable || n.object.cordon != Cordon::No;
    let down = members().filter(|(_, n)| is_down(n));
    let is_left = |earlier: u8| {
        let target = look.pools[usize::from(earlier)].target;
        members_of(earlier).any(|(_, n)| !is_proven(n, target))
    };
    let of_all = (0..).zip(&look.pools).flat_map(|(pool, _)| members_of(pool));
    let canaries: Vec<&Node> = members().map(|(_, n)| n).filter(|n| is_canary(n)).collect();
    let have_soaked = !world.soaks || canaries.is_empty() || look.fleet.soaked & (1 << terms.target) != 0;
    Sight {
        // A node that is not Ready may be what the canaries wait for.
        waits: match have_soaked && canaries.iter().all(|n| is_proven(n, terms.target)) {
            true => Set::default(),
            false => members()
                .filter(|(_, n)| !is_canary(n) && n.object.ready)
                .map(|(number, _)| number)
                .collect(),
        },
        // Likewise what the earlier pools wait for.
        early: match world.goes_after(pool).any(is_left) {
            true => members()
                .filter(|(_, n)| n.object.ready)
                .map(|(number, _)| number)
                .collect(),
            false => Set::default(),
        },
        fleet_down: match world.fleet {
            0 => Set::default(),
            _ => of_all.filter(|(_, n)| is_down(n)).map(|(number, _)| number).collect(),
        },
        unavailable: down.map(|(number, _)| number).collect(),
        limit: terms.capacity.min(terms.published),
        closed: terms.paused || look.fleet.paused || terms.outside,
        away: (0..)
            .zip(&look.nodes)
            .filter(|(_, n)| n.labels.server && n.object.there && !n.object.excluded && !n.object.ready)
            .map(|(number, _)| number)
            .collect(),
        excluded: (0..)
            .zip(&look.nodes)
            .filter(|(_, n)| n.object.excluded)
            .map(|(number, _)| number)
            .collect(),
        held_back: (0..)
            .zip(&look.nodes)
            .filter(|(_, n)| n.labels.held)
            .map(|(number, _)| number)
            .collect(),
        refused: Set::default(),
    }
}

/// True if a pool must not change to an image, by its admin's rule. The newest machine decides that has ever reported its boot
/// image: nothing is taken back by a machine that is silent or gone.
pub fn is_refused(world: &World, nodes: &[Node], (pool, terms): (u8, &Pool), image: Image) -> bool {
    let too_old = world.too_old & (1 << image) != 0;
    let members = nodes.iter().filter(|node| is_member(node, pool) && node.spec.is_some());
    let newest = members.map(|node| node.status.boot_image).max().unwrap_or_default();
    too_old && terms.boot_images == BootImages::Refuse && newest.max(terms.boot_image) == BootImage::Older
}

/// Properties of the boot image that a pass remembers: the newest stays known, but for the admin's own record.
pub fn remembers(look: &Look, pool: u8, boot_image: BootImage) -> Option<Broken> {
    let terms = &look.pools[usize::from(pool)];
    (boot_image < terms.boot_image && terms.boot_images != BootImages::Recorded).then_some(BOOT_IMAGE)
}

/// Says whether a pool must not change to an image, as far as the watches show it. What is in force already may go on.
fn is_news_refused(world: &World, look: &Look, pool: u8, image: Image) -> bool {
    let Some(terms) = look.pools.get(usize::from(pool)).filter(|terms| terms.target != image) else {
        return false;
    };
    is_refused(world, &look.nodes, (pool, terms), image)
}

/// Properties of the image that a pass puts in force.
pub fn adopts(world: &World, look: &Look, pool: u8, target: Image) -> Option<Broken> {
    is_news_refused(world, look, pool, target).then_some(BOOT_IMAGE)
}

/// Properties of the image that a pass of the leader puts in force where the pool has a tag. `look`: the watches' view that the
/// pass was made from.
pub fn follows(world: &World, state: &State, look: &Look, pool: u8, target: Image) -> Option<Broken> {
    let before = look.pools[usize::from(pool)].target;
    let answer = state.controllers[usize::from(state.leader)].answer;
    let is_confirmed = answer.is_some_and(|answer| answer.image == target && answer.is_old);
    match world.follows {
        Follows::Tag if target != before && !is_confirmed => Some(ADOPTED),
        Follows::Pinned if target != before => Some(PINNED),
        _ => None,
    }
}

/// Properties of what a pass publishes: nobody is told to run another image than before, if that is refused.
pub fn publishes(world: &World, look: &Look, writes: &[Write]) -> Option<Broken> {
    let breaks = |write: &Write| {
        let Write::Publish { node, spec: Some(spec) } = write else {
            return false;
        };
        let before = look.nodes[usize::from(*node)].spec.map(|spec| spec.image);
        before != Some(spec.image) && is_news_refused(world, look, spec.pool, spec.image)
    };
    writes.iter().any(breaks).then_some(BOOT_IMAGE)
}

/// Properties of the permits to pull that a pass publishes: of the members that need one, no more have it than may pull at
/// once, besides those that pull already.
pub fn permits(world: &World, look: &Look, writes: &[Write]) -> Option<Broken> {
    if world.max_staging == 0 {
        return None;
    }
    let mut specs: Vec<_> = look.nodes.iter().map(|node| node.spec).collect();
    for write in writes {
        if let Write::Publish { node, spec } = write {
            specs[usize::from(*node)] = *spec;
        }
    }
    let is_over = |pool: u8| {
        let members = look.nodes.iter().zip(&specs).filter(|(node, _)| is_member(node, pool));
        let specs = members.filter_map(|(node, spec)| Some((node, spec.filter(|spec| spec.pool == pool)?)));
        let needs = |(node, spec): &(&Node, Spec)| ![node.status.booted, node.status.staged].contains(&spec.image);
        let has_permit: Vec<_> = specs.filter(needs).filter(|(_, spec)| spec.may_pull).collect();
        let pulls = has_permit
            .iter()
            .filter(|(node, _)| node.status.work == Work::Pulls)
            .count();
        has_permit.len() > pulls.max(usize::from(world.max_staging))
    };
    (0..).zip(&look.pools).any(|(pool, _)| is_over(pool)).then_some(PERMITS)
}

/// True for a node of the wave `canary`. A wave of the spec has no control plane nodes unless it says so.
pub fn is_canary(node: &Node) -> bool {
    node.labels.canary && !node.labels.server
}

fn is_member(node: &Node, pool: u8) -> bool {
    // Who is asked to let go of everything may be down all the same.
    node.object.there && !node.object.excluded && node.labels.pool == pool
}

/// The node runs the image, and its Node is Ready and ours no more, as far as the watches show it.
pub fn is_proven(node: &Node, image: Image) -> bool {
    let known = node.spec.is_some_and(|spec| spec.uid == node.object.uid);
    known && node.status.booted == image && node.object.ready && node.object.cordon == Cordon::No
}

/// I11 when a control plane node is offered a berth: no other one has a berth or an offer in any pool, none is down unless
/// this one is as well, and the others are a majority wherever one can be kept.
fn quorum(state: &State, node: No, sight: &Sight) -> Option<Broken> {
    let carries = |number: No| state.nodes[usize::from(number)].labels.server;
    if !carries(node) {
        return None;
    }
    let mut at_work = state.slots.iter().filter_map(|lease| Some(lease.who()?.0));
    let another = at_work.any(|other| other != node && carries(other));
    let is_down = sight.away.has(node);
    let all = state.nodes.iter().filter(|n| n.labels.server && n.object.there).count();
    let majority = all < 3 || all - sight.away.len() - 1 > all / 2;
    let well = is_down || (sight.away.is_empty() && majority);
    (another || !well).then_some(I11_QUORUM)
}

/// I1(b), counted by hand: `|H ∪ R| < k`, and `n ∈ U` or `|H ∪ U ∪ R| < k`. `elsewhere`: members (node, UID) with a berth
/// or an offer of another pool.
fn opened(
    world: &World,
    slots: &[Lease],
    pool: u8,
    node: (No, u8),
    sight: &Sight,
    elsewhere: &[(No, u8)],
) -> Option<Broken> {
    if sight.closed {
        return Some(GATE);
    }
    if sight.held_back.has(node.0) {
        return Some(HOLD);
    }
    if world.waves && sight.waits.has(node.0) {
        return Some(WAVE);
    }
    if sight.early.has(node.0) {
        return Some(ORDER);
    }
    if world.fleet != 0 && !fits_fleet(world.fleet, slots, node, sight) {
        return Some(I1B_FLEET);
    }
    let of_pool = slots
        .iter()
        .enumerate()
        .filter(|(slot, _)| world.pool_of(*slot) == pool);
    let mut worked_on: Vec<(No, u8)> = of_pool.filter_map(|(_, lease)| lease.who()).collect();
    worked_on.extend(elsewhere);
    worked_on.sort_unstable();
    worked_on.dedup();
    let names: Set = worked_on.iter().map(|(n, _)| *n).collect();
    let down = sight.unavailable.iter().filter(|n| !names.has(*n)).count();
    let (limit, is_down) = (usize::from(sight.limit), sight.unavailable.has(node.0));
    let is_unknown = |(slot, lease): &(usize, &Lease)| {
        let cannot_be_seen = matches!(lease.is, Berth::Closed(_) | Berth::Missing);
        sight.refused.has(*slot) && cannot_be_seen && world.pool_of(*slot) == pool
    };
    let unknown = slots.iter().enumerate().filter(is_unknown).count();
    let held = worked_on.len() + unknown;
    let room = held < limit && (is_down || held + down < limit);
    (!room || worked_on.contains(&node)).then_some(I1B_OPEN)
}

/// I1(b) over the berths and members of all pools, counted by hand.
fn fits_fleet(limit: No, slots: &[Lease], node: (No, u8), sight: &Sight) -> bool {
    let mut worked_on: Vec<(No, u8)> = slots.iter().filter_map(Lease::who).collect();
    worked_on.sort_unstable();
    worked_on.dedup();
    let names: Set = worked_on.iter().map(|(n, _)| *n).collect();
    let down = sight.fleet_down.iter().filter(|n| !names.has(*n)).count();
    let limit = usize::from(limit);
    worked_on.len() < limit && (sight.fleet_down.has(node.0) || worked_on.len() + down < limit)
}

/// A pause counts as it is, and not as the watches show it.
pub fn paused(state: &State, pool: u8, writes: &[Write]) -> Option<Broken> {
    let opens = |write: &Write| matches!(write, Write::Berth { lease, .. } if matches!(lease.is, Berth::Offered(_)));
    let is_offered = |write: &Write| match write {
        Write::Berth { slot, lease, .. } => state.slots[usize::from(*slot)].is == lease.is,
        _ => false,
    };
    let paused = state.pools[usize::from(pool)].paused || state.fleet.paused;
    (paused && writes.iter().any(|w| opens(w) && !is_offered(w))).then_some(GATE)
}

/// I1(b) in the state that a plan was made from: its writes one after the other.
pub fn plan(world: &World, slots: &[Lease], look: &Look, pool: u8, writes: &[Write], sight: &Sight) -> Option<Broken> {
    let of_others = slots
        .iter()
        .enumerate()
        .filter(|(slot, _)| world.pool_of(*slot) != pool);
    let elsewhere: Vec<(No, u8)> = of_others
        .filter_map(|(_, lease)| lease.who())
        .filter(|(n, uid)| {
            let node = &look.nodes[usize::from(*n)];
            is_member(node, pool) && node.object.uid == *uid
        })
        .collect();
    let mut slots = slots.to_vec();
    for write in writes {
        let Write::Berth { slot, lease, .. } = write else {
            continue;
        };
        let before = &slots[usize::from(*slot)].is;
        if let (Berth::Offered(o), Berth::Closed(_)) = (&lease.is, before)
            && is_news_refused(world, look, pool, o.target)
        {
            return Some(BOOT_IMAGE);
        }
        if let (Berth::Offered(o), Berth::Closed(_) | Berth::Missing) = (&lease.is, before)
            && let Some(broken) = opened(world, &slots, pool, (o.node, o.uid), sight, &elsewhere)
        {
            return Some(broken);
        }
        slots[usize::from(*slot)] = *lease;
    }
    None
}
