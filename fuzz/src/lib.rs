//! Fuzz targets: each takes any bytes, gives them to a reader of what others wrote, and panics where a property of that
//! reader does not hold.
//!
//! They are plain functions, so that the seeds run as an ordinary test. With `--cfg fuzzing` each becomes a program that
//! libFuzzer drives (`scripts/fuzz.sh`).

mod auth_file;
mod berth;
mod boot_image;
mod document;
mod image_ref;
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

/// The program of a target.
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

/// The first line of an input as a reference, and the rest of it as a file.
fn reference_and_file(data: &[u8]) -> Option<(berth_api::ImageRef, &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let (line, file) = data.split_at(end);
    let reference = std::str::from_utf8(line).ok()?.parse().ok()?;
    Some((reference, file))
}

#[cfg(test)]
mod tests;
