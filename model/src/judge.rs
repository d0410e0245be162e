//! Checks the numbered invariants of the design on states and on single moves. All sets are computed from the world,
//! without results of the released code.

use berth_api::NodeName;
use berth_api::berth::{ClosedReason, Outcome};

use crate::decide::{Act, Put};
use crate::rich;
use crate::set::Set;
use crate::state::{
    Berth, BootImage, BootImages, Cordon, Held, Image, Lease, NONE, Node, NodeRead, Number, Object, Phase, PlanInputs,
    Pool, State, WatchView, Work, Write,
};
use crate::world::{Broken, Follows, World};

macro_rules! rules {
    ($($name:ident: $text:literal;)*) => {
        $(
            #[doc = $text]
            pub const $name: Broken = Broken($text);
        )*
    };
}

rules! {
    I1A_CORDON: "I1a a cordon by Berth has a berth";
    I1A_UNPROVEN: "I1a a rebooted and unproven node has a berth";
    I1A_HOLDER: "I1a only the holder gives up a berth";
    I1A_CLEAR: "I1a a node is cordoned and drained before it goes down";
    I1B_OPEN: "I1b berths are offered only within the capacity";
    I1B_WHO: "I1b only the controller offers berths, and only closed ones";
    I1C_TAKE: "I1c no berth is taken above the published capacity";
    I2_TAKE: "I2 an offer is taken by its node, for the desired image";
    I2_REBOOT: "I2 a reboot has a license";
    I2_UNDO: "I2 a rollback boots the last proven image, once";
    I5_UNDO: "I5 only an unproven boot is undone";
    I5_GUARD: "I5 the rollback guard undoes only an unproven boot under a license";
    I2_ONCE: "I2 a license is for one boot";
    I2_COMMIT: "I2 a commit needs a cordoned and drained node and the complete staged image";
    I3_ARMED: "I3 no image is armed without a license";
    I3_REST: "I3 no agent waits next to an armed image";
    I4_CORDON: "I4 the cordon is restored to its previous state";
    I5_COMMITTED: "I5 a berth that is committed under this boot is not given back";
    I5_PROOF: "I5 a berth is given back only after proof";
    I5_STICKY: "I5 a berth is given back through Releasing";
    I11_QUORUM: "I11 one control plane node at a time, while a majority stays up";
    GATE: "no berth is offered while a gate is closed";
    HOLD: "no berth is offered to a node that is held back";
    BOOT_IMAGE: "no image becomes the target while the boot image is too old for it";
    WAVE: "a wave begins after the previous wave is proven";
    I1B_FLEET: "I1b berths are offered only within the fleet's limit";
    ORDER: "a pool begins after the pools before it are proven";
    I7_PULL: "I7 one pull at a time, and no needed pull is canceled";
    I8_FAILED: "I8 an image that failed on a node is not tried there again";
    I2_SCHEDULED: "I2 no commit is reverted while a shutdown is scheduled";
    I2_QUEUED: "I2 no reboot is licensed while another image is queued for the next boot";
    I6_GUARD: "I6 no berth is taken while the API server does not guard berths";
    DRAIN: "a drain is given up only after its timeout";
    I8_MEMORY: "I8 a turn begins only if the memory is on disk";
    ADOPTED: "a tag is adopted only after its minimum age and a confirmation";
    PINNED: "a pinned image is changed only by the admin";
    PERMITS: "no more nodes have a permit to pull than the pool allows";
    PERMIT: "no image is pulled without a permit";
    I8_RECORD: "I8 a failure is recorded before its berth is offered again";
}

fn holder(state: &State, node: usize) -> Option<&Held> {
    let uid = state.nodes[node].object.uid;
    state
        .slots
        .iter()
        .filter_map(Lease::held)
        .find(|h| usize::from(h.node) == node && h.uid == uid)
}

pub fn state(world: &World, state: &State) -> Option<Broken> {
    (0..world.nodes).find_map(|number| node(state, number))
}

