//! The gates: what keeps the berths of a pool closed, that it says so on the pool and on the nodes, that a holder who has
//! not committed gives back, and that everything goes on by itself once the gate is open. The control plane, the
//! controller and the agents are real, the hosts are simulated. All scenarios but one share a cluster, each on hosts of
//! its own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::berth::{BerthState, Outcome};
use berth_api::condition;
use berth_api::fleet::BootcFleet;
use berth_api::pool::WaveState;
use berth_api::windows::{Opening, Schedule, WindowSpec};
use berth_tests::audit::AuditLog;
use berth_tests::cluster::{Cluster, ClusterOptions, Part, together};
use berth_tests::hosts::HostChange;
use jiff::{SignedDuration, Timestamp, ToSpan, tz::TimeZone};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(80);

fn options(hosts: usize) -> ClusterOptions {
    ClusterOptions {
        hosts,
        // Nobody may have synchronised the clock of the machine that runs the tests.
        controller_env: vec![("BERTH_TRUST_CLOCK".to_owned(), "true".to_owned())],
        agent_args: vec!["--heartbeat=10".to_owned()],
        ..ClusterOptions::default()
    }
}

#[tokio::test]
async fn gates() -> Result<()> {
    let cluster = Cluster::start(options(23)).await?;
    let part = async |name, hosts| Part::new(&cluster, name, hosts).await;
    let pause = part("pause", 1..=3).await?;
    let window = part("window", 4..=4).await?;
    let shutting = part("shutting", 5..=5).await?;
    let invalid = part("invalid", 6..=6).await?;
    let clock = part("clock", 7..=9).await?;
    let waves = part("waves", 10..=13).await?;
    let zones = part("zones", 14..=17).await?;
    let budget = part("budget", 18..=21).await?;
    let splay = part("splay", 22..=22).await?;
    let short = part("short", 23..=23).await?;
    together(
        &cluster,
        vec![
            ("a_paused_pool_takes_back_and_goes_on", Box::pin(a_paused_pool_takes_back_and_goes_on(&pause))),
            ("a_window_opens", Box::pin(a_window_opens(&window))),
            ("a_window_shuts_over_a_drain", Box::pin(a_window_shuts_over_a_drain(&shutting))),
            ("a_window_that_means_nothing", Box::pin(a_window_that_means_nothing(&invalid))),
            ("a_host_without_the_time", Box::pin(a_host_without_the_time(&clock))),
            ("wave_after_wave", Box::pin(wave_after_wave(&waves))),
            ("zone_beside_zone", Box::pin(zone_beside_zone(&zones))),
            ("an_image_that_fails_halts", Box::pin(an_image_that_fails_halts(&budget))),
            ("a_splay_delays_the_start", Box::pin(a_splay_delays_the_start(&splay))),
            ("a_window_that_is_too_short", Box::pin(a_window_that_is_too_short(&short))),
        ],
    )
    .await
}

/// Here the controller asks its machine's kernel about the clock, as it does unless it is told not to.
#[tokio::test]
async fn fleet() -> Result<()> {
    let cluster = Cluster::start(ClusterOptions { controller_env: vec![], ..options(3) }).await?;
    let part = Part::new(&cluster, "fleet", 1..=2).await?;
    together(&cluster, vec![("a_paused_fleet_takes_back_and_goes_on", Box::pin(paused_fleet(&part)))]).await?;
    let part = Part::new(&cluster, "kernel", 3..=3).await?;
    together(&cluster, vec![("the_clock_of_the_controller", Box::pin(the_clock_of_the_controller(&part)))]).await
}

/// Everyone who must hold no berth any more: the last one ended so, its Node is schedulable, its host was not rebooted.
async fn until_taken_back(part: &Part<'_>, n: usize, outcome: Outcome) -> Result<()> {
    part.until_hold(&[], SOON).await?;
    let berths = part.berths().await?;
    let ended = berths.iter().any(|berth| match &berth.state {
        BerthState::Closed(c) => {
            c.outcome == Some(outcome) && c.last_node.as_ref().is_some_and(|l| l.as_str() == part.node(n))
        }
        _ => false,
    });
    ensure!(ended, "the berth says how the turn ended: {berths:?}");
    part.is_untouched(n, 1).await
}

