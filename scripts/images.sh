# Makes the container images of agent and controller: one OCI archive for each, with all architectures. Sourced by the other scripts;
# runs nothing when sourced.
# shellcheck shell=bash

# The largest size of an image: all its files, uncompressed.
image_limit=$((12 * 1024 * 1024))
image_programs=(berth-agent berth-controller)

# Settings of a build. The same commit gives the same values.
describe_source() {
    version=$(sed -nE '/^\[workspace.package\]/,/^\[/s/^version = "(.*)"/\1/p' Cargo.toml)
    image_registry=$(sed -nE '/^\[workspace.metadata.berth\]/,/^\[/s/^images = "(.*)"/\1/p' Cargo.toml)
    revision=$(git rev-parse HEAD)
    [ -z "$(git status --porcelain)" ] || revision+=-dirty
    SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    export SOURCE_DATE_EPOCH
}

need_image_tools() {
    command -v buildah >/dev/null || command -v podman >/dev/null || need buildah=buildah || return 1
    need_ca_bundle
}

# builder ARGUMENT...: buildah, or podman in its place, with a store that is removed with $store. Nothing runs in these builds, so
# neither needs a daemon, or privileges beyond a user namespace.
builder() {
    local program=buildah
    command -v buildah >/dev/null || program=podman
    "$program" --root "$store/root" --runroot "$store/run" --storage-driver vfs "$@"
}

# Mozilla's certificate authorities, from the package pinned in scripts/ca-bundle.txt.
need_ca_bundle() {
    local pins=$root/scripts/ca-bundle.txt directory
    directory=$cache/ca-bundle-$(sha256sum "$pins" | cut -c1-12)
    ca_bundle=$directory/certifi/cacert.pem
    [ -s "$ca_bundle" ] && return 0
    need_pip || return 1
    "$cache/tools/python/bin/pip" install -q --no-deps --no-compile --only-binary :all: --require-hashes --target "$directory" -r "$pins"
}

# prepare_context DIRECTORY: copies all that the images are made of there, and checks the size of each image.
prepare_context() {
    local context=$1 architecture program size certificates well=0
    rm -rf "$context"
    mkdir -p "$context"
    install -m 0644 "$ca_bundle" "$context/ca-certificates.crt"
    for architecture in "${architectures[@]}"; do
        mkdir "$context/$architecture"
        for program in "${image_programs[@]}"; do
            install -m 0755 "$(static_program "$architecture" "$program")" "$context/$architecture/$program"
            certificates=0
            [ "$program" != berth-controller ] || certificates=$(stat -c %s "$context/ca-certificates.crt")
            size=$(($(stat -c %s "$context/$architecture/$program") + certificates))
            printf 'image %s for %s: %d.%d MiB\n' "$program" "$architecture" $((size / 1048576)) $((size % 1048576 * 10 / 1048576)) \
                >>"$builds/images/report"
            if [ "$size" -gt "$image_limit" ]; then
                printf 'BROKEN %s for %s has %d bytes; an image may have %d\n' "$program" "$architecture" "$size" "$image_limit"
                well=1
            fi
        done
    done
    return $well
}

# image_archive PROGRAM: prints the path of its archive.
image_archive() {
    echo "dist/$1-$version.oci.tar"
}

# build_image CONTEXT PROGRAM: makes the image's archive.
build_image() {
    local context=$1 program=$2 list=localhost/$2:$version layout architecture
    layout=$store/layout-$program
    # One after the other: the order in the list is part of its digest.
    for architecture in "${architectures[@]}"; do
        builder build --file Containerfile --target "${program#berth-}" --platform "linux/$architecture" --manifest "$list" \
            --isolation chroot --network host --format oci --timestamp "$SOURCE_DATE_EPOCH" --identity-label=false \
            --build-arg VERSION="$version" --build-arg REVISION="$revision" \
            --build-arg CREATED="$(date -u -d "@$SOURCE_DATE_EPOCH" +%FT%TZ)" "$context" || return 1
    done
    builder manifest push --quiet --all --format oci "$list" "oci:$layout:$version" || return 1
    name_image "$layout" "$image_registry/$program:$version" || return 1
    mkdir -p dist
    archive "$layout" "$(image_archive "$program")" blobs index.json oci-layout
}

# name_image LAYOUT REFERENCE: writes the reference where containerd, docker and podman look for it.
name_image() {
    local layout=$1 reference=$2 digest size
    digest=$(sed -nE 's/.*"digest": *"sha256:([0-9a-f]{64})".*/\1/p' "$layout/index.json")
    size=$(stat -c %s "$layout/blobs/sha256/$digest") || return 1
    printf '%s' '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{' \
        '"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:'"$digest"'","size":'"$size"',' \
        '"annotations":{"io.containerd.image.name":"'"$reference"'","org.opencontainers.image.ref.name":"'"${reference##*:}"'"}}]}' \
        >"$layout/index.json"
    printf '%s@sha256:%s\n' "$reference" "$digest" >>"$builds/images/report"
}

# archive DIRECTORY FILE MEMBER...: packs these members into a tar archive that depends on nothing but their content.
archive() {
    local directory=$1 file=$2
    shift 2
    tar --create --file "$file" --directory "$directory" --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner --mode=u=rwX,go=rX "$@"
}

build_images() {
    local context=$builds/images/context program well=0
    mkdir -p "$builds/images"
    : >"$builds/images/report"
    store=$(mktemp -d "${TMPDIR:-/tmp}/berth-images.XXXXXX")
    prepare_context "$context" || well=1
    for program in "${image_programs[@]}"; do
        build_image "$context" "$program" || well=1
    done
    rm -rf "$store"
    return $well
}
