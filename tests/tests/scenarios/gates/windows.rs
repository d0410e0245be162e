//! Windows: when they open and close, and how invalid or short ones are reported.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use berth_api::berth::Outcome;
use berth_api::windows::{Opening, Schedule, WindowSpec};
use berth_controller::clock;
use berth_tests::audit::AuditLog;
use berth_tests::cluster::{Cluster, LONG, Part};
use berth_tests::hosts::HostChange;
use jiff::{SignedDuration, Timestamp, ToSpan, tz::TimeZone};
use serde_json::{Value, json};

use super::until_taken_back;

/// Waits until the pool reports that no window is open and that the rollout does not progress, both with this reason
/// and text.
async fn until_shut(part: &Part<'_>, reason: &str, words: &str) -> Result<()> {
    part.until_false("WindowOpen", reason, words).await?;
    part.until_false("Progressing", reason, words).await
}

pub(crate) async fn a_window_opens(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let far = format!("{} {} * * *", now.minute(), (now.hour() + 12) % 24);
    let v2 = part.publish("2.0.0").await?;
    part.block(node).await?;
    part.pool(&v2, json!({ "windows": [{ "schedule": far, "duration": "1h" }] }))
        .await?;
    part.until_phase(node, "Waiting").await?;
    until_shut(part, "OutsideWindows", "reboots may start at").await?;
    ensure!(part.holders().await?.is_empty() && part.boots(1) == 1, "a node goes");
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let open = format!("{} {} * * *", now.minute(), now.hour());
    part.rollout(json!({ "windows": [{ "schedule": open, "duration": "1h" }] }))
        .await?;
    part.until_hold(&[node]).await?;
    let holding = part.holdings().await?.pop().context("no node holds a berth")?;
    let left = holding
        .open_until
        .context("the berth has no end of the window")?
        .duration_since(Timestamp::now());
    let hour = SignedDuration::from_mins(57)..=SignedDuration::from_mins(60);
    ensure!(hour.contains(&left), "the window is open for an hour, not {left:?}");
    part.until_true("WindowOpen", "Open", "reboots may start until").await?;
    part.unblock(node).await?;
    part.until_all_run(&v2, LONG).await
}

pub(crate) async fn a_window_shuts_over_a_drain(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    part.block(node).await?;
    let v2 = part.roll_to("2.0.0", json!({ "paused": true })).await?;
    part.until_false("Progressing", "Paused", "").await?;
    part.until_phase(node, "Waiting").await?;
    let excluding =
        |from: Timestamp, to: Timestamp| json!({ "paused": false, "exclusions": [{ "from": from, "to": to }] });
    let from = Timestamp::now() + 10.minutes();
    part.rollout(excluding(from, from + 1.hour())).await?;
    part.until_phase(node, "Draining").await?;
    let until = part.holdings().await?.pop().and_then(|h| h.open_until);
    ensure!(until.is_some_and(|t| t <= from), "not before the exclusion: {until:?}");
    let from = Timestamp::now() + 2.seconds();
    part.rollout(excluding(from, from + 1.hour())).await?;
    until_taken_back(part, 1, Outcome::Revoked).await?;
    ensure!(Timestamp::now() >= from, "the exclusion has not begun");
    until_shut(part, "Excluded", "an exclusion applies").await?;
    // The drain is no longer blocked, and still the host waits for the end of the exclusion.
    part.unblock(node).await?;
    let to = Timestamp::now() + 3.seconds();
    part.rollout(excluding(from, to)).await?;
    part.until_all_run(&v2, LONG).await?;
    let events = part.cluster.log.events();
    let mut downs = events
        .iter()
        .filter(|e| e.host == node && matches!(e.change, HostChange::Down));
    let down = downs.next().context("the host has not rebooted")?.at;
    ensure!(down >= to && downs.next().is_none(), "a shutdown at {down}, not {to}");
    Ok(())
}

fn window(schedule: &str, zone: &str) -> Value {
    json!([{ "schedule": schedule, "duration": "8h", "timeZone": zone }])
}

pub(crate) async fn a_window_that_means_nothing(part: &Part<'_>) -> Result<()> {
    let node = part.node(1);
    let v2 = part
        .roll_to("2.0.0", json!({ "windows": window("* * * * *", "Mars/Olympus") }))
        .await?;
    until_shut(part, "InvalidWindow", "Mars/Olympus").await?;
    part.until_phase(node, "Waiting").await?;
    part.until_false("Progressing", "InvalidWindow", "windows[0]").await?;
    part.rollout(json!({ "windows": window("0 0 31 2 *", "UTC") })).await?;
    until_shut(part, "InvalidWindow", "0 0 31 2 *").await?;
    ensure!(part.boots(1) == 1, "no node goes meanwhile");
    part.rollout(json!({ "windows": window("* * * * *", "Europe/Berlin") }))
        .await?;
    part.until_true("WindowOpen", "Open", "").await?;
    part.until_all_run(&v2, LONG).await
}

