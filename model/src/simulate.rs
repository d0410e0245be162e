//! Random rollouts of large worlds. Agents, controllers and nature move in random order, with faults, for a limited
//! number of moves (the horizon). After that, the fair schedule without faults must update every node. The judge checks
//! every move. There is no I/O and no clock, so a seed replays exactly.

use crate::agent::{self, After, Delivery};
use crate::controller::{self, ControllerMove};
use crate::events::{self, Event, Push};
use crate::fair::{self, I10};
use crate::fault::{FAULTS, Fault};
use crate::judge;
use crate::liar;
use crate::moves::{Memo, Move, MoveText, picture};
use crate::nature;
use crate::random::Random;
use crate::set::Set;
use crate::state::{NO_NUMBER, Number, State};
use crate::world::{Broken, World};
use crate::worlds::calm;

/// Result of a rollout.
#[derive(Debug)]
pub struct Rollout {
    /// Number of moves before the horizon.
    pub moves: usize,
    /// Number of faults that happened.
    pub faults: usize,
    /// Number of rounds of the fair schedule.
    pub rounds: usize,
    /// The broken rule.
    pub broken: Option<Broken>,
    /// The moves, if a history was requested. If a rule was broken, the last state follows.
    pub history: Vec<String>,
}

/// Order of pools, as pairs of a later and an earlier pool. The last pool is updated first.
const BACKWARDS: [(u8, u8); 4] = [(0, 1), (1, 2), (2, 3), (3, 4)];

/// Returns the world of a seed: usually fifty nodes in five pools.
pub fn world(seed: u64) -> World {
    let mut random = Random::new(seed);
    let pools = 1 + random.below(5);
    let nodes = pools + random.below(51 - pools);
    let (nodes, pools) = if random.one_in(3) { (nodes, pools) } else { (50, 5) };
    let images: &[u8] = if random.one_in(2) { &[2] } else { &[2, 3] };
    let k = 1 + random.below(3);
    let world = World {
        nodes,
        pools: vec![3; pools],
        spread: true,
        capacity: (k as Number, 1 + random.below(3) as Number),
        images,
        bad: if images.len() > 1 && random.one_in(3) {
            1 << 2
        } else {
            0
        },
        too_old: if random.one_in(3) { 1 << 3 } else { 0 },
        staged: !random.one_in(4),
        windows: random.one_in(2),
        waves: random.one_in(2),
        zones: random.below(4) as u8,
        servers: random.below(4),
        tries_guard: random.one_in(2),
        ..calm("rollout", "all faults together")
    };
    let world = World {
        fleet: if random.one_in(3) {
            1 + random.below(4) as Number
        } else {
            0
        },
        max_staging: if random.one_in(3) {
            1 + random.below(3) as Number
        } else {
            0
        },
        newer: random.one_in(2),
        after: if random.one_in(2) { &BACKWARDS[..pools - 1] } else { &[] },
        ..world
    };
    if random.one_in(4) && nodes > pools + world.servers {
        return with_liar(world);
    }
    world
}

/// Returns the world with a compromised node. That node may keep a berth, stay unavailable, and never be updated. So the
/// capacity and the fleet's limit leave room for another node, and neither a pool nor control plane nodes wait for it.
fn with_liar(world: World) -> World {
    World {
        liars: 1,
        capacity: (world.capacity.0.max(2), world.capacity.1.max(2)),
        fleet: if world.fleet == 1 { 2 } else { world.fleet },
        after: &[],
        servers: 0,
        ..world
    }
}

