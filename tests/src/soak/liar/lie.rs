//! A lie: a kind, and the random numbers that determine the rest.

use std::collections::BTreeSet;

use berth_model::random::Random;

use super::kind::Kind;
use super::request::{Request, View};
use super::values::Draw;
use super::{berths, forbidden, node, others, status};

/// A lie of a rollout.
#[derive(Debug, Clone)]
pub struct Lie {
    /// Kind of the lie.
    pub kind: Kind,
    random: Random,
}

impl Lie {
    /// Draws the lie with this number from a liar's seed. A subset of the kinds changes no other lie.
    pub fn drawn(seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        // The first bits of neighbouring seeds are similar.
        let mut random = Random::new(random.bits());
        let sum = Kind::ALL.iter().map(|kind| kind.weight()).sum::<u64>();
        let mut at = random.within(1..=sum);
        let mut kind = Kind::Heartbeat;
        for next in Kind::ALL {
            kind = *next;
            if at <= next.weight() {
                break;
            }
            at -= next.weight();
        }
        Self { kind, random }
    }

    /// Returns the numbers and lies of a repertoire, in order. `None` for an empty repertoire.
    pub fn first_of(repertoire: &BTreeSet<Kind>, seed: u64, from: u64) -> Option<(u64, Self)> {
        if repertoire.is_empty() {
            return None;
        }
        (from..).find_map(|number| {
            let lie = Self::drawn(seed, number);
            repertoire.contains(&lie.kind).then_some((number, lie))
        })
    }