/// Checks the rules for one node. A compromised node can break them on its own host, so only other nodes are checked.
pub fn node(state: &State, number: usize) -> Option<Broken> {
    let node = &state.nodes[number];
    if node.labels.liar.is_some() {
        return None;
    }
    let held = holder(state, number);
    let object = &node.object;
    let counts = object.exists && !object.excluded;
    if counts && !node.ghost.abandoned && object.cordon != Cordon::No && held.is_none() {
        return Some(I1A_CORDON);
    }
    if counts && node.ghost.unproven && held.is_none() {
        return Some(I1A_UNPROVEN);
    }
    let licensed = held.is_some_and(|h| license(h, node.host.staged));
    let armed = node.ghost.armed == object.uid + 1 && node.host.staged != 0 && !node.host.locked;
    // An admin who excludes a node may revoke the licence without the agent.
    if counts && armed && !licensed {
        return Some(I3_ARMED);
    }
    let before = match object.cordon {
        Cordon::No => object.unschedulable,
        Cordon::OverSchedulable => false,
        // If an admin uncordoned the node during the turn, it stays uncordoned.
        Cordon::OverCordoned => object.unschedulable,
    };
    if object.exists && before != node.ghost.admin {
        return Some(I4_CORDON);
    }
    None
}

fn license(held: &Held, staged: u8) -> bool {
    held.phase == Phase::Committed && held.boot == 0 && held.target == staged
}

fn is_cordoned(seen: &Object) -> bool {
    seen.cordon != Cordon::No && seen.unschedulable
}

pub fn reboot(state: &State, node: usize) -> Option<Broken> {
    let here = &state.nodes[node];
    // The Node may be deleted and created again after the agent has read it (one of three unavoidable races). The
    // licence must then be for the Node that the agent saw.
    let uid = match here.agent.node {
        NodeRead::Is(seen, false) => seen.uid,
        _ => here.object.uid,
    };
    // Use the agent's last read: the agent is not responsible for a later change by another updater.
    let armed = here.agent.os.filter(|os| !os.locked).map_or(0, |os| os.staged);
    let is_recreated = uid != here.object.uid || !here.object.exists;
    let mut holdings = state.slots.iter().filter_map(Lease::held);
    let held = holdings.find(|h| usize::from(h.node) == node && h.uid == uid);
    // Use the agent's last read: the agent is not responsible for a later change.
    let is_clear = here.agent.drained && matches!(&here.agent.node, NodeRead::Is(seen, _) if is_cordoned(seen));
    match held {
        Some(h) if undoes(here, h) => here.ghost.undone.then_some(I2_UNDO),
        Some(h) if license(h, armed) => (!is_clear).then_some(I1A_CLEAR),
        None if is_recreated => None,
        _ => Some(I2_REBOOT),
    }
}

/// True if the agent undoes a boot: its last read shows that a committed node runs its target in a new boot, and that
/// the last proven image is queued.
fn undoes(here: &Node, held: &Held) -> bool {
    let is_new_boot = held.phase == Phase::Committed && held.boot != 0;
    let mut os = here.agent.os.iter();
    is_new_boot && os.any(|os| os.booted == held.target && os.queued != 0 && os.queued == held.from)
}

pub fn undo(world: &World, state: &State, node: usize) -> Option<Broken> {
    let here = &state.nodes[node];
    let held = holder(state, node).filter(|held| held.phase == Phase::Committed && held.boot != 0);
    let (Some(held), Some(os)) = (held, here.agent.os) else {
        return Some(I2_REBOOT);
    };
    let is_ready = matches!(here.agent.node, NodeRead::Is(seen, _) if seen.ready && seen.boot == 0);
    if os.booted != held.target || os.previous != held.from {
        return Some(I2_UNDO);
    }
    let is_well = is_ready && world.is_good(here.host.booted);
    // The agent must finish a rollback that has begun.
    (is_well && !here.host.undoes && os.queued == 0).then_some(I5_UNDO)
}

/// Checks that a host's rollback guard may fire. `previous`: the image that the guard rolls back to. For an excluded or
/// deleted Node, the guard may always fire.
pub fn guard(state: &State, node: usize, previous: Image) -> Option<Broken> {
    let here = &state.nodes[node];
    if !here.object.exists || here.object.excluded {
        return None;
    }
    let held = holder(state, node).filter(|held| here.ghost.unproven && held.target == here.host.booted);
    match held {
        Some(held) => (held.from != previous || here.ghost.undone).then_some(I2_UNDO),
        None => Some(I5_GUARD),
    }
}

