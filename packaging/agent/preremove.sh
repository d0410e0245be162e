#!/bin/sh
# Runs before the files of the package are removed. The first argument is `remove` (deb) or 0 (rpm) if no other version replaces them.
set -e

# A test sets another root.
root=${BERTH_ROOT:-}

case ${1:-} in
    remove | 0) ;;
    *) exit 0 ;;
esac
command -v systemctl >/dev/null || exit 0

# The guard keeps running if it is armed, since it protects this boot.
[ ! -d "$root/run/systemd/system" ] || systemctl stop berth-agent.service || true
systemctl --no-reload disable berth-agent.service berth-firstboot.service berth-rollback-guard.service || true
# With such a link, and without the unit, the kubelet would never start again.
rm -f "$root"/etc/systemd/system/*.requires/berth-firstboot.service
