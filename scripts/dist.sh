# Makes the files of a release in dist/, beside the images. Sourced by the other scripts; runs nothing when sourced.
# shellcheck shell=bash

cyclonedx_version=0.5.9

# has_packages: true if the commit has settings for packages.
has_packages() {
    compgen -G 'packaging/nfpm*.yaml' >/dev/null
}

# The cargo subcommand that writes the SBOMs, built once into the cache.
need_cyclonedx() {
    local directory=$cache/tools/cyclonedx-$cyclonedx_version
    PATH=$directory/bin:$PATH
    [ -x "$directory/bin/cargo-cyclonedx" ] && return 0
    printf 'building cargo-cyclonedx %s into %s\n' "$cyclonedx_version" "$directory"
    build_cargo_tool cargo-cyclonedx "$cyclonedx_version" "$directory" && rm -rf "$directory/build"
}

# kubectl, which builds the install files, at the version of the tests: theirs, or one built from the same module.
need_kubectl() {
    local directory kubernetes
    kubernetes=$(required k8s.io/kubernetes)
    for directory in "$cache/controlplane-k8s-$kubernetes-etcd-$(required go.etcd.io/etcd/server/v3)" "$cache/tools/kubectl-$kubernetes"; do
        PATH=$directory:$PATH
        [ -x "$directory/kubectl" ] && return 0
    done
    printf 'building kubectl into %s: some minutes, once\n' "$directory"
    { need go=golang-go && need_go; } || return 1
    (cd tests/controlplane && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags=-w \
        -o "$directory/kubectl" k8s.io/kubernetes/cmd/kubectl)
}

# Helm: the one of the tests, or one built from the same module.
need_helm() {
    local directory
    directory=$cache/helm-$(required helm.sh/helm/v4 ../helm/)
    PATH=$directory:$PATH
    [ -x "$directory/helm" ] || need_go_tool helm
}

# All programs that this commit's release needs.
need_dist_tools() {
    need_cyclonedx || return 1
    need_kubectl || return 1
    [ ! -d charts ] || need_helm || return 1
    ! has_packages || need_go_tool nfpm
}

# compressed_archive DIRECTORY FILE MEMBER...: as `archive`, with gzip.
compressed_archive() {
    local file=$2
    archive "$1" "$file.tar" "${@:3}" && gzip -9 --no-name <"$file.tar" >"$file" && rm "$file.tar"
}

# plugin_archives TO: archives of kubectl-berth, with the licence.
plugin_archives() {
    local to=$1 architecture directory
    for architecture in "${architectures[@]}"; do
        directory=$builds/dist/kubectl-berth-$architecture
        rm -rf "$directory"
        mkdir -p "$directory"
        install -m 0755 "$(static_program "$architecture" kubectl-berth)" "$directory/kubectl-berth"
        install -m 0644 LICENSE "$directory/LICENSE"
        compressed_archive "$directory" "$to/kubectl-berth-$version-linux-$architecture.tar.gz" LICENSE kubectl-berth || return 1
    done
}

# The plugin's manifest for krew, which has the checksums of the archives.
krew_manifest() {
    local architecture sum script="s/@VERSION@/$version/g"
    for architecture in "${architectures[@]}"; do
        sum=$(sha256sum "dist/kubectl-berth-$version-linux-$architecture.tar.gz") || return 1
        script+=";s/@SHA256-linux-$architecture@/${sum%% *}/"
    done
    sed -e '/^#/d' -e "$script" packaging/krew.yaml >dist/krew.yaml
    if grep -o '@[A-Z0-9a-z-]*@' dist/krew.yaml; then
        echo 'the manifest for krew needs both architectures; call make without ARCHITECTURES' >&2
        return 1
    fi
}

# install_files TO: one file for `kubectl apply` from each overlay. The one for kubeadm has no name of its own.
install_files() {
    local to=$1 overlay name file
    for overlay in manifests/overlays/*/; do
        name=$(basename "$overlay")
        file=$to/install-$name.yaml
        [ "$name" != kubeadm ] || file=$to/install.yaml
        kubectl kustomize "$overlay" >"$file" || return 1
    done
}

# chart_archives TO: the charts. Helm writes the time of the build into its archives, so they are packed again.
chart_archives() {
    local to=$1 chart name directory=$builds/dist/charts
    rm -rf "$directory"
    for chart in charts/*/; do
        name=$(basename "$chart")
        mkdir -p "$directory/$name"
        helm package "$chart" --destination "$directory" || return 1
        tar -xzf "$directory/$name-$version.tgz" -C "$directory/$name" || return 1
        compressed_archive "$directory/$name" "$to/$name-$version.tgz" "$name" || return 1
    done
}

