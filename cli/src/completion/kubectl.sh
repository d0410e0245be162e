#!/bin/sh
# Completion of kubectl berth, asked by kubectl itself. It must be executable, be named kubectl_complete-berth and be on the PATH.
exec kubectl-berth __complete -- "$@" 2>/dev/null
