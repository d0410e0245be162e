#!/usr/bin/env bash
# release.sh GOAL: makes images and releases. The goals stand at the end.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/need.sh
. scripts/need.sh
# shellcheck source=scripts/steps.sh
. scripts/steps.sh
# shellcheck source=scripts/static.sh
. scripts/static.sh
# shellcheck source=scripts/images.sh
. scripts/images.sh
# shellcheck source=scripts/go-tools.sh
. scripts/go-tools.sh
# shellcheck source=scripts/dist.sh
. scripts/dist.sh
begin=$EPOCHREALTIME

# Builds these programs for each architecture.
build_programs() {
    local architecture program
    for architecture in "${architectures[@]}"; do
        for program in "$@"; do
            build "build of $program for $architecture" build_static "$architecture" "$program"
        done
    done
    [ "$broken" -eq 0 ] || { finish "$begin" || exit 1; }
}

make_images() {
    build_programs "${image_programs[@]}"
    step 'images' build_images
    printed_report
}

# Makes all files of the release.
make_release() {
    rm -rf dist
    mkdir dist
    build_programs "${image_programs[@]}" kubectl-berth
    changes "$version" >dist/CHANGES.md
    step 'images' build_images
    step 'archives of kubectl-berth' plugin_archives dist
    step 'manifest for krew' krew_manifest
    part manifests/overlays 'install files' install_files dist
    part charts 'charts' chart_archives dist
    part 'packaging/nfpm*.yaml' 'packages' packages
    step 'SBOMs' sboms
    [ "$broken" -gt 0 ] || step 'checksums' checksums dist
    printed_report
}

# part FILES NAME COMMAND: a step that needs these files of the commit. Without them the part is left out, and that is printed.
part() {
    local files=$1
    shift
    if compgen -G "$files" >/dev/null; then
        step "$@"
    else
        printf '==> %s: left out, because this commit has no %s\n' "$1" "$files"
    fi
}

# Prints the sizes and digests of the images, which a step leaves in its log.
printed_report() {
    [ ! -f "$builds/images/report" ] || cat "$builds/images/report"
}

# same_images: makes the images of the same commit in two directories, and compares the archives.
same_images() {
    local other program well=0
    other=$(mktemp -d "${TMPDIR:-/tmp}/berth-in-another-directory.XXXXXX")
    git clone --quiet --no-hardlinks . "$other/berth" &&
        CARGO_TARGET_DIR=$other/target "$other/berth/scripts/release.sh" images || well=1
    for program in "${image_programs[@]}"; do
        (cd dist && sha256sum "$program-$version.oci.tar")
        cmp "$(image_archive "$program")" "$other/berth/$(image_archive "$program")" || well=1
    done
    rm -rf "$other"
    return $well
}

# Unit tests that take long even without emulation.
slow_unit_tests='test(/properties|after_what_is_named_the_plan|a_number_is_the_smallest|a_closed_window_opens|thousand/)'

# Runs the unit tests of all that is shipped, built for arm64.
emulated_unit_tests() {
    local package packages=()
    for package in berth-api berth-core berth-shell berth-agent berth-controller kubectl-berth; do
        packages+=(--package "$package")
    done
    for_target arm64 cargo nextest run --lib --bins "${packages[@]}" --filterset "not $slow_unit_tests" --cargo-quiet --no-fail-fast \
        --status-level all --final-status-level none --show-progress none --color never --no-output-indent
}

describe_source
case ${1:-} in
    images)
        need_static "${architectures[@]}" || exit 1
        need_image_tools || exit 1
        make_images
        ;;
    release)
        may_release "${2:-}" || exit 1
        need_static "${architectures[@]}" || exit 1
        need_image_tools || exit 1
        need_dist_tools || exit 1
        make_release
        ;;
    version)
        need_rust || exit 1
        write_version "${2:-}" || exit 1
        exit
        ;;
    test-images)
        # The other directory is a clone, without uncommitted changes.
        is_committed || exit 1
        need_static "${architectures[@]}" || exit 1
        need_image_tools || exit 1
        make_images
        step 'the same images in another directory' same_images
        ;;
    test-arm64)
        need_static arm64 || exit 1
        need_cargo_tools || exit 1
        [ "$(uname -m)" = aarch64 ] || need qemu-aarch64-static=qemu-user-static || exit 1
        step 'unit tests on arm64' emulated_unit_tests
        ;;
    *)
        echo 'usage: release.sh images|release VERSION|version VERSION|test-images|test-arm64' >&2
        exit 2
        ;;
esac
finish "$begin"
