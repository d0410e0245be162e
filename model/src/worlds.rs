//! The worlds. Each is small, with its own faults.

use crate::fault::Fault::{
    self, Accept, AgentCrash, Approve, Block, Clock, ControllerCrash, Cordon, Delete, Dropped, Edit, Election, Exclude,
    Finalize, Fleet, Forget, Hold, Idle, Inhibit, Jump, Lapse, Late, LostReply, Meddle, Move, Mute, NotReady, Pause,
    Power, Pull, Queue, ReadOnly, Refuse, Resize, Retry, Rival, Rollback, Schedule, Second, Silent, StaleRead,
    StaleWatch, Stuck, Unguarded, Untold, Unusable, Window,
};
use crate::world::{Follows, World};

/// A world without faults: three nodes with the first image staged, and one berth.
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
        too_old: 0,
        newer: false,
        staged: true,
        follows: Follows::AtOnce,
        max_staging: 0,
        keep_blocked: false,
        tries_guard: false,
        previous: 0,
        max_failures: 9,
        faults: vec![],
    }
}

/// All worlds to explore. With `deep`, they have more faults, and exploring them takes hours.
pub fn all(deep: bool) -> Vec<World> {
    let with = |world: World, faults: &[(Fault, u8)], more: &[(Fault, u8)]| {
        let more = if deep { more } else { &[] };
        World {
            faults: faults.iter().chain(more).copied().collect(),
            ..world
        }
    };
    let mut worlds = vec![with(calm("calm", "no faults"), &[], &[])];
    worlds.extend(processes(&with));
    worlds.extend(admins(&with));
    worlds.extend(hosts(&with));
    worlds.extend(failing_hosts(&with));
    worlds
}

