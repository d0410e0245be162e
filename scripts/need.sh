# Packages that a fresh machine lacks. As root on Debian and its relatives they are installed; elsewhere the command is
# printed.
# shellcheck shell=bash

# need PROGRAM=PACKAGE...
need() {
    local pair packages=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || packages+=("${pair#*=}")
    done
    [ ${#packages[@]} -eq 0 ] && return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        printf 'missing packages, by their Debian names; run:\n  sudo apt-get install --no-install-recommends %s\n' "${packages[*]}" >&2
        return 1
    fi
    printf 'installing %s\n' "${packages[*]}"
    local install=(apt-get install -y -q --no-install-recommends "${packages[@]}")
    export DEBIAN_FRONTEND=noninteractive
    "${install[@]}" || { apt-get update -q && "${install[@]}"; }
}

# The toolchain of rust-toolchain.toml; rustup fetches it at the first call. The targets named there it adds only when it
# installs the toolchain itself, so that one which was there before may lack them.
need_rust() {
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH=$HOME/.cargo/bin:$PATH
    fi
    if ! command -v cargo >/dev/null; then
        printf 'Rust is missing; run:\n  curl --proto "=https" -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain none\n' >&2
        return 1
    fi
    cargo --version
    command -v rustup >/dev/null || return 0
    local toolchain target installed
    toolchain=$(dirname "${BASH_SOURCE[0]}")/../rust-toolchain.toml
    installed=$(rustup target list --installed)
    for target in $(sed -nE 's/^targets = \[(.*)\]$/\1/p' "$toolchain" | tr -d '",'); do
        grep -qx "$target" <<<"$installed" || rustup target add "$target" || return 1
    done
}

# Go builds the Kubernetes servers of the tests, once.
need_go() {
    [ -x /usr/local/go/bin/go ] && PATH=$PATH:/usr/local/go/bin
    need go=golang-go
}

# cargo-deny, built once into the cache.
need_deny() {
    local tools=$cache/tools
    PATH=$tools/bin:$PATH
    command -v cargo-deny >/dev/null && return 0
    printf 'building cargo-deny into %s (some minutes, once)\n' "$tools"
    mkdir -p "$tools"
    CARGO_TARGET_DIR=$tools/build cargo install --quiet --locked --version "^0.20" --root "$tools" cargo-deny
    rm -rf "$tools/build"
}
