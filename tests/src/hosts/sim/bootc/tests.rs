//! Effects of commands, shutdowns and power cuts on the deployments.

use super::super::catalog::digest_of;
use super::*;

fn deployment(version: &str) -> Deployment {
    let digest = digest_of(version);
    Deployment {
        image: format!("registry.test/os@{digest}"),
        digest,
        version: version.to_owned(),
        timestamp: "2026-11-01T00:00:00Z".to_owned(),
        architecture: "amd64".to_owned(),
        signed: false,
        packages: vec![],
        serial: 0,
    }
}

fn host(version: &str) -> Deployments {
    Deployments::new(deployment(version))
}

fn reboot(host: &mut Deployments) {
    host.shut_down(true);
    host.boot(&BTreeSet::new());
}

fn versions(host: &Deployments) -> (String, Option<String>) {
    (
        host.booted().unwrap().version.clone(),
        host.rollback().map(|d| d.version.clone()),
    )
}

#[test]
fn a_locked_staged_image_is_discarded_by_a_reboot() {
    let mut host = host("1");
    host.stage(deployment("2"), false);
    host.lock().unwrap();
    reboot(&mut host);
    assert_eq!(versions(&host), ("1".to_owned(), None));
    assert!(host.staged().is_none());
    assert!(host.is_cached(&digest_of("2")), "layers stay until the next cleanup");
}

#[test]
fn a_reboot_applies_an_unlocked_staged_image() {
    let mut host = host("1");
    for version in ["2", "3"] {
        host.stage(deployment(version), true);
        host.unlock().unwrap();
        reboot(&mut host);
    }
    assert_eq!(versions(&host), ("3".to_owned(), Some("2".to_owned())));
    assert!(!host.rollback_queued());
}

#[test]
fn a_power_cut_loses_the_staged_image() {
    let mut host = host("1");
    host.stage(deployment("2"), false);
    host.cut_power();
    host.boot(&BTreeSet::new());
    assert_eq!(versions(&host), ("1".to_owned(), None));
    assert!(host.staged().is_none());
}

#[test]
fn a_failed_finalization_is_remembered_for_one_boot() {
    let mut host = host("1");
    host.stage(deployment("2"), false);
    host.shut_down(false);
    host.boot(&BTreeSet::new());
    assert!(host.finalization_failed());
    assert_eq!(versions(&host), ("1".to_owned(), None));
    reboot(&mut host);
    assert!(!host.finalization_failed());
}

#[test]
fn undeploy_removes_staged_but_not_booted_images() {
    let mut host = host("1");
    assert_eq!(
        host.undeploy(0).unwrap_err(),
        "Cannot undeploy currently booted deployment 0"
    );
    host.stage(deployment("2"), true);
    assert!(host.undeploy(0).unwrap().starts_with("Deleted deployment "));
    assert!(host.staged().is_none());
    assert!(host.undeploy(1).is_err());
}

#[test]
fn locking_needs_a_staged_image_and_is_idempotent() {
    let mut host = host("1");
    assert_eq!(host.lock().unwrap_err(), "No staged deployment");
    assert_eq!(host.unlock().unwrap_err(), "No staged deployment");
    host.stage(deployment("2"), false);
    assert!(host.lock().unwrap().contains("now finalization locked"));
    assert!(host.lock().unwrap().contains("already finalization locked"));
    assert!(host.unlock().unwrap().contains("now queued"));
    assert!(host.unlock().unwrap().contains("already prepared"));
}

#[test]
fn the_lock_file_also_locks() {
    let mut host = host("1");
    assert!(host.link_lock().is_err(), "nothing is staged");
    host.stage(deployment("2"), false);
    host.link_lock().unwrap();
    assert!(!host.is_armed() && host.link_lock().is_err());
    assert_eq!(
        host.status(View::default())["status"]["staged"]["downloadOnly"],
        false,
        "bootc does not see it"
    );
    host.unlock().unwrap();
    assert!(!host.is_armed(), "the lock file still locks");
    host.lock().unwrap();
    host.unlock().unwrap();
    assert!(host.is_armed());
    host.link_lock().unwrap();
    reboot(&mut host);
    assert_eq!(versions(&host), ("1".to_owned(), None));
    host.stage(deployment("2"), false);
    assert!(host.is_armed(), "a new /run has no lock file");
}

