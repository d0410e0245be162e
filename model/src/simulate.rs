//! The same world at random, in large: a schedule drawn from a seed, in which agents, controllers and nature move in any
//! order and faults strike until a horizon, and then a fair one without faults that must end with every node updated. The
//! judge looks at every move. No I/O and no time: a seed replays exactly.

use crate::agent::{self, After, How};
use crate::controller::{self, Doing};
use crate::fair::{self, I10};
use crate::fault::{FAULTS, Fault};
use crate::judge;
use crate::moves::{Memo, Move, Told, picture};
use crate::nature;
use crate::random::Random;
use crate::set::Set;
use crate::state::{NOBODY, No, State};
use crate::world::{Broken, World};
use crate::worlds::calm;

/// End of a rollout.
#[derive(Debug)]
pub struct Rollout {
    /// Moves made until the horizon.
    pub moves: usize,
    /// Faults that struck.
    pub faults: usize,
    /// Rounds of the fair schedule.
    pub rounds: usize,
    /// The rule that was broken.
    pub broken: Option<Broken>,
    /// The moves, when they were asked for, and what the world is like at the end of a rollout that went wrong.
    pub history: Vec<String>,
}

/// Each pool after the next one, so that the last one goes first.
const BACKWARDS: [(u8, u8); 4] = [(0, 1), (1, 2), (2, 3), (3, 4)];

/// The world of a seed: fifty nodes in five pools, most of the time.
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
        capacity: (k as No, 1 + random.below(3) as No),
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
        ..calm("rollout", "everything at once")
    };
    World {
        fleet: if random.one_in(3) { 1 + random.below(4) as No } else { 0 },
        max_staging: if random.one_in(3) { 1 + random.below(3) as No } else { 0 },
        newer: random.one_in(2),
        after: match random.one_in(2) {
            true => &BACKWARDS[..pools - 1],
            false => &[],
        },
        ..world
    }
}

/// Makes one rollout of the seed's world. `tell`: with its history.
pub fn rollout(seed: u64, memo: &mut Memo, tell: bool) -> Rollout {
    let world = world(seed);
    let mut random = Random::new(!seed);
    let mut left = budget(&mut random);
    if world.bad != 0 {
        // Who is stuck on a bad image goes forward to the next one that is published to it. A node that was moved, or whose
        // BootcNode is deleted, is told of none: that is for the admin to undo.
        (left[Fault::Move as usize], left[Fault::Forget as usize]) = (0, 0);
        // An excluded node gives back without a proof. If its agent stops before that, and the node comes back into its pool under
        // a new boot of the bad image, only an admin can release it.
        left[Fault::Mute as usize] = 0;
    }
    if world.images.len() > 1 {
        // A rollback in the middle of a turn may lead to a third image, which only an admin can release.
        left[Fault::Queue as usize] = 0;
    }
    run(&world, left, 12, random, memo, tell)
}

/// Makes one rollout of a world in which little goes wrong, and that often: up to three times as many nodes as the world has,
/// and its own kinds of fault alone, each several times. Such a rollout finds what needs two or three things at one moment.
pub fn close_up(small: &World, seed: u64, memo: &mut Memo, tell: bool) -> Rollout {
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
    run(&world, left, rare, random, memo, tell)
}

