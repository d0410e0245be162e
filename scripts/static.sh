# Builds the programs that are shipped: static, for Linux on amd64 and arm64, with the same bytes from the same commit in any
# directory. Sourced by the other scripts; runs nothing when sourced.
# shellcheck shell=bash

builds=${CARGO_TARGET_DIR:-$root/target}
# Architectures, by the names of container images.
read -ra architectures <<<"${ARCHITECTURES:-amd64 arm64}"

# processor ARCHITECTURE: prints its name in targets of Rust and in names of compilers.
processor() {
    case $1 in
        amd64) echo x86_64 ;;
        arm64) echo aarch64 ;;
        *)
            printf 'ARCHITECTURES: %s is unknown; Berth is built for amd64 and arm64\n' "$1" >&2
            return 1
            ;;
    esac
}

# rust_target ARCHITECTURE
rust_target() {
    local cpu
    cpu=$(processor "$1") && echo "$cpu-unknown-linux-musl"
}

# compiler ARCHITECTURE: prints the C compiler, which builds the C code of `ring` and runs the linker.
compiler() {
    local cpu
    cpu=$(processor "$1") || return 1
    if [ "$cpu" = "$(uname -m)" ]; then
        echo gcc
    else
        echo "$cpu-linux-gnu-gcc"
    fi
}

# need_static ARCHITECTURE...: prepares Rust and the C compilers for these.
need_static() {
    local architecture target cpu headers
    need git=git || return 1
    need_rust || return 1
    for architecture in "$@"; do
        target=$(rust_target "$architecture") || return 1
        rustc --print target-libdir --target "$target" 2>/dev/null | xargs -r test -d || rustup target add "$target" || return 1
        cpu=$(processor "$architecture")
        need "$(compiler "$architecture")=gcc-${cpu//_/-}-linux-gnu" || return 1
        # The headers are a package of their own, without a program that `need` could look for.
        headers=libc6-dev-$architecture-cross
        [ "$(compiler "$architecture")" != gcc ] || headers=libc6-dev
        has_headers "$architecture" || need "headers-of-libc-for-$architecture=$headers" || return 1
    done
}

# has_headers ARCHITECTURE: true if its C compiler finds the headers of a C library.
has_headers() {
    "$(compiler "$1")" -E -x c -o /dev/null - <<<'#include <string.h>' 2>/dev/null
}

# for_target ARCHITECTURE CARGO-COMMAND...: runs cargo for this target. The linker is the toolchain's own, for every architecture: it
# packs relocations, which Debian's cannot do for arm64. No path of this machine gets into a program.
for_target() {
    local target under host cargo_home=${CARGO_HOME:-$HOME/.cargo} directory=$builds/static flags
    local architecture=$1
    shift
    target=$(rust_target "$architecture") || return 1
    under=${target//-/_}
    host=$(rustc -vV | sed -n 's/^host: //p')
    flags=(
        --remap-path-prefix="$root"=/berth --remap-path-prefix="$directory"=/target --remap-path-prefix="$cargo_home"=/cargo
        -Clink-arg=-fuse-ld=lld "-Clink-arg=-B$(rustc --print sysroot)/lib/rustlib/$host/bin/gcc-ld"
        -Clink-arg=-Wl,--build-id=none
    )
    (
        IFS=$'\x1f'
        export CARGO_ENCODED_RUSTFLAGS="${flags[*]}" CARGO_TARGET_DIR=$directory CARGO_INCREMENTAL=0 CARGO_BUILD_TARGET=$target
        export "CC_$under=$(compiler "$architecture")" "CFLAGS_$under=-ffile-prefix-map=$cargo_home=/cargo"
        export "CARGO_TARGET_${under^^}_LINKER=$(compiler "$architecture")"
        [ "$(processor "$architecture")" = "$(uname -m)" ] ||
            export "CARGO_TARGET_${under^^}_RUNNER=qemu-$(processor "$architecture")-static"
        "$@"
    )
}

# build_static ARCHITECTURE PACKAGE: builds the program of this name. One package at a time: together they would be built with each
# other's features.
build_static() {
    for_target "$1" cargo build --locked --release --package "$2"
}

# static_program ARCHITECTURE PACKAGE: prints the path of the program that `build_static` has built.
static_program() {
    echo "$builds/static/$(rust_target "$1")/release/$2"
}
