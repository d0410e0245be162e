# `make flaky`: scenarios again and again on a busy machine. Sourced by the other scripts; runs nothing when sourced.
# shellcheck shell=bash

# flaky NAME TIMES: runs the scenarios whose names contain NAME this many times, beside a busy loop for each core, and prints how
# often each failed. Failures are not retried.
flaky() {
    local round log
    if ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
        printf 'TIMES=%s is not a number of rounds\n' "$2" >&2
        exit 2
    fi
    busy_loops
    for ((round = 1; round <= $2; round++)); do
        log=$logs/${#names[@]}.log
        step "round $round of $2" nextest_scenarios -E "$(named "$1")"
                # If no test ran, the other rounds would fail in the same way.
        [ "${results[-1]}" = ok ] || [ -n "$(failed_in "$log")" ] || break
        keep_failures "$log"
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
        # Ends with the script, even if that is killed.
    while kill -0 $$ 2>/dev/null; do :; done
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
    printf '\n%-96s %5s %6s %8s\n' TEST RUNS FAILED LONGEST
    {
        printf 'passed %s\n' ${tests[@]+"${tests[@]}"}
        printf 'failed 0 %s\n' ${failures[@]+"${failures[@]#*: }"}
    } | awk '
        NF < 4 { next }
        {
            name = $3 " " $4
            runs[name]++
            if ($1 == "failed") failed[name]++
            if ($2 + 0 > longest[name]) longest[name] = $2
        }
        END { for (name in runs) printf "%-96s %5d %6d %8.1f\n", name, runs[name], failed[name], longest[name] }' |
        sort -k4,4nr -k1,2
}
