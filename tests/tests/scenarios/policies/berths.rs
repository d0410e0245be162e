//! Berths: the turns, thefts and forgeries that an agent may try.

use super::*;

/// All steps that the protocol allows an agent.
pub(super) async fn turns(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let boot = || BootId::from("boot-1");
    let committed = taken.committed(boot()).unwrap();
    let releasing = committed.releasing(Outcome::Updated, BootId::from("b1")).unwrap();
    let gave_up = taken.releasing(Outcome::DrainTimeout, BootId::from("b1")).unwrap();
    for (what, before, after) in [
        ("take", &offered, &taken),
        ("renew", &taken, &taken),
        ("commit", &taken, &committed),
        ("take the commit back", &committed, &committed.uncommitted().unwrap()),
        ("release after commit", &committed, &releasing),
        ("release before commit", &taken, &gave_up),
        ("renew while releasing", &releasing, &releasing),
        ("give back", &releasing, &releasing.given_back().unwrap()),
        (
            "give back a revoked one",
            &gave_up.revoked(Some("Paused".into())).unwrap(),
            &gave_up.given_back().unwrap(),
        ),
    ] {
        rig.step(what, before, after, None).await;
    }
    let failed = committed.releasing(Outcome::Failed, boot()).unwrap();
    rig.step("release as failed", &committed, &failed, None).await;
    rig.step("give back as failed", &failed, &failed.given_back().unwrap(), None)
        .await;
    rig.change(
        "give back as it did not end",
        &failed,
        |l| write_as(l, &releasing, "closed:released"),
        Some("it is fixed when the release begins"),
    )
    .await;
    let failed_alone = Some("closed:failed and the outcome Failed require each other");
    rig.change(
        "released, though failed",
        &failed,
        |l| write_as(l, &failed, "closed:released"),
        failed_alone,
    )
    .await;
    rig.change(
        "failed, though released",
        &releasing,
        |l| write_as(l, &releasing, "closed:failed"),
        failed_alone,
    )
    .await;
}

/// Closes a berth as the protocol does, but under another holder's name.
fn write_as(lease: &mut Lease, releasing: &Berth, holder: &str) {
    lease::write(&releasing.given_back().unwrap(), lease, Timestamp::now());
    hold(lease, holder);
}

/// Continues from an unproven boot with another digest. No other state allows such a step.
pub(super) async fn licences(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let (boot, next) = (|| BootId::from("boot-1"), || BootId::from("boot-2"));
    let committed = taken.committed(boot()).unwrap();
    let anew = committed.relicensed(digest(3), next()).unwrap();
    for (what, before, after) in [
        ("continue", &committed, &anew),
        (
            "continue, rebooted before the commit",
            &taken,
            &taken.relicensed(digest(3), next()).unwrap(),
        ),
        ("continue again", &anew, &anew.relicensed(digest(4), next()).unwrap()),
        (
            "repeat a licence that led nowhere",
            &committed,
            &committed.relicensed(digest(2), next()).unwrap(),
        ),
    ] {
        rig.step(what, before, after, None).await;
    }
    let revoke = |berth: &Berth| berth.revoked(Some("Paused".into())).unwrap();
    let revoked = Some("it is revoked");
    rig.step("continue though revoked", &revoke(&committed), &revoke(&anew), revoked)
        .await;
    rig.step(
        "repeat though revoked",
        &revoke(&committed),
        &revoke(&committed.relicensed(digest(2), next()).unwrap()),
        revoked,
    )
    .await;
    rig.step("commit though revoked", &revoke(&taken), &revoke(&committed), revoked)
        .await;
    rig.step(
        "end a revoked one",
        &revoke(&committed),
        &revoke(&committed.releasing(Outcome::Updated, next()).unwrap()),
        None,
    )
    .await;
    let no_boot = |lease: &mut Lease| {
        lease::write(&anew, lease, Timestamp::now());
        lease.annotations_mut().remove(keys::ANNOTATION_BOOT_ID);
    };
    rig.change(
        "continue without a boot",
        &committed,
        no_boot,
        Some("its boot-id is missing"),
    )
    .await;

    let not_committing = Some("only its holder changes it, by committing");
    let target = || annotate(keys::ANNOTATION_TARGET, "sha256:0");
    let releasing = committed.releasing(Outcome::Updated, next()).unwrap();
    rig.change("another target while taken", &taken, target(), not_committing)
        .await;
    rig.change("another target while releasing", &releasing, target(), not_committing)
        .await;
    let take_another = |lease: &mut Lease| {
        lease::write(&taken, lease, Timestamp::now());
        target()(lease);
    };
    rig.change("take for another target", &offered, take_another, not_committing)
        .await;
    let blame_another = |lease: &mut Lease| {
        lease::write(&releasing.given_back().unwrap(), lease, Timestamp::now());
        target()(lease);
    };
    rig.change("close for another target", &releasing, blame_another, not_committing)
        .await;
    let from = annotate(keys::ANNOTATION_FROM, "sha256:0");
    rig.change(
        "another origin",
        &committed,
        from,
        Some("it is fixed when the berth is taken"),
    )
    .await;
    for before in [&taken, &committed] {
        let later = annotate(keys::ANNOTATION_OPEN_UNTIL, "2100-01-01T00:00:00Z");
        rig.change("a longer window", before, later, Some("only the controller sets these"))
            .await;
        let none = |lease: &mut Lease| drop(lease.annotations_mut().remove(keys::ANNOTATION_OPEN_UNTIL));
        rig.change("no window", before, none, Some("only the controller sets these"))
            .await;
    }
}

