//! Nodes whose reports cannot be true. A node's agent, its kubelet and the API server describe the same machine. This
//! module compares them, and finds the nodes where they contradict each other for longer than any honest node could
//! cause. Pure.
//!
//! A finding is only shown to admins: no decision depends on it. Times are measured by this process's monotonic clock
//! and start again in a new leader. A new leader keeps the findings that an earlier leader has written to the
//! BootcNodes, until the node's reports agree again.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::condition::{self, Verdict, node as types};
use berth_api::{Digest, NodeName, NodeUid, reasons};
use jiff::Timestamp;

use crate::Moment;
use crate::agent::reason::Reason;
use crate::controller::snapshot::Entry;
use crate::controller::staging_permits::PULL_LIMIT;
use crate::controller::view::{BootcNodeContent, BootcNodeView, NodeView};

mod images;
mod lasting;
mod turn;

use images::BootedImages;
use lasting::{Lasting, Look};
pub use turn::Held;
use turn::HeldTime;

/// Largest difference between a node's clock and the API server's that is not reported, in seconds. Time daemons may
/// need minutes to correct a clock.
const CLOCK_LIMIT: i64 = 600;

reasons! {
    /// A contradiction in the reports about a node. The condition shows the first one as its reason.
    #[derive(PartialOrd, Ord)]
    pub enum Contradiction {
        /// The agent reports another booted image than before, under the same boot ID.
        ImageWithoutReboot,
        /// The boot ID that the agent reports is not the kubelet's.
        BootIdDiffers,
        /// The agent reports a synchronized clock, but writes times far from the API server's.
        ClockDiffers,
        /// The node holds a berth for much longer than a turn may take, and its agent reports no problem.
        TurnDoesNotEnd,
        /// The agent reports a single pull for longer than the agent lets a pull take.
        PullDoesNotEnd,
    }
}

impl Contradiction {
    const fn words(self) -> &'static str {
        match self {
            Self::ImageWithoutReboot => "the agent reports another booted image than before, but the same boot ID",
            Self::BootIdDiffers => {
                "the agent reports another boot ID than the kubelet (nodeInfo.bootID of the Node), although both have \
                 written since"
            }
            Self::ClockDiffers => {
                "the agent reports a synchronized clock, but writes times that are more than ten minutes ahead of or \
                 behind the API server's clock"
            }
            Self::TurnDoesNotEnd => {
                "the node holds a berth for longer than the pool's timeouts allow, and the agent reports no problem"
            }
            Self::PullDoesNotEnd => "the agent reports a single pull for longer than a pull may take",
        }
    }
}

/// Contradictions that were found about one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Implausible {
    /// The most important contradiction.
    pub reason: Contradiction,
    /// All contradictions in words, and what to do. Contains no text that the node has written.
    pub message: String,
}

impl Implausible {
    /// Returns the finding about these contradictions, the most important first. `None` if there are none.
    pub fn of(node: &NodeName, found: &[Contradiction]) -> Option<Self> {
        let reason = *found.first()?;
        let words: Vec<_> = found.iter().map(|found| found.words()).collect();
        let message = format!(
            "{}; if no fault of the machine explains this, node {node} may be compromised: kubectl berth exclude {node}",
            words.join("; ")
        );
        Some(Self { reason, message })
    }

    /// Returns the new value of the condition `Implausible`; `None` if the BootcNode already has it. `found`: `None` if
    /// the node's reports do not contradict each other.
    pub fn verdict(found: Option<&Self>, content: &BootcNodeContent) -> Option<Verdict> {
        let shown = condition::find_true(&content.told, types::IMPLAUSIBLE);
        match (found, shown) {
            (None, None) => None,
            (None, Some(_)) => Some(Verdict::no(
                condition::CommonReason::AsExpected,
                "the reports about the node agree again",
            )),
            (Some(found), Some(shown))
                if shown.reason == found.reason.as_str() && shown.message == condition::one_line(&found.message) =>
            {
                None
            }
            (Some(found), _) => Some(Verdict::yes(found.reason, &*found.message)),
        }
    }
}

/// Time of the API server's clock at a moment of this process's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerTime {
    /// Time that the API server wrote into an answer.
    pub time: Timestamp,
    /// When this process received the answer.
    pub at: Moment,
}

impl ServerTime {
    /// Returns the API server's time at `moment`, in seconds since 1970.
    fn seconds_at(self, moment: Moment) -> i64 {
        let ahead = i64::try_from(moment.since(self.at).as_secs()).unwrap_or(i64::MAX);
        let behind = i64::try_from(self.at.since(moment).as_secs()).unwrap_or(i64::MAX);
        self.time.as_second().saturating_add(ahead).saturating_sub(behind)
    }
}

