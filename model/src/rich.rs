//! Converts between the model's small numbers and the real types.

use std::sync::{OnceLock, PoisonError, RwLock};

use berth_api::berth::{self, BerthState, ClosedReason, HoldPhase, Holding};
use berth_api::{BootId, Digest, NodeName, NodeUid, PoolName};
use jiff::{SignedDuration, Timestamp};

use crate::state::{Berth, Closed, Held, Image, Lease, NO_NUMBER, NONE, Number, Offer, Phase, Until};

/// Time of every step and every plan.
pub const NOW: Timestamp = Timestamp::constant(1_000_000_000, 0);

/// End of the window that is open at [`NOW`], in worlds with windows.
pub const CLOSES: Timestamp = Timestamp::constant(1_000_036_800, 0);

/// Stands for the controller's own epoch; [`OTHER_EPOCH`] stands for all other epochs.
pub const OWN_EPOCH: u64 = 7;
pub const OTHER_EPOCH: u64 = 6;

static WORDS: RwLock<Vec<String>> = RwLock::new(vec![]);

/// Returns the number that stands for a text; 0 for `None`.
pub fn number(text: Option<&str>) -> u8 {
    let Some(text) = text else { return 0 };
    let mut words = WORDS.write().unwrap_or_else(PoisonError::into_inner);
    let at = words.iter().position(|w| w == text).unwrap_or_else(|| {
        words.push(text.to_owned());
        words.len() - 1
    });
    u8::try_from(at + 1).unwrap_or(u8::MAX)
}

pub fn word(number: u8) -> Option<String> {
    let words = WORDS.read().unwrap_or_else(PoisonError::into_inner);
    words.get(usize::from(number).checked_sub(1)?).cloned()
}

pub fn digest(image: Image) -> Digest {
    digest_of(image).clone()
}

pub fn digest_of(image: Image) -> &'static Digest {
    &digests()[usize::from(image)]
}

fn digests() -> &'static [Digest] {
    static KNOWN: OnceLock<Vec<Digest>> = OnceLock::new();
    KNOWN.get_or_init(|| (0..=Image::MAX).map(made).collect())
}

#[expect(clippy::expect_used, reason = "the text is well formed")]
fn made(image: Image) -> Digest {
    format!("sha256:{image:064x}").parse().expect("64 hex digits")
}

/// Returns the digest of an image; `None` for 0.
pub fn some_digest(image: Image) -> Option<Digest> {
    (image != 0).then(|| digest(image))
}

/// Returns the number of the image with this digest; 0 for `None`.
pub fn image(digest: Option<&Digest>) -> Image {
    let at = digest.and_then(|d| digests().binary_search(d).ok());
    at.and_then(|at| Image::try_from(at).ok()).unwrap_or(0)
}

pub fn name(node: Number) -> NodeName {
    NodeName::new(format!("n{node}"))
}

pub fn node(name: Option<&NodeName>) -> Number {
    name.and_then(|n| n.as_str().strip_prefix('n')?.parse().ok())
        .unwrap_or(NO_NUMBER)
}

pub fn uid(node: Number, generation: u8) -> NodeUid {
    NodeUid::new(format!("{node}.{generation}"))
}

/// Returns the number of a Node among all Nodes that have had its name, from its UID.
pub fn generation(uid: &NodeUid) -> u8 {
    uid.as_str()
        .split_once('.')
        .and_then(|(_, g)| g.parse().ok())
        .unwrap_or(NONE)
}

/// Returns the ID of the boot that ran this number of boots ago. Every boot of the model is a soft reboot of one
/// kernel. This is the harder case, because a report from an earlier boot then has the same kernel boot ID.
pub fn boot(boot: u8) -> BootId {
    BootId::after_soft_reboots(KERNEL, 1000 - u32::from(boot))
}

/// Reverses [`boot`].
fn small_boot(boot: &BootId) -> u8 {
    (0..NONE).find(|number| self::boot(*number) == *boot).unwrap_or(NONE)
}

/// Boot ID that every simulated kubelet reports for its kernel.
pub const KERNEL: &str = "k";

/// Time when the running userspace began.
pub const BEGAN: Timestamp = NOW;

