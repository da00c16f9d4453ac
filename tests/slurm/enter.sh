#!/usr/bin/env bash
# Runs a command as one machine of the test cluster sees the world: its own network, host name,
# /etc/hosts, /etc/slurm and cgroup tree. Everything else, /tmp included, is shared.
#   enter.sh NETNS HOSTNAME CONF_DIR COMMAND...
# Not `ip netns exec`: that mounts a fresh /sys without the cgroup tree, and slurmd refuses to start.
set -euo pipefail

cgroup=/sys/fs/cgroup

# The cgroup directories that become the roots of this machine's own tree. Without that two
# clusters would put their jobs of equal number into the same cgroup and kill each other's.
trees() {
    if [[ -e $cgroup/cgroup.controllers ]]; then
        if [[ -w $cgroup ]]; then
            echo "$cgroup"
        fi
    else
        local name
        for name in freezer memory; do
            if [[ -w $cgroup/$name/cgroup.procs ]]; then
                echo "$cgroup/$name"
            fi
        done
    fi
}

# First half, still outside: the cgroup namespace is rooted where the process is when it unshares.
outside() {
    local netns=$1 tree
    for tree in $(trees); do
        mkdir -p "$tree/$netns"
        # Under cgroup v2 a cgroup with controllers for children may hold no process itself, so
        # this one is left again as soon as the namespace is made.
        echo 0 >"$tree/$netns/cgroup.procs"
    done
    exec nsenter --net="/run/netns/$netns" \
        unshare --uts --mount --cgroup "$BASH" "$0" --inside "$@"
}

inside() {
    local netns=$1 hostname=$2 conf_dir=$3 tree
    shift 3
    for tree in $(trees); do
        mount --bind "$tree/$netns" "$tree"
    done
    if [[ -e $cgroup/cgroup.controllers ]]; then
        mkdir -p "$cgroup/daemons" "$cgroup/system.slice"
        echo 0 >"$cgroup/daemons/cgroup.procs"
    fi
    hostname "$hostname"
    mount --bind "$conf_dir/hosts.$hostname" /etc/hosts
    if [[ -d /etc/slurm ]]; then
        mount --bind "$conf_dir" /etc/slurm
    fi
    exec "$@"
}

if [[ $1 == --inside ]]; then
    shift
    inside "$@"
else
    outside "$@"
fi
