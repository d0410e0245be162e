//! Tests with log files: gzipped, rotated, with lines that are too long or not JSON.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

const LINE: &str = r#"{"kind":"Event","auditID":"a","stage":"ResponseComplete","requestURI":"/","verb":"update","user":{"username":"u"},"objectRef":{"resource":"leases","namespace":"berth-system","name":"p-0","apiGroup":"coordination.k8s.io"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-01T00:00:00Z","stageTimestamp":"2026-01-01T00:00:00Z"}"#;

fn error(files: &[PathBuf]) -> String {
    let terms = berth_judge::verdict::Terms {
        namespace: "berth-system".to_owned(),
        fleet: None,
        lag: jiff::SignedDuration::from_secs(10),
    };
    match read_logs(files, "berth-system") {
        Ok(mut log) => log
            .judge(&terms)
            .map(|_| String::new())
            .unwrap_or_else(|e| e.to_string()),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn a_log_without_bodies_says_which_policy_is_needed() {
    let directory = tempfile::tempdir().unwrap();
    let (text, gzipped) = (
        directory.path().join("audit.log"),
        directory.path().join("audit.log.gz"),
    );
    std::fs::write(&text, format!("{LINE}\n")).unwrap();
    let mut gzip = GzEncoder::new(File::create(&gzipped).unwrap(), Compression::fast());
    writeln!(gzip, "{LINE}\n{LINE}").unwrap();
    gzip.finish().unwrap();
    for (files, count) in [
        (vec![text.clone()], 1),
        (vec![gzipped.clone()], 2),
        (vec![text.clone(), gzipped], 3),
    ] {
        let said = error(&files);
        assert!(
            said.starts_with(&format!(
                "the log has {count} writes of Leases in the namespace berth-system"
            )) && said.contains("level Metadata")
                && said.contains("manifests/audit-policy.yaml"),
            "{said}"
        );
    }
    let missing = directory.path().join("none.log");
    assert!(error(&[missing]).starts_with("cannot read the audit log /"));
}

#[test]
fn a_bad_line_is_numbered_and_loses_no_other() {
    let long = "x".repeat(usize::try_from(MAX_LINE).unwrap() * 2 + 5);
    let mut log = Log::default();
    let text = format!("{LINE}\n{{ half\n\n{long}\n{LINE}\n");
    take_lines(&mut log, "a.log", text.as_bytes(), "berth-system").unwrap();
    assert_eq!(log.bad_lines(), (2, &["a.log:2".to_owned(), "a.log:4".to_owned()][..]));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("other.log");
    std::fs::write(&file, "hello\nworld\n").unwrap();
    assert!(error(&[file]).starts_with("none of the 2 lines is an audit event in JSON"));
}
