//! How the agent is linked as it is shipped.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A static program finds its place in memory by itself. The list of all that it has to adjust for that is most of a MiB, and next to
    // nothing when it is packed. An older linker says that it does not know that, and leaves the list as it is.
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|kind| kind == "musl") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
