//! Berths: the turns, thefts and forgeries that an agent may try.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, MicroTime};

use super::*;

const NOT_COMMITTING: Option<&str> = Some("only its holder changes it, by committing");
const CONTROLLERS: Option<&str> = Some("only the controller sets these");

const FOREIGN: Option<&str> = Some("that is not part of the protocol");
const OTHER_FIELDS: Option<&str> = Some("other than its holderIdentity, renewTime and annotations");

fn boot(id: &str) -> BootId {
    BootId::from(id)
}

fn revoke(berth: &Berth) -> Berth {
    berth.revoked(Some("Paused".into())).unwrap()
}

/// All steps that the protocol allows an agent.
pub(super) async fn turns(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let committed = taken.committed(boot("boot-1")).unwrap();
    let releasing = committed.releasing(Outcome::Updated, boot("b1")).unwrap();
    let gave_up = taken.releasing(Outcome::DrainTimeout, boot("b1")).unwrap();
    let failed = committed.releasing(Outcome::Failed, boot("boot-1")).unwrap();
    rig.steps(&[
        ("take", &offered, &taken, None),
        ("renew", &taken, &taken, None),
        ("commit", &taken, &committed, None),
        (
            "take the commit back",
            &committed,
            &committed.uncommitted().unwrap(),
            None,
        ),
        ("release after commit", &committed, &releasing, None),
        ("release before commit", &taken, &gave_up, None),
        ("renew while releasing", &releasing, &releasing, None),
        ("give back", &releasing, &releasing.given_back().unwrap(), None),
        (
            "give back a revoked one",
            &revoke(&gave_up),
            &gave_up.given_back().unwrap(),
            None,
        ),
        ("release as failed", &committed, &failed, None),
        ("give back as failed", &failed, &failed.given_back().unwrap(), None),
    ])
    .await;
    let alone = "closed:failed and the outcome Failed require each other";
    let fixed = "it is fixed when the release begins";
    for (what, before, after, holder, refusal) in [
        (
            "give back as it did not end",
            &failed,
            &releasing,
            "closed:released",
            fixed,
        ),
        ("released, though failed", &failed, &failed, "closed:released", alone),
        (
            "failed, though released",
            &releasing,
            &releasing,
            "closed:failed",
            alone,
        ),
    ] {
        rig.change(what, before, |l| write_as(l, after, holder), Some(refusal))
            .await;
    }
}

/// Closes a berth as the protocol does, but under another holder's name.
fn write_as(lease: &mut Lease, releasing: &Berth, holder: &str) {
    lease::write(&releasing.given_back().unwrap(), lease, Timestamp::now());
    hold(lease, holder);
}

/// A holder changes the digest of its berth to roll forward in place. This is allowed unless the berth is revoked. All
/// other changes of the digest are refused.
pub(super) async fn licences(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let committed = taken.committed(boot("boot-1")).unwrap();
    let anew = committed.relicensed(digest(3), boot("boot-2")).unwrap();
    let repeated = committed.relicensed(digest(2), boot("boot-2")).unwrap();
    let early = taken.relicensed(digest(3), boot("boot-2")).unwrap();
    let again = anew.relicensed(digest(4), boot("boot-2")).unwrap();
    let releasing = committed.releasing(Outcome::Updated, boot("boot-2")).unwrap();
    let revoked = Some("it is revoked");
    rig.steps(&[
        ("continue", &committed, &anew, None),
        ("continue, rebooted before the commit", &taken, &early, None),
        ("continue again", &anew, &again, None),
        ("repeat a licence that led nowhere", &committed, &repeated, None),
        ("continue though revoked", &revoke(&committed), &revoke(&anew), revoked),
        (
            "repeat though revoked",
            &revoke(&committed),
            &revoke(&repeated),
            revoked,
        ),
        ("commit though revoked", &revoke(&taken), &revoke(&committed), revoked),
        ("end a revoked one", &revoke(&committed), &revoke(&releasing), None),
    ])
    .await;
    let no_boot = Some("its boot-id is missing");
    rig.change(
        "continue without a boot",
        &committed,
        |l| write_without(l, &anew, keys::ANNOTATION_BOOT_ID),
        no_boot,
    )
    .await;

    for (what, before, after) in [
        ("another target while taken", &taken, &taken),
        ("another target while releasing", &releasing, &releasing),
        ("take for another target", &offered, &taken),
        ("close for another target", &releasing, &releasing.given_back().unwrap()),
    ] {
        rig.change(what, before, |l| write_for_another(l, after), NOT_COMMITTING)
            .await;
    }
    let from = annotate(keys::ANNOTATION_FROM, "sha256:0");
    let fixed = Some("it is fixed when the berth is taken");
    rig.change("another origin", &committed, from, fixed).await;
    for before in [&taken, &committed] {
        let later = annotate(keys::ANNOTATION_OPEN_UNTIL, "2100-01-01T00:00:00Z");
        rig.change("a longer window", before, later, CONTROLLERS).await;
        rig.change(
            "no window",
            before,
            |l| write_without(l, before, keys::ANNOTATION_OPEN_UNTIL),
            CONTROLLERS,
        )
        .await;
    }
}

