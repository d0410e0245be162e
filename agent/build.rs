//! Linker options of the released agent.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Packs the relocations of the static binary, which otherwise take most of a MiB. An older linker warns about the
    // unknown option and does not pack them.
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|kind| kind == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