async fn a_paused_pool_takes_back_and_goes_on(part: &Part<'_>) -> Result<()> {
    let nodes = [part.node(1), part.node(2), part.node(3)];
    part.block(nodes[0]).await?;
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1, "paused": true })).await?;
    for node in nodes {
        part.until_phase(node, "Waiting", SOON).await?;
    }
    part.until_held(&nodes, "Paused", "rollout.paused", SOON).await?;
    part.until_says("Paused", "True", "PausedByAdmin", "", SOON).await?;
    part.until_says("Progressing", "False", "Paused", "rollout.paused", SOON).await?;
    ensure!(part.holders().await?.is_empty(), "nobody holds a berth of a paused pool");
    part.rollout(json!({ "paused": false })).await?;
    part.until_phase(nodes[0], "Draining", SOON).await?;
    ensure!(part.is_cordoned(nodes[0]).await?, "who drains is cordoned");
    part.rollout(json!({ "paused": true })).await?;
    until_taken_back(part, 1, Outcome::Revoked).await?;
    part.until_held(&nodes, "Paused", "rollout.paused", SOON).await?;
    part.rollout(json!({ "paused": false })).await?;
    part.until_hold(&nodes[..1], SOON).await?;
    part.unblock(nodes[0]).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_says("Paused", "False", "NotPaused", "", SOON).await
}

async fn paused_fleet(part: &Part<'_>) -> Result<()> {
    let nodes = [part.node(1), part.node(2)];
    let fleet: Api<BootcFleet> = Api::all(part.cluster.client());
    let pause = async |paused: bool| {
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcFleet", "metadata": { "name": "cluster" },
            "spec": { "paused": paused },
        });
        fleet.patch("cluster", &PatchParams::apply("admin").force(), &Patch::Apply(&object)).await?;
        part.until("the fleet says so", SOON, || async {
            let status = fleet.get("cluster").await?.status.unwrap_or_default();
            Ok(condition::is_true(&status.conditions, "Paused") == paused)
        })
        .await
    };
    // Whoever stages it first.
    let draining = async || {
        part.until("somebody drains", SOON, || async {
            let holders = part.holders().await?;
            let [holder] = holders.as_slice() else { return Ok(false) };
            Ok(part.cluster.phase(holder).await? == "Draining")
        })
        .await?;
        let holder = part.holders().await?.pop().context("it holds a berth")?;
        nodes.iter().position(|node| *node == holder).map(|n| n + 1).context("it is one of ours")
    };
    pause(true).await?;
    for node in nodes {
        part.block(node).await?;
    }
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 1 })).await?;
    part.until_held(&nodes, "FleetPaused", "BootcFleet cluster", SOON).await?;
    part.until_says("Paused", "True", "PausedByFleet", "BootcFleet cluster", SOON).await?;
    part.until_says("Progressing", "False", "FleetPaused", "BootcFleet cluster", SOON).await?;
    ensure!(part.hosts.iter().all(|h| h.facts().staged.is_none()), "nobody begins to pull");
    pause(false).await?;
    let first = draining().await?;
    pause(true).await?;
    until_taken_back(part, first, Outcome::Revoked).await?;
    part.until_held(&nodes, "FleetPaused", "BootcFleet cluster", SOON).await?;
    pause(false).await?;
    draining().await?;
    for node in nodes {
        part.unblock(node).await?;
    }
    part.until_all_run(&v2, LONG).await?;
    part.until_says("Paused", "False", "NotPaused", "", SOON).await
}

