#!/bin/sh
# Runs after the files of the package are installed: in an image build, where no systemd runs, or on a running host. The first argument
# is `configure` (deb; the second one is then the version before, if there was one) or the number of installed versions (rpm).
set -e

# A test sets another root.
root=${BERTH_ROOT:-}
units='berth-agent.service berth-firstboot.service berth-rollback-guard.service'

is_first=no
case ${1:-} in
    configure) [ -n "${2:-}" ] || is_first=yes ;;
    1) is_first=yes ;;
esac
command -v systemctl >/dev/null || exit 0

# An upgrade keeps the decisions of the admin.
if [ "$is_first" = yes ]; then
    # shellcheck disable=SC2086 # one word for each unit
    systemctl --no-reload preset $units || echo 'berth-agent: the units could not be enabled; see above' >&2
fi
if [ -d "$root/run/systemd/system" ]; then
    systemd-tmpfiles --create "$root/usr/lib/tmpfiles.d/berth.conf" || true
    systemctl daemon-reload || true
    # A pull continues without the agent, and the new agent adopts it.
    [ "$is_first" = yes ] || systemctl try-restart berth-agent.service || true
fi
