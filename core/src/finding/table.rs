//! The remedy of each reason, read from the tables of `docs/conditions.md`.

const PAGE: &str = include_str!("../../../docs/conditions.md");

fn rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    PAGE.lines().filter_map(|line| {
        let (reason, rest) = line.strip_prefix("| `")?.strip_suffix(" |")?.split_once("` | ")?;
        let (meaning, remedy) = rest.split_once(" | ")?;
        Some((reason, meaning, remedy))
    })
}

/// Returns the remedy of a reason as plain text, with the placeholders POOL and NODE. `None` if the page does not
/// list the reason.
pub(super) fn remedy(reason: &str) -> Option<String> {
    let (_, _, remedy) = rows().find(|(known, _, _)| *known == reason)?;
    Some(plain(remedy))
}

/// Returns the kubectl commands in the remedy of a reason, with the placeholders POOL and NODE. Leaves out commands with
/// other placeholders.
pub(super) fn commands(reason: &str) -> Vec<&'static str> {
    let remedy = rows()
        .find(|(known, _, _)| *known == reason)
        .map(|(_, _, remedy)| remedy);
    // Every second part is between backticks.
    let quoted = remedy.unwrap_or_default().split('`').skip(1).step_by(2);
    quoted
        .filter(|text| text.starts_with("kubectl ") && *text != "kubectl berth" && !text.contains("MACHINE"))
        .collect()
}

/// Removes backticks. A link becomes `docs/hosts.md`, or `"Drains" in docs/rollouts.md`.
fn plain(markdown: &str) -> String {
    let mut text = String::new();
    let mut rest = markdown;
    while let Some((before, label, target, after)) = split_at_link(rest) {
        let file = target.split('#').next().unwrap_or(target);
        text += before;
        text += &if label == file {
            format!("docs/{file}")
        } else {
            format!("\"{label}\" in docs/{file}")
        };
        rest = after;
    }
    (text + rest).replace('`', "")
}

/// Splits a text at its first link into the text before it, the label, the target and the text after it.
fn split_at_link(markdown: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, rest) = markdown.split_once('[')?;
    let (label, rest) = rest.split_once("](")?;
    let (target, after) = rest.split_once(')')?;
    Some((before, label, target, after))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use berth_api::berth::Outcome;
    use berth_api::condition::{self, CommonReason, Reason};
    use berth_api::node::Phase;

    use super::*;
    use crate::insight::Unavailable;

    fn words<R: Reason>() -> impl Iterator<Item = &'static str> {
        R::ALL.iter().map(|reason| reason.word())
    }

    /// Every verdict gets its reason from one of these enums, so their values are the complete list of reasons.
    #[cfg(feature = "controller")]
    #[test]
    fn the_page_has_every_reason_once() {
        use crate::controller::{gate::GateReason, image::ResolveReason, implausible::Contradiction, quorum::Cause};
        let of_nodes = words::<Phase>().chain(words::<crate::agent::reason::Reason>());
        let of_pools = words::<GateReason>()
            .chain(words::<ResolveReason>())
            .chain(words::<Cause>());
        let others = words::<CommonReason>()
            .chain(words::<Outcome>())
            .chain(words::<Unavailable>())
            .chain(words::<Contradiction>());
        let known: BTreeSet<&str> = of_nodes.chain(of_pools).chain(others).collect();
        let listed: Vec<&str> = rows().map(|(reason, _, _)| reason).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<&str>>(), known);
        assert_eq!(listed.len(), known.len(), "a reason is listed twice");
        for (reason, meaning, remedy) in rows() {
            let cells = [meaning, remedy];
            assert!(!cells.contains(&"") && !remedy.contains(" | "), "{reason}: {cells:?}");
        }
    }

    #[test]
    fn the_commands_of_a_remedy_can_be_copied() {
        assert_eq!(commands("Held"), ["kubectl berth unhold NODE"]);
        assert_eq!(
            commands("TooManyFailures"),
            ["kubectl berth retry POOL", "kubectl berth exclude NODE"]
        );
        assert!(commands("MachinesHeld").is_empty(), "a machine's name is not known");
        assert!(commands("Nothing").is_empty());
        for (reason, _, _) in rows() {
            for command in commands(reason) {
                let rest = command.replace("POOL", "").replace("NODE", "");
                let words = rest.split(|c: char| !c.is_ascii_uppercase());
                assert!(words.into_iter().all(|word| word.len() < 3), "{reason}: {command}");
            }
        }
    }

    #[test]
    fn the_page_has_every_type() {
        for (heading, types) in [
            ("Types of a BootcNode\n", condition::node::ALL),
            ("Types of a BootcNodePool\n", condition::pool::ALL),
            ("Types of the BootcFleet\n", condition::fleet::ALL),
            ("Types of an insight\n", berth_api::insight::conditions::ALL),
        ] {
            let section = PAGE
                .split("\n## ")
                .find(|section| section.starts_with(heading))
                .unwrap();
            let rows = section
                .lines()
                .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            assert_eq!(rows.collect::<Vec<_>>(), types, "{heading}");
        }
    }

    #[test]
    fn a_remedy_is_plain_text() {
        let links = "see [hosts.md](hosts.md); `a b` ([Drains](rollouts.md#drains))";
        assert_eq!(plain(links), "see docs/hosts.md; a b (\"Drains\" in docs/rollouts.md)");
        assert_eq!(remedy("Held").unwrap(), "to release it: kubectl berth unhold NODE");
        assert_eq!(remedy("Nonsense"), None);
        for (reason, _, _) in rows() {
            let text = remedy(reason).unwrap();
            assert!(
                !text.contains(['`', '[', ']']) && !text.contains(".md#"),
                "{reason}: {text}"
            );
        }
    }
}