async fn a_window_opens(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let far = format!("{} {} * * *", now.minute(), (now.hour() + 12) % 24);
    let v2 = part.publish("2.0.0").await?;
    part.block(node).await?;
    part.pool(&v2, json!({ "windows": [{ "schedule": far, "duration": "1h" }] })).await?;
    part.until_phase(node, "Waiting", SOON).await?;
    part.until_held(&[node], "OutsideWindows", "reboots may start at", SOON).await?;
    part.until_says("WindowOpen", "False", "OutsideWindows", "reboots may start at", SOON).await?;
    part.until_says("Progressing", "False", "OutsideWindows", "", SOON).await?;
    ensure!(part.holders().await?.is_empty() && part.boots(1) == 1, "nobody goes outside the window");
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let open = format!("{} {} * * *", now.minute(), now.hour());
    part.rollout(json!({ "windows": [{ "schedule": open, "duration": "1h" }] })).await?;
    part.until_hold(&[node], SOON).await?;
    let holding = part.holdings().await?.pop().context("it holds a berth")?;
    let left = holding.open_until.context("until when it may reboot")?.duration_since(Timestamp::now());
    let hour = SignedDuration::from_mins(58)..=SignedDuration::from_mins(60);
    ensure!(hour.contains(&left), "the window is open for an hour, not {left:?}");
    part.until_says("WindowOpen", "True", "Open", "reboots may start until", SOON).await?;
    part.unblock(node).await?;
    part.until_all_run(&v2, LONG).await
}

async fn a_window_shuts_over_a_drain(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    part.block(node).await?;
    let v2 = part.roll_to("2.0.0", json!({ "paused": true })).await?;
    part.until_held(&[node], "Paused", "", SOON).await?;
    part.until_phase(node, "Waiting", SOON).await?;
    let (from, to) = (Timestamp::now() + 6.seconds(), Timestamp::now() + 16.seconds());
    part.rollout(json!({ "paused": false, "exclusions": [{ "from": from, "to": to }] })).await?;
    part.until_phase(node, "Draining", SOON).await?;
    let until = part.holdings().await?.pop().and_then(|h| h.open_until);
    ensure!(until.is_some_and(|t| t <= from), "it may reboot before the exclusion only: {until:?}");
    until_taken_back(part, 1, Outcome::Revoked).await?;
    ensure!(Timestamp::now() >= from, "not before the exclusion begins");
    part.until_held(&[node], "Excluded", "an exclusion is in force", SOON).await?;
    part.until_says("WindowOpen", "False", "Excluded", "an exclusion is in force", SOON).await?;
    // Nothing holds up the drain any more, and still the host waits for the end of the exclusion.
    part.unblock(node).await?;
    part.until_all_run(&v2, LONG).await?;
    let events = part.cluster.log.events();
    let mut downs = events.iter().filter(|e| e.host == node && matches!(e.change, HostChange::Down));
    let down = downs.next().context("it rebooted")?.at;
    ensure!(down >= to && downs.next().is_none(), "it went down once, at {down}, and not before {to}");
    Ok(())
}

async fn a_window_that_means_nothing(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    let window = |schedule: &str, zone: &str| json!([{ "schedule": schedule, "duration": "8h", "timeZone": zone }]);
    let v2 = part.roll_to("2.0.0", json!({ "windows": window("* * * * *", "Mars/Olympus") })).await?;
    part.until_says("WindowOpen", "False", "InvalidWindow", "Mars/Olympus", SOON).await?;
    part.until_held(&[node], "InvalidWindow", "Mars/Olympus", SOON).await?;
    part.until_phase(node, "Waiting", SOON).await?;
    part.until_says("Progressing", "False", "InvalidWindow", "windows[0]", SOON).await?;
    part.rollout(json!({ "windows": window("0 0 31 2 *", "UTC") })).await?;
    part.until_says("WindowOpen", "False", "InvalidWindow", "0 0 31 2 *", SOON).await?;
    part.until_held(&[node], "InvalidWindow", "0 0 31 2 *", SOON).await?;
    ensure!(part.boots(1) == 1, "nobody goes meanwhile");
    part.rollout(json!({ "windows": window("* * * * *", "Europe/Berlin") })).await?;
    part.until_says("WindowOpen", "True", "Open", "", SOON).await?;
    part.until_all_run(&v2, LONG).await
}

