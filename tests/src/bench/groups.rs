//! All benchmark figures, in groups that are measured together.

use anyhow::{Context, Result};

use super::settings::Run;
use super::{
    dashboard, firstboot, fleet, handover, hundred, idle, leader, many, planner, polls, publish, rollout, staging,
    status,
};

/// Declares the groups as `module: "subject"`. The subject completes the error message "cannot measure ...".
macro_rules! groups {
    ($($module:ident: $what:literal)*) => {
        /// Names of all figures.
        pub fn names() -> Vec<&'static str> {
            [&[idle::SIZE][..], &idle::BENCHES, &rollout::BENCHES, $(&$module::BENCHES),*].concat()
        }

        /// Measures the selected figures.
        pub async fn measure(run: &Run) -> Result<()> {
            if run.wants(idle::SIZE) {
                idle::size(&run.agent)?;
            }
            if run.wants_one(&[&idle::BENCHES[..], &rollout::BENCHES].concat()) {
                on_a_fleet(run).await?;
            }
            $(if run.wants_one(&$module::BENCHES) {
                $module::measure(run).await.context(concat!("cannot measure ", $what))?;
            })*
            Ok(())
        }
    };
}

groups! {
    firstboot: "first boots"
    publish: "the controller"
    many: "the controller with many Nodes"
    polls: "the polling of tags"
    planner: "the planner"
    status: "kubectl berth status"
    dashboard: "kubectl berth dashboard"
    handover: "the hand-over of berths"
    leader: "a change of leader"
    hundred: "the rollout of a hundred nodes"
    staging: "the staging on a real host"
}

async fn on_a_fleet(run: &Run) -> Result<()> {
    run.progress.say("starting ten simulated hosts");
    let fleet = fleet::Fleet::start().await?;
    if run.wants_one(&rollout::BENCHES) {
        rollout::measure(&fleet, run).await.context("cannot measure rollouts")?;
    }
    if run.wants_one(&idle::BENCHES) {
        idle::measure(&fleet, run).await.context("cannot measure idle agents")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::record::{Book, path};
    use super::*;

    #[test]
    fn recorded_figures_exist_and_are_sorted() {
        let text = std::fs::read_to_string(path()).unwrap();
        let book = Book::parse(&text, "").unwrap();
        let known = names();
        for recorded in book.last() {
            assert!(known.contains(&recorded.bench.as_str()), "{recorded:?}");
        }
        assert_eq!(book.text(), text, "not sorted as RECORD=1 writes it");
    }
}
