use berth_core::agent::storage::Storage;

use super::*;
use crate::host::failure::Reason;
use berth_api::condition::MAX_MESSAGE;

fn image() -> DesiredImage {
    let digest: Digest = format!("sha256:0123456789abcdef{}", "0".repeat(48)).parse().unwrap();
    DesiredImage {
        reference: format!("registry.example/os@{digest}").into(),
        index_digest: digest.clone(),
        digest,
        version: None,
        signature: berth_api::pool::SignatureRule::AsBooted,
    }
}

#[test]
fn the_unit_is_named_after_the_digest_and_runs_bootc_itself() {
    let image = image();
    let target = target(&image).unwrap().to_string();
    fn options(storage: Storage, stages_locked: bool, signed: bool) -> PullOptions {
        PullOptions {
            signed,
            lock: StagingLock::of(storage, stages_locked).unwrap(),
        }
    }
    let plain = spec(&image.digest, &target, options(Storage::Ostree, false, false), false);
    assert_eq!(plain.name, "berth-pull-0123456789abcdef.service");
    assert_eq!(
        plain.command,
        ["/usr/bin/bootc", "switch", "--", image.reference.as_str()]
    );
    assert_eq!(plain.fd3, None);
    assert!(plain.last.is_some(), "ostree locks it at the end");
    let full = spec(&image.digest, &target, options(Storage::Ostree, true, true), true);
    assert_eq!(full.fd3.as_deref(), Some("/run/berth/pull-0123456789abcdef.fifo"));
    let flags = ["--download-only", "--enforce-container-sigpolicy", "--progress-fd", "3"];
    assert_eq!(full.command[2..6], flags);
    assert!(
        full.last.is_some(),
        "bootc may have found the image staged already, unlocked"
    );
    let composefs = spec(&image.digest, &target, options(Storage::Composefs, true, true), true);
    assert_eq!((composefs.command, composefs.last), (full.command, None));
}

#[test]
fn only_a_reference_with_the_digest_reaches_bootc() {
    let good = image();
    assert_eq!(target(&good).unwrap(), good.reference.get().unwrap());
    let other = format!("registry.example/os@sha256:{}", "9".repeat(64));
    for reference in [
        "",
        "--transport=oci",
        "registry.example/os:1",
        "os@sha256:12",
        other.as_str(),
    ] {
        let image = DesiredImage {
            reference: reference.into(),
            ..image()
        };
        let error = target(&image).unwrap_err();
        assert_eq!(error.reason(), Reason::InvalidReference, "{reference}");
        assert!(error.to_string().contains("spec.image"), "{error}");
    }
}

#[test]
fn explains_a_failed_pull() {
    for (result, status, words, expected) in [
        ("exit-code", 1, "error: x: manifest unknown", Reason::ImageNotFound),
        ("exit-code", 1, "", Reason::PullFailed),
        ("exit-code", 203, "", Reason::BootcMissing),
        ("exit-code", 0, "error: no", Reason::LockFailed),
        ("timeout", 15, "", Reason::PullTimedOut),
        ("signal", 9, "", Reason::PullCanceled),
        ("oom-kill", 9, "", Reason::PullFailed),
        ("resources", 0, "", Reason::PullFailed),
    ] {
        let unit_failure = UnitFailure {
            result: result.to_owned(),
            status,
        };
        let message = explain(&unit_failure, words);
        assert_eq!(failure::classify(&message).reason, expected, "{result} {status}");
        assert!(!message.is_empty());
    }
}

#[test]
fn a_shortened_message_keeps_the_cause() {
    let (long, credentials) = ("x ".repeat(505), "the host pulled with /run/ostree/auth.json");
    for message in [format!("{long}unauthorized"), format!("unauthorized {long}")] {
        let told = failure::with_credentials(message, credentials);
        assert_eq!(failure::classify(&told).reason, Reason::Unauthorized, "{told}");
        assert!(
            told.ends_with(credentials) && told.chars().count() <= MAX_MESSAGE,
            "{told}"
        );
    }
    let told = failure::with_credentials("unauthorized".into(), credentials);
    assert_eq!(told, format!("unauthorized; {credentials}"));
}
