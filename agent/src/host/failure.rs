//! Finds a reason in the error message of a host tool.
//!
//! bootc has one exit code for all errors, so only the text of a message shows the reason, and each bootc release may
//! change the text. A message with an unknown text gets a general reason. The message itself is always kept.
//!
//! Reasons are only displayed, because a registry can put any text into a tool's output. The agent retries every failed
//! pull, whatever its reason.

use berth_api::condition::{MAX_MESSAGE, one_line};

/// Failure of a request to the host: a reason and the tool's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Reason to report in a condition.
    pub reason: Reason,
    /// Message of the tool, shortened to one line.
    pub message: String,
}

pub use berth_core::agent::reason::Reason;

/// Phrases of error messages, in lower case, and their reasons. The first match counts. Network problems come last,
/// because a message names the failed step before the cause. The failed step is often a network step, even if the cause
/// is a problem of the host or the image.
const WORDS: &[(&[&str], Reason)] = &[
    // The agent's own messages about the end of a unit.
    (&["/usr/bin/bootc cannot be executed"], Reason::BootcMissing),
    (&["the pull did not end within"], Reason::PullTimedOut),
    (
        &["the pull was ended by signal", "operation was cancelled"],
        Reason::PullCanceled,
    ),
    (
        &["ostree admin lock-finalization failed", "failed to lock finalization"],
        Reason::LockFailed,
    ),
    (
        &[
            "signature was required",
            "insecureacceptanything",
            "source image rejected",
            "invalid gpg signature",
            "signature verification failed",
            "rejected by policy",
            "cryptographic signature verification",
        ],
        Reason::SignatureRejected,
    ),
    (
        &[
            "insufficient free space",
            "no space left on device",
            "min-free-space",
            "disk quota exceeded",
        ],
        Reason::DiskFull,
    ),
    (
        &["does not have ostree.bootable label", "not a bootable container"],
        Reason::NotBootable,
    ),
    (&["image has architecture"], Reason::WrongArchitecture),
    (&["same fs-verity digest as"], Reason::SameDeployment),
    (
        &["wrong composefs= parameter", "embedded composefs= digest"],
        Reason::ComposefsDigestMismatch,
    ),
    (
        &[
            "no image found in image index for architecture",
            "no image found in manifest list for architecture",
        ],
        Reason::WrongArchitecture,
    ),
    (
        &[
            "system not booted via bootc",
            "no image source specified",
            "detected container; this command requires a booted host",
        ],
        Reason::NotBootcHost,
    ),
    (
        &[
            "could not depsolve transaction",
            "packages not found:",
            "cannot update repo",
            "updating rpm-md repo",
            "unknown rpm-md repository",
            "no enabled repositories",
            "forbidden base package replacements",
            "running %prein for",
            "running %post for",
        ],
        Reason::LayeringFailed,
    ),
    (
        &["deployment contains local rpm-ostree modifications"],
        Reason::LayeredHost,
    ),
    (&["policy.json"], Reason::InvalidPolicyFile),
    (
        &["skopeo spawn error", "failed to spawn", "failed to execute"],
        Reason::HostToolMissing,
    ),
    (
        &[
            "unauthorized",
            "authentication required",
            "403 forbidden",
            "403 (forbidden)",
            "401 unauthorized",
            "statuscode: 401",
            "statuscode: 403",
            ": denied",
            "access to the resource is denied",
            "requested access to the resource",
        ],
        Reason::Unauthorized,
    ),
    (
        &[
            "manifest unknown",
            "manifest_unknown",
            "name unknown",
            "name_unknown",
            "repository name not known",
            "blob unknown",
            "statuscode: 404",
            "404 (not found)",
            "404 not found",
        ],
        Reason::ImageNotFound,
    ),
    (
        &[
            "pinging container registry",
            "dial tcp",
            "connection refused",
            "connection reset",
            "no such host",
            "i/o timeout",
            "tls handshake timeout",
            "x509:",
            "toomanyrequests",
            "too many requests",
            "unexpected eof",
            ": eof",
            "statuscode: 429",
            "statuscode: 5",
            "network is unreachable",
            "no route to host",
            "temporary failure in name resolution",
            "received unexpected http status: 5",
            "invalid status code from registry 5",
            "context deadline exceeded",
            "server misbehaving",
        ],
        Reason::RegistryUnavailable,
    ),
    // Must come after the registry's rejections above, because those messages also name the auth file in use.
    (&["auth.json"], Reason::InvalidAuthFile),
    // bootc's only message for a missing podman, which it needs even for an image without bound images.
    (&["no such file or directory (os error 2)"], Reason::HostToolMissing),
];

/// Classifies the message of a failed pull; `PullFailed` if the message has no known phrase.
pub fn classify(words: &str) -> Failure {
    Failure::new(recognise(words).unwrap_or(Reason::PullFailed), words)
}

/// Returns the reason of the first entry in `WORDS` with a phrase in this message; `None` without a match.
pub fn recognise(words: &str) -> Option<Reason> {
    let text = words.to_lowercase();
    let hit = WORDS
        .iter()
        .find(|(phrases, _)| phrases.iter().any(|phrase| text.contains(phrase)));
    hit.map(|(_, reason)| *reason)
}

