//! Nodes in the encoding that API servers use among themselves (protobuf). To encode a large cluster's Nodes as JSON takes an API server
//! several times as long. As in [`crate::lean`], what no command reads is passed over.
//!
//! Numbers of fields are those of `k8s.io/api/core/v1/generated.proto` and `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`, where a
//! number is never given to another field.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeSpec, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// Media type to ask for.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// Beginning of each answer.
const MAGIC: &[u8] = b"k8s\0";

/// The answer is not what the encoding allows.
#[derive(Debug, thiserror::Error)]
#[error("the API server's list of Nodes is malformed")]
pub(crate) struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

/// A page of a list.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Page {
    /// Its Nodes.
    pub(crate) nodes: Vec<Node>,
    /// Token by which the next page is asked for; empty for the last one.
    pub(crate) next: String,
}

/// Reads an answer to a list of Nodes.
///
/// # Errors
/// When it is malformed.
pub(crate) fn page(answer: &[u8]) -> Result<Page> {
    let unknown = answer.strip_prefix(MAGIC).ok_or(Malformed)?;
    let mut page = Page::default();
    each(unknown, |number, value| match number {
        2 => each(value.bytes()?, |number, value| {
            match number {
                1 => page.next = token(value.bytes()?)?,
                2 => page.nodes.push(node(value.bytes()?)?),
                _ => {}
            }
            Ok(())
        }),
        _ => Ok(()),
    })?;
    Ok(page)
}

/// Value of a field, by the encoding's wire types.
#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A number of a fixed length, which no field here is.
    Fixed,
}

impl<'a> Value<'a> {
    fn bytes(self) -> Result<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) | Self::Fixed => Err(Malformed),
        }
    }

    fn text(self) -> Result<String> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)?;
        Ok(text.to_owned())
    }

    /// A signed number, which is sent as its two's complement.
    fn number(self) -> Result<i64> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            Self::Bytes(_) | Self::Fixed => Err(Malformed),
        }
    }
}

/// Calls `take` with the number and value of each field of a message.
fn each<'a>(mut message: &'a [u8], mut take: impl FnMut(u64, Value<'a>) -> Result<()>) -> Result<()> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let value = match key & 7 {
            0 => Value::Number(varint(&mut message)?),
            1 => split(&mut message, 8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(varint(&mut message)?).map_err(|_| Malformed)?;
                Value::Bytes(split(&mut message, length)?)
            }
            5 => split(&mut message, 4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed),
        };
        take(key >> 3, value)?;
    }
    Ok(())
}

/// Takes so many bytes off the front.
fn split<'a>(message: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (front, rest) = message.split_at_checked(length).ok_or(Malformed)?;
    *message = rest;
    Ok(front)
}

/// Takes a number off the front: seven bits in each byte, the lowest first.
fn varint(message: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *split(message, 1)?.first().ok_or(Malformed)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Malformed)
}

/// Token of the next page, from the metadata of a list.
fn token(message: &[u8]) -> Result<String> {
    let mut token = String::new();
    each(message, |number, value| {
        if number == 3 {
            token = value.text()?;
        }
        Ok(())
    })?;
    Ok(token)
}

