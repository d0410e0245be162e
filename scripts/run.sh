#!/usr/bin/env bash
# run.sh GOAL: the steps behind the Makefile, each with its time. The goals stand at the end.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/need.sh
. scripts/need.sh
# shellcheck source=scripts/go-tools.sh
. scripts/go-tools.sh
# shellcheck source=scripts/steps.sh
. scripts/steps.sh
# shellcheck source=scripts/fuzz.sh
. scripts/fuzz.sh
# shellcheck source=scripts/flaky.sh
. scripts/flaky.sh
# shellcheck source=scripts/mutants.sh
. scripts/mutants.sh
# shellcheck source=scripts/docs.sh
. scripts/docs.sh
begin=$EPOCHREALTIME
# Directory of cargo's builds. Cargo compiles a library again for each set of features. So tests and their programs are always
# chosen from the whole workspace, which has one set, never by package.
builds=${CARGO_TARGET_DIR:-$root/target}/debug
# Filter for the tests with servers of their own.
all_scenarios='binary(scenarios) | binary(real)'

# nextest ARGUMENT...: runs tests of the workspace. Shows the output of passed tests too, since a skipped one prints the reason.
# Ignored tests run like any other.
nextest() {
    cargo nextest run --workspace --cargo-quiet --run-ignored all --success-output immediate --failure-output immediate \
        --no-output-indent --status-level all --final-status-level none --show-progress none --color never "$@"
}

generated_is_current() {
    cargo build --quiet --workspace --example crdgen --example apidocs || return 1
    is_output_of crdgen manifests/base/crds.yaml && is_output_of apidocs docs/api.md
}

# is_output_of EXAMPLE FILE: true if the example prints the content of the file.
is_output_of() {
    "$builds/examples/$1" | diff -u "$2" - || {
        printf '%s does not match the Rust types; run: make generate\n' "$2"
        return 1
    }
    scripts/charts.sh check
}

# berth-tools is built with the tests.
fetch_tools() {
    "$builds/berth-tools" fetch
}

check() {
    step 'check: format' cargo fmt --all -- --check -l --color=never
    build 'check: lints' cargo clippy --workspace --all-targets -- -D warnings
    step 'check: prose and imports' cargo test --quiet --workspace --test house
    step 'check: generated files' generated_is_current
    step 'check: dependencies and licences' cargo deny check bans licenses sources
    # Without shellcheck, which not every machine has, so that all of them find the same.
    step 'check: workflows' actionlint -no-color -shellcheck= -pyflakes=
}

# named NAME: prints nextest's filter for the scenarios whose names contain NAME.
named() {
    printf '(%s)%s' "$all_scenarios" "${1:+ & test($1)}"
}

# Runs every test except the scenarios.
unit_tests() {
    nextest -E "not ($all_scenarios)"
}

# nextest_scenarios ARGUMENT...: runs more scenarios at once than there are cores, since they mostly wait.
nextest_scenarios() {
    nextest --test-threads "$(($(nproc) + 2))" "$@"
}

# scenarios FILTER: runs the scenarios that match nextest's filter.
scenarios() {
    retried_step 'scenarios' "$1" nextest_scenarios
}

# Scenarios that run a second time on hosts that rpm-ostree updates.
by_rpm_ostree='rollout_sim|gates|capacity|roll_forward'

# Runs the rollouts of simulated hosts on hosts that rpm-ostree updates.
rollouts_by_rpm_ostree() {
    local rollouts="test(/^($by_rpm_ostree)::/)"
    export BERTH_TEST_BACKEND=rpm-ostree
    retried_step 'scenarios: rollouts by rpm-ostree' "binary(scenarios) & $rollouts" nextest_scenarios
    unset BERTH_TEST_BACKEND
}

# demo HOSTS: builds and starts the demo, which shows its own steps and times.
demo() {
    build 'build of the demo' cargo build -p berth-tests --bin berth-demo
        # The same packages as the demo builds, so that it has nothing left to build.
    build 'build of agent and controller' cargo build -p berth-agent -p berth-controller -p kubectl-berth
    rm -rf "$logs"
    [ "$broken" -eq 0 ] || exit 1
    exec cargo run --quiet -p berth-tests --bin berth-demo -- --hosts "$1"
}

# Passes SEED, FROM, ROLLOUTS, BUG, LIAR and LIES to the program; an empty one counts as unset.
soak() {
    local name
    for name in SEED FROM ROLLOUTS BUG LIAR LIES; do
        [ -n "${!name:-}" ] || unset "$name"
    done
    build 'build of the soak' cargo build -p berth-tests --bin berth-soak
    rm -rf "$logs"
    [ "$broken" -eq 0 ] || exit 1
    exec cargo run --quiet -p berth-tests --bin berth-soak
}