pub(crate) async fn a_host_without_the_time(part: &Part<'_>) -> Result<()> {
    let (bad, mute) = (part.node(1), part.node(2));
    part.host(1).settings(|s| s.clock_synchronized = Some(false));
    part.host(2).settings(|s| s.clock_synchronized = None);
    // The next agents report the new state at once. The reports of these agents would remain valid for a while.
    part.host(1).kill_agent();
    part.host(2).kill_agent();
    let always = json!([{ "schedule": "* * * * *", "duration": "1h" }]);
    let v2 = part
        .roll_to("2.0.0", json!({ "maxUnavailable": 3, "windows": always }))
        .await?;
    part.until_run(&v2, &[3], LONG).await?;
    part.until_waiting(&[bad, mute], "ClockNotSynchronized", "clock")
        .await?;
    part.until_false("Progressing", "Waiting", "clock is not synchronized")
        .await?;
    let said = part.bootc_node(bad).await?.status.and_then(|s| s.clock_synchronized);
    ensure!(said == Some(false), "the agent reports it: {said:?}");
    ensure!([1, 2].iter().all(|n| part.boots(*n) == 1), "neither of them goes");
    for n in [1, 2] {
        part.host(n).settings(|s| s.clock_synchronized = Some(true));
    }
    part.until_all_run(&v2, LONG).await
}

/// True if the kernel reports the clock of this machine as synchronized. The controller uses the same test.
fn clock_is_kept() -> Result<bool> {
    let error = clock::max_error().context("cannot read the clock's maximum error from the kernel")?;
    Ok(clock::is_kept(error))
}

pub(crate) async fn the_clock_of_the_controller(cluster: &Cluster) -> Result<()> {
    let part = Part::new(cluster, "kernel", [3]).await?;
    let (node, kept) = (part.node(1), clock_is_kept()?);
    println!(
        "the clock of this machine is {}",
        if kept {
            "synchronized: windows are evaluated"
        } else {
            "not synchronized"
        }
    );
    let always = json!([{ "schedule": "* * * * *", "duration": "1h" }]);
    let v2 = part.roll_to("2.0.0", json!({ "windows": always })).await?;
    if kept {
        part.until_true("WindowOpen", "Open", "reboots may start until").await?;
        return part.until_all_run(&v2, LONG).await;
    }
    part.until_phase(node, "Waiting").await?;
    let unsynchronized = "ClockNotSynchronized";
    until_shut(&part, unsynchronized, "the controller's clock").await?;
    part.until_false("Progressing", unsynchronized, "--trust-clock").await?;
    // An exclusion cannot be evaluated either.
    let far = Timestamp::now() + 1000.hours();
    let exclusion = json!([{ "from": far, "to": far + 1.hour() }]);
    part.rollout(json!({ "windows": null, "exclusions": exclusion }))
        .await?;
    part.soon("the controller has read the spec", || async {
        let pool = part.cluster.pools().get(&part.name).await?;
        Ok(pool.status.unwrap_or_default().observed_generation == pool.metadata.generation)
    })
    .await?;
    part.until_false("WindowOpen", "ClockNotSynchronized", "the controller's clock")
        .await?;
    // A new leader rewrites each berth, even a closed one, so a value may be repeated.
    let mut ever = part.ever(0)?;
    ever.dedup();
    ensure!(ever == ["closed:new"], "no node was offered a berth: {ever:?}");
    ensure!(part.boots(1) == 1, "no node goes");
    // Without windows and exclusions the clock does not matter.
    part.rollout(json!({ "exclusions": null })).await?;
    part.until_all_run(&v2, LONG).await?;
    part.until_true("WindowOpen", "AlwaysOpen", "").await
}

fn whole_minute(t: Timestamp) -> Timestamp {
    t - SignedDuration::from_secs(t.as_second() % 60) - SignedDuration::from_nanos(t.subsec_nanosecond().into())
}

/// Returns when a window opens, if its start is delayed by the pool's share of the splay. `None` if the window is
/// already open.
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

