//! Choice of the backend of a host: bootc or rpm-ostree, by what the host has, what its pool asks for, and what was begun.
//!
//! An update is ended with the tool that began it: the backend that staged what Berth has staged, or with which a turn goes
//! on, stays until that ends, whatever the pool asks for meanwhile and however often the agent is started anew. Only where the
//! host has lost that tool, another one goes on.

use berth_api::backend::{Backend, BackendRule, MAX_PACKAGE_NAME, MAX_PACKAGES, NodeBackend};

use crate::agent::reason::Reason;

/// Bootc of a host, as far as a choice depends on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bootc {
    /// Describes a host that it can update, whose deployments are ostree's.
    Usable,
    /// The same; but somebody has staged a deployment with layered packages, which it would drop.
    LayersStaged,
    /// Describes a host that keeps its deployments in composefs.
    Composefs,
    /// Says that packages are layered on what runs.
    Layered,
    /// Says that the host was not booted from an image.
    NotBooted,
    /// There is none.
    Missing,
    /// Is older than the oldest supported one; its version.
    TooOld(String),
    /// Could not be asked, for this reason, in these words. That may pass.
    Silent(Reason, String),
}

/// Everything that a choice depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options<'a> {
    /// The host's bootc.
    pub bootc: &'a Bootc,
    /// The host has rpm-ostree's daemon.
    pub rpm_ostree: bool,
    /// The pool's rule.
    pub rule: BackendRule,
    /// Backend of what was begun and has not ended.
    pub begun: Option<Backend>,
    /// Packages that are layered on what runs, where rpm-ostree can tell.
    pub packages: &'a [String],
}

/// Backend of a host, or the reason for which it has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// This one, for this reason.
    Take(Backend, Why),
    /// None: nothing is done on the host.
    Refuse(Reason, String),
}

/// Reason for a backend, as the status of a node shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// bootc can do it.
    BootcUsable,
    /// The host keeps its deployments in composefs, of which rpm-ostree knows nothing.
    Composefs,
    /// The host has no bootc.
    BootcMissing,
    /// The host's bootc is too old.
    BootcTooOld,
    /// The host was not booted from an image by bootc.
    NotBootcHost,
    /// Packages are layered on the image, which bootc would drop.
    LayeredHost,
    /// The pool asks for it.
    AskedByPool,
    /// An update was begun with it, and is ended with it.
    Begun,
}

impl Why {
    /// The word, as the API shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::BootcUsable => "BootcUsable",
            Self::Composefs => "Composefs",
            Self::BootcMissing => "BootcMissing",
            Self::BootcTooOld => "BootcTooOld",
            Self::NotBootcHost => "NotBootcHost",
            Self::LayeredHost => "LayeredHost",
            Self::AskedByPool => "AskedByPool",
            Self::Begun => "Begun",
        }
    }

    /// The reason that is written like this; `None` for one that another version of the agent wrote.
    pub fn known(stored: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.as_str() == stored)
    }

    const ALL: [Self; 8] = [
        Self::BootcUsable,
        Self::Composefs,
        Self::BootcMissing,
        Self::BootcTooOld,
        Self::NotBootcHost,
        Self::LayeredHost,
        Self::AskedByPool,
        Self::Begun,
    ];

    /// The reason in words, for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::BootcUsable => "the host has a bootc that can do it",
            Self::Composefs => "the host keeps its deployments in composefs",
            Self::BootcMissing => "the host has no bootc",
            Self::BootcTooOld => "the host's bootc is too old",
            Self::NotBootcHost => "the host was not booted from an image by bootc",
            Self::LayeredHost => "packages are layered on its image",
            Self::AskedByPool => "the pool asks for it",
            Self::Begun => "an update was begun with it",
        }
    }
}

/// The backend of a host.
pub fn choose(options: &Options<'_>) -> Choice {
    match (by_what_was_begun(options), by_host_and_pool(options)) {
        // What was begun is a reason only where another choice would be made without it.
        (Some(Choice::Take(begun, _)), Choice::Take(free, why)) if begun == free => Choice::Take(free, why),
        (Some(begun), _) => begun,
        (None, free) => free,
    }
}

fn by_what_was_begun(options: &Options<'_>) -> Option<Choice> {
    match (options.begun, options.bootc) {
        (Some(Backend::RpmOstree), _) if options.rpm_ostree => Some(Choice::Take(Backend::RpmOstree, Why::Begun)),
        (Some(Backend::Bootc), Bootc::Usable | Bootc::Composefs) => Some(Choice::Take(Backend::Bootc, Why::Begun)),
        (Some(Backend::Bootc), Bootc::Silent(..)) => Some(bootc(options)),
        // What was begun cannot be ended with a tool that the host has no more, such as after a reboot into an image without it.
        // Or somebody has replaced what bootc had staged.
        _ => None,
    }
}

