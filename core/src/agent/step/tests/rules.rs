//! Tests of images that the host's own policy rejects.

use berth_api::condition::{self, node as types};
use berth_api::node::BootcNodeStatus;
use berth_api::pool::SignatureRule;

use super::*;
use crate::agent::facts::Verified;
use crate::agent::host_policy::signatures::{PLACES, Policy};
use crate::agent::report::{Machine, Subject, phase, report};

const REFUSED: Step = Step::Wait(WaitReason::ImageRefused, None);

fn refused(mut facts: AgentFacts) -> AgentFacts {
    facts.host.rules = forbidding();
    facts
}

fn wants_signatures(facts: &mut AgentFacts) {
    publish(facts, |member| {
        let image = member.image.as_mut().unwrap();
        image.signature = SignatureRule::Required;
    });
    facts.host.rules.policy = Policy::parse(PLACES[0], br#"{"default": [{"type": "reject"}]}"#);
}

/// Returns the facts of a host with this policy. Its pool requires signed images.
fn signed(policy: &str) -> AgentFacts {
    let mut facts = facts();
    let image = DesiredImage {
        signature: SignatureRule::Required,
        ..image(2)
    };
    facts.desired = Desired::Member(Box::new(Member {
        image: Some(image),
        ..member(2)
    }));
    facts.host.rules.policy = Policy::parse(PLACES[0], policy.as_bytes());
    os(&mut facts, 1, None);
    facts
}

fn degraded(facts: &AgentFacts) -> String {
    let next = step(facts);
    let subject = Subject {
        generation: None,
        step: &next,
        machine: &Machine::default(),
        heartbeat: later(0),
        conditions: &[],
    };
    let status = report(facts, &subject, &BootcNodeStatus::default());
    let [pulled, degraded] =
        [types::IMAGE_PULLED, types::NODE_DEGRADED].map(|type_| condition::find(&status.conditions, type_).unwrap());
    assert_eq!(pulled.reason, degraded.reason);
    format!("{} {} {}", degraded.status, degraded.reason, degraded.message)
}

#[test]
fn an_image_from_a_forbidden_registry_is_refused() {
    let mut f = refused(facts());
    assert_eq!(step(&f), Step::Unstage(deployment(2, true)), "it was staged before");
    f.berths = Some(vec![offered(2, "u1")]);
    assert_eq!(
        step(&f),
        Step::Unstage(deployment(2, true)),
        "and no turn begins with it"
    );
    os(&mut f, 1, None);
    assert_eq!(step(&f), REFUSED);
    assert_eq!(phase(&f, &REFUSED), berth_api::node::Phase::Degraded);
    let shown = degraded(&f);
    assert!(
        shown.starts_with("True RegistryNotAllowed registry.example/os@sha256:0202"),
        "{shown}"
    );
    f.host.os = Os::Unknown;
    f.host.pull = Some(PullFacts {
        digest: digest(2),
        progress: None,
    });
    assert_eq!(step(&f), Step::CancelPull(digest(2)));
    let mut runs = refused(facts());
    os(&mut runs, 2, None);
    assert_eq!(
        step(&runs),
        Step::Wait(WaitReason::Updated, None),
        "nothing is to be done"
    );
}

#[test]
fn the_hosts_rules_end_an_uncommitted_turn() {
    let mut turn = refused(with(&taken()));
    turn.drain.done = true;
    assert!(matches!(step(&turn), Step::Release(_, Outcome::RebootBlocked, why) if why.contains("matches no prefix")));
    let mut committed = refused(with(&committed()));
    committed.drain.done = true;
    assert_eq!(step(&committed), Step::Unlock);
}

#[test]
fn a_stuck_node_continues_only_to_an_allowed_image() {
    let berth = committed();
    let mut f = refused(stuck(&berth, 2));
    f.berths = Some(vec![berth]);
    assert!(
        matches!(step(&f), Step::Wait(WaitReason::NotReady, _)),
        "{:?}",
        step(&f)
    );
    let mut licensed = refused(stuck(&relicensed(), 2));
    licensed.drain.done = true;
    assert_eq!(step(&licensed), Step::Unlock, "its licence is used");
    os(&mut licensed, 2, None);
    assert!(matches!(step(&licensed), Step::Wait(WaitReason::ImageRefused, Some(_))));
}

#[test]
fn a_required_signature_is_checked_before_staging() {
    let open = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
    let closed =
        r#"{"default": [{"type": "reject"}], "transports": {"docker": {"registry.example": [{"type": "signedBy"}]}}}"#;
    let weak = signed(open);
    assert_eq!(step(&weak), REFUSED);
    let shown = degraded(&weak);
    assert!(
        shown.starts_with("True SignatureNotEnforced /etc/containers/policy.json has a default"),
        "{shown}"
    );
    let mut strict = signed(closed);
    assert!(matches!(step(&strict), Step::StartPull(image, _) if image.signature == SignatureRule::Required));
    // The image was pulled before the pool required signatures. It is removed even if the backend reports a signature
    // policy.
    for staged_signed in [false, true] {
        os(&mut strict, 1, Some(deployment(2, true)));
        deployments_of(&mut strict, |deployments| deployments.staged_signed = staged_signed);
        assert_eq!(step(&strict), Step::Unstage(deployment(2, true)), "{staged_signed}");
    }
    strict.host.rules.policy_digest = Some(digest(7));
    for (verified, is_kept) in [
        (Some((2, 7)), true),
        (Some((3, 7)), false),
        (Some((2, 8)), false),
        (None, false),
    ] {
        strict.past.verified = verified.map(|(n, policy)| Verified {
            digest: digest(n),
            policy: digest(policy),
        });
        let keeps = matches!(step(&strict), Step::Wait(WaitReason::NoBerth, _));
        assert_eq!(keeps, is_kept, "{verified:?}");
        assert!(keeps || step(&strict) == Step::Unstage(deployment(2, true)));
    }
}

#[test]
fn an_unsigned_image_is_not_booted_if_required() {
    let mut turn = with(&taken());
    turn.drain.done = true;
    assert!(matches!(step(&turn), Step::Commit(_)));
    wants_signatures(&mut turn);
    let why = "was not checked against the host's current signature policy";
    assert!(matches!(step(&turn), Step::Release(_, Outcome::NotStaged, words) if words.contains(why)));

    let mut stuck = stuck(&committed(), 2);
    assert!(matches!(step(&stuck), Step::Relicense(..)));
    wants_signatures(&mut stuck);
    assert_eq!(step(&stuck), Step::Unstage(deployment(3, true)), "it is pulled again");
}
