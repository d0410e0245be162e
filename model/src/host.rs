//! A host: its deployments, its faults, and the agent's memory on its disk.

use crate::number::Image;

/// State of a host, without its agent's process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Host {
    pub booted: Image,
    /// Previous image, for a rollback.
    pub previous: Image,
    pub staged: Image,
    /// True if finalization of the staged image is locked.
    pub locked: bool,
    pub pull: Image,
    /// True while the host shuts down.
    pub down: bool,
    /// True if shutdowns are inhibited.
    pub inhibited: bool,
    /// True if the host's bus does not answer.
    pub silent: bool,
    /// True if the deployments cannot be read.
    pub unusable: bool,
    /// True if the agent's memory cannot be written to disk.
    pub read_only: bool,
    /// True if the installer's record of the boot image cannot be read.
    pub no_note: bool,
    /// True if the wall clock is far ahead.
    pub ahead: bool,
    /// True if the wall clock was far ahead when the last turn failed.
    pub turn_ahead: bool,
    /// True if a rollback is queued: the next boot uses the previous image, unless a staged image is finalized.
    pub queued: bool,
    /// True if a shutdown is scheduled.
    pub scheduled: bool,
    /// True if pods cannot be evicted.
    pub blocked: bool,
    /// True if the staged image cannot be locked.
    pub no_lock: bool,
    /// True if the staged image cannot be removed.
    pub no_unstage: bool,
    /// True if finalization failed at the last shutdown.
    pub unfinalized: bool,
    /// Bit set of failed images.
    pub failed: u8,
    /// An image that was committed but did not boot, and how often.
    pub not_applied: (Image, u8),
    /// Last image staged by Berth.
    pub ours: Image,
    /// Image whose last pull failed or was canceled, in the agent's memory.
    pub incomplete: Image,
    /// Image of the last turn, if the turn failed.
    pub turn: Image,
    /// True during the backoff after a failed turn.
    pub backoff: bool,
    /// True during the backoff after a failed pull.
    pub pull_backoff: bool,
    /// The last retry token that was applied.
    pub token: u8,
    /// Target that booted in this turn but is not proven.
    pub tried: Image,
    /// Target whose boot the agent began to undo in this turn.
    pub undone: Image,
    /// True if the agent began to undo the running boot.
    pub undoes: bool,
    /// True if the berth was relicensed under the running boot.
    pub relicensed: bool,
    /// Start of the drain.
    pub drain: Begun,
    /// Start of the proof of the running boot.
    pub proof: Begun,
    /// Result of a pull that the agent does not know yet.
    pub ended: Ended,
    /// The agent's memory on disk. `None` if it equals the memory of the process.
    pub disk: Option<Memory>,
}

/// The agent's memory, stored on the host's disk.
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
    undone: Image,
    undoes: bool,
    relicensed: bool,
    drain: Begun,
    proof: Begun,
}

impl Host {
    /// Returns the current memory of the agent.
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
            undone: self.undone,
            undoes: self.undoes,
            relicensed: self.relicensed,
            drain: self.drain,
            proof: self.proof,
        }
    }

    /// Reads the memory from disk, like a new process of the agent.
    pub fn recall(&mut self) {
        if let Some(disk) = self.disk.take() {
            self.remember(disk);
        }
    }

    /// Replaces the memory of the agent.
    pub fn remember(&mut self, memory: Memory) {
        (self.failed, self.not_applied) = (memory.failed, memory.not_applied);
        (self.ours, self.incomplete, self.tried) = (memory.ours, memory.incomplete, memory.tried);
        (self.turn, self.backoff, self.token) = (memory.turn, memory.backoff, memory.token);
        (self.undone, self.undoes) = (memory.undone, memory.undoes);
        (self.relicensed, self.drain, self.proof) = (memory.relicensed, memory.drain, memory.proof);
    }

    /// Ends the backoffs. The backoff after a turn stays if the wall clock was set back since: its end is then far ahead.
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

    /// Lets the timeout of a drain pass.
    pub fn drain_is_over(&mut self) {
        self.drain = Begun::LongAgo;
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.drain != Begun::No) {
            disk.drain = Begun::LongAgo;
        }
    }

    /// Lets the timeout of a proof pass.
    pub fn proof_is_over(&mut self) {
        self.proof = Begun::LongAgo;
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.proof != Begun::No) {
            disk.proof = Begun::LongAgo;
        }
    }

    /// Stores the memory, if the disk is writable. `before` is the memory before the change.
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

/// How long ago something began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Begun {
    /// Not begun.
    #[default]
    No,
    /// Recently.
    Lately,
    /// Longer ago than its timeout.
    LongAgo,
}

/// Result of a pull.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Ended {
    /// No pull has ended.
    #[default]
    No,
    /// The pull of this image succeeded.
    Well(Image),
    /// The pull of this image failed.
    Badly(Image),
}
