use berth_api::names::NodeUid;
use proptest::prelude::*;

use super::*;
use crate::agent::node::NodeFacts;

fn digest(n: u8) -> Digest {
    format!("sha256:{}", format!("{n:02x}").repeat(32)).parse().unwrap()
}

fn file(n: u8) -> Place {
    Place::File(digest(n))
}

fn host(places: [Place; 3], ours: &[u8]) -> AuthFiles {
    AuthFiles {
        places,
        ours: ours.iter().map(|n| digest(*n)).collect(),
    }
}

#[test]
fn files_of_others_are_not_overwritten_or_hidden() {
    use Change::{Keep, Remove, Write};
    let (none, link) = (Place::Empty, Place::Odd("a symbolic link".to_owned()));
    let (empty, given) = (none.clone(), Given::File(digest(1)));
    // Each case: the three paths, and the digests that the host recorded as the agent's. Then the results without
    // `--replace-auth-file`: the change, and true if a file is foreign. Last the change with that flag.
    let cases = [
        (
            [none.clone(), none.clone(), none.clone()],
            &[][..],
            (Write, false),
            Write,
        ),
        ([file(1), none.clone(), none.clone()], &[1], (Keep, false), Keep),
        // The Secret has changed, or the agent died after it wrote the record and before it wrote the file.
        ([file(2), none.clone(), none.clone()], &[2], (Write, false), Write),
        ([file(2), none.clone(), none.clone()], &[1, 2], (Write, false), Write),
        // Another program wrote this file, with the same content: leave it alone.
        ([file(1), none.clone(), none.clone()], &[], (Keep, false), Keep),
        ([file(1), file(9), none.clone()], &[], (Keep, false), Keep),
        ([file(9), none.clone(), none.clone()], &[], (Keep, true), Write),
        ([file(9), none.clone(), none.clone()], &[1, 2], (Keep, true), Write),
        ([link.clone(), none.clone(), none.clone()], &[1], (Keep, true), Write),
        ([none.clone(), file(9), none.clone()], &[], (Keep, true), Write),
        ([none.clone(), none.clone(), file(9)], &[], (Keep, true), Write),
        ([none.clone(), link, none.clone()], &[], (Keep, true), Write),
        // The next boot removes Berth's file in `/run`, and the host would then use the foreign file. So the agent
        // removes Berth's file now.
        ([file(1), file(9), none.clone()], &[1], (Remove, true), Keep),
        ([file(2), none.clone(), file(9)], &[2], (Remove, true), Write),
        // Berth's file may hide a file with the same content.
        ([none.clone(), file(1), none.clone()], &[], (Write, false), Write),
        ([file(1), file(1), empty], &[1], (Keep, false), Keep),
    ];
    for (places, ours, (change, foreign), replaced) in cases {
        let host = host(places, ours);
        let (done, objection) = decide(Claim::Member, &given, &host, false);
        let reason = objection.map(|o| o.reason);
        assert_eq!(
            (done, reason),
            (change, foreign.then_some(Reason::ForeignAuthFile)),
            "{host:?}"
        );
        assert_eq!(decide(Claim::Member, &given, &host, true), (replaced, None), "{host:?}");
    }
}

#[test]
fn the_file_of_somebody_else_is_named() {
    fn link() -> Place {
        Place::Odd("a symbolic link".to_owned())
    }
    for (places, named) in [
        ([file(9), Place::Empty, file(8)], "/run/ostree/auth.json, which"),
        (
            [link(), Place::Empty, Place::Empty],
            "/run/ostree/auth.json (a symbolic link), which",
        ),
        ([Place::Empty, file(9), file(8)], "/etc/ostree/auth.json, which"),
        (
            [Place::Empty, Place::Empty, file(9)],
            "/usr/lib/ostree/auth.json, which",
        ),
        (
            [Place::Empty, Place::Empty, link()],
            "/usr/lib/ostree/auth.json (a symbolic link), which",
        ),
    ] {
        let (_, objection) = decide(Claim::Member, &Given::File(digest(1)), &host(places, &[]), false);
        let message = objection.unwrap().message;
        assert!(message.starts_with(&format!("the host has {named}")), "{message}");
    }
}

