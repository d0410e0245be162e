#!/usr/bin/env bash
# bench.sh: implements `make bench`. Its standard output is JSON lines and nothing else. RECORD=1 writes the figures into
# tests/benchmarks.jsonl.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/need.sh
. scripts/need.sh

cluster+=(musl-gcc=musl-tools)
prepare_cluster >&2
exec cargo run --quiet -p berth-tests --bin berth-bench -- ${RECORD:+--record}
