use crate::state::{Agent, Berth, Host, Lease, Memory, NodeRead, Spec, State};
use crate::world::World;

/// Inputs of an agent's decision. The agent's node always has number 0, so nodes with equal inputs share a cached
/// decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AgentView {
    pub spec: Option<Spec>,
    pub agent: Agent,
    /// The memory on the host, and the facts that the agent reads from the host in each pass.
    pub host: Host,
    /// True if the pool's check fails under the running image.
    pub fails_check: bool,
    /// Berths of the agent's node, each with its pool. A decision refers to a berth by its index in this list.
    pub berths: Vec<(u8, Berth)>,
}

impl AgentView {
    /// Returns the inputs of a node's agent. The list contains, for each berth in the inputs, its number in the world.
    pub fn of(world: &World, state: &State, node: usize) -> (Self, Vec<usize>) {
        let here = &state.nodes[node];
        let (mut slots, mut berths) = (vec![], vec![]);
        for (slot, lease) in state.slots.iter().enumerate() {
            let berth = mine(lease, node);
            if berth != Berth::Missing {
                slots.push(slot);
                berths.push((world.pool_of(slot), berth));
            }
        }
        let mut agent = here.agent;
        if let NodeRead::Is(_, current) = &mut agent.node {
            // The agent does not know whether its read is current.
            *current = false;
        }
        // Reset the fields that the agent does not see, or sees only in its last read.
        let host = Host {
            booted: 0,
            previous: 0,
            staged: 0,
            locked: false,
            blocked: false,
            no_lock: false,
            no_unstage: false,
            unusable: false,
            no_note: false,
            queued: false,
            disk: here.host.disk.map(|_| Memory::default()),
            ..here.host
        };
        let view = Self {
            spec: here.spec,
            agent,
            host,
            fails_check: world.failing & (1 << here.host.booted) != 0,
            berths,
        };
        (view, slots)
    }
}

/// Returns the berth as the node's agent sees it, with the node as number 0. `Missing` if the berth is not for the
/// node.
fn mine(lease: &Lease, node: usize) -> Berth {
    match lease.is {
        Berth::Offered(o) if usize::from(o.node) == node => Berth::Offered(crate::state::Offer { node: 0, ..o }),
        Berth::Held(h) if usize::from(h.node) == node => Berth::Held(crate::state::Held { node: 0, ..h }),
        _ => Berth::Missing,
    }
}