/// Reports about one node.
#[derive(Debug, Clone, Copy)]
pub struct Witness<'a> {
    /// The Node, which the kubelet writes. `heard` is the kubelet's last write.
    pub node: &'a Entry<NodeView>,
    /// The BootcNode, whose status the agent writes. `heard` is the agent's last write.
    pub host: &'a Entry<BootcNodeView>,
    /// Berth that the node holds.
    pub held: Option<Held<'a>>,
    /// True if the agent has reported recently.
    pub lively: bool,
}

/// Input of [`Judge::judge`].
#[derive(Debug)]
pub struct Facts<'a> {
    /// The nodes that have a BootcNode.
    pub witnesses: Vec<Witness<'a>>,
    /// The API server's clock; `None` while it is not known.
    pub server: Option<ServerTime>,
    /// `--agent-silence`: maximum time between two reports of a running agent.
    pub silence: Duration,
    /// True if a watch is stale, so that some objects may be older than others.
    pub deaf: bool,
    /// Current time.
    pub now: Moment,
}

/// Contradictions seen so far, by the UID of the Node.
#[derive(Debug, Default)]
pub struct Judge(BTreeMap<NodeUid, Known>);

/// Contradictions seen so far about one node.
#[derive(Debug, Default)]
struct Known {
    image: Lasting,
    images: BootedImages,
    boot: Lasting,
    /// Boot ID of the kubelet. `boot` starts again when this changes: the kubelet and the agent of a rebooting node
    /// report its boot IDs at different times.
    kubelet_boot: Option<Box<str>>,
    clock: Lasting,
    turn: HeldTime,
    pull: Lasting,
    /// Image of the pull, and the number of failed pulls before it. `pull` starts again when this changes.
    pull_of: Option<(Digest, u32)>,
}

impl Judge {
    /// Compares the reports about each node. Returns the nodes with contradictions that have lasted for too long.
    pub fn judge(&mut self, facts: &Facts<'_>) -> BTreeMap<NodeUid, Implausible> {
        let mut found = BTreeMap::new();
        let mut before = std::mem::take(&mut self.0);
        let is_disputed = is_clock_disputed(facts);
        for witness in &facts.witnesses {
            let (node, host) = (&witness.node.view, &witness.host.view);
            let known = before.remove(&node.uid);
            let mut known = known.unwrap_or_else(|| Known::inherited(node, host));
            match host.readable() {
                Some(content) => known.see(facts, witness, content, is_disputed),
                None => known.pause(),
            }
            if let Some(implausible) = Implausible::of(&node.name, &known.named()) {
                found.insert(node.uid.clone(), implausible);
            }
            self.0.insert(node.uid.clone(), known);
        }
        found
    }
}

impl Known {
    /// Returns the memory of a node that this process has not seen before. A contradiction that an earlier leader has
    /// found counts until the reports agree.
    fn inherited(node: &NodeView, host: &BootcNodeView) -> Self {
        let mut known = Self::default();
        // A BootcNode of an earlier Node with the same name is about another machine.
        let is_own = host.owner.as_deref() == Some(node.uid.as_str());
        let Some(content) = host.readable().filter(|_| is_own) else {
            return known;
        };
        let shown = condition::find_true(&content.told, types::IMPLAUSIBLE);
        match shown.and_then(|shown| Contradiction::from_word(&shown.reason)) {
            Some(Contradiction::ImageWithoutReboot) => {
                known.image = Lasting::named();
                known.images = BootedImages::contradicted(&content.report);
            }
            Some(Contradiction::BootIdDiffers) => known.boot = Lasting::named(),
            Some(Contradiction::ClockDiffers) => known.clock = Lasting::named(),
            Some(Contradiction::TurnDoesNotEnd) => known.turn = HeldTime::named(),
            Some(Contradiction::PullDoesNotEnd) => {
                (known.pull, known.pull_of) = (Lasting::named(), pull_of(content));
            }
            None => {}
        }
        known
    }

    fn named(&self) -> Vec<Contradiction> {
        let named = [
            (Contradiction::ImageWithoutReboot, self.image.is_named()),
            (Contradiction::BootIdDiffers, self.boot.is_named()),
            (Contradiction::ClockDiffers, self.clock.is_named()),
            (Contradiction::TurnDoesNotEnd, self.turn.is_named()),
            (Contradiction::PullDoesNotEnd, self.pull.is_named()),
        ];
        let named = named.into_iter().filter(|(_, is_named)| *is_named);
        named.map(|(contradiction, _)| contradiction).collect()
    }