/// Hosts that do not answer or cannot store memory, permits to pull, tags, and clocks.
fn failing_hosts(with: With<'_>) -> Vec<World> {
    let pair = |world: World| World { nodes: 2, ..world };
    // The target does not depend on the number of nodes.
    let alone = |world: World| World { nodes: 1, ..world };
    let keeps = |world: World| World {
        keep_blocked: true,
        ..world
    };
    let images = |world: World| World {
        images: &[2, 3],
        ..world
    };
    vec![
        with(
            keeps(pair(calm("silent", "the bus of a host stops answering"))),
            &[(Silent, 2), (Dropped, 1), (Pause, 1)],
            &[(AgentCrash, 1), (Inhibit, 1)],
        ),
        with(
            keeps(pair(calm("unusable", "the deployments of a host cannot be read"))),
            &[(Unusable, 2), (Dropped, 1), (Rival, 1)],
            &[(AgentCrash, 1), (Edit, 1)],
        ),
        with(
            keeps(pair(World {
                images: &[2, 3],
                bad: 1 << 2,
                ..calm("read-only", "an agent's memory cannot be written")
            })),
            &[(ReadOnly, 2), (AgentCrash, 1), (Edit, 1)],
            &[(Rollback, 1), (Power, 1)],
        ),
        with(
            World {
                tries_guard: true,
                ..pair(calm(
                    "guard",
                    "the API server does not refuse the writes that it must refuse, for a while",
                ))
            },
            &[(Unguarded, 2), (AgentCrash, 1)],
            &[(Late, 1), (Pause, 1)],
        ),
        with(
            keeps(pair(World {
                previous: 2,
                ..calm("queue", "admins queue rollbacks, and hosts lose power")
            })),
            &[(Queue, 2), (Power, 1), (Dropped, 1)],
            &[(AgentCrash, 1), (Inhibit, 1)],
        ),
        with(
            keeps(pair(World {
                staged: false,
                max_staging: 1,
                ..calm(
                    "permits",
                    "one node may pull at a time, and stopped or idle agents do not block the others",
                )
            })),
            &[(Mute, 1), (Idle, 2), (Pull, 1)],
            &[(Mute, 1), (ControllerCrash, 1), (Delete, 1)],
        ),
        with(
            keeps(pair(World {
                max_staging: 1,
                bad: 1 << 2,
                ..images(calm(
                    "way-out",
                    "a node that is stuck on a bad image gets the permit to pull",
                ))
            })),
            &[(Edit, 1), (Idle, 1)],
            &[(Mute, 1), (ControllerCrash, 1), (Pull, 1)],
        ),
        with(
            keeps(pair(World {
                capacity: (2, 2),
                ..calm("refused", "the API server always refuses writes to one Lease")
            })),
            &[(Refuse, 1), (Election, 1), (Cordon, 1)],
            &[(Refuse, 1), (Late, 1), (Resize, 1)],
        ),
        with(
            World {
                too_old: 1 << 3,
                newer: true,
                images: &[1, 3],
                staged: false,
                ..pair(calm(
                    "untold",
                    "machines report their boot image late or no longer, and known boot images are kept",
                ))
            },
            &[(Edit, 1), (Untold, 2)],
            &[(Edit, 1), (Forget, 1), (StaleWatch, 1), (Election, 1), (Accept, 1)],
        ),
        with(
            keeps(pair(calm(
                "jump",
                "the wall clock of a host jumps ahead and is set back",
            ))),
            &[(Jump, 2), (Block, 1), (AgentCrash, 1)],
            &[(Jump, 1), (Dropped, 1), (Power, 1)],
        ),
        with(
            World {
                waves: true,
                soaks: true,
                ..pair(images(calm(
                    "soak",
                    "a canary soaks before the others begin, under every leader",
                )))
            },
            &[(Edit, 1), (Election, 1)],
            &[(ControllerCrash, 1), (Cordon, 1), (StaleWatch, 1)],
        ),
        with(
            World {
                follows: Follows::Tag,
                ..alone(images(calm(
                    "tag",
                    "a tag moves, and its image is adopted after the minimum age",
                )))
            },
            &[(Edit, 2), (Election, 1)],
            &[(StaleWatch, 1), (ControllerCrash, 1), (Late, 1)],
        ),
        with(
            World {
                follows: Follows::Pinned,
                ..alone(images(calm("pin", "a tag moves, and only the admin adopts its image")))
            },
            &[(Edit, 2), (Approve, 1)],
            &[(Election, 1), (ControllerCrash, 1), (StaleWatch, 1)],
        ),
        with(
            pair(calm("schedule", "admins schedule and cancel shutdowns")),
            &[(Schedule, 1), (Dropped, 1), (AgentCrash, 1)],
            &[(Schedule, 1), (Inhibit, 1), (Power, 1)],
        ),
    ]
}

type With<'a> = &'a dyn Fn(World, &[(Fault, u8)], &[(Fault, u8)]) -> World;

/// Processes die, and the network loses or delays requests.
fn processes(with: With<'_>) -> Vec<World> {
    let pair = |world: World| World { nodes: 2, ..world };
    let two = |world: World| World {
        capacity: (2, 2),
        ..world
    };
    vec![
        with(
            calm("crash", "processes die at any step"),
            &[(AgentCrash, 2), (ControllerCrash, 1)],
            &[(Late, 1)],
        ),
        with(
            pair(calm("second", "two agents on one node act at the same time")),
            &[(Second, 3), (Pause, 1)],
            &[(Second, 1), (Late, 1)],
        ),
        with(
            calm("late", "requests are executed after their sender died or gave up"),
            &[(AgentCrash, 1), (ControllerCrash, 1), (Late, 1)],
            &[(Late, 1), (LostReply, 1)],
        ),
        with(
            calm("lost", "answers are lost, and reads are outdated"),
            &[(LostReply, 1), (StaleRead, 1), (AgentCrash, 1)],
            &[(Late, 1), (StaleWatch, 1)],
        ),
        with(
            two(calm("leaders", "two leaders, one of them outdated")),
            &[(Election, 1)],
            &[(Late, 1), (Cordon, 1)],
        ),
        with(
            pair(calm("watches", "leaders plan from old views of their watches")),
            &[(Election, 1), (StaleWatch, 1), (Cordon, 1)],
            &[(Late, 1), (Election, 1), (Pause, 1)],
        ),
        with(
            pair(calm("stale", "the watches do not show a pause yet")),
            &[(StaleWatch, 2), (Pause, 2)],
            &[(Late, 1), (AgentCrash, 1)],
        ),
    ]
}

