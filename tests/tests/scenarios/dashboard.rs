//! `kubectl berth dashboard` in a real browser: the page, the program and the control plane are real, the hosts are simulated.

use std::time::Instant;

use anyhow::{Result, ensure};
use berth_tests::browser::unavailable;
use berth_tests::cluster::{Cluster, ClusterOptions};

mod access;
mod connection;
mod drawer;
mod fleet;
mod keyboard;
mod lists;
mod pictures;
mod sizes;
mod troubles;
mod viewer;

use viewer::Viewer;

/// Watches several rollouts on the same page, which also gives the pictures of the documentation.
#[tokio::test]
async fn a_fleet_is_watched() -> Result<()> {
    if let Some(why) = unavailable() {
        println!("{why}");
        return Ok(());
    }
    let clock = Instant::now();
    let cluster = fleet::start().await?;
    let done = |what: &str| println!("{what:<44} {:>5.1} s", clock.elapsed().as_secs_f64());
    done("the fleet is ready");
    let result = async {
        let mut viewer = Viewer::of(&cluster.control_plane, &[]).await?;
        done("the page is live");
        sizes::the_largest_tiles_that_fit_are_shown(&viewer.browser).await?;
        done("the_largest_tiles_that_fit_are_shown");
        lists::the_list_sorts_and_filters(&viewer).await?;
        done("the_list_sorts_and_filters");
        fleet::tiles_and_timeline_follow_the_rollout(&cluster, &viewer).await?;
        done("tiles_and_timeline_follow_the_rollout");
        troubles::a_halted_rollout_has_a_remedy(&cluster, &viewer).await?;
        done("a_halted_rollout_has_a_remedy");
        troubles::a_blocked_drain_has_a_remedy(&cluster, &viewer).await?;
        done("a_blocked_drain_has_a_remedy");
        connection::an_api_server_that_is_away_is_reported(&cluster, &viewer).await?;
        done("an_api_server_that_is_away_is_reported");
        connection::a_program_that_ended_is_reported(&mut viewer).await?;
        done("a_program_that_ended_is_reported");
        Ok(())
    };
    cluster.judged(result.await).await
}

#[tokio::test]
async fn a_drawer_says_what_the_program_says() -> Result<()> {
    if let Some(why) = unavailable() {
        println!("{why}");
        return Ok(());
    }
    let cluster = Cluster::start(ClusterOptions::of(2)).await?;
    drawer::two_nodes_wait(&cluster).await?;
    let viewer = Viewer::of(&cluster.control_plane, &["workers"]).await?;
    let checks = async {
        drawer::explains_as_the_program_does(&cluster, &viewer).await?;
        drawer::tries_settings_as_the_program_does(&cluster, &viewer).await?;
        keyboard::a_drawer_opens_and_closes(&viewer).await?;
        keyboard::each_control_has_a_name(&viewer).await?;
        keyboard::each_page_fits(&viewer).await?;
        viewer.browser.is_quiet_but_for(&drawer::REFUSED).await
    };
    if let Err(error) = checks.await {
        eprintln!("{}", cluster.describe().await);
        return Err(error);
    }
    Ok(())
}

#[tokio::test]
async fn only_the_page_may_read() -> Result<()> {
    let mut served = access::served().await?;
    access::a_token_works_once(&served).await?;
    access::strangers_are_refused(&served).await?;
    access::a_browser_is_opened(&served).await?;
    let time = access::ends_with_a_stream_open(&mut served).await?;
    ensure!(time < access::END, "the program ended after {time:?}");
    Ok(())
}