fn write_without(lease: &mut Lease, berth: &Berth, key: &str) {
    lease::write(berth, lease, Timestamp::now());
    lease.annotations_mut().remove(key);
}

fn write_for_another(lease: &mut Lease, berth: &Berth) {
    lease::write(berth, lease, Timestamp::now());
    annotate(keys::ANNOTATION_TARGET, "sha256:0")(lease);
}

/// Tries to take berths that belong to others, or are not open.
pub(super) async fn thefts(rig: &mut Rig) {
    let (uid, other) = (rig.uid.clone(), rig.other_uid.clone());
    let own = closed().offered(offer("n1", &uid)).unwrap();
    let theirs = closed().offered(offer("n2", &other)).unwrap();
    let (mine, held) = (take(&own, "n1", &uid), take(&theirs, "n2", &other));
    let committed = held.committed(boot("b")).unwrap();
    let released = held.releasing(Outcome::Updated, boot("b1")).unwrap();
    let stale = closed().offered(offer("n1", &other)).unwrap();
    let not_own = Some("not its own");
    let opens = Some("only the controller opens a berth");
    let shrunk = closed().closed(ClosedReason::Shrunk).unwrap();
    let lapsed = own.closed(ClosedReason::Lapsed).unwrap();
    let only_takes = Some("may only take its own offer");
    rig.steps(&[
        ("take another's offer", &theirs, &mine, not_own),
        ("take another's offer for it", &theirs, &held, not_own),
        ("take a held berth", &held, &mine, not_own),
        ("commit for another", &held, &committed, not_own),
        ("close another's", &released, &released.given_back().unwrap(), not_own),
        ("take a closed berth", &closed(), &mine, opens),
        ("offer itself a closed berth", &closed(), &own, opens),
        ("rename the reason", &closed(), &shrunk, opens),
        ("refuse an offer", &own, &lapsed, only_takes),
        (
            "take with another Node's UID",
            &stale,
            &take(&stale, "n1", &other),
            Some("the UIDs differ"),
        ),
    ])
    .await;
    let gives_back = Some("give back its own berth");
    for (what, before, holder, refusal) in [
        ("pass the offer on", &own, "n2", only_takes),
        ("pass the berth on", &mine, "n2", gives_back),
        ("offer the berth on", &mine, "offered:n2", gives_back),
        ("erase the holder", &mine, "", gives_back),
    ] {
        rig.change(what, before, |l| hold(l, holder), refusal).await;
    }
    let mut lease = rig.put(&own).await.unwrap();
    lease::write(&mine, &mut lease, Timestamp::now());
    let answer = leases(&rig.stray)
        .replace(&lease.name_any(), &PostParams::default(), &lease)
        .await;
    rig.record("a token without node", answer, Some("names no node"));
}

/// Name of a change, the change, and text of its refusal.
type Forgery = (&'static str, fn(&mut Lease), Option<&'static str>);