/// Admins change specs, labels and Nodes.
fn admins(with: With<'_>) -> Vec<World> {
    let pair = |world: World| World { nodes: 2, ..world };
    let two = |world: World| World {
        capacity: (2, 2),
        ..world
    };
    let shrinks = |world: World| World {
        capacity: (2, 1),
        ..world
    };
    let images = |world: World| World {
        images: &[2, 3],
        ..world
    };
    let pools = |world: World| World {
        pools: vec![1, 2],
        ..world
    };
    vec![
        with(
            shrinks(calm(
                "capacity",
                "the capacity grows and shrinks, and nodes are cordoned",
            )),
            &[(Resize, 1), (Cordon, 1)],
            &[(Resize, 1), (Election, 1)],
        ),
        with(
            pair(images(calm("edit", "the image changes at any time"))),
            &[(Edit, 1), (AgentCrash, 1), (Dropped, 1)],
            &[(Edit, 1), (Late, 1)],
        ),
        with(
            pair(calm("delete", "Nodes are deleted and created again")),
            &[(Delete, 1), (AgentCrash, 1)],
            &[(Late, 1), (StaleWatch, 1)],
        ),
        with(
            pools(calm("move", "nodes change their pool")),
            &[(Move, 1), (AgentCrash, 1)],
            &[(Move, 1), (Election, 1), (StaleWatch, 1)],
        ),
        with(
            calm("gate", "gates close and open, and offers lapse"),
            &[(Pause, 2), (Lapse, 1), (AgentCrash, 1)],
            &[(Late, 1), (Election, 1)],
        ),
        with(
            pair(calm(
                "cordon",
                "admins cordon and uncordon Nodes, and Nodes become NotReady",
            )),
            &[(Cordon, 2), (Meddle, 1), (NotReady, 1), (AgentCrash, 1)],
            &[(Late, 1)],
        ),
        with(
            World {
                windows: true,
                ..pair(calm(
                    "window",
                    "windows open and close, the clock loses synchronization, and the fleet is paused",
                ))
            },
            &[(Window, 2), (Clock, 1), (Fleet, 1), (AgentCrash, 1)],
            &[(Window, 1), (Late, 1)],
        ),
        with(
            World {
                waves: true,
                ..two(calm("waves", "a canary goes before the others"))
            },
            &[(Cordon, 1)],
            &[(Election, 1), (Late, 1), (Power, 1), (AgentCrash, 1)],
        ),
        with(
            World {
                waves: true,
                ..two(pair(calm("leave", "the BootcNode of a canary is deleted")))
            },
            &[(Forget, 1), (Cordon, 1)],
            &[(Forget, 1), (AgentCrash, 1)],
        ),
        with(
            World {
                pools: vec![2, 1],
                spread: true,
                servers: 3,
                ..two(calm("servers", "three control plane nodes in two pools"))
            },
            &[(Election, 1)],
            &[(NotReady, 1), (Late, 1), (Power, 1)],
        ),
        with(
            World {
                servers: 3,
                unlabelled: true,
                ..two(calm("unlabelled", "three control plane nodes without the label"))
            },
            &[],
            &[(Election, 1), (NotReady, 1)],
        ),
        with(
            World {
                pools: vec![2, 1],
                spread: true,
                fleet: 1,
                ..two(calm("fleet", "two pools share the fleet's limit"))
            },
            &[(Cordon, 1), (Election, 1)],
            &[(Late, 1), (StaleWatch, 1), (Resize, 1)],
        ),
        with(
            World {
                pools: vec![1, 1],
                spread: true,
                fleet: 1,
                after: &[(0, 1)],
                ..calm("order", "a pool goes after another one")
            },
            &[(NotReady, 1), (AgentCrash, 1)],
            &[(Cordon, 1), (Edit, 1), (Election, 1)],
        ),
        with(
            pair(calm("forget", "BootcNodes are deleted at any step of a turn")),
            &[(Forget, 2), (AgentCrash, 1), (ControllerCrash, 1)],
            &[(Late, 1), (StaleWatch, 1)],
        ),
        with(
            World {
                keep_blocked: true,
                ..calm("hold", "nodes are held back, and do not block others")
            },
            &[(Hold, 2)],
            &[(AgentCrash, 1), (Late, 1), (StaleWatch, 1)],
        ),
        with(
            World {
                too_old: 1 << 3,
                ..pair(images(calm(
                    "boot-image",
                    "a tag moves to an image that needs a newer boot image",
                )))
            },
            &[(Edit, 1), (Accept, 1)],
            &[
                (Edit, 1),
                (Forget, 1),
                (StaleWatch, 1),
                (AgentCrash, 1),
                (Election, 1),
                (Late, 1),
            ],
        ),
        with(
            calm("exclude", "nodes are excluded in the middle of their turn"),
            &[(Exclude, 1), (AgentCrash, 1)],
            &[(Late, 1)],
        ),
    ]
}

