//! Changes that may get a waiting node a berth, and their simulated effect on the facts of its pool.

use std::collections::BTreeSet;
use std::time::Duration;

use berth_api::berth::{Berth, BerthState, Outcome};
use berth_api::quantity::Quantity;
use berth_api::{Digest, NodeName};
use jiff::SignedDuration;

use super::case::Case;
use super::settle::follow;
use crate::controller::gate::FleetGate;
use crate::controller::gate::GateReason;
use crate::controller::plan::FleetUse;
use crate::controller::plan::{MAX_NAMED, Member, PoolFacts, Published, SeenBerth};
use crate::controller::quorum::Cause;
use crate::controller::usage::UseKind;
use crate::text::few;

/// Maximum number of other nodes to try for each kind of change.
const MAX_NODES: usize = 8;

/// A single change that may get a node a berth. The variants are sorted: first events that need no person, then actions
/// of an admin. The actions are sorted by their effect on the rollout, smallest first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// A node that has a berth ends its turn and is updated.
    TurnEnds(NodeName),
    /// The node's agent has staged and locked the image, and reports that it is prepared.
    Prepared,
    /// The soak time of the earlier wave is over. The duration is how long that wave must still soak.
    Soaked(Duration),
    /// All nodes of the earlier waves are proven, and these waves have soaked.
    WavesProven(Vec<String>),
    /// The pools in `rollout.after` are updated, or `rollout.after` is corrected.
    EarlierPools,
    /// The control plane can spare the node: this cause no longer applies.
    ControlPlane(Cause),
    /// The node's agent reports again.
    Heard,
    /// The clock of the node's host is synchronized.
    Clock,
    /// The clock of the controller's machine is synchronized.
    ControllerClock,
    /// An admin releases the hold on the node.
    Unhold,
    /// The node's pool is not paused.
    Resume,
    /// The fleet is not paused.
    ResumeFleet,
    /// The BootcFleet can be read.
    FleetReadable,
    /// Another node is Ready and schedulable.
    Recovers(NodeName),
    /// Another node is excluded.
    Excluded(NodeName),
    /// The admin retries the pool's failed images.
    Retry,
    /// A window is open, and long enough for a drain and a reboot.
    Window,
    /// `rollout.maxFailures` is this number.
    MaxFailures(usize),
    /// `rollout.maxUnavailable` is this number.
    MaxUnavailable(usize),
    /// `maxUnavailable` of the BootcFleet is this number.
    FleetLimit(usize),
}

impl Change {
    /// Returns every change to try, smallest first. Changes of numeric settings are in [`Self::numbers`].
    pub(super) fn all(case: &Case) -> Vec<Self> {
        let Some(own) = case.own() else { return vec![] };
        let facts = &case.facts;
        let mut all = vec![
            Self::Prepared,
            Self::Heard,
            Self::Clock,
            Self::ControllerClock,
            Self::Unhold,
        ];
        all.extend([
            Self::Resume,
            Self::ResumeFleet,
            Self::FleetReadable,
            Self::Retry,
            Self::Window,
        ]);
        all.extend([Self::EarlierPools, waves(facts, own)]);
        let withhold = own.place.control_plane.and_then(|verdict| verdict.withhold);
        all.extend(withhold.map(Self::ControlPlane));
        all.extend(other_users(case, is_worked_on).map(Self::TurnEnds));
        all.extend(other_users(case, is_down).map(Self::Recovers));
        // Propose to exclude a node only if it is not Ready, or if it is in an earlier wave and cannot be updated.
        let lost = facts.members.iter().filter(|m| {
            let is_stuck = m.place.wave < own.place.wave && (m.desired.is_none() || m.node.held_back || has_failed(m));
            m.name != case.node && (!m.node.ready || is_stuck)
        });
        all.extend(lost.take(MAX_NODES).map(|m| Self::Excluded(m.name.clone())));
        all.sort();
        all
    }

    /// Returns changes of numeric settings that each get the node a berth alone. Each has the smallest sufficient value
    /// of its setting.
    pub(super) fn numbers(case: &Case) -> Vec<Self> {
        let facts = &case.facts;
        let most = facts.members.len() + facts.berths.len() + 1;
        let unavailable = least(case, facts.capacity + 1, most, Self::MaxUnavailable);
        let fleet = facts.fleet.as_ref();
        let fleet = fleet.and_then(|f| least(case, f.limit + 1, f.limit + f.all + most, Self::FleetLimit));
        let failures = least(case, facts.max_failures + 1, MAX_NAMED, Self::MaxFailures);
        failures.into_iter().chain(unavailable).chain(fleet).collect()
    }