pub fn pool(pool: u8) -> PoolName {
    let letter = (pool != NONE).then(|| char::from(b'a'.wrapping_add(pool)));
    letter.map_or_else(|| PoolName::from("none"), |letter| PoolName::new(letter.to_string()))
}

pub fn pool_number(name: &PoolName) -> u8 {
    match name.as_str().as_bytes() {
        [letter] => letter.wrapping_sub(b'a'),
        _ => NONE,
    }
}

fn until(until: Until) -> Option<Timestamp> {
    match until {
        Until::Ever => None,
        Until::Close => Some(CLOSES),
        Until::Over => Some(NOW - SignedDuration::from_secs(1)),
    }
}

fn small_until(until: Option<Timestamp>) -> Until {
    match until {
        None => Until::Ever,
        Some(at) if at > NOW => Until::Close,
        Some(_) => Until::Over,
    }
}

pub fn phase(phase: Phase) -> HoldPhase {
    match phase {
        Phase::Taken => HoldPhase::Taken,
        Phase::Committed => HoldPhase::Committed,
        Phase::Releasing(outcome) => HoldPhase::Releasing(outcome),
    }
}

/// Returns the berth in a Lease; `None` if the Lease does not exist.
pub fn berth(at: (u8, Number), lease: &Lease, epoch: u64) -> Option<berth::Berth> {
    let state = match lease.is {
        Berth::Missing => return None,
        Berth::Closed(c) => BerthState::Closed(berth::Closed {
            reason: c.reason,
            last_node: (c.last != NO_NUMBER).then(|| name(c.last)),
            last_target: some_digest(c.target),
            outcome: c.outcome,
        }),
        Berth::Offered(o) => BerthState::Offered(berth::Offer {
            node: name(o.node),
            uid: uid(o.node, o.uid),
            target: digest(o.target),
            open_until: until(o.until),
        }),
        Berth::Held(h) => BerthState::Held(Holding {
            node: name(h.node),
            uid: uid(h.node, h.uid),
            target: digest(h.target),
            from: some_digest(h.from),
            boot_id: boot(h.boot),
            phase: phase(h.phase),
            revoke: word(h.revoke),
            open_until: until(h.until),
        }),
    };
    Some(berth::Berth {
        pool: pool(at.0),
        index: u32::from(at.1),
        epoch,
        state,
    })
}

/// Converts a berth to numbers of the model, without the epoch.
pub fn small(berth: &berth::Berth) -> Berth {
    match &berth.state {
        BerthState::Closed(c) => Berth::Closed(
            Closed {
                reason: c.reason,
                last: node(c.last_node.as_ref()),
                target: image(c.last_target.as_ref()),
                outcome: c.outcome,
            }
            .kept(),
        ),
        BerthState::Offered(o) => Berth::Offered(Offer {
            node: node(Some(&o.node)),
            uid: generation(&o.uid),
            target: image(Some(&o.target)),
            until: small_until(o.open_until),
        }),
        BerthState::Held(h) => Berth::Held(Held {
            node: node(Some(&h.node)),
            uid: generation(&h.uid),
            target: image(Some(&h.target)),
            from: image(h.from.as_ref()),
            boot: small_boot(&h.boot_id),
            phase: match h.phase {
                HoldPhase::Taken => Phase::Taken,
                HoldPhase::Committed => Phase::Committed,
                HoldPhase::Releasing(outcome) => Phase::Releasing(outcome),
            },
            revoke: number(h.revoke.as_deref()),
            until: small_until(h.open_until),
        }),
    }
}

/// Returns the berth with other values in the fields that must not affect the plan.
pub fn otherwise(berth: &berth::Berth) -> berth::Berth {
    let mut other = berth.clone();
    if let BerthState::Closed(closed) = &mut other.state
        && closed.outcome.is_none()
        && closed.reason != ClosedReason::Shrunk
    {
        *closed = berth::Closed {
            reason: ClosedReason::Withdrawn,
            last_node: Some(name(0)),
            last_target: Some(digest(2)),
            outcome: Some(berth::Outcome::Updated),
        };
    }
    other
}
