//! Generators of facts for the property tests: arbitrary facts, and facts of a turn with some fields replaced.

use berth_api::pool::SignatureRule;
use proptest::prelude::*;

use super::*;
use crate::agent::facts::Verified;
use crate::agent::host_policy::signatures::{PLACES, Policy};

fn any_deployment() -> impl Strategy<Value = Option<Deployment>> {
    prop::option::of((1u8..4, any::<bool>()).prop_map(|(n, locked)| deployment(n, locked)))
}

fn any_os() -> impl Strategy<Value = Os> {
    let queued = prop::bool::weighted(0.1);
    let kind = prop_oneof![
        2 => Just((Storage::Ostree, false, None)),
        1 => Just((Storage::Ostree, true, None)),
        1 => Just((Storage::Composefs, true, None)),
        1 => (any::<bool>(), any::<bool>()).prop_map(move |(stages_locked, refuses)| {
            (Storage::Composefs, stages_locked, refuses.then(|| "composefs".to_owned()))
        }),
    ];
    let deployments = (1u8..4, any_deployment(), any::<bool>(), prop::bool::weighted(0.2));
    let stranded = prop::bool::weighted(0.1);
    let known = (deployments, queued, stranded, kind).prop_map(|(deployments, rollback_queued, stranded, kind)| {
        let (booted, staged, staged_signed, layers) = deployments;
        let (storage, stages_locked, refusal) = kind;
        Os::Bootc(Box::new(Deployments {
            storage,
            stages_locked,
            refusal,
            booted: deployment(booted, false),
            staged_layers: layers && staged.is_some(),
            link_without_unit: (stranded && staged.is_some()).then(|| "/etc/link".to_owned()),
            staged,
            staged_signed,
            rollback_queued,
            ..Deployments::default()
        }))
    });
    prop_oneof![
        6 => known,
        1 => Just(Os::Unknown),
        1 => Just(Os::Unusable { reason: Reason::StatusFailed, message: String::new() }),
    ]
}

fn any_berth() -> impl Strategy<Value = Option<Berth>> {
    let [releasing, after_a_reboot] =
        ["b1", "b2"].map(|boot| taken().releasing(Outcome::DrainTimeout, boot.into()).unwrap());
    prop_oneof![
        Just(None),
        Just(Some(offered(2, "u1"))),
        Just(Some(offered(3, "u1"))),
        Just(Some(taken())),
        Just(Some(taken().revoked(Some("Paused".into())).unwrap())),
        Just(Some(committed())),
        Just(Some(relicensed())),
        Just(Some(relicensed().revoked(Some("Paused".into())).unwrap())),
        Just(Some(committed().revoked(Some("Paused".into())).unwrap())),
        Just(Some(releasing)),
        Just(Some(after_a_reboot)),
    ]
}

fn any_node() -> impl Strategy<Value = ClusterNode> {
    let bits = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    );
    let bits = (bits, prop::bool::weighted(0.1));
    let node = bits.prop_map(|((other_uid, unschedulable, ready, new_boot, ours), excluded)| {
        ClusterNode::Is(NodeFacts {
            uid: NodeUid::from(if other_uid { "u9" } else { "u1" }),
            unschedulable,
            ready,
            boot_id: Some(BootId::from(if new_boot { "b2" } else { "b1" })),
            cordon: ours.then(|| CordonRecord {
                berth: "workers-0".into(),
                unschedulable: false,
            }),
            excluded,
            control_plane: false,
            ..node()
        })
    });
    prop_oneof![8 => node, 1 => Just(ClusterNode::Unread), 1 => Just(ClusterNode::Gone)]
}

fn any_desired() -> impl Strategy<Value = Desired> {
    let member = (2u8..4, prop::bool::weighted(0.2)).prop_map(|(n, signed)| {
        let mut member = member(n);
        if let (Some(image), true) = (&mut member.image, signed) {
            image.signature = SignatureRule::Required;
        }
        Desired::Member(Box::new(member))
    });
    prop_oneof![
        6 => member,
        1 => Just(Desired::Unknown),
        1 => Just(Desired::Release),
    ]
}

fn any_past() -> impl Strategy<Value = Past> {
    let failed = prop::collection::vec(2u8..4, 0..2);
    let tried = prop::option::weighted(0.3, 2u8..4);
    let unproven = prop::option::weighted(0.3, prop_oneof![Just("b1"), Just("b2")]);
    let ours = prop::option::of(2u8..4);
    let incomplete = prop::option::weighted(0.2, 2u8..4);
    let verified = prop::option::weighted(0.8, (2u8..4, prop_oneof![9 => Just(7u8), 1 => Just(8u8)]));
    let verified = verified.prop_map(|pulled| {
        pulled.map(|(n, policy)| Verified {
            digest: digest(n),
            policy: digest(policy),
        })
    });
    let staged = (ours, incomplete, verified);
    (failed, tried, unproven, 0u32..4, staged).prop_map(|(failed, tried, unproven, times, staged)| Past {
        failed_digests: failed.into_iter().map(digest).collect(),
        tried: tried.map(digest),
        unproven_boot: unproven.map(BootId::from),
        not_applied: Some((digest(2), times)),
        staged_by_us: staged.0.map(digest),
        incomplete: staged.1.map(digest),
        verified: staged.2,
        ..Past::default()
    })
}