    /// Returns the case after the change; `None` if the change has no effect or is impossible.
    pub fn applied(&self, case: &Case) -> Option<Case> {
        let mut after = case.clone();
        let is_changed = self.apply(&mut after)?;
        follow(&case.facts, &mut after.facts);
        if let Some(fleet) = after.facts.fleet.as_mut() {
            self.apply_elsewhere(case, fleet);
        }
        // Evaluating the gates parses the schedule, which takes longer than a plan.
        if self.is_of_gates() {
            after.judge();
        }
        is_changed.then_some(after)
    }

    /// True if the change affects what the gates are evaluated from.
    fn is_of_gates(&self) -> bool {
        match self {
            Self::ControllerClock | Self::Resume | Self::ResumeFleet | Self::FleetReadable | Self::Window => true,
            Self::TurnEnds(_)
            | Self::Prepared
            | Self::Soaked(_)
            | Self::WavesProven(_)
            | Self::EarlierPools
            | Self::ControlPlane(_)
            | Self::Heard
            | Self::Clock
            | Self::Unhold
            | Self::Recovers(_)
            | Self::Excluded(_)
            | Self::Retry
            | Self::MaxFailures(_)
            | Self::MaxUnavailable(_)
            | Self::FleetLimit(_) => false,
        }
    }

    pub(super) fn is_enough(&self, case: &Case) -> bool {
        self.applied(case).is_some_and(|case| case.offered().is_ok())
    }

    /// Applies this change to the case. Returns true if the case differs afterwards, and `None` if the change is
    /// impossible.
    fn apply(&self, case: &mut Case) -> Option<bool> {
        let name = case.node.clone();
        let (facts, rules) = (&mut case.facts, &mut case.rules);
        let own = facts.members.iter_mut().find(|member| member.name == name)?;
        let mut rollout = rules.spec.rollout().clone();
        Some(match self {
            Self::TurnEnds(node) => ends(facts, node) || is_elsewhere(facts, node),
            Self::Prepared => prepare(own)?,
            Self::Soaked(_) => soak(facts, own_wave(facts, &name)?),
            Self::WavesProven(_) => prove(facts, own_wave(facts, &name)?),
            Self::EarlierPools => facts.order.take().is_some(),
            Self::ControlPlane(_) => own.place.control_plane.take().is_some(),
            Self::Heard => !std::mem::replace(&mut own.agent.heard, true),
            Self::Clock => !std::mem::replace(&mut own.agent.clock_synchronized, true),
            Self::ControllerClock => !std::mem::replace(&mut rules.clock_synchronized, true),
            Self::Unhold => std::mem::replace(&mut own.node.held_back, false),
            Self::Resume => {
                let was = std::mem::replace(&mut rollout.paused, false);
                rules.spec.rollout = Some(rollout);
                was
            }
            Self::ResumeFleet => rules.fleet.take_if(|gate| *gate == FleetGate::Paused).is_some(),
            Self::FleetReadable => rules.fleet.take_if(|gate| *gate == FleetGate::Unreadable).is_some(),
            Self::Recovers(node) => recover(facts, node) || is_elsewhere(facts, node),
            Self::Excluded(node) => {
                let is_there = leave(facts, node);
                let members = facts.members.iter().filter(|member| !member.leaving).count();
                facts.capacity = facts.capacity.min(rules.spec.capacity(members));
                is_there
            }
            Self::Retry => forget(facts),
            Self::Window => {
                let was = !rollout.windows.is_empty() || !rollout.exclusions.is_empty();
                // While the controller's clock is not synchronized, windows stay closed.
                let is_judged = rules.clock_synchronized;
                (rollout.windows, rollout.exclusions) = (vec![], vec![]);
                rules.spec.rollout = Some(rollout);
                case.is_open = was && is_judged;
                case.is_open
            }
            Self::MaxFailures(n) => std::mem::replace(&mut facts.max_failures, *n) != *n,
            Self::MaxUnavailable(n) => {
                rollout.max_unavailable = Some(Quantity::Nodes(u32::try_from(*n).ok()?));
                rules.spec.rollout = Some(rollout);
                std::mem::replace(&mut facts.capacity, *n) != *n
            }
            Self::FleetLimit(n) => {
                let fleet = facts.fleet.as_mut()?;
                fleet.may_stay += n.saturating_sub(fleet.limit);
                std::mem::replace(&mut fleet.limit, *n) != *n
            }
        })
    }

