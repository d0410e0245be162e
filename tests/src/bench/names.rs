//! Names of all figures.

use super::{firstboot, handover, hundred, idle, leader, many, planner, polls, publish, rollout, staging, status};

/// Names of all figures.
pub fn names() -> Vec<&'static str> {
    let lists: [&[&str]; 13] = [
        &["agent-size"],
        &firstboot::BENCHES,
        &handover::BENCHES,
        &[hundred::BENCH],
        &idle::BENCHES,
        &leader::BENCHES,
        &many::BENCHES,
        &planner::BENCHES,
        &polls::BENCHES,
        &publish::BENCHES,
        &rollout::BENCHES,
        &[staging::BENCH],
        &status::BENCHES,
    ];
    lists.concat()
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
