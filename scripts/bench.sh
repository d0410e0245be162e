#!/usr/bin/env bash
# bench.sh: the work of `make bench`. Its standard output is JSON lines and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/need.sh
. scripts/need.sh

{
    need cc=gcc libc=libc6-dev git=git make=make musl-gcc=musl-tools dbus-daemon=dbus setpriv=util-linux
    need_rust
    if [ -n "$(unbuilt etcd registry kube-apiserver kube-controller-manager kube-scheduler)" ]; then
        need go=golang-go
        need_go || exit 1
    fi
} >&2
exec cargo run --quiet -p berth-tests --bin berth-bench
