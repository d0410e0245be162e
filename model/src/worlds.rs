//! The worlds: each small, each with other things that go wrong.

use crate::fault::Fault;
use crate::state::SLOTS;
use crate::world::World;

/// A world in which nothing goes wrong: three nodes with the first image staged, one berth.
fn calm(name: &'static str, about: &'static str) -> World {
    World {
        name,
        about,
        nodes: 3,
        split: SLOTS,
        capacity: (1, 1),
        images: &[2],
        bad: 0,
        staged: true,
        keep_blocked: false,
        max_failures: 9,
        faults: vec![],
    }
}

/// All worlds that are explored.
pub fn all() -> Vec<World> {
    use Fault::{
        AgentCrash, Block, ControllerCrash, Cordon, Delete, Dropped, Edit, Election, Finalize, Inhibit, Lapse, Late,
        LostReply, Meddle, Move, NotReady, Pause, Power, Pull, Resize, Rival, StaleRead, StaleWatch,
    };
    let with = |world: World, faults: &[(Fault, u8)]| World { faults: faults.to_vec(), ..world };
    vec![
        with(calm("calm", "nothing goes wrong"), &[]),
        with(
            calm("crash", "crashes, lost replies, late requests, stale reads"),
            &[(AgentCrash, 1), (ControllerCrash, 1), (LostReply, 1), (Late, 1), (StaleRead, 1)],
        ),
        with(
            World {
                capacity: (2, 2),
                nodes: 3,
                ..calm("leaders", "two leaders, writes of the deposed one, old watches")
            },
            &[(Election, 1), (Late, 1), (StaleWatch, 1), (Cordon, 1)],
        ),
        with(
            World { capacity: (2, 1), nodes: 3, ..calm("capacity", "the capacity grows and shrinks, nodes fail") },
            &[(Resize, 2), (Cordon, 1), (StaleWatch, 1), (Election, 1)],
        ),
        with(
            World { nodes: 2, images: &[2, 3], ..calm("edit", "another image at any moment, and back") },
            &[(Edit, 2), (AgentCrash, 1), (Late, 1), (Dropped, 1)],
        ),
        with(
            World { nodes: 2, ..calm("delete", "Nodes are deleted and created anew") },
            &[(Delete, 1), (Late, 1), (AgentCrash, 1), (StaleWatch, 1)],
        ),
        with(
            World { nodes: 2, split: 1, ..calm("move", "nodes change their pool") },
            &[(Move, 2), (Election, 1), (StaleWatch, 1), (Late, 1)],
        ),
        with(
            World { nodes: 2, ..calm("gate", "gates close and open, offers lapse") },
            &[(Pause, 2), (Lapse, 1), (AgentCrash, 1), (Late, 1)],
        ),
        with(
            World { nodes: 2, ..calm("host", "power, finalization, inhibitors, drains and rivals") },
            &[(Power, 1), (Finalize, 1), (Dropped, 1), (Inhibit, 2), (Rival, 1)],
        ),
        with(
            World { nodes: 2, images: &[2, 3], bad: 1 << 2, ..calm("bad", "an image under which no node gets Ready") },
            &[(Edit, 1), (AgentCrash, 1), (Power, 1)],
        ),
        with(
            World { nodes: 2, ..calm("cordon", "admins cordon and uncordon, nodes get NotReady") },
            &[(Cordon, 2), (Meddle, 1), (NotReady, 1), (AgentCrash, 1), (Late, 1)],
        ),
        with(
            World { nodes: 2, staged: false, images: &[2, 3], ..calm("stage", "pulls: failed, unlocked, aborted") },
            &[(Pull, 1), (AgentCrash, 1), (Edit, 1), (Rival, 1)],
        ),
        with(
            World { nodes: 2, keep_blocked: true, ..calm("drain", "a node that cannot be drained") },
            &[(Block, 1), (AgentCrash, 1), (Late, 1)],
        ),
    ]
}
