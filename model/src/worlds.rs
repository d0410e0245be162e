//! The worlds to explore. Each world is small and has faults of its own.

use crate::fault::Fault;
use crate::world::{Follows, World};

/// Returns a world without faults: three nodes with the first image staged, and one berth.
pub fn calm(name: &'static str, about: &'static str) -> World {
    World {
        name,
        about,
        nodes: 3,
        pools: vec![3],
        spread: false,
        windows: false,
        waves: false,
        soaks: false,
        zones: 0,
        servers: 0,
        unlabelled: false,
        capacity: (1, 1),
        fleet: 0,
        after: &[],
        images: &[2],
        bad: 0,
        failing: 0,
        too_old: 0,
        newer: false,
        staged: true,
        follows: Follows::AtOnce,
        max_staging: 0,
        keep_blocked: false,
        tries_guard: false,
        previous: 0,
        guards: false,
        max_failures: 9,
        liars: 0,
        liars_first: false,
        faults: vec![],
    }
}

fn with_faults(world: World, faults: &[&[(Fault, u8)]]) -> World {
    let faults = faults.concat();
    World { faults, ..world }
}

/// Defines worlds: each with name, description, fields that differ from [`calm`], faults, and more faults for a deep
/// exploration.
macro_rules! worlds {
    ($($name:literal $about:literal
        { $($field:ident: $value:expr),* } [$($fault:ident: $times:literal),*] deep [$($more:ident: $again:literal),*];)*) => {
        /// Returns all worlds to explore. `deep` adds faults; the exploration then takes hours.
        pub fn all(deep: bool) -> Vec<World> {
            vec![$({
                let world = World { $($field: $value,)* ..calm($name, $about) };
                let more: &[(Fault, u8)] = &[$((Fault::$more, $again)),*];
                with_faults(world, &[&[$((Fault::$fault, $times)),*], if deep { more } else { &[] }])
            }),*]
        }
    };
}