impl Failure {
    /// Creates a failure. Its message is the error in the tool's output `words`, in one line.
    pub fn new(reason: Reason, words: &str) -> Self {
        Self {
            reason,
            message: message(words),
        }
    }
}

/// Returns the error in a tool's error output: all lines from the first line that begins with `error:`. bootc and
/// ostree begin their own errors with that word, and may then quote podman or a registry. If there is no such line,
/// returns all lines from the last line that begins with `Error`, or else the last three lines.
pub(super) fn message(words: &str) -> String {
    let lines: Vec<&str> = words.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let own = lines.iter().position(|line| line.starts_with("error:"));
    let first = match own.or_else(|| lines.iter().rposition(|line| is_error(line))) {
        Some(at) => at,
        None => lines.len().saturating_sub(3),
    };
    one_line(&lines.get(first..).unwrap_or_default().join(" "))
}

fn is_error(line: &str) -> bool {
    let line = line.to_lowercase();
    line.starts_with("error:") || line.starts_with("error ")
}

/// Appends the text about the credentials to the message of a pull that the registry rejected. If the message is too
/// long, cuts off its start, because the cause is at the end. If the rest would not be recognized as a rejection, cuts
/// off the end instead. If both fail, returns the message unchanged.
pub(super) fn with_credentials(message: String, credentials: &str) -> String {
    if credentials.is_empty() || !is_unauthorized(&message) {
        return message;
    }
    let room = MAX_MESSAGE.saturating_sub(credentials.chars().count() + 3);
    let extra = message.chars().count().saturating_sub(room);
    let (start, end): (String, String) = (
        message.chars().take(room).collect(),
        message.chars().skip(extra).collect(),
    );
    let candidates = match extra {
        0 => vec![message.clone()],
        _ => vec![format!("…{end}"), format!("{start}…")],
    };
    let Some(shortened) = candidates.iter().find(|words| is_unauthorized(words)) else {
        return message;
    };
    let text = format!("{shortened}; {credentials}");
    if is_unauthorized(&text) { text } else { message }
}

