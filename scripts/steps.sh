# Named, timed steps, and a table of them at the end. Sourced by the other scripts; runs nothing by itself.
# shellcheck shell=bash

logs=$(mktemp -d "${TMPDIR:-/tmp}/berth-steps.XXXXXX")
trap 'rm -rf "$logs"' EXIT
names=() times=() results=() skips=() unreachable=() failures=() tests=()
passed=0 failed=0 ignored=0 broken=0

# Seconds with a tenth since $1, which is an $EPOCHREALTIME.
since() {
    local now=${EPOCHREALTIME/[.,]/} then=${1/[.,]/}
    local tenths=$(((now - then) / 100000))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# Of all that cargo and its tests print, the lines for people, each test with the time at which it ended.
digest() {
    local begin=$1 line
    while IFS= read -r line; do
        case $line in
            'test '*' ... '*) printf '    %7s s  %s\n' "$(since "$begin")" "${line#test }" ;;
            *' states'* | *' rollouts'* | 'bug '* | 'fuzz '* | BROKEN*) printf '    %s\n' "$line" ;;
            SKIPPED:* | UNREACHABLE:* | 'berth-tools: '*) printf '    %s\n' "$line" ;;
        esac
    done
}

# Adds the test results in log $1 to the sums, and what was slow, skipped or failed to the lists.
tally() {
    local ok bad ign line
    while IFS= read -r line; do
        tests+=("$line")
    done < <(sed -nE 's/^time (.*) ([0-9.]+)$/\2 \1/p' "$1")
    while read -r ok bad ign; do
        passed=$((passed + ok)) failed=$((failed + bad)) ignored=$((ignored + ign))
    done < <(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed; ([0-9]+) ignored.*/\1 \2 \3/p' "$1")
    while IFS= read -r line; do
        skips+=("$2: $line")
    done < <(sed -nE 's/^SKIPPED: //p' "$1" | sort -u)
    while IFS= read -r line; do
        unreachable+=("$2: $line")
    done < <(sed -nE 's/^UNREACHABLE: //p' "$1" | sort -u)
    while IFS= read -r line; do
        failures+=("$2: $line")
    done < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$1" | sort -u)
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
    "$@" || result=FAILED broken=$((broken + 1))
    note "$name" "$begin" $result
}

# step NAME COMMAND...: runs it quietly, and shows all it said if it fails. Later steps run all the same.
step() {
    local name=$1 begin=$EPOCHREALTIME log result=ok
    shift
    log=$logs/${#names[@]}.log
    printf '==> %s\n' "$name"
    if ! "$@" 2>&1 | tee "$log" | digest "$begin"; then
        result=FAILED broken=$((broken + 1))
    fi
    [ $result = ok ] || sed 's/^/    | /' "$log"
    tally "$log" "$name"
    note "$name" "$begin" $result
}

# Puts a step that ended into the table.
note() {
    names+=("$1") times+=("$(since "$2")") results+=("$3")
    printf '    %7s s  %s\n' "${times[-1]}" "$3"
}

# Lists the skipped tests. One that this machine could have run is a failure; one that needs a page which cannot be reached from
# it is none.
report_skips() {
    local line able=no
    if [ ${#unreachable[@]} -gt 0 ]; then
        printf '\nNot checked, because this machine does not reach what that needs:\n'
        printf '  %s\n' "${unreachable[@]}"
    fi
    [ "$(id -u)" = 0 ] && [ "$(uname -m)" = x86_64 ] && able=yes
    [ ${#skips[@]} -eq 0 ] && [ "$ignored" -eq 0 ] && return 0
    printf '\nNot run:\n'
    for line in ${skips[@]+"${skips[@]}"}; do
        printf '  %s\n' "$line"
    done
    [ "$ignored" -eq 0 ] || printf '  %d tests are marked as ignored\n' "$ignored"
    if [ $able = yes ]; then
        printf '  This is x86_64 and root: it could have run them, so this is a failure.\n'
        broken=$((broken + 1))
    fi
}

# The tests with servers of their own that took longest.
report_slow() {
    local seconds name
    [ ${#tests[@]} -eq 0 ] && return 0
    printf '\n%-64s %9s\n' 'SLOWEST TESTS (some of them run at the same time)' SECONDS
    printf '%s\n' "${tests[@]}" | sort -rn | sed -n 1,12p | while read -r seconds name; do
        printf '%-64s %9s\n' "$name" "$seconds"
    done
}

# The table, what was slow or skipped, and the closing line. Ends the script.
finish() {
    local i total=$1
    printf '\n%-44s %9s\n' STEP SECONDS
    for i in "${!names[@]}"; do
        printf '%-44s %9s  %s\n' "${names[i]}" "${times[i]}" "${results[i]#ok}"
    done
    printf '%-44s %9s\n' total "$(since "$total")"
    report_slow
    report_skips
    # Last, so that whoever sees only the end of the log finds them.
    if [ ${#failures[@]} -gt 0 ]; then
        printf '\nFailed:\n'
        printf '  %s\n' "${failures[@]}"
    fi
    # A step that failed without a failed test (it did not compile, say) must not read as "0 failed".
    [ "$failed" -gt 0 ] || failed=$broken
    if [ $((passed + failed)) -gt 0 ]; then
        printf '\n%d passed, %d failed\n' "$passed" "$failed"
    fi
    [ "$broken" -eq 0 ]
}