fn node(message: &[u8]) -> Result<Node> {
    let mut node = Node::default();
    each(message, |number, value| {
        match number {
            1 => node.metadata = metadata(value.bytes()?)?,
            2 => node.spec = Some(spec(value.bytes()?)?),
            3 => node.status = Some(status(value.bytes()?)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(node)
}

fn metadata(message: &[u8]) -> Result<ObjectMeta> {
    let mut metadata = ObjectMeta::default();
    each(message, |number, value| {
        match number {
            1 => metadata.name = Some(value.text()?),
            5 => metadata.uid = Some(value.text()?),
            6 => metadata.resource_version = Some(value.text()?),
            // Zero is how a number is sent that is not there.
            7 => metadata.generation = Some(value.number()?).filter(|number| *number != 0),
            8 => metadata.creation_timestamp = time(value.bytes()?)?,
            9 => metadata.deletion_timestamp = time(value.bytes()?)?,
            11 => insert(metadata.labels.get_or_insert_default(), value.bytes()?)?,
            12 => insert(metadata.annotations.get_or_insert_default(), value.bytes()?)?,
            14 => metadata.finalizers.get_or_insert_default().push(value.text()?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(metadata)
}

/// Takes in one entry of a map.
fn insert(map: &mut BTreeMap<String, String>, entry: &[u8]) -> Result<()> {
    let (mut key, mut text) = (String::new(), String::new());
    each(entry, |number, value| {
        match number {
            1 => key = value.text()?,
            2 => text = value.text()?,
            _ => {}
        }
        Ok(())
    })?;
    map.insert(key, text);
    Ok(())
}

/// A time; `None` for an empty message, which is how one is sent that is not there.
fn time(message: &[u8]) -> Result<Option<Time>> {
    if message.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    each(message, |number, value| {
        match number {
            1 => seconds = value.number()?,
            2 => nanoseconds = value.number()?,
            _ => {}
        }
        Ok(())
    })?;
    let nanoseconds = i32::try_from(nanoseconds).map_err(|_| Malformed)?;
    let time = Timestamp::new(seconds, nanoseconds).map_err(|_| Malformed)?;
    Ok(Some(Time(time)))
}

fn spec(message: &[u8]) -> Result<NodeSpec> {
    let mut spec = NodeSpec::default();
    each(message, |number, value| {
        match number {
            1 => spec.pod_cidr = Some(value.text()?).filter(|text| !text.is_empty()),
            3 => spec.provider_id = Some(value.text()?).filter(|text| !text.is_empty()),
            4 => spec.unschedulable = Some(value.number()? != 0).filter(|is| *is),
            _ => {}
        }
        Ok(())
    })?;
    Ok(spec)
}

fn status(message: &[u8]) -> Result<NodeStatus> {
    let mut status = NodeStatus::default();
    each(message, |number, value| {
        match number {
            4 => status
                .conditions
                .get_or_insert_default()
                .push(condition(value.bytes()?)?),
            5 => status.addresses.get_or_insert_default().push(address(value.bytes()?)?),
            7 => status.node_info = Some(info(value.bytes()?)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(status)
}

fn condition(message: &[u8]) -> Result<NodeCondition> {
    let mut condition = NodeCondition::default();
    each(message, |number, value| {
        match number {
            1 => condition.type_ = value.text()?,
            2 => condition.status = value.text()?,
            3 => condition.last_heartbeat_time = time(value.bytes()?)?,
            4 => condition.last_transition_time = time(value.bytes()?)?,
            5 => condition.reason = Some(value.text()?).filter(|text| !text.is_empty()),
            6 => condition.message = Some(value.text()?).filter(|text| !text.is_empty()),
            _ => {}
        }
        Ok(())
    })?;
    Ok(condition)
}

fn address(message: &[u8]) -> Result<NodeAddress> {
    let mut address = NodeAddress::default();
    each(message, |number, value| {
        match number {
            1 => address.type_ = value.text()?,
            2 => address.address = value.text()?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(address)
}

fn info(message: &[u8]) -> Result<NodeSystemInfo> {
    let mut info = NodeSystemInfo::default();
    each(message, |number, value| {
        let field = match number {
            1 => &mut info.machine_id,
            2 => &mut info.system_uuid,
            3 => &mut info.boot_id,
            4 => &mut info.kernel_version,
            5 => &mut info.os_image,
            6 => &mut info.container_runtime_version,
            7 => &mut info.kubelet_version,
            8 => &mut info.kube_proxy_version,
            9 => &mut info.operating_system,
            10 => &mut info.architecture,
            _ => return Ok(()),
        };
        *field = value.text()?;
        Ok(())
    })?;
    Ok(info)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A field whose value is text, or another message.
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

    /// The beginning of 2026, and seconds after that.
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
        let list = [
            field(1, [field(2, "9"), field(3, "next")].concat()),
            field(2, node.concat()),
            field(2, bare),
        ];
        let kind = [field(1, "v1"), field(2, "NodeList")].concat();
        let unknown = [field(1, kind), field(2, list.concat()), field(3, ""), field(4, "")];
        [MAGIC.to_vec(), unknown.concat()].concat()
    }

    #[test]
    fn reads_what_commands_need_of_a_node() {
        let page = page(&answer()).unwrap();
        assert_eq!(page.next, "next");
        let [node, bare] = page.nodes.as_slice() else {
            panic!("{page:?}")
        };
        let expected = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": "n1", "uid": "u1", "resourceVersion": "7", "creationTimestamp": "2026-01-01T00:00:00Z",
                "deletionTimestamp": "2026-01-02T00:00:00Z", "labels": {"a": "b", "empty": ""},
                "annotations": {"c": "d".repeat(200)}, "finalizers": ["f"],
            },
            "spec": {"unschedulable": true, "podCIDR": "10.0.0.0/24"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": "2026-01-01T00:01:00Z",
                }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                    "kubeletVersion": "", "machineID": "m", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
                },
            },
        });
        assert_eq!(serde_json::to_value(node).unwrap(), expected);
        assert_eq!(bare.metadata.name.as_deref(), Some("n2"));
    }

    #[test]
    fn what_is_cut_off_or_changed_is_an_error_or_another_answer_and_no_panic() {
        let whole = answer();
        for length in 0..600 {
            // Nothing is missing at the ends of the first two parts, where the list has yet to begin.
            let is_whole = [MAGIC.len(), MAGIC.len() + 16].contains(&length);
            assert_eq!(page(&whole[..length]).is_ok(), is_whole, "the first {length} bytes");
        }
        for index in 0..600 {
            for bits in [0x01, 0x07, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[index] ^= bits;
                let _ = page(&changed);
            }
        }
        assert_eq!(page(MAGIC).unwrap(), Page::default());
    }
}
