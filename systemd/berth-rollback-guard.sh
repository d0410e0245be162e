# Rolls this host back if nothing proves its new image in time. berth-rollback-guard.service runs it at each boot for
# which the agent has left an order in the file `armed`. See docs/health.md.
#
# To disarm the guard, the agent renames `armed`. The guard renames it too before it rolls back, so only one of the two
# can succeed. That makes the guard a one-shot: the next boot has no order.
set -u

# A test sets another root.
root=${BERTH_ROOT:-}
state=$root/var/lib/berth/rollback-guard
# How long the guard waits for an API server that is away, in seconds.
outage_limit=3600
# How often the guard tries to reach the API server, in seconds.
outage_interval=10
# Time limit of a host command, in seconds.
command_limit=15

# seconds: sets `now` to the seconds since the kernel has started.
seconds() {
    read -r now _ </proc/uptime
    now=${now%%.*}
}

# read_order: sets the variables of the order.
read_order() {
    backend='' target='' previous='' armed_under='' limit='' target_commit='' previous_commit='' api_host='' api_port=''
    while IFS='=' read -r key value; do
        case $key in
            backend) backend=$value ;;
            target) target=$value ;;
            previous) previous=$value ;;
            boot) armed_under=$value ;;
            limit) limit=$value ;;
            target_commit) target_commit=$value ;;
            previous_commit) previous_commit=$value ;;
            api_host) api_host=$value ;;
            api_port) api_port=$value ;;
        esac
    done <"$state/armed"
    case $limit in
        '' | *[!0-9]*) return 1 ;;
    esac
    [ -n "$target" ] && [ -n "$previous" ] && [ -n "$armed_under" ]
}

# agent_has_started: true if an agent has started under this boot.
agent_has_started() {
    seen=''
    [ -r "$state/agent" ] && read -r seen <"$state/agent"
    [ "$seen" = "$boot" ]
}

# gateway: prints the IPv4 address of the default gateway.
gateway() {
    while read -r _ destination hex _; do
        [ "$destination" = 00000000 ] || continue
        # The address is in hexadecimal, last byte first.
        rest=${hex#??} && d=${hex%"$rest"}
        hex=$rest rest=${hex#??} && c=${hex%"$rest"}
        hex=$rest rest=${hex#??} && b=${hex%"$rest"}
        echo "$((0x$rest)).$((0x$b)).$((0x$c)).$((0x$d))"
        return
    done </proc/net/route
}

# is_neighbour ADDRESS: true if that address answers on the local network.
is_neighbour() {
    while read -r address _ flags _; do
        [ "$address" = "$1" ] && [ "$flags" != 0x0 ] && return 0
    done </proc/net/arp
    return 1
}

# is_own ADDRESS: true if the address belongs to this host, as on a control plane node.
is_own() {
    case $1 in
        127.* | localhost | ::1) return 0 ;;
    esac
    grep -A 1 -E -e "-- ${1}\$" /proc/net/fib_trie 2>/dev/null | grep -q 'host LOCAL'
}

# is_outage: true if the API server cannot be reached although the network works. No agent can prove a boot then.
is_outage() {
    [ -n "$api_host" ] || return 1
    # IPv6 is not looked at, and only bash can connect.
    case $api_host in *:*) return 1 ;; esac
    command -v bash >/dev/null || return 1
    is_own "$api_host" && return 1
    # shellcheck disable=SC2016 # bash expands them
    timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/$1"' "$api_host" "$api_port" 2>/dev/null && return 1
    is_neighbour "$api_host" || is_neighbour "$(gateway)"
}

# look: sets `plan` to the next action: queue, reboot or nothing. Fails if the deployments cannot be read.
look() {
    booted='' next='' deployed=''
    if [ -n "$target_commit" ]; then
        look_at_ostree || return 1
    else
        look_at_bootc || return 1
    fi
    plan=nothing
    if [ "$booted" = yes ] && [ "$deployed" = yes ]; then
        plan=queue
        [ "$next" = yes ] && plan=reboot
    fi
    return 0
}

# look_at_ostree: sets `booted` to yes if the target is booted, `deployed` if the previous image is deployed, and `next`
# if the next boot takes it.
look_at_ostree() {
    status=$(timeout "$command_limit" ostree admin status) || return 1
    first='' other=''
    while read -r line; do
        is_booted=''
        case $line in
            '* '*) is_booted=yes && line=${line#'* '} ;;
        esac
        # The words of a deployment: name, commit with a number, and state.
        # shellcheck disable=SC2086 # split into words
        set -- $line
        commit=${2-} && commit=${commit%%.*}
        [ "${#commit}" -eq 64 ] || continue
        # ostree shows a staged image that is locked without the word staged.
        case $line in
            *'(staged)'* | *'(finalization locked)'*) continue ;;
        esac
        # The rollback goes to the first deployment that is not booted.
        if [ -n "$is_booted" ]; then
            [ "$commit" = "$target_commit" ] && booted=yes
        elif [ -z "$other" ]; then
            other=$commit
        fi
        [ -n "$first" ] || first=$commit
    done <<EOF
$status
EOF
    [ "$other" = "$previous_commit" ] && deployed=yes
    [ "$first" = "$previous_commit" ] && next=yes
    return 0
}