fn is_unauthorized(words: &str) -> bool {
    recognise(words) == Some(Reason::Unauthorized)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &[(&str, Reason)] = &[
        (
            "reading manifest sha256:12 in r/os: manifest unknown",
            Reason::ImageNotFound,
        ),
        (
            "pinging container registry r: Get \"https://r/v2/\": dial tcp 10.0.0.1:443: connect: connection refused",
            Reason::RegistryUnavailable,
        ),
        (
            "Requesting bearer token: received unexpected HTTP status: 403 Forbidden",
            Reason::Unauthorized,
        ),
        (
            "Requesting bearer token: invalid status code from registry 403 (Forbidden)",
            Reason::Unauthorized,
        ),
        (
            "A signature was required, but no signature exists",
            Reason::SignatureRejected,
        ),
        (
            "pinging container registry r: Get \"https://r/v2/\": tls: failed to verify certificate: x509: certificate signed by unknown authority",
            Reason::RegistryUnavailable,
        ),
        (
            "reading manifest v1 in r/os: unauthorized: authentication required",
            Reason::Unauthorized,
        ),
        ("skopeo spawn error: No such file", Reason::HostToolMissing),
        (
            "Pulling: Insufficient free space for r/os (available: 1 MB required: 2 MB)",
            Reason::DiskFull,
        ),
        ("Pulling: Importing: writing: No space left on device", Reason::DiskFull),
        ("Target image does not have ostree.bootable label", Reason::NotBootable),
        (
            "Image has architecture arm64; expected amd64",
            Reason::WrongArchitecture,
        ),
        (
            "Target image has the same fs-verity digest as the existing Some(Rollback) deployment.",
            Reason::SameDeployment,
        ),
        (
            "The UKI has the wrong composefs= parameter (is '6b71', should be '69b1')",
            Reason::ComposefsDigestMismatch,
        ),
        (
            "The UKI 'os.efi' embedded composefs= digest (Sha512HashValue(6b71)) doesn't match any of 4 supported xattr filtering \
             mode/EROFS format version combinations.",
            Reason::ComposefsDigestMismatch,
        ),
        ("System not booted via bootc", Reason::NotBootcHost),
        (
            "Could not depsolve transaction; 1 problem detected: nothing provides libx needed by htop",
            Reason::LayeringFailed,
        ),
        ("Packages not found: htop", Reason::LayeringFailed),
        (
            "Updating rpm-md repo 'updates': repo 'updates' was not found: 404 Not Found",
            Reason::LayeringFailed,
        ),
        ("Unknown rpm-md repository: updates", Reason::LayeringFailed),
        ("No enabled repositories", Reason::LayeringFailed),
        ("Operation was cancelled", Reason::PullCanceled),
        (
            "toomanyrequests: You have reached your pull rate limit",
            Reason::RegistryUnavailable,
        ),
        ("an unforeseen error", Reason::PullFailed),
    ];

    #[test]
    fn finds_the_reason_in_a_message() {
        let open = "error: Switching: Switching (ostree): Preparing import: Fetching manifest: failed to invoke method OpenImage: ";
        for (words, expected) in MESSAGES {
            let failure = classify(&format!("{open}{words}\n"));
            assert_eq!(failure.reason, *expected, "{words}");
            assert!(failure.message.ends_with(words), "{failure:?}");
        }
    }

    #[test]
    fn finds_the_reason_in_real_messages() {
        let step = "error: Switching: Switching (ostree): ";
        let open = "Preparing import: Fetching manifest: failed to invoke method OpenImage: ";
        let manifest = "reading manifest sha256:12 in r/os: ";
        for (words, expected) in [
            (format!("{open}{manifest}denied"), Reason::Unauthorized),
            (format!("{open}{manifest}denied: no access"), Reason::Unauthorized),
            (format!("{open}denied: no access"), Reason::Unauthorized),
            (
                format!("{open}{manifest}StatusCode: 403, \"<html>no</html>\""),
                Reason::Unauthorized,
            ),
            (
                format!("{open}{manifest}StatusCode: 404, \"<html>no</html>\""),
                Reason::ImageNotFound,
            ),
            (
                "Pulling: Importing: Parsing layer blob sha256:34: failed to invoke method GetBlob: blob unknown to registry"
                    .to_owned(),
                Reason::ImageNotFound,
            ),
            (
                format!("{open}{manifest}Get \"https://r/v2/os/manifests/sha256:12\": EOF"),
                Reason::RegistryUnavailable,
            ),
            (
                "Initializing storage: No such file or directory (os error 2)".to_owned(),
                Reason::HostToolMissing,
            ),
            (
                "Preparing import: Fetching manifest: failed to invoke method Initialize: open \
                 /etc/containers/policy.json: no such file or directory"
                    .to_owned(),
                Reason::InvalidPolicyFile,
            ),
            (
                "Preparing import: Fetching manifest: failed to invoke method Initialize: invalid policy in \
                 \"/etc/containers/policy.json\": invalid character 'x' looking for beginning of value"
                    .to_owned(),
                Reason::InvalidPolicyFile,
            ),
            (
                format!("{open}getting username and password: unmarshaling JSON at \"/run/ostree/auth.json\": unexpected end"),
                Reason::InvalidAuthFile,
            ),
            (
                format!("{open}Running image docker://r/os@sha256:12 is rejected by policy."),
                Reason::SignatureRejected,
            ),
            (
                "Preparing import: Fetching manifest: containers-policy.json specifies a default of \
                 `insecureAcceptAnything`; refusing usage"
                    .to_owned(),
                Reason::SignatureRejected,
            ),
        ] {
            let failure = classify(&format!("{step}{words}\n"));
            assert_eq!(failure.reason, expected, "{words}");
        }
    }

    #[test]
    fn credentials_are_named_where_the_message_has_room() {
        let refused = "unauthorized: authentication required".to_owned();
        assert_eq!(with_credentials(refused.clone(), ""), refused);
        assert_eq!(
            with_credentials(refused.clone(), "tried: none"),
            format!("{refused}; tried: none")
        );
        assert_eq!(
            with_credentials("no space left".to_owned(), "tried: none"),
            "no space left"
        );
        let long = format!("{} {refused}", "x".repeat(2 * MAX_MESSAGE));
        let found = with_credentials(long, "tried: none");
        assert!(
            found.starts_with('…') && found.ends_with("required; tried: none"),
            "{found}"
        );
        assert_eq!(found.chars().count(), MAX_MESSAGE, "as long as a message may be");
    }

    #[test]
    fn podmans_error_comes_after_bootcs_step() {
        let words = "layers already present: 3; layers needed: 0\n\
             error: Switching: Switching (ostree): Pulling bound images: Pulling bound image r/bound:1: Subprocess failed: \
             ExitStatus(unix_wait_status(32000))\n\
             Trying to pull r/bound:1...\n\
             Error: initializing source docker://r/bound:1: reading manifest 1 in r/bound: manifest unknown\n";
        let failure = classify(words);
        assert_eq!(failure.reason, Reason::ImageNotFound);
        assert!(failure.message.starts_with("error: Switching"), "{failure:?}");
        assert!(failure.message.contains("Pulling bound images"), "{failure:?}");
        assert!(failure.message.ends_with("manifest unknown"), "{failure:?}");
        let podman = "Trying to pull r/bound:1...\nError: old\nError: initializing source\n";
        assert_eq!(classify(podman).message, "Error: initializing source");
    }

    #[test]
    fn the_message_starts_at_the_error() {
        let words = "warning: old\nFailed to write to jsonl\nerror: Switching: no\n  luck\n";
        assert_eq!(classify(words).message, "error: Switching: no luck");
        assert_eq!(classify("a\nb\nc\nd\n").message, "b c d");
        assert_eq!(classify("").message, "");
    }
}