#[test]
fn berths_file_is_removed_with_its_secret_or_pool() {
    let ours = host([file(1), Place::Empty, Place::Empty], &[1]);
    let theirs = host([file(9), Place::Empty, Place::Empty], &[1]);
    for (claim, given) in [
        (Claim::Member, Given::Nothing),
        (Claim::Released, Given::Nothing),
        (Claim::Released, Given::File(digest(1))),
        (Claim::Released, Given::Unusable("x".to_owned())),
    ] {
        assert_eq!(
            decide(claim, &given, &ours, true),
            (Change::Remove, None),
            "{claim:?} {given:?}"
        );
        assert_eq!(
            decide(claim, &given, &theirs, true),
            (Change::Keep, None),
            "{claim:?} {given:?}"
        );
    }
    for given in [Given::Nothing, Given::File(digest(2))] {
        assert_eq!(decide(Claim::Unknown, &given, &ours, true), (Change::Keep, None));
    }
    let (change, objection) = decide(Claim::Member, &Given::Unusable("no".to_owned()), &ours, true);
    assert_eq!(
        (change, objection.unwrap().reason),
        (Change::Keep, Reason::InvalidAuthFile)
    );
}

fn node(uid: &str, excluded: bool) -> ClusterNode {
    ClusterNode::Is(NodeFacts {
        uid: NodeUid::from(uid),
        resource_version: "1".into(),
        unschedulable: false,
        ready: true,
        boot_id: None,
        cordon: None,
        excluded,
        control_plane: false,
        not_ready_taint: None,
        ready_reported: None,
        conditions: Default::default(),
        signs: Default::default(),
    })
}

#[test]
fn a_member_needs_a_spec_for_its_own_uid() {
    let member = Desired::Member(Box::new(crate::agent::facts::Member {
        pool: "p".into(),
        node_uid: "u1".into(),
        image: None,
        staging: berth_api::node::Staging::Held,
        drain: berth_api::pool::Drain::default(),
        health: berth_api::pool::Health::default(),
        backend: berth_api::backend::BackendRule::Auto,
        rivals: berth_api::pool::RivalUpdaters::Wait,
        tolerated: vec![],
        retry_token: None,
        reboot_timeout: std::time::Duration::ZERO,
        reboot_policy: Default::default(),
        paused: false,
        estimates: berth_api::pool::PhaseDurations::default(),
    }));
    for (desired, node, expected) in [
        (&member, node("u1", false), Claim::Member),
        (&member, node("u1", true), Claim::Released),
        (&member, node("u2", false), Claim::Released),
        (&member, ClusterNode::Gone, Claim::Released),
        (&member, ClusterNode::Unread, Claim::Unknown),
        (&Desired::Release, ClusterNode::Unread, Claim::Released),
        (&Desired::Unknown, node("u1", false), Claim::Unknown),
    ] {
        assert_eq!(Claim::of(desired, &node), expected, "{node:?}");
    }
}

#[test]
fn the_file_that_the_host_used_is_named() {
    let nothing = in_use(&host([Place::Empty, Place::Empty, Place::Empty], &[]));
    assert!(nothing.contains("without credentials"));
    let ours = in_use(&host([file(1), file(2), Place::Empty], &[1]));
    assert_eq!(ours, "the host pulled with /run/ostree/auth.json, which Berth wrote");
    let theirs = in_use(&host([Place::Empty, file(2), file(3)], &[1]));
    assert_eq!(
        theirs,
        "the host pulled with /etc/ostree/auth.json, which Berth did not write"
    );
    for ours in [&[][..], &[2]] {
        let first = in_use(&host([file(1), Place::Empty, Place::Empty], ours));
        assert_eq!(
            first,
            "the host pulled with /run/ostree/auth.json, which Berth did not write"
        );
    }
}

