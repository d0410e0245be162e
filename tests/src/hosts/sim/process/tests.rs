//! Output of the simulated programs.

use std::sync::Arc;

use super::super::catalog::digest_of;
use super::*;
use crate::bootc::cli::LATEST;

const STATUS: &[&str] = &["/usr/bin/bootc", "status", "--format=json", "--format-version=1"];

fn os(settings: Settings) -> Arc<Os> {
    let catalog = Catalog::default();
    let digest = catalog.publish("1");
    catalog.publish("2");
    let arm = CatalogImage {
        architecture: "arm64".to_owned(),
        ..CatalogImage::new("3")
    };
    catalog.insert(&digest_of("3"), arm);
    let booted = Deployment {
        image: format!("registry.test/os@{digest}"),
        digest,
        version: "1".to_owned(),
        timestamp: String::new(),
        architecture: "amd64".to_owned(),
        signed: false,
        packages: vec![],
        serial: 0,
    };
    Arc::new(Os::new(
        "node",
        tempfile::tempdir().unwrap().keep(),
        booted,
        catalog,
        SharedSettings::new(settings),
        HostLog::default(),
    ))
}

fn target(version: &str) -> String {
    format!("registry.test/os@{}", digest_of(version))
}

/// Runs a command; returns its status, output and errors.
async fn run(os: &Os, words: &[&str]) -> (i32, String, String) {
    let argv: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    let dir = tempfile::tempdir().unwrap();
    let [out, err] = ["out", "err"].map(|name| dir.path().join(name));
    let mut io = Stdio {
        out: File::create(&out).ok(),
        err: File::create(&err).ok(),
        fd3: None,
        environment: BTreeMap::new(),
    };
    let status = os.run(&argv, &mut io).await;
    let [out, err] = [out, err].map(|file| std::fs::read_to_string(file).unwrap());
    (status, out, err)
}

#[tokio::test]
async fn status_waits_for_a_pull() {
    let os = os(Settings {
        pull_time: Duration::from_millis(300),
        ..Settings::default()
    });
    let (pulling, image) = (os.clone(), target("2"));
    let pull = tokio::spawn(async move { run(&pulling, &["/usr/bin/bootc", "switch", &image]).await.0 });
    tokio::task::yield_now().await;
    let early = tokio::time::timeout(Duration::from_millis(100), run(&os, STATUS)).await;
    assert!(early.is_err(), "status must block");
    let (status, out, _) = run(&os, STATUS).await;
    assert!(status == 0 && out.contains(&target("2")));
    assert_eq!(pull.await.unwrap(), 0);
}

#[tokio::test]
async fn an_unchanged_target_is_neither_pulled_nor_unlocked() {
    let os = os(Settings::default());
    let switch = ["/usr/bin/bootc", "switch", &target("2")];
    assert_eq!(run(&os, &switch).await.0, 0);
    assert_eq!(run(&os, &["/usr/bin/ostree", "admin", "lock-finalization"]).await.0, 0);
    let (status, out, _) = run(&os, &switch).await;
    assert_eq!((status, out.as_str()), (0, "Image specification is unchanged.\n"));
    assert!(os.deployments(|d| d.staged().unwrap().locked));
    assert_eq!(os.log.events().len(), 2, "one pull started and ended");
}

#[tokio::test]
async fn layers_on_the_disk_need_no_registry() {
    let os = os(Settings::default());
    let switch = ["/usr/bin/bootc", "switch", &target("2")];
    assert_eq!(run(&os, &switch).await.0, 0);
    os.deployments(Deployments::cut_power);
    os.settings.with(|s| s.registry_down = true);
    assert_eq!(run(&os, &switch).await.0, 0);
}

#[tokio::test]
async fn faults_have_the_real_texts() {
    let os = os(Settings::default());
    let (status, _, err) = run(&os, &["/usr/bin/bootc", "switch", &target("3")]).await;
    assert_eq!(
        (status, err.contains("Image has architecture arm64; expected amd64")),
        (1, true)
    );
    os.settings.with(|s| s.staged_then_fails = 1);
    assert_eq!(run(&os, &["/usr/bin/bootc", "switch", &target("2")]).await.0, 1);
    assert!(os.deployments(|d| d.is_armed()), "staged in spite of the failure");
    let (status, _, err) = run(&os, &["/usr/bin/bootc", "upgrade", "--download-only"]).await;
    assert_eq!(
        (
            status,
            err.starts_with("error: unexpected argument '--download-only' found")
        ),
        (2, true)
    );
    os.settings.with(|s| s.not_bootc = true);
    let (status, out, _) = run(&os, STATUS).await;
    assert!(status == 0 && out.contains("\"booted\":null"));
    let (_, _, err) = run(&os, &["/usr/bin/bootc", "switch", &target("2")]).await;
    assert!(err.contains("System not booted via bootc"));
    assert_eq!(run(&os, &["/usr/bin/nothing"]).await.0, EXIT_EXEC);
}