/// Runs one rollout of the seed's world. `with_history`: records the moves.
pub fn rollout(seed: u64, memo: &mut Memo, with_history: bool) -> Rollout {
    let world = world(seed);
    let mut random = Random::new(!seed);
    let mut left = budget(&mut random);
    if world.bad != 0 {
        // A node that is stuck on a bad image leaves that image when the next one is published for the node. If the
        // node was moved out of its pool, or its BootcNode was deleted, no image is published until the admin undoes
        // the change.
        (left[Fault::Move as usize], left[Fault::Forget as usize]) = (0, 0);
        // An excluded node gives its berth back without proof. If its agent stops before that, and the node returns to
        // its pool in a new boot of the bad image, only an admin can release the berth.
        left[Fault::Mute as usize] = 0;
    }
    if world.images.len() > 1 {
        // A rollback in the middle of a turn may lead to a third image. Then only an admin can release the berth.
        left[Fault::Queue as usize] = 0;
    }
    run(&world, left, 12, random, memo, with_history)
}

/// Runs one rollout of a small world, enlarged to up to three times its nodes. Only the faults of the small world
/// happen, but more often. This finds bugs that need two or three faults at the same time.
pub fn close_up(small: &World, seed: u64, memo: &mut Memo, with_history: bool) -> Rollout {
    let mut random = Random::new(!seed);
    let world = World {
        nodes: small.nodes * (1 + random.below(3)),
        ..small.clone()
    };
    let mut left = [0; FAULTS];
    for (fault, times) in &small.faults {
        left[*fault as usize] = times + random.below(6) as u8;
    }
    let rare = 2 + random.below(6);
    run(&world, left, rare, random, memo, with_history)
}

/// Runs a rollout of a world. `left`: how often each fault may happen. `rare`: about one in this many moves is a fault.
fn run(
    world: &World,
    left: [u8; FAULTS],
    rare: usize,
    mut random: Random,
    memo: &mut Memo,
    with_history: bool,
) -> Rollout {
    let mut state = world.start();
    state.left = left;
    let before: usize = state.left.iter().map(|n| usize::from(*n)).sum();
    let horizon = 200 + random.below(40 * world.nodes);
    let mut run = Run {
        world,
        random,
        rare,
        history: with_history.then(Vec::new),
    };
    let mut broken = None;
    let mut moves = 0;
    while broken.is_none() && moves < horizon {
        (state, broken) = run.step(state, memo);
        moves += 1;
    }
    let left: usize = state.left.iter().map(|n| usize::from(*n)).sum();
    let mut rounds = 0;
    if broken.is_none() {
        run.note_pending(&state);
        fair::heal(world, &mut state);
        let habits = liar::habits(world);
        liar::adopt(&mut state, habits[run.random.below(habits.len())]);
        broken = judge::state(world, &state);
    }
    while broken.is_none() && !fair::is_updated(world, &state) {
        rounds += 1;
        broken = fair::round(world, &mut state, memo).or_else(|| judge::state(world, &state));
        if rounds > fair::ROUNDS + 4 * world.nodes {
            broken = broken.or(Some(I10));
        }
    }
    let mut history = run.history.unwrap_or_default();
    if with_history && broken.is_some() {
        history.extend(picture(world, &state));
    }
    Rollout {
        moves,
        faults: before - left,
        rounds,
        broken,
        history,
    }
}

/// Draws how often each fault may happen. Half of the rollouts allow every fault. The others allow about a third of the
/// faults, because too many kinds of faults hide each other.
fn budget(random: &mut Random) -> [u8; FAULTS] {
    let (most, every) = (1 + random.below(8), random.one_in(2));
    let mut left = [0; FAULTS];
    for times in &mut left {
        *times = if every || random.one_in(3) {
            random.below(most + 1) as u8
        } else {
            0
        };
    }
    left
}

struct Run<'a> {
    world: &'a World,
    random: Random,
    rare: usize,
    history: Option<Vec<String>>,
}

