//! The ways in which bootc keeps the deployments of a host, and on which hosts Berth therefore begins nothing.

/// Way in which bootc keeps the deployments of a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// In ostree. Its tools lock what is staged at any time.
    #[default]
    Ostree,
    /// In composefs, without ostree. Only bootc itself locks an image there, and only while it stages it.
    Composefs,
}

impl Backend {
    /// Says whether what is staged can be locked where it stands. Elsewhere it is removed, and staged anew.
    pub fn locks_what_is_staged(self) -> bool {
        self == Self::Ostree
    }
}

/// The bootc of a host, and what the agent was told about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Means<'a> {
    /// Version of bootc.
    pub bootc: &'a str,
    /// It has `bootc switch --download-only`.
    pub download_only: bool,
    /// Whoever started the agent asks for updates of composefs hosts, which are experimental.
    pub experimental_composefs: bool,
}

/// Reason for which nothing is begun on a host with this backend, for people; `None` where it is updated. Without a lock
/// from the first instant, any reboot would apply what is staged (I3).
pub fn refusal(backend: Backend, means: &Means<'_>) -> Option<String> {
    let opt_in = "start the agent with --experimental-composefs";
    match (backend, means.download_only, means.experimental_composefs) {
        (Backend::Ostree, ..) | (Backend::Composefs, true, true) => None,
        (Backend::Composefs, false, _) => Some(format!(
            "the host uses bootc's composefs backend, and its bootc {} cannot lock there what it stages: wait for the release \
             after 1.16.9, whose `bootc switch` has --download-only; then {opt_in}",
            means.bootc
        )),
        (Backend::Composefs, true, false) => Some(format!(
            "the host uses bootc's composefs backend, on which updates are experimental: {opt_in} to have them"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_composefs_host_needs_a_bootc_that_locks_and_somebody_who_asks_for_it() {
        for (backend, download_only, experimental_composefs, words) in [
            (Backend::Ostree, false, false, None),
            (Backend::Ostree, true, false, None),
            (Backend::Composefs, false, false, Some("after 1.16.9")),
            (Backend::Composefs, false, true, Some("its bootc 1.16.8 cannot")),
            (Backend::Composefs, true, false, Some("--experimental-composefs")),
            (Backend::Composefs, true, true, None),
        ] {
            let means = Means {
                bootc: "1.16.8",
                download_only,
                experimental_composefs,
            };
            let refused = refusal(backend, &means);
            assert_eq!(refused.is_some(), words.is_some(), "{backend:?} {means:?}");
            assert!(
                refused.is_none_or(|r| words.is_some_and(|w| r.contains(w))),
                "{backend:?} {means:?}"
            );
        }
    }
}