/// Makes a rollout of a world. `left`: how often each fault may strike. `rare`: one does in so many moves.
fn run(world: &World, left: [u8; FAULTS], rare: usize, mut random: Random, memo: &mut Memo, tell: bool) -> Rollout {
    let mut state = world.start();
    state.left = left;
    let before: usize = state.left.iter().map(|n| usize::from(*n)).sum();
    let horizon = 200 + random.below(40 * world.nodes);
    let mut run = Run {
        world,
        random,
        rare,
        history: tell.then(Vec::new),
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
        run.tell_queues(&state);
        fair::heal(world, &mut state);
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
    if tell && broken.is_some() {
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

/// Number of times that each fault may strike: every one of them a few times, or some of them more often, for too many kinds
/// at once hide each other.
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
    /// One move of somebody, and what the judge says to it.
    fn step(&mut self, state: State, memo: &mut Memo) -> After {
        let (by, (to, broken)) = match self.random.below(20) {
            0..=10 => self.agent(&state, memo),
            11..=15 => self.controller(&state, memo),
            _ => self.nature(&state),
        }
        .unwrap_or((None, (state, None)));
        if let (Some(history), Some(by)) = (&mut self.history, by) {
            let told = Told {
                by: &by,
                names: &[],
                world: self.world,
            };
            history.push(told.to_string());
        }
        let broken = broken.or_else(|| judge::state(self.world, &to));
        (to, broken)
    }

    /// Notes what the controllers have yet to write, and what is on its way, when the faults end.
    fn tell_queues(&mut self, state: &State) {
        let Some(history) = &mut self.history else { return };
        let mut note = |by: Move| {
            let told = Told {
                by: &by,
                names: &[],
                world: self.world,
            };
            history.push(format!("to come: {told}"));
        };
        for (who, controller) in (0..).zip(&state.controllers) {
            for entry in controller.queue.iter().filter(|e| e.current) {
                note(Move::Controller(who, Doing::Send(entry.write.clone(), How::Done)));
            }
        }
        for request in &state.air {
            note(Move::Event(NOBODY, nature::Event::Lands(request.clone())));
        }
    }

    /// Somebody, more often one that has a berth.
    fn node(&mut self, state: &State) -> usize {
        let busy: Vec<No> = state.slots.iter().filter_map(|l| Some(l.who()?.0)).collect();
        match busy.get(self.random.below(2 * busy.len().max(1))) {
            Some(node) => usize::from(*node),
            None => self.random.below(self.world.nodes),
        }
    }

    /// One of the ways on; one that is a fault now and then.
    fn pick(&mut self, state: &State, ways: Vec<(Move, After)>) -> Option<(Option<Move>, After)> {
        let (mut faults, mut others): (Vec<_>, Vec<_>) =
            ways.into_iter().partition(|(_, (to, _))| to.left != state.left);
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
        let mut ways = vec![];
        agent::moves(
            self.world,
            state,
            node,
            &mut memo.steps,
            &mut |act, how, reads, after| {
                ways.push((Move::Agent(node as No, act, how, reads), after));
            },
        );
        self.pick(state, ways)
    }

    fn nature(&mut self, state: &State) -> Option<(Option<Move>, After)> {
        let mut ways = vec![];
        let mut push = |node: Option<usize>, event, to, broken| {
            let node = node.and_then(|n| No::try_from(n).ok()).unwrap_or(NOBODY);
            ways.push((Move::Event(node, event), (to, broken)));
        };
        match self.random.below(self.rare) {
            0 => nature::of_admin(self.world, state, &mut push),
            1 if !state.air.is_empty() => nature::landings(self.world, state, &mut push),
            2 => nature::of_controllers(self.world, state, &mut push),
            _ => {
                let node = self.node(state);
                nature::of_node(self.world, state, node, &mut push);
            }
        }
        self.pick(state, ways)
    }

    /// A controller sends the next of its writes, or makes a pass when it has none; now and then something goes wrong.
    fn controller(&mut self, state: &State, memo: &mut Memo) -> Option<(Option<Move>, After)> {
        let leader = usize::from(state.leader);
        let who = if self.random.one_in(4) { 1 - leader } else { leader };
        let controller = &state.controllers[who];
        let strikes = self.random.one_in(self.rare);
        let mut after = state.clone();
        let (doing, after) = if strikes && who != leader && after.spend(Fault::Election) {
            controller::elect(&mut after, who);
            (Doing::Elected, (after, None))
        } else if strikes && who == leader && controller.queue.is_empty() && after.spend(Fault::StaleWatch) {
            controller::look(&mut after, who);
            (Doing::Look, (after, None))
        } else if strikes && who == leader && after.spend(Fault::ControllerCrash) {
            controller::elect(&mut after, who);
            (Doing::Crash, (after, None))
        } else if let Some(first) = controller.queue.front() {
            let (how, fault) = match self.random.below(3) {
                0 => (How::Lost, Fault::LostReply),
                1 => (How::Late, Fault::Late),
                _ => (How::Killed, Fault::ControllerCrash),
            };
            let may = strikes && first.current && (how != How::Killed || who == leader);
            let how = if may && after.spend(fault) { how } else { How::Done };
            let doing = Doing::Send(first.write.clone(), how);
            (doing, controller::send(self.world, after, who, how))
        } else if who == leader && self.random.one_in(3) {
            let late = strikes && state.slots.iter().any(|l| l.who().is_some()) && after.spend(Fault::Lapse);
            let doing = if late { Doing::LatePass } else { Doing::Pass };
            let passes = controller::passes(self.world, &after, who, late, &mut memo.plans, false);
            (doing, passes.into_iter().next()?)
        } else {
            return None;
        };
        Some((Some(Move::Controller(who as u8, doing)), after))
    }
}

/// End of a rollout of a very large world.
#[derive(Debug)]
pub struct Huge {
    /// Nodes.
    pub nodes: usize,
    /// Rounds.
    pub rounds: usize,
    /// The rule that was broken.
    pub broken: Option<Broken>,
}

/// A rollout of so many nodes in one world, a tenth of each pool at a time: rounds in which the leader makes a pass and
/// those act that have something to do. Some lose power, some agents die, and now and then another controller is elected.
pub fn huge(nodes: usize, seed: u64, memo: &mut Memo) -> Huge {
    let berths = (nodes / 50).max(1);
    let world = World {
        nodes,
        pools: vec![berths; 5],
        spread: true,
        capacity: (berths as No, berths as No),
        ..calm("huge", "as many nodes as there can be")
    };
    let mut random = Random::new(seed);
    let mut state = world.start();
    // Nodes to which something has happened, until they are ready for their turn, or updated.
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
        let mut busy: Vec<No> = busy.iter().collect();
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
