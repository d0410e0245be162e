# `make flaky`: scenarios again and again on a busy machine. Sourced by the other scripts; runs nothing by itself.
# shellcheck shell=bash

# flaky NAME TIMES: runs the scenarios whose names contain NAME so often, beside a busy loop for each core, and prints how often each
# failed. Nothing is run again.
flaky() {
    local round
    busy_loops
    for ((round = 1; round <= $2; round++)); do
        step "round $round of $2" nextest --test-threads "$(($(nproc) + 2))" -E "$(named "$1")"
        keep_failures "$logs/$((${#names[@]} - 1)).log"
    done
    end_background
    flaky_table
}

busy_loops() {
    local core
    for ((core = 0; core < $(nproc); core++)); do
        in_background busy_loop
    done
}

busy_loop() {
    trap - EXIT
    while :; do :; done
}

# Keeps the output of each failed test of log $1.
keep_failures() {
    local test
    while IFS= read -r test; do
        keep_output "$1" "$test"
        printf '    %s: %s\n' "$test" "$kept"
    done < <(failed_in "$1")
}

# Prints a row for each test: how often it ran, how often it failed, and the longest time it took when it passed.
flaky_table() {
    printf '\n%-72s %5s %6s %8s\n' TEST RUNS FAILED LONGEST
    {
        printf 'passed %s\n' ${tests[@]+"${tests[@]}"}
        printf 'failed 0 %s\n' ${failures[@]+"${failures[@]#*: }"}
    } | awk '
        NF < 4 { next }
        {
            name = $4
            runs[name]++
            if ($1 == "failed") failed[name]++
            if ($2 + 0 > longest[name]) longest[name] = $2
        }
        END { for (name in runs) printf "%-72s %5d %6d %8.1f\n", name, runs[name], failed[name], longest[name] }' |
        sort -k3,3nr -k1,1
}
