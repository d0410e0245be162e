//! Chooses a host's backend, bootc or rpm-ostree, from the host's state, the pool's rule, and the backend of an
//! unfinished update.
//!
//! An update keeps the backend that began it, even if the pool's rule changes or the agent restarts. The update lasts
//! until its staged image is gone and its turn has ended. If the host can no longer use that backend, Berth chooses
//! again.

use berth_api::backend::{Backend, BackendRule, MAX_PACKAGE_NAME, MAX_PACKAGES, NodeBackend};
use berth_api::foreign::bounded;
use berth_api::reasons;

use crate::agent::reason::Reason;

/// State of bootc on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bootc {
    /// bootc can update the host, which keeps its deployments in ostree.
    Usable,
    /// bootc can update the host, but would drop the layered packages of a staged deployment.
    LayersStaged,
    /// bootc reports that the host keeps its deployments in composefs.
    Composefs,
    /// bootc reports layered packages on the booted deployment.
    Layered,
    /// `bootc status` shows no booted image: the host was not installed as a bootc host.
    NotBooted,
    /// bootc is not installed.
    Missing,
    /// bootc is older than the oldest supported version. Holds the installed version.
    TooOld(String),
    /// bootc did not answer, perhaps only temporarily. Holds the reason and the message.
    Silent(Reason, String),
}

/// Facts that [`choose`] decides from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options<'a> {
    /// The host's bootc.
    pub bootc: &'a Bootc,
    /// True if the host has rpm-ostree's daemon.
    pub rpm_ostree: bool,
    /// The pool's rule for choosing a backend.
    pub rule: BackendRule,
    /// Backend of an unfinished update; `None` if no update is unfinished.
    pub begun: Option<Backend>,
    /// Layered packages of the booted deployment, if rpm-ostree can list them.
    pub packages: &'a [String],
}

/// The chosen backend, or why Berth uses none on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// The backend, and why it was chosen.
    Take(Backend, CommonReason),
    /// Berth cannot update the host and changes nothing there. Holds the reason and message for the condition
    /// `NodeDegraded`.
    Refuse(Reason, String),
}

reasons! {
    /// Why a backend was chosen, as the node's status shows it.
    pub enum CommonReason {
        /// bootc can update the host.
        BootcUsable,
        /// The host keeps its deployments in composefs, which rpm-ostree does not support.
        Composefs,
        /// The host has no bootc.
        BootcMissing,
        /// The host's bootc is too old.
        BootcTooOld,
        /// `bootc status` shows no booted image: the host was not installed as a bootc host.
        NotBootcHost,
        /// The booted or the staged deployment has layered packages, which bootc would drop.
        LayeredHost,
        /// The pool's `host.backend` names this backend.
        AskedByPool,
        /// An update was begun with this backend and must be finished with it.
        Begun,
    }
}

impl CommonReason {
    /// Returns the end of the sentence "updated by bootc: …", which people read in the node's status.
    pub fn words(self) -> &'static str {
        match self {
            Self::BootcUsable => "the host's bootc can update it",
            Self::Composefs => "the host keeps its deployments in composefs",
            Self::BootcMissing => "the host has no bootc",
            Self::BootcTooOld => "the host's bootc is too old",
            Self::NotBootcHost => "bootc status shows no booted image on this host",
            Self::LayeredHost => "packages are layered on the host's image",
            Self::AskedByPool => "the pool's host.backend selects it",
            Self::Begun => "an unfinished update began with it",
        }
    }
}

/// Chooses a host's backend. Prefers the backend of an unfinished update if the host still has it. Otherwise, the
/// pool's rule decides.
pub fn choose(options: &Options<'_>) -> Choice {
    match (by_begun_update(options), by_host_and_pool(options)) {
        // The pool's rule also chooses the backend of the unfinished update. Report the reason of that choice instead
        // of `Begun`.
        (Some(Choice::Take(begun, _)), Choice::Take(free, why)) if begun == free => Choice::Take(free, why),
        (Some(begun), _) => begun,
        (None, free) => free,
    }
}