pub(crate) async fn a_splay_delays_the_start(part: &Part<'_>) -> Result<()> {
    const WHOLE: u64 = 600_000;
    let (node, v2) = (part.node(1), part.publish("2.0.0").await?);
    part.pool(&v2, json!({ "paused": true })).await?;
    part.until_phase(node, "Waiting").await?;
    part.until_false("Progressing", "Paused", "").await?;
    // Looks for a start with a medium share of the splay, and for a splay whose share ends forty seconds from now.
    let now = Timestamp::now();
    let (start, schedule, splay) = (1..60)
        .find_map(|minutes: i64| {
            let start = whole_minute(now - minutes.minutes()).to_zoned(TimeZone::UTC);
            let schedule = format!(
                "{} {} {} {} *",
                start.minute(),
                start.hour(),
                start.day(),
                start.month()
            );
            let opens = delayed(&part.name, &schedule, WHOLE, now).ok().flatten()?;
            let share = opens.duration_since(start.timestamp()).as_secs_f64() / WHOLE as f64;
            let wanted = now.duration_since(start.timestamp()).as_secs_f64() + 40.0;
            (0.1..0.9)
                .contains(&share)
                .then(|| (start.timestamp(), schedule, (wanted / share) as u64))
        })
        .context("no start has such a share")?;
    let opens = delayed(&part.name, &schedule, splay, now)?.context("the window is not delayed")?;
    let ahead = opens.duration_since(now);
    ensure!((38..42).contains(&ahead.as_secs()), "the window opens in {ahead:?}");
    ensure!(delayed(&part.name, &schedule, 0, now)?.is_none(), "open at {start}");
    let window = json!({ "schedule": schedule, "duration": "168h", "splay": format!("{splay}s") });
    part.rollout(json!({ "paused": false, "windows": [window] })).await?;
    let words = format!("reboots may start at {opens}");
    until_shut(part, "OutsideWindows", &words).await?;
    part.until_all_run(&v2, LONG).await?;
    let audit = AuditLog::read(&part.cluster.control_plane.audit_log())?;
    let berth = format!("{}-0", part.name);
    let of_berth = audit.writes().filter(|r| r.target() == "leases" && r.name == berth);
    let offered = of_berth.filter(|r| r.holder().is_some_and(|h| !h.starts_with("closed:")));
    let first = offered.map(|r| r.received).min().context("no offer")?;
    ensure!(first >= opens, "no berth is offered before {opens}: {first}");
    Ok(())
}

fn rebooting_takes(part: &Part<'_>, seconds: u64) {
    for host in &part.hosts {
        host.settings(|s| s.reboot_time = Duration::from_secs(seconds));
    }
}

pub(crate) async fn a_window_that_is_too_short(part: &Part<'_>) -> Result<()> {
    let nodes = [1, 2, 3].map(|n| part.node(n));
    // The pool measures the duration of turns: three measurements are enough.
    rebooting_takes(part, 35);
    let v2 = part.roll_to("2.0.0", json!({ "maxUnavailable": 3 })).await?;
    part.until_all_run(&v2, LONG).await?;
    part.soon("the reboot is measured", || async {
        Ok(part
            .status()
            .await?
            .phase_durations
            .reboot_seconds
            .is_some_and(|s| s >= 35))
    })
    .await?;
    rebooting_takes(part, 1);
    let v3 = part.roll_to("3.0.0", json!({ "paused": true })).await?;
    part.soon("the next image is staged", || async {
        Ok(part.status().await?.nodes.staged == 3)
    })
    .await?;
    // The window is open for another 35 s today, and for three seconds in a year.
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let schedule = format!("{} {} {} {} *", now.minute(), now.hour(), now.day(), now.month());
    let next = whole_minute((&now + 1.year()).timestamp());
    let closes = now.timestamp() + 35.seconds();
    let rollout = json!({
        "paused": false,
        "windows": [{ "schedule": schedule, "duration": "1h" }],
        "exclusions": [
            { "from": closes, "to": closes + 1.hour() },
            { "from": next + 3.seconds(), "to": next + 1.hour() },
        ],
    });
    part.rollout(rollout).await?;
    part.until_true("WindowOpen", "Open", "reboots may start until").await?;
    part.until_waiting(&nodes, "WindowTooShort", "would outlast this one")
        .await?;
    part.until_false("Progressing", "Waiting", "would outlast this one")
        .await?;
    let words = "the longest window is 3s, but a drain and a reboot take";
    until_shut(part, "WindowTooShort", words).await?;
    let remedy = "set a longer window";
    part.until_false("Progressing", "WindowTooShort", remedy).await?;
    ensure!(part.boots(1) == 2 && part.holders().await?.is_empty(), "no node goes");
    let mut ever = vec![];
    for berth in 0..3 {
        let mut of_berth = part.ever(berth)?;
        of_berth.dedup();
        ever.extend(of_berth);
    }
    let offers = ever.iter().filter(|holder| holder.starts_with("offered:")).count();
    ensure!(offers == 3, "berths were offered only for the first image: {ever:?}");
    part.rollout(json!({ "windows": [{ "schedule": schedule, "duration": "2h" }], "exclusions": null }))
        .await?;
    part.until_true("WindowOpen", "Open", "").await?;
    part.until_all_run(&v3, LONG).await
}
