# `make mutants`: changes one decision at a time, to see which changes no unit test notices. Sourced by the other scripts; runs
# nothing when sourced.
# shellcheck shell=bash

mutants_version=27.1.0
# Tests that take a second or more: only the second pass runs them, on the changes that the first pass missed.
slow_tests=(properties after_what_is_named_the_plan a_number_is_the_smallest a_closed_window_opens thousands_that a_thousand_nodes)
# The agent's decisions outside of core: how it reads a host's files and messages, and an API server's answers.
agents_decisions=(
    agent/src/host/{boot_image,failure,repository,rules,stranded}.rs agent/src/host/bootc/status.rs
    agent/src/host/rpm_ostree/{deployments,lock,tally}.rs agent/src/node/{evict,pods,rivals}.rs 'agent/src/node/drain/*.rs'
    agent/src/timers.rs
)

need_mutants() {
    local directory=$cache/tools/mutants-$mutants_version
    PATH=$directory/bin:$PATH
    [ -x "$directory/bin/cargo-mutants" ] && return 0
    printf 'building cargo-mutants %s into %s\n' "$mutants_version" "$directory"
    build_cargo_tool cargo-mutants "$mutants_version" "$directory" && rm -rf "$directory/build"
}

# mutate PACKAGE FEATURES FILE...: makes the changes of part $part in these files, and prints each that no unit test of the package
# notices. A change that was noticed before is not made again, so a run that was stopped continues.
mutate() {
    local package=$1 features=$2 file quick=() files=()
    local kept=$root/target/mutants/$package/${part/\//-of-}
    shift 2
    for file in "$@"; do files+=(--file "$file"); done
    for file in "${slow_tests[@]}"; do quick+=(--skip "$file"); done
    local run=(cargo mutants --package "$package" --cargo-arg=--lib --baseline skip --iterate --no-times --colors never
        --timeout 120 --jobs "$(nproc)" --shard "$part" --output "$kept" "${files[@]}")
    [ -z "$features" ] || run+=(--features "$features")
    mkdir -p "$kept"
        # The exit status is ignored: it is also nonzero when a change was missed.
    CARGO_INCREMENTAL=1 "${run[@]}" -- -- "${quick[@]}" >"$kept/quick.log" 2>&1 || true
    CARGO_INCREMENTAL=1 "${run[@]}" >"$kept/log" 2>&1 || true
    local counts=() kind
    for kind in caught previously_caught timeout missed unviable; do
        [ -f "$kept/mutants.out/$kind.txt" ] || {
            tail -5 "$kept/log"
            return 1
        }
        counts+=("$(wc -l <"$kept/mutants.out/$kind.txt")")
    done
    sed 's/^/MISSED /' "$kept/mutants.out/missed.txt"
    printf '%s %s: %d caught, %d missed\n' "$package" "$part" $((counts[0] + counts[1] + counts[2])) "${counts[3]}"
}

# mutants PART: runs one part, such as 0/16. The whole takes hours.
mutants() {
    local part=$1
    mutate berth-core controller 'core/src/**/*.rs' &&
        mutate berth-controller '' 'controller/src/resolve/*.rs' &&
        mutate berth-agent '' "${agents_decisions[@]}"
}
