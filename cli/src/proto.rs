//! Decodes Nodes from protobuf, the encoding that Kubernetes components use. For a large cluster, an API server takes
//! several times as long to send JSON. As in [`berth_api::decode`], fields that no command reads are skipped, and a time
//! that cannot be decoded fails only its own part of the Node.
//!
//! Field numbers are from `k8s.io/api/core/v1/generated.proto` and
//! `k8s.io/apimachinery/pkg/{apis/meta/v1,runtime}/generated.proto`, which never reuse a number.

use std::collections::BTreeMap;

use berth_api::decode::{DELETED_LATE, Decoded};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use prost::Message;
use prost::bytes::Bytes;

/// Media type of Kubernetes protobuf.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// First bytes of each protobuf response.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Debug, thiserror::Error)]
#[error("the API server's list of Nodes is malformed")]
pub(crate) struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

pub(crate) fn nodes(answer: &Bytes) -> Result<Vec<Decoded<Node>>> {
    if !answer.starts_with(MAGIC) {
        return Err(Malformed);
    }
    let unknown = UnknownMessage::decode(answer.slice(MAGIC.len()..)).map_err(|_| Malformed)?;
    let list = ListMessage::decode(unknown.raw).map_err(|_| Malformed)?;
    Ok(list.items.into_iter().map(node).collect())
}

/// `runtime.Unknown`, the envelope of each response.
#[derive(Message)]
struct UnknownMessage {
    // Shares the memory of the response: decoding does not copy it.
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

#[derive(Message)]
struct ListMessage {
    #[prost(message, repeated, tag = "2")]
    items: Vec<NodeMessage>,
}

#[derive(Message)]
struct NodeMessage {
    #[prost(message, optional, tag = "1")]
    metadata: Option<MetaMessage>,
    #[prost(message, optional, tag = "2")]
    spec: Option<SpecMessage>,
    #[prost(message, optional, tag = "3")]
    status: Option<StatusMessage>,
}

#[derive(Message)]
struct MetaMessage {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "5")]
    uid: Option<String>,
    #[prost(string, optional, tag = "6")]
    resource_version: Option<String>,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<TimeMessage>,
    #[prost(message, optional, tag = "9")]
    deletion_timestamp: Option<TimeMessage>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
}

#[derive(Message)]
struct TimeMessage {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

#[derive(Message)]
struct SpecMessage {
    #[prost(bool, tag = "4")]
    unschedulable: bool,
}

#[derive(Message)]
struct StatusMessage {
    #[prost(message, repeated, tag = "4")]
    conditions: Vec<ConditionMessage>,
    #[prost(message, repeated, tag = "5")]
    addresses: Vec<AddressMessage>,
    #[prost(message, optional, tag = "7")]
    node_info: Option<InfoMessage>,
}

#[derive(Message)]
struct ConditionMessage {
    #[prost(string, tag = "1")]
    type_: String,
    #[prost(string, tag = "2")]
    status: String,
    #[prost(message, optional, tag = "3")]
    last_heartbeat_time: Option<TimeMessage>,
    #[prost(message, optional, tag = "4")]
    last_transition_time: Option<TimeMessage>,
    #[prost(string, tag = "5")]
    reason: String,
    #[prost(string, tag = "6")]
    message: String,
}

#[derive(Message)]
struct AddressMessage {
    #[prost(string, tag = "1")]
    type_: String,
    #[prost(string, tag = "2")]
    address: String,
}

#[derive(Message)]
struct InfoMessage {
    #[prost(string, tag = "3")]
    boot_id: String,
    #[prost(string, tag = "10")]
    architecture: String,
}

fn node(read: NodeMessage) -> Decoded<Node> {
    let mut status_error = None;
    let object = Node {
        metadata: read.metadata.map(metadata).unwrap_or_default(),
        spec: read.spec.map(spec),
        status: read.status.map(|read| status(read, &mut status_error)),
    };
    Decoded {
        object,
        spec_error: None,
        status_error,
    }
}

fn metadata(read: MetaMessage) -> ObjectMeta {
    let deleted = time(read.deletion_timestamp).unwrap_or(Some(DELETED_LATE));
    ObjectMeta {
        name: read.name,
        uid: read.uid,
        resource_version: read.resource_version,
        creation_timestamp: time(read.creation_timestamp).unwrap_or_default(),
        deletion_timestamp: deleted,
        labels: Some(read.labels).filter(|labels| !labels.is_empty()),
        annotations: Some(read.annotations).filter(|annotations| !annotations.is_empty()),
        ..ObjectMeta::default()
    }
}

/// Returns the time; `None` for an empty message, which API servers send for a time that is not set.
fn time(read: Option<TimeMessage>) -> std::result::Result<Option<Time>, jiff::Error> {
    let Some(TimeMessage { seconds, nanos }) = read else {
        return Ok(None);
    };
    if seconds.is_none() && nanos.is_none() {
        return Ok(None);
    }
    let time = Timestamp::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())?;
    Ok(Some(Time(time)))
}

