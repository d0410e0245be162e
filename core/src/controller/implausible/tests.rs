use berth_api::berth::{HoldPhase, Holding, Outcome};
use serde_json::{Value, json};

use super::*;
use crate::controller::plan::tests::{committed, digest};

/// `--agent-silence` in these tests, in seconds.
const SILENCE: u64 = 900;
/// Wall clock of the API server at the start of each test, in seconds since 1970.
const START: i64 = 1_800_000_000;

/// Nodes as the controller sees them. Tests change them, and let time pass.
struct World {
    judge: Judge,
    now: u64,
    /// Server's clock minus the true time, in seconds.
    server_ahead: Option<i64>,
    deaf: bool,
    nodes: Vec<One>,
}

struct One {
    name: &'static str,
    ready: bool,
    kubelet_boot: &'static str,
    kubelet_heard: u64,
    agent_boot: &'static str,
    booted: Option<u8>,
    /// Time that the agent writes minus the true time, in seconds.
    ahead: i64,
    synchronized: bool,
    pulling: bool,
    failed_pulls: u32,
    degraded: Option<&'static str>,
    node_uid: String,
    owner: String,
    agent_heard: u64,
    written: i64,
    lively: bool,
    desired: u8,
    berth: Option<(&'static str, Holding)>,
    told: Vec<Value>,
}

impl One {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            ready: true,
            kubelet_boot: "b1",
            kubelet_heard: 0,
            agent_boot: "b1",
            booted: Some(1),
            ahead: 0,
            synchronized: true,
            pulling: false,
            failed_pulls: 0,
            degraded: None,
            node_uid: format!("uid-{name}"),
            owner: format!("uid-{name}"),
            agent_heard: 0,
            written: 0,
            lively: true,
            desired: 2,
            berth: None,
            told: vec![],
        }
    }

    fn node(&self) -> Entry<NodeView> {
        let status = if self.ready { "True" } else { "Unknown" };
        let beat = format!("{:.0}", Timestamp::from_second(START).unwrap());
        let node = json!({
            "metadata": {"name": self.name, "uid": format!("uid-{}", self.name)},
            "status": {
                "nodeInfo": {
                    "bootID": self.kubelet_boot, "architecture": "amd64", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "",
                    "systemUUID": "",
                },
                "conditions": [{"type": "Ready", "status": status, "lastHeartbeatTime": beat}],
            },
        });
        let view = NodeView::of(&serde_json::from_value(node).unwrap());
        assert_eq!(view.error, None);
        Entry {
            heard: at(self.kubelet_heard),
            ..Entry::new(view)
        }
    }

    fn host(&self) -> Entry<BootcNodeView> {
        let time = "2026-01-01T00:00:00Z";
        let mut conditions = self.told.clone();
        let mut add = |type_: &str, status: &str, reason: &str| {
            conditions.push(json!({
                "type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": time,
            }));
        };
        if self.pulling {
            add("ImagePulledFromRegistry", "Unknown", "Pulling");
        }
        if let Some(reason) = self.degraded {
            add("NodeDegraded", "True", reason);
        }
        let failure = (self.failed_pulls > 0)
            .then(|| json!({"reason": "R", "message": "", "attempts": self.failed_pulls, "nextTryTime": time}));
        let image = json!({"ref": "r.io/os", "digest": digest(self.desired), "indexDigest": digest(self.desired)});
        let object = json!({
            "metadata": {
                "name": self.name, "uid": format!("h-{}", self.name), "generation": 1,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.owner}],
            },
            "spec": {"poolName": "p", "nodeUID": format!("uid-{}", self.name), "image": image},
            "status": {
                "nodeUID": self.node_uid, "bootID": self.agent_boot, "clockSynchronized": self.synchronized,
                "booted": self.booted.map(|n| json!({"image": "r.io/os", "digest": digest(n)})),
                "heartbeatTime": Timestamp::from_second(self.written).unwrap(), "failure": failure,
                "conditions": conditions,
            },
        });
        let view = BootcNodeView::of(serde_json::from_value(object).unwrap());
        assert_eq!(view.error(), None);
        Entry {
            heard: at(self.agent_heard),
            ..Entry::new(view)
        }
    }
}