fn by_host_and_pool(options: &Options<'_>) -> Choice {
    match options.rule {
        BackendRule::RpmOstree if *options.bootc == Bootc::Composefs => {
            let why = "host.backend of the pool is RpmOstree, and the host uses bootc's composefs backend, of which rpm-ostree \
                       knows nothing: write Auto or Bootc";
            Choice::Refuse(Reason::ComposefsNotSupported, why.to_owned())
        }
        BackendRule::RpmOstree if options.rpm_ostree => Choice::Take(Backend::RpmOstree, Why::AskedByPool),
        BackendRule::RpmOstree => {
            let why = "host.backend of the pool is RpmOstree, and the host has no rpm-ostreed.service: write Auto or Bootc, or use \
                       an image with rpm-ostree";
            Choice::Refuse(Reason::RpmOstreeMissing, why.to_owned())
        }
        BackendRule::Bootc => bootc(options),
        BackendRule::Auto => match instead_of_bootc(options) {
            Some(why) if options.rpm_ostree => Choice::Take(Backend::RpmOstree, why),
            _ => bootc(options),
        },
    }
}

/// Reason for which rpm-ostree is the better one. A bootc that only gave no answer now is none: that passes.
fn instead_of_bootc(options: &Options<'_>) -> Option<Why> {
    match options.bootc {
        Bootc::Usable | Bootc::Composefs | Bootc::Silent(..) => None,
        Bootc::Layered | Bootc::LayersStaged => Some(Why::LayeredHost),
        Bootc::NotBooted => Some(Why::NotBootcHost),
        Bootc::Missing => Some(Why::BootcMissing),
        Bootc::TooOld(_) => Some(Why::BootcTooOld),
    }
}

