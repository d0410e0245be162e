//! Checks the files: the wording of comments, messages and pages, links between pages, the direction of imports, and the version.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

mod links;
mod one_way;
mod prose;
mod release;
mod sources;
