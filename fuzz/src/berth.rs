//! Fuzzes the parser of berths in Leases.

use berth_api::berth::lease::{read, write};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Reads a Lease as a berth. Panics if a valid berth has another name than its Lease, or changes when it is written and
/// read again. The lines of the input are the Lease's name, its pool, its holder, and then one annotation per line.
pub fn berth(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.split('\n').map(str::to_owned);
    let (name, pool, holder_identity) = (lines.next(), lines.next(), lines.next());
    let annotations = lines.filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((format!("berth.dev/{key}"), value.to_owned()))
    });
    let lease = Lease {
        metadata: ObjectMeta {
            name,
            labels: pool.map(|pool| [("berth.dev/pool".to_owned(), pool)].into()),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity,
            ..LeaseSpec::default()
        }),
    };
    let name = lease.metadata.name.clone().unwrap_or_default();
    match read(&lease) {
        Ok(berth) => {
            assert_eq!(berth.name(), name);
            let mut written = lease;
            write(&berth, &mut written, Timestamp::UNIX_EPOCH);
            assert_eq!(read(&written).as_ref(), Ok(&berth));
            let before = written.clone();
            write(&berth, &mut written, Timestamp::UNIX_EPOCH);
            assert_eq!(written, before, "a second write changes something");
        }
        Err(error) => assert_eq!(error.lease, name),
    }
}