async fn a_host_without_the_time(part: &Part<'_>) -> Result<()> {
    let (bad, mute) = (part.node(1), part.node(2));
    part.host(1).settings(|s| s.clock_synchronized = Some(false));
    part.host(2).settings(|s| s.clock_synchronized = None);
    // What they said before may be believed for a while.
    part.host(1).kill_agent();
    part.host(2).kill_agent();
    let always = json!([{ "schedule": "* * * * *", "duration": "1h" }]);
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 3, "windows": always })).await?;
    part.until_run(&v2, &[3], SOON).await?;
    part.until_held(&[bad, mute], "ClockNotSynchronized", "clock", SOON).await?;
    part.until_says("Progressing", "False", "Waiting", "clock is not synchronised", SOON).await?;
    let said = part.bootc_node(bad).await?.status.and_then(|s| s.clock_synchronized);
    ensure!(said == Some(false), "the agent says so: {said:?}");
    ensure!([1, 2].iter().all(|n| part.boots(*n) == 1), "and nobody of them goes");
    for n in [1, 2] {
        part.host(n).settings(|s| s.clock_synchronized = Some(true));
    }
    part.until_all_run(&v2, LONG).await
}

/// Whether the kernel says that somebody keeps this machine's clock, as the controller takes it.
fn clock_is_kept() -> Result<bool> {
    let mut answer = rtime_clock::adjtime::Timex::new();
    rtime_clock::adjtime::adjtimex(&mut answer).context("the kernel does not say how exact the clock is")?;
    Ok(answer.0.maxerror < 16_000_000)
}

async fn the_clock_of_the_controller(part: &Part<'_>) -> Result<()> {
    let (node, kept) = (part.node(1), clock_is_kept()?);
    println!("the clock of this machine is {}", if kept { "kept: windows are judged" } else { "kept by nobody" });
    let always = json!([{ "schedule": "* * * * *", "duration": "1h" }]);
    let v2 = part.roll_to("2.0.0", json!({ "windows": always })).await?;
    if kept {
        part.until_says("WindowOpen", "True", "Open", "reboots may start until", SOON).await?;
        return part.until_all_run(&v2, LONG).await;
    }
    part.until_phase(node, "Waiting", SOON).await?;
    part.until_says("WindowOpen", "False", "ClockNotSynchronized", "the controller's clock", SOON).await?;
    part.until_says("Progressing", "False", "ClockNotSynchronized", "--trust-clock", SOON).await?;
    part.until_held(&[node], "ClockNotSynchronized", "the controller's clock", SOON).await?;
    // An exclusion cannot be judged either.
    let far = Timestamp::now() + 1000.hours();
    let exclusion = json!([{ "from": far, "to": far + 1.hour() }]);
    part.rollout(json!({ "windows": null, "exclusions": exclusion })).await?;
    part.until("the spec is looked at", SOON, || async {
        let pool = part.cluster.pools().get(&part.name).await?;
        Ok(pool.status.unwrap_or_default().observed_generation == pool.metadata.generation)
    })
    .await?;
    part.until_says("WindowOpen", "False", "ClockNotSynchronized", "the controller's clock", SOON).await?;
    ensure!(part.ever(0)? == ["closed:new"], "nobody was offered a berth: {:?}", part.ever(0)?);
    ensure!(part.boots(1) == 1, "and nobody goes");
    // Without either nothing depends on a clock.
    part.rollout(json!({ "exclusions": null })).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_says("WindowOpen", "True", "AlwaysOpen", "", SOON).await
}

fn whole_minute(t: Timestamp) -> Timestamp {
    t - SignedDuration::from_secs(t.as_second() % 60) - SignedDuration::from_nanos(t.subsec_nanosecond().into())
}

