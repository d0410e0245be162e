//! Parsers of this module's private parts, for the fuzz targets. Not a part of the crate's interface.

use std::collections::HashMap;
use std::time::Duration;

use berth_api::Digest;
use berth_api::boot_image::NodeBootImage;
use berth_api::node::Progress;
use serde_json::Value;
use tokio::time::Instant;
use zbus::{OwnedVariant, Variant};

use super::bootc::{self, BootcStatus};
use super::driver::HostStatus;
use super::failure::{self, Failure};
use super::record::Record;
use super::rpm_ostree;
use super::{boot_image, checks, look_up, repository};

/// Deepest value that [`deployments`] converts.
const MAX_DEPTH: usize = 16;

/// Reads `bootc status`. The error is the message that the agent reports.
pub fn bootc_status(text: &str) -> Result<BootcStatus, String> {
    bootc::parsers::status(text).map_err(|error| failure::message(&error))
}

/// Reads `bootc --version`.
pub fn bootc_version(text: &str) -> Option<String> {
    bootc::parsers::version(text)
}

/// Reads the lines that a pull writes, in chunks of this many bytes. Returns the last progress, and whether a line
/// reported the image as staged.
pub fn bootc_progress(bytes: &[u8], chunk: usize) -> (Option<Progress>, bool) {
    let mut reader = bootc::parsers::ProgressLines::default();
    let mut now = Instant::now();
    for part in bytes.chunks(chunk.max(1)) {
        reader.feed(now, part);
        now += Duration::from_millis(10);
    }
    reader.end()
}

/// Reads rpm-ostree's deployments, given as JSON. A number becomes a `t` or, if negative, an `i`. An array becomes an
/// `av`, and an object an `a{sv}`. `None` if the JSON is not a list of objects, or is too deep.
pub fn deployments(json: &Value) -> Option<Result<HostStatus, String>> {
    let mut entries = vec![];
    for entry in json.as_array()? {
        let mut pairs = HashMap::new();
        for (key, value) in entry.as_object()? {
            pairs.insert(key.clone(), OwnedVariant::try_from(variant(value, key, 0)?).ok()?);
        }
        entries.push(pairs);
    }
    Some(rpm_ostree::parsers::deployments(&entries))
}

fn variant(json: &Value, key: &str, depth: usize) -> Option<Variant<'static>> {
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match json {
        Value::Null => Variant::new(""),
        Value::Bool(flag) => Variant::new(*flag),
        Value::String(text) if text.contains('\0') => return None,
        Value::String(text) => Variant::new(text.clone()),
        Value::Number(number) if key == "serial" => Variant::new(i32::try_from(number.as_i64()?).ok()?),
        Value::Number(number) => match number.as_u64() {
            Some(number) => Variant::new(number),
            None => Variant::new(i32::try_from(number.as_i64()?).ok()?),
        },
        Value::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(|item| variant(item, "", depth + 1)).collect();
            Variant::new(items?)
        }
        Value::Object(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(key, value)| Some((key.clone(), variant(value, key, depth + 1)?)));
            let pairs: Option<HashMap<String, Variant<'static>>> = pairs.collect();
            Variant::new(pairs?)
        }
    })
}

/// Adds up the progress in a transaction's texts.
pub fn transaction_progress<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Progress> {
    rpm_ostree::parsers::progress(texts)
}

/// Reads the address of a transaction as an agent in a pod does. Returns the address and the path that it connects to.
pub fn transaction_address(address: &str) -> Option<(String, String)> {
    rpm_ostree::parsers::address(address)
}

/// Returns the failure of a pull whose unit ended with this result and wrote these lines. `credentials`: text about the
/// host's auth file.
pub fn pull_failure(result: &str, status: i32, stderr: &str, credentials: &str) -> Failure {
    let message = bootc::parsers::explain(result, status, stderr);
    failure::classify(&failure::with_credentials(message, credentials))
}

/// Returns the report of a failed health check, and the name of the unit that runs the check.
pub fn check(path: &str, failure: &str, output: &str) -> (String, String) {
    (checks::report(path, failure, output), checks::unit_name(path))
}

/// Reads the output of the script that looks for the installer's note.
pub fn boot_image(output: &str) -> Option<NodeBootImage> {
    boot_image::parse(output)
}

/// Returns the refs of an image in ostree's list. They become arguments of `ostree refs --delete`.
pub fn refs<'a>(list: &'a str, digest: &Digest) -> Vec<&'a str> {
    repository::refs_of(list, digest)
}

/// Returns the message in a line of skopeo's log.
pub fn skopeo(words: &str) -> String {
    look_up::plain(words)
}

/// Reads the record of a pull, and returns it as the agent writes it.
pub fn pull_record(json: &[u8]) -> Option<String> {
    let record: Record = serde_json::from_slice(json).ok()?;
    serde_json::to_string(&record).ok()
}
