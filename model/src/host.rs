//! A host: its deployments, its faults, and the agent's memory on its disk.

use crate::number::Image;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Host {
    pub booted: Image,
    /// Image of the rollback deployment.
    pub previous: Image,
    pub staged: Image,
    pub locked: bool,
    pub pull: Image,
    pub down: bool,
    pub inhibited: bool,
    pub silent: bool,
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
    pub scheduled: bool,
    pub blocked: bool,
    /// True if the staged image cannot be locked.
    pub no_lock: bool,
    /// True if the staged image cannot be removed.
    pub no_unstage: bool,
    pub unfinalized: bool,
    /// Bit set of images.
    pub failed: u8,
    /// Image that did not boot although the berth was committed to it, and the number of such reboots.
    pub not_applied: (Image, u8),
    /// Last image that Berth staged.
    pub ours: Image,
    /// Image whose last pull failed or was canceled, as recorded in the agent's memory.
    pub incomplete: Image,
    /// Image of the last turn, if the turn failed.
    pub turn: Image,
    /// True during the backoff after a failed turn.
    pub backoff: bool,
    /// True during the backoff after a failed pull.
    pub pull_backoff: bool,
    /// The last retry token that was applied.
    pub token: u8,
    /// Target that booted in this turn and is not proven yet.
    pub tried: Image,
    /// Target whose boot the agent began to undo in this turn.
    pub undone: Image,
    /// True if the agent began to undo the running boot.
    pub undoes: bool,
    /// True if the agent gave the berth a new target in the running boot.
    pub relicensed: bool,
    /// True if the host had a deployment of the target at the last commit; `None` outside of a turn.
    pub deployed: Option<bool>,
    /// Last target that the host ran and then left without Berth, by booting another image.
    pub fell: Image,
    /// True if the running boot replaced `fell` by another image.
    pub falls: bool,
    /// Running image and image of the rollback deployment, as the agent last saw them.
    pub last: (Image, Image),
    /// Image that ran before the host last booted another image without a berth. The second value is true if the host
    /// left the image by a rollback.
    pub left: (Image, bool),
    /// Start of the drain.
    pub drain: Begun,
    /// Start of the proof of the running boot.
    pub proof: Begun,
    /// Result of the last pull, until the agent has processed that result.
    pub ended: Ended,
    /// The rollback guard.
    pub switch: Switch,
    /// The agent's memory on disk; `None` if it equals the memory in the agent's process.
    pub disk: Option<Memory>,
}

/// The agent's memory on the host's disk.
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
    deployed: Option<bool>,
    fell: Image,
    falls: bool,
    last: (Image, Image),
    left: (Image, bool),
    drain: Begun,
    proof: Begun,
}

impl Host {
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
            deployed: self.deployed,
            fell: self.fell,
            falls: self.falls,
            last: self.last,
            left: self.left,
            drain: self.drain,
            proof: self.proof,
        }
    }

    /// Reads the memory from disk, as a new agent process does.
    pub fn recall(&mut self) {
        if let Some(disk) = self.disk.take() {
            self.remember(disk);
        }
    }

    pub fn remember(&mut self, memory: Memory) {
        (self.failed, self.not_applied) = (memory.failed, memory.not_applied);
        (self.ours, self.incomplete, self.tried) = (memory.ours, memory.incomplete, memory.tried);
        (self.turn, self.backoff, self.token) = (memory.turn, memory.backoff, memory.token);
        (self.undone, self.undoes) = (memory.undone, memory.undoes);
        (self.deployed, self.fell, self.falls) = (memory.deployed, memory.fell, memory.falls);
        (self.last, self.left) = (memory.last, memory.left);
        (self.relicensed, self.drain, self.proof) = (memory.relicensed, memory.drain, memory.proof);
    }

    /// Ends the backoffs. If the wall clock was set back after a failed turn, the turn's backoff remains, because its
    /// end is now far ahead.
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

    pub fn drain_is_over(&mut self) {
        self.drain = Begun::LongAgo;
        if let Some(disk) = self.disk.as_mut().filter(|disk| disk.drain != Begun::No) {
            disk.drain = Begun::LongAgo;
        }
    }

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

/// State of a host's rollback guard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Switch {
    #[default]
    Disarmed,
    /// The guard can roll the host back from the target to the previous image. `booted`: true if the host has rebooted
    /// since the guard was armed.
    Armed {
        target: Image,
        previous: Image,
        booted: bool,
    },
    /// The guard has fired, and rolls the host back from the target. The guard fires only once until it is armed again.
    /// `here`: true if it fired in the running boot.
    Fired { target: Image, here: bool },
}

impl Switch {
    /// Updates the guard at a boot.
    pub fn boots(&mut self) {
        match self {
            Self::Disarmed => {}
            Self::Armed { booted, .. } => *booted = true,
            Self::Fired { here, .. } => *here = false,
        }
    }
}

/// How long ago something began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Begun {
    #[default]
    No,
    Lately,
    /// Longer ago than the timeout.
    LongAgo,
}

/// Result of a pull.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Ended {
    #[default]
    No,
    Well(Image),
    Badly(Image),
}
