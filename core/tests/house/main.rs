//! Checks the repository's sources: the wording of comments, messages and pages, and the direction of imports.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

mod one_way;
mod prose;
mod sources;
