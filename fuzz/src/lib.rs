//! Fuzz targets. Each passes arbitrary bytes to a parser of untrusted input, and panics if a property of the parser does not
//! hold.
//!
//! They are plain functions, so that the seeds run as an ordinary test. With `--cfg fuzzing`, each becomes a program for
//! libFuzzer (`scripts/fuzz.sh`).

mod auth_file;
mod berth;
mod boot_image;
mod document;
mod image_ref;
mod input;
mod policy;
mod registries_conf;
mod staged;

pub use auth_file::auth_file;
pub use berth::berth;
pub use boot_image::boot_image;
pub use document::document;
pub use image_ref::image_ref;
pub use policy::policy;
pub use registries_conf::registries_conf;
pub use staged::staged;

/// Defines the program of a target.
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
