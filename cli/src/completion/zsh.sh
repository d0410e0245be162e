#compdef kubectl-berth
# Completion of kubectl-berth for zsh: source <(kubectl-berth completion zsh)
_kubectl_berth() {
    local -a lines values
    lines=("${(@f)$(kubectl-berth __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    local directive="${lines[-1]#:}"
    lines=("${(@)lines[1,-2]}")
    if [[ $directive == 0 ]]; then
        _files
        return
    fi
    values=("${(@)lines//:/\\:}")
    values=("${(@)values/$'\t'/:}")
    if (( directive & 2 )); then
        _describe 'kubectl berth' values -S ''
    else
        _describe 'kubectl berth' values
    fi
}
# As a file of the fpath, this runs for the first completion, which it has to answer.
if [[ ${funcstack[1]} == _kubectl-berth ]]; then
    _kubectl_berth "$@"
fi
compdef _kubectl_berth kubectl-berth
