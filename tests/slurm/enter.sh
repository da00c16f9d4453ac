#!/usr/bin/env bash
# Runs a command as one machine of the test cluster sees the world: its own network, host name,
# /etc/hosts, /etc/slurm and cgroup tree. Everything else, /tmp included, is shared.
#   enter.sh NETNS HOSTNAME CONF_DIR COMMAND...
#   enter.sh --join PID COMMAND...   as the machine sees it on which the process PID runs
# Not `ip netns exec`: that mounts a fresh /sys without the cgroup tree, and slurmd refuses to start.
set -euo pipefail

cgroup=/sys/fs/cgroup

# The cgroup directories below which this machine gets a tree of its own: that of version 2, or
# those of version 1 that Slurm uses here. In a shared tree two clusters would put their jobs of
# equal number into the same cgroup and kill each other's.
trees() {
    local tree
    for tree in "$cgroup" "$cgroup"/{freezer,memory,devices,cpuacct}; do
        if [[ -w $tree/cgroup.procs ]]; then
            echo "$tree"
        fi
    done
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
    if [[ -w $cgroup/cgroup.procs ]]; then
        # Not a bind mount: slurmd reads its place from mountinfo, where that one has the wrong root.
        umount --lazy "$cgroup"
        mount -t cgroup2 cgroup2 "$cgroup"
        mkdir -p "$cgroup/daemons" "$cgroup/system.slice"
        echo 0 >"$cgroup/daemons/cgroup.procs"
        # From 23.11 on it takes the place of process 1, which is outside, for the root of its tree.
        mount --bind "$conf_dir/init-cgroup" /proc/1/cgroup
    else
        for tree in $(trees); do
            mount --bind "$tree/$netns" "$tree"
        done
    fi
    hostname "$hostname"
    mount --bind "$conf_dir/hosts.$hostname" /etc/hosts
    if [[ -d /etc/slurm ]]; then
        mount --bind "$conf_dir" /etc/slurm
    fi
    exec "$@"
}

# In the namespaces of a machine, still in the cgroup of the caller.
joined() {
    local tree
    for tree in $(trees); do
        if [[ -d $tree/daemons ]]; then
            tree=$tree/daemons
        fi
        echo 0 >"$tree/cgroup.procs"
    done
    exec "$@"
}

case $1 in
--inside) inside "${@:2}" ;;
--join) exec nsenter --target "$2" --net --uts --mount --cgroup "$BASH" "$0" --joined "${@:3}" ;;
--joined) joined "${@:2}" ;;
*) outside "$@" ;;
esac
