# Builds the fuzz targets of fuzz/ with libFuzzer's coverage counters, and runs them. Sourced by the other scripts; runs nothing
# when sourced.
# shellcheck shell=bash

# The flags differ from ordinary builds, so these builds have a directory of their own. No sanitizer: that would need a nightly
# compiler, and the fuzzed code has no unsafe code.
fuzz_builds=${CARGO_TARGET_DIR:-$root/target}/fuzz
fuzz_flags='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares'

fuzz_host() {
    rustc -vV | sed -n 's/^host: //p'
}

# With --target, build scripts and macros are built without these flags. A little optimization makes the targets several times as
# fast; overflow checks stay on.
build_fuzz() {
    CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=line-tables-only RUSTFLAGS=${fuzz_flags//$'\n'/ } \
        CARGO_TARGET_DIR=$fuzz_builds cargo build -p berth-fuzz --bins --target "$(fuzz_host)"
}

# fuzz_one TARGET SECONDS: keeps its findings, which the next run starts from. Each run also repeats inputs that broke the target.
# With FUZZ_SEED, it starts from the seeds alone and draws the same inputs each time, so that a run does not depend on luck.
fuzz_one() {
    local target=$1 seconds=$2 log result=0
    local found=$cache/fuzz/$target/found breaking=$cache/fuzz/$target/broken
    [ -z "${FUZZ_SEED:-}" ] || found=$(mktemp -d "$logs/found-$target.XXXXXX")
    mkdir -p "$found" "$breaking"
    log=$(mktemp "$logs/fuzz-$target.XXXXXX")
    timeout $((seconds + 60)) "$fuzz_builds/$(fuzz_host)/debug/$target" -max_total_time="$seconds" -seed="${FUZZ_SEED:-0}" -max_len=4096 -timeout=10 \
        -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$breaking/" \
        "$found" "$breaking" "$root/fuzz/seeds/$target" >"$log" 2>&1 || result=$?
    if [ $result = 0 ]; then
        printf 'fuzz %s: %s inputs\n' "$target" "$(sed -nE 's/^stat::number_of_executed_units: *//p' "$log")"
        return
    fi
    tail -n 60 "$log"
    printf 'BROKEN fuzz %s: the input is in %s; fix the bug, and add the input to fuzz/seeds/%s\n' "$target" "$breaking" "$target"
    return 1
}

# fuzz_all SECONDS: runs each target for this time, one on each core.
fuzz_all() {
    local seconds=$1 target well=0
    for target in "$root"/fuzz/fuzz_targets/*.rs; do
        [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n || well=1
        target=${target##*/}
        fuzz_one "${target%.rs}" "$seconds" &
    done
    while [ -n "$(jobs -p)" ]; do
        wait -n || well=1
    done
    return $well
}

# fuzz SECONDS: builds the targets, and runs them if that succeeded.
fuzz() {
    local before=$broken
    build 'build of the fuzz targets' build_fuzz
    [ "$broken" != "$before" ] || step 'fuzz' fuzz_all "$1"
}