fn spec(read: SpecMessage) -> NodeSpec {
    NodeSpec {
        unschedulable: Some(read.unschedulable).filter(|is| *is),
        ..NodeSpec::default()
    }
}

/// Returns the status. Without its conditions if one of them cannot be decoded; `error` is then set.
fn status(read: StatusMessage, error: &mut Option<String>) -> NodeStatus {
    let conditions: std::result::Result<Vec<NodeCondition>, _> = read.conditions.into_iter().map(condition).collect();
    let conditions = conditions.unwrap_or_else(|why| {
        *error = Some(format!("status.conditions: {why}"));
        vec![]
    });
    let addresses: Vec<NodeAddress> = read.addresses.into_iter().map(address).collect();
    NodeStatus {
        conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
        addresses: Some(addresses).filter(|addresses| !addresses.is_empty()),
        node_info: read.node_info.map(info),
        ..NodeStatus::default()
    }
}

fn condition(read: ConditionMessage) -> std::result::Result<NodeCondition, jiff::Error> {
    time(read.last_heartbeat_time)?;
    Ok(NodeCondition {
        type_: read.type_,
        status: read.status,
        last_transition_time: time(read.last_transition_time)?,
        reason: not_empty(read.reason),
        message: not_empty(read.message),
        ..NodeCondition::default()
    })
}

fn address(read: AddressMessage) -> NodeAddress {
    NodeAddress {
        type_: read.type_,
        address: read.address,
    }
}

fn info(read: InfoMessage) -> NodeSystemInfo {
    NodeSystemInfo {
        boot_id: read.boot_id,
        architecture: read.architecture,
        ..NodeSystemInfo::default()
    }
}

