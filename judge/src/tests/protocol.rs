use super::*;

#[test]
fn a_berth_is_given_back_only_when_proven() {
    let mut world = World::rebooted();
    world
        .next(AGENT, |b| b.releasing(Outcome::Updated, BootId::from("b2")).unwrap())
        .blamed("I5", "not Ready");
    let mut world = World::committed();
    world
        .next(AGENT, |b| b.releasing(Outcome::Revoked, BootId::from("b1")).unwrap())
        .blamed("I5", "before the reboot");
    let mut world = World::committed();
    world.host(HostChange::Down).up("b2", 3).ready("b2");
    world
        .next(AGENT, |b| b.releasing(Outcome::NotApplied, BootId::from("b2")).unwrap())
        .blamed("I5", "neither the target");
}

#[test]
fn a_relicensed_boot_must_be_proven() {
    fn change_of_mind() -> World {
        let mut world = World::rebooted();
        world.next(AGENT, |b| b.relicensed(digest(1), BootId::from("b2")).unwrap());
        world.next(AGENT, |b| b.relicensed(digest(2), BootId::from("b2")).unwrap());
        world
    }
    fn release(b: &Berth) -> Berth {
        b.releasing(Outcome::Updated, BootId::from("b2")).unwrap()
    }
    let mut world = change_of_mind();
    world.next(AGENT, release).blamed("I5", "not Ready");
    let mut world = change_of_mind();
    world.ready("b2").next(AGENT, release);
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_commit_is_undone_only_under_its_boot() {
    World::committed()
        .next(AGENT, |b| b.uncommitted().unwrap())
        .host(HostChange::Down);
    let mut world = World::rebooted();
    world
        .next(AGENT, |b| b.uncommitted().unwrap())
        .blamed("I2", "wrote for boot b1");
    let mut world = World::committed();
    world.next(AGENT, |b| b.uncommitted().unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_release_writes_the_node_first() {
    let mut world = World::releasing();
    world
        .next(AGENT, |b| b.given_back().unwrap())
        .blamed("I4", "without writing its Node first");
    let mut world = World::releasing();
    world
        .node(AGENT, "patch", "n1", true, true)
        .next(AGENT, |b| b.given_back().unwrap())
        .blamed("I4", "cordon was still on the Node");
    // A new leader has meanwhile written its epoch to the berth.
    let mut world = World::releasing();
    world
        .node(AGENT, "patch", "n1", false, false)
        .next(CONTROLLER, |b| b.stamped(8));
    world.next(AGENT, |b| b.given_back().unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
    let mut world = World::taken();
    fn closed(b: &Berth) -> Berth {
        b.releasing(Outcome::Revoked, BootId::from("b1"))
            .unwrap()
            .given_back()
            .unwrap()
    }
    world.next(AGENT, closed).blamed("I4", "without the phase Releasing");
}

#[test]
fn an_agent_takes_only_its_offer() {
    let mut world = World::offered();
    world
        .next(AGENT, |b| {
            new(b.index).offered(offer("n1", 3)).map(|b| take(&b)).unwrap()
        })
        .blamed("I1", "differs from the offer");
    let mut world = World::given_back();
    world
        .next(AGENT, |b| b.offered(offer("n1", 2)).unwrap())
        .blamed("I1", "an agent may not make this change");
    let mut world = World::offered();
    let published = json!({ "metadata": { "name": "n1" }, "spec": { "image": { "digest": digest(3).to_string() } } });
    world
        .write(CONTROLLER, "patch", "bootcnodes", "n1", json!({}), published)
        .next(AGENT, take)
        .blamed("I2", "the published image was");
}

#[test]
fn a_licence_is_for_one_uid() {
    let mut world = World::taken();
    let anew = json!({ "metadata": { "name": "n1", "uid": "another" }, "spec": {} });
    world.write(ADMIN, "create", "nodes", "", json!({}), anew);
    world
        .next(AGENT, |b| b.committed(BootId::from("b1")).unwrap())
        .blamed("I2", "has the UID another");
    // A Node that was re-created less than the lag ago may hold the berth.
    let mut world = World::default();
    let former = json!({ "metadata": { "name": "n1", "uid": "former" }, "spec": {} });
    world.write(ADMIN, "create", "nodes", "", json!({}), former);
    world.now += 60;
    world.offers().next(AGENT, take);
    assert_eq!(world.judged_with(SignedDuration::from_secs(30)), Vec::<String>::new());
}

#[test]
fn a_controller_takes_no_held_berth() {
    fn ended(b: &Berth) -> Berth {
        b.ended(ClosedReason::Gone).unwrap()
    }
    let mut world = World::committed();
    world.next(CONTROLLER, ended).blamed("I5", "was not deleted");
    let mut world = World::committed();
    world
        .write(ADMIN, "delete", "nodes", "n1", json!({}), json!({ "metadata": {} }))
        .next(CONTROLLER, ended);
    assert_eq!(world.judged(), Vec::<String>::new());
    let mut world = World::committed();
    world
        .next(CONTROLLER, |b| new(b.index).offered(offer("n2", 2)).unwrap())
        .blamed("I1", "a controller may not make this change");
    let mut world = World::taken();
    world.next(CONTROLLER, |b| b.revoked(Some("Paused".to_owned())).unwrap());
    world
        .next(AGENT, |b| {
            b.revoked(None).unwrap().committed(BootId::from("b1")).unwrap()
        })
        .blamed("I1", "revoked");
}

#[test]
fn a_controller_changes_only_a_holders_window() {
    let mut world = World::taken();
    let later = Timestamp::from_second(4_000_000_000).unwrap();
    world
        .next(CONTROLLER, |b| b.open_until(Some(later)).unwrap())
        .next(CONTROLLER, |b| b.open_until(None).unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
    let mut world = World::taken();
    world
        .next(CONTROLLER, |b| b.committed(BootId::from("b1")).unwrap())
        .blamed("I1", "fields that only the holder may change");
}

#[test]
fn a_failure_is_on_record_before_the_berth_opens() {
    fn gone() -> World {
        let mut world = World::committed();
        world.write(ADMIN, "delete", "nodes", "n1", json!({}), json!({ "metadata": {} }));
        world.next(CONTROLLER, |b| b.ended(ClosedReason::Gone).unwrap());
        world
    }
    gone()
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap())
        .blamed("I8", "before the pool's status recorded");
    gone()
        .next(CONTROLLER, |b| b.acknowledged().unwrap())
        .blamed("I8", "removed the failure");
    let mut world = gone();
    let failures = json!([{ "digest": digest(2).to_string(), "nodes": ["n1 (deleted)"] }]);
    let status = json!({ "status": { "berths": { "total": 1 }, "failures": failures }, "metadata": {} });
    world.write(
        CONTROLLER,
        "patch",
        "bootcnodepools/status",
        "workers",
        json!({}),
        status,
    );
    world
        .next(CONTROLLER, |b| b.acknowledged().unwrap())
        .next(CONTROLLER, |b| b.offered(offer("n2", 2)).unwrap());
    assert_eq!(world.judged(), Vec::<String>::new());
}

#[test]
fn a_failed_digest_is_offered_again_only_after_a_retry() {
    fn retry(world: &mut World, token: &str) {
        let object = json!({ "metadata": { "name": "workers" }, "spec": { "rollout": { "retryToken": token } } });
        world.write(ADMIN, "patch", "bootcnodepools", "workers", json!({}), object);
    }
    fn offered_again(target: u8, retries: &[&str]) -> Vec<String> {
        let mut world = World::default();
        retry(&mut world, "a");
        world.offers().next(AGENT, take);
        world.next(AGENT, |b| b.releasing(Outcome::Failed, BootId::from("b1")).unwrap());
        world
            .node(AGENT, "patch", "n1", false, false)
            .next(AGENT, |b| b.given_back().unwrap());
        let failures = json!([{ "digest": digest(2).to_string(), "nodes": ["n1"] }]);
        let status = json!({ "status": { "berths": { "total": 1 }, "failures": failures }, "metadata": {} });
        world
            .write(
                CONTROLLER,
                "patch",
                "bootcnodepools/status",
                "workers",
                json!({}),
                status,
            )
            .next(CONTROLLER, |b| b.acknowledged().unwrap());
        for token in retries {
            retry(&mut world, token);
        }
        world.next(CONTROLLER, |b| b.offered(offer("n1", target)).unwrap());
        world.judged()
    }
    for again in [offered_again(2, &[]), offered_again(2, &["a"])] {
        let [one] = again.as_slice() else { panic!("{again:?}") };
        assert!(
            one.starts_with("I8: workers-0 was opened for n1") && one.contains("had failed there"),
            "{one}"
        );
    }
    assert_eq!(offered_again(2, &["b"]), Vec::<String>::new());
    assert_eq!(offered_again(3, &[]), Vec::<String>::new());
}

#[test]
fn a_deposed_leader_must_not_write() {
    let mut world = World::default();
    world
        .capacity(2)
        .berth(CONTROLLER, new(0))
        .berth(CONTROLLER, new(1).stamped(8));
    world.next(CONTROLLER, |b| b.offered(offer("n1", 2)).unwrap());
    world
        .berth(CONTROLLER, new(0))
        .blamed("Fence", "after a controller with epoch 8");
    let mut world = World::offered();
    world
        .next(CONTROLLER, |b| b.stamped(3))
        .blamed("Fence", "the epoch decreased");
}

#[test]
fn an_unanswered_write_counts_if_built_on() {
    let mut world = World::given_back();
    let lost = world
        .audit
        .iter()
        .rposition(|r| r.resource == "leases" && r.response.as_ref().is_some_and(committed));
    let lost = &mut world.audit[lost.unwrap()];
    (lost.code, lost.response) = (504, Some(json!({ "metadata": {}, "code": 504 })));
    assert_eq!(world.judged(), Vec::<String>::new());
    // The log lacks the write, so the write is not judged, but the reboot has no licence.
    world.audit.retain(|r| r.code != 504);
    let said = world.judged();
    assert!(said.len() == 1 && said[0].starts_with("I2: n1 went down"), "{said:#?}");
}

fn committed(object: &Value) -> bool {
    object
        .pointer("/metadata/annotations")
        .is_some_and(|a| a["berth.dev/phase"] == "Committed")
}