    /// If the change makes a node of another pool available, subtracts this node from the use of the fleet's limit.
    fn apply_elsewhere(&self, before: &Case, fleet: &mut FleetUse) {
        let (Self::TurnEnds(node) | Self::Recovers(node)) = self else {
            return;
        };
        let user = fleet.used_by.iter().find(|user| user.who == node.as_str());
        let Some(how) = user.map(|user| user.how).filter(|_| is_elsewhere(&before.facts, node)) else {
            return;
        };
        fleet.all = fleet.all.saturating_sub(1);
        match how {
            UseKind::Holds | UseKind::IsOffered | UseKind::Elsewhere => {
                fleet.held_or_offered = fleet.held_or_offered.saturating_sub(1);
            }
            _ => fleet.unavailable = fleet.unavailable.saturating_sub(1),
        }
    }

    /// Returns the field of the pool's spec that an admin sets for this change, and the field's new value. `None` for a
    /// change that needs no such field.
    pub fn setting(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Resume => Some(("rollout.paused", "false".to_owned())),
            Self::MaxFailures(n) => Some(("rollout.maxFailures", n.to_string())),
            Self::MaxUnavailable(n) => Some(("rollout.maxUnavailable", n.to_string())),
            _ => None,
        }
    }

    /// Describes the change as a clause that completes "the node is offered a berth as soon as".
    pub fn words(&self, case: &Case) -> String {
        let pool = &case.facts.pool;

        match self {
            Self::TurnEnds(node) => format!("{node} has ended its turn"),
            Self::Prepared => {
                "the node's agent reports that the image is staged and locked (UpdatePrepared)".to_owned()
            }
            Self::Soaked(left) => format!(
                "the soak time of the earlier wave is over ({} left)",
                SignedDuration::try_from(*left).map_or_else(|_| "many years".to_owned(), |left| format!("{left:#}"))
            ),
            Self::WavesProven(waves) => {
                format!(
                    "the nodes of these waves are updated and Ready, and their soak time is over: {}",
                    few(waves.iter().cloned())
                )
            }
            Self::EarlierPools => match case.facts.order.as_ref() {
                Some(order) if order.reason != GateReason::EarlierPool => {
                    "rollout.after names existing pools and has no cycle".to_owned()
                }
                _ => "the pools in rollout.after are updated".to_owned(),
            },
            Self::ControlPlane(cause) => control_plane(*cause).to_owned(),
            Self::Heard => "the node's agent reports again".to_owned(),
            Self::Clock => "the clock of the node is synchronized".to_owned(),
            Self::ControllerClock => "the clock of the controller's machine is synchronized".to_owned(),
            Self::Unhold => format!("an admin releases the node's hold: kubectl berth unhold {}", case.node),
            Self::Resume => format!("pool {pool} is resumed: kubectl berth resume {pool}"),
            Self::ResumeFleet => "the fleet is resumed: kubectl berth resume --all".to_owned(),
            Self::FleetReadable => "BootcFleet cluster can be read: repair or delete it".to_owned(),
            Self::Recovers(node) => format!("{node} is Ready and schedulable"),
            Self::Excluded(node) => format!("{node} is excluded: kubectl berth exclude {node}"),
            Self::Retry => format!("failed images are retried: kubectl berth retry {pool}"),
            Self::Window => "a window is open that is long enough for a drain and a reboot".to_owned(),
            Self::MaxFailures(n) => format!("rollout.maxFailures is {n} {}", instead_of(case.facts.max_failures)),
            Self::MaxUnavailable(n) => format!(
                "rollout.maxUnavailable is {n} {}; {}",
                instead_of(case.facts.capacity),
                down(*n)
            ),
            Self::FleetLimit(n) => {
                let limit = case.facts.fleet.as_ref().map_or(0, |fleet| fleet.limit);
                format!(
                    "maxUnavailable of BootcFleet cluster is {n} {}; {}",
                    instead_of(limit),
                    down(*n)
                )
            }
        }
    }
}

/// Returns a clause that says how many nodes may be down with a larger limit.
fn down(nodes: usize) -> String {
    match nodes {
        1 => "1 node may be down".to_owned(),
        nodes => format!("up to {nodes} nodes may be down at once"),
    }
}

fn instead_of(number: usize) -> String {
    format!("instead of {number}")
}

fn control_plane(cause: Cause) -> &'static str {
    match cause {
        Cause::OtherAtWork => "another control plane node has ended its turn",
        Cause::OtherUnavailable => "every other control plane node is Ready and schedulable",
        Cause::NoMajority => "enough other control plane nodes are up for a majority without this node",
        Cause::NoOtherServer => "another API server answers /readyz",
        Cause::NotKnown => "all API servers have been queried for /readyz",
        Cause::NotListed => "the controller has listed the API servers",
        Cause::Unfenced => "the new leading controller has taken over all berths",
    }
}

