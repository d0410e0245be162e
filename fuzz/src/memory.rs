//! Fuzzes the parsers of the files that the agent keeps on its host.

use berth_agent::host::parsers::pull_record;
use berth_core::agent::facts::{Fired, Past};
use berth_core::firstboot::Record;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads the input as the agent's memory, as the record of the first boot, as the record of a pull and as the rollback
/// guard's file. Panics if a valid file changes when it is written and read again.
pub fn memory(data: &[u8]) {
    stays_equal::<Past>(data);
    stays_equal::<Record>(data);
    if let Some(written) = pull_record(data) {
        assert_eq!(pull_record(written.as_bytes()), Some(written));
    }
    let text = String::from_utf8_lossy(data);
    if let Some(fired) = Fired::parse(&text) {
        let again = format!("target={}\nfired={}\n", fired.digest, fired.boot_id);
        assert_eq!(Fired::parse(&again), Some(fired));
    }
}

fn stays_equal<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(data: &[u8]) {
    let Ok(first) = serde_json::from_slice::<T>(data) else {
        return;
    };
    let written = serde_json::to_vec(&first).expect("a parsed value can be written");
    assert_eq!(serde_json::from_slice::<T>(&written).ok(), Some(first));
}
