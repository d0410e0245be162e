#!/usr/bin/env bash
# publish.sh [REGISTRY/PATH]: pushes the images and charts in dist/, to the registry in Cargo.toml if none is named. Prints the digest
# of each: NAME@sha256:DIGEST. The caller is logged in. Run by the workflow `release`, with skopeo and helm.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)
to=${1:-$(sed -nE '/^\[workspace.metadata.berth\]/,/^\[/s/^images = "(.*)"/\1/p' Cargo.toml)}
insecure=()
plain=()
case $to in
    localhost:* | 127.0.0.1:*)
        insecure=(--dest-tls-verify=false)
        plain=(--plain-http)
        ;;
esac
digests=$(mktemp)
trap 'rm -f "$digests"' EXIT

for image in berth-agent berth-controller; do
    skopeo copy --quiet --all --preserve-digests ${insecure[@]+"${insecure[@]}"} --digestfile "$digests" \
        "oci-archive:dist/$image-$version.oci.tar" "docker://$to/$image:$version"
    printf '%s/%s@%s\n' "$to" "$image" "$(cat "$digests")"
done
for chart in berth berth-crds; do
    helm push ${plain[@]+"${plain[@]}"} "dist/$chart-$version.tgz" "oci://$to/charts" >"$digests" 2>&1 || {
        cat "$digests" >&2
        exit 1
    }
    printf '%s/charts/%s@%s\n' "$to" "$chart" "$(sed -n 's/^Digest: //p' "$digests")"
done
