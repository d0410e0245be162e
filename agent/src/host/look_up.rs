//! Looks up an image as the host would pull it: with the host's skopeo, mirrors, certificates and credentials.

use std::time::Duration;

use berth_api::platform::{Choice, Platform, Variant};
use berth_api::pool::PlatformDigest;
use berth_api::{Digest, ImageRef};
use berth_core::agent::host_policy::credentials::PLACES;
use berth_core::cpu;
use berth_core::firstboot::{Answer, Target};
use berth_core::registries::document::{self, Document, DocumentError};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::auth::digest;
use super::cpu::platform_variant;
use super::error::HostError;
use super::failure::Reason;
use super::handle::Host;

/// Extra time for systemd to kill a hung skopeo and report it.
const GRACE: Duration = Duration::from_secs(3);
/// Certificate errors that a wrong clock can cause. A machine without a clock battery starts with a time in the past.
const CLOCK: [&str; 2] = ["certificate has expired", "is not yet valid"];

#[derive(Debug, thiserror::Error)]
enum LookUpError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("{0}")]
    OtherMachine(String),
}

impl Host {
    /// Asks the registry for an image's manifest and labels, within this time. systemd gets a little more time to kill
    /// a hung skopeo.
    pub async fn look_up(&self, image: &ImageRef, within: Duration) -> Answer {
        let give_up = Instant::now() + within;
        match timeout_at(give_up + GRACE, self.find_image(image, give_up)).await {
            Ok(found) => answer(found),
            Err(_) => Answer::HostFailed("the host's skopeo did not end in time".to_owned()),
        }
    }

    async fn find_image(&self, image: &ImageRef, give_up: Instant) -> Result<Target, LookUpError> {
        let manifest = self.inspect("manifest", &["--raw"], image, give_up).await?;
        let own = Platform {
            architecture: cpu::architecture(),
            variant: platform_variant(&self.root).map_or(Variant::Unknown, Variant::Known),
        };
        let of_platform = match document::manifest(manifest.as_bytes())? {
            Document::Image { .. } => match image.digest() {
                Some(digest) => digest.clone(),
                None => digest(manifest.as_bytes()),
            },
            Document::Index { platforms, .. } => for_machine(&platforms, own, "the image index has no image")?.clone(),
        };
        // Query by digest, so that manifest and config match even if the tag moves between the queries.
        let pinned = image.at(&of_platform);
        let config = self.inspect("config", &["--config", "--raw"], &pinned, give_up).await?;
        let config = document::config(config.as_bytes(), &of_platform)?;
        let (platform, words) = (
            &config.platform,
            format!("the image supports only {} and is not suitable", config.platform),
        );
        for_machine(std::slice::from_ref(platform), own, &words)?;
        Ok(Target {
            digest: of_platform,
            version: config.version,
            limit: config.metadata.boot_image,
        })
    }

    async fn inspect(
        &self,
        what: &str,
        flags: &[&str],
        image: &ImageRef,
        give_up: Instant,
    ) -> Result<String, HostError> {
        let name = name(image);
        let mut command = vec!["/usr/bin/skopeo", "inspect"];
        command.extend(flags);
        // Use the auth file that bootc would use. Without such a file, bootc pulls without credentials, and so does
        // this query.
        match PLACES.iter().find(|place| self.root.path(place).exists()) {
            Some(place) => command.extend(["--authfile", place]),
            None => command.push("--no-creds"),
        }
        command.push(&name);
        let left = give_up.saturating_duration_since(Instant::now());
        self.tools
            .run_within(&format!("inspect-{what}"), &command, left.max(Duration::from_secs(1)))
            .await
    }
}

/// Returns the digest of the image for this machine's platform. If there is no such image, the error begins with the
/// text in `none`.
fn for_machine<'a>(images: &'a [PlatformDigest], own: Platform<'_>, none: &str) -> Result<&'a Digest, LookUpError> {
    match own.choose(images) {
        Choice::Image(image) => Ok(&image.digest),
        Choice::NoSuchPlatform => Err(LookUpError::OtherMachine(format!("{none} for {own}"))),
        Choice::VariantUnknown => {
            let there: Vec<String> = images.iter().map(ToString::to_string).collect();
            let there = there.join(", ");
            let why = format!("images exist for {there}, but this machine's CPU variant is unknown");
            Err(LookUpError::OtherMachine(why))
        }
    }
}