fn by_begun_update(options: &Options<'_>) -> Option<Choice> {
    match (options.begun, options.bootc) {
        (Some(Backend::RpmOstree), _) if options.rpm_ostree => {
            Some(Choice::Take(Backend::RpmOstree, CommonReason::Begun))
        }
        (Some(Backend::Bootc), Bootc::Usable | Bootc::Composefs) => {
            Some(Choice::Take(Backend::Bootc, CommonReason::Begun))
        }
        (Some(Backend::Bootc), Bootc::Silent(..)) => Some(bootc(options)),
        // The host no longer has the backend of the unfinished update. For example, the host rebooted into an image
        // without the tool.
        _ => None,
    }
}

fn by_host_and_pool(options: &Options<'_>) -> Choice {
    match options.rule {
        BackendRule::RpmOstree if *options.bootc == Bootc::Composefs => {
            let why = "the pool's host.backend is RpmOstree, but the host uses bootc's composefs backend, which rpm-ostree does \
                       not support: set host.backend to Auto or Bootc";
            Choice::Refuse(Reason::ComposefsNotSupported, why.to_owned())
        }
        BackendRule::RpmOstree if options.rpm_ostree => Choice::Take(Backend::RpmOstree, CommonReason::AskedByPool),
        BackendRule::RpmOstree => {
            let why = "the pool's host.backend is RpmOstree, but the host has no rpm-ostreed.service: set host.backend to Auto or \
                       Bootc, or use an image with rpm-ostree";
            Choice::Refuse(Reason::RpmOstreeMissing, why.to_owned())
        }
        BackendRule::Bootc => bootc(options),
        BackendRule::Auto => match instead_of_bootc(options) {
            Some(why) if options.rpm_ostree => Choice::Take(Backend::RpmOstree, why),
            _ => bootc(options),
        },
    }
}

/// Returns why `Auto` prefers rpm-ostree to bootc on this host. `None` if bootc can update the host, or did not answer
/// this time.
fn instead_of_bootc(options: &Options<'_>) -> Option<CommonReason> {
    match options.bootc {
        Bootc::Usable | Bootc::Composefs | Bootc::Silent(..) => None,
        Bootc::Layered | Bootc::LayersStaged => Some(CommonReason::LayeredHost),
        Bootc::NotBooted => Some(CommonReason::NotBootcHost),
        Bootc::Missing => Some(CommonReason::BootcMissing),
        Bootc::TooOld(_) => Some(CommonReason::BootcTooOld),
    }
}

fn bootc(options: &Options<'_>) -> Choice {
    let why = match options.rule {
        BackendRule::Bootc => CommonReason::AskedByPool,
        _ => CommonReason::BootcUsable,
    };
    // Advice at the end of an error. On a host with rpm-ostree, this error occurs only under the pool's rule `Bootc`:
    // `Auto` would use rpm-ostree.
    let remedy = if options.rpm_ostree {
        "set host.backend: Auto in the pool to update the host with rpm-ostree"
    } else {
        "the host has no rpm-ostree to use instead of bootc"
    };
    let (reason, message) = match options.bootc {
        Bootc::Usable | Bootc::LayersStaged => return Choice::Take(Backend::Bootc, why),
        Bootc::Composefs => return Choice::Take(Backend::Bootc, CommonReason::Composefs),
        Bootc::Layered => {
            let what = if options.packages.is_empty() {
                "has packages layered by rpm-ostree, which an update by bootc would drop".to_owned()
            } else {
                format!(
                    "has packages layered by rpm-ostree, which an update by bootc would drop: {}",
                    options.packages.join(", ")
                )
            };
            let message = format!(
                "the booted deployment {what}; {remedy}, or run `rpm-ostree reset` on the host to remove the packages"
            );
            (Reason::LayeredHost, message)
        }
        Bootc::NotBooted => {
            let what = "bootc status reports no booted deployment: the host was not installed as a bootc host";
            (Reason::NotBootcHost, format!("{what}; {remedy}"))
        }
        Bootc::Missing => (
            Reason::BootcMissing,
            format!("the host has no /usr/bin/bootc; {remedy}"),
        ),
        Bootc::TooOld(version) => {
            let what = format!("bootc {version} is too old; 1.12.1 or newer is needed");
            (Reason::BootcTooOld, format!("{what}; {remedy}"))
        }
        Bootc::Silent(reason, message) => (*reason, message.clone()),
    };
    Choice::Refuse(reason, message)
}

