# Named, timed steps, and a table of them at the end. Sourced by the other scripts; runs nothing when sourced.
#
# A step's output goes to a log. The terminal shows a digest, and the output of failed tests.
# shellcheck shell=bash

logs=$(mktemp -d "${TMPDIR:-/tmp}/berth-steps.XXXXXX")
trap 'end_background; rm -rf "$logs"' EXIT
# Directory for the first output of each flaky test. It outlives the run.
flaky_logs=${cache:?}/flaky
names=() times=() results=() tests=() skips=() unreachable=() only_real=() failures=() flakes=() broken_steps=()
passed=0 failed=0 broken=0
# Steps that run beside others: name and process of each.
beside_names=() beside_pids=()
# Process groups that must not outlive the script.
background=()

# If more scenarios than this fail, they are not flaky and are not run again.
most_flakes=8

# A line of nextest about a test that has ended: state, seconds, program and test.
test_line='^ *([A-Z][A-Za-z0-9/ +-]*) \[ *([0-9.]+)s\] ([^ ]+ [^ ]+)$'

# Prints the seconds since $1, which is an $EPOCHREALTIME, with a tenth.
since() {
    local now=${EPOCHREALTIME/[.,]/} then=${1/[.,]/}
    local tenths=$(((now - then) / 100000))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# is_passed STATE: true if nextest's state means that the test passed. LEAK: a server outlived its test.
is_passed() {
    [ "$1" = PASS ] || [ "$1" = LEAK ]
}

# is_running STATE: true if nextest's state means that the test has not ended.
is_running() {
    [ "$1" = SLOW ] || [ "$1" = TERMINATING ]
}

# Filters the output of cargo, nextest and the tests for the terminal.
digest() {
    local line state
    while IFS= read -r line; do
        if [[ $line =~ $test_line ]]; then
            state=${BASH_REMATCH[1]}
            is_running "$state" && continue
            is_passed "$state" && state=
            printf '    %8s s  %s%s\n' "${BASH_REMATCH[2]}" "${BASH_REMATCH[3]}" "${state:+  $state}"
            continue
        fi
        case $line in
            *' states'* | *' rollouts'* | 'bug '* | 'fuzz '* | BROKEN* | 'round '*) printf '    %s\n' "$line" ;;
            SKIPPED:* | UNREACHABLE:* | 'berth-tools: '*) printf '    %s\n' "$line" ;;
        esac
    done
}

# Prints the tests of log $1 that failed.
failed_in() {
    local line
    while IFS= read -r line; do
        [[ $line =~ $test_line ]] || continue
        is_passed "${BASH_REMATCH[1]}" || is_running "${BASH_REMATCH[1]}" || printf '%s\n' "${BASH_REMATCH[3]}"
    done <"$1" | sort -u
}

