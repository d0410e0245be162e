//! Commands that the page offers to copy. The page itself changes nothing.

use berth_api::pool::BootcNodePool;
use serde::Serialize;
use serde_json::{Value, json};

use super::about::About;
use crate::doctor::quoted;
use crate::insights::PoolAssessment;
use crate::view::PoolView;

/// A command to copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Act {
    /// Purpose of the command, for the admin.
    label: &'static str,
    command: String,
}

/// Returns the commands that make sense for a pool now.
pub(super) fn of_pool(about: &About, pool: &BootcNodePool, view: &PoolView, is_fleet_paused: bool) -> Vec<Act> {
    let mut acts = vec![];
    let mut add = |label, words: &str| {
        let command = format!("{} {words}", about.command);
        acts.push(Act { label, command });
    };
    let name = &view.name;
    let is_behind = !matches!(view.assessment, PoolAssessment::Completed | PoolAssessment::Empty);
    if pool.spec.is_paused() {
        add("Resume the rollout", &format!("resume {name}"));
    } else if is_behind {
        add("Pause the rollout", &format!("pause {name}"));
    }
    if is_fleet_paused {
        add("Resume all pools", "resume --all");
    }
    if !view.failures.is_empty() {
        add("Retry the image after its cause is fixed", &format!("retry {name}"));
    }
    let reference = pool.spec.image_ref().get().ok();
    let is_pinned = reference.is_some_and(|reference| reference.digest().is_some());
    let has_tag = reference.is_some_and(|reference| reference.without_digest().is_some());
    let status = pool.status.as_ref();
    if is_pinned && status.is_some_and(|status| status.available.is_some()) {
        add("Adopt the available image", &format!("approve {name}"));
    }
    if has_tag {
        add("Check the tag now", &format!("poll {name}"));
    }
    if is_behind {
        add("Show the order and what blocks it", &format!("status {name} --preview"));
    }
    acts
}

/// Returns the command that sets fields of a pool's spec. `patch`: a merge patch of the spec.
pub(super) fn of_settings(about: &About, pool: &str, patch: &Value) -> Act {
    let patch = json!({ "spec": patch }).to_string();
    Act {
        label: "Set this in the pool",
        command: format!(
            "{} patch bootcnodepool {} --type merge --patch {}",
            about.kubectl,
            quoted(pool),
            quoted(&patch)
        ),
    }
}

/// State of a node that its commands depend on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NodeMarks {
    /// True if there is a Node, not only a BootcNode.
    pub(super) is_there: bool,
    pub(super) is_held_back: bool,
    pub(super) is_excluded: bool,
    /// True if the node holds a berth and is degraded, so an admin may have to close the berth.
    pub(super) is_stuck: bool,
}

/// Returns the commands that make sense for a node now.
pub(super) fn of_node(about: &About, name: &str, marks: NodeMarks) -> Vec<Act> {
    let mut acts = vec![];
    let mut add = |label, words: &str| {
        let command = format!("{} {words} {name}", about.command);
        acts.push(Act { label, command });
    };
    add("Show this node", "node");
    if !marks.is_there {
        return acts;
    }
    add("Explain why it is not updated now", "explain");
    if marks.is_held_back {
        add("Release the hold on this node", "unhold");
    } else {
        add("Hold this node back", "hold");
    }
    if marks.is_excluded {
        add("Include this node again", "include");
    } else {
        add("Exclude this node from its pool", "exclude");
    }
    if marks.is_stuck {
        add("Close the berth of this node", "release");
    }
    acts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(acts: Vec<Act>) -> Vec<String> {
        let about = About::of(String::new(), None, Some("c"), None);
        let commands = acts.into_iter().map(|act| act.command);
        commands
            .map(|command| command.strip_prefix(&about.command).unwrap().trim().to_owned())
            .collect()
    }

    fn about() -> About {
        About::of(String::new(), None, Some("c"), None)
    }

    fn offered(image: &str, paused: bool, assessment: PoolAssessment, is_fleet_paused: bool) -> Vec<String> {
        let pool: Value = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "BootcNodePool", "metadata": { "name": "p" },
            "spec": { "nodeSelector": {}, "image": { "ref": image }, "rollout": { "paused": paused } },
            "status": { "available": {
                "digest": format!("sha256:{}", "1".repeat(64)), "since": "2026-03-01T11:00:00Z",
            } },
        });
        let view = PoolView {
            name: "p".to_owned(),
            assessment,
            ..PoolView::default()
        };
        words(of_pool(
            &about(),
            &serde_json::from_value(pool).unwrap(),
            &view,
            is_fleet_paused,
        ))
    }

    #[test]
    fn a_pool_offers_what_makes_sense() {
        let digest = format!("sha256:{}", "2".repeat(64));
        let tag = "quay.io/example/os:1";
        assert_eq!(
            offered(tag, false, PoolAssessment::Progressing, false),
            ["pause p", "poll p", "status p --preview"]
        );
        assert_eq!(
            offered(tag, true, PoolAssessment::Excluded, true),
            ["resume p", "resume --all", "poll p", "status p --preview"]
        );
        assert_eq!(offered(tag, false, PoolAssessment::Completed, false), ["poll p"]);
        let pinned = format!("{tag}@{digest}");
        assert_eq!(
            offered(&pinned, false, PoolAssessment::Completed, false),
            ["approve p", "poll p"]
        );
        let fixed = format!("quay.io/example/os@{digest}");
        assert!(!offered(&fixed, false, PoolAssessment::Progressing, false).contains(&"poll p".to_owned()));
    }

    #[test]
    fn a_setting_is_a_patch_of_its_pool() {
        let act = of_settings(&about(), "p", &json!({ "rollout": { "maxUnavailable": 3 } }));
        assert_eq!(
            act.command,
            r#"kubectl --context c patch bootcnodepool p --type merge --patch '{"spec":{"rollout":{"maxUnavailable":3}}}'"#
        );
    }

    #[test]
    fn a_node_offers_the_opposite_of_its_marks() {
        let there = NodeMarks {
            is_there: true,
            ..NodeMarks::default()
        };
        let plain = words(of_node(&about(), "n", there));
        assert_eq!(plain, ["node n", "explain n", "hold n", "exclude n"]);
        let marked = NodeMarks {
            is_held_back: true,
            is_excluded: true,
            is_stuck: true,
            ..there
        };
        let marked = words(of_node(&about(), "n", marked));
        assert_eq!(marked, ["node n", "explain n", "unhold n", "include n", "release n"]);
        assert_eq!(words(of_node(&about(), "n", NodeMarks::default())), ["node n"]);
    }
}