/// Returns the entry `status.backend` of the BootcNode, with at most [`MAX_PACKAGES`] packages.
pub fn shown(name: Backend, why: CommonReason, packages: &[String]) -> NodeBackend {
    let packages = packages.iter().take(MAX_PACKAGES);
    NodeBackend {
        name,
        reason: why.as_str().to_owned(),
        layered_packages: packages.map(|name| bounded(name, MAX_PACKAGE_NAME)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [fn() -> Bootc; 8] = [
        || Bootc::Usable,
        || Bootc::LayersStaged,
        || Bootc::Composefs,
        || Bootc::Layered,
        || Bootc::NotBooted,
        || Bootc::Missing,
        old,
        silent,
    ];

    fn old() -> Bootc {
        Bootc::TooOld("1.1.0".to_owned())
    }

    fn silent() -> Bootc {
        Bootc::Silent(Reason::StatusFailed, "no".to_owned())
    }

    fn choice(bootc: &Bootc, rpm_ostree: bool, rule: BackendRule, begun: Option<Backend>) -> Choice {
        choose(&Options {
            bootc,
            rpm_ostree,
            rule,
            begun,
            packages: &["htop".to_owned(), "strace".to_owned()],
        })
    }

    #[test]
    fn host_pool_and_begun_update_choose_the_backend() {
        use Backend::{Bootc as B, RpmOstree as R};
        use BackendRule::{Auto, Bootc as OnlyB, RpmOstree as OnlyR};
        for (bootc, rpm_ostree, rule, begun, expected) in [
            (Bootc::Usable, true, Auto, None, Ok((B, CommonReason::BootcUsable))),
            (Bootc::Usable, false, Auto, None, Ok((B, CommonReason::BootcUsable))),
            (Bootc::Composefs, true, Auto, None, Ok((B, CommonReason::Composefs))),
            (Bootc::Missing, true, Auto, None, Ok((R, CommonReason::BootcMissing))),
            (Bootc::Missing, false, Auto, None, Err(Reason::BootcMissing)),
            (old(), true, Auto, None, Ok((R, CommonReason::BootcTooOld))),
            (old(), false, Auto, None, Err(Reason::BootcTooOld)),
            (Bootc::NotBooted, true, Auto, None, Ok((R, CommonReason::NotBootcHost))),
            (Bootc::NotBooted, false, Auto, None, Err(Reason::NotBootcHost)),
            (Bootc::Layered, true, Auto, None, Ok((R, CommonReason::LayeredHost))),
            (Bootc::Layered, false, Auto, None, Err(Reason::LayeredHost)),
            (
                Bootc::LayersStaged,
                true,
                Auto,
                None,
                Ok((R, CommonReason::LayeredHost)),
            ),
            (
                Bootc::LayersStaged,
                false,
                Auto,
                None,
                Ok((B, CommonReason::BootcUsable)),
            ),
            // A bootc that does not answer may have begun the current update.
            (silent(), true, Auto, None, Err(Reason::StatusFailed)),
            (Bootc::Usable, true, OnlyB, None, Ok((B, CommonReason::AskedByPool))),
            (Bootc::Layered, true, OnlyB, None, Err(Reason::LayeredHost)),
            (Bootc::Missing, true, OnlyB, None, Err(Reason::BootcMissing)),
            (Bootc::Usable, true, OnlyR, None, Ok((R, CommonReason::AskedByPool))),
            (Bootc::Missing, true, OnlyR, None, Ok((R, CommonReason::AskedByPool))),
            (silent(), true, OnlyR, None, Ok((R, CommonReason::AskedByPool))),
            (Bootc::Usable, false, OnlyR, None, Err(Reason::RpmOstreeMissing)),
            (Bootc::Composefs, true, OnlyR, None, Err(Reason::ComposefsNotSupported)),
            (Bootc::Usable, true, Auto, Some(R), Ok((R, CommonReason::Begun))),
            (Bootc::Usable, true, OnlyB, Some(R), Ok((R, CommonReason::Begun))),
            (Bootc::Usable, true, OnlyR, Some(B), Ok((B, CommonReason::Begun))),
            (Bootc::Composefs, true, OnlyR, Some(B), Ok((B, CommonReason::Begun))),
            (silent(), true, Auto, Some(B), Err(Reason::StatusFailed)),
            (silent(), true, OnlyR, Some(B), Err(Reason::StatusFailed)),
            (Bootc::Usable, true, Auto, Some(B), Ok((B, CommonReason::BootcUsable))),
            (Bootc::Composefs, true, Auto, Some(B), Ok((B, CommonReason::Composefs))),
            (Bootc::Layered, true, Auto, Some(R), Ok((R, CommonReason::LayeredHost))),
            (Bootc::Missing, true, OnlyR, Some(R), Ok((R, CommonReason::AskedByPool))),
            // The new image lacks the backend that began the update.
            (Bootc::Usable, false, Auto, Some(R), Ok((B, CommonReason::BootcUsable))),
            (Bootc::Missing, true, Auto, Some(B), Ok((R, CommonReason::BootcMissing))),
            (Bootc::Usable, false, OnlyR, Some(R), Err(Reason::RpmOstreeMissing)),
            // Another deployment, with packages, was staged over bootc's.
            (
                Bootc::LayersStaged,
                true,
                Auto,
                Some(B),
                Ok((R, CommonReason::LayeredHost)),
            ),
            (Bootc::Layered, true, Auto, Some(B), Ok((R, CommonReason::LayeredHost))),
        ] {
            let found = match choice(&bootc, rpm_ostree, rule, begun) {
                Choice::Take(backend, why) => Ok((backend, why)),
                Choice::Refuse(reason, _) => Err(reason),
            };
            assert_eq!(found, expected, "{bootc:?} {rpm_ostree} {rule:?} {begun:?}");
        }
    }

    #[test]
    fn rpm_ostree_never_takes_a_composefs_host() {
        for rule in [BackendRule::Auto, BackendRule::Bootc, BackendRule::RpmOstree] {
            for begun in [None, Some(Backend::Bootc)] {
                let chosen = choice(&Bootc::Composefs, true, rule, begun);
                assert!(
                    !matches!(chosen, Choice::Take(Backend::RpmOstree, _)),
                    "{rule:?} {begun:?}"
                );
            }
        }
    }

    #[test]
    fn every_refusal_names_the_loss_and_the_fix() {
        let Choice::Refuse(_, message) = choice(&Bootc::Layered, true, BackendRule::Bootc, None) else {
            panic!("bootc would drop packages")
        };
        assert!(
            message.contains("htop, strace") && message.contains("host.backend: Auto"),
            "{message}"
        );
        for bootc in ALL.map(|make| make()) {
            for rpm_ostree in [false, true] {
                for rule in [BackendRule::Auto, BackendRule::Bootc, BackendRule::RpmOstree] {
                    if let Choice::Refuse(_, message) = choice(&bootc, rpm_ostree, rule, None) {
                        let said = ["rpm-ostree", "no"].iter().any(|word| message.contains(word));
                        assert!(said && !message.is_empty(), "{bootc:?} {rule:?}: {message}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_stored_reason_has_its_words() {
        for why in CommonReason::ALL {
            assert_eq!(CommonReason::from_word(why.as_str()), Some(*why));
            let alike = CommonReason::ALL.iter().filter(|other| other.words() == why.words());
            assert_eq!(alike.count(), 1, "{}", why.words());
        }
        assert_eq!(CommonReason::from_word("Nonsense"), None);
    }

    #[test]
    fn a_status_shows_a_bounded_list() {
        let names: Vec<String> = (0..100).map(|n| format!("{n:0>300}")).collect();
        let shown = shown(Backend::RpmOstree, CommonReason::LayeredHost, &names);
        assert_eq!(shown.layered_packages.len(), MAX_PACKAGES);
        assert!(shown.layered_packages.iter().all(|name| name.len() == MAX_PACKAGE_NAME));
    }
}