/// Tries to take berths that belong to others, or are not open.
pub(super) async fn thefts(rig: &mut Rig) {
    let (uid, other) = (rig.uid.clone(), rig.other_uid.clone());
    let own = closed().offered(offer("n1", &uid)).unwrap();
    let theirs = closed().offered(offer("n2", &other)).unwrap();
    let held = take(&theirs, "n2", &other);
    let not_own = Some("not its own");
    let mine = take(&own, "n1", &uid);
    rig.step("take another's offer", &theirs, &mine, not_own).await;
    rig.step("take another's offer for it", &theirs, &held, not_own).await;
    rig.step("take a held berth", &held, &mine, not_own).await;
    rig.step(
        "commit for another",
        &held,
        &held.committed(BootId::from("b")).unwrap(),
        not_own,
    )
    .await;
    let released = held.releasing(Outcome::Updated, BootId::from("b1")).unwrap();
    rig.step("close another's", &released, &released.given_back().unwrap(), not_own)
        .await;
    let opens = Some("only the controller opens a berth");
    rig.step("take a closed berth", &closed(), &mine, opens).await;
    rig.step("offer itself a closed berth", &closed(), &own, opens).await;
    let again = closed().closed(ClosedReason::Shrunk).unwrap();
    rig.step("rename the reason", &closed(), &again, opens).await;

    rig.step(
        "refuse an offer",
        &own,
        &own.closed(ClosedReason::Lapsed).unwrap(),
        Some("may only take its own offer"),
    )
    .await;
    rig.change(
        "pass the offer on",
        &own,
        |l| hold(l, "n2"),
        Some("may only take its own offer"),
    )
    .await;
    rig.change(
        "pass the berth on",
        &mine,
        |l| hold(l, "n2"),
        Some("give back its own berth"),
    )
    .await;
    rig.change(
        "offer the berth on",
        &mine,
        |l| hold(l, "offered:n2"),
        Some("give back its own berth"),
    )
    .await;
    rig.change(
        "erase the holder",
        &mine,
        |l| hold(l, ""),
        Some("give back its own berth"),
    )
    .await;

    let stale = closed().offered(offer("n1", &other)).unwrap();
    let refusal = Some("the UIDs differ");
    rig.step(
        "take with another Node's UID",
        &stale,
        &take(&stale, "n1", &other),
        refusal,
    )
    .await;
    let mut lease = rig.put(&own).await.unwrap();
    lease::write(&mine, &mut lease, Timestamp::now());
    let answer = leases(&rig.stray)
        .replace(&lease.name_any(), &PostParams::default(), &lease)
        .await;
    rig.record("a token without node", answer, Some("names no node"));
}

