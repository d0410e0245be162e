#!/usr/bin/env bash
# run.sh check|test|test-model|model|simulate|test-real|scenarios [PATTERN]|soak|demo [sim|real]: the steps behind the Makefile, each with its time.
set -euo pipefail

# shellcheck source=scripts/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"
# shellcheck source=scripts/need.sh
. "$root/scripts/need.sh"
cd "$root"
begin=$EPOCHREALTIME

# Output of tests that pass is shown as well, so that a skipped one can say why.
cargo_test() {
    local args=() threads=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        args+=("$1")
        shift
    done
    [ $# -eq 0 ] || { shift && threads=("$@"); }
    cargo test --quiet --no-fail-fast "${args[@]}" -- --format=pretty --show-output ${threads[@]+"${threads[@]}"}
}

generated_is_current() {
    local now
    now=$(cargo run --quiet -p berth-api --example crdgen)
    diff -u manifests/crds.yaml - <<<"$now" || {
        echo 'manifests/crds.yaml is not what the types say; run: make generate'
        return 1
    }
}

fetch_tools() {
    cargo run --quiet -p berth-tests --bin berth-tools -- fetch
}

prepare() {
    # Here and not as a step, because what it puts on PATH must stay.
    need cc=gcc git=git make=make || exit 1
    need_rust || exit 1
}

check() {
    step 'check: format' cargo fmt --all -- --check -l --color=never
    step 'check: lints' cargo clippy --quiet --workspace --all-targets -- -D warnings
    step 'check: generated files' generated_is_current
    need_deny || broken=$((broken + 1))
    step 'check: dependencies and licences' cargo deny check bans licenses sources
}

# Every file in tests/tests is a step, so that none is forgotten. Those with real hosts share the machine's bridges
# and disks: one test at a time.
scenario() {
    local name=$1
    case $name in
        *real*) step "scenarios: $name" cargo_test -p berth-tests --test "$name" -- --test-threads=1 ;;
        *) step "scenarios: $name" cargo_test -p berth-tests --test "$name" ;;
    esac
}

scenarios() {
    local file
    for file in tests/tests/*.rs; do
        file=${file##*/}
        # shellcheck disable=SC2053 # a pattern is what is meant
        if [[ ${file%.rs} == $1 ]]; then
            scenario "${file%.rs}"
        fi
    done
}

integration_tests() {
    local crate
    for crate in api:berth-api core:berth-core agent:berth-agent controller:berth-controller cli:kubectl-berth; do
        compgen -G "${crate%%:*}/tests/*.rs" >/dev/null || continue
        step "tests of ${crate%%:*}" cargo_test -p "${crate##*:}" --test '*'
    done
}

# The demo shows its own steps and times; here is only what it takes to start it.
demo() {
    need_simulated_hosts
    [ -n "${KUBEBUILDER_ASSETS:-}" ] || need_go || exit 1
    step 'build of the demo (minutes at first)' cargo build --quiet -p berth-tests --bin berth-demo
    rm -rf "$logs"
    [ "$broken" -eq 0 ] || exit 1
    exec cargo run --quiet -p berth-tests --bin berth-demo -- --hosts "$1"
}

# SEED, FROM, ROLLOUTS and BUG go to the program as they are; an empty one is as good as none.
soak() {
    local name
    need_simulated_hosts
    [ -n "${KUBEBUILDER_ASSETS:-}" ] || need_go || exit 1
    for name in SEED FROM ROLLOUTS BUG; do
        [ -n "${!name:-}" ] || unset "$name"
    done
    step 'build of the soak (minutes at first)' cargo build --quiet -p berth-tests --bin berth-soak
    rm -rf "$logs"
    [ "$broken" -eq 0 ] || exit 1
    exec cargo run --quiet -p berth-tests --bin berth-soak
}

# Simulated hosts have a message bus each, and die with the harness.
need_simulated_hosts() {
    need dbus-daemon=dbus setpriv=util-linux || exit 1
}

# The worlds that `make test` can afford, and every deliberate bug.
model_check() {
    cargo run --quiet -p berth-model --features seeded-bugs -- "$@"
}

# The model at random in large worlds: rollouts and every deliberate bug on one core, a rollout of 65,000 nodes on another.
simulation() {
    local large well=0
    model_check --rollouts 0 --huge 65000 &
    large=$!
    model_check --rollouts 300 --bugs 40 || well=1
    wait "$large" || well=1
    return "$well"
}

build_tests() {
    need_go || exit 1
    need_simulated_hosts
    step 'build' cargo test --quiet --workspace --no-run
    step 'servers of the control plane' fetch_tools
}

case ${1:-} in
    check)
        prepare
        check
        ;;
    test)
        prepare
        check
        build_tests
        step 'unit tests' cargo_test --workspace --lib --bins
        step 'model' model_check
        step 'simulation' simulation
        integration_tests
        scenarios '*'
        ;;
    test-model)
        prepare
        rm -rf "$logs"
        model_check
        exit
        ;;
    model)
        prepare
        rm -rf "$logs"
        model_check --deep --seconds "${SECONDS_EACH:-1800}" --world "${WORLD:-}"
        exit
        ;;
    simulate)
        prepare
        rm -rf "$logs"
        model_check --rollouts "${ROLLOUTS:-10000}" --seed "${SEED:-1}" --huge "${HUGE:-0}"
        exit
        ;;
    test-real)
        prepare
        build_tests
        # Every scenario, not only those that fit into `make test`.
        export BERTH_TEST_REAL=all
        scenarios '*real*'
        ;;
    scenarios)
        prepare
        need_go || exit 1
        need_simulated_hosts
        scenarios "${2:-*}"
        ;;
    soak)
        prepare
        soak
        ;;
    demo)
        prepare
        demo "${2:-sim}"
        ;;
    *)
        echo 'usage: run.sh check|test|test-model|model|simulate|test-real|scenarios [PATTERN]|soak|demo [sim|real]' >&2
        exit 2
        ;;
esac
finish "$begin"