impl Run<'_> {
    /// Makes one random move. Returns the state after the move, and the rule that the move breaks, if any.
    fn step(&mut self, state: State, memo: &mut Memo) -> After {
        let (by, (to, broken)) = match self.random.below(20) {
            0..=10 => self.agent(&state, memo),
            11..=15 => self.controller(&state, memo),
            _ => self.nature(&state),
        }
        .unwrap_or((None, (state, None)));
        if let (Some(history), Some(by)) = (&mut self.history, by) {
            let text = MoveText {
                by: &by,
                names: &[],
                world: self.world,
            };
            history.push(text.to_string());
        }
        let broken = broken.or_else(|| judge::state(self.world, &to));
        (to, broken)
    }

    /// Adds the controllers' pending writes and the requests in flight to the history.
    fn note_pending(&mut self, state: &State) {
        let Some(history) = &mut self.history else { return };
        let mut pending = vec![];
        for (who, controller) in (0..).zip(&state.controllers) {
            for entry in controller.queue.iter().filter(|e| e.current) {
                let send = ControllerMove::Send(entry.write.clone(), Delivery::Done);
                pending.push(Move::Controller(who, send));
            }
        }
        for request in &state.air {
            pending.push(Move::Event(NO_NUMBER, Event::Lands(request.clone())));
        }
        for by in &pending {
            let (names, world) = (&[], self.world);
            history.push(format!("pending: {}", MoveText { by, names, world }));
        }
    }

    /// Draws a node. A node with a berth or an offer is more likely.
    fn node(&mut self, state: &State) -> usize {
        let busy: Vec<Number> = state.slots.iter().filter_map(|l| Some(l.who()?.0)).collect();
        match busy.get(self.random.below(2 * busy.len().max(1))) {
            Some(node) => usize::from(*node),
            None => self.random.below(self.world.nodes),
        }
    }

    /// Draws a possible move, sometimes a fault. `None` if no move of the drawn kind is possible.
    fn pick(&mut self, state: &State, successors: Vec<(Move, After)>) -> Option<(Option<Move>, After)> {
        let (mut faults, mut others): (Vec<_>, Vec<_>) =
            successors.into_iter().partition(|(_, (to, _))| to.left != state.left);
        let strikes = !faults.is_empty()
            && (self.random.one_in(self.rare) || others.is_empty() && self.random.one_in(self.rare.div_ceil(2)));
        let from = if strikes { &mut faults } else { &mut others };
        if from.is_empty() {
            return None;
        }
        let (by, after) = from.swap_remove(self.random.below(from.len()));
        Some((Some(by), after))
    }

    fn agent(&mut self, state: &State, memo: &mut Memo) -> Option<(Option<Move>, After)> {
        let node = self.node(state);
        if state.nodes[node].labels.liar.is_some() {
            return None;
        }
        let mut successors = vec![];
        agent::moves(
            self.world,
            state,
            node,
            &mut memo.steps,
            &mut |act, delivery, reads, after| {
                successors.push((Move::Agent(node as Number, act, delivery, reads), after));
            },
        );
        self.pick(state, successors)
    }

    fn nature(&mut self, state: &State) -> Option<(Option<Move>, After)> {
        let mut successors = vec![];
        let push: Push<'_> = &mut |node, event, to, broken| {
            let node = node.and_then(|n| Number::try_from(n).ok()).unwrap_or(NO_NUMBER);
            successors.push((Move::Event(node, event), (to, broken)));
        };
        match self.random.below(self.rare) {
            0 => events::of_admin(self.world, state, push),
            1 if !state.air.is_empty() => events::landings(self.world, state, push),
            2 => events::of_controllers(self.world, state, push),
            _ => {
                let node = self.node(state);
                events::of_node(self.world, state, node, push);
            }
        }
        self.pick(state, successors)
    }

    /// Makes a controller send its next write, or run a pass if its queue is empty. Sometimes a fault happens instead,
    /// or in addition.
    fn controller(&mut self, state: &State, memo: &mut Memo) -> Option<(Option<Move>, After)> {
        let leader = usize::from(state.leader);
        let who = if self.random.one_in(4) { 1 - leader } else { leader };
        let controller = &state.controllers[who];
        let strikes = self.random.one_in(self.rare);
        let mut after = state.clone();
        let (doing, after) = if strikes && who != leader && after.spend(Fault::Election) {
            controller::elect(&mut after, who);
            (ControllerMove::Elected, (after, None))
        } else if strikes && who == leader && controller.queue.is_empty() && after.spend(Fault::StaleWatch) {
            controller::look(&mut after, who);
            (ControllerMove::Look, (after, None))
        } else if strikes && who == leader && after.spend(Fault::ControllerCrash) {
            controller::elect(&mut after, who);
            (ControllerMove::Crash, (after, None))
        } else if let Some(first) = controller.queue.front() {
            let (delivery, fault) = match self.random.below(3) {
                0 => (Delivery::Lost, Fault::LostReply),
                1 => (Delivery::Late, Fault::Late),
                _ => (Delivery::Killed, Fault::ControllerCrash),
            };
            let may = strikes && first.current && (delivery != Delivery::Killed || who == leader);
            let delivery = if may && after.spend(fault) {
                delivery
            } else {
                Delivery::Done
            };
            let doing = ControllerMove::Send(first.write.clone(), delivery);
            (doing, controller::send(self.world, after, who, delivery))
        } else if who == leader && self.random.one_in(3) {
            let late = strikes && state.slots.iter().any(|l| l.who().is_some()) && after.spend(Fault::Lapse);
            let doing = if late {
                ControllerMove::LatePass
            } else {
                ControllerMove::Pass
            };
            let passes = controller::passes(self.world, &after, who, late, &mut memo.plans, false);
            (doing, passes.into_iter().next()?)
        } else {
            return None;
        };
        Some((Some(Move::Controller(who as u8, doing)), after))
    }
}

