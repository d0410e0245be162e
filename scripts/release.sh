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

# Prints the sizes and digests of the images, which a step leaves in its log.
printed_report() {
    [ ! -f "$builds/images/report" ] || cat "$builds/images/report"
}

# same_images: makes the images of the same commit in two directories, and compares the archives.
same_images() {
    local other program well=0
    if [ -n "$(git status --porcelain)" ]; then
        echo 'commit your changes first: the other directory is a clone, and has none of them' >&2
        return 1
    fi
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
    test-images)
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
        echo 'usage: release.sh images|test-images|test-arm64' >&2
        exit 2
        ;;
esac
finish "$begin"
