#!/usr/bin/env bash
# charts.sh: writes the files of the Helm charts that repeat a manifest. `charts.sh check` compares them instead, and fails if one
# of them is old.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
base=manifests/base components=manifests/components files=charts/berth/files

# Each file of the chart, with the manifest that it repeats. Helm reads no template there, so nothing needs an escape.
copies=(
    "$files/admission-policies.yaml=$base/admission-policies.yaml"
    "$files/network-policies.yaml=$base/network-policies.yaml"
    "$files/rbac.yaml=$base/rbac.yaml"
    "$files/rbac-impersonation.yaml=$components/impersonation/rbac.yaml"
    "$files/security-context-constraints.yaml=$components/openshift/security-context-constraints.yaml"
    "$files/alerts.yaml=$components/monitoring/alerts.yaml"
    "$files/pod-monitors.yaml=$components/monitoring/pod-monitors.yaml"
    "$files/dashboard.json=$components/monitoring/dashboard.json"
)
crds=charts/berth-crds/templates/crds.yaml

# Prints the CRDs as a template: with the annotation that makes Helm leave them when the chart is uninstalled.
crds_template() {
    printf '%s\n' "{{- /* Written by \`make generate\` from $base/crds.yaml. */}}"
    awk '
        /\{\{/ { print "charts.sh: a brace that Helm would read: " $0 >"/dev/stderr"; exit 1 }
        { print }
        /^metadata:$/ {
            print "  {{- if .Values.keep }}"
            print "  annotations:"
            print "    helm.sh/resource-policy: keep"
            print "  {{- end }}"
        }' "$base/crds.yaml"
}

check() {
    local pair old=0
    for pair in "${copies[@]}"; do
        diff -u "${pair%%=*}" "${pair#*=}" || old=1
    done
    crds_template | diff -u "$crds" - || old=1
    [ $old = 0 ] || echo 'a file of the charts differs from its manifest; run: make generate'
    return $old
}

generate() {
    local pair
    for pair in "${copies[@]}"; do
        cp "${pair#*=}" "${pair%%=*}"
    done
    crds_template >"$crds.new"
    mv "$crds.new" "$crds"
}

case ${1:-} in
    check) check ;;
    '') generate ;;
    *)
        echo 'usage: charts.sh [check]' >&2
        exit 2
        ;;
esac
