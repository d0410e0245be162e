//! Fuzz targets. Each passes arbitrary bytes to a parser of untrusted input, and panics if a property of the parser
//! does not hold.
//!
//! The targets are plain functions, so an ordinary test can run them with the seeds. With `--cfg fuzzing`, each target
//! is built as a program for libFuzzer (`scripts/fuzz.sh`).

mod audit_log;
mod auth_file;
mod berth;
mod boot_image;
mod bootc;
mod cluster;
mod document;
mod edits;
mod firstboot;
mod host_status;
mod image_ref;
mod input;
mod kubectl;
mod memory;
mod policy;
mod registries_conf;
mod rpm_ostree;
mod schema;
mod staged;
mod text;
mod tool_output;
mod written;

pub use audit_log::audit_log;
pub use auth_file::auth_file;
pub use berth::berth;
pub use boot_image::boot_image;
pub use bootc::bootc;
pub use cluster::cluster;
pub use document::document;
pub use firstboot::firstboot;
pub use image_ref::image_ref;
pub use kubectl::kubectl;
pub use memory::memory;
pub use policy::policy;
pub use registries_conf::registries_conf;
pub use rpm_ostree::rpm_ostree;
pub use staged::staged;
pub use tool_output::tool_output;
pub use written::written;

/// Defines the entry point of a fuzz target's program.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::$name(data));

        #[cfg(not(fuzzing))]
        fn main() {
            eprintln!("this is a fuzz target; run: make fuzz");
            std::process::exit(2);
        }
    };
}

#[cfg(test)]
mod tests;
