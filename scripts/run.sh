#!/usr/bin/env bash
# run.sh check|test|test-model|model|simulate|fuzz|test-real|scenarios [PATTERN]|soak|demo [sim|real]: the steps behind the Makefile, each with its time.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/need.sh
. scripts/need.sh
# shellcheck source=scripts/steps.sh
. scripts/steps.sh
# shellcheck source=scripts/fuzz.sh
. scripts/fuzz.sh
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

check() {
    step 'check: format' cargo fmt --all -- --check -l --color=never
    build 'check: lints' cargo clippy --workspace --all-targets -- -D warnings
    step 'check: generated files' generated_is_current
    need_deny || broken=$((broken + 1))
    step 'check: dependencies and licences' cargo deny check bans licenses sources
}

# Every file in tests/tests is a step, so that none is forgotten. Those with real hosts share the machine's bridges
# and disks: one test at a time. The others mostly wait for each other's servers and hosts: more than there are cores.
scenario() {
    local name=$1
    case $name in
        *real*) step "scenarios: $name" cargo_test -p berth-tests --test "$name" -- --test-threads=1 ;;
        *) step "scenarios: $name" cargo_test -p berth-tests --test "$name" -- --test-threads="$(($(nproc) + 1))" ;;
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
    build 'build of the demo' cargo build -p berth-tests --bin berth-demo
    # In the words of the demo itself, which asks for them.
    build 'build of agent and controller' cargo build -p berth-agent -p berth-controller
    rm -rf "$logs"
    [ "$broken" -eq 0 ] || exit 1
    exec cargo run --quiet -p berth-tests --bin berth-demo -- --hosts "$1"
}

# SEED, FROM, ROLLOUTS and BUG go to the program as they are; an empty one is as good as none.
soak() {
    local name
    for name in SEED FROM ROLLOUTS BUG; do
        [ -n "${!name:-}" ] || unset "$name"
    done
    build 'build of the soak' cargo build -p berth-tests --bin berth-soak
    rm -rf "$logs"
    [ "$broken" -eq 0 ] || exit 1
    exec cargo run --quiet -p berth-tests --bin berth-soak
}

# The worlds that `make test` can afford, and every deliberate bug.
model_check() {
    local quiet=--quiet
    [ ! -t 2 ] || quiet=
    # shellcheck disable=SC2086 # empty is no argument
    cargo run $quiet -p berth-model --features seeded-bugs -- "$@"
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
    build 'build' cargo test --workspace --no-run
    step 'servers of the control plane' fetch_tools
}

case ${1:-} in
    check)
        prepare
        announce
        check
        ;;
    test)
        servers+=(kubectl kubelet)
        cluster+=("c++=g++")
        prepare_cluster
        check
        build_tests
        step 'unit tests' cargo_test --workspace --lib --bins
        step 'model' model_check
        step 'simulation' simulation
        fuzz 5
        integration_tests
        scenarios '*'
        ;;
    test-model)
        prepare
        announce
        rm -rf "$logs"
        model_check
        exit
        ;;
    model)
        prepare
        announce
        rm -rf "$logs"
        model_check --deep --seconds "${SECONDS_EACH:-1800}" --world "${WORLD:-}"
        exit
        ;;
    simulate)
        prepare
        announce
        rm -rf "$logs"
        model_check --rollouts "${ROLLOUTS:-10000}" --seed "${SEED:-1}" --huge "${HUGE:-0}"
        exit
        ;;
    fuzz)
        prepare c++=g++
        announce
        fuzz "${SECONDS_EACH:-60}"
        ;;
    test-real)
        servers+=(kubectl kubelet)
        prepare_cluster
        build_tests
        # Every scenario, not only those that fit into `make test`.
        export BERTH_TEST_REAL=all
        scenarios '*real*'
        ;;
    scenarios)
        servers+=(kubectl kubelet)
        prepare_cluster
        scenarios "${2:-*}"
        ;;
    soak)
        prepare_cluster
        soak
        ;;
    demo)
        [ "${2:-sim}" = sim ] || servers+=(kubelet)
        prepare_cluster
        demo "${2:-sim}"
        ;;
    *)
        echo 'usage: run.sh check|test|test-model|model|simulate|fuzz|test-real|scenarios [PATTERN]|soak|demo [sim|real]' >&2
        exit 2
        ;;
esac
finish "$begin"