#[test]
fn rollback_toggles_and_discards_the_staged_image() {
    let mut host = host("1");
    assert!(host.toggle_rollback().is_err());
    host.stage(deployment("2"), false);
    reboot(&mut host);
    host.stage(deployment("3"), false);
    host.toggle_rollback().unwrap();
    assert!(host.rollback_queued() && host.staged().is_none());
    assert_eq!(host.status(View::default())["spec"]["bootOrder"], "rollback");
    host.toggle_rollback().unwrap();
    assert!(!host.rollback_queued());
    host.toggle_rollback().unwrap();
    reboot(&mut host);
    assert_eq!(versions(&host), ("1".to_owned(), Some("2".to_owned())));
}

/// Keys of an object, sorted.
fn keys(object: &Value) -> String {
    let keys: BTreeSet<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.into_iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn status_has_the_keys_of_the_real_one() {
    let mut host = host("1");
    host.stage(deployment("2"), true);
    let status = host.status(View::default());
    assert_eq!(
        keys(&status["status"]),
        "booted readOnly rollback rollbackQueued staged type usrOverlay"
    );
    assert_eq!(
        keys(&status["status"]["staged"]),
        "cachedUpdate composefs downloadOnly image incompatible ostree pinned softRebootCapable store"
    );
    assert_eq!(status["status"]["staged"]["downloadOnly"], true);
    assert_eq!(
        status["status"]["staged"]["ostree"]["checksum"].as_str().unwrap().len(),
        64
    );
    assert_eq!(status["status"]["rollback"], Value::Null);
    assert_eq!(
        status["spec"]["image"]["image"],
        format!("registry.test/os@{}", digest_of("2"))
    );
}

#[test]
fn status_of_other_kinds_of_hosts() {
    let mut host = host("1");
    let not_bootc = host.status(View {
        not_bootc: true,
        ..View::default()
    });
    assert_eq!(not_bootc["status"]["booted"], Value::Null);
    let old = host.status(View {
        old: true,
        ..View::default()
    });
    assert!(old["status"]["booted"].get("downloadOnly").is_none());
    host.layer(&["htop"]);
    let layered = host.status(View::default());
    assert_eq!(layered["status"]["booted"]["incompatible"], true);
    assert_eq!(layered["status"]["booted"]["image"], Value::Null);
    assert_eq!(layered["spec"]["image"], Value::Null);
}

/// rpm-ostree locks a staged image with a key in its state, which bootc shows. If ostree unlocks and locks the image
/// again, the lock file exists too.
#[test]
fn rpm_ostree_locks_with_a_key() {
    let mut host = host("1");
    host.stage(deployment("2"), true);
    assert!(!host.is_armed() && !host.staged().unwrap().lock_file);
    assert_eq!(host.status(View::default())["status"]["staged"]["downloadOnly"], true);
    assert!(host.lock().unwrap().contains("already") && !host.staged().unwrap().lock_file);
    host.unlock().unwrap();
    assert!(host.is_armed());
    host.lock().unwrap();
    assert!(!host.is_armed() && host.staged().unwrap().lock_file);
    host.stage(deployment("3"), true);
    assert!(
        !host.is_armed() && !host.staged().unwrap().lock_file,
        "the lock file was removed with the replaced deployment"
    );
    assert!(host.take_locks() && host.is_armed());
    assert!(!host.take_locks());
}

/// `Cleanup` of pending deployments also removes one that is queued for the next boot, but keeps the rollback deployment.
#[test]
fn cleanup_removes_all_pending_deployments() {
    let mut host = host("1");
    host.stage(deployment("2"), false);
    reboot(&mut host);
    assert!(!host.remove_pending());
    assert_eq!(host.rollback().unwrap().digest, deployment("1").digest);
    host.toggle_rollback().unwrap();
    host.stage(deployment("3"), true);
    assert!(host.remove_pending());
    assert!(host.staged().is_none() && host.rollback().is_none() && !host.rollback_queued());
    assert_eq!(host.booted().unwrap().digest, deployment("2").digest);
}

/// bootc stages only the image; packages layered on the previous one are lost.
#[test]
fn a_switch_drops_layered_packages() {
    let mut host = host("1");
    host.layer(&["htop"]);
    host.stage(deployment("2"), false);
    reboot(&mut host);
    assert!(host.booted().unwrap().packages.is_empty());
    assert_eq!(host.rollback().unwrap().packages, ["htop"]);
}

#[test]
fn the_same_image_twice_gets_another_serial() {
    let mut host = host("1");
    host.stage(deployment("1"), false);
    assert_eq!(host.staged().unwrap().deployment.serial, 1);
}
