# Completion of kubectl-berth for bash: source <(kubectl-berth completion bash)
_kubectl_berth() {
    local line
    local -a lines=()
    COMPREPLY=()
    while IFS= read -r line; do
        lines+=("$line")
    done < <(kubectl-berth __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    ((${#lines[@]} > 0)) || return 0
    local directive="${lines[${#lines[@]} - 1]#:}"
    unset "lines[${#lines[@]}-1]"
    for line in "${lines[@]}"; do
        COMPREPLY+=("${line%%$'\t'*}")
    done
    if [[ $directive == 0 ]]; then
        compopt -o default 2>/dev/null
    elif ((directive & 2)); then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}
complete -F _kubectl_berth kubectl-berth
