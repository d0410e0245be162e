//! Random values: digests, times, words, texts.

use berth_model::random::Random;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::request::View;

/// Times that the API server stores and some programs cannot read.
const EXTREME: [&str; 10] = [
    "9999-12-31T23:59:59Z",
    "9999-12-30T22:00:01Z",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "1969-12-31T23:59:59Z",
    "2038-01-19T03:14:08Z",
    "2262-04-12T00:00:00Z",
    "2500-01-01T00:00:00Z",
    "9999-12-31T23:59:59-12:00",
    "2026-01-01T00:00:00+23:59",
];

/// Parts of texts that programs may misread.
const PIECES: [&str; 12] = [
    "node0",
    "node99",
    "\u{1b}[2J\u{1b}[31m",
    "\n",
    "{{.}}",
    "%s%n",
    "\"},{\"",
    "\u{202e}",
    "💥",
    "<script>",
    "berth.dev/exclude",
    "ä\u{0301}",
];

/// Draws the values of one lie.
#[derive(Debug)]
pub struct Draw<'a> {
    pub(super) random: Random,
    pub(super) view: &'a View,
}

impl Draw<'_> {
    pub(super) fn one_of<'t, T: ?Sized>(&mut self, list: &[&'t T]) -> &'t T {
        list[self.random.below(list.len())]
    }

    pub(super) fn coin(&mut self) -> bool {
        self.random.one_in(2)
    }

    /// A digest: the target, the image before, or another one.
    pub(super) fn digest(&mut self) -> String {
        match self.random.within(0..=9) {
            0..=4 => self.view.wanted().to_owned(),
            5 | 6 => self.view.before.clone(),
            7 => format!("sha256:{}", "0".repeat(64)),
            _ => format!("sha256:{}", self.hex(64)),
        }
    }

    pub(super) fn hex(&mut self, length: usize) -> String {
        (0..length)
            .map(|_| char::from_digit(u32::try_from(self.random.within(0..=15)).unwrap_or(0), 16).unwrap_or('0'))
            .collect()
    }

    /// Owners of fields, as an object's metadata has them, with an extreme time.
    pub(super) fn field_owners(&mut self, api_version: &str) -> Value {
        json!([{
            "manager": "liar", "operation": "Update", "apiVersion": api_version, "time": self.extreme_time(),
            "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": { "f:annotations": {} } },
        }])
    }

    /// A time within ten years of now.
    pub(super) fn time(&mut self) -> String {
        let most = 10 * 365 * 86_400;
        let span = match self.random.within(0..=3) {
            0 => 0,
            1 => 600,
            2 => 86_400,
            _ => most,
        };
        let back = i64::try_from(self.random.within(0..=2 * span)).unwrap_or(0);
        let second = self.view.now + back - i64::try_from(span).unwrap_or(0);
        let time = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
        time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }

    pub(super) fn extreme_time(&mut self) -> String {
        self.one_of(&EXTREME).to_owned()
    }

    /// The running boot, or another one.
    pub(super) fn boot_id(&mut self) -> String {
        match self.random.within(0..=3) {
            0 | 1 => self.view.boot_id.clone(),
            2 => self.hex(32),
            _ => "x".to_owned(),
        }
    }

    pub(super) fn other_node(&mut self) -> String {
        let at = self.random.below(self.view.others.len());
        self.view.others.get(at).cloned().unwrap_or_default()
    }

    /// A text of at most this many characters, which is sometimes that long.
    pub(super) fn text(&mut self, most: usize) -> String {
        let length = match self.random.within(0..=7) {
            0 => most,
            1 => 0,
            _ => self.random.below(most.min(40)),
        };
        let mut text = String::new();
        while text.chars().count() < length {
            let piece = self.one_of(&PIECES);
            text.push_str(piece);
            text.push_str(&"x".repeat(self.random.below(length)));
        }
        text.chars().take(length).collect()
    }

    /// A word, as a reason or a version is.
    pub(super) fn word(&mut self) -> String {
        let words = [
            "AsExpected",
            "Unguarded",
            "Failed",
            "Draining",
            "A",
            "1.0.0",
            "999999999999.0.0",
            "v1.2.3-rc.1",
        ];
        if self.random.one_in(4) {
            return format!("W{}", self.hex(8));
        }
        self.one_of(&words).to_owned()
    }

    pub(super) fn number(&mut self) -> u64 {
        match self.random.within(0..=4) {
            0 => 0,
            1 => u64::from(u32::MAX),
            2 => 2_147_483_647,
            _ => self.random.within(0..=1_000),
        }
    }

    /// A condition of this type.
    pub(super) fn condition(&mut self, type_: &str) -> Value {
        let status = self.one_of(&["True", "False", "Unknown"]);
        let message = if self.random.one_in(8) { 32_768 } else { 300 };
        json!({
            "type": type_, "status": status, "reason": self.reason(), "message": self.text(message),
            "lastTransitionTime": self.time(), "observedGeneration": self.random.within(0..=9),
        })
    }

    /// A reason of Berth's tables, or another word.
    pub(super) fn reason(&mut self) -> String {
        let known = [
            "AsExpected",
            "NotYet",
            "Pulling",
            "Blocked",
            "Unguarded",
            "Failed",
            "Booted",
            "Locked",
            "Ready",
            "InTurn",
            "Inhibited",
            "Revoked",
            "Excluded",
            "Draining",
            "Rebooting",
            "Degraded",
            "NodeNotReady",
            "Staging",
        ];
        if self.random.one_in(4) {
            return format!("R{}", self.hex(6));
        }
        self.one_of(&known).to_owned()
    }

    /// Keeps about half of the fields; sets a few of the others to null.
    pub(super) fn some_of(&mut self, fields: Value) -> Value {
        let Value::Object(fields) = fields else { return fields };
        let mut kept = Map::new();
        for (key, value) in fields {
            if self.coin() {
                kept.insert(key, value);
            } else if self.random.one_in(8) {
                kept.insert(key, Value::Null);
            }
        }
        Value::Object(kept)
    }
}