#[test]
fn only_files_that_host_tools_read_are_accepted() {
    for good in [
        r#"{"auths":{"quay.io":{"auth":"dTpw"}}}"#,
        r#"{"auths":{"quay.io/a":{"auth":"dTpw","username":"u","password":"p","email":""},"r:5000":{"identitytoken":"t"}}}"#,
        r#"{"auths":{"quay.io":{"auth":"dTpw"}},"credHelpers":{},"credsStore":"","HttpHeaders":{}}"#,
    ] {
        assert_eq!(check(good.as_bytes()), Ok(()), "{good}");
    }
    for (bad, words) in [
        ("", "not JSON"),
        ("quay.io", "not JSON"),
        ("[]", "not JSON"),
        (r#"{"auths":["s3cret"]}"#, "not JSON"),
        (r#"{"quay.io":{"auth":"s3cret"}}"#, "no credentials"),
        (r#"{"auths":{}}"#, "no credentials"),
        (r#"{"auths":null}"#, "no credentials"),
        (r#"{"credsStore":"s3cret"}"#, "credHelpers"),
        (
            r#"{"auths":{"quay.io":{"auth":"dTpw"}},"credHelpers":{"r":"s3cret"}}"#,
            "credHelpers",
        ),
        (r#"{"auths":{"quay.io":{}}}"#, "auths[\"quay.io\"] has no auth"),
        (
            r#"{"auths":{"quay.io":{"username":"u","password":"s3cret"}}}"#,
            "has no auth",
        ),
        (r#"{"auths":{"quay.io":{"auth":"s3cret!"}}}"#, "must be the base64"),
        // A user without a password.
        (r#"{"auths":{"quay.io":{"auth":"czNjcmV0"}}}"#, "must be the base64"),
    ] {
        let why = check(bad.as_bytes()).unwrap_err();
        assert!(why.contains(words) && !why.contains("s3cret"), "{bad}: {why}");
    }
    let mut text = br#"{"auths":{"quay.io":{"auth":"dTpw"}}}"#.to_vec();
    text.resize(MAX_LENGTH, b' ');
    assert_eq!(check(&text), Ok(()));
    text.push(b' ');
    assert!(check(&text).unwrap_err().contains("bytes"));
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        Just(Place::Empty),
        (1..4_u8).prop_map(file),
        Just(Place::Odd("a directory".to_owned()))
    ]
}

proptest! {
    /// Whatever files a host has: without `--replace-auth-file`, the files that Berth did not write stay in place and
    /// in use. A second decision changes nothing.
    #[test]
    fn one_change_is_enough_and_nothing_foreign_is_lost(
        places in [place(), place(), place()],
        ours in proptest::collection::vec(1..4_u8, 0..3),
        given in prop_oneof![Just(Given::Nothing), (1..4_u8).prop_map(|n| Given::File(digest(n)))],
        replace in any::<bool>(),
    ) {
        let mut host = host(places, &ours);
        let was_ours = matches!(&host.places[0], Place::File(d) if host.ours.contains(d));
        let before = host.places[0].clone();
        let (change, objection) = decide(Claim::Member, &given, &host, replace);
        prop_assert!(objection.is_none() || !replace);
        match (change, &given) {
            (Change::Keep, _) => {}
            (Change::Write, Given::File(wanted)) => {
                prop_assert!(replace || was_ours || before == Place::Empty);
                let hidden = host.places[1..].iter().any(|p| *p != Place::Empty && *p != Place::File(wanted.clone()));
                prop_assert!(replace || !hidden);
                host.places[0] = Place::File(wanted.clone());
                host.ours = vec![wanted.clone()];
            }
            (Change::Write, _) => prop_assert!(false, "nothing was given"),
            (Change::Remove, _) => {
                prop_assert!(was_ours);
                (host.places[0], host.ours) = (Place::Empty, vec![]);
            }
        }
        prop_assert_eq!(decide(Claim::Member, &given, &host, replace), (Change::Keep, objection));
    }

    /// No text makes the check panic.
    #[test]
    fn any_text_is_taken_or_refused(text in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = check(&text);
    }

    #[test]
    fn an_almost_valid_auth_file_does_not_panic(
        auth in "[a-zA-Z0-9+/=]{0,12}|null|7",
        rest in r#"(,"credsStore":("x"|null|""))?(,"auths":\{\})?"#,
    ) {
        let quoted = if auth == "null" || auth == "7" { auth.clone() } else { format!("{auth:?}") };
        let text = format!(r#"{{"auths":{{"r.io":{{"auth":{quoted}}}}}{rest}}}"#);
        if check(text.as_bytes()).is_ok() {
            let plain = STANDARD.decode(&auth).unwrap();
            prop_assert!(plain.contains(&b':'), "{text}");
            prop_assert!(!rest.contains(r#""x""#), "{text}");
        }
    }
}