/// Returns the change with the smallest number from `low` to `high` that gets the node a berth. The binary search
/// assumes that every larger number works too. If this assumption is wrong, the result still works, but may not be the
/// smallest.
fn least(case: &Case, low: usize, high: usize, change: fn(usize) -> Change) -> Option<Change> {
    if low > high || !change(high).is_enough(case) {
        return None;
    }
    let (mut low, mut high) = (low, high);
    while low < high {
        let middle = low + (high - low) / 2;
        if change(middle).is_enough(case) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(change(high))
}

fn users(facts: &PoolFacts) -> BTreeSet<(NodeName, UseKind)> {
    let uses = facts.uses().into_iter();
    let fleet = facts.fleet.iter().flat_map(|fleet| fleet.used_by.clone());
    let fleet = fleet.filter(|user| is_elsewhere(facts, &NodeName::from(user.who.as_str())));
    uses.chain(fleet)
        .map(|user| (NodeName::new(user.who), user.how))
        .collect()
}

/// Returns up to [`MAX_NODES`] nodes that use up capacity, if `is_wanted` accepts the kind of use. Leaves out the
/// case's own node.
fn other_users(case: &Case, is_wanted: fn(UseKind) -> bool) -> impl Iterator<Item = NodeName> {
    let others = users(&case.facts).into_iter();
    let others = others.filter(move |(who, how)| *who != case.node && is_wanted(*how));
    others.take(MAX_NODES).map(|(who, _)| who)
}

fn is_worked_on(how: UseKind) -> bool {
    matches!(how, UseKind::Holds | UseKind::IsOffered | UseKind::Elsewhere)
}

fn is_down(how: UseKind) -> bool {
    matches!(
        how,
        UseKind::NotReady | UseKind::CordonedByUs | UseKind::CordonedByOthers
    )
}

fn has_failed(member: &Member) -> bool {
    member
        .desired
        .as_ref()
        .is_some_and(|digest| member.agent.failed.contains(digest))
}

/// True if the node belongs to another pool and uses up the fleet's limit.
fn is_elsewhere(facts: &PoolFacts, node: &NodeName) -> bool {
    let is_own = facts.uses().iter().any(|user| user.who == node.as_str());
    let fleet = facts.fleet.iter().flat_map(|fleet| &fleet.used_by);
    !is_own && fleet.into_iter().any(|user| user.who == node.as_str())
}

fn own_wave(facts: &PoolFacts, node: &NodeName) -> Option<usize> {
    Some(facts.members.iter().find(|member| member.name == *node)?.place.wave)
}

/// Returns the change that ends the wait for earlier waves: [`Change::Soaked`] if all members of these waves are
/// proven, otherwise [`Change::WavesProven`].
fn waves(facts: &PoolFacts, own: &Member) -> Change {
    let members: Vec<&Member> = facts.members.iter().filter(|m| m.place.wave < own.place.wave).collect();
    let numbers: BTreeSet<usize> = members.iter().map(|m| m.place.wave).collect();
    let waves = numbers.iter().filter_map(|number| facts.waves.get(*number));
    let is_proven = members
        .iter()
        .all(|m| m.desired.is_some() && m.agent.booted == m.desired && m.node.ready && !m.node.our_cordon);
    if is_proven {
        let left = waves.map(|wave| wave.soak.saturating_sub(wave.soaked)).max();
        Change::Soaked(left.unwrap_or_default())
    } else {
        Change::WavesProven(waves.map(|wave| wave.name.clone()).collect())
    }
}

/// Makes the member ready for an offer. Returns true if the member changed, and `None` if the member has no image to
/// update to.
fn prepare(own: &mut Member) -> Option<bool> {
    let before = own.clone();
    own.desired.as_ref()?;
    own.published = Published {
        digest: own.desired.clone(),
        uid: own.uid.clone(),
        observed: true,
    };
    (own.agent.staged, own.agent.prepared) = (own.desired.clone(), true);
    let is_staged = before.agent.staged == own.agent.staged && before.agent.prepared;
    Some(before.published != own.published || !is_staged)
}

/// Ends the soak of all waves before wave `own`. Returns false if all these soaks were already over.
fn soak(facts: &mut PoolFacts, own: usize) -> bool {
    let mut is_changed = false;
    for wave in facts.waves.iter_mut().take(own).filter(|wave| wave.soaked < wave.soak) {
        (wave.soaked, is_changed) = (wave.soak, true);
    }
    is_changed
}

/// Makes all members of the waves before `own` proven, and ends the soak of these waves. Leaves out members without an
/// image. Returns true if anything changed.
fn prove(facts: &mut PoolFacts, own: usize) -> bool {
    let names: Vec<NodeName> = facts
        .members
        .iter()
        .filter(|m| m.place.wave < own)
        .map(|m| m.name.clone())
        .collect();
    let mut is_changed = false;
    for name in &names {
        is_changed |= ends(facts, name);
    }
    for member in facts
        .members
        .iter_mut()
        .filter(|m| m.place.wave < own && m.desired.is_some())
    {
        let before = (member.agent.booted.clone(), member.node.ready, member.node.our_cordon);
        updated(member);
        is_changed |= before != (member.agent.booted.clone(), member.node.ready, member.node.our_cordon);
    }
    soak(facts, own) || is_changed
}

/// Sets the member to its state after a successful turn. Removes only Berth's own cordon.
fn updated(member: &mut Member) {
    member.agent.booted.clone_from(&member.desired);
    (member.published.uid, member.node.ready) = (member.uid.clone(), true);
    if std::mem::replace(&mut member.node.our_cordon, false) {
        member.node.unschedulable = false;
    }
}

fn fresh(seen: &SeenBerth, berth: &Berth) -> SeenBerth {
    SeenBerth {
        berth: Ok(Berth::new(berth.pool.clone(), berth.index, berth.epoch)),
        ..seen.clone()
    }
}

/// Ends the turn of a node that holds or is offered a berth of any pool. Returns false if the node has no berth.
fn ends(facts: &mut PoolFacts, node: &NodeName) -> bool {
    let mut target: Option<Option<Digest>> = None;
    for seen in &mut facts.berths {
        let Ok(berth) = seen.berth.as_ref() else { continue };
        if berth.node().is_none_or(|(name, _)| name != node) {
            continue;
        }
        let of = match &berth.state {
            BerthState::Held(holding) => Some(holding.target.clone()),
            BerthState::Offered(offer) => Some(offer.target.clone()),
            BerthState::Closed(_) => None,
        };
        target = Some(of);
        *seen = fresh(seen, &berth.clone());
    }
    let PoolFacts { members, elsewhere, .. } = facts;
    let Some(member) = members.iter_mut().find(|member| member.name == *node) else {
        return target.is_some();
    };
    let is_elsewhere = elsewhere.remove(&member.uid);
    match &target {
        Some(target) if *target == member.desired => updated(member),
        Some(_) => {
            member.node.ready = true;
            if std::mem::replace(&mut member.node.our_cordon, false) {
                member.node.unschedulable = false;
            }
        }
        None => {}
    }
    target.is_some() || is_elsewhere
}

fn recover(facts: &mut PoolFacts, node: &NodeName) -> bool {
    let member = facts
        .members
        .iter_mut()
        .find(|m| m.name == *node && m.node.is_unavailable());
    let Some(member) = member else { return false };
    (member.node.ready, member.node.unschedulable, member.node.our_cordon) = (true, false, false);
    true
}

/// Removes a member and closes its berth. In a real cluster, the agent gives the berth back, or the controller closes
/// it.
fn leave(facts: &mut PoolFacts, node: &NodeName) -> bool {
    let count = facts.members.len();
    for seen in &mut facts.berths {
        let berth = seen
            .berth
            .as_ref()
            .ok()
            .filter(|b| b.node().is_some_and(|(name, _)| name == node));
        if let Some(berth) = berth.cloned() {
            *seen = fresh(seen, &berth);
        }
    }
    facts.members.retain(|member| member.name != *node);
    facts.excluded.insert(node.clone());
    facts.members.len() < count
}

/// Removes all failures, as an admin's retry does: recorded failures, failures reported by agents, and failures on
/// closed berths. Also forgets bad turns and earlier offers. Returns true if a failure was removed.
fn forget(facts: &mut PoolFacts) -> bool {
    let mut is_changed = !facts.failures.is_empty();
    facts.failures.clear();
    for member in &mut facts.members {
        is_changed |= !member.agent.failed.is_empty();
        member.agent.failed.clear();
        (member.agent.last_turn, member.offers, member.turns) = (None, 0, 0);
    }
    for seen in &mut facts.berths {
        let Ok(berth) = seen.berth.as_ref() else { continue };
        if matches!(&berth.state, BerthState::Closed(closed) if closed.outcome == Some(Outcome::Failed)) {
            *seen = fresh(seen, &berth.clone());
            is_changed = true;
        }
    }
    is_changed
}