/// Changes of fields that only the controller writes.
const FORGERIES: [Forgery; 15] = [
    (
        "another UID",
        |l| annotate(keys::ANNOTATION_NODE_UID, "other")(l),
        Some("the UIDs differ"),
    ),
    (
        "blame another",
        |l| annotate(keys::ANNOTATION_LAST_NODE, "n2")(l),
        Some("name another node as last-node"),
    ),
    ("another node label", |l| label(l, keys::LABEL_NODE), CONTROLLERS),
    ("another pool label", |l| label(l, keys::LABEL_POOL), CONTROLLERS),
    ("no labels", |l| l.labels_mut().clear(), CONTROLLERS),
    (
        "a finalizer",
        |l| l.finalizers_mut().push("example.com/mine".to_owned()),
        CONTROLLERS,
    ),
    (
        "another duration",
        |l| l.spec.as_mut().unwrap().lease_duration_seconds = Some(1),
        CONTROLLERS,
    ),
    (
        "fill it",
        |l| {
            let annotations = l.annotations_mut();
            annotations.insert("example.com/fill".to_owned(), "x".repeat(200_000));
        },
        FOREIGN,
    ),
    (
        "an unknown key of Berth",
        |l| annotate("berth.dev/new", "x")(l),
        FOREIGN,
    ),
    (
        "a long boot ID",
        |l| {
            let annotations = l.annotations_mut();
            annotations.insert(keys::ANNOTATION_BOOT_ID.to_owned(), "x".repeat(200_000));
        },
        Some("with this boot-id"),
    ),
    (
        "an outcome in mid-turn",
        |l| annotate(keys::ANNOTATION_OUTCOME, "Updated")(l),
        Some("before its release begins"),
    ),
    (
        "a long generateName",
        |l| l.metadata.generate_name = Some("x".repeat(200_000)),
        OTHER_FIELDS,
    ),
    (
        "another acquireTime",
        |l| l.spec.as_mut().unwrap().acquire_time = Some(MicroTime::from(Timestamp::UNIX_EPOCH)),
        OTHER_FIELDS,
    ),
    (
        "a renewTime that no program can parse",
        |l| l.spec.as_mut().unwrap().renew_time = Some(MicroTime("9998-01-01T00:00:00Z".parse().unwrap())),
        Some("in the year 2100 or later"),
    ),
    (
        "another number of transitions",
        |l| l.spec.as_mut().unwrap().lease_transitions = Some(i32::MAX),
        OTHER_FIELDS,
    ),
];

/// An agent tries to write fields of its own berth that only the controller may write.
pub(super) async fn forgeries(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let committed = taken.committed(boot("boot-1")).unwrap();
    let releasing = taken.releasing(Outcome::Updated, boot("b1")).unwrap();
    let given_back = releasing.given_back().unwrap();
    rig.steps(&[
        (
            "commit without taking",
            &offered,
            &committed,
            Some("it must begin with phase Taken"),
        ),
        (
            "continue after the release began",
            &releasing,
            &taken,
            Some("its release has begun"),
        ),
        (
            "close without releasing",
            &taken,
            &given_back,
            Some("before its release has begun"),
        ),
        ("lift a revoke", &revoke(&taken), &taken, CONTROLLERS),
        (
            "another epoch",
            &taken,
            &taken.stamped(8),
            Some("may not change the epoch"),
        ),
    ])
    .await;
    for (what, change, refusal) in FORGERIES {
        rig.change(what, &taken, change, refusal).await;
    }
    rig.change(
        "close and change the UID",
        &releasing,
        |l| close_with_uid(l, &given_back),
        Some("how it was held"),
    )
    .await;
    owners(rig, &taken).await;
}

fn close_with_uid(lease: &mut Lease, given_back: &Berth) {
    lease::write(given_back, lease, Timestamp::now());
    annotate(keys::ANNOTATION_NODE_UID, "another")(lease);
}

