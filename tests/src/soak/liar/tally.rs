//! Counts of a liar's requests and of their answers.

use std::collections::BTreeMap;
use std::fmt;

use super::Kind;
use super::credentials::Answer;
use super::request::Request;

/// Longest example of a refusal.
const EXAMPLE_MAX: usize = 300;

/// Answers to the lies of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of stored writes.
    pub accepted: u64,
    /// Number of refused writes.
    pub refused: u64,
    /// Number of conflicts, missing objects and failed connections.
    pub missed: u64,
    /// The first refusal.
    pub example: Option<String>,
}

/// All requests of a liar.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Counts by kind.
    pub counts: BTreeMap<Kind, Count>,
    /// Forbidden writes that the API server stored.
    pub breaches: Vec<String>,
    /// Requests that the API server did not read.
    pub invalid: Vec<String>,
}

impl Tally {
    /// Records an answer.
    pub fn add(&mut self, kind: Kind, request: &Request, answer: Answer) {
        let count = self.counts.entry(kind).or_default();
        let Request { method, path, body, .. } = request;
        match answer {
            Answer::Accepted => {
                count.accepted += 1;
                if request.is_forbidden {
                    self.breaches.push(format!("{method} {path} {body}"));
                }
            }
            Answer::Invalid(message) => {
                let example = format!("{}: {method} {path}: {message}", kind.name());
                self.invalid.push(example.chars().take(EXAMPLE_MAX).collect());
            }
            Answer::Refused(message) => {
                count.refused += 1;
                count
                    .example
                    .get_or_insert_with(|| message.chars().take(EXAMPLE_MAX).collect());
            }
            Answer::Missed(_) => count.missed += 1,
        }
    }

    /// Number of stored writes.
    pub fn accepted(&self) -> u64 {
        self.counts.values().map(|count| count.accepted).sum()
    }

    /// Number of refused writes.
    pub fn refused(&self) -> u64 {
        self.counts.values().map(|count| count.refused).sum()
    }

    /// Number of berths that the liar took.
    pub fn taken(&self) -> u64 {
        self.counts.get(&Kind::Take).map_or(0, |count| count.accepted)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, count) in &self.counts {
            let Count {
                accepted,
                refused,
                missed,
                example,
            } = count;
            let name = kind.name();
            writeln!(
                f,
                "{name:>16} {accepted:>6} accepted {refused:>6} refused {missed:>6} missed"
            )?;
            if let Some(example) = example {
                writeln!(f, "{:>16}   refused: {example}", "")?;
            }
        }
        for breach in &self.breaches {
            writeln!(f, "ACCEPTED ALTHOUGH FORBIDDEN: {breach}")?;
        }
        for invalid in &self.invalid {
            writeln!(f, "NOT A VALID REQUEST: {invalid}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::request::Identity;
    use super::*;

    #[test]
    fn a_stored_write_that_is_forbidden_is_a_breach() {
        let mut tally = Tally::default();
        let request = Request::patch(Identity::Agent, "/x".to_owned(), json!({}));
        tally.add(Kind::Status, &request, Answer::Accepted);
        tally.add(Kind::Status, &request, Answer::Refused("no ".repeat(200)));
        let forbidden = request.clone().forbidden();
        tally.add(Kind::Forbidden, &forbidden, Answer::Refused("no".to_owned()));
        tally.add(Kind::Forbidden, &forbidden, Answer::Missed("conflict".to_owned()));
        assert!(tally.breaches.is_empty());
        tally.add(Kind::Forbidden, &forbidden, Answer::Accepted);
        assert_eq!(tally.breaches, ["PATCH /x {}"]);
        assert_eq!((tally.accepted(), tally.refused(), tally.taken()), (2, 2, 0));
        tally.add(Kind::Take, &request, Answer::Accepted);
        assert_eq!((tally.accepted(), tally.taken()), (3, 1));
        tally.add(Kind::Take, &request, Answer::Invalid("400: what?".to_owned()));
        assert_eq!((tally.accepted(), tally.refused()), (3, 2));
        assert_eq!(tally.invalid, ["take: PATCH /x: 400: what?"]);
        let text = tally.to_string();
        assert!(
            text.contains("forbidden") && text.contains("ACCEPTED ALTHOUGH FORBIDDEN: PATCH /x"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() < 400), "{text}");
    }
}
