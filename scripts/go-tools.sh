# Programs that are Go modules, each pinned in a module of its own below tests/. Sourced by the other scripts; runs nothing when
# sourced.
# shellcheck shell=bash

# need_go_tool NAME: builds the program pinned in tests/tools/NAME or tests/NAME into the cache, once for each version, and puts it on
# PATH.
need_go_tool() {
    local name=$1 source=$root/tests/tools/$1 directory package
    [ -d "$source" ] || source=$root/tests/$1
    directory=$cache/tools/$name-$(cat "$source/go.mod" "$source/go.sum" | sha256sum | cut -c1-12)
    PATH=$directory:$PATH
    [ -x "$directory/$name" ] && return 0
    printf 'building %s into %s\n' "$name" "$directory"
    { need go=golang-go && need_go; } || return 1
    package=$(sed -n 's/^tool //p' "$source/go.mod")
    (cd "$source" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -o "$directory/$name" "$package")
}
