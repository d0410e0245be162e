//! Updates the record of a node's updates and turns, which people read. Pure; no decision depends on the record.

use berth_api::Digest;
use berth_api::berth::{Berth, HoldPhase, Holding, Outcome};
use berth_api::firstboot::{FirstbootOutcome, NodeFirstboot};
use berth_api::names::BootId;
use berth_api::node::timeline::{
    Chapter, ChapterName, ImageVersion, Joined, MAX_TURNS, MAX_UPDATES, NodeUpdate, Timeline, TurnOutcome, TurnProof,
    TurnRecord,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::whole_seconds;

/// State of a node's update at this moment.
#[derive(Debug, Clone, PartialEq)]
pub enum UpdateState {
    /// The agent has read too little to change the record.
    Nothing,
    /// An update is in progress: the node pulls the image, has it staged, or holds a berth for it.
    On {
        /// Current chapter.
        chapter: ChapterName,
        /// Image of the update.
        to: ImageVersion,
        /// Start time of the chapter, if the host has recorded one.
        began: Option<Timestamp>,
    },
    /// No update is in progress: the node holds no berth, pulls no image, and has no staged image that it could boot.
    Idle {
        /// Digest that the node should run; `None` without a pool.
        desired: Option<Digest>,
        /// Booted digest, if known.
        booted: Option<Digest>,
        /// True if the desired digest failed on this node and is not tried again.
        failed: bool,
    },
}

/// Returns the timeline for the BootcNode's status: the recorded timeline, and a chapter for the machine's first-boot
/// check if the machine had one.
pub fn reported(timeline: &Timeline, firstboot: Option<&NodeFirstboot>) -> Timeline {
    let looked = firstboot.filter(|record| record.outcome != FirstbootOutcome::NotFirstBoot);
    let mut updates = timeline.updates.clone();
    // Leave out the proof of an unfinished update: each new part would cost a write of the status.
    for update in updates.iter_mut().filter(|update| !update.is_over()) {
        update.proof.clear();
    }
    Timeline {
        updates,
        firstboot: looked.map(|record| Chapter {
            name: ChapterName::Firstboot,
            start_time: record.start_time.clone(),
            end_time: record.end_time.clone(),
        }),
        ..timeline.clone()
    }
}

/// Returns the timeline with the state `seen` added. `booted` is the running image, if known.
pub fn timeline(before: &Timeline, seen: &UpdateState, booted: Option<&ImageVersion>, now: Timestamp) -> Timeline {
    let now = whole_seconds(now);
    let mut timeline = before.clone();
    match seen {
        UpdateState::Nothing => {}
        UpdateState::On { chapter, to, began } => {
            on(&mut timeline.updates, *chapter, to, booted, &now);
            if let (Some(began), None) = (began, before.updates.first().filter(|u| u.to.digest == to.digest))
                && let Some(update) = timeline.updates.first_mut()
            {
                begin_earlier(update, whole_seconds(*began), &now);
            }
        }
        UpdateState::Idle {
            desired,
            booted,
            failed,
        } => {
            if let Some(update) = timeline.updates.first_mut() {
                idle(update, desired.as_ref(), booted.as_ref(), *failed, &now);
            }
        }
    }
    timeline
}

fn on(
    updates: &mut Vec<NodeUpdate>,
    chapter: ChapterName,
    to: &ImageVersion,
    booted: Option<&ImageVersion>,
    now: &Time,
) {
    if !updates.first().is_some_and(|update| continues(update, chapter, to)) {
        if let Some(former) = updates.first_mut().filter(|u| !u.is_over()) {
            let ending = if !is_in_turn(former) {
                ChapterName::Withdrawn
            } else if matches!(chapter, ChapterName::Rebooted | ChapterName::Proven) {
                ChapterName::Replaced
            } else {
                ChapterName::TakenAway
            };
            end(former, ending, now);
            close(former, now);
        }
        begin(updates, to);
    }
    let Some(update) = updates.first_mut() else { return };
    if update.to.version.is_none() {
        update.to.version.clone_from(&to.version);
    }
    if chapter < ChapterName::Rebooted && update.from.is_none() {
        update.from = booted.filter(|b| b.digest != to.digest).cloned();
    }
    if chapter < ChapterName::Drained && is_in_turn(update) {
        end(update, ChapterName::TakenAway, now);
    }
    // The update has ended with a failed turn. The wait for its next turn is not recorded as a chapter.
    if update.is_over() && chapter == ChapterName::Waited {
        close(update, now);
    } else if chapter.is_ending() {
        end(update, chapter, now);
    } else {
        enter(update, chapter, now);
    }
}

/// True if the new chapter for this image continues this update. A completed update continues only with an ending
/// chapter. Any other chapter begins a new update, even for the same image.
fn continues(update: &NodeUpdate, chapter: ChapterName, to: &ImageVersion) -> bool {
    update.to.digest == to.digest && (update.chapter(ChapterName::Completed).is_none() || chapter.is_ending())
}

/// Sets the start of an update's only chapter to `began`. The chapter may have begun before this agent process started.
fn begin_earlier(update: &mut NodeUpdate, began: Time, now: &Time) {
    if let [first] = update.chapters.as_mut_slice()
        && began <= *now
    {
        first.start_time = Some(began);
    }
}

/// Adds a new update at the front. Drops earlier updates that did not reach a reboot. Keeps at most [`MAX_UPDATES`]
/// updates in total.
fn begin(updates: &mut Vec<NodeUpdate>, to: &ImageVersion) {
    updates.retain(|update| update.chapter(ChapterName::Rebooted).is_some());
    updates.insert(
        0,
        NodeUpdate {
            from: None,
            to: to.clone(),
            chapters: vec![],
            proof: vec![],
            clock_set: false,
        },
    );
    updates.truncate(MAX_UPDATES);
}

fn is_in_turn(update: &NodeUpdate) -> bool {
    update.chapters.last().is_some_and(|c| c.name >= ChapterName::Drained)
}

fn idle(update: &mut NodeUpdate, desired: Option<&Digest>, booted: Option<&Digest>, failed: bool, now: &Time) {
    if update.is_over() {
        close(update, now);
        return;
    }
    let ending = if is_in_turn(update) {
        // The berth is gone, but this agent did not give it back. So it has not proven the booted image.
        ChapterName::TakenAway
    } else if booted == Some(&update.to.digest) {
        ChapterName::Completed
    } else if desired != Some(&update.to.digest) {
        ChapterName::Withdrawn
    } else if failed {
        ChapterName::Failed
    } else {
        return;
    };
    end(update, ending, now);
    close(update, now);
}

fn enter(update: &mut NodeUpdate, name: ChapterName, now: &Time) {
    if update.chapters.last().is_some_and(|c| c.name == name) {
        return;
    }
    notice_clock(update, now);
    close(update, now);
    if name < ChapterName::Proven {
        update.proof.clear();
    }
    update.chapters.retain(|c| c.name < name);
    update.chapters.push(Chapter {
        name,
        start_time: Some(now.clone()),
        end_time: None,
    });
}

/// Records how the update ended, unless an end is already recorded.
fn end(update: &mut NodeUpdate, name: ChapterName, now: &Time) {
    if !update.is_over() {
        enter(update, name, now);
    }
}

fn close(update: &mut NodeUpdate, now: &Time) {
    if update.chapters.last().is_some_and(is_open) {
        notice_clock(update, now);
    }
    // A chapter whose times were removed, since the clock was set back, gets no end.
    if let Some(last) = update.chapters.last_mut().filter(|c| is_open(c)) {
        last.end_time = Some(now.clone());
    }
}

fn is_open(chapter: &Chapter) -> bool {
    chapter.end_time.is_none() && chapter.start_time.is_some()
}

/// If the clock was set back since the update began, removes all times of the update.
fn notice_clock(update: &mut NodeUpdate, now: &Time) {
    let chapters = update.chapters.iter();
    let times = chapters.flat_map(|chapter| [&chapter.start_time, &chapter.end_time]);
    if times.flatten().max().is_some_and(|latest| latest > now) {
        update.clock_set = true;
        for chapter in &mut update.chapters {
            (chapter.start_time, chapter.end_time) = (None, None);
        }
    }
}

/// Records that the node has joined this pool, unless it is already a member.
pub fn join(timeline: &mut Timeline, pool: &str, now: Timestamp) {
    if timeline.joined.as_ref().is_none_or(|joined| joined.pool != pool) {
        timeline.joined = Some(Joined {
            pool: pool.to_owned(),
            start_time: whole_seconds(now),
        });
    }
}

/// State of the host and the Node during a turn.
#[derive(Debug, Clone)]
pub struct HostState<'a> {
    /// ID of the current boot.
    pub boot_id: &'a BootId,
    /// Booted digest, if known.
    pub booted: Option<&'a Digest>,
    /// True if the Node is Ready under this boot.
    pub node_ready: bool,
    /// Start of the drain, as recorded on the host; `None` without a drain.
    pub drain_began: Option<Timestamp>,
    /// Why the boot of this turn was rolled back, as a condition reason. Either the agent or the rollback guard rolled
    /// it back, or the host fell back. `None` without a rollback.
    pub rolled_back: Option<&'a str>,
}