# model_check ARGUMENT...: runs the model checker with deliberate bugs compiled in.
model_check() {
    local quiet=--quiet
    [ ! -t 2 ] || quiet=
        # shellcheck disable=SC2086 # an empty value must not become an argument
    cargo run $quiet --profile model -p berth-model --features seeded-bugs -- "$@"
}

# Runs the model at random in large worlds: rollouts and every deliberate bug on one core, a rollout of 20,000 nodes on another.
simulation() {
    local large well=0
    model_check --rollouts 0 --huge 20000 &
    large=$!
    model_check --rollouts 300 --bugs 40 || well=1
    wait "$large" || well=1
    return "$well"
}

# prepare_scenarios PROGRAM=PACKAGE...: prepares all that the scenarios run, and these programs.
prepare_scenarios() {
    servers+=(kubectl kubelet helm)
    cluster+=(lua5.1=lua5.1 rpm=rpm groff=groff-base "$@")
    prepare_cluster
    need_prometheus || exit 1
    need_validators || exit 1
    need_go_tool nfpm || exit 1
    need_cargo_tools || exit 1
}

build_tests() {
    local target=${builds%/debug}
    build 'build' cargo test --workspace --no-run
        # Each test is a process. They share this directory, so that cargo is asked only once for the programs under test.
    mkdir -p "$target"
    find "$target" -maxdepth 1 -name 'programs.*' -mmin +600 -exec rm -rf {} +
    BERTH_TEST_BUILT=$(mktemp -d "$target/programs.XXXXXX")
    export BERTH_TEST_BUILT
    trap 'end_background; rm -rf "$logs" "$BERTH_TEST_BUILT"' EXIT
    step 'programs and servers of the tests' fetch_tools
        # If this failed, each scenario would try again, one after the other.
    [ "${results[-1]}" = ok ] || { finish "$begin" || exit 1; }
}

case ${1:-} in
    check)
        prepare
        need_cargo_tools || exit 1
        need_go_tool actionlint || exit 1
        announce
        check
        ;;
    test)
        prepare_scenarios c++=g++ zsh=zsh fish=fish
        need_go_tool actionlint || exit 1
        check
        build_tests
        FUZZ_SEED=1 fuzz 5
        # Scenarios mostly wait. The model and the simulation use the idle processor time.
        beside 'model' model_check
        beside 'simulation' simulation
        step 'unit tests' unit_tests
        scenarios "$all_scenarios"
        only_real+=("${by_rpm_ostree//|/, } on simulated hosts of rpm-ostree: they take as long as on hosts of bootc")
        join_beside
        ;;
    advisories)
        prepare
        need_cargo_tools || exit 1
        step 'advisories' cargo deny check advisories
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
    mutants)
        prepare
        need_mutants || exit 1
        announce
        rm -rf "$logs"
        mutants "${PART:-0/1}"
        exit
        ;;
    fuzz)
        prepare c++=g++
        announce
        fuzz "${SECONDS_EACH:-60}"
        ;;
    test-real)
        servers+=(kubectl kubelet helm)
        prepare_cluster
        need_go_tool nfpm || exit 1
        need_cargo_tools || exit 1
        build_tests
        # Every scenario, not only those that fit into `make test`.
        export BERTH_TEST_REAL=all
        scenarios 'binary(real)'
        rollouts_by_rpm_ostree
        ;;
    scenarios)
        prepare_scenarios
        build_tests
        scenarios "$(named "${2:-}")"
        ;;
    flaky)
        prepare_scenarios
        build_tests
        flaky "${TEST:-}" "${TIMES:-20}"
        ;;
    soak)
        prepare_cluster
        soak
        ;;
    docs)
        prepare
        need_mdbook || exit 1
        announce
        build 'build of the check' cargo test --workspace --test house --no-run
        step 'docs: links, pictures and prose' cargo test --quiet --workspace --test house
        step 'docs: book' book
        printf '\nThe book begins at target/book/index.html.\n'
        ;;
    demo)
        [ "${2:-sim}" = sim ] || servers+=(kubelet)
        prepare_cluster
        demo "${2:-sim}"
        ;;
    *)
        echo 'usage: run.sh check|advisories|docs|test|test-model|model|simulate|mutants|fuzz|test-real|scenarios [NAME]|flaky|soak|demo [sim|real]' >&2
        exit 2
        ;;
esac
finish "$begin"