# man_pages DIRECTORY: writes the manual pages of agent and plugin there, compressed.
man_pages() {
    local directory=$1 pair
    rm -rf "$directory"
    mkdir -p "$directory"
    for pair in berth-agent=agent-man kubectl-berth=cli-man; do
        cargo run --quiet --locked --package "${pair%=*}" --example "${pair#*=}" -- "$directory" || return 1
    done
    gzip -9 --no-name "$directory"/*
}

# package_kinds ARCHITECTURE PROGRAMS MAN TO: makes the packages of each packaging/nfpm*.yaml, as .deb and .rpm, in the directory TO.
# PROGRAMS has the programs, MAN the manual pages. The names of the files have the version as it is in Cargo.toml: nfpm would write
# 0.2.0~rc.1, and GitHub renames such files.
package_kinds() {
    local settings name file cpu
    cpu=$(processor "$1") || return 1
    for settings in packaging/nfpm*.yaml; do
        name=$(sed -n 's/^name: //p' "$settings")
        for file in "${name}_${version}_$1.deb" "$name-$version-1.$cpu.rpm"; do
            VERSION=$version ARCH=$1 PROGRAMS=$2 MAN=$3 \
                nfpm package --config "$settings" --packager "${file##*.}" --target "$4/$file" || return 1
        done
    done
}

# Packages for hosts and for admins.
packages() {
    local architecture man=$builds/dist/man
    man_pages "$man" || return 1
    for architecture in "${architectures[@]}"; do
        package_kinds "$architecture" "$(dirname "$(static_program "$architecture" berth-agent)")" "$man" dist || return 1
    done
}

# The software in each program, as CycloneDX. The tool writes beside each Cargo.toml.
sboms() {
    local package program name=berth-sbom
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$(rust_target amd64)" --override-filename "$name" || return 1
    for package in agent=berth-agent controller=berth-controller cli=kubectl-berth; do
        program=${package#*=}
        # Without the path of this directory.
        sed "s#file://$root#file:///berth#g" "${package%%=*}/$name.json" >"dist/$program-$version.cdx.json" || return 1
    done
    rm -f ./*/"$name.json"
}

# changes VERSION: prints the section of CHANGELOG.md.
changes() {
    awk -v heading="## [$1]" '
        /^## / { inside = index($0, heading) == 1; next }
        /^\[[^]]*\]: / { next }
        inside' CHANGELOG.md | sed -e '/./,$!d'
}

# Writes the sums of all other files of a directory to its SHA256SUMS, and checks them.
checksums() {
    (
        cd "$1" &&
            find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS &&
            sha256sum --check --quiet SHA256SUMS
    )
}

# True if the files are the commit's. Otherwise prints those that differ.
is_committed() {
    [ -n "$(git status --porcelain)" ] || return 0
    printf 'these files differ from the commit; commit or remove them first:\n%s\n' "$(git status --short)" >&2
    return 1
}

# may_release VERSION: refuses another version than the one of this commit, and files that no commit has.
may_release() {
    local bad=0
    if [ "$1" != "$version" ]; then
        printf 'VERSION is "%s", but Cargo.toml has %s; to change that: make version VERSION=%s\n' "$1" "$version" "$1" >&2
        bad=1
    fi
    is_committed || bad=1
    if [ -z "$(changes "$version")" ]; then
        printf 'CHANGELOG.md has no section "## [%s]", or an empty one\n' "$version" >&2
        bad=1
    fi
    return $bad
}

# write_version VERSION: writes it into every file that names the version.
write_version() {
    local new=$1 where before files=() these=()
    if ! [[ $new =~ ^[0-9]+\.[0-9]+\.[0-9]+(-(alpha|beta|rc)\.?[0-9]*)?$ ]]; then
        printf 'VERSION=%s is not a version; write one such as 0.2.0 or 0.2.0-rc.1\n' "$new" >&2
        return 1
    fi
    mapfile -d '' files < <(git ls-files -z -- charts docs manifests packaging systemd README.md)
    while read -r where before; do
        these=("${files[@]}")
        [ "$where" = '*' ] || mapfile -d '' these < <(git ls-files -z -- "$where")
        [ ${#these[@]} -eq 0 ] || sed -i -E "s#($before)${version//./\\.}#\1$new#g" "${these[@]}" || return 1
    done < <(grep -v '^#' scripts/versions.txt)
    sed -i -E "/^\[workspace.package\]/,/^\[/s#^version = .*#version = \"$new\"#" Cargo.toml
    cargo update --quiet --workspace --offline || return 1
    git status --short
    printf 'write the changes of %s into CHANGELOG.md, as the section "## [%s] - %s", then run: make check\n' "$new" "$new" "$(date -u +%F)"
}