/// When a window that began at some time in the last minutes takes effect for a pool, delayed by its share of a splay.
fn delayed(pool: &str, schedule: &str, splay: u64, now: Timestamp) -> Result<Option<Timestamp>> {
    let window = WindowSpec {
        schedule,
        duration: Duration::from_secs(168 * 3600),
        time_zone: "UTC",
        splay: Duration::from_secs(splay),
    };
    Ok(match Schedule::parse(&[window], &[])?.at(now, pool) {
        Opening::Open { .. } => None,
        Opening::Closed { next, .. } => next,
    })
}

async fn a_splay_delays_the_start(part: &Part<'_>) -> Result<()> {
    const WHOLE: u64 = 600_000;
    let (node, v2) = (part.node(1), part.publish("2.0.0").await?);
    part.pool(&v2, json!({ "paused": true })).await?;
    part.until_phase(node, "Waiting", SOON).await?;
    part.until_held(&[node], "Paused", "", SOON).await?;
    // A start whose share is neither very small nor the whole, and a splay of which that share ends in ten seconds.
    let now = Timestamp::now();
    let of_start = |minutes: i64| {
        let start = whole_minute(now - minutes.minutes()).to_zoned(TimeZone::UTC);
        let schedule = format!("{} {} {} {} *", start.minute(), start.hour(), start.day(), start.month());
        let opens = delayed(&part.name, &schedule, WHOLE, now).ok().flatten()?;
        let share = opens.duration_since(start.timestamp()).as_secs_f64() / WHOLE as f64;
        let wanted = now.duration_since(start.timestamp()).as_secs_f64() + 10.0;
        (0.1..0.9).contains(&share).then(|| (start.timestamp(), schedule, (wanted / share) as u64))
    };
    let (start, schedule, splay) = (1..60).find_map(of_start).context("no start has such a share")?;
    let opens = delayed(&part.name, &schedule, splay, now)?.context("it is delayed")?;
    let ahead = opens.duration_since(now);
    ensure!((8..12).contains(&ahead.as_secs()), "it opens in ten seconds, not in {ahead:?}");
    ensure!(delayed(&part.name, &schedule, 0, now)?.is_none(), "without a splay it would be open since {start}");
    let window = json!({ "schedule": schedule, "duration": "168h", "splay": format!("{splay}s") });
    part.rollout(json!({ "paused": false, "windows": [window] })).await?;
    let words = format!("reboots may start at {opens}");
    part.until_says("WindowOpen", "False", "OutsideWindows", &words, SOON).await?;
    part.until_held(&[node], "OutsideWindows", &words, SOON).await?;
    part.until_all_run(&v2, LONG).await?;
    let audit = AuditLog::read(&part.cluster.control_plane.audit_log())?;
    let berth = format!("{}-0", part.name);
    let of_berth = audit.writes().filter(|r| r.target() == "leases" && r.name == berth);
    let offered = of_berth.filter(|r| r.holder().is_some_and(|h| !h.starts_with("closed:")));
    let first = offered.map(|r| r.received).min().context("it was offered")?;
    ensure!(first >= opens, "nobody was offered a berth before {opens}: {first}");
    Ok(())
}