    fn see(&mut self, facts: &Facts<'_>, witness: &Witness<'_>, content: &BootcNodeContent, is_disputed: bool) {
        let (now, silence, heard) = (facts.now, facts.silence, witness.host.heard);
        let is_settled = witness.lively && !facts.deaf && is_current(witness, content);
        self.see_boot(facts, witness, content, is_settled);
        let look = self.images.look(&content.report, is_settled, (heard, now), silence);
        self.image.see(look, now);
        self.image.name_after(silence, heard);

        let clock = clock_look(facts, witness, content);
        self.clock.see(clock.unless(!is_settled || is_disputed), now);
        // timesyncd may need 34 minutes to notice that a suspended machine's clock is wrong.
        self.clock.name_after(silence.saturating_mul(3), heard);

        self.turn.see(witness.held, content, is_settled, silence);
        self.see_pull(facts, witness, content, is_settled);
    }

    fn see_pull(&mut self, facts: &Facts<'_>, witness: &Witness<'_>, content: &BootcNodeContent, is_settled: bool) {
        let pull_of = pull_of(content);
        if self.pull_of != pull_of {
            (self.pull, self.pull_of) = (Lasting::default(), pull_of);
        }
        let look = Look::of(content.report.pull.pulling).unless(!is_settled);
        self.pull.see(look, facts.now);
        let limit = PULL_LIMIT.saturating_add(facts.silence.saturating_mul(2));
        self.pull.name_after(limit, witness.host.heard);
    }

    fn see_boot(&mut self, facts: &Facts<'_>, witness: &Witness<'_>, content: &BootcNodeContent, is_settled: bool) {
        let kubelet = &witness.node.view.kubelet;
        if self.kubelet_boot != kubelet.boot_id {
            self.boot.restart();
            self.kubelet_boot.clone_from(&kubelet.boot_id);
        }
        // An agent whose host does not answer repeats its last report, which may be from before a reboot.
        let degraded = content.report.degraded.as_ref();
        let repeats = degraded.is_some_and(|found| found.reason == Reason::HostUnreachable.as_str());
        let look = match (&kubelet.boot_id, &content.report.host.boot_id) {
            (Some(kubelet), Some(agent)) => Look::of(**kubelet != *agent.kernel()),
            _ => Look::Unsettled,
        };
        self.boot.see(
            look.unless(!is_settled || repeats || !witness.node.view.ready),
            facts.now,
        );
        // Without a write of the kubelet, the Node may only be a leftover from before a reboot.
        if self.boot.began_before(witness.node.heard) {
            self.boot.name_after(facts.silence, witness.host.heard);
        }
    }

    /// Stops all times while the node's report cannot be decoded.
    fn pause(&mut self) {
        self.image.restart();
        self.boot.restart();
        self.clock.restart();
        self.turn.pause();
        self.pull.restart();
    }
}

/// Returns the image that the agent pulls or would pull, and the number of its failed pulls.
fn pull_of(content: &BootcNodeContent) -> Option<(Digest, u32)> {
    let image = content.spec.image.as_ref()?;
    let failure = content.report.pull.failure.as_ref();
    Some((image.digest.clone(), failure.map_or(0, |failure| failure.attempts)))
}

/// True if the report comes from the agent of this Node, not from an earlier machine with the same name.
fn is_current(witness: &Witness<'_>, content: &BootcNodeContent) -> bool {
    content.report.node_uid.as_deref() == Some(witness.node.view.uid.as_str())
}

/// Compares the times that the agent writes with the API server's clock. An agent that reports that its clock is not
/// synchronized does not contradict itself.
fn clock_look(facts: &Facts<'_>, witness: &Witness<'_>, content: &BootcNodeContent) -> Look {
    if !content.report.host.clock_synchronized {
        return Look::Agrees;
    }
    let (Some(server), Some(written)) = (facts.server, content.heartbeat) else {
        return Look::Unsettled;
    };
    let ahead = written
        .as_second()
        .saturating_sub(server.seconds_at(witness.host.heard));
    // The agent writes a new time at each heartbeat, and the same one in the writes between two heartbeats.
    let silence = i64::try_from(facts.silence.as_secs()).unwrap_or(i64::MAX);
    Look::of(ahead > CLOCK_LIMIT || ahead.saturating_neg() > CLOCK_LIMIT.saturating_add(silence))
}

/// True if so many nodes' clocks differ from the API server's that the API server's own clock may be wrong.
fn is_clock_disputed(facts: &Facts<'_>) -> bool {
    let (mut compared, mut differ) = (0_usize, 0_usize);
    for witness in facts.witnesses.iter().filter(|witness| witness.lively) {
        let Some(content) = witness.host.view.readable() else {
            continue;
        };
        let is_compared = content.report.host.clock_synchronized && content.heartbeat.is_some();
        compared += usize::from(is_compared);
        differ += usize::from(is_compared && clock_look(facts, witness, content) == Look::Contradicts);
    }
    compared >= 3 && differ.saturating_mul(2) > compared
}

#[cfg(test)]
mod tests;