fn bootc(options: &Options<'_>) -> Choice {
    let why = match options.rule {
        BackendRule::Bootc => Why::AskedByPool,
        _ => Why::BootcUsable,
    };
    // Only a pool that rules out rpm-ostree comes here on a host that has it.
    let remedy = match options.rpm_ostree {
        true => "write host.backend: Auto into the pool, so that rpm-ostree updates the host",
        false => "the host has no rpm-ostree that could update it in place of bootc",
    };
    let (reason, message) = match options.bootc {
        Bootc::Usable | Bootc::LayersStaged => return Choice::Take(Backend::Bootc, why),
        Bootc::Composefs => return Choice::Take(Backend::Bootc, Why::Composefs),
        Bootc::Layered => {
            let what = match options.packages.is_empty() {
                true => "has packages layered by rpm-ostree, which an update by bootc would drop".to_owned(),
                false => format!(
                    "has packages layered by rpm-ostree, which an update by bootc would drop: {}",
                    options.packages.join(", ")
                ),
            };
            let message =
                format!("the booted deployment {what}; {remedy}, or run `rpm-ostree reset` on the host first");
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

/// The backend, as the status of a node shows it.
pub fn shown(name: Backend, why: Why, packages: &[String]) -> NodeBackend {
    let packages = packages.iter().take(MAX_PACKAGES);
    NodeBackend {
        name,
        reason: why.as_str().to_owned(),
        layered_packages: packages
            .map(|name| name.chars().take(MAX_PACKAGE_NAME).collect())
            .collect(),
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
        || Bootc::TooOld("1.1.0".to_owned()),
        || Bootc::Silent(Reason::StatusFailed, "no".to_owned()),
    ];

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
    fn the_host_its_pool_and_what_was_begun_choose_the_backend() {
        use Backend::{Bootc as B, RpmOstree as R};
        use BackendRule::{Auto, Bootc as OnlyB, RpmOstree as OnlyR};
        let old = || Bootc::TooOld("1.1.0".to_owned());
        let silent = || Bootc::Silent(Reason::StatusFailed, "no".to_owned());
        for (bootc, rpm_ostree, rule, begun, expected) in [
            (Bootc::Usable, true, Auto, None, Ok((B, Why::BootcUsable))),
            (Bootc::Usable, false, Auto, None, Ok((B, Why::BootcUsable))),
            (Bootc::Composefs, true, Auto, None, Ok((B, Why::Composefs))),
            (Bootc::Missing, true, Auto, None, Ok((R, Why::BootcMissing))),
            (Bootc::Missing, false, Auto, None, Err(Reason::BootcMissing)),
            (old(), true, Auto, None, Ok((R, Why::BootcTooOld))),
            (old(), false, Auto, None, Err(Reason::BootcTooOld)),
            (Bootc::NotBooted, true, Auto, None, Ok((R, Why::NotBootcHost))),
            (Bootc::NotBooted, false, Auto, None, Err(Reason::NotBootcHost)),
            (Bootc::Layered, true, Auto, None, Ok((R, Why::LayeredHost))),
            (Bootc::Layered, false, Auto, None, Err(Reason::LayeredHost)),
            (Bootc::LayersStaged, true, Auto, None, Ok((R, Why::LayeredHost))),
            (Bootc::LayersStaged, false, Auto, None, Ok((B, Why::BootcUsable))),
            // What gives no answer now may be what began the update that runs.
            (silent(), true, Auto, None, Err(Reason::StatusFailed)),
            (Bootc::Usable, true, OnlyB, None, Ok((B, Why::AskedByPool))),
            (Bootc::Layered, true, OnlyB, None, Err(Reason::LayeredHost)),
            (Bootc::Missing, true, OnlyB, None, Err(Reason::BootcMissing)),
            (Bootc::Usable, true, OnlyR, None, Ok((R, Why::AskedByPool))),
            (Bootc::Missing, true, OnlyR, None, Ok((R, Why::AskedByPool))),
            (silent(), true, OnlyR, None, Ok((R, Why::AskedByPool))),
            (Bootc::Usable, false, OnlyR, None, Err(Reason::RpmOstreeMissing)),
            (Bootc::Composefs, true, OnlyR, None, Err(Reason::ComposefsNotSupported)),
            // Never both in one update.
            (Bootc::Usable, true, Auto, Some(R), Ok((R, Why::Begun))),
            (Bootc::Usable, true, OnlyB, Some(R), Ok((R, Why::Begun))),
            (Bootc::Usable, true, OnlyR, Some(B), Ok((B, Why::Begun))),
            (Bootc::Composefs, true, OnlyR, Some(B), Ok((B, Why::Begun))),
            (silent(), true, Auto, Some(B), Err(Reason::StatusFailed)),
            (silent(), true, OnlyR, Some(B), Err(Reason::StatusFailed)),
            // It would be the same without.
            (Bootc::Usable, true, Auto, Some(B), Ok((B, Why::BootcUsable))),
            (Bootc::Composefs, true, Auto, Some(B), Ok((B, Why::Composefs))),
            (Bootc::Layered, true, Auto, Some(R), Ok((R, Why::LayeredHost))),
            (Bootc::Missing, true, OnlyR, Some(R), Ok((R, Why::AskedByPool))),
            // The new image has only the other one.
            (Bootc::Usable, false, Auto, Some(R), Ok((B, Why::BootcUsable))),
            (Bootc::Missing, true, Auto, Some(B), Ok((R, Why::BootcMissing))),
            (Bootc::Usable, false, OnlyR, Some(R), Err(Reason::RpmOstreeMissing)),
            // Somebody has replaced what bootc had staged.
            (Bootc::LayersStaged, true, Auto, Some(B), Ok((R, Why::LayeredHost))),
            (Bootc::Layered, true, Auto, Some(B), Ok((R, Why::LayeredHost))),
        ] {
            let found = match choice(&bootc, rpm_ostree, rule, begun) {
                Choice::Take(backend, why) => Ok((backend, why)),
                Choice::Refuse(reason, _) => Err(reason),
            };
            assert_eq!(found, expected, "{bootc:?} {rpm_ostree} {rule:?} {begun:?}");
        }
    }

    #[test]
    fn composefs_is_never_given_to_rpm_ostree_unless_that_has_begun() {
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
    fn who_rules_out_rpm_ostree_is_told_what_would_be_lost_and_every_refusal_says_what_to_do() {
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
        for why in Why::ALL {
            assert_eq!(Why::known(why.as_str()), Some(why));
            let alike = Why::ALL.into_iter().filter(|other| other.words() == why.words());
            assert_eq!(alike.count(), 1, "{}", why.words());
        }
        assert_eq!(Why::known("Nonsense"), None);
    }

    #[test]
    fn a_status_shows_a_bounded_list() {
        let names: Vec<String> = (0..100).map(|n| format!("{n:0>300}")).collect();
        let shown = shown(Backend::RpmOstree, Why::LayeredHost, &names);
        assert_eq!(shown.layered_packages.len(), MAX_PACKAGES);
        assert!(shown.layered_packages.iter().all(|name| name.len() == MAX_PACKAGE_NAME));
    }
}