async fn a_window_that_is_too_short(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    // How long a turn takes here is measured.
    part.host(1).settings(|s| s.reboot_time = Duration::from_secs(8));
    let v2 = part.roll_to("2.0.0", json!({})).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until("the reboot is measured", SOON, || async {
        Ok(part.status().await?.phase_durations.reboot_seconds.is_some_and(|s| s >= 8))
    })
    .await?;
    part.host(1).settings(|s| s.reboot_time = Duration::from_secs(1));
    let v3 = part.roll_to("3.0.0", json!({ "paused": true })).await?;
    part.until("the next image is staged", SOON, || async { Ok(part.status().await?.nodes.staged == 1) }).await?;
    // Open for eight more seconds today, and for three in a year.
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let schedule = format!("{} {} {} {} *", now.minute(), now.hour(), now.day(), now.month());
    let next = whole_minute((&now + 1.year()).timestamp());
    let closes = now.timestamp() + 8.seconds();
    let rollout = json!({
        "paused": false,
        "windows": [{ "schedule": schedule, "duration": "1h" }],
        "exclusions": [{ "from": closes, "to": closes + 1.hour() }, { "from": next + 3.seconds(), "to": next + 1.hour() }],
    });
    part.rollout(rollout).await?;
    part.until_says("WindowOpen", "True", "Open", "reboots may start until", SOON).await?;
    part.until_held(&[node], "WindowTooShort", "would outlast this one", SOON).await?;
    part.until_says("Progressing", "False", "Waiting", "would outlast this one", SOON).await?;
    let words = "the longest window lasts 3s, and a drain and a reboot take";
    part.until_says("WindowOpen", "False", "WindowTooShort", words, SOON).await?;
    part.until_says("Progressing", "False", "WindowTooShort", "write a longer one", SOON).await?;
    part.until_held(&[node], "WindowTooShort", words, SOON).await?;
    ensure!(part.boots(1) == 2 && part.holders().await?.is_empty(), "nobody goes");
    let offers = part.ever(0)?.into_iter().filter(|holder| holder.starts_with("offered:")).count();
    ensure!(offers == 1, "nobody was offered a berth but for the first image: {:?}", part.ever(0)?);
    part.rollout(json!({ "windows": [{ "schedule": schedule, "duration": "2h" }], "exclusions": null })).await?;
    part.until_says("WindowOpen", "True", "Open", "", SOON).await?;
    part.until_all_run(&v3, LONG).await
}

async fn wave_after_wave(part: &Part<'_>) -> Result<()> {
    const SOAK: SignedDuration = SignedDuration::from_secs(6);
    let nodes @ [w1, w2, canary, last] = [1, 2, 3, 4].map(|n| part.node(n));
    part.label(canary, "tier", Some("canary")).await?;
    part.label(last, "node-role.kubernetes.io/control-plane", Some("")).await?;
    for node in [w2, canary] {
        part.block(node).await?;
    }
    let wave = json!({ "name": "first", "nodeSelector": { "matchLabels": { "tier": "canary" } }, "soakTime": "6s" });
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 4, "waves": [wave] })).await?;
    part.until_hold(&[canary], SOON).await?;
    part.until_held(&[w1, w2, last], "WaveWaiting", "wave first is proven", SOON).await?;
    part.unblock(canary).await?;
    part.until_held(&[w1, w2, last], "WaveSoaking", "wave first has soaked", SOON).await?;
    let states = part.status().await?.waves.into_iter().map(|w| (w.name, w.state)).collect::<Vec<_>>();
    let is = |name: &str, state| states.contains(&(name.to_owned(), state));
    ensure!(
        is("first", WaveState::Soaking) && is("rest", WaveState::Waiting),
        "the pool says how far it is: {states:?}"
    );
    part.until_run(&v2, &[1], SOON).await?;
    part.until_held(&[last], "WaveWaiting", "wave rest is proven", SOON).await?;
    part.until_hold(&[w2], SOON).await?;
    ensure!(part.order(&v2) == [canary, w1], "only these have gone so far");
    part.unblock(w2).await?;
    part.until_all_run(&v2, LONG).await?;
    ensure!(part.order(&v2) == [canary, w1, w2, last], "wave after wave: {:?} of {nodes:?}", part.order(&v2));
    let events = part.cluster.log.events();
    let at = |host: &str, wanted: fn(&HostChange) -> bool| {
        events.iter().rev().find(|e| e.host == host && wanted(&e.change)).map(|e| e.at).context("it rebooted")
    };
    let proven = at(canary, |c| matches!(c, HostChange::Ready { .. }))?;
    let next = at(w1, |c| matches!(c, HostChange::Down))?;
    ensure!(next.duration_since(proven) >= SOAK, "the canary soaked: proven at {proven}, next down at {next}");
    part.until("all waves are done", SOON, || async {
        let waves = part.status().await?.waves;
        Ok(waves.len() == 3 && waves.iter().all(|w| w.state == WaveState::Done))
    })
    .await
}