/// Returns the turns, newest first, given the recorded turns and the held berth. The running turn has no end yet.
pub fn turns(
    before: &[TurnRecord],
    berth: Option<&Berth>,
    timeline: &Timeline,
    host: &HostState<'_>,
    now: Timestamp,
) -> Vec<TurnRecord> {
    let mut turns = before.to_vec();
    let held = berth.and_then(|berth| Some((berth.name(), berth.holding()?)));
    if let Some(lost) = turns.first_mut().filter(|t| t.end_time.is_none())
        && held.as_ref().is_none_or(|(name, h)| !is_of(lost, name, h))
    {
        (lost.end_time, lost.outcome) = (Some(whole_seconds(now)), Some(TurnOutcome::TakenAway));
    }
    let Some((name, holding)) = held else { return turns };
    let releasing = matches!(holding.phase, HoldPhase::Releasing(_));
    // The turn began with its drain, perhaps before this agent process started.
    let draining = host.drain_began.filter(|_| holding.phase == HoldPhase::Taken);
    let started = draining.filter(|began| *began <= now).unwrap_or(now);
    let known = turns
        .first()
        .is_some_and(|t| is_of(t, &name, holding) && (releasing || t.end_time.is_none()));
    if !known {
        turns.insert(0, new_turn(name, holding, started));
        // The running turn does not count towards the limit.
        turns.truncate(MAX_TURNS + 1);
    }
    if let Some(turn) = turns.first_mut().filter(|t| t.end_time.is_none()) {
        turn.to = holding.target.clone();
        let committed = holding.phase == HoldPhase::Committed;
        let update = timeline.updates.first().filter(|u| u.to.digest == holding.target);
        if let Some(update) = update.filter(|_| committed && turn.drain_seconds.is_none()) {
            turn.drain_seconds = update.measured().drain;
        }
        if let HoldPhase::Releasing(outcome) = holding.phase
            && turn.proof.is_none()
            && host.booted.is_some()
        {
            turn.proof = Some(TurnProof {
                booted: host.booted.cloned(),
                boot_id: host.boot_id.to_string(),
                // The outcome `Updated` shows that the Node was Ready, even if a later read says otherwise.
                node_ready: host.node_ready || outcome == Outcome::Updated,
            });
            let is_back = host.booted == holding.from.as_ref();
            turn.outcome = Some(TurnOutcome::of(outcome, is_back));
            turn.reason = host.rolled_back.map(str::to_owned);
        }
    }
    turns
}