fn answer(found: Result<Target, LookUpError>) -> Answer {
    match found {
        Ok(target) => Answer::Found(target),
        Err(LookUpError::Host(error)) => {
            let mut words = plain(&error.to_string());
            if CLOCK.iter().any(|said| words.contains(said)) {
                words.push_str(&format!(
                    "; the clock of this machine says {:.0}; correct the clock if that is wrong",
                    Timestamp::now()
                ));
            }
            match (error.reason(), error) {
                (Reason::HostToolMissing, _) => Answer::HostFailed(words),
                (Reason::RegistryUnavailable, HostError::Tool(_)) | (_, HostError::Timeout(_)) => Answer::Away(words),
                (_, HostError::Tool(_)) => Answer::Withheld(words),
                _ => Answer::HostFailed(words),
            }
        }
        Err(error) => Answer::Useless(error.to_string()),
    }
}

/// Returns the image's name for skopeo. If the image has both a tag and a digest, the tag is left out, because skopeo
/// rejects a name with both.
fn name(image: &ImageRef) -> String {
    match image.digest() {
        Some(digest) => format!("docker://{}", image.at(digest)),
        None => format!("docker://{image}"),
    }
}

/// Returns the message in a line of skopeo's log format. Returns other text unchanged.
pub(super) fn plain(words: &str) -> String {
    match words.split_once("level=fatal msg=\"") {
        Some((_, said)) => said.trim_end_matches('"').replace("\\\"", "\""),
        None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skopeo_is_given_a_tag_or_a_digest() {
        let pinned = format!("r.io/os@sha256:{}", "02".repeat(32));
        for (image, asked) in [
            ("r.io/os:1", "r.io/os:1"),
            (&pinned, &pinned),
            (&pinned.replace('@', ":1@"), &pinned),
        ] {
            assert_eq!(name(&image.parse().unwrap()), format!("docker://{asked}"));
        }
    }

    #[test]
    fn a_machine_gets_the_image_that_its_cpu_runs() {
        fn entry(n: &str, architecture: &str, variant: &str) -> String {
            let digest = n.repeat(64);
            format!(
                r#"{{"digest": "sha256:{digest}", "size": 1,
                     "platform": {{"os": "linux", "architecture": "{architecture}"{variant}}}}}"#
            )
        }
        // AlmaLinux's index has such entries; its plain amd64 needs v3.
        let entries = [
            entry("a", "amd64", ""),
            entry("b", "arm64", ""),
            entry("c", "amd64", r#", "variant": "v2""#),
        ];
        let index = format!(r#"{{"schemaVersion": 2, "manifests": [{}]}}"#, entries.join(","));
        let Document::Index { platforms, .. } = document::manifest(index.as_bytes()).unwrap() else {
            panic!("an index");
        };
        fn found(platforms: &[PlatformDigest], architecture: &str, variant: Option<&str>) -> String {
            let own = Platform {
                architecture,
                variant: variant.map_or(Variant::Unknown, Variant::Known),
            };
            match for_machine(platforms, own, "the image index has no image") {
                Ok(digest) => digest.to_string()[7..8].to_owned(),
                Err(error) => error.to_string(),
            }
        }
        assert_eq!(found(&platforms, "amd64", Some("v3")), "a");
        assert_eq!(found(&platforms, "amd64", Some("v4")), "a");
        assert_eq!(found(&platforms, "amd64", Some("v2")), "c");
        assert_eq!(found(&platforms, "arm64", Some("v8.2")), "b");
        assert_eq!(found(&platforms, "arm64", None), "b");
        assert_eq!(
            found(&platforms, "amd64", Some("v1")),
            "the image index has no image for amd64/v1"
        );
        assert_eq!(
            found(&platforms, "s390x", None),
            "the image index has no image for s390x"
        );
        assert_eq!(
            found(&platforms, "amd64", None),
            "images exist for arm64, amd64/v2, amd64/v3, but this machine's CPU variant is unknown"
        );
    }

    #[test]
    fn a_wrong_clock_is_named_in_the_error() {
        let words = "pinging container registry r.io: Get \"https://r.io/v2/\": tls: failed to verify certificate: x509: \
                     certificate has expired or is not yet valid: current time 1970-01-01T00:01:02Z is before 2026-01-01T00:00:00Z";
        let reason = crate::host::failure::recognise(words).unwrap();
        let error = HostError::Tool(crate::host::failure::Failure::new(reason, words));
        let Answer::Away(said) = answer(Err(error.into())) else {
            panic!("it may get better");
        };
        let year = Timestamp::now().to_string();
        let told = format!("the clock of this machine says {}", &year[..10]);
        assert!(said.contains(&told), "{said}");
    }

    #[test]
    fn skopeos_log_format_is_removed() {
        let log = r#"time="2026-01-01T00:00:00Z" level=fatal msg="Error parsing image name \"docker://r.io/os:1\": manifest unknown""#;
        assert_eq!(
            plain(log),
            r#"Error parsing image name "docker://r.io/os:1": manifest unknown"#
        );
        assert_eq!(plain("no route"), "no route");
    }
}