async fn zone_beside_zone(part: &Part<'_>) -> Result<()> {
    let nodes @ [z1, z2, z3, _] = [1, 2, 3, 4].map(|n| part.node(n));
    for (node, rack) in nodes.iter().zip(["a", "a", "b", "b"]) {
        part.label(node, "rack", Some(rack)).await?;
        part.block(node).await?;
    }
    let v2 = part.publish("2.0.0").await?;
    part.roll_once_staged(&v2, json!({ "maxUnavailable": 2, "zoneKey": "rack" })).await?;
    part.until_hold(&[z1, z3], SOON).await?;
    part.unblock(z1).await?;
    part.until_hold(&[z2, z3], SOON).await?;
    for node in &nodes[1..] {
        part.unblock(node).await?;
    }
    part.until_all_run(&v2, LONG).await
}

/// Nodes on which the image failed, by their own word.
async fn failed(part: &Part<'_>, digest: &berth_api::Digest) -> Result<Vec<String>> {
    let mut failed = vec![];
    for host in &part.hosts {
        let status = part.bootc_node(host.name()).await?.status.unwrap_or_default();
        failed.extend(status.failed_digests.contains(digest).then(|| host.name().to_owned()));
    }
    Ok(failed)
}

/// With k = 2 and maxFailures = 2, at most three nodes ever fail.
async fn an_image_that_fails_halts(part: &Part<'_>) -> Result<()> {
    const MOST: usize = 2 + 2 - 1;
    for host in &part.hosts {
        host.settings(|s| s.finalization_failures = u32::MAX);
    }
    let rollout = || json!({ "maxUnavailable": 2, "maxFailures": 2 });
    let v2 = part.roll_to("2.0.0", rollout()).await?;
    part.until_says("RolloutHalted", "True", "TooManyFailures", "maxFailures is 2", LONG).await?;
    part.until_hold(&[], SOON).await?;
    part.until_says("Progressing", "False", "RolloutHalted", "publish another image", SOON).await?;
    let bad = failed(part, &v2.digest).await?;
    ensure!((2..=MOST).contains(&bad.len()), "from two to {MOST} nodes failed: {bad:?}");
    let recorded = part.status().await?.failures.into_iter().find(|f| f.digest == v2.digest).context("on record")?;
    ensure!(recorded.nodes == bad, "all of them are on record: {recorded:?}, {bad:?}");
    let good: Vec<_> = part.hosts.iter().map(|h| h.name()).filter(|name| !bad.iter().any(|b| b == name)).collect();
    part.until_held(&good, "RolloutHalted", "change rollout.retryToken", SOON).await?;
    // Another image goes on, with nobody's word.
    for host in &part.hosts {
        host.settings(|s| s.finalization_failures = 0);
    }
    let v3 = part.roll_to("3.0.0", rollout()).await?;
    part.until_all_run(&v3, LONG).await?;
    part.until_says("RolloutHalted", "False", "AsExpected", "", SOON).await?;
    // And back to the one that failed, at the admin's word: first those on which it did not fail may, and nobody does.
    part.pool(&v2, rollout()).await?;
    part.until_says("RolloutHalted", "True", "TooManyFailures", "maxFailures is 2", SOON).await?;
    part.rollout(json!({ "retryToken": "mended" })).await?;
    part.until_all_run(&v2, LONG).await?;
    let bad = failed(part, &v2.digest).await?;
    ensure!(bad.is_empty(), "it has not failed any more: {bad:?}");
    part.until_says("RolloutHalted", "False", "AsExpected", "", SOON).await
}
