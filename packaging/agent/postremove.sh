#!/bin/sh
# Runs after the files of the package are removed or replaced.
set -e

# A test sets another root.
root=${BERTH_ROOT:-}
[ ! -d "$root/run/systemd/system" ] || systemctl daemon-reload || true