/// Checks an agent that waits: if it has seen a staged image, the image must be locked, or the node must have committed
/// to the image.
pub fn rest(state: &State, node: usize) -> Option<Broken> {
    let os = state.nodes[node].agent.os.filter(|os| os.staged != 0 && !os.locked)?;
    let mut holdings = state.slots.iter().filter_map(Lease::held);
    let licensed = holdings.any(|h| usize::from(h.node) == node && license(h, os.staged));
    (!licensed).then_some(I3_REST)
}

pub fn pull(state: &State, node: usize, act: Act) -> Option<Broken> {
    let here = &state.nodes[node];
    let desired = here
        .spec
        .filter(|s| s.pool != NONE && !s.deleting)
        .map_or(0, |s| s.image);
    match act {
        Act::Pull(_) if here.host.pull != 0 => Some(I7_PULL),
        Act::Pull(_) if here.spec.is_none_or(|spec| !spec.may_pull) => Some(PERMIT),
        Act::Pull(image) if (here.host.failed | here.ghost.left) & (1 << image) != 0 => Some(I8_FAILED),
        // While a boot must be proven, a pull may be canceled, because a pull blocks reads of the running image.
        Act::Cancel(image) if image == desired && holder(state, node).is_none_or(|h| h.boot == 0) => Some(I7_PULL),
        _ => None,
    }
}

/// Checks an agent's write of a berth against the states of its host and of the API server.
fn prevented(state: &State, node: usize, put: Put) -> Option<Broken> {
    let here = &state.nodes[node];
    let begins = matches!(put, Put::Take | Put::Commit | Put::Relicense);
    // Use the agent's last read: a rollback may be queued later.
    let queued = here.agent.os.map_or(0, |os| os.queued);
    // True if the host left the queued image without Berth. After an admin's retry, that image no longer counts as
    // failed.
    let was_left = here.host.fell == queued || here.host.left == (queued, true);
    let is_queued = queued != 0 && here.host.failed & (1 << queued) == 0 && !was_left;
    match put {
        Put::Uncommit if here.host.scheduled => Some(I2_SCHEDULED),
        Put::Release(Outcome::DrainTimeout) if !here.ghost.drain_over => Some(DRAIN),
        Put::Take if here.ghost.unguarded => Some(I6_GUARD),
        Put::Take | Put::Commit if is_queued => Some(I2_QUEUED),
        _ if begins && here.host.disk.is_some() => Some(I8_MEMORY),
        _ => None,
    }
}

/// Checks an agent's write of a berth against the agent's last reads.
pub fn decided(state: &State, node: usize, put: Put, slot: Number, after: &Berth) -> Option<Broken> {
    if let Some(broken) = prevented(state, node, put) {
        return Some(broken);
    }
    let here = &state.nodes[node];
    let before = &state.slots[usize::from(slot)].is;
    let Berth::Held(new) = after else { return None };
    let failed = (here.host.failed | here.ghost.left) & (1 << new.target) != 0;
    let desired = here.spec.is_some_and(|s| s.pool != NONE && s.image == new.target);
    let staged = here.agent.os.is_some_and(|os| os.staged == new.target && os.locked);
    let seen = match here.agent.node {
        NodeRead::Is(seen, true) => Some(seen),
        _ => None,
    };
    match (before, new.phase) {
        (Berth::Offered(_), _) if failed => Some(I8_FAILED),
        (Berth::Offered(_), _) if !desired || seen.is_some_and(|o| o.uid != new.uid) => Some(I2_TAKE),
        (Berth::Held(old), Phase::Committed) => {
            let cordoned = seen.is_none_or(|o| is_cordoned(&o) && o.uid == new.uid);
            let complete = here.ghost.partial != new.target;
            let ready = staged && complete && desired && cordoned && here.agent.drained;
            match put {
                Put::Fence => None,
                _ if failed => Some(I8_FAILED),
                Put::Commit if old.boot != 0 || here.ghost.unproven => Some(I2_ONCE),
                // The image already runs, so it needs a proof but no reboot.
                Put::Relicense if here.host.booted == new.target => None,
                Put::Relicense if old.revoke != 0 => Some(I2_COMMIT),
                _ => (!ready).then_some(I2_COMMIT),
            }
        }
        (Berth::Held(old), Phase::Taken) if old.boot != 0 || here.ghost.unproven => Some(I2_ONCE),
        _ => None,
    }
}