/// Returns the text, or `None` if it is empty: API servers send fields that are not set as empty text.
fn not_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Encodes a field with text or a message as its value.
    fn field(number: u8, value: impl AsRef<[u8]>) -> Vec<u8> {
        let value = value.as_ref();
        let mut bytes = vec![number << 3 | 2];
        if number > 15 {
            bytes = vec![(number << 3 | 2) & 0x7f | 0x80, number >> 4];
        }
        let mut length = value.len();
        while length > 0x7f {
            bytes.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        bytes.push(length as u8);
        bytes.extend(value);
        bytes
    }

    fn number(number: u8, mut value: u64) -> Vec<u8> {
        let mut bytes = vec![number << 3];
        while value > 0x7f {
            bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    /// Encodes a time: seconds after the beginning of 2026.
    fn at(seconds: u64) -> Vec<u8> {
        number(1, 1_767_225_600 + seconds)
    }

    fn entry(key: &str, value: &str) -> Vec<u8> {
        [field(1, key), field(2, value)].concat()
    }

    fn answer() -> Vec<u8> {
        let metadata = [
            field(1, "n1"),
            field(3, ""),
            field(5, "u1"),
            field(6, "7"),
            number(7, 0),
            field(8, at(0)),
            field(9, at(86_400)),
            field(11, entry("a", "b")),
            field(11, entry("empty", "")),
            field(12, entry("c", &"d".repeat(200))),
            field(14, "f"),
            field(17, vec![0; 300]),
        ];
        let spec = [field(1, "10.0.0.0/24"), field(3, ""), number(4, 1), field(5, "taint")];
        let condition = [
            field(1, "Ready"),
            field(2, "True"),
            field(3, ""),
            field(4, at(60)),
            field(5, "KubeletReady"),
            field(6, ""),
        ];
        let info = [
            field(1, "m"),
            field(3, "b"),
            field(9, "linux"),
            field(10, "amd64"),
            field(11, ""),
        ];
        let status = [
            field(1, entry("cpu", "4")),
            field(4, condition.concat()),
            field(5, [field(1, "InternalIP"), field(2, "10.0.0.1")].concat()),
            field(7, info.concat()),
            field(8, vec![1; 70_000]),
        ];
        let node = [
            field(1, metadata.concat()),
            field(2, spec.concat()),
            field(3, status.concat()),
        ];
        let bare = field(1, field(1, "n2"));
        let list = [field(1, field(2, "9")), field(2, node.concat()), field(2, bare)];
        let kind = [field(1, "v1"), field(2, "NodeList")].concat();
        let unknown = [field(1, kind), field(2, list.concat()), field(3, ""), field(4, "")];
        [MAGIC.to_vec(), unknown.concat()].concat()
    }

    #[test]
    fn reads_what_commands_need_of_a_node() {
        let nodes = nodes(&answer().into()).unwrap();
        let [node, bare] = nodes.as_slice() else {
            panic!("{nodes:?}")
        };
        let expected = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-02T00:00:00Z", "labels": {"a": "b", "empty": ""},
                "annotations": {"c": "d".repeat(200)},
            },
            "spec": {"unschedulable": true},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:01:00Z",
                }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
            },
        });
        assert_eq!(serde_json::to_value(node).unwrap(), expected);
        assert_eq!(bare.metadata.name.as_deref(), Some("n2"));
    }

    #[test]
    fn a_time_out_of_range_fails_only_its_conditions() {
        // The last time that jiff accepts is 26 hours before the end of the year 9999.
        let late = number(1, 253_402_300_799);
        let condition = [field(1, "Ready"), field(2, "True"), field(4, late.clone())].concat();
        let heartbeat = [field(1, "Ready"), field(2, "True"), field(3, late.clone())].concat();
        for condition in [condition, heartbeat] {
            let status = [field(4, condition), field(7, field(10, "amd64"))].concat();
            let metadata = [field(1, "n1"), field(8, late.clone()), field(9, late.clone())].concat();
            let bad = [field(1, metadata), field(3, status)].concat();
            let list = [field(2, bad), field(2, field(1, field(1, "n2")))].concat();
            let answer = [MAGIC.to_vec(), field(2, list)].concat();
            let nodes = nodes(&answer.into()).unwrap();
            let [bad, good] = nodes.as_slice() else {
                panic!("{nodes:?}")
            };
            assert!(bad.error().unwrap().starts_with("status.conditions: "), "{bad:?}");
            let status = bad.status.as_ref().unwrap();
            assert_eq!(status.node_info.as_ref().unwrap().architecture, "amd64");
            assert!(bad.metadata.creation_timestamp.is_none() && bad.metadata.deletion_timestamp.is_some());
            assert_eq!((good.metadata.name.as_deref(), good.error()), (Some("n2"), None));
        }
    }

    #[test]
    fn damaged_answers_do_not_panic() {
        let whole = answer();
        for length in 0..600 {
            // An answer that ends before the list, but after a complete field, is a valid empty list.
            let is_whole = [MAGIC.len(), MAGIC.len() + 16].contains(&length);
            let start = Bytes::copy_from_slice(&whole[..length]);
            assert_eq!(nodes(&start).is_ok(), is_whole, "the first {length} bytes");
        }
        for index in 0..600 {
            for bits in [0x01, 0x07, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[index] ^= bits;
                let _ = nodes(&changed.into());
            }
        }
        assert_eq!(nodes(&Bytes::from_static(MAGIC)).unwrap(), []);
    }
}