    /// Returns the requests of the lie; none if the cluster gives no occasion for it, such as a berth to take.
    pub fn requests(&self, view: &View) -> Vec<Request> {
        let mut draw = Draw {
            random: self.random.clone(),
            view,
        };
        let draw = &mut draw;
        match self.kind {
            Kind::Heartbeat => status::heartbeat(draw),
            Kind::Prepared => status::prepared(draw),
            Kind::Updated => status::updated(draw),
            Kind::Pulling => status::pulling(draw),
            Kind::FailedDigests => status::failed_digests(draw),
            Kind::Status => status::any(draw),
            Kind::Conditions => status::conditions(draw),
            Kind::Times => status::times(draw),
            Kind::BootImage => status::boot_image(draw),
            Kind::FirstBoot => status::first_boot(draw),
            Kind::Record => status::record(draw),
            Kind::Bulk => status::bulk(draw),
            Kind::Take => berths::take(draw),
            Kind::Move => berths::moved(draw),
            Kind::Return => berths::given_back(draw),
            Kind::BerthTimes => berths::times(draw),
            Kind::Forbidden => forbidden::any(draw),
            Kind::Labels => node::labels(draw),
            Kind::Annotations => node::annotations(draw),
            Kind::Cordon => node::cordon(draw),
            Kind::Ready => node::ready(draw),
            Kind::NodeTimes => node::times(draw),
            Kind::NodeInfo => node::info(draw),
            Kind::Addresses => node::addresses(draw),
            Kind::NodeBulk => node::bulk(draw),
            Kind::NodeLease => others::node_lease(draw),
            Kind::MirrorPod => others::mirror_pod(draw),
            Kind::DeletePod => others::delete_pod(draw),
            Kind::Event => others::event(draw),
            Kind::EventTimes => others::event_times(draw),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::request::Identity;
    use super::*;

    pub(super) fn view() -> View {
        let lease = |name: &str, holder: &str, annotations: Value| {
            json!({
                "metadata": {
                    "name": name, "labels": { "berth.dev/pool": "workers" }, "annotations": annotations,
                    "resourceVersion": "7",
                },
                "spec": { "holderIdentity": holder },
            })
        };
        let held = json!({ "berth.dev/phase": "Taken", "berth.dev/epoch": "3", "berth.dev/node-uid": "u" });
        View {
            node: "node7".to_owned(),
            uid: "u".to_owned(),
            boot_id: "b".to_owned(),
            others: vec!["node1".to_owned(), "node2".to_owned()],
            target: format!("sha256:{}", "02".repeat(32)),
            before: format!("sha256:{}", "01".repeat(32)),
            bootc_node: json!({ "metadata": { "generation": 4 }, "spec": { "poolName": "workers" } }),
            leases: vec![
                lease(
                    "workers-0",
                    "offered:node7",
                    json!({ "berth.dev/epoch": "3", "berth.dev/node-uid": "u" }),
                ),
                lease("workers-1", "node7", held),
                lease("workers-2", "node1", json!({ "berth.dev/phase": "Taken" })),
                lease("workers-3", "closed:released", json!({})),
            ],
            pods: vec!["web-1".to_owned()],
            other_pods: vec!["web-2".to_owned()],
            now: 1_795_000_000,
        }
    }

    #[test]
    fn a_number_always_gives_the_same_lie() {
        let view = view();
        for number in 0..2_000 {
            let (one, two) = (Lie::drawn(5, number), Lie::drawn(5, number));
            assert_eq!(one.kind, two.kind);
            assert_eq!(one.requests(&view), two.requests(&view), "{number} {:?}", one.kind);
        }
        assert_ne!(Lie::drawn(5, 1).requests(&view), Lie::drawn(6, 1).requests(&view));
    }

    #[test]
    fn every_kind_is_told_and_has_a_request() {
        let view = view();
        let mut told = BTreeSet::new();
        for number in 0..2_000 {
            let lie = Lie::drawn(5, number);
            let requests = lie.requests(&view);
            assert!(!requests.is_empty(), "{:?}", lie.kind);
            told.insert(lie.kind);
        }
        assert_eq!(told.len(), Kind::ALL.len(), "{told:?}");
    }

    #[test]
    fn a_subset_keeps_the_other_lies() {
        let only = BTreeSet::from([Kind::Take]);
        let mut from = 0;
        for _ in 0..20 {
            let (number, lie) = Lie::first_of(&only, 5, from).unwrap();
            assert_eq!(lie.kind, Kind::Take);
            assert_eq!(lie.requests(&view()), Lie::drawn(5, number).requests(&view()));
            from = number + 1;
        }
        assert!(Lie::first_of(&BTreeSet::new(), 5, 0).is_none());
    }

    #[test]
    fn a_liar_writes_only_its_own_objects_unless_that_is_forbidden() {
        let view = view();
        for number in 0..2_000 {
            for request in Lie::drawn(5, number).requests(&view).iter().filter(|r| !r.is_forbidden) {
                let path = request.path.as_str();
                let is_berth = path.ends_with("/workers-0") || path.ends_with("/workers-1");
                let is_pod = path.contains("/pods") || path.contains("/events");
                assert!(path.contains("/node7") || is_berth || is_pod, "{path}");
            }
        }
    }

    #[test]
    fn statuses_have_the_form_of_the_crd() {
        let view = view();
        for number in 0..2_000 {
            let lie = Lie::drawn(5, number);
            for request in lie
                .requests(&view)
                .iter()
                .filter(|r| r.path.ends_with("bootcnodes/node7/status"))
            {
                if lie.kind == Kind::Times || request.is_forbidden {
                    continue;
                }
                let mut status = request.body["status"].clone();
                remove_nulls(&mut status);
                let read = serde_json::from_value::<berth_api::node::BootcNodeStatus>(status.clone());
                assert!(read.is_ok(), "{:?} {read:?} {status}", lie.kind);
            }
        }
    }

    fn remove_nulls(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.retain(|_, value| !value.is_null());
                fields.values_mut().for_each(remove_nulls);
            }
            Value::Array(values) => values.iter_mut().for_each(remove_nulls),
            _ => {}
        }
    }

    #[test]
    fn only_kinds_of_times_write_extreme_years() {
        let view = view();
        let of_times = [Kind::Times, Kind::BerthTimes, Kind::NodeTimes, Kind::EventTimes];
        let mut extreme = BTreeSet::new();
        for number in 0..4_000 {
            let lie = Lie::drawn(5, number);
            let is_extreme = lie.requests(&view).iter().any(|r| {
                let text = r.body.to_string();
                text.contains("9999-12") || text.contains("0001-01")
            });
            if is_extreme {
                extreme.insert(lie.kind);
            }
        }
        // A forbidden write may be one of a year that the policy refuses.
        extreme.remove(&Kind::Forbidden);
        assert_eq!(extreme, BTreeSet::from(of_times));
    }

    #[test]
    fn the_agent_never_uses_the_kubelets_rights() {
        let view = view();
        for number in 0..2_000 {
            for request in Lie::drawn(5, number).requests(&view).iter().filter(|r| !r.is_forbidden) {
                let is_of_agent = request.path.contains("bootcnodes") || request.path.contains("berth-system/leases");
                assert_eq!(request.identity == Identity::Agent, is_of_agent, "{}", request.path);
            }
        }
    }
}
