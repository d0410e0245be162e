#!/bin/sh
# Runs after the files of the package are removed or replaced.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
