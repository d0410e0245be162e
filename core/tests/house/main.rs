//! How the sources themselves are kept: their prose, and the direction of their imports.
#![allow(clippy::unwrap_used, reason = "helpers of a test fail like the test")]

mod one_way;
mod prose;
mod sources;