fn new_turn(berth: String, holding: &Holding, started: Timestamp) -> TurnRecord {
    TurnRecord {
        berth,
        node_uid: holding.uid.to_string(),
        from: holding.from.clone(),
        to: holding.target.clone(),
        boot_id_before: holding.boot_id.to_string(),
        start_time: whole_seconds(started),
        drain_seconds: None,
        proof: None,
        end_time: None,
        outcome: None,
        reason: None,
    }
}

fn is_of(turn: &TurnRecord, berth: &str, holding: &Holding) -> bool {
    turn.berth == berth && turn.node_uid == holding.uid.as_str()
}

/// Returns the turns that have ended, for the status.
pub fn ended(turns: &[TurnRecord]) -> Vec<TurnRecord> {
    let ended = turns.iter().filter(|t| t.end_time.is_some());
    ended.take(MAX_TURNS).cloned().collect()
}

/// Records the end of the turn, just before its berth is closed.
pub fn turn_ends(turns: &mut [TurnRecord], outcome: TurnOutcome, now: Timestamp) {
    if let Some(turn) = turns.first_mut().filter(|t| t.end_time.is_none()) {
        turn.end_time = Some(whole_seconds(now));
        turn.outcome = turn.outcome.or(Some(outcome));
    }
}

#[cfg(test)]
mod tests;
