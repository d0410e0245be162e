//! Checks the repository: the wording of comments, messages and pages, the links between pages, and the direction of imports.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

mod links;
mod one_way;
mod prose;
mod sources;
