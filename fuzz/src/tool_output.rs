//! Fuzzes the texts of host tools: errors, reports of health checks, lists, and the script that looks for the
//! installer's note.

use berth_agent::host::failure::{Failure, Reason, classify, recognise};
use berth_agent::host::parsers::{boot_image, check, pull_failure, refs, skopeo};
use berth_api::Digest;
use berth_api::condition::one_line;
use berth_core::text::{MAX_NOTE, note};

use crate::text::{hides, is_line};

/// Longest message of a failure, in characters.
const MAX_MESSAGE: usize = 1025;
/// Secret that is put into texts.
const SECRET: &str = "Hush0123456789abcdefHush";

/// Reads the input as the output of a host tool. Panics if a message is not one bounded line, if a credential is shown,
/// or if a line becomes an option of a command.
pub fn tool_output(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (first, rest) = text.split_once('\n').unwrap_or(("", &text));
    messages(first, rest);
    credentials(&text);
    let (report, unit) = check(
        &format!("/etc/berth/health.d/required.d/{first}"),
        "exit status 1",
        rest,
    );
    is_line(&report, 300);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    assert!(unit.len() < 240 && unit.bytes().all(is_word), "{unit:?}");
    if let Some(found) = boot_image(&text) {
        for text in [&found.version, &found.image, &found.error].into_iter().flatten() {
            is_line(text, 512);
        }
    }
    let digest = Digest::from([7; 32]);
    for name in refs(&text, &digest) {
        is_line(name, usize::MAX);
        assert!(!name.starts_with('-') && !name.contains([' ', '$', '%']), "{name:?}");
    }
}

fn messages(first: &str, rest: &str) {
    let classified = classify(rest);
    is_line(&classified.message, MAX_MESSAGE);
    let expected = recognise(rest).unwrap_or(Reason::PullFailed);
    assert_eq!(classified.reason, expected, "the reason belongs to the whole text");
    for (result, status) in [("exit-code", 1), ("timeout", 15), ("signal", 9), (first, 0)] {
        let Failure { message, .. } = pull_failure(result, status, rest, "the host has no auth file");
        is_line(&message, MAX_MESSAGE);
    }
    let short = skopeo(rest);
    is_line(&one_line(&short), MAX_MESSAGE);
    let event = note(rest);
    is_line(&event, MAX_NOTE);
    assert!(event.len() <= MAX_NOTE);
}

/// Puts a secret into the text in each form that tools write, and checks that no message shows it. A text that already has
/// the secret proves nothing: no form marks it as one there.
fn credentials(text: &str) {
    if text.contains(SECRET) {
        return;
    }
    let noise: String = text.chars().filter(|c| c.is_ascii_alphanumeric()).take(20).collect();
    for form in [
        format!("https://{noise}:{SECRET}@r.io/x"),
        format!("http://{SECRET}@{noise}"),
        format!("https://r.io/{noise}?a=1&X-Amz-Signature={SECRET}"),
        format!("Authorization: Bearer {SECRET}"),
        format!("authorization: Basic {SECRET}"),
    ] {
        for around in [
            format!("{text} {form}"),
            format!("{form} {text}"),
            format!("\"{form}\": {text}"),
        ] {
            let line = one_line(&around);
            hides(&line, SECRET);
            assert_eq!(one_line(&line).trim_end_matches('…'), line.trim_end_matches('…'));
            hides(&classify(&format!("error: {around}")).message, SECRET);
        }
    }
}