/// Returns a host policy that accepts no unsigned image. Berth allows this policy even in a pool that requires
/// signatures.
fn enforcing() -> Rules {
    let policy = Policy::parse(PLACES[0], br#"{"default": [{"type": "reject"}]}"#);
    Rules {
        policy,
        policy_digest: Some(digest(7)),
        ..Rules::default()
    }
}

fn any_reboot() -> impl Strategy<Value = Reboot> {
    let ago = (0u64..200).prop_map(Duration::from_secs);
    prop_oneof![
        4 => Just(Reboot::NotAsked),
        1 => ago.clone().prop_map(Reboot::Asked),
        1 => ago.prop_map(|ago| Reboot::Blocked { why: "refused".into(), ago }),
    ]
}

prop_compose! {
    fn any_host()(
        os in any_os(), fresh: bool, new_boot: bool, shutting_down in prop::bool::weighted(0.1),
        inhibited in prop::bool::weighted(0.2), shutdown_scheduled in prop::bool::weighted(0.1), reboot in any_reboot(),
        clock_synchronized in prop_oneof![4 => Just(Some(true)), 1 => Just(Some(false)), 1 => Just(None)],
        pulled in prop::option::weighted(0.1, 2u8..4), disarmed: bool, lock_failure in prop::option::weighted(0.2, prop_oneof![Just(0), Just(30)]),
        forbids in prop::bool::weighted(0.1), silent_for in prop::option::weighted(0.15, 0u64..100),
    ) -> HostFacts {
        let pull = pulled.map(|n| PullFacts { digest: digest(n), progress: None });
        HostFacts {
            // During a pull, the staged image is unknown.
            os: if pull.is_some() { Os::Unknown } else { os },
            fresh: fresh && pull.is_none(),
            disarmed,
            lock_failure: lock_failure.map(|seconds| LockFailure {
                why: "no".into(),
                pause: Duration::from_secs(seconds),
            }),
            pull,
            boot_id: BootId::from(if new_boot { "b2" } else { "b1" }),
            shutting_down,
            inhibitors: if inhibited { vec!["backup".into()] } else { vec![] },
            shutdown_scheduled,
            reboot,
            clock_synchronized,
            unreachable: silent_for.map(|seconds| Unreachable {
                why: "no answer".into(),
                ago: Duration::from_secs(seconds),
            }),
            rules: if forbids { forbidding() } else { enforcing() },
            ..facts().host
        }
    }
}

prop_compose! {
    fn any_facts()(
        host in any_host(), berth in any_berth(), cluster_node in any_node(), desired in any_desired(), past in any_past(),
        done: bool, restored: bool, fenced: bool, late in prop::bool::weighted(0.2), is_proving_long: bool,
    ) -> AgentFacts {
        let mut facts = AgentFacts { host, desired, cluster_node, past, restored, fenced, ..facts() };
        facts.berths = Some(berth.into_iter().collect());
        facts.now = if late { now() + HOUR } else { now() };
        facts.proving_for = if is_proving_long { HOUR * 2 } else { Duration::ZERO };
        facts.drain.done = done;
        facts
    }
}

/// Returns, for each kind of step, consistent facts that lead to this step.
fn coherent() -> Vec<(&'static str, AgentFacts)> {
    let unstaged = change(facts(), |f| os(f, 1, None));
    let nobodys = change(facts(), |f| {
        os(f, 1, Some(deployment(2, false)));
        f.desired = Desired::Unknown;
        f.past.staged_by_us = Some(digest(2));
    });
    let offered_berth = change(facts(), |f| f.berths = Some(vec![offered(2, "u1")]));
    let drained = change(with(&taken()), |f| f.drain.done = true);
    let locked = change(with(&committed()), |f| f.drain.done = true);
    let unlocked = change(locked.clone(), |f| os(f, 1, Some(deployment(2, false))));
    let mut asked_back = with(&committed().revoked(Some("Paused".into())).unwrap());
    asked_back.past.failed_digests = [digest(2)].into();
    let relicensed_and_unlocked = change(stuck(&relicensed(), 2), |f| os(f, 2, Some(deployment(3, false))));
    let mut silent = with(&taken().revoked(Some("Paused".into())).unwrap());
    silent.host.disarmed = true;
    silent.host.unreachable = Some(Unreachable {
        why: "no answer".into(),
        ago: HOUR,
    });
    let mut refused = with(&taken());
    deployments_of(&mut refused, |deployments| {
        (deployments.storage, deployments.refusal) = (Storage::Composefs, Some("composefs".to_owned()));
    });
    let forbidden = change(with(&taken()), |f| f.host.rules = forbidding());

    let releasing = committed().releasing(Outcome::Updated, BootId::from("b2")).unwrap();
    let ending = rebooted(&releasing, 2);
    let mut ended = ending.clone();
    ended.restored = true;
    ended.cluster_node = ClusterNode::Is(NodeFacts {
        boot_id: Some(BootId::from("b2")),
        ..node()
    });
    vec![
        ("wait", facts()),
        ("pull", unstaged),
        ("lock", nobodys),
        ("take", offered_berth),
        ("drain", with(&taken())),
        ("commit", drained),
        ("unlock", locked),
        ("reboot", unlocked),
        ("uncommit", asked_back),
        ("release", rebooted(&committed(), 2)),
        ("relicense", stuck(&committed(), 2)),
        ("unlock", stuck(&relicensed(), 2)),
        ("reboot", relicensed_and_unlocked),
        ("release", silent),
        ("release", refused),
        ("release", forbidden),
        ("restore", ending),
        ("give back", ended),
    ]
}

const TAKE_OVER: [fn(&mut AgentFacts, &AgentFacts); 22] = [
    |facts, from| facts.desired = from.desired.clone(),
    |facts, from| facts.cluster_node = from.cluster_node.clone(),
    |facts, from| facts.berths = from.berths.clone(),
    |facts, from| facts.past = from.past.clone(),
    |facts, from| facts.now = from.now,
    |facts, from| facts.fenced = from.fenced,
    |facts, from| facts.restored = from.restored,
    |facts, from| facts.drain = from.drain.clone(),
    |facts, from| facts.proving_for = from.proving_for,
    |facts, from| facts.host.os = from.host.os.clone(),
    |facts, from| facts.host.fresh = from.host.fresh,
    |facts, from| facts.host.pull = from.host.pull.clone(),
    |facts, from| facts.host.disarmed = from.host.disarmed,
    |facts, from| facts.host.lock_failure = from.host.lock_failure.clone(),
    |facts, from| facts.host.boot_id = from.host.boot_id.clone(),
    |facts, from| facts.host.shutting_down = from.host.shutting_down,
    |facts, from| facts.host.inhibitors = from.host.inhibitors.clone(),
    |facts, from| facts.host.shutdown_scheduled = from.host.shutdown_scheduled,
    |facts, from| facts.host.reboot = from.host.reboot.clone(),
    |facts, from| facts.host.clock_synchronized = from.host.clock_synchronized,
    |facts, from| facts.host.unreachable = from.host.unreachable.clone(),
    |facts, from| facts.host.rules = from.host.rules.clone(),
];

/// Returns consistent facts with up to three fields replaced by arbitrary values.
fn nearly_coherent() -> impl Strategy<Value = AgentFacts> {
    let bases: Vec<AgentFacts> = coherent().into_iter().map(|(_, facts)| facts).collect();
    let base = prop::sample::select(bases);
    let replaced = prop::collection::vec(0..TAKE_OVER.len(), 0..=3);
    (base, any_facts(), replaced).prop_map(|(mut facts, other, replaced)| {
        for fact in replaced {
            TAKE_OVER[fact](&mut facts, &other);
        }
        if facts.host.pull.is_some() {
            (facts.host.os, facts.host.fresh) = (Os::Unknown, false);
        }
        facts
    })
}

/// Returns arbitrary facts in half of the cases, and nearly consistent facts in the other half. Arbitrary facts alone
/// would hardly ever lead to a reboot.
pub(super) fn all_kinds() -> impl Strategy<Value = AgentFacts> {
    prop_oneof![any_facts(), nearly_coherent()]
}

/// Returns the name that [`coherent`] uses for this kind of step.
pub(super) fn name(step: &Step) -> &'static str {
    match step {
        Step::Wait(..) => "wait",
        Step::LookAtHost => "look",
        Step::ReadNode => "read",
        Step::TryGuard => "guard",
        Step::StartPull(..) => "pull",
        Step::CancelPull(_) => "cancel",
        Step::Lock(_) => "lock",
        Step::Unlock => "unlock",
        Step::Unstage(_) => "unstage",
        Step::Reboot => "reboot",
        Step::Rollback(..) => "roll back",
        Step::Take(_) => "take",
        Step::Cordon(_) => "cordon",
        Step::Drain => "drain",
        Step::Commit(_) => "commit",
        Step::Fence(_) => "fence",
        Step::Uncommit(_) => "uncommit",
        Step::Relicense(..) => "relicense",
        Step::Release(..) => "release",
        Step::Restore(_) => "restore",
        Step::GiveBack(_) => "give back",
        Step::Uncordon => "uncordon",
    }
}

#[test]
fn consistent_facts_lead_to_each_step() {
    for (expected, facts) in coherent() {
        let next = step(&facts);
        assert_eq!(name(&next), expected, "{next:?}");
    }
}