worlds! {
    "calm" "no faults"
        {} [] deep [];

    // Processes die, and the network loses or delays requests.
    "crash" "processes die at any step"
        {} [AgentCrash: 2, ControllerCrash: 1] deep [Late: 1];
    "second" "two agents on one node act at the same time"
        { nodes: 2 } [Second: 3, Pause: 1] deep [Second: 1, Late: 1];
    "late" "requests are executed after their sender died or gave up"
        {} [AgentCrash: 1, ControllerCrash: 1, Late: 1] deep [Late: 1, LostReply: 1];
    "lost" "answers are lost, and reads are outdated"
        {} [LostReply: 1, StaleRead: 1, AgentCrash: 1] deep [Late: 1, StaleWatch: 1];
    "leaders" "two leaders, one of them outdated"
        { capacity: (2, 2) } [Election: 1] deep [Late: 1, Cordon: 1];
    "watches" "leaders plan from old views of their watches"
        { nodes: 2 } [Election: 1, StaleWatch: 1, Cordon: 1] deep [Late: 1, Election: 1, Pause: 1];
    "stale" "the watches do not show a pause yet"
        { nodes: 2 } [StaleWatch: 2, Pause: 2] deep [Late: 1, AgentCrash: 1];

    // Admins change specs, labels and Nodes.
    "capacity" "the capacity grows and shrinks, and nodes are cordoned"
        { capacity: (2, 1) } [Resize: 1, Cordon: 1] deep [Resize: 1, Election: 1];
    "edit" "the image changes at any time"
        { nodes: 2, images: &[2, 3] } [Edit: 1, AgentCrash: 1, Dropped: 1] deep [Edit: 1, Late: 1];
    "delete" "Nodes are deleted and created again"
        { nodes: 2 } [Delete: 1, AgentCrash: 1] deep [Late: 1, StaleWatch: 1];
    "move" "nodes change their pool"
        { pools: vec![1, 2] } [Move: 1, AgentCrash: 1] deep [Move: 1, Election: 1, StaleWatch: 1];
    "gate" "gates close and open, and offers lapse"
        {} [Pause: 2, Lapse: 1, AgentCrash: 1] deep [Late: 1, Election: 1];
    "cordon" "admins cordon and uncordon Nodes, and Nodes become NotReady"
        { nodes: 2 } [Cordon: 2, Meddle: 1, NotReady: 1, AgentCrash: 1] deep [Late: 1];
    "window" "windows open and close, the clock loses synchronization, and the fleet is paused"
        { nodes: 2, windows: true } [Window: 2, Clock: 1, Fleet: 1, AgentCrash: 1] deep [Window: 1, Late: 1];
    "waves" "a canary goes before the others"
        { capacity: (2, 2), waves: true } [Cordon: 1] deep [Election: 1, Late: 1, Power: 1, AgentCrash: 1];
    "leave" "the BootcNode of a canary is deleted"
        { nodes: 2, capacity: (2, 2), waves: true } [Forget: 1, Cordon: 1] deep [Forget: 1, AgentCrash: 1];
    "servers" "three control plane nodes in two pools"
        { capacity: (2, 2), pools: vec![2, 1], spread: true, servers: 3 }
        [Election: 1] deep [NotReady: 1, Late: 1, Power: 1];
    "unlabelled" "three control plane nodes without the label"
        { capacity: (2, 2), servers: 3, unlabelled: true } [] deep [Election: 1, NotReady: 1];
    "fleet" "two pools share the fleet's limit"
        { capacity: (2, 2), pools: vec![2, 1], spread: true, fleet: 1 }
        [Cordon: 1, Election: 1] deep [Late: 1, StaleWatch: 1, Resize: 1];
    "order" "a pool goes after another one"
        { pools: vec![1, 1], spread: true, fleet: 1, after: &[(0, 1)] }
        [NotReady: 1, AgentCrash: 1] deep [Cordon: 1, Edit: 1, Election: 1];
    "forget" "BootcNodes are deleted at any step of a turn"
        { nodes: 2 } [Forget: 2, AgentCrash: 1, ControllerCrash: 1] deep [Late: 1, StaleWatch: 1];
    "hold" "nodes are held back, and do not block others"
        { keep_blocked: true } [Hold: 2] deep [AgentCrash: 1, Late: 1, StaleWatch: 1];
    "boot-image" "a tag moves to an image that needs a newer boot image"
        { nodes: 2, images: &[2, 3], too_old: 1 << 3 }
        [Edit: 1, Accept: 1] deep [Edit: 1, Forget: 1, StaleWatch: 1, AgentCrash: 1, Election: 1, Late: 1];
    "majority" "of three machines, a newer one alone does not admit an image"
        { nodes: 3, images: &[2, 3], too_old: 1 << 3, newer: true } [Edit: 1] deep [Accept: 1, StaleWatch: 1];
    "exclude" "nodes are excluded in the middle of their turn"
        {} [Exclude: 1, AgentCrash: 1] deep [Late: 1];

    // Hosts and images fail.
    "host" "power losses, reboots that are refused or never begin, and other updaters"
        { nodes: 2 } [Power: 1, Dropped: 1, Rival: 1] deep [Inhibit: 2, Finalize: 1, AgentCrash: 1];
    "finalize" "finalization fails repeatedly"
        { nodes: 2 } [Finalize: 3, Inhibit: 2] deep [Power: 1];
    "bad" "nodes do not become Ready with a bad image, and leave it for a newer one"
        { nodes: 2, images: &[2, 3], bad: 1 << 2 }
        [Edit: 1, AgentCrash: 1, Inhibit: 1] deep [Late: 1, Rollback: 1, Power: 1];
    "retry" "hosts are rolled back, and admins request retries"
        { nodes: 2, images: &[2, 3], bad: 1 << 2 } [Rollback: 2, Retry: 1] deep [AgentCrash: 1, Edit: 1];
    "fall-back" "hosts boot their previous image again, by the boot loader or by an admin"
        { nodes: 2, keep_blocked: true } [FallBack: 1, Rollback: 1, AgentCrash: 1] deep [Retry: 1, Power: 1, Finalize: 1];
    "switch" "hosts roll back bad images without an agent"
        { nodes: 1, images: &[2, 3], bad: 1 << 2, guards: true }
        [AgentCrash: 1, Edit: 1, Power: 1, Mute: 1] deep [Retry: 1, Inhibit: 1, Late: 1];
    "checks" "an image lets nodes become Ready, and fails the pool's check"
        { nodes: 2, images: &[2, 3], failing: 1 << 2 } [Edit: 1, AgentCrash: 1] deep [Retry: 1, Rollback: 1];
    "stage" "pulls fail, cannot lock, or are canceled"
        { nodes: 2, images: &[2, 3], staged: false } [Pull: 1, Edit: 1] deep [AgentCrash: 1, Rival: 1];
    "drain" "a node that cannot be drained does not block others"
        { keep_blocked: true } [Block: 1, AgentCrash: 1] deep [Late: 1];
    "lock" "the staged image cannot be locked or removed, for a while"
        { nodes: 2 } [Stuck: 3, Rival: 1, Dropped: 1] deep [AgentCrash: 1, Inhibit: 1];
    "no-lock" "a host that can never lock again does not block others"
        { nodes: 2, keep_blocked: true } [Stuck: 2, Rival: 1, Dropped: 1] deep [AgentCrash: 1, Pull: 1];

    // Hosts that do not answer or cannot store memory, permits to pull, tags, and clocks.
    "silent" "the bus of a host stops answering"
        { nodes: 2, keep_blocked: true } [Silent: 2, Dropped: 1, Pause: 1] deep [AgentCrash: 1, Inhibit: 1];
    "unusable" "the deployments of a host cannot be read"
        { nodes: 2, keep_blocked: true } [Unusable: 2, Dropped: 1, Rival: 1] deep [AgentCrash: 1, Edit: 1];
    "read-only" "an agent's memory cannot be written"
        { nodes: 2, images: &[2, 3], bad: 1 << 2, keep_blocked: true }
        [ReadOnly: 1, AgentCrash: 1, Edit: 1] deep [ReadOnly: 1, Rollback: 1, Power: 1];
    "guard" "the API server does not refuse the writes that it must refuse, for a while"
        { nodes: 2, tries_guard: true } [Unguarded: 2, AgentCrash: 1] deep [Late: 1, Pause: 1];
    "queue" "admins queue rollbacks, and hosts lose power"
        { nodes: 2, previous: 2, keep_blocked: true }
        [Queue: 2, Power: 1, Dropped: 1] deep [AgentCrash: 1, Inhibit: 1];
    "permits" "one node may pull at a time, and stopped or idle agents do not block the others"
        { nodes: 2, staged: false, max_staging: 1, keep_blocked: true }
        [Mute: 1, Idle: 2, Pull: 1] deep [Mute: 1, ControllerCrash: 1, Delete: 1];
    "way-out" "a node that is stuck on a bad image gets the permit to pull"
        { nodes: 2, images: &[2, 3], bad: 1 << 2, max_staging: 1, keep_blocked: true }
        [Edit: 1, Idle: 1] deep [Mute: 1, ControllerCrash: 1, Pull: 1];
    "refused" "the API server always refuses writes to one Lease"
        { nodes: 2, capacity: (2, 2), keep_blocked: true }
        [Refuse: 1, Election: 1, Cordon: 1] deep [Refuse: 1, Late: 1, Resize: 1];
    "untold" "machines report their boot image late or no longer, and known boot images are kept"
        { nodes: 2, images: &[1, 3], staged: false, too_old: 1 << 3, newer: true }
        [Edit: 1, Untold: 2] deep [Edit: 1, Forget: 1, StaleWatch: 1, Election: 1, Accept: 1];
    "jump" "the wall clock of a host jumps ahead and is set back"
        { nodes: 2, keep_blocked: true } [Jump: 2, Block: 1, AgentCrash: 1] deep [Jump: 1, Dropped: 1, Power: 1];
    "soak" "a canary soaks before the others begin, under every leader"
        { nodes: 2, waves: true, soaks: true, images: &[2, 3] }
        [Edit: 1, Election: 1] deep [ControllerCrash: 1, Cordon: 1, StaleWatch: 1];
    "tag" "a tag moves, and its image is adopted after the minimum age"
        { nodes: 1, images: &[2, 3], follows: Follows::Tag }
        [Edit: 2, Election: 1] deep [StaleWatch: 1, ControllerCrash: 1, Late: 1];
    "pin" "a tag moves, and only the admin adopts its image"
        { nodes: 1, images: &[2, 3], follows: Follows::Pinned }
        [Edit: 2, Approve: 1] deep [Election: 1, ControllerCrash: 1, StaleWatch: 1];
    "schedule" "admins schedule and cancel shutdowns"
        { nodes: 2 } [Schedule: 1, Dropped: 1, AgentCrash: 1] deep [Schedule: 1, Inhibit: 1, Power: 1];

    // A compromised node writes whatever the API server accepts from it.
    "liar" "a compromised node writes everything that it may write"
        { nodes: 2, capacity: (2, 2), max_failures: 2, liars: 1 } [Lie: 2] deep [Lie: 1, Election: 1];
    "liar-alone" "a compromised node and one berth for all"
        { nodes: 2, liars: 1 } [Lie: 2] deep [Lie: 1, Election: 1];
    "liar-pulls" "a compromised node pulls for ever, or reports so"
        { nodes: 2, capacity: (2, 2), staged: false, max_staging: 1, max_failures: 2, liars: 1 }
        [Lie: 1] deep [Lie: 1, Edit: 1, Election: 1];
}