# Prints the output of failed test $2 in log $1.
output_of() {
    awk -v name="$2" '
        /^ *[A-Z][A-Za-z0-9\/ +-]* \[[ >]*[0-9.]+s\] [^ ]+ [^ ]+$/ {
            shown = $1 != "SLOW" && $1 != "TERMINATING" && $(NF - 1) " " $NF == name
        }
        /^ +Summary \[/ { shown = 0 }
        shown' "$1"
}

# True if the test run of log $1 was not aborted.
is_complete() {
    grep -qE '^ +Summary \[ *[0-9.]+s\] [0-9]+ tests? run:' "$1"
}

# Prints the output of each failed test of log $1, and all of the log if no test failed.
show_failure() {
    local test tests
    mapfile -t tests < <(failed_in "$1")
    if [ ${#tests[@]} -eq 0 ]; then
        sed 's/^/    | /' "$1"
        return
    fi
    for test in "${tests[@]}"; do
        output_of "$1" "$test" | sed 's/^/    | /'
    done
    is_complete "$1" || tail -n 20 "$1" | sed 's/^/    | /'
}

# Counts the passed and skipped tests of step $2, from its log $1.
tally() {
    local line
    while IFS= read -r line; do
        if [[ $line =~ $test_line ]] && is_passed "${BASH_REMATCH[1]}"; then
            passed=$((passed + 1))
            tests+=("${BASH_REMATCH[2]} ${BASH_REMATCH[3]}")
        fi
    done <"$1"
    while IFS= read -r line; do
        skips+=("$2: $line")
    done < <(sed -nE 's/^SKIPPED: //p' "$1" | sort -u)
    while IFS= read -r line; do
        unreachable+=("$2: $line")
    done < <(sed -nE 's/^UNREACHABLE: //p' "$1" | sort -u)
    while IFS= read -r line; do
        only_real+=("$line")
    done < <(sed -nE 's/^ONLY IN TEST-REAL: //p' "$1" | sort -u)
}

# Counts the failed tests of log $1 of step $2.
tally_failures() {
    local test
    while IFS= read -r test; do
        failures+=("$2: $test")
        failed=$((failed + 1))
    done < <(failed_in "$1")
}

# build NAME COMMAND...: a step that builds. On a terminal it shows cargo's own progress.
build() {
    if [ ! -t 2 ]; then
        CARGO_TERM_QUIET=true step "$@"
        return
    fi
    local name=$1 begin=$EPOCHREALTIME result=ok
    shift
    printf '==> %s\n' "$name"
    "$@" || result=FAILED
    [ $result = ok ] || broken_steps+=("$name")
    note "$name" "$(since "$begin")" $result
}

# step NAME COMMAND...: runs the command. Later steps run even if it fails.
step() {
    local name=$1 begin=$EPOCHREALTIME log result=ok
    log=$logs/${#names[@]}.log
    shift
    printf '==> %s\n' "$name"
    "$@" 2>&1 | tee "$log" | digest || result=FAILED
    conclude "$name" "$(since "$begin")" $result "$log"
}

# beside NAME COMMAND...: starts a step that runs beside the following ones, in idle processor time.
beside() {
    local name=$1 log=$logs/beside-${#beside_pids[@]}
    shift
    printf '==> %s (beside the next steps)\n' "$name"
    : >"$log.log"
    in_background beside_step "$log" "$@"
    beside_names+=("$name") beside_pids+=($!)
}

# in_background COMMAND...: starts it in a process group of its own, so that all of it can be ended.
in_background() {
    set -m
    "$@" &
    set +m
    background+=($!)
}

beside_step() {
    local log=$1 begin=$EPOCHREALTIME result=ok
    shift
    renice -n 19 -p "$BASHPID" >/dev/null 2>&1 || true
    "$@" >"$log.log" 2>&1 || result=FAILED
    printf '%s %s\n' "$(since "$begin")" $result >"$log.end"
}

# Waits for the steps that run beside others, and shows each.
join_beside() {
    local i log seconds result
    for i in "${!beside_pids[@]}"; do
        log=$logs/beside-$i
        printf '==> %s\n' "${beside_names[i]}"
        wait "${beside_pids[i]}" || true
                # A killed step leaves no result.
        read -r seconds result <"$log.end" || seconds=0 result=FAILED
        digest <"$log.log"
        conclude "${beside_names[i]}" "$seconds" "$result" "$log.log"
    done
    beside_names=() beside_pids=() background=()
}

# Ends all that runs in the background.
end_background() {
    local group
    for group in ${background[@]+"${background[@]}"}; do
        kill -- "-$group" 2>/dev/null || true
    done
    background=()
}

# conclude NAME SECONDS RESULT LOG: counts the tests of a finished step, and shows its failures.
conclude() {
    [ "$3" = ok ] || show_failure "$4"
    tally "$4" "$1"
    tally_failures "$4" "$1"
    [ "$3" = ok ] || [ -n "$(failed_in "$4")" ] || broken_steps+=("$1")
    note "$1" "$2" "$3"
}

# note NAME SECONDS RESULT: adds a finished step to the table.
note() {
    [ "$3" = ok ] || broken=$((broken + 1))
    names+=("$1") times+=("$2") results+=("$3")
    printf '    %8s s  %s\n' "$2" "$3"
}

# retried_step NAME FILTER COMMAND...: a step that runs the scenarios of nextest's FILTER. A failed test is run once more, alone.
# If it passes then, it is flaky, and the output of its first run is kept.
retried_step() {
    local name=$1 filter=$2 begin=$EPOCHREALTIME log result=ok test suspects
    log=$logs/${#names[@]}.log
    shift 2
    printf '==> %s\n' "$name"
    "$@" -E "$filter" 2>&1 | tee "$log" | digest || result=FAILED
    mapfile -t suspects < <(failed_in "$log")
    if [ $result = ok ] || [ ${#suspects[@]} -eq 0 ] || [ ${#suspects[@]} -gt $most_flakes ] || ! is_complete "$log"; then
        conclude "$name" "$(since "$begin")" $result "$log"
        return
    fi
    show_failure "$log"
    tally "$log" "$name"
    note "$name" "$(since "$begin")" ok
    join_beside
    for test in "${suspects[@]}"; do
        keep_output "$log" "$test"
        step "once more, alone: ${test#* }" "$@" -E "binary_id(${test% *}) & test(=${test#* })"
        [ "${results[-1]}" = ok ] || continue
        flakes+=("${test#* }: $kept")
        [ "${STRICT:-}" != 1 ] || broken=$((broken + 1))
    done
}

# Keeps the output of failed test $2 of log $1 in a file, whose path is then in $kept.
keep_output() {
    mkdir -p "$flaky_logs"
    find "$flaky_logs" -type f -mtime +30 -delete
    kept=$flaky_logs/$(date +%Y%m%d-%H%M%S)-${2//[^a-z0-9_]/-}.txt
    output_of "$1" "$2" >"$kept"
}

# Lists the skipped tests. One that this machine could have run is a failure; one that needs an unreachable page is not.
report_skips() {
    local line able=no
    if [ ${#unreachable[@]} -gt 0 ]; then
        printf '\nNot checked, because this machine cannot reach a site:\n'
        printf '  %s\n' "${unreachable[@]}"
    fi
    [ "$(id -u)" = 0 ] && [ "$(uname -m)" = x86_64 ] && able=yes
    [ ${#skips[@]} -gt 0 ] || return 0
    printf '\nNot run:\n'
    for line in "${skips[@]}"; do
        printf '  %s\n' "$line"
    done
    if [ $able = yes ]; then
        printf '  As root on x86_64 this machine could have run them, so this is a failure.\n'
        broken=$((broken + 1))
    fi
}

# Lists the tests that only `make test-real` runs.
report_only_real() {
    [ ${#only_real[@]} -gt 0 ] || return 0
    printf '\nOnly `make test-real` runs:\n'
    printf '  %s\n' "${only_real[@]}"
}

# Lists the tests that took longest.
report_slow() {
    local seconds name
    [ ${#tests[@]} -eq 0 ] && return 0
    printf '\n%-64s %9s\n' 'SLOWEST TESTS (some of them run at the same time)' SECONDS
    printf '%s\n' "${tests[@]}" | sort -rn | sed -n 1,12p | while read -r seconds name; do
        printf '%-64s %9s\n' "${name#* }" "$seconds"
    done
}

# finish BEGIN: prints the table of steps, the slowest and skipped tests, and the result. Fails if a step failed.
finish() {
    local i total=$1
    printf '\n%-44s %9s\n' STEP SECONDS
    for i in "${!names[@]}"; do
        printf '%-44s %9s  %s\n' "${names[i]}" "${times[i]}" "${results[i]#ok}"
    done
    printf '%-44s %9s\n' total "$(since "$total")"
    report_slow
    report_only_real
    report_skips
        # Printed last, for a reader who sees only the end of the log.
    if [ ${#flakes[@]} -gt 0 ]; then
        printf '\nFailed once and passed when run again, alone; the first output is in the file:\n'
        printf 'FLAKY: %s\n' "${flakes[@]}"
    fi
        # A step that failed without a failed test, such as a build, must not read as "0 failed".
    failed=$((failed + ${#broken_steps[@]}))
    if [ "$failed" -gt 0 ]; then
        printf '\nFailed:\n'
        printf '  %s\n' ${failures[@]+"${failures[@]}"} ${broken_steps[@]+"${broken_steps[@]}"}
    elif [ "$broken" -gt 0 ]; then
        failed=$broken
    fi
    if [ $((passed + failed)) -gt 0 ]; then
        printf '\n%d passed, %d failed\n' "$passed" "$failed"
    fi
    [ "$broken" -eq 0 ]
}
