//! A host: what is deployed on it, what is wrong with it, and what its agent remembers there.

use crate::state::Image;

/// Disk and memory of a host, its agent apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Host {
    /// Image that runs.
    pub booted: Image,
    /// Image that ran before that, to roll back to.
    pub previous: Image,
    /// Image that is staged.
    pub staged: Image,
    /// Finalization of that is locked.
    pub locked: bool,
    /// Image that is being pulled.
    pub pull: Image,
    /// A shutdown has begun.
    pub down: bool,
    /// Something inhibits a shutdown.
    pub inhibited: bool,
    /// The host's bus does not answer.
    pub silent: bool,
    /// The host does not say what is deployed on it.
    pub unusable: bool,
    /// The agent's memory cannot be written to the disk.
    pub read_only: bool,
    /// The note of its boot image cannot be read.
    pub no_note: bool,
    /// Its wall clock is far ahead.
    pub ahead: bool,
    /// The last turn ended badly while it was.
    pub turn_ahead: bool,
    /// A rollback is queued: the next boot takes the image that ran before, unless a staged one is finalized.
    pub queued: bool,
    /// A shutdown is scheduled for later.
    pub scheduled: bool,
    /// Pods cannot be moved away.
    pub blocked: bool,
    /// The staged image cannot be locked.
    pub no_lock: bool,
    /// The staged image cannot be removed.
    pub no_unstage: bool,
    /// Finalization failed at the last shutdown.
    pub unfinalized: bool,
    /// Failed images, as bits.
    pub failed: u8,
    /// An image that was committed and not booted, and how often.
    pub not_applied: (Image, u8),
    /// Image that Berth staged last.
    pub ours: Image,
    /// Image whose last pull failed or was stopped, as the agent remembers.
    pub incomplete: Image,
    /// The image of the last turn that ended badly.
    pub turn: Image,
    /// True while its backoff runs.
    pub backoff: bool,
    /// A failed pull's backoff runs.
    pub pull_backoff: bool,
    /// The retry token that was obeyed last.
    pub token: u8,
    /// The target of this turn, once it was seen to run unproven.
    pub tried: Image,
    /// The berth was licensed anew under the boot that runs.
    pub relicensed: bool,
    /// When the drain began.
    pub drain: Begun,
    /// When the proof of the boot that runs began.
    pub proof: Begun,
    /// A pull that has ended, while the agent does not know.
    pub ended: Ended,
    /// The agent's memory as it is on the disk; `None` if that is what the agent remembers.
    pub disk: Option<Memory>,
}

/// The part of a host that the agent remembers on its disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Memory {
    failed: u8,
    not_applied: (Image, u8),
    ours: Image,
    incomplete: Image,
    turn: Image,
    backoff: bool,
    token: u8,
    tried: Image,
    relicensed: bool,
    drain: Begun,
    proof: Begun,
}

impl Host {
    /// The agent's memory, as it would be written to the disk now.
    pub fn memory(&self) -> Memory {
        Memory {
            failed: self.failed,
            not_applied: self.not_applied,
            ours: self.ours,
            incomplete: self.incomplete,
            turn: self.turn,
            backoff: self.backoff,
            token: self.token,
            tried: self.tried,
            relicensed: self.relicensed,
            drain: self.drain,
            proof: self.proof,
        }
    }

    /// A new process reads the memory from the disk.
    pub fn recall(&mut self) {
        if let Some(disk) = self.disk.take() {
            self.remember(disk);
        }
    }

    /// The agent has this memory from now on.
    pub fn remember(&mut self, memory: Memory) {
        (self.failed, self.not_applied) = (memory.failed, memory.not_applied);
        (self.ours, self.incomplete, self.tried) = (memory.ours, memory.incomplete, memory.tried);
        (self.turn, self.backoff, self.token) = (memory.turn, memory.backoff, memory.token);
        (self.relicensed, self.drain, self.proof) = (memory.relicensed, memory.drain, memory.proof);
    }

    /// The time of a backoff is over. By a wall clock that was set back it is far from that.
    pub fn backoff_is_over(&mut self) {
        self.pull_backoff = false;
        if self.turn_ahead && !self.ahead {
            return;
        }
        self.backoff = false;
        if let Some(disk) = &mut self.disk {
            disk.backoff = false;
        }
    }

    /// The time of a drain is over.
    pub fn drain_is_over(&mut self) {
        self.drain = Begun::LongAgo;
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.drain != Begun::No) {
            disk.drain = Begun::LongAgo;
        }
    }

    /// The time of a proof is over.
    pub fn proof_is_over(&mut self) {
        self.proof = Begun::LongAgo;
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.proof != Begun::No) {
            disk.proof = Begun::LongAgo;
        }
    }

    /// Stores the memory, if the disk can be written. `before` is the memory before it changed.
    pub fn store(&mut self, before: Memory) {
        if !self.read_only {
            self.disk = None;
        } else if self.disk.is_none() && self.memory() != before {
            self.disk = Some(before);
        }
        let memory = self.memory();
        self.disk.take_if(|disk| *disk == memory);
    }
}

/// When something began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Begun {
    /// No beginning yet.
    #[default]
    No,
    /// Lately.
    Lately,
    /// So long ago that it should have ended.
    LongAgo,
}

/// The end of a pull.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Ended {
    /// None has ended.
    #[default]
    No,
    /// That of this image ended well.
    Well(Image),
    /// The pull of this image failed.
    Badly(Image),
}
