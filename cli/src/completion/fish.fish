# Completion of kubectl-berth for fish: kubectl-berth completion fish | source
function __kubectl_berth_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -l lines (kubectl-berth __complete -- $words[2..-1] "$token" 2>/dev/null)
    # Only here are file names possible; -f below keeps fish from offering them elsewhere.
    if test "$lines[-1]" = :0
        __fish_complete_path "$token"
        return
    end
    string match -v -r '^:[0-9]+$' -- $lines
end
complete -c kubectl-berth -f -a '(__kubectl_berth_complete)'