/// The policy refuses an agent's changes to the annotations of other programs.
async fn owners(rig: &mut Rig, taken: &Berth) {
    let mut lease = rig.put(taken).await.unwrap();
    annotate("example.com/backup", "daily")(&mut lease);
    let lease = leases(&rig.admin)
        .replace(&lease.name_any(), &PostParams::default(), &lease)
        .await
        .unwrap();
    let mut without = lease.clone();
    without.annotations_mut().remove("example.com/backup");
    let answer = leases(&rig.agent)
        .replace(&lease.name_any(), &PostParams::default(), &without)
        .await;
    rig.record("remove another program's annotation", answer, FOREIGN);
    stuffed(rig, lease).await;
}

/// An agent can store invented managed fields, because the policy cannot count them. The controller's next write
/// removes them.
async fn stuffed(rig: &mut Rig, mut lease: Lease) {
    let fields: serde_json::Map<String, Value> = (0..10_000).map(|n| (format!("f:{n}"), json!({}))).collect();
    for operation in ["Apply", "Update"] {
        let owner = json!({
            "manager": format!("liar-{operation}"), "operation": operation, "apiVersion": "coordination.k8s.io/v1",
            "fieldsType": "FieldsV1", "time": "2030-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:annotations": fields}},
        });
        let owner: ManagedFieldsEntry = serde_json::from_value(owner).unwrap();
        lease.metadata.managed_fields.get_or_insert_default().push(owner);
    }
    let name = lease.name_any();
    let stored = leases(&rig.agent).replace(&name, &PostParams::default(), &lease).await;
    let mut stored = stored.unwrap();
    assert!(
        size_of_owners(&stored) > 100_000,
        "the API server drops invented owners: {}",
        size_of_owners(&stored)
    );
    lease::clean(&mut stored);
    let cleaned = leases(&rig.admin).replace(&name, &PostParams::default(), &stored).await;
    let size = size_of_owners(&cleaned.unwrap());
    if size > 2_000 {
        rig.failures
            .push(format!("{size} bytes of owners stay in a cleaned Lease"));
    }
}

fn size_of_owners(lease: &Lease) -> usize {
    serde_json::to_string(&lease.metadata.managed_fields).unwrap().len()
}

fn label(lease: &mut Lease, key: &str) {
    lease.labels_mut().insert(key.to_owned(), "n2".to_owned());
}

/// An agent tries to write unreadable values into its own berth.
pub(super) async fn nonsense(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let committed = taken.committed(boot("boot-1")).unwrap();
    let releasing = taken.releasing(Outcome::DrainTimeout, boot("boot-1")).unwrap();
    let unreadable = Some("unreadable");
    for (what, before, after, key, value) in [
        ("unknown phase", &taken, &taken, keys::ANNOTATION_PHASE, "Nonsense"),
        ("no phase", &taken, &taken, keys::ANNOTATION_PHASE, ""),
        ("no boot", &taken, &taken, keys::ANNOTATION_BOOT_ID, ""),
        ("invalid origin", &offered, &taken, keys::ANNOTATION_FROM, "sha256:0"),
        ("an empty origin", &offered, &taken, keys::ANNOTATION_FROM, ""),
        (
            "unknown outcome",
            &taken,
            &releasing,
            keys::ANNOTATION_OUTCOME,
            "Nonsense",
        ),
        ("no outcome", &taken, &releasing, keys::ANNOTATION_OUTCOME, ""),
        (
            "invalid target",
            &committed,
            &committed.relicensed(digest(3), boot("boot-2")).unwrap(),
            keys::ANNOTATION_TARGET,
            "sha256:0",
        ),
    ] {
        rig.change(
            what,
            before,
            |lease: &mut Lease| {
                lease::write(after, lease, Timestamp::now());
                annotate(key, value)(lease);
                assert!(lease::read(lease).is_err(), "{what}: it can be read");
            },
            unreadable,
        )
        .await;
    }
    rig.change(
        "take from an image without digest",
        &offered,
        |l| write_without(l, &taken, keys::ANNOTATION_FROM),
        None,
    )
    .await;
    for outcome in Outcome::ALL {
        let ended = taken.releasing(*outcome, boot("boot-1")).unwrap();
        rig.step(&format!("release as {}", outcome.as_str()), &taken, &ended, None)
            .await;
    }
}