/// Tries to write fields of its own berth that only the controller writes.
pub(super) async fn forgeries(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let releasing = taken.releasing(Outcome::Updated, BootId::from("b1")).unwrap();
    let boot = || BootId::from("boot-1");

    rig.step(
        "commit without taking",
        &offered,
        &taken.committed(boot()).unwrap(),
        Some("it must begin with phase Taken"),
    )
    .await;
    rig.step(
        "continue after the release began",
        &releasing,
        &taken,
        Some("its release has begun"),
    )
    .await;
    rig.step(
        "close without releasing",
        &taken,
        &releasing.given_back().unwrap(),
        Some("before its release has begun"),
    )
    .await;
    let revoked = taken.revoked(Some("Paused".into())).unwrap();
    rig.step(
        "lift a revoke",
        &revoked,
        &taken,
        Some("only the controller sets these"),
    )
    .await;
    rig.step(
        "another epoch",
        &taken,
        &taken.stamped(8),
        Some("may not change the epoch"),
    )
    .await;

    let controllers = Some("only the controller sets these");
    let uid = annotate(keys::ANNOTATION_NODE_UID, "other");
    rig.change("another UID", &taken, uid, Some("the UIDs differ")).await;
    let blame = annotate(keys::ANNOTATION_LAST_NODE, "n2");
    rig.change("blame another", &taken, blame, Some("name another node as last-node"))
        .await;
    for (what, key) in [
        ("another node label", keys::LABEL_NODE),
        ("another pool label", keys::LABEL_POOL),
    ] {
        let label = |lease: &mut Lease| {
            lease.labels_mut().insert(key.to_owned(), "n2".to_owned());
        };
        rig.change(what, &taken, label, controllers).await;
    }
    let unlabel = |lease: &mut Lease| lease.labels_mut().clear();
    rig.change("no labels", &taken, unlabel, controllers).await;
    let pin = |lease: &mut Lease| lease.finalizers_mut().push("example.com/mine".to_owned());
    rig.change("a finalizer", &taken, pin, controllers).await;
    let longer = |lease: &mut Lease| lease.spec.as_mut().unwrap().lease_duration_seconds = Some(1);
    rig.change("another duration", &taken, longer, controllers).await;
}

/// Tries to write unreadable values into a berth of its own.
pub(super) async fn nonsense(rig: &mut Rig) {
    let uid = rig.uid.clone();
    let offered = closed().offered(offer("n1", &uid)).unwrap();
    let taken = take(&offered, "n1", &uid);
    let boot = || BootId::from("boot-1");
    let committed = taken.committed(boot()).unwrap();
    let releasing = taken.releasing(Outcome::DrainTimeout, boot()).unwrap();
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
            &committed.relicensed(digest(3), BootId::from("boot-2")).unwrap(),
            keys::ANNOTATION_TARGET,
            "sha256:0",
        ),
    ] {
        let write = |lease: &mut Lease| {
            lease::write(after, lease, Timestamp::now());
            annotate(key, value)(lease);
            assert!(lease::read(lease).is_err(), "{what}: it can be read");
        };
        rig.change(what, before, write, unreadable).await;
    }
    let nowhere = |lease: &mut Lease| {
        lease::write(&take(&offered, "n1", &uid), lease, Timestamp::now());
        lease.annotations_mut().remove(keys::ANNOTATION_FROM);
    };
    rig.change("take from an image without digest", &offered, nowhere, None)
        .await;
    for outcome in Outcome::ALL {
        let ended = taken.releasing(*outcome, boot()).unwrap();
        rig.step(&format!("release as {}", outcome.as_str()), &taken, &ended, None)
            .await;
    }
}