/// Hosts and images fail.
fn hosts(with: With<'_>) -> Vec<World> {
    let pair = |world: World| World { nodes: 2, ..world };
    let bad = |world: World| World {
        images: &[2, 3],
        bad: 1 << 2,
        ..world
    };
    vec![
        with(
            pair(calm(
                "host",
                "power losses, reboots that are refused or never begin, and other updaters",
            )),
            &[(Power, 1), (Dropped, 1), (Rival, 1)],
            &[(Inhibit, 2), (Finalize, 1), (AgentCrash, 1)],
        ),
        with(
            pair(calm("finalize", "finalization fails repeatedly")),
            &[(Finalize, 3), (Inhibit, 2)],
            &[(Power, 1)],
        ),
        with(
            pair(bad(calm(
                "bad",
                "nodes do not become Ready with a bad image, and leave it for a newer one",
            ))),
            &[(Edit, 1), (AgentCrash, 1), (Inhibit, 1)],
            &[(Late, 1), (Rollback, 1), (Power, 1)],
        ),
        with(
            pair(bad(calm("retry", "hosts are rolled back, and admins request retries"))),
            &[(Rollback, 2), (Retry, 1)],
            &[(AgentCrash, 1), (Edit, 1)],
        ),
        with(
            pair(World {
                staged: false,
                images: &[2, 3],
                ..calm("stage", "pulls fail, cannot lock, or are canceled")
            }),
            &[(Pull, 1), (Edit, 1)],
            &[(AgentCrash, 1), (Rival, 1)],
        ),
        with(
            World {
                keep_blocked: true,
                ..calm("drain", "a node that cannot be drained does not block others")
            },
            &[(Block, 1), (AgentCrash, 1)],
            &[(Late, 1)],
        ),
        with(
            pair(calm(
                "lock",
                "the staged image cannot be locked or removed, for a while",
            )),
            &[(Stuck, 3), (Rival, 1), (Dropped, 1)],
            &[(AgentCrash, 1), (Inhibit, 1)],
        ),
        with(
            World {
                keep_blocked: true,
                ..pair(calm(
                    "no-lock",
                    "a host that can never lock again does not block others",
                ))
            },
            &[(Stuck, 2), (Rival, 1), (Dropped, 1)],
            &[(AgentCrash, 1), (Pull, 1)],
        ),
    ]
}