# look_at_bootc: the same on a composefs host, which has no ostree.
look_at_bootc() {
    status=$(timeout "$command_limit" bootc status --format=json) || return 1
    # One line per deployment.
    lines=$(printf '%s' "$status" | tr -d ' \n\t' | sed 's/"\(staged\|booted\|rollback\|rollbackQueued\)":/\n&/g')
    while read -r line; do
        digest=${line#*'"imageDigest":"'} && digest=${digest%%'"'*}
        case $line in
            '"booted":'*) [ "$digest" = "$target" ] && booted=yes ;;
            '"rollback":'*) [ "$digest" = "$previous" ] && deployed=yes ;;
            '"rollbackQueued":true'*) next=yes ;;
        esac
    done <<EOF
$lines
EOF
    return 0
}

# queue: makes the next boot take the previous image. Both commands revert a rollback that is queued already.
queue() {
    case $backend in
        rpm-ostree) timeout 60 rpm-ostree rollback ;;
        *) timeout 60 bootc rollback ;;
    esac
}

# claim: takes the one shot. Fails if the agent has disarmed the guard meanwhile.
claim() {
    { cat "$state/armed" && echo "fired=$boot"; } >"$state/fired.new" && sync "$state/fired.new" || return 1
    mv "$state/fired.new" "$state/fired"
    if mv "$state/armed" "$state/claimed" 2>/dev/null; then
        sync "$state"
        return 0
    fi
    rm -f "$state/fired"
    return 1
}

# give_up WORDS: ends without a rollback.
give_up() {
    echo "not rolled back: $1" >&2
    for file in armed fired; do
        [ -e "$state/$file" ] && mv "$state/$file" "$state/given-up"
    done
    exit 0
}

# has_same_order: true if the order is still the one that was read at the start, for this boot.
has_same_order() {
    was="$target $previous $armed_under"
    read_order && [ "$target $previous $armed_under" = "$was" ]
}

# fire: rolls the host back and reboots it.
fire() {
    has_same_order || exit 0
    tries=0 claimed=''
    while [ "$tries" -lt 4 ]; do
        tries=$((tries + 1))
        if ! look; then
            sleep 5
            continue
        fi
        [ "$plan" = nothing ] && give_up "the host does not run $target, or has no deployment of $previous"
        if [ -z "$claimed" ]; then
            claim || exit 0
            claimed=yes
        fi
        if [ "$plan" = reboot ]; then
            echo "nothing proved $target in ${limit} s: rebooting into $previous" >&2
            # A rollback restarts the machine, even if a soft reboot is prepared.
            export SYSTEMCTL_SKIP_AUTO_SOFT_REBOOT=1
            systemctl -i reboot || systemctl --force reboot || give_up 'the host does not reboot'
            exit 0
        fi
        # Another client of the daemon may be busy.
        queue || sleep 10
    done
    give_up 'the host commands failed'
}

# read_boot: sets `boot` to the ID of the running boot. A soft reboot keeps the kernel's ID, and systemd counts it.
read_boot() {
    read -r boot <"$root/proc/sys/kernel/random/boot_id"
    count=$(timeout "$command_limit" systemctl show --property=SoftRebootsCount --value 2>/dev/null)
    case $count in
        '' | 0 | *[!0-9]*) ;;
        *) boot=$boot.soft$count ;;
    esac
}

read_boot
if ! read_order; then
    echo "$state/armed cannot be read; this boot has no guard" >&2
    exit 0
fi
# The host has not rebooted yet.
[ "$boot" != "$armed_under" ] || exit 0

seconds
start=$now began=$now looked=$((now - outage_interval)) has_agent='' is_away=''
while [ -e "$state/armed" ]; do
    seconds
    if [ -z "$has_agent" ] && agent_has_started; then
        has_agent=yes began=$now
    fi
    if [ "$((now - start))" -ge "$outage_limit" ]; then
        is_away=''
    elif [ "$((now - looked))" -ge "$outage_interval" ]; then
        looked=$now
        if is_outage; then
            is_away=yes
        elif [ -n "$is_away" ]; then
            # The API server is back: count again.
            is_away='' began=$now
        fi
    fi
    if [ -z "$is_away" ] && [ "$((now - began))" -ge "$limit" ]; then
        fire
    fi
    sleep 1
done
