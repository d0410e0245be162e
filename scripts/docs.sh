# Builds the documentation as a book. Sourced by run.sh; runs nothing when sourced.
# shellcheck shell=bash

mdbook_version=0.5.4

# Installs mdbook into the cache: built once, without its server and optimization, which this book does not need.
need_mdbook() {
    local directory=$cache/tools/mdbook-$mdbook_version quiet=true
    PATH=$directory/bin:$PATH
    [ -x "$directory/bin/mdbook" ] && return 0
    printf 'building mdbook %s into %s: 2 to 4 minutes on two cores, once\n' "$mdbook_version" "$directory"
    [ ! -t 2 ] || quiet=false
    CARGO_TERM_QUIET=$quiet CARGO_TARGET_DIR=$directory/build cargo install --locked --debug --version "$mdbook_version" \
        --no-default-features --features search --root "$directory" mdbook && rm -rf "$directory/build"
}

# Builds the book. Warnings are errors, such as one about a page that cannot be read.
book() {
    local report
    report=$(mdbook build 2>&1) || { printf '%s\n' "$report" && return 1; }
    printf '%s\n' "$report"
    ! grep -qE '(WARN|ERROR)' <<<"$report"
}