/// Result of a rollout of a very large world.
#[derive(Debug)]
pub struct Huge {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of rounds.
    pub rounds: usize,
    /// The broken rule.
    pub broken: Option<Broken>,
}

/// Runs a rollout of a world with this many nodes. A tenth of each pool may be unavailable at once. In each round, the
/// leader runs a pass, and the nodes with work act. Some nodes lose power, some agents die, and sometimes another
/// controller is elected.
pub fn huge(nodes: usize, seed: u64, memo: &mut Memo) -> Huge {
    let berths = (nodes / 50).max(1);
    let world = World {
        nodes,
        pools: vec![berths; 5],
        spread: true,
        capacity: (berths as Number, berths as Number),
        ..calm("huge", "a very large number of nodes")
    };
    let mut random = Random::new(seed);
    let mut state = world.start();
    // Nodes after a power loss, until they are updated or again ready for an offer.
    let mut restless = Set::default();
    let mut broken = None;
    let mut rounds = 0;
    while broken.is_none() && !fair::is_updated(&world, &state) {
        rounds += 1;
        if rounds > fair::ROUNDS * 4 {
            broken = Some(I10);
        }
        if random.one_in(8) {
            let other = 1 - usize::from(state.leader);
            controller::elect(&mut state, other);
        }
        let leader = usize::from(state.leader);
        broken = broken.or(fair::lead(&world, &mut state, leader, memo));
        let holders = state.slots.iter().filter_map(|l| Some(l.who()?.0));
        let busy: Set = holders.chain(restless.iter()).collect();
        let mut busy: Vec<Number> = busy.iter().collect();
        random.shuffle(&mut busy);
        for number in busy {
            let node = usize::from(number);
            if random.one_in(200) {
                nature::boot(&mut state, node, false, false);
                restless.add(number);
            } else if random.one_in(100) {
                agent::crash(&mut state, node);
            }
            if state.nodes[node].status.prepared || state.nodes[node].host.booted == 2 {
                restless.drop(number);
            }
            broken = broken.or(fair::live(&world, &mut state, node, memo));
            broken = broken.or_else(|| judge::node(&state, node));
        }
        broken = broken.or_else(|| judge::state(&world, &state));
    }
    Huge { nodes, rounds, broken }
}