fn at(seconds: u64) -> Moment {
    Moment::after(Duration::from_secs(seconds))
}

impl World {
    fn new() -> Self {
        Self::of(&["n1"])
    }

    fn of(names: &[&'static str]) -> Self {
        let mut world = Self {
            judge: Judge::default(),
            now: 0,
            server_ahead: Some(0),
            deaf: false,
            nodes: names.iter().map(|name| One::new(name)).collect(),
        };
        // All nodes have run normally for a while.
        world.pass_writing(2 * SILENCE);
        world
    }

    fn n1(&mut self) -> &mut One {
        &mut self.nodes[0]
    }

    /// Returns the contradictions of n1 now.
    fn look(&mut self) -> Vec<Contradiction> {
        let entries: Vec<_> = self.nodes.iter().map(|one| (one.node(), one.host())).collect();
        let witnesses = self.nodes.iter().zip(&entries).map(|(one, (node, host))| Witness {
            node,
            host,
            held: one.berth.as_ref().map(|(berth, holding)| Held {
                berth,
                holding,
                heard: at(one.agent_heard),
                limit: Some(Duration::from_secs(3600)),
            }),
            lively: one.lively,
        });
        let now = i64::try_from(self.now).unwrap();
        let facts = Facts {
            witnesses: witnesses.collect(),
            server: self.server_ahead.map(|ahead| ServerTime {
                time: Timestamp::from_second(START + now + ahead).unwrap(),
                at: at(self.now),
            }),
            silence: Duration::from_secs(SILENCE),
            deaf: self.deaf,
            now: at(self.now),
        };
        let found = self.judge.judge(&facts);
        let n1 = found.get(&NodeUid::from("uid-n1"));
        if let Some(found) = n1 {
            assert!(found.message.contains("kubectl berth exclude n1"), "{}", found.message);
        }
        let message = n1.map(|found| found.message.as_str()).unwrap_or_default();
        let all = Contradiction::ALL.iter().copied();
        all.filter(|found| message.contains(found.words())).collect()
    }

    /// Lets time pass, with a look every minute. In each minute, all agents and kubelets write.
    fn pass_writing(&mut self, seconds: u64) -> Vec<Contradiction> {
        self.pass(seconds, true, true)
    }

    fn pass(&mut self, seconds: u64, agents: bool, kubelets: bool) -> Vec<Contradiction> {
        let mut found = self.look();
        let end = self.now + seconds;
        while self.now < end {
            self.now = (self.now + 60).min(end);
            let now = self.now;
            for one in &mut self.nodes {
                if agents {
                    one.agent_heard = now;
                    one.written = START + i64::try_from(now).unwrap() + one.ahead;
                }
                if kubelets {
                    one.kubelet_heard = now;
                }
            }
            found = self.look();
        }
        found
    }

    /// Lets time pass, and fails if a contradiction is found at any look.
    fn is_honest(&mut self, what: &str, seconds: u64, agents: bool, kubelets: bool) {
        let end = self.now + seconds;
        while self.now < end {
            let step = (end - self.now).min(60);
            let found = self.pass(step, agents, kubelets);
            assert_eq!(found, [], "{what}, at {}", self.now);
        }
    }

    /// Another controller becomes leader. The condition shows the findings of the earlier leader.
    fn fail_over(&mut self, shown: Option<Contradiction>) {
        self.judge = Judge::default();
        let now = self.now;
        for one in &mut self.nodes {
            one.told = shown
                .map(|reason| {
                    json!({
                        "type": "Implausible", "status": "True", "reason": reason.as_str(), "message": "",
                        "lastTransitionTime": "2026-01-01T00:00:00Z",
                    })
                })
                .into_iter()
                .collect();
            // A new leader hears each object when it lists it.
            (one.agent_heard, one.kubelet_heard) = (now, now);
        }
    }
}

fn holding(phase: HoldPhase, target: u8) -> Holding {
    Holding {
        phase,
        target: digest(target),
        ..committed(0, "n1").holding().unwrap().clone()
    }
}

#[test]
fn another_boot_id_than_the_kubelets_is_named() {
    use Contradiction::BootIdDiffers;
    let mut world = World::new();
    world.n1().agent_boot = "b2";
    assert_eq!(world.pass_writing(SILENCE - 1), []);
    assert_eq!(world.pass_writing(61), [BootIdDiffers]);
    // The liar falls silent, or its Node is not Ready: the finding stays until the reports agree.
    world.n1().lively = false;
    assert_eq!(world.pass(4 * SILENCE, false, true), [BootIdDiffers]);
    (world.n1().lively, world.n1().ready) = (true, false);
    assert_eq!(world.pass_writing(SILENCE), [BootIdDiffers]);
    world.n1().degraded = Some("HostUnreachable");
    assert_eq!(world.pass_writing(SILENCE), [BootIdDiffers]);
    world.fail_over(Some(BootIdDiffers));
    assert_eq!(world.look(), [BootIdDiffers], "a new leader keeps it");
    world.n1().owner = "earlier".to_owned();
    world.fail_over(Some(BootIdDiffers));
    assert_eq!(world.look(), [], "the finding is about an earlier machine");
    world.n1().agent_boot = "b1";
    assert_eq!(world.look(), []);
    // Other boot IDs, one after the other, do not start the time again.
    let mut world = World::new();
    for boot in ["b2", "b3", "b4", "b5"] {
        world.n1().agent_boot = boot;
        world.pass_writing(SILENCE / 3);
    }
    assert_eq!(world.look(), [BootIdDiffers]);
}

#[test]
fn reboots_are_honest() {
    let mut world = World::new();
    for boot in ["b2", "b3", "b2.soft1"] {
        let kernel = boot.split('.').next().unwrap();
        // The kubelet comes up long before the agent, as for a DaemonSet whose image is still pulled.
        world.n1().kubelet_boot = kernel;
        world.is_honest("the agent is late", 3 * SILENCE, false, true);
        world.n1().agent_boot = boot;
        world.is_honest("the agent is up", 2 * SILENCE, true, true);
    }
    // The agent runs as a service, and the kubelet does not start: the Node stays Ready if the control plane is down.
    world.n1().agent_boot = "b4";
    world.is_honest("the kubelet is late", 4 * SILENCE, true, false);
    world.n1().ready = false;
    world.is_honest("the Node is not Ready", 4 * SILENCE, true, true);
    (world.n1().kubelet_boot, world.n1().ready) = ("b4", true);
    world.is_honest("the kubelet is up", 2 * SILENCE, true, true);
    // A boot loop.
    for boot in ["b5", "b6", "b7", "b8", "b9"] {
        world.n1().kubelet_boot = boot;
        world.is_honest("the agent does not start", SILENCE / 2, true, true);
    }
    world.n1().agent_boot = "b9";
    world.is_honest("the loop has ended", 2 * SILENCE, true, true);
    // While the host's services do not answer, the agent repeats its report from before the reboot.
    world.n1().kubelet_boot = "b10";
    world.n1().degraded = Some("HostUnreachable");
    world.is_honest("the host does not answer", 4 * SILENCE, true, true);
    (world.n1().agent_boot, world.n1().degraded) = ("b10", None);
    world.is_honest("the host answers", 2 * SILENCE, true, true);
    // A Node that was registered again has the report of the earlier machine, until its agent starts.
    world.n1().kubelet_boot = "b11";
    world.n1().node_uid = "earlier".to_owned();
    world.is_honest("another machine", 4 * SILENCE, true, true);
}

#[test]
fn failovers_and_lagging_watches_are_honest() {
    let mut world = World::new();
    world.n1().kubelet_boot = "b2";
    for _ in 0..5 {
        world.fail_over(None);
        world.is_honest("leaders change while the agent is down", SILENCE / 2, false, true);
    }
    world.n1().agent_boot = "b2";
    world.is_honest("the agent is up", 2 * SILENCE, true, true);
    // The watch of the BootcNodes is stale: it shows old reports as new.
    world.n1().kubelet_boot = "b3";
    world.deaf = true;
    world.n1().booted = Some(2);
    world.n1().ahead = -5000;
    world.is_honest("a watch lags", 4 * SILENCE, true, true);
    (world.deaf, world.n1().agent_boot, world.n1().ahead) = (false, "b3", 0);
    world.is_honest("the watch has caught up", 4 * SILENCE, true, true);
}

#[test]
fn another_image_under_the_same_boot_id_is_named() {
    use Contradiction::ImageWithoutReboot;
    let mut world = World::new();
    world.n1().booted = Some(2);
    assert_eq!(world.pass_writing(SILENCE - 1), []);
    assert_eq!(world.pass_writing(61), [ImageWithoutReboot]);
    world.n1().degraded = Some("DiskFull");
    world.n1().lively = false;
    assert_eq!(world.pass_writing(SILENCE), [ImageWithoutReboot]);
    world.fail_over(Some(ImageWithoutReboot));
    world.n1().lively = true;
    assert_eq!(
        world.pass_writing(4 * SILENCE),
        [ImageWithoutReboot],
        "a new leader keeps it"
    );
    // With a false boot ID, the kubelet contradicts it.
    world.n1().agent_boot = "b2";
    assert_eq!(world.pass_writing(2 * SILENCE), [Contradiction::BootIdDiffers]);
    world.n1().kubelet_boot = "b2";
    assert_eq!(world.look(), [], "it has rebooted");
}

#[test]
fn images_of_honest_boots_are_plausible() {
    let mut world = World::new();
    // Early in a boot, the agent repeats the image of the boot before: for a moment, or while it cannot read the host.
    for (boot, image, degraded) in [("b2", 2, None), ("b3", 1, Some("StatusFailed")), ("b4", 3, None)] {
        (world.n1().kubelet_boot, world.n1().agent_boot, world.n1().degraded) = (boot, boot, degraded);
        let blind = if degraded.is_some() { 5 * SILENCE } else { 120 };
        world.is_honest("the host is not read yet", blind, true, true);
        (world.n1().booted, world.n1().degraded) = (Some(image), None);
        world.is_honest("the host is read", 2 * SILENCE, true, true);
        world.n1().booted = None;
        world.is_honest("the image is unknown", 2 * SILENCE, true, true);
        world.n1().booted = Some(image);
        world.is_honest("the image is known again", 2 * SILENCE, true, true);
    }
    // A soft reboot keeps the kernel's boot ID.
    (world.n1().agent_boot, world.n1().booted) = ("b4.soft1", Some(4));
    world.is_honest("a soft reboot", 2 * SILENCE, true, true);
    // A virtual machine goes back to a snapshot, with the boot and the image of that time.
    (world.n1().agent_boot, world.n1().booted) = ("b4", Some(3));
    world.is_honest("a snapshot", 2 * SILENCE, true, true);
}

#[test]
fn a_clock_that_counts_as_synchronized_and_is_wrong_is_named() {
    use Contradiction::ClockDiffers;
    let silence = i64::try_from(SILENCE).unwrap();
    for (ahead, is_wrong) in [
        (CLOCK_LIMIT, false),
        (CLOCK_LIMIT + 1, true),
        (3_000_000_000, true),
        (-CLOCK_LIMIT - silence, false),
        (-CLOCK_LIMIT - silence - 1, true),
        (-START, true),
    ] {
        let mut world = World::of(&["n1", "n2"]);
        world.n1().ahead = ahead;
        assert_eq!(world.pass_writing(3 * SILENCE - 1), [], "{ahead}");
        let expected: &[Contradiction] = if is_wrong { &[ClockDiffers] } else { &[] };
        assert_eq!(world.pass_writing(121), expected, "{ahead}");
        world.fail_over(is_wrong.then_some(ClockDiffers));
        assert_eq!(world.look(), expected, "{ahead}: a new leader keeps it");
        world.n1().ahead = 0;
        assert_eq!(world.pass_writing(60), [], "{ahead}");
    }
}

#[test]
fn honest_clocks_are_plausible() {
    let mut world = World::of(&["n1", "n2", "n3"]);
    (world.n1().ahead, world.n1().synchronized) = (-50_000, false);
    world.is_honest("it reports that its clock is not synchronized", 9 * SILENCE, true, true);
    world.n1().synchronized = true;
    world.is_honest(
        "a daemon corrects the clock after half an hour",
        2 * SILENCE,
        true,
        true,
    );
    world.n1().ahead = 0;
    world.is_honest("the clock is right", SILENCE, true, true);
    world.is_honest(
        "the agent does not run, and its last report is old",
        9 * SILENCE,
        false,
        true,
    );
    world.fail_over(None);
    world.is_honest("a new leader lists the old report", 9 * SILENCE, false, true);
    world.is_honest("the agent runs", SILENCE, true, true);
    world.server_ahead = Some(5000);
    world.is_honest("the API server's clock is wrong", 9 * SILENCE, true, true);
    world.server_ahead = None;
    world.is_honest("the API server's clock is unknown", 9 * SILENCE, true, true);
    world.server_ahead = Some(0);
    for one in &mut world.nodes[1..] {
        one.lively = false;
    }
    world.n1().ahead = 5000;
    assert_eq!(
        world.pass_writing(4 * SILENCE),
        [Contradiction::ClockDiffers],
        "one of one"
    );
}

#[test]
fn a_turn_that_does_not_end_is_named() {
    use Contradiction::TurnDoesNotEnd;
    let mut world = World::new();
    world.n1().berth = Some(("p-0", holding(HoldPhase::Taken, 2)));
    assert_eq!(world.pass_writing(3540), []);
    assert_eq!(world.pass_writing(120), [TurnDoesNotEnd]);
    world.fail_over(Some(TurnDoesNotEnd));
    assert_eq!(world.pass_writing(60), [TurnDoesNotEnd], "a new leader keeps it");
    world.n1().berth = Some(("p-1", holding(HoldPhase::Taken, 2)));
    assert_eq!(world.pass_writing(60), [], "another turn");
    // Neither another phase nor an image that is not published starts the time again.
    for image in [2, 3, 2, 4, 2, 5] {
        let phase = if image == 2 {
            HoldPhase::Taken
        } else {
            HoldPhase::Committed
        };
        world.n1().berth = Some(("p-1", holding(phase, image)));
        world.pass_writing(720);
    }
    assert_eq!(world.look(), [TurnDoesNotEnd]);
    world.n1().berth = None;
    assert_eq!(world.look(), []);
    // A holder that writes seldom is named too, later.
    world.n1().berth = Some(("p-0", holding(HoldPhase::Committed, 2)));
    for _ in 0..14 {
        world.pass(800, false, true);
        world.pass(60, true, true);
    }
    assert_eq!(world.look(), [TurnDoesNotEnd]);
}

#[test]
fn honest_turns_end() {
    let mut world = World::new();
    let taken = holding(HoldPhase::Taken, 2);
    world.n1().berth = Some(("p-0", taken));
    world.is_honest("it drains", 1800, true, true);
    world.n1().degraded = Some("DrainTimeout");
    world.is_honest("the drain is held for days", 50_000, true, true);
    world.n1().degraded = None;
    world.n1().berth = Some(("p-0", holding(HoldPhase::Committed, 2)));
    (world.n1().lively, world.n1().ready) = (false, false);
    world.is_honest("it does not come back for days", 50_000, false, false);
    (world.n1().lively, world.n1().ready) = (true, true);
    (world.n1().agent_boot, world.n1().kubelet_boot) = ("b2", "b2");
    world.is_honest("it is proven", 600, true, true);
    (world.n1().pulling, world.n1().desired) = (true, 3);
    world.is_honest("it pulls a better image", 7200, true, true);
    world.n1().pulling = false;
    world.n1().berth = Some(("p-0", holding(HoldPhase::Committed, 3)));
    world.is_honest("it updates to the better image", 3000, true, true);
    world.n1().berth = Some(("p-0", holding(HoldPhase::Releasing(Outcome::Updated), 3)));
    world.is_honest("it gives the berth back", 300, true, true);
    world.n1().berth = None;
    world.is_honest("it is updated", 9000, true, true);
}

#[test]
fn a_pull_that_does_not_end_is_named() {
    let limit = PULL_LIMIT.as_secs() + 2 * SILENCE;
    let mut world = World::new();
    world.n1().pulling = true;
    assert_eq!(world.pass_writing(limit - 1), []);
    assert_eq!(world.pass_writing(61), [Contradiction::PullDoesNotEnd]);
    world.fail_over(Some(Contradiction::PullDoesNotEnd));
    assert_eq!(world.look(), [Contradiction::PullDoesNotEnd], "a new leader keeps it");
    world.n1().pulling = false;
    assert_eq!(world.look(), []);
    // Pulls that fail, or that an agent cannot report.
    for attempt in 1..4 {
        (world.n1().pulling, world.n1().failed_pulls) = (true, attempt);
        world.is_honest("a slow network", PULL_LIMIT.as_secs() + SILENCE, true, true);
    }
    for image in [3, 4, 5] {
        world.n1().desired = image;
        world.is_honest("a newer image before each pull ends", PULL_LIMIT.as_secs(), true, true);
    }
    world.n1().lively = false;
    world.is_honest("the agent does not run", 2 * limit, false, true);
}

#[test]
fn the_condition_is_written_once() {
    let mut world = World::new();
    world.n1().agent_boot = "b2";
    world.pass_writing(2 * SILENCE);
    let found = Implausible::of(
        &"n1".into(),
        &[Contradiction::BootIdDiffers, Contradiction::ClockDiffers],
    )
    .unwrap();
    assert_eq!(found.reason, Contradiction::BootIdDiffers);
    let written = |one: &One| {
        let host = one.host();
        let content = host.view.readable().unwrap().clone();
        let [some, none] = [Some(&found), None].map(|found| Implausible::verdict(found, &content));
        [some, none].map(|verdict| verdict.map(|verdict| (verdict.status, verdict.reason.to_string())))
    };
    let yes = Some((Some(true), "BootIdDiffers".to_owned()));
    assert_eq!(written(world.n1()), [yes.clone(), None], "no condition yet");
    let mut conditions = vec![];
    let verdict = Verdict::yes(found.reason, &*found.message);
    condition::set(
        &mut conditions,
        types::IMPLAUSIBLE,
        verdict,
        None,
        Timestamp::UNIX_EPOCH,
    );
    world.n1().told = vec![serde_json::to_value(&conditions[0]).unwrap()];
    let no = Some((Some(false), "AsExpected".to_owned()));
    assert_eq!(written(world.n1()), [None, no], "the condition is True");
    world.n1().told[0]["status"] = "False".into();
    assert_eq!(written(world.n1()), [yes.clone(), None], "the condition is False");
    world.n1().told[0]["status"] = "True".into();
    world.n1().told[0]["reason"] = "ClockDiffers".into();
    assert_eq!(written(world.n1())[0], yes, "another reason");
}