/// Checks an agent's PUT of a berth at the time of sending, in addition to [`decided`].
pub fn sent(state: &State, node: usize, slot: Number, after: &Berth) -> Option<Broken> {
    match (&state.slots[usize::from(slot)].is, after) {
        (Berth::Held(old), Berth::Held(new)) => moved(state, node, old, new),
        (Berth::Held(old), Berth::Closed(_)) => proven(state, node, old),
        _ => None,
    }
}

/// Checks an agent's PUT of a berth when the API server executes it. The execution may be late.
pub fn agent_write(world: &World, state: &State, node: usize, slot: Number, lease: &Lease) -> Option<Broken> {
    let before = &state.slots[usize::from(slot)].is;
    let who = state.slots[usize::from(slot)].who();
    let is_mine = who.is_some_and(|(who, _)| usize::from(who) == node);
    match (before, &lease.is) {
        (Berth::Offered(o), Berth::Held(h)) if is_mine && o.uid == h.uid && o.target == h.target => {
            let pool = world.pool_of(slot);
            let held = state.holders(world, pool).len();
            (held >= usize::from(state.pools[usize::from(pool)].published)).then_some(I1C_TAKE)
        }
        (Berth::Held(old), Berth::Held(new)) if is_mine && old.uid == new.uid => None,
        (Berth::Held(old), Berth::Closed(_)) if is_mine => {
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

/// Checks that a new boot is proven: the host runs the target or the previous image, and the kubelet reported Ready.
/// Excluded and deleted Nodes need no proof.
fn proven(state: &State, node: usize, held: &Held) -> Option<Broken> {
    let here = &state.nodes[node];
    let runs = [held.target, held.from].contains(&here.host.booted);
    let free = here.object.excluded || !here.object.exists || here.object.uid != held.uid;
    let new = held.boot != 0 || here.ghost.unproven;
    (new && !free && !(runs && here.ghost.ready)).then_some(I5_PROOF)
}

/// Checks a controller's write of a berth when it is executed.
pub fn controller_write(
    world: &World,
    state: &State,
    slot: Number,
    lease: &Lease,
    offer: Option<&PlanInputs>,
) -> Option<Broken> {
    let before = &state.slots[usize::from(slot)].is;
    match (before, &lease.is) {
        (Berth::Held(old), Berth::Held(new)) => (Held {
            revoke: new.revoke,
            // The controller may change the latest start of a reboot.
            until: new.until,
            ..*old
        } != *new)
            .then_some(I1A_HOLDER),
        (Berth::Held(old), Berth::Closed(_)) => {
            let object = &state.nodes[usize::from(old.node)].object;
            let gone = !object.exists || object.uid != old.uid;
            let excluded = object.excluded || offer.is_some_and(|inputs| inputs.excluded.has(old.node));
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
            let Some(inputs) = offer else { return Some(I1B_OPEN) };
            // Membership is as the watches showed it, and may have changed since.
            quorum(state, o.node, inputs).or_else(|| opened(world, &state.slots, pool, (o.node, o.uid), inputs, &[]))
        }
        (Berth::Offered(old), Berth::Offered(new)) => (old != new).then_some(I1B_WHO),
        (Berth::Missing, Berth::Offered(_) | Berth::Held(_)) | (_, Berth::Held(_)) => Some(I1B_WHO),
        (Berth::Closed(c), Berth::Missing) if c.reason != ClosedReason::Shrunk => Some(I1A_HOLDER),
        _ => None,
    }
}

pub(crate) fn which(nodes: &[Node], mut holds: impl FnMut(&Node) -> bool) -> Set {
    let numbered = (0..).zip(nodes).filter(|(_, node)| holds(node));
    numbered.map(|(number, _)| number).collect()
}

fn is_down(node: &Node) -> bool {
    !node.object.ready || node.object.unschedulable || node.object.cordon != Cordon::No
}

/// Returns the inputs that may change after a plan, such as unavailable nodes, capacity and gates. `look`: content of
/// the controller's watches.
pub fn inputs(world: &World, look: &WatchView, pool: u8) -> PlanInputs {
    let (nodes, terms) = (&look.nodes, &look.pools[usize::from(pool)]);
    let mut canaries = nodes.iter().filter(|n| is_member(n, pool) && is_canary(n)).peekable();
    let have_soaked = !world.soaks || canaries.peek().is_none() || look.fleet.soaked & (1 << terms.target) != 0;
    let waves_wait = !have_soaked || !canaries.all(|n| is_proven(n, terms.target));
    let order_waits = world.goes_after(pool).any(|earlier| {
        let target = look.pools[usize::from(earlier)].target;
        nodes.iter().any(|n| is_member(n, earlier) && !is_proven(n, target))
    });
    let pools = 0..look.pools.len() as u8;
    PlanInputs {
        // A NotReady node does not wait for the canaries, because they may wait for that node.
        waits: which(nodes, |n| {
            waves_wait && is_member(n, pool) && !is_canary(n) && n.object.ready
        }),
        // The earlier pools, too, may wait for a NotReady node.
        early: which(nodes, |n| order_waits && is_member(n, pool) && n.object.ready),
        fleet_down: which(nodes, |n| {
            world.fleet != 0 && is_down(n) && pools.contains(&n.labels.pool) && is_member(n, n.labels.pool)
        }),
        unavailable: which(nodes, |n| is_member(n, pool) && is_down(n)),
        limit: terms.capacity.min(terms.published),
        closed: terms.paused || look.fleet.paused || terms.outside,
        away: which(nodes, |n| {
            n.labels.server && n.object.exists && !n.object.excluded && !n.object.ready
        }),
        excluded: which(nodes, |n| n.object.excluded),
        held_back: which(nodes, |n| n.labels.held),
        refused: Set::default(),
    }
}

/// Number of machines whose median is the boot image in use. Of fewer machines, the newest decides.
const VOTERS: usize = 3;

/// Returns the boot images of the newest machines that ever reported one, newest first: at most [`VOTERS`]. The boot
/// image in the pool's status is remembered for the first node, which may be silent or gone now.
fn newest_boot_images(nodes: &[Node], pool: u8, terms: &Pool) -> Vec<BootImage> {
    let mut machines: Vec<(bool, NodeName, BootImage)> = vec![];
    for (number, node) in (0..).zip(nodes) {
        let boot_image = node.status.boot_image;
        if is_member(node, pool) && node.spec.is_some() && boot_image != BootImage::Unknown {
            machines.push((node.labels.newer, rich::name(number), boot_image));
        }
    }
    let remembered = (terms.boot_image == BootImage::Newer, rich::name(0), terms.boot_image);
    if terms.boot_image != BootImage::Unknown {
        match machines.iter_mut().find(|(_, name, _)| *name == remembered.1) {
            // A machine's report replaces its remembered report.
            Some((is_newer, ..)) if *is_newer >= remembered.0 => {}
            Some(earlier) => *earlier = remembered,
            None => machines.push(remembered),
        }
    }
    machines.sort_unstable_by(|one, other| other.cmp(one));
    machines
        .iter()
        .take(VOTERS)
        .map(|(.., boot_image)| *boot_image)
        .collect()
}

/// True if the boot image policy forbids the image in the pool. Boot images that were ever reported count, even if
/// their machines are now silent or gone.
pub fn is_refused(world: &World, nodes: &[Node], (pool, terms): (u8, &Pool), image: Image) -> bool {
    let too_old = world.too_old & (1 << image) != 0;
    if !too_old || terms.boot_images != BootImages::Refuse {
        return false;
    }
    let mut newest = newest_boot_images(nodes, pool, terms);
    if newest.len() == VOTERS {
        newest.sort_unstable();
        newest.swap(0, VOTERS / 2);
    }
    newest.first() == Some(&BootImage::Older)
}

/// Checks that the boot image in the pool's status becomes older only if the admin records a version, or if older
/// machines are the majority of the newest ones.
pub fn remembers(look: &WatchView, pool: u8, boot_image: BootImage) -> Option<Broken> {
    let terms = &look.pools[usize::from(pool)];
    if boot_image >= terms.boot_image || terms.boot_images == BootImages::Recorded {
        return None;
    }
    let has_median = newest_boot_images(&look.nodes, pool, terms).len() == VOTERS;
    (!has_median).then_some(BOOT_IMAGE)
}

/// True if the boot image policy forbids the pool's change to an image, according to the watches. The current target is
/// always allowed.
fn is_news_refused(world: &World, look: &WatchView, pool: u8, image: Image) -> bool {
    let Some(terms) = look.pools.get(usize::from(pool)).filter(|terms| terms.target != image) else {
        return false;
    };
    is_refused(world, &look.nodes, (pool, terms), image)
}

pub fn adopts(world: &World, look: &WatchView, pool: u8, target: Image) -> Option<Broken> {
    is_news_refused(world, look, pool, target).then_some(BOOT_IMAGE)
}

/// Checks the target that the leader chooses for a pool with a tag. `look`: content of the watches during the leader's
/// pass.
pub fn follows(world: &World, state: &State, look: &WatchView, pool: u8, target: Image) -> Option<Broken> {
    let before = look.pools[usize::from(pool)].target;
    let answer = state.controllers[usize::from(state.leader)].answer;
    let is_confirmed = answer.is_some_and(|answer| answer.image == target && answer.is_old);
    match world.follows {
        Follows::Tag if target != before && !is_confirmed => Some(ADOPTED),
        Follows::Pinned if target != before => Some(PINNED),
        _ => None,
    }
}

/// Checks the specs that a pass publishes: no node gets a new image that the boot image policy forbids.
pub fn publishes(world: &World, look: &WatchView, writes: &[Write]) -> Option<Broken> {
    for write in writes {
        let Write::Publish { node, spec: Some(spec) } = write else {
            continue;
        };
        let before = look.nodes[usize::from(*node)].spec.map(|spec| spec.image);
        if before != Some(spec.image) && is_news_refused(world, look, spec.pool, spec.image) {
            return Some(BOOT_IMAGE);
        }
    }
    None
}

/// Checks the permits to pull that a pass publishes. At most `max_staging` members may have a permit that they still
/// need. More are allowed only if all of them already pull.
pub fn permits(world: &World, look: &WatchView, writes: &[Write]) -> Option<Broken> {
    if world.max_staging == 0 {
        return None;
    }
    let mut specs: Vec<_> = look.nodes.iter().map(|node| node.spec).collect();
    for write in writes {
        if let Write::Publish { node, spec } = write {
            specs[usize::from(*node)] = *spec;
        }
    }
    for pool in 0..look.pools.len() as u8 {
        let (mut permitted, mut pulls) = (0, 0);
        for (node, spec) in look.nodes.iter().zip(&specs) {
            // A compromised node keeps its permit for ever, so it uses up a permit of others only for a while.
            let counts = node.labels.liar.is_none() && is_member(node, pool);
            // The agent of a BootcNode that is being deleted begins no pull.
            let spec = spec.filter(|spec| counts && spec.pool == pool && spec.may_pull && !spec.deleting);
            if spec.is_some_and(|spec| ![node.status.booted, node.status.staged].contains(&spec.image)) {
                permitted += 1;
                pulls += usize::from(node.status.work == Work::Pulls);
            }
        }
        if permitted > pulls.max(usize::from(world.max_staging)) {
            return Some(PERMITS);
        }
    }
    None
}

/// True for a node of the wave `canary`. By default, waves contain no control plane nodes.
pub fn is_canary(node: &Node) -> bool {
    node.labels.canary && !node.labels.server
}

fn is_member(node: &Node, pool: u8) -> bool {
    // A node whose BootcNode is missing or being deleted is a member too, because the node may be down.
    node.object.exists && !node.object.excluded && node.labels.pool == pool
}

/// True if the Node and its BootcNode show that the node runs the image, is Ready, and has no cordon of Berth.
pub fn is_proven(node: &Node, image: Image) -> bool {
    let known = node.spec.is_some_and(|spec| spec.uid == node.object.uid);
    known && node.status.booted == image && node.object.ready && node.object.cordon == Cordon::No
}

/// Checks I11 for an offer to a control plane node: no other control plane node has a berth or an offer. If this node
/// is up, all others must be up as well and, of three or more nodes, still form a majority.
fn quorum(state: &State, node: Number, inputs: &PlanInputs) -> Option<Broken> {
    let servers = which(&state.nodes, |n| n.labels.server);
    if !servers.has(node) {
        return None;
    }
    let mut at_work = state.slots.iter().filter_map(|lease| Some(lease.who()?.0));
    let another = at_work.any(|other| other != node && servers.has(other));
    let is_down = inputs.away.has(node);
    let all = which(&state.nodes, |n| n.labels.server && n.object.exists).len();
    let majority = all < 3 || all - inputs.away.len() - 1 > all / 2;
    let well = is_down || (inputs.away.is_empty() && majority);
    (another || !well).then_some(I11_QUORUM)
}

/// Checks an offer to node `n`, for the holders `H`, the nodes with an offer `R`, the unavailable members `U` and the
/// capacity `k`. I1(b): `|H ∪ R| < k`, and `n ∈ U` or `|H ∪ U ∪ R| < k`. `elsewhere`: members (node, UID) with a berth
/// or an offer in another pool.
fn opened(
    world: &World,
    slots: &[Lease],
    pool: u8,
    node: (Number, u8),
    inputs: &PlanInputs,
    elsewhere: &[(Number, u8)],
) -> Option<Broken> {
    if inputs.closed {
        return Some(GATE);
    }
    if inputs.held_back.has(node.0) {
        return Some(HOLD);
    }
    if world.waves && inputs.waits.has(node.0) {
        return Some(WAVE);
    }
    if inputs.early.has(node.0) {
        return Some(ORDER);
    }
    if world.fleet != 0 && !fits_fleet(world.fleet, slots, node, inputs) {
        return Some(I1B_FLEET);
    }
    let of_pool = slots
        .iter()
        .enumerate()
        .filter(|(slot, _)| world.pool_of(*slot) == pool);
    let mut worked_on: Vec<(Number, u8)> = of_pool.filter_map(|(_, lease)| lease.who()).collect();
    worked_on.extend(elsewhere);
    worked_on.sort_unstable();
    worked_on.dedup();
    let names: Set = worked_on.iter().map(|(n, _)| *n).collect();
    let down = inputs.unavailable.iter().filter(|n| !names.has(*n)).count();
    let (limit, is_down) = (usize::from(inputs.limit), inputs.unavailable.has(node.0));
    let unseen = slots
        .iter()
        .enumerate()
        .filter(|(slot, lease)| inputs.refused.has(*slot) && lease.who().is_none() && world.pool_of(*slot) == pool);
    let unknown = unseen.count();
    let held = worked_on.len() + unknown;
    let room = held < limit && (is_down || held + down < limit);
    (!room || worked_on.contains(&node)).then_some(I1B_OPEN)
}

/// True if I1(b) holds for the berths and members of all pools together.
fn fits_fleet(limit: Number, slots: &[Lease], node: (Number, u8), inputs: &PlanInputs) -> bool {
    let mut worked_on: Vec<(Number, u8)> = slots.iter().filter_map(Lease::who).collect();
    worked_on.sort_unstable();
    worked_on.dedup();
    let names: Set = worked_on.iter().map(|(n, _)| *n).collect();
    let down = inputs.fleet_down.iter().filter(|n| !names.has(*n)).count();
    let limit = usize::from(limit);
    worked_on.len() < limit && (inputs.fleet_down.has(node.0) || worked_on.len() + down < limit)
}

/// Checks that a pass offers no berth during a pause, even if the watches do not show the pause yet.
pub fn paused(state: &State, pool: u8, writes: &[Write]) -> Option<Broken> {
    let mut offers = writes.iter().filter_map(|write| match write {
        Write::Berth { slot, lease, .. } => matches!(lease.is, Berth::Offered(_)).then_some((*slot, lease.is)),
        _ => None,
    });
    let paused = state.pools[usize::from(pool)].paused || state.fleet.paused;
    (paused && offers.any(|(slot, offer)| state.slots[usize::from(slot)].is != offer)).then_some(GATE)
}

/// Checks a plan's writes one by one, against the state that the plan was made for.
pub fn plan(
    world: &World,
    slots: &[Lease],
    look: &WatchView,
    pool: u8,
    writes: &[Write],
    inputs: &PlanInputs,
) -> Option<Broken> {
    let of_others = slots
        .iter()
        .enumerate()
        .filter(|(slot, _)| world.pool_of(*slot) != pool);
    let elsewhere: Vec<(Number, u8)> = of_others
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
            && let Some(broken) = opened(world, &slots, pool, (o.node, o.uid), inputs, &elsewhere)
        {
            return Some(broken);
        }
        slots[usize::from(*slot)] = *lease;
    }
    None
}
