#!/bin/sh
# Completion of kubectl berth, called by kubectl. This file must be executable, named kubectl_complete-berth and on the PATH.
exec kubectl-berth __complete -- "$@" 2>/dev/null