#[tokio::test]
async fn other_versions_have_other_commands() {
    let os = os(Settings {
        bootc_version: "1.17.0".to_owned(),
        ..Settings::default()
    });
    let switch = ["/usr/bin/bootc", "switch", "--download-only", &target("2")];
    assert_eq!(run(&os, &switch).await.0, 0);
    assert!(os.deployments(|d| d.staged().unwrap().locked));
    os.settings.with(|s| s.bootc_version = "1.1.2".to_owned());
    assert_eq!(run(&os, &["/usr/bin/bootc", "upgrade", "--from-downloaded"]).await.0, 2);
    assert!(!run(&os, STATUS).await.1.contains("downloadOnly"));
    assert_eq!(run(&os, &["/usr/bin/bootc", "--version"]).await.1, "bootc 1.1.2\n");
}

#[tokio::test]
async fn bootc_releases_stage_differently() {
    for (version, has, armed) in [("1.16.9", false, true), ("1.17.0", true, false)] {
        let os = os(Settings {
            bootc_version: version.to_owned(),
            ..Settings::default()
        });
        let (status, help, _) = run(&os, &["/usr/bin/bootc", "switch", "--help"]).await;
        assert_eq!((status, help.contains("--download-only")), (0, has));
        let target = target("2");
        let mut command = vec!["/usr/bin/bootc", "switch"];
        command.extend(has.then_some("--download-only"));
        command.extend(["--", target.as_str()]);
        assert_eq!(run(&os, &command).await.0, 0);
        assert_eq!(os.deployments(|d| d.is_armed()), armed);
        let link = [
            "/usr/bin/ln",
            "/run/ostree/staged-deployment",
            "/run/ostree/staged-deployment-locked",
        ];
        run(&os, &link).await;
        assert!(!os.deployments(|d| d.is_armed()));
        assert_eq!(os.armed_times().len(), usize::from(armed));
    }
}

#[tokio::test]
async fn composefs_has_no_ostree_and_deletes_by_name() {
    let os = os(Settings {
        composefs: true,
        bootc_version: LATEST.to_owned(),
        ..Settings::default()
    });
    let switch = ["/usr/bin/bootc", "switch", "--download-only", "--", &target("2")];
    assert_eq!(run(&os, &switch).await.0, 0);
    let lock = ["/usr/bin/ostree", "admin", "lock-finalization"];
    assert_eq!(run(&os, &lock).await.0, EXIT_EXEC);
    let status: serde_json::Value = serde_json::from_str(&run(&os, STATUS).await.1).unwrap();
    let [booted, staged] = ["booted", "staged"].map(|slot| {
        let entry = &status["status"][slot];
        assert!(entry["ostree"].is_null() && entry["store"].is_null());
        entry["composefs"]["verity"].as_str().unwrap()
    });
    assert_eq!(status["status"]["staged"]["downloadOnly"], true);
    let booted = run(&os, &["/usr/bin/bootc", "delete-deployment", booted]).await;
    assert!(booted.0 == 1 && booted.2.contains("currently booted"), "{booted:?}");
    let delete = ["/usr/bin/bootc", "delete-deployment", staged];
    assert_eq!(run(&os, &delete).await.0, 0);
    assert!(run(&os, &delete).await.2.contains("not found"));
    assert!(os.deployments(|d| d.staged().is_none()));
}

/// bootc before 1.16.11 mistakes the booted UKI for a queued rollback.
#[tokio::test]
async fn older_releases_invert_the_rollback_of_ukis() {
    for (version, uki, queued) in [
        ("1.16.10", true, true),
        ("1.16.10", false, false),
        ("1.16.11", true, false),
        (LATEST, true, false),
    ] {
        let os = os(Settings {
            composefs: true,
            uki,
            bootc_version: version.to_owned(),
            ..Settings::default()
        });
        let status: serde_json::Value = serde_json::from_str(&run(&os, STATUS).await.1).unwrap();
        assert_eq!(status["status"]["rollbackQueued"], queued, "{version} {uki}");
        let order = if queued { "rollback" } else { "default" };
        assert_eq!(status["spec"]["bootOrder"], order, "{version} {uki}");
        let boot_type = if uki { "Uki" } else { "Bls" };
        assert_eq!(status["status"]["booted"]["composefs"]["bootType"], boot_type);
    }
}

#[tokio::test]
async fn composefs_requests_no_reboot() {
    for (composefs, requested) in [(true, false), (false, true)] {
        let os = os(Settings {
            composefs,
            bootc_version: LATEST.to_owned(),
            ..Settings::default()
        });
        let switch = ["/usr/bin/bootc", "switch", "--download-only", "--", &target("2")];
        assert_eq!(run(&os, &switch).await.0, 0);
        assert_eq!(os.on_host("/run/reboot-required").exists(), requested);
        assert_eq!(run(&os, &["/usr/bin/bootc", "switch", "--from-downloaded"]).await.0, 0);
        assert!(os.deployments(|d| d.is_armed()));
    }
}
